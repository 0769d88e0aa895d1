# SPDX-License-Identifier: GPL-2.0
"""Change knobs of the kernel for the time of a run: save their former values, and restore them at
the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.control.experiment import RECOVERY
from mmpolicy.control.trials import withdraw
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values, checked, names_of, read_knob, read_knobs
from mmpolicy.host.step import Step

# Most passes in which knobs are written. The kernel may change one knob when another is written, so
# the next pass writes the knobs that differ again.
ROUNDS = 3


class Keeper:
    """Writes knobs of the kernel for a run, and keeps their former values to restore them.

    The kernel may change further knobs together with one, such as min_free_kbytes with the size of
    huge pages. To find them, learn() reads all knobs before and after; they are restored, too.
    """

    def __init__(self, tree: Tree, before: Values) -> None:
        self.tree = tree
        self.before = dict(before)  # the values to restore, by path
        self.ours = dict(before)  # the values last seen; others mean a write by another program
        self.wanted: Values = {}  # the values that are being written

    @classmethod
    def from_recovery_file(cls, tree: Tree) -> Keeper:
        """Return a Keeper with the knobs that the recovery file of a killed run lists; raise an
        error if the file is damaged.
        """
        try:
            kept = json.loads(tree.read(RECOVERY))
            keeper = cls(tree, {each: kept["before"][each] for each in checked(kept["before"])})
            keeper.ours = {each: kept["ours"][each] for each in keeper.before}
            keeper.wanted = dict(kept["wanted"])
        except (ValueError, LookupError, TypeError) as err:
            text = (
                f"the file {tree.real(RECOVERY)}, with the knobs that a killed experiment "
                f"has changed, is damaged: {err}"
            )
            raise Error(
                text,
                Exit.FAILED,
                'set the knobs in that file to their values under "before" by hand, '
                "then remove the file",
            ) from err
        return keeper

    def _write_recovery_file(self) -> None:
        kept = {"before": self.before, "ours": self.ours, "wanted": self.wanted}
        self.tree.keep(RECOVERY, json.dumps(kept))

    def rehearsal(self) -> Iterator[Step]:
        """Yield the writes with which back() would restore the knobs, for a dry run."""
        now = self._now()
        for path, value in self.before.items():
            yield Step(path, value, now[path], value)

    def _now(self) -> Values:
        return {path: read_knob(self.tree, path) for path in sorted(self.before)}

    def check(self) -> None:
        """Raise StoppedError if another program has written one of the knobs that this run has
        changed.
        """
        others = {path: now for path, now in self._now().items() if now != self.ours[path]}
        if others:
            raise StoppedError(
                "lost", f"another program has changed a knob of the experiment: {told(others)}"
            )

    def learn(self, wanted: Values) -> None:
        """Write knobs, and add the further knobs that the kernel changes with them to `before`."""
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
        """Write knobs. The recovery file, with the values to restore, is written before and after
        it, so that a kill in between loses none of them.
        """
        self.check()
        self.wanted = wanted
        self._write_recovery_file()
        try:
            failed, others = self._settle(wanted)
        finally:
            self._write_recovery_file()
        if others:
            raise StoppedError(
                "lost", f"another program has changed a knob of the experiment: {told(others)}"
            )
        if failed:
            raise failed[0]

    def _settle(self, wanted: Values) -> tuple[list[Error], Values]:
        """Write the knobs that differ from `wanted`, in ROUNDS passes.

        Return the errors of the last pass, and the knobs that other programs have set, which keep
        their values.
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
        """Write a knob, and note which further knobs the kernel has changed with it; return {}.

        If another program has set the knob, leave it, and return its path with that program's
        value.
        """
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
        """Restore all knobs, except those that another program has changed; return a warning, or
        "". The recovery file is removed.
        """
        failed, others = self._settle(self.before)
        said = [err.message for err in failed]
        if others:
            said.append(
                f"these knobs are not restored, as another program has changed them: {told(others)}"
            )
        if self.tree.exists(RECOVERY):
            self.tree.drop(RECOVERY)
        return "; ".join(said)


def told(knobs: Values) -> str:
    """Return knobs as text: NAME=VALUE, separated by commas."""
    return ", ".join(f"{names_of(path)[0]}={value}" for path, value in knobs.items())


def left_behind(tree: Tree) -> Keeper | None:
    """Return a Keeper with the knobs that a killed run has left changed; None if there are none.
    The caller holds the lock of experiments.
    """
    return Keeper.from_recovery_file(tree) if tree.exists(RECOVERY) else None


def put_back(tree: Tree) -> str | None:
    """Restore the knobs that a killed run has left changed; return what was done, as text, or None.
    The caller holds the lock of experiments.
    """
    keeper = left_behind(tree)
    if not keeper:
        return None
    note = f"restored the knobs that a killed experiment had left changed: {told(keeper.before)}"
    try:
        withdraw(tree)
    finally:
        said = keeper.back()
    return "; ".join(filter(None, [note, said]))
