# SPDX-License-Identifier: GPL-2.0
"""Notices for an operator about changes and experiments that run, or that were left unfinished."""

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
    """A notice about an unfinished change or run, with the command that finishes it."""

    name: str
    text: str
    next_step: str

    def line(self) -> str:
        """Return the notice as one line."""
        return f"{self.text}: {self.next_step}"


def half_made(tree: Tree) -> Notice | None:
    """Return a notice of a change whose process was killed; None while its process still runs."""
    try:
        entry = None if tree.holder(LOCK) else cut_off(tree)
    except Error:  # Users other than root may not read the journal.
        return None
    return told_of(entry) if entry else None


def told_of(entry: Entry, verb: str = "revert") -> Notice:
    """Return the notice for an interrupted change, with the verb that undoes it."""
    text = f"change {entry.number}, '{entry.command}' of {entry.time}, was interrupted"
    hint = f"mmpolicy {verb} undoes what it has done"
    return Notice("cut_off", f"{text}, and may be partly made", hint)


def knobs_left(tree: Tree) -> Notice | None:
    """Return a notice of kernel knobs that a killed experiment did not restore."""
    if not tree.exists(RECOVERY) or tree.holder(RUNS):
        return None
    text = "a killed experiment has left knobs of the kernel changed"
    return Notice("knobs_left", text, "mmpolicy ab restore")


def proofs(tree: Tree) -> Iterator[Notice]:
    """Yield a notice of each setting that `try --watch` left at stock or took back."""
    for each in left_at_stock(tree):
        text = f"{each.cgroup} is at stock, as try --watch was killed while it compared with stock"
        hint = f"mmpolicy try --watch {each.percent:g}% applies the setting again, and goes on"
        yield Notice("left_at_stock", text, hint)
    for each in gone_back(tree):
        text = f"try --watch has set {each.cgroup} back to stock: {each.reason}"
        yield Notice("taken_back", text, "mmpolicy try --stop acknowledges that")


def untested(tree: Tree) -> Iterator[Notice]:
    """Yield a notice of each setting whose test by `try --watch` ended with a boot."""
    for each in ended_by_boot(tree):
        text = f"since a boot, try --watch no longer tests the setting of {each.cgroup}"
        hint = f"mmpolicy try --watch {each.percent:g}% --trial {each.trial} goes on"
        yield Notice("ended_by_boot", text, f"{hint}, mmpolicy try --stop ends it")


def notices(tree: Tree) -> list[Notice]:
    """Return all of them."""
    left = [found for found in (half_made(tree), knobs_left(tree)) if found]
    return [*left, *proofs(tree), *untested(tree)]


def notice_lines(tree: Tree) -> list[str]:
    """Return a line for each running experiment or `maintain`, and one for each notice."""
    who = running(tree)
    at_work = [f"experiment: {who}"] * bool(who) + [line_of(each) for each in [live(tree)] if each]
    return at_work + [each.line() for each in notices(tree)]
