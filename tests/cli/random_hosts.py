# SPDX-License-Identifier: GPL-2.0
"""Hosts made by chance, in memory: cgroups, processes that share pages, and what a kernel says.

A page is in a folio, which is charged to one cgroup, and is mapped by any number of processes. All
that the kernel shows is made from this, so what is shown of it can be compared with the truth.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

from mmpolicy.errors import Error
from mmpolicy.host.files import Reader, Tree

PAGE = 4096
ANON, SWAPBACKED, HEAD, TAIL, UNEVICTABLE = 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 18
PRESENT, FILE = 1 << 63, 1 << 61
BASE = 0x10000000
ORDERS = (0, 0, 4, 4, 9)


class Bytes(Reader):
    """A file of which only the part from an offset on is kept."""

    def __init__(self, data: bytes, base: int = 0) -> None:
        self._data, self._base, self._file = data, base, -1

    def read(self, size: int, offset: int) -> bytes:
        at = offset - self._base
        if at < 0:
            return bytes(min(-at, size)) + (self._data[: size + at] if size + at > 0 else b"")
        return self._data[at : at + size]

    def ioctl(self, request: int, argument: bytearray) -> int:
        raise Error("no ioctl", 1, "none", 25)


class Memory(Tree):
    """Files that are kept in memory."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.files: dict[str, Reader | bytes] = {}
        self.folders: dict[str, dict[str, int]] = defaultdict(dict)
        self._number = 100

    def put(self, path: str, text: str | bytes | Reader) -> None:
        self.files[path] = text.encode() if isinstance(text, str) else text
        self.mkdir(path.rpartition("/")[0])

    def mkdir(self, path: str) -> int:
        above, _, name = path.rpartition("/")
        if name and name not in self.folders[above]:
            if above:
                self.mkdir(above)
            self._number += 1
            self.folders[above][name] = self._number
        return self.folders[above].get(name, 1)

    def reader(self, path: str) -> Reader:
        found = self.files.get(path)
        if found is None:
            raise Error(f"no {path}", 3, "none", 2)
        return found if isinstance(found, Reader) else Bytes(found)

    def read_bytes(self, path: str) -> bytes:
        return self.reader(path).read(1 << 24, 0)

    def inodes(self, path: str) -> dict[str, int]:
        if not self.is_dir(path):
            raise Error(f"no {path}", 3, "none", 2)
        return dict(self.folders.get(path, {}))

    def exists(self, path: str) -> bool:
        return path in self.files or self.is_dir(path)

    def is_dir(self, path: str) -> bool:
        above, _, name = path.rstrip("/").rpartition("/")
        return name in self.folders.get(above, {})

    def inode(self, base: str, path: str = "") -> int:
        whole = f"{base}/{path}".rstrip("/")
        above, _, name = whole.rpartition("/")
        return self.folders.get(above, {}).get(name, 0)


@dataclass
class Folio:
    """Pages that the kernel has together."""

    order: int
    shared: bool  # memory of processes that share it, and not of one alone
    cgroup: str  # that is charged with it
    empty: set[int]
    mapped: set[int]  # the rest of its pages is mapped by nobody any more
    locked: bool = False
    users: int = 0
    frame: int = 0

    @property
    def pages(self) -> int:
        return 1 << self.order


@dataclass
class Proc:
    """A process."""

    pid: int
    cgroup: str
    folios: list[Folio] = field(default_factory=list)
    file_pages: int = 0
    hugetlb_kib: int = 0

    def pages(self, shared: bool) -> int:
        return sum(len(each.mapped) for each in self.folios if each.shared == shared)


class World:
    """A host: what there is, and the files that show it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.version = self.rng.choice((1, 2, 2))
        self.hybrid = self.version == 1 and self.rng.random() < 0.5
        self.tree = Memory()
        self.cgroups = self._cgroups()
        self.folios: list[Folio] = []
        self.processes = [self._process(10 + n) for n in range(self.rng.randint(1, 5))]
        self._share()
        self._show()

    @property
    def mount(self) -> str:
        return "/sys/fs/cgroup/memory" if self.version == 1 else "/sys/fs/cgroup"

    def _cgroups(self) -> list[str]:
        names = ["/"]
        for number in range(self.rng.randint(1, 6)):
            above = self.rng.choice(names).rstrip("/")
            names.append(f"{above}/{self.rng.choice(('a', 'b.slice', 'c d'))}{number}")
        return names

    def _folio(self, shared: bool, cgroup: str, emptiness: float) -> Folio:
        rng, order = self.rng, self.rng.choice(ORDERS)
        pages = range(1 << order)
        mapped = set(pages)
        if order and not shared and rng.random() < 0.1:
            mapped = set(rng.sample(pages, rng.randint(1, len(pages))))
        empty = {page for page in mapped if order and rng.random() < emptiness}
        found = Folio(order, shared, cgroup, empty, mapped, rng.random() < 0.05)
        self.folios.append(found)
        return found

    def _process(self, pid: int) -> Proc:
        rng = self.rng
        cgroup = rng.choice(self.cgroups)
        found = Proc(pid, cgroup, [], rng.randint(0, 150), rng.choice((0, 0, 4096)))
        for shared, share in ((False, 1.0), (True, 0.4)):
            if rng.random() > share:
                continue
            small, emptiness = rng.random() < 0.25, rng.random()
            room = rng.randint(4, 60) if small else rng.randint(100, 1500)
            # It was moved, or another one touched it first.
            charged = cgroup if rng.random() < 0.8 else rng.choice(self.cgroups)
            while room > 0:
                found.folios.append(self._folio(shared, charged, emptiness))
                room -= found.folios[-1].pages
        return found

    def _share(self) -> None:
        """Let processes map what others have: shared memory, or the memory of a parent."""
        for each in self.processes[1:]:
            if self.rng.random() < 0.4:
                other = self.rng.choice(self.processes[: self.processes.index(each)])
                taken = [folio for folio in other.folios if self.rng.random() < 0.8]
                each.folios += taken

    def _show(self) -> None:
        """Make the files."""
        frames = sum(max(each.pages, 512) for each in self.folios) + 1024
        flags, counts, owners = (array("Q", [0] * frames) for _ in range(3))
        numbers = self._show_cgroups()
        for process in self.processes:
            for folio in process.folios:
                folio.users += 1
        at = 512
        for folio in self.folios:
            at = -(-at // folio.pages) * folio.pages
            folio.frame = at
            for page in range(folio.pages):
                mark = SWAPBACKED | (0 if folio.shared else ANON)
                mark |= (TAIL if page else HEAD) if folio.order else 0
                flags[at + page] = mark | (UNEVICTABLE if folio.locked else 0)
                counts[at + page] = folio.users if page in folio.mapped else 0
                owners[at + page] = numbers[folio.cgroup]
            at += folio.pages
        for name, values in (("flags", flags), ("count", counts), ("cgroup", owners)):
            self.tree.put(f"/proc/kpage{name}", Bytes(values.tobytes()))
        for process in self.processes:
            self._show_process(process)

    def _show_process(self, process: Proc) -> None:
        entries, memory, maps = array("Q"), bytearray(), []
        for shared in (False, True):
            first = len(entries)
            for folio in process.folios:
                if folio.shared != shared:
                    continue
                for page in range(folio.pages):
                    there = page in folio.mapped
                    bits = PRESENT | (FILE if shared else 0)
                    entries.append(bits | folio.frame + page if there else 0)
                    memory += bytes(PAGE) if page in folio.empty or not there else b"x" * PAGE
            gap = array("Q", [0] * 16)
            if len(entries) > first:
                where = [BASE + each * PAGE for each in (first, len(entries))]
                kind = "rw-s 00000000 00:01 5 /memfd:x" if shared else "rw-p 00000000 00:00 0"
                maps.append(f"{where[0]:x}-{where[1]:x} {kind}")
            entries += gap
            memory += bytes(16 * PAGE)
        path = f"/proc/{process.pid}"
        self.tree.put(f"{path}/pagemap", Bytes(entries.tobytes(), BASE // PAGE * 8))
        self.tree.put(f"{path}/mem", Bytes(bytes(memory), BASE))
        self.tree.put(f"{path}/maps", "\n".join(maps))
        anon, others = process.pages(False), process.pages(True)
        rss = anon + others + process.file_pages
        lines = {"VmRSS": rss, "RssAnon": anon, "RssShmem": others, "RssFile": process.file_pages}
        text = "\n".join(f"{name}:\t{pages * 4} kB" for name, pages in lines.items())
        self.tree.put(f"{path}/status", f"{text}\nHugetlbPages:\t{process.hugetlb_kib} kB")
        counts = f"1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 4096000 {rss}"
        self.tree.put(f"{path}/stat", f"{process.pid} (p{process.pid}) S {counts} 0 0")
        line = f"4:memory:{process.cgroup}\n0::/" if self.version == 1 else f"0::{process.cgroup}"
        self.tree.put(f"{path}/cgroup", line)

    def _show_cgroups(self) -> dict[str, int]:
        tree = self.tree
        mounts = [f"30 1 0:30 / {self.mount} rw - cgroup cgroup rw,memory"]
        if self.version == 2:
            mounts = ["30 1 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"]
        elif self.hybrid:
            mounts.append("31 1 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw")
            tree.mkdir("/sys/fs/cgroup/unified")
        tree.put("/proc/self/mountinfo", "\n".join(mounts))
        numbers = {}
        for name in self.cgroups:
            folder = f"{self.mount}{name.rstrip('/')}"
            numbers[name] = tree.mkdir(folder)
            whole, own = self.charged(name, True), self.charged(name, False)
            if self.version == 1:
                tree.put(f"{folder}/memory.usage_in_bytes", str(whole[0] * PAGE))
                stat = f"cache {own[2] * PAGE}\nrss {own[1] * PAGE}\nshmem {own[2] * PAGE}"
            else:
                if name != "/":
                    tree.put(f"{folder}/memory.current", str(whole[0] * PAGE))
                stat = f"anon {whole[1] * PAGE}\nfile {whole[2] * PAGE}\nshmem {whole[2] * PAGE}"
            tree.put(f"{folder}/memory.stat", stat)
        return numbers

    def charged(self, name: str, below: bool) -> tuple[int, int, int]:
        """Return all pages that a cgroup is charged with, private ones, and shared ones."""
        inside = name.rstrip("/") + "/"
        some = [
            folio for folio in self.folios
            if folio.cgroup == name or (below and f"{folio.cgroup}/".startswith(inside))
        ]  # fmt: skip
        private = sum(len(each.mapped) for each in some if not each.shared)
        shared = sum(each.pages for each in some if each.shared)
        return sum(each.pages for each in some), private, shared

    def waste_kib(self, name: str) -> int:
        """Return how much of what a cgroup is charged with is empty and mapped."""
        return 4 * sum(len(each.empty) for each in self.folios if each.cgroup == name)

    def waste_of(self, process: Proc) -> int:
        """Return how much of what a process maps is empty."""
        return 4 * sum(len(each.empty) for each in process.folios)
