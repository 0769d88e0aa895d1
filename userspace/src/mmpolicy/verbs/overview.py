# SPDX-License-Identifier: GPL-2.0
"""`mmpolicy` without a verb: the state of this host on one screen, within a second and without
root.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest

from mmpolicy.control.notices import notice_lines, notices
from mmpolicy.control.trials import drifted
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_mount
from mmpolicy.host.evidence import THP, sizes
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.huge import huge_in, read_stat
from mmpolicy.host.knobs import read_knob
from mmpolicy.host.machine import Host
from mmpolicy.host.traps import traps
from mmpolicy.render import wrapped
from mmpolicy.verbs.here import as_lines, verbs_here, without_module

MOST = 3  # number of cgroups that are named
# Most cgroups that are read for the screen, as reading one memory.stat may take a millisecond.
MANY = 500
LITTLE = 32 << 20  # a cgroup is listed only if it has at least this many bytes in huge pages
MIB = 1 << 20


def overview(host: Host) -> Iterator[str]:
    """Yield the lines that `mmpolicy` without a verb prints: notices, settings, the largest users
    of huge pages, the verbs that work, and the next step.
    """
    tree = host.tree
    warnings = [f"warning: {trap.text}; next: {trap.next_step}" for trap in traps(tree)]
    # with the module loaded, the caller runs `status` first, which prints the notices
    told = [] if tree.is_dir(CONTROL) else notice_lines(tree)
    drift = drifted(tree)
    if drift and drift not in notices(tree):
        told.append(drift.line())
    for line in (*told, *_settings(tree), *_users(tree), *warnings):
        yield from wrapped(line, "")
    if tree.is_dir(CONTROL):
        yield "next: mmpolicy top, mmpolicy recommend, mmpolicy list"
        return
    verdict = without_module(host)
    for line in (verdict.text, *as_lines(verbs_here(host)), f"next: {verdict.next_step}"):
        yield from wrapped(line, "")


def exit_of(host: Host) -> int:
    """Return Exit.DRIFT if a killed run has left folio sizes in sysfs changed, or if only some of
    the sizes that the last trial keeps are still in force; else Exit.DONE.

    Sizes that a trial keeps on purpose, all of them, are no drift.
    """
    return int(Exit.DRIFT if drifted(host.tree) else Exit.DONE)


def _settings(tree: Tree) -> Iterator[str]:
    """Yield the line with the settings of huge pages; sizes set to never are only summed up."""
    if not tree.is_dir(THP):
        yield "huge pages: this kernel makes none (no CONFIG_TRANSPARENT_HUGEPAGE)"
        return
    words = [f"{name}={read_knob(tree, f'{THP}/{name}')}" for name in ("enabled", "defrag")
             if tree.exists(f"{THP}/{name}")]  # fmt: skip
    modes = {size: each["set"].get("enabled", "never") for size, each in sizes(tree).items()}
    on = [f"{size}={mode}" for size, mode in modes.items() if mode != "never"]
    rest = "all other sizes never" if modes else "no other sizes, which need Linux 6.8"
    yield f"huge pages: {', '.join([*words, *on, rest])}"


def _users(tree: Tree) -> Iterator[str]:
    """Yield the line with the cgroups that have the most memory in huge pages, if there are any."""
    found = nlargest(MOST, _cgroups(tree))
    named = [f"{path} {huge // MIB} of {memory // MIB} MiB" for huge, memory, path in found]
    if named:
        yield (
            f"cgroups with the most memory in 2 MB pages: {', '.join(named)}; mmpolicy top "
            "says how much of it is empty"
        )


def _cgroups(tree: Tree) -> Iterator[tuple[int, int, str]]:
    """Yield for each cgroup of the first two levels: its memory in huge pages and all its memory,
    both in bytes, and its path. A cgroup with children is left out, as its figures include those of
    the children.
    """
    try:
        mount = cgroup_mount(tree)
        above = [f"/{name}" for name in tree.dirs(mount)]
    except Error:
        return
    below = [f"{path}/{name}" for path in above for name in _names(tree, f"{mount}{path}")]
    groups = {path for path in above if any(each.startswith(f"{path}/") for each in below)}
    for path in [path for path in (*above, *below) if path not in groups][:MANY]:
        try:
            found = huge_in(read_stat(tree, f"{mount}{path}/memory.stat"))
        except Error:  # the cgroup was removed, or has no memory controller
            continue
        huge = found.huge["anon"] + found.huge["shmem"]
        if huge >= LITTLE:
            yield huge, found.memory["anon"] + found.memory["shmem"], path


def _names(tree: Tree, path: str) -> list[str]:
    try:
        return tree.dirs(path)
    except Error:
        return []
