# SPDX-License-Identifier: GPL-2.0
"""Decide which changes of memory policy can pay for a service, if any; without any I/O.

The input is the measured figures of a service and the abilities of its host. The output is a
verdict and a list of candidates, that is, of changes that may pay. Each candidate has the command
to type, its duration, its price and how to undo it. A candidate counts if it may save 1 % of a
CPU, or 32 MiB that are 5 % of the service's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mmpolicy.figures import figure
from mmpolicy.memory.findings import (
    GAIN,
    LEAST_KIB,
    LEAST_PERCENT,
    LEAST_SHARE,
    STALLS,
    is_waste,
)
from mmpolicy.memory.reach import ALL
from mmpolicy.memory.trim import SMALLER

NOT_WORTH, WORTH = "not worth it", "worth trying"
NOT_NOW, OUT_OF_REACH, NOT_HERE = "not now", "out of reach", "not here"
# name of the candidate that enables the kernel's own folio sizes, for the whole host
SIZES = "thp-sizes"
BY_MODULE = ("adaptive", "adaptive-2mb", "madv-free", "thp-gfp")


class Once(NamedTuple):
    """The verbs that a candidate runs, and the metrics of which at least one must improve."""

    verbs: tuple[str, ...]
    gains: tuple[str, ...]

    def gains_with(self, work: str | None) -> tuple[str, ...]:
        """Return the metrics that can show a gain, given the metric of --work, or None without it.

        Without --work, less CPU time is no gain, as the service may just have done less.
        """
        return tuple(name for name in self.gains if name != "cpu" or work)


# candidates that are measured once before and once after, not in alternating blocks
ONCE = {
    "trim": Once(("trim",), ("memory",)),
    "collapse": Once(("collapse",), ("cpu",)),
    "maintain": Once(("collapse", "trim"), ("memory", "cpu")),
}
NAMES = (*ONCE, SIZES, *BY_MODULE)
BEFORE_AND_AFTER = (
    "its effect is measured before and after, as it cannot be undone block by block; this proves "
    "less than a switchback"
)
IDLE_PERCENT = 1.0  # a service that uses a smaller percentage of a CPU than this may be idle
BIG_KIB = 256 << 10  # with more kB of private memory, a program may often miss the TLB
BACK = (
    "mmpolicy try --stop while the trial runs; its report has the commands that undo a kept setting"
)
# with a larger share of its memory in 2 MB pages, a program seldom misses the TLB
HUGE_ENOUGH = 0.5
# share of a program's CPU time that 2 MB pages save, by the 11 of 34 measurements that found a
# gain
TLB_SHARE = (0.02, 0.11)


@dataclass(frozen=True)
class Seen:
    """Figures of a service, averaged over the observation; CPU time is in percent of one CPU."""

    seconds: float
    processes: int
    cpu: float  # all CPU time of the service
    kernel: float  # CPU time that the service spends in the kernel
    faults: float  # page faults per second
    fault_cpu: float  # the most CPU time that the page faults of the service can cost
    gain: float  # the most CPU time that folios of 64 kB can save of the faults' cost
    cost_from: str  # where the cost of a fault comes from, as text
    memory_kib: float
    private_kib: float
    waste_kib: float  # empty parts of large folios in private memory
    error_kib: float
    trim_options: str  # options that `trim` needs to give the empty memory back
    stays: str  # the reason why `trim` would give nothing back; "" if it would
    freed_kib: float  # memory freed by MADV_FREE that still counts as resident
    huge: float  # share of the service's memory that is in 2 MB folios
    looked_at: float  # share of the service's memory that was sampled
    barred: float  # share of the memory of the service's largest processes that no policy reaches
    barriers: tuple[str, ...]  # the reasons why no policy reaches this part of the memory, as text
    stalled: float  # percentage of time that tasks of the service wait for memory
    compactions: float  # compactions per second by all programs of the host together
    # the reason why nothing may be changed now: memory is short, or the service is changing
    not_now: str


class Way(NamedTuple):
    """Whether the host can run a verb or feature: why_not is "" if it can, else the reason, and
    next_step says what to do.
    """

    why_not: str = ""
    next_step: str = ""
    commands: tuple[str, ...] = ()  # commands to type before the verb or feature can be used


@dataclass(frozen=True)
class Here:
    """The abilities of a host, and the option that names the service to commands."""

    target: str
    trim: Way
    maintain: Way
    collapse: Way
    own_sizes: Way  # whether the kernel has its own folio sizes of 16 to 64 kB, not enabled yet
    module: Way  # whether the module can be used, and no other profile decides for the service
    loaded: bool
    systemd: bool  # systemd restores the kernel's sizes if all processes of a trial are killed
    run_time: str  # duration of a switchback experiment, as text
    options: str = ""  # options that the user gave for a trial, each after a space
    pace: str = ""  # those of them for the length, as options of `ab run`


@dataclass(frozen=True)
class Candidate:
    """A change that may pay for the service, with its gain, price, duration, and commands."""

    name: str
    gain: str
    score: float  # the predicted gain, as a multiple of the smallest gain that counts
    commands: tuple[str, ...]
    time: str
    price: str
    undo: str
    switchback: bool  # True if the change can be undone and redone from block to block
    of_host: bool = False  # True if the change affects all programs of the host
    why_not: str = ""
    next_step: str = ""

    def runs(self, here: Here) -> bool:
        """Return whether `try` itself can run this candidate on this host, without further
        preparation.
        """
        if self.name in BY_MODULE:
            return here.loaded
        return here.systemd or self.name in ("trim", "collapse")

    def lacks_work(self, work: str | None) -> bool:
        """Return whether `try` could not show any gain of this candidate, for want of --work."""
        return self.name in ONCE and not ONCE[self.name].gains_with(work)

    @property
    def proof(self) -> str:
        """Return how the effect of the candidate is shown, as text."""
        if self.switchback:
            return "a switchback: blocks of time with and without it alternate"
        return BEFORE_AND_AFTER


def judge(
    seen: Seen, here: Here, without: Sequence[str] = (), whole_host: bool = False
) -> tuple[str, str, list[Candidate]]:
    """Return the verdict, its reason, and the candidates, the largest predicted gain first.

    Candidates that cannot run on this host come last, each with the reason. without: names of
    candidates to leave out. whole_host: return only candidates that affect all programs.
    """
    wanted = [each for each in _candidates(seen, here)
              if each.name not in without and each.of_host >= whole_host]  # fmt: skip
    found = sorted(wanted, key=lambda each: (bool(each.why_not), -each.score))
    if not found:
        if without and any(_candidates(seen, here)):
            return NOT_WORTH, "all candidates that may pay are excluded by --without", found
        if seen.gain >= LEAST_PERCENT and seen.barred >= ALL:
            return OUT_OF_REACH, seen.barriers[0], found
        return NOT_WORTH, _too_little(seen), found
    possible = [each for each in found if not each.why_not]
    if not possible:
        return NOT_HERE, f"{found[0].name} may pay, but not here: {found[0].why_not}", found
    if seen.not_now:
        return NOT_NOW, seen.not_now, found
    return WORTH, f"{possible[0].name}: {possible[0].gain}", found


def _too_little(seen: Seen) -> str:
    share = 100 * seen.waste_kib / seen.private_kib if seen.private_kib else 0.0
    return (
        f"larger folios could save {_at_most(seen.gain)}, and {seen.waste_kib / 1024:.0f} MiB, "
        f"{share:.0f} % of its private memory, are empty; a change is worth trying if it may save "
        f"{LEAST_PERCENT:g} % of a CPU, or {LEAST_KIB >> 10} MiB that are {100 * LEAST_SHARE:g} % "
        f"of this memory{_why_no_collapse(seen)}"
    )


def _why_no_collapse(seen: Seen) -> str:
    """Return why `collapse` is no candidate, unless a hint says it."""
    if seen.private_kib < BIG_KIB:
        return f"; 2 MB pages seldom pay in less than {BIG_KIB >> 10} MiB of it"
    if seen.huge >= HUGE_ENOUGH:
        return f"; {seen.huge:.0%} of it are in 2 MB pages already"
    return ""


def _at_most(percent: float) -> str:
    return f"at most {figure(percent, 2)} % of a CPU"


def bound_of(seen: Seen) -> float:
    """Return the most that folios of 64 kB can save of the faults' cost, in percent of the CPU time
    of the service; 0 if it used none.
    """
    return 100 * seen.gain / seen.cpu if seen.cpu else 0.0


def _saves(seen: Seen) -> str:
    return f"saves {_at_most(seen.gain)}, {figure(bound_of(seen), 2)} % of its CPU time"


def hints(seen: Seen, target: str) -> Iterator[str]:
    """Yield a line for each fact that the observation could not determine, with a next step."""
    if seen.cpu < IDLE_PERCENT:
        text = f"the service used {figure(seen.cpu, 2)} % of a CPU: it may be idle"
        yield f"{text}; look again under load"
    if seen.looked_at < HUGE_ENOUGH:
        text = f"only {seen.looked_at:.0%} of its memory was looked at"
        yield f"{text}; a longer --seconds looks at more"
    if _has_small_pages(seen) and _tlb_range(seen)[1] < LEAST_PERCENT:
        yield (
            f"{seen.huge:.0%} of its {seen.private_kib / 1024:.0f} MiB of private memory are in "
            "2 MB pages, which reduce misses of the TLB; these are not measured here; mmpolicy "
            f"collapse {target} --dry-run shows how much memory it would turn into 2 MB pages"
        )


def _has_small_pages(seen: Seen) -> bool:
    return seen.private_kib >= BIG_KIB and seen.huge < HUGE_ENOUGH and seen.barred < ALL


def _tlb_range(seen: Seen) -> tuple[float, float]:
    """Return the least and the most percent of a CPU that 2 MB pages save, where they save any."""
    least, most = (share * max(seen.cpu - seen.kernel, 0.0) for share in TLB_SHARE)
    return least, most


def _candidates(seen: Seen, here: Here) -> Iterator[Candidate]:
    """Yield the candidates that may pay; of two with the same score, the cheaper one first."""
    if is_waste(seen.waste_kib, seen.error_kib, seen.private_kib):
        yield from _of_waste(seen, here)
    if is_waste(seen.freed_kib, 0.0, seen.private_kib):
        yield _madv_free(seen, here)
    if _has_small_pages(seen) and _tlb_range(seen)[1] >= LEAST_PERCENT:
        yield _collapse(seen, here)
    if seen.barred < ALL:
        if seen.gain >= LEAST_PERCENT:
            ways = [_own_sizes(seen, here), *_adaptive(seen, here)]
            yield from ways[1:] + ways[:1] if here.loaded else ways
        if seen.compactions >= STALLS and seen.stalled >= LEAST_PERCENT:
            yield _light(seen, here)


def _of_waste(seen: Seen, here: Here) -> Iterator[Candidate]:
    """Yield the candidates that give empty memory back."""
    mib = seen.waste_kib / 1024
    score = seen.waste_kib / max(LEAST_KIB, LEAST_SHARE * seen.private_kib)
    why_not = seen.stays or here.trim.why_not
    next_step = SMALLER if seen.stays else here.trim.next_step
    trim = Candidate(
        "trim",
        f"gives back about {mib:.0f} MiB (+- {seen.error_kib / 1024:.0f}) once",
        score,
        (f"mmpolicy trim {here.target}{seen.trim_options}",),
        f"about {max(mib / 100, 1):.0f} s",
        "the split folios are no longer huge pages, so the program may miss the TLB more often",
        "no command is needed: the kernel makes huge pages again by itself, and mmpolicy collapse "
        "makes them where memory is used in full",
        switchback=False,
        why_not=why_not,
        next_step=next_step,
    )
    yield trim
    if "--include-madvised" in seen.trim_options:
        return  # `maintain` skips memory for which the program has called madvise()
    yield replace(
        trim,
        name="maintain",
        gain=f"gives back about {mib:.0f} MiB (+- {seen.error_kib / 1024:.0f}), each time they "
        "are empty for ten minutes, and makes 2 MB pages where memory is full",
        commands=(f"mmpolicy maintain {here.target}",),
        time="until a signal ends it",
        price="3 % of a CPU at most; " + trim.price,
        why_not=here.maintain.why_not or why_not,
        next_step=here.maintain.next_step or next_step,
    )


def _collapse(seen: Seen, here: Here) -> Candidate:
    least, most = _tlb_range(seen)
    return Candidate(
        "collapse",
        f"may save {figure(least, 2)} to {figure(most, 2)} % of a CPU by fewer misses of the TLB, "
        "as in 11 of 34 measurements; more with random access",
        least / LEAST_PERCENT,
        (f"mmpolicy collapse {here.target}",),
        "minutes: collapses take 3 % of the time at most",
        "each collapse of 2 MB stops the program for milliseconds, and for longer if the "
        "hypervisor has to supply the memory first; in 3 of 34 measurements the program took 3 to "
        "14 % more CPU time",
        "no command is needed: no setting has changed, and the pages stay until the program frees "
        "them",
        switchback=False,
        why_not=here.collapse.why_not,
        next_step=here.collapse.next_step,
    )


def _try(candidate: str, here: Here) -> tuple[str, ...]:
    return *here.module.commands, _command(here, candidate)


def _command(here: Here, candidate: str) -> str:
    return f"mmpolicy try {here.target} --candidate {candidate}{here.options}"


def _own_sizes(seen: Seen, here: Here) -> Candidate:
    run, undo = _command(here, SIZES), BACK
    if not here.systemd:
        where = "" if here.target == "--host" else f" {here.target}"
        run = f"mmpolicy ab run --preset {SIZES}{where}{here.pace} --yes"
        undo = (
            "mmpolicy ab stop ends the run and restores the sizes; README.md says how to keep them"
        )
    return Candidate(
        SIZES,
        f"{_saves(seen)}; {GAIN}",
        seen.gain / LEAST_PERCENT,
        (run,),
        here.run_time,
        "0 to 5 % more memory, 15 % for gcc; in the blocks of the treatment all programs of the "
        "host get folios of 16 to 64 kB",
        undo,
        switchback=True,
        of_host=True,
        why_not=here.own_sizes.why_not,
        next_step=here.own_sizes.next_step,
    )


def _by_module(here: Here, name: str, gain: str, score: float, price: str) -> Candidate:
    """Return a candidate that needs the module and that `try` itself runs."""
    return Candidate(
        name, gain, score, _try(name, here), here.run_time, price, BACK, switchback=True,
        why_not=here.module.why_not, next_step=here.module.next_step,
    )  # fmt: skip


def _adaptive(seen: Seen, here: Here) -> Iterator[Candidate]:
    """Yield two candidates: `adaptive` with folios up to 64 kB; for a service with much memory
    also up to 2 MB, which may take more memory.
    """
    gain, score = _saves(seen), seen.gain / LEAST_PERCENT
    price = (
        "the module takes up to 1 % of the time of faults; memory may grow, but by 5 % at most if "
        "the setting is kept"
    )
    yield _by_module(here, "adaptive", gain, score, price)
    if seen.private_kib >= BIG_KIB:
        more = f"more memory than with adaptive; {price}"
        yield _by_module(here, "adaptive-2mb", gain, score, more)


def _madv_free(seen: Seen, here: Here) -> Candidate:
    mib = seen.freed_kib / 1024
    return _by_module(
        here,
        "madv-free",
        f"gives back most of about {mib:.0f} MiB that are lazily freed and still resident",
        seen.freed_kib / max(LEAST_KIB, LEAST_SHARE * seen.private_kib),
        "a fault for each freed page that the program uses again",
    )


def _light(seen: Seen, here: Here) -> Candidate:
    return _by_module(
        here,
        "thp-gfp",
        f"its tasks wait for memory {figure(seen.stalled, 2)} % of the time, and programs of the "
        f"host compact memory {seen.compactions:.0f} times a second: most of these waits would end",
        seen.stalled / LEAST_PERCENT,
        "fewer huge pages at first; khugepaged makes them later",
    )
