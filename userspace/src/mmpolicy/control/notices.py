# SPDX-License-Identifier: GPL-2.0
"""Notices about changes, experiments and trials that were left unfinished, or that run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mmpolicy.control.change import LOCK
from mmpolicy.control.experiment import LOCK as RUNS
from mmpolicy.control.experiment import RECOVERY, running
from mmpolicy.control.journal import Entry, cut_off
from mmpolicy.control.maintained import line_of, live
from mmpolicy.control.watched import ended_by_boot, gone_back, left_at_stock
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree


class Notice(NamedTuple):
    """A notice about something left unfinished, with the command that finishes or undoes it."""

    name: str
    text: str
    next_step: str

    def line(self) -> str:
        """Return the notice as one line."""
        return f"{self.text}: {self.next_step}"


def half_made(tree: Tree) -> Notice | None:
    """Return a notice about a change whose process was killed; None while the process
    still runs.
    """
    try:
        entry = None if tree.holder(LOCK) else cut_off(tree)
    except Error:  # only root may read the journal
        return None
    return told_of(entry) if entry else None


def told_of(entry: Entry, verb: str = "revert") -> Notice:
    """Return the notice for an interrupted change, with the verb that undoes it."""
    text = f"change {entry.number}, '{entry.command}' of {entry.time}, was interrupted"
    hint = f"mmpolicy {verb} undoes that part"
    return Notice("cut_off", f"{text}, so a part of it may be in force", hint)


def knobs_left(tree: Tree) -> Notice | None:
    """Return a notice about kernel knobs that a killed experiment has not restored."""
    if not tree.exists(RECOVERY) or tree.holder(RUNS):
        return None
    text = "an experiment was killed, and knobs of the kernel still have its values"
    return Notice("knobs_left", text, "mmpolicy ab restore")


def proofs(tree: Tree) -> Iterator[Notice]:
    """Yield a notice about each setting that `try --watch` has left at stock, or has undone."""
    for each in left_at_stock(tree):
        text = (
            f"cgroup {each.cgroup} is still at stock: try --watch was killed while it compared "
            "the kept setting with stock"
        )
        hint = f"{each.goes_on} applies the setting again, and continues the test"
        yield Notice("left_at_stock", text, hint)
    for each in gone_back(tree):
        text = f"try --watch has set cgroup {each.cgroup} back to stock: {each.reason}"
        yield Notice("taken_back", text, "mmpolicy try --stop acknowledges this")


def untested(tree: Tree) -> Iterator[Notice]:
    """Yield a notice about each kept setting that `try --watch` no longer tests, as a boot has
    ended its process.
    """
    for each in ended_by_boot(tree):
        text = (
            f"try --watch no longer tests the setting of cgroup {each.cgroup}, as the host "
            "has booted"
        )
        hint = f"{each.goes_on} continues the test"
        yield Notice("ended_by_boot", text, f"{hint}, mmpolicy try --stop ends it")


def notices(tree: Tree) -> list[Notice]:
    """Return all notices about changes, experiments and trials left unfinished."""
    left = [found for found in (half_made(tree), knobs_left(tree)) if found]
    return [*left, *proofs(tree), *untested(tree)]


def notice_lines(tree: Tree) -> list[str]:
    """Return a line for each running experiment or `maintain`, and one for each notice."""
    who = running(tree)
    at_work = [f"experiment: {who}"] * bool(who) + [line_of(each) for each in [live(tree)] if each]
    return at_work + [each.line() for each in notices(tree)]
