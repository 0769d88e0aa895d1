# SPDX-License-Identifier: GPL-2.0
"""Knobs of the kernel that are changed for a time: what they were, and the way back."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mmpolicy.ab.policy_arms import StoppedError
from mmpolicy.control.experiment import RECOVERY
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values, checked, names_of, read_knob, read_knobs
from mmpolicy.host.step import Step

ROUNDS = 3  # a knob may change another one, which is then written again


class Keeper:
    """Changes knobs, and knows what they were.

    The kernel may change others along with a knob, such as min_free_kbytes with the size of huge
    pages. To learn which, all knobs are looked at before and after; those belong to the change.
    """

    def __init__(self, tree: Tree, before: Values) -> None:
        self.tree = tree
        self.before = dict(before)  # of what we answer for
        self.ours = dict(before)  # what they are, as far as we know
        self.wanted: Values = {}  # what is about to be written

    @classmethod
    def from_recovery_file(cls, tree: Tree) -> Keeper:
        """Return what somebody has left who was killed."""
        try:
            kept = json.loads(tree.read(RECOVERY))
            keeper = cls(tree, {each: kept["before"][each] for each in checked(kept["before"])})
            keeper.ours = {each: kept["ours"][each] for each in keeper.before}
            keeper.wanted = dict(kept["wanted"])
        except (ValueError, LookupError, TypeError) as err:
            text = f"{tree.real(RECOVERY)} is damaged: {err}"
            raise Error(text, Exit.FAILED, "look into it, set the knobs, and remove it") from err
        return keeper

    def _write_recovery_file(self) -> None:
        kept = {"before": self.before, "ours": self.ours, "wanted": self.wanted}
        self.tree.keep(RECOVERY, json.dumps(kept))

    def rehearsal(self) -> Iterator[Step]:
        """Yield the writes that put knobs back."""
        now = self._now()
        for path, value in self.before.items():
            yield Step(path, value, now[path], value)

    def _now(self) -> Values:
        return {path: read_knob(self.tree, path) for path in sorted(self.before)}

    def check(self) -> None:
        """Raise StoppedError if somebody else has changed what we answer for."""
        others = {path: now for path, now in self._now().items() if now != self.ours[path]}
        if others:
            raise StoppedError("lost", f"somebody else has set {told(others)}")

    def learn(self, wanted: Values) -> None:
        """Give knobs their values, and find out which others the kernel changes along with them."""
        before = read_knobs(self.tree)
        try:
            self.go(wanted)
        finally:
            after = read_knobs(self.tree)
            along = {path for path in before if after.get(path, before[path]) != before[path]}
            for path in along - self.before.keys():
                self.before[path], self.ours[path] = before[path], after[path]
            self._write_recovery_file()

    def go(self, wanted: Values) -> None:
        """Give knobs their values."""
        self.check()
        self.wanted = wanted
        self._write_recovery_file()
        try:
            failed, others = self._settle(wanted)
        finally:
            self._write_recovery_file()
        if others:
            raise StoppedError("lost", f"somebody else has set {told(others)}")
        if failed:
            raise failed[0]

    def _settle(self, wanted: Values) -> tuple[list[Error], Values]:
        """Write what differs until nothing does.

        Return what was refused at last, and what somebody else has set, which stays.
        """
        for _ in range(ROUNDS):
            failed: list[Error] = []
            others: Values = {}
            for path, value in sorted(wanted.items()):
                try:
                    others |= self._set(path, value)
                except Error as err:
                    failed.append(err)
        return failed, others

    def _set(self, path: str, value: str) -> Values:
        """Write a knob; what changes along with it is ours. Return it if it is somebody else's."""
        before = self._now()
        if before[path] == value:
            return {}
        if before[path] not in (self.ours[path], self.wanted.get(path)):
            return {path: before[path]}
        self.tree.tune(path, value)
        after = self._now()
        self.ours |= {each: after[each] for each in after if before[each] == self.ours[each]}
        self.ours[path] = after[path]
        return {}

    def back(self) -> str:
        """Put back what is still ours; return what is to be told, empty if all is as before."""
        failed, others = self._settle(self.before)
        said = [err.message for err in failed]
        if others:
            said.append(f"left as somebody else has set it: {told(others)}")
        if self.tree.exists(RECOVERY):
            self.tree.drop(RECOVERY)
        return "; ".join(said)


def told(knobs: Values) -> str:
    """Return knobs with their values as people read them."""
    return ", ".join(f"{names_of(path)[0]}={value}" for path, value in knobs.items())


def left_behind(tree: Tree) -> Keeper | None:
    """Return what nobody was left to put back. The caller has the lock of experiments."""
    return Keeper.from_recovery_file(tree) if tree.exists(RECOVERY) else None


def put_back(tree: Tree) -> str | None:
    """Put that back, if there is any; return what is to be told of it."""
    keeper = left_behind(tree)
    if not keeper:
        return None
    note = f"put back what a killed experiment had set: {told(keeper.before)}"
    return "; ".join(filter(None, [note, keeper.back()]))
