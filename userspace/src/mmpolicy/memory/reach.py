# SPDX-License-Identifier: GPL-2.0
"""Find memory of a process that a policy for large folios cannot reach, with the reason.

A program can forbid large folios for itself, or ask for them in some of its memory. No policy
decides for this memory, and most users do not know about it. In this package, a "barrier" is
one such reason, with the memory that it puts out of reach. A barrier is reported with its share of
the process's memory, the likely cause by name, and the remedy. A cause is named only if the process
shows a sign of it. Small shares, which every program has (its code, the stacks of its threads), are
not reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.evidence import THP, size_folders
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import chosen
from mmpolicy.host.processes import cgroup_of, printable
from mmpolicy.host.systemd import memory_thp, unit_of
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.space import PRESENT, Details, Sizes, Space, Vma

ENABLED = f"{THP}/enabled"
SHMEM = f"{THP}/shmem_enabled"
# A reason why policies do not reach memory is reported only if it concerns at least this share of
# the process's memory, and this many kB.
MUCH, MUCH_KIB = 0.1, 32 << 10
# Mapped files are reported only from this share of the memory on, as every program has some.
MOSTLY = 0.5
ALL = 0.95  # from this share of memory out of reach on, a policy for large folios changes nothing
# In a process with more kB than this, the search for areas with madvise() takes too long to be done
# for many processes.
INTO_KIB = 4 << 20
DARK = "dark"  # key of memory whose madvise() flags are not known
ASKED, REFUSED = "hg", "nh"  # VmFlags of memory with MADV_HUGEPAGE and with MADV_NOHUGEPAGE
WATCHED = frozenset(("um", "uw"))  # VmFlags of memory that a userfaultfd watches
THP_ENABLED = re.compile(r"^THP_enabled:\s+0$", re.MULTILINE)
PARENT = re.compile(r"^PPid:\s+(\d+)$", re.MULTILINE)


class Barrier(NamedTuple):
    """One reason why no policy reaches some memory of a process."""

    key: str
    kib: int
    share: float  # `kib` as a share of the process's resident memory
    what: str  # the reason in words, beginning with "as"
    likely: str  # the likely cause by name, "" if the process shows no sign of one
    way_out: str  # what the user can do about it, as text

    @property
    def text(self) -> str:
        """Return in words how much memory no policy reaches, why, and the remedy."""
        how_much = f"{self.share:.0%} of the memory ({self.kib >> 10} MiB) "
        cause = f"; cause: {self.likely}" if self.likely else ""
        return f"{how_much}{self.what}{cause}; remedy: {self.way_out}"


class Reach(NamedTuple):
    """The memory of a process that no policy for large folios reaches: one Barrier for each
    reason.
    """

    pid: int
    name: str
    kib: int
    barriers: tuple[Barrier, ...]
    unknown: tuple[str, ...]  # facts that could not be found out, as text

    @property
    def barred(self) -> float:
        """Return the share of the process's memory that is known to be out of reach."""
        if any(each.key == "prctl" for each in self.barriers):
            # prctl() does not cover mapped files, which are most of the rest, and which no policy
            # reaches
            return 1.0
        return min(sum(each.share for each in self.barriers), 1.0)

    @property
    def decider(self) -> str:
        """Return a word for the mechanism that decides for most of the memory; "" for a policy or
        the kernel.
        """
        most = (KINDS[each.key].decider for each in self.barriers if each.share >= MOSTLY)
        return next(most, "")

    def lines(self) -> Iterator[str]:
        """Yield a line for each reason why policies for large folios do not reach some memory."""
        for each in self.barriers:
            yield f"{self.name} (pid {self.pid}): no policy for large folios reaches {each.text}"

    def as_data(self) -> dict[str, object]:
        """Return all barriers of the process for JSON."""
        barriers = [{**each._asdict(), "share": round(each.share, 3)} for each in self.barriers]
        return {**self._asdict(), "barriers": barriers, "unknown": list(self.unknown)}


class Clues:
    """Facts about a process that hint at what forbids large folios, or asks for them; each is read
    on first use.
    """

    def __init__(self, tree: Tree, pid: int, areas: Sequence[Vma]) -> None:
        self._tree, self._pid, self._areas = tree, pid, areas
        self.name = printable(self._text("comm"))

    def _text(self, file: str) -> str:
        try:
            raw = self._tree.read_bytes(f"/proc/{self._pid}/{file}")
        except Error:  # the process belongs to another user, or has ended
            return ""
        return raw.decode(errors="replace").replace("\0", "\n").strip()

    @cached_property
    def environment(self) -> str:
        """Return the environment that the process was started with, one variable per line."""
        return self._text("environ")

    @cached_property
    def words(self) -> list[str]:
        """Return the command line of the process."""
        return self._text("cmdline").splitlines()

    @cached_property
    def files(self) -> list[str]:
        """Return the names of the process's mappings."""
        return list(dict.fromkeys(area.name for area in self._areas if area.name))

    @property
    def heap_kib(self) -> int:
        """Return the size of [heap] in kB, which malloc() of glibc fills by brk()."""
        return sum((each.end - each.start) >> 10 for each in self._areas if each.name == "[heap]")

    def has(self, variable: str) -> bool:
        """Return whether a variable in the process's environment matches a pattern NAME=VALUE."""
        return bool(re.search(f"^(?:{variable})$", self.environment, re.MULTILINE))

    def mapped(self, name: str) -> re.Match[str] | None:
        """Return the match of the first mapped file whose name matches a pattern; None if there is
        none.
        """
        found = (re.search(f"(?:^|/){name}(?: \\(deleted\\))?$", each) for each in self.files)
        return next(filter(None, found), None)

    @cached_property
    def unit(self) -> str:
        """Return the systemd service of the process, or ""."""
        try:
            return unit_of(cgroup_of(self._tree, self._pid))
        except Error:
            return ""

    @cached_property
    def memory_thp(self) -> str:
        """Return MemoryTHP= of the process's systemd unit, or ""."""
        return memory_thp(self._tree, self.unit)

    def forbidding_parent(self) -> str:
        """Return the topmost of the ancestors that forbid large folios, too, or ""."""
        found, pid = "", self._pid
        for _ in range(64):
            parent = PARENT.search(_status(self._tree, pid))
            pid = int(parent[1]) if parent else 0
            if not pid or not THP_ENABLED.search(_status(self._tree, pid)):
                break
            name = printable(Clues(self._tree, pid, ()).name)
            found = f"{name} ({pid})"
        return found


def _status(tree: Tree, pid: int) -> str:
    try:
        return tree.read(f"/proc/{pid}/status")
    except Error:
        return ""


Likely = Iterable[tuple[str, str]]  # likely causes why policies do not reach memory, with remedies


def _prctl(clues: Clues, tree: Tree) -> Iterator[tuple[str, str]]:
    if clues.has("MIMALLOC_ALLOW_THP=0"):
        yield (
            "MIMALLOC_ALLOW_THP=0 in its environment (mimalloc 3)",
            "unset MIMALLOC_ALLOW_THP, and restart the program",
        )
    if clues.memory_thp == "disable":
        yield f"MemoryTHP=disable of {clues.unit}", f"systemctl edit {clues.unit}, and restart it"
    if re.match("redis-server|valkey-server|keydb-server", clues.name):
        config = "`disable-thp no` in its configuration"
        why = f"`disable-thp yes`, the default of {clues.name.partition('-')[0]} (redis: from 6.2)"
        if enabled(tree) == "always":
            out = f"echo madvise >{ENABLED}, or set {config}; then restart the program"
            yield (
                f"{why}, with which the program forbids huge pages while {ENABLED} is `always`",
                out,
            )
        else:
            yield f"{why}; {ENABLED} was `always` when it started", f"restart it, or set {config}"
    if parent := clues.forbidding_parent():
        yield (
            f"inherited from {parent}, which has forbidden huge pages too",
            "find out why this parent process forbids them",
        )


def _refused(clues: Clues, _tree: Tree) -> Iterator[tuple[str, str]]:
    if clues.has("GODEBUG=(?:.*,)?disablethp=1(?:,.*)?"):
        yield (
            "GODEBUG=disablethp=1 in its environment (Go)",
            "remove disablethp=1 from GODEBUG, and restart the program",
        )
    if clues.has(r"\w*MALLOC_CONF=.*thp:never.*"):
        yield (
            "thp:never in its environment (jemalloc)",
            "remove thp:never from the environment, and restart the program",
        )


OVERRIDE = "set override_madvise=1 of anon_order, so that the policy decides in spite of madvise()"
ASKING = {  # environment variables that ask for huge pages, with the text for the report
    r"GLIBC_TUNABLES=.*glibc\.malloc\.hugetlb=1.*": "glibc.malloc.hugetlb=1 in GLIBC_TUNABLES",
    r"\w*MALLOC_CONF=.*thp:always.*": "thp:always in its environment (jemalloc)",
    "THP_MEM_ALLOC_ENABLE=1": "THP_MEM_ALLOC_ENABLE=1 in its environment (PyTorch)",
}


def _asked(clues: Clues, _tree: Tree) -> Iterator[tuple[str, str]]:
    for variable, cause in ASKING.items():
        if clues.has(variable):
            yield cause, f"remove this setting from the environment, or {OVERRIDE}"
    if "-XX:+UseTransparentHugePages" in clues.words:
        yield (
            "-XX:+UseTransparentHugePages of the JVM",
            f"start the JVM without this option, or {OVERRIDE}",
        )
    if clues.name.startswith("qemu"):
        yield "QEMU asks for the memory of the guest", OVERRIDE
    yield from ((cause, OVERRIDE) for cause in _mimalloc(clues))
    if clues.mapped(r"_multiarray_umath[\w.-]*\.so"):
        yield (
            "numpy asks for huge pages for arrays of 4 MB and more",
            f"NUMPY_MADVISE_HUGEPAGE=0 in the environment, or {OVERRIDE}",
        )


def _mimalloc(clues: Clues) -> Iterator[str]:
    """Yield components whose mimalloc asks for huge pages (from 2.2.4 on), by the name of the
    mapped file.
    """
    found = clues.mapped(r"libmimalloc[\w-]*\.so\.?([\d.]*)")
    version = found[1].strip(".") if found else ""
    if found and (not version or tuple(map(int, version.split("."))) >= (2, 2)):
        yield (
            f"mimalloc{version and ' '}{version} asks for huge pages for its arenas (from 2.2.4 on)"
        )
    arrow = clues.mapped(r"libarrow\.so\.(\d+)(?:\.[\d.]+)?")
    if arrow and int(arrow[1]) >= 2100:
        yield (
            f"pyarrow {int(arrow[1]) // 100}: the mimalloc in it asks for huge pages for its arenas"
        )
    for name, file in OTHERS_WITH_MIMALLOC.items():
        if clues.mapped(file):
            yield f"{name}: the mimalloc in it asks for huge pages for its arenas"


OTHERS_WITH_MIMALLOC = {  # programs that ask for huge pages through a mimalloc built into them
    "@swc/core": r"swc\.[\w.-]*\.node",
    "rolldown": r"rolldown[\w.-]*\.node",
    "datafusion": r"datafusion/_internal\.abi3\.so",
    "pylance": r"lance[\w.-]*\.abi3\.so",
}


def _shared(clues: Clues, _tree: Tree) -> Iterator[tuple[str, str]]:
    if clues.mapped("memfd:java_heap") or "-XX:+UseZGC" in clues.words:
        out = f"choose another collector (-XX:+UseG1GC); or echo advise >{SHMEM}, with"
        yield "ZGC has its heap in a memfd", f"{out} -XX:+UseTransparentHugePages"
    if clues.name.startswith("postgres"):
        yield (
            "shared_buffers of PostgreSQL",
            "set huge_pages=on of PostgreSQL, with vm.nr_hugepages",
        )
    if clues.name.startswith("qemu"):
        yield "memory of the guest in a memfd or tmpfs", f"echo advise >{SHMEM}"


def _hugetlb(clues: Clues, _tree: Tree) -> Iterator[tuple[str, str]]:
    fine = "none is needed: these pages have 2 MB or 1 GB already"
    if "-XX:+UseLargePages" in clues.words:
        yield "-XX:+UseLargePages of the JVM", fine
    if clues.name.startswith("postgres"):
        yield "huge_pages of PostgreSQL", fine


def _none(_clues: Clues, _tree: Tree) -> Likely:
    return ()


class Kind(NamedTuple):
    """A reason why policies do not reach memory: in words, and a function that looks for its
    causes.
    """

    what: str
    likely: Callable[[Clues, Tree], Likely]
    way_out: str  # the remedy if no cause is known
    # one word for the mechanism that decides, if neither a profile nor the kernel does
    decider: str = ""


KINDS = {
    "prctl": Kind(
        "as the process has forbidden large folios for all of its memory (prctl "
        "PR_SET_THP_DISABLE)",
        _prctl,
        "find out what calls prctl(): the program, a library, MemoryTHP= of its "
        "systemd unit, or a parent process from which it is inherited",
        "itself",
    ),
    "except_advised": Kind(
        "as the process has forbidden large folios for memory that does not ask for "
        "them (PR_THP_DISABLE_EXCEPT_ADVISED)",
        lambda clues, _: [(f"MemoryTHP=madvise of {clues.unit}",
                           f"systemctl edit {clues.unit}, and restart it")]
        if clues.memory_thp == "madvise" else (),
        "look at MemoryTHP= of its systemd unit (systemd 260), or at a parent process "
        "from which it is inherited",
        "unit",
    ),
    "nohugepage": Kind(
        "as the program refuses large folios for this memory (MADV_NOHUGEPAGE)", _refused,
        "look for an option of the program or of its allocator", "itself",
    ),
    "advised": Kind(
        "as the program asks for huge pages for this memory (MADV_HUGEPAGE), so the "
        "kernel decides",
        _asked, OVERRIDE,
    ),
    "userfaultfd": Kind(
        "as a userfaultfd serves the faults of this memory", _none,
        "none until the migration (postcopy), the snapshot or the restore of a "
        "checkpoint has ended",
        "uffd",
    ),
    "hugetlb": Kind(
        "as this memory is hugetlb", _hugetlb,
        "none is needed: hugetlb pages are large already", "hugetlb",
    ),
    "shared": Kind(
        "as this is shared memory, for which shmem_enabled decides", _shared,
        f"echo advise >{SHMEM}, if the program asks for huge pages there", "shmem",
    ),
    "files": Kind("as this memory maps files", _none, "none: this is the page cache", "files"),
}  # fmt: skip


def excepted(tree: Tree, cgroup: str) -> bool:
    """Return whether a cgroup's unit forbids large folios in memory that does not ask for them.

    The prctl that does this is not visible in any file of the kernel: THP_enabled in
    /proc/PID/status is still 1.
    """
    return memory_thp(tree, unit_of(cgroup)) == "madvise"


def enabled(tree: Tree) -> str:
    """Return the host's mode for huge pages of 2 MB, such as "madvise"; "" without such pages."""
    return chosen(tree.read(ENABLED)) if tree.exists(ENABLED) else ""


def some_size_for_all(tree: Tree) -> int:
    """Return the smallest folio size in bytes that the kernel gives to all memory; 0 if there is
    none.
    """
    top = enabled(tree)
    for size, folder in size_folders(tree).items():
        try:
            mode = chosen(tree.read(f"{folder}/enabled"))
        except Error:
            continue
        if mode == "always" or (mode == "inherit" and top == "always"):
            return size
    return 2 << 20 if top == "always" and not size_folders(tree) else 0


def reach(
    tree: Tree, pid: int, holds: Holds | None = None, *, override: bool = False,
    own_sizes: bool = False, into_kib: float = inf,
) -> Reach:  # fmt: skip
    """Return the memory of a process that policies do not reach.

    override: the policy has override_madvise=1. own_sizes: the question is about the kernel's own
    folio sizes, which also reach memory that asks for them. into_kib: for a process with more kB
    than this, only counters are read, so its madvise() calls are not found.
    """
    space = Space(tree, pid, holds or Holds(tree))
    sizes = space.sizes()
    whole = sizes.rss + sizes.hugetlb
    deep = whole <= into_kib
    areas = space.areas() if deep else []
    clues = Clues(tree, pid, areas)
    found, unknown = _counted(sizes), list[str]()
    if sizes.thp_enabled and deep:
        advised, unknown = _advised(tree, space, areas)
        found |= advised
    elif sizes.thp_enabled:
        unknown.append(f"how much memory has madvise() flags; mmpolicy explain {pid} finds out")
    if override or own_sizes:
        found.pop("advised", None)
    barriers = [
        _barrier(key, kib, whole, clues, tree)
        for key, kib in found.items()
        if _is_much(key, kib, whole)
    ]
    order = sorted(barriers, key=lambda each: -each.kib)
    return Reach(pid, clues.name, whole, tuple(order), tuple(unknown))


def _counted(sizes: Sizes) -> dict[str, int]:
    """Return the memory that policies do not reach, in kB by key of KINDS, as far as the counters
    of the process show it.
    """
    found = {"hugetlb": sizes.hugetlb, "shared": sizes.shared, "files": sizes.file}
    return found if sizes.thp_enabled else found | {"prctl": sizes.anon}


def _is_much(key: str, kib: int, whole: int) -> bool:
    if key in ("prctl", "except_advised"):
        return True
    if key == "files":
        return kib >= 2 * MUCH_KIB and kib >= whole * MOSTLY
    return kib >= MUCH_KIB and kib >= whole * MUCH


def _barrier(key: str, kib: int, whole: int, clues: Clues, tree: Tree) -> Barrier:
    kind = KINDS[key]
    causes = list(kind.likely(clues, tree))
    likely = "; ".join(cause for cause, _ in causes)
    out = "; ".join(dict.fromkeys(out for _, out in causes)) or kind.way_out
    return Barrier(key, kib, kib / whole if whole else 1.0, kind.what, likely, out)


def _advised(tree: Tree, space: Space, areas: list[Vma]) -> tuple[dict[str, int], list[str]]:
    """Return the memory that madvise() and userfaultfd keep from policies, in kB by key of KINDS,
    and the questions left open.
    """
    details, size = space.details(areas), some_size_for_all(tree)
    kinds: dict[str, list[Vma]] = {}
    for area in (each for each in space.looked_at(areas) if each.anonymous):
        told = details[area.start, area.end]
        if told is None:
            kinds.setdefault(DARK, []).append(area)
        elif key := _key_of(told):
            kinds.setdefault(key, []).append(area)
        elif size and told.eligible is False and _could(area, size):
            kinds.setdefault("except_advised", []).append(area)
    found = {key: _resident(space, some) for key, some in kinds.items()}
    dark, unknown = found.pop(DARK, 0), list[str]()
    if dark >= MUCH_KIB:
        limit_ms, smaps = space.holds.limit_s * 1000, f"/proc/{space.pid}/smaps"
        unknown.append(
            f"the madvise() flags of {dark >> 10} MiB, as reading {smaps} would block mmap() of "
            f"the process for more than {figure(limit_ms)} ms; where that does no harm, "
            f"grep VmFlags {smaps} shows them: hg is MADV_HUGEPAGE, nh MADV_NOHUGEPAGE"
        )
    return found, unknown


def _key_of(told: Details) -> str:
    if told.flags & WATCHED:
        return "userfaultfd"
    return "nohugepage" if REFUSED in told.flags else "advised" if ASKED in told.flags else ""


def _could(area: Vma, size: int) -> bool:
    """Return whether an area has room for an aligned folio of this size, and is not a stack."""
    first = -(-area.start // size) * size
    return first + size <= area.end and area.access.startswith("rw") and area.name != "[stack]"


def _resident(space: Space, areas: Iterable[Vma]) -> int:
    """Return the resident size of some areas, in kB."""
    return sum(
        (each.end - each.start) >> 10
        for _, regions in space.regions_of(areas, PRESENT)
        for each in regions
        if each.categories & PRESENT
    )


def reach_of(
    tree: Tree, pids: Iterable[int], most: int, *, override: bool = False,
    own_sizes: bool = False, into_kib: float = inf,
) -> list[Reach]:  # fmt: skip
    """Return what policies cannot reach in the `most` processes with the largest RSS; skip
    processes that end meanwhile or deny access.
    """
    holds, sizes = Holds(tree), dict[int, int]()
    for pid in pids:
        try:
            sizes[pid] = int(tree.read(f"/proc/{pid}/statm").split()[1])
        except (Error, IndexError, ValueError):
            continue
    found = []
    for pid in sorted(sizes, key=lambda pid: -sizes[pid])[:most]:
        try:
            found.append(
                reach(tree, pid, holds, override=override, own_sizes=own_sizes, into_kib=into_kib)
            )
        except Error as err:
            if err.exit_code == Exit.DENIED:
                continue
    return [each for each in found if each.kib]
