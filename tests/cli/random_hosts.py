# SPDX-License-Identifier: GPL-2.0
"""Random hosts in memory: cgroups, processes that share pages, and the files of the kernel.

A page is in a folio, which is charged to one cgroup, and is mapped by any number of processes, or
by KSM several times by one. There are also swapped pages, guard pages, pages of files, of pools and
of devices, and nearly empty reservations; half of the kernels can scan. All files of the kernel are
generated from this, so output of the command can be compared with the truth.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from ctypes import c_char
from dataclasses import dataclass, field
from random import Random
from struct import Struct

from mmpolicy.errors import Error
from mmpolicy.host import pagemap
from mmpolicy.host.files import Reader, Tree

PAGE = 4096
DIRTY, ANON, SWAPBACKED, HEAD, TAIL, POOL, UNEVICTABLE = (
    1 << bit for bit in (4, 12, 14, 15, 16, 17, 18)
)
PRESENT, SWAPPED, FILE, GUARD = (1 << bit for bit in (63, 62, 61, 58))
DEVICE = 1 << 40  # frames from here on are no RAM
HUGETLB_KIB = 4096
REGION = Struct("=3Q")
BASE = 0x10000000
ORDERS = (0, 0, 4, 4, 9)


class Bytes(Reader):
    """A file that is stored only from an offset on."""

    def __init__(self, data: bytes, base: int = 0) -> None:
        self._data, self._base, self._file = data, base, -1

    def read(self, size: int, offset: int) -> bytes:
        at = offset - self._base
        if at < 0:
            return bytes(min(-at, size)) + (self._data[: size + at] if size + at > 0 else b"")
        return self._data[at : at + size]

    def ioctl(self, request: int, argument: bytearray) -> int:
        raise Error("no ioctl", 1, "none", 25)


class Scanned(Bytes):
    """A pagemap with PAGEMAP_SCAN, which never reports huge entries."""

    def ioctl(self, request: int, argument: bytearray) -> int:
        assert request == pagemap.SCAN
        _, _, start, end, _, place, room, most, _, _, any_of, told = pagemap.ARGUMENT.unpack(
            argument
        )
        found, left, at = list[tuple[int, int, int]](), most or end, start
        entries = array("Q", self.read((end - start) // PAGE * 8, start // PAGE * 8))
        for number, entry in enumerate(entries):
            at, kind = start + number * PAGE, categories(entry)
            if not kind & any_of:
                continue
            goes_on = found and found[-1][1] == at and found[-1][2] == kind & told
            if not left or (not goes_on and len(found) == room):
                break
            first = found.pop()[0] if goes_on else at
            found.append((first, at + PAGE, kind & told))
            left -= 1
        else:
            at = end
        raw = b"".join(REGION.pack(*each) for each in found)
        if raw:
            (c_char * len(raw)).from_address(place).raw = raw
        argument[32:40] = at.to_bytes(8, "little")
        return len(found)


def categories(entry: int) -> int:
    """Return the PAGEMAP_SCAN categories of an entry."""
    if entry & PRESENT:
        return pagemap.PRESENT | (pagemap.FILE if entry & FILE else 0)
    if entry & SWAPPED:
        return pagemap.GUARD if entry & GUARD else pagemap.SWAPPED
    return 0


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
    """Pages that the kernel allocated together."""

    order: int
    shared: bool  # shared by processes
    cgroup: str  # cgroup that is charged
    empty: set[int]
    mapped: set[int]  # mapped pages; the rest of its pages is unmapped
    locked: bool = False
    lazy: bool = False  # after MADV_FREE
    ksm: bool = False
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
    folios: list[Folio] = field(default_factory=list)  # may repeat if KSM merged it
    file_pages: int = 0
    hugetlb_kib: int = 0
    swapped: int = 0
    guards: int = 0
    reserved: int = 0  # pages that are reserved and empty

    def pages(self, shared: bool) -> int:
        return sum(len(each.mapped) for each in self.folios if each.shared == shared)

    @property
    def kinds(self) -> dict[str, int]:
        """Memory of the process by kind, in kB."""
        own = [each for each in self.folios if not each.shared]
        pages = {
            "private": self.pages(False),
            "shared": self.pages(True),
            "file": self.file_pages,
            "swapped": self.swapped,
            "ksm": sum(1 for each in own if each.ksm),
            "lazily_freed": sum(len(each.mapped) for each in own if each.lazy),
            "locked": sum(len(each.mapped) for each in self.folios if each.locked),
            "partly_unmapped": sum(each.pages - len(each.mapped) for each in self.folios),
        }
        return {kind: 4 * number for kind, number in pages.items()} | {"hugetlb": self.hugetlb_kib}

    def orders(self) -> dict[int, tuple[int, int]]:
        """Return pages, and empty ones, by the order of their folio."""
        pages, empty = Counter[int](), Counter[int]()
        for each in self.folios:
            pages[each.order] += len(each.mapped)
            empty[each.order] += len(each.empty)
        return {order: (number, empty[order]) for order, number in pages.items()}

    def to_give_back(self) -> int:
        """Return the number of pages that a split of all private folios frees."""
        large = (each for each in self.folios if each.order and not each.shared)
        return sum(len(each.empty) + each.pages - len(each.mapped) for each in large)


class World:
    """A host: the true state, and the files generated from it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.version = self.rng.choice((1, 2, 2))
        self.hybrid = self.version == 1 and self.rng.random() < 0.5
        self.scans = self.rng.random() < 0.5
        self.tree = Memory()
        self.cgroups = self._cgroups()
        self.folios: list[Folio] = []
        self.processes = [self._process(10 + n) for n in range(self.rng.randint(1, 5))]
        self._share()
        self._merge()
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
        lazy = not shared and rng.random() < 0.1
        found = Folio(order, shared, cgroup, empty, mapped, rng.random() < 0.05, lazy)
        self.folios.append(found)
        return found

    def _process(self, pid: int) -> Proc:
        rng = self.rng
        cgroup = rng.choice(self.cgroups)
        found = Proc(pid, cgroup, [], rng.randint(0, 150), rng.choice((0, 0, HUGETLB_KIB)))
        found.swapped, found.guards = (rng.choice((0, 0, rng.randint(1, 300))) for _ in range(2))
        found.reserved = rng.choice((0, 0, 0, 20_000))
        for shared, share in ((False, 1.0), (True, 0.4)):
            if rng.random() > share:
                continue
            small, emptiness = rng.random() < 0.25, rng.random()
            room = rng.randint(4, 60) if small else rng.randint(100, 1500)
            # The process was moved, or another one touched the page first.
            charged = cgroup if rng.random() < 0.8 else rng.choice(self.cgroups)
            while room > 0:
                found.folios.append(self._folio(shared, charged, emptiness))
                room -= found.folios[-1].pages
        return found

    def _share(self) -> None:
        """Let processes map memory of others: shared memory, or the memory of a parent."""
        for each in self.processes[1:]:
            if self.rng.random() < 0.4:
                other = self.rng.choice(self.processes[: self.processes.index(each)])
                taken = [folio for folio in other.folios if self.rng.random() < 0.8]
                each.folios += taken

    def _merge(self) -> None:
        """Let KSM merge single private pages of processes, into a page charged to one cgroup."""
        for number in range(self.rng.choice((0, 0, 1, 2))):
            some = self.rng.sample(self.processes, self.rng.randint(1, len(self.processes)))
            merged = Folio(0, False, some[0].cgroup, set(), {0}, ksm=True)
            for each in some:
                each.folios += [merged] * self.rng.randint(1, 200 * (number + 1))
            self.folios.append(merged)

    def _show(self) -> None:
        """Generate the files."""
        pool = 1024 * len(self.processes)
        frames = sum(max(each.pages, 512) for each in self.folios) + 2048 + pool
        flags, counts, owners = (array("Q", [0] * frames) for _ in range(3))
        numbers = self._show_cgroups()
        for process in self.processes:
            for folio in process.folios:
                folio.users += 1
        at = 512 + pool
        for page in range(512, at):
            flags[page] = POOL | (TAIL if page % 512 else HEAD)
        for folio in self.folios:
            at = -(-at // folio.pages) * folio.pages
            folio.frame = at
            for page in range(folio.pages):
                mark = 0 if folio.lazy else SWAPBACKED | self.rng.choice((0, DIRTY))
                mark |= 0 if folio.shared else ANON
                mark |= (TAIL if page else HEAD) if folio.order else 0
                flags[at + page] = mark | (UNEVICTABLE if folio.locked else 0)
                counts[at + page] = folio.users if page in folio.mapped else 0
                owners[at + page] = numbers[folio.cgroup]
            at += folio.pages
        for name, values in (("flags", flags), ("count", counts), ("cgroup", owners)):
            self.tree.put(f"/proc/kpage{name}", Bytes(values.tobytes()))
        for number, process in enumerate(self.processes):
            self._show_process(process, 512 + 1024 * number)

    def _show_process(self, process: Proc, pool: int) -> None:
        entries, memory, maps = array("Q"), bytearray(), list[str]()

        def add(kind: str, some: Sequence[tuple[int, bytes]]) -> None:
            """Add an area with these pages, and a gap behind it."""
            if not some:
                return
            start, end = (BASE + (len(entries) + n) * PAGE for n in (0, len(some)))
            maps.append(f"{start:x}-{end:x} {kind}")
            entries.extend(entry for entry, _ in some)
            memory.extend(b"".join(page for _, page in some))
            entries.extend([0] * 16)
            memory.extend(bytes(16 * PAGE))

        nothing, used = bytes(PAGE), b"x" * PAGE
        add("rw-p 00000000 00:00 0", [*_pages(process, False), (0, nothing)])
        swapped = [(SWAPPED, nothing)] * process.swapped
        add(
            "rw-p 00000000 00:00 0 [stack]",
            [*swapped, *[(SWAPPED | GUARD, nothing)] * process.guards],
        )
        add("rw-s 00000000 00:01 5 /memfd:x", [*_pages(process, True)])
        add("rw-p 00000000 08:01 7 /lib/x.so", [(PRESENT | FILE | 5, used)] * process.file_pages)
        huge = [(PRESENT | pool + page, used) for page in range(process.hugetlb_kib // 4)]
        add("rw-p 00000000 00:0f 9 /anon_hugepage (deleted)", huge)
        add("rw-s 00000000 00:15 8 /sys/devices/pci/resource0", [(PRESENT | DEVICE, used)] * 40)
        if process.reserved:
            add("rw-p 00000000 00:00 0 [anon:room]", [(0, b"")] * process.reserved)  # the last one
        path = f"/proc/{process.pid}"
        shown = (Scanned if self.scans else Bytes)(entries.tobytes(), BASE // PAGE * 8)
        self.tree.put(f"{path}/pagemap", shown)
        self.tree.put(f"{path}/mem", Bytes(bytes(memory), BASE))
        self.tree.put(f"{path}/maps", "\n".join(maps))
        kinds = process.kinds
        lines = {
            "VmRSS": kinds["private"] + kinds["shared"] + kinds["file"],
            "RssAnon": kinds["private"], "RssShmem": kinds["shared"], "RssFile": kinds["file"],
            "VmSwap": kinds["swapped"], "HugetlbPages": kinds["hugetlb"],
        }  # fmt: skip
        self.tree.put(
            f"{path}/status", "\n".join(f"{name}:\t{kib} kB" for name, kib in lines.items())
        )
        self.tree.put(f"{path}/ksm_merging_pages", str(kinds["ksm"] // 4))
        counts = f"1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 4096000 {lines['VmRSS'] // 4}"
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
        """Return how much of the memory charged to a cgroup is empty and mapped."""
        return 4 * sum(len(each.empty) for each in self.folios if each.cgroup == name)

    def waste_of(self, process: Proc) -> int:
        """Return how much of the memory that a process maps is empty."""
        return 4 * sum(len(each.empty) for each in process.folios)


def _pages(process: Proc, shared: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the entries of one kind of a process, with the contents."""
    for folio in process.folios:
        if folio.shared != shared:
            continue
        for page in range(folio.pages):
            is_there = page in folio.mapped
            entry = PRESENT | (FILE if shared else 0) | folio.frame + page
            used = is_there and page not in folio.empty
            yield entry if is_there else 0, b"x" * PAGE if used else bytes(PAGE)
