# SPDX-License-Identifier: GPL-2.0
"""Changes: planned as a list of writes, made in order, put back when one is refused."""

from collections.abc import Sequence
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.model import value_of
from mmpolicy.sysfs import Tree


class Write(NamedTuple):
    """One write to one file of the tree."""

    path: str
    value: str


class Change(NamedTuple):
    """What became of a write: the kernel decides what `now` is."""

    path: str
    before: str
    asked: str
    now: str


def apply(tree: Tree, writes: Sequence[Write]) -> list[Change]:
    """Make all writes or none, and read back what the kernel took."""
    before = [Write(write.path, value_of(tree, write.path)) for write in writes]
    for count, write in enumerate(writes):
        try:
            tree.write(*write)
        except Error as err:
            _put_back(tree, before[:count], err)
            raise
    return [
        Change(write.path, old.value, write.value, value_of(tree, write.path))
        for write, old in zip(writes, before, strict=True)
    ]


def _put_back(tree: Tree, done: Sequence[Write], err: Error) -> None:
    lost = []
    for old in reversed(done):
        try:
            tree.write(*old)
        except Error as again:
            lost.append(again.message)
    if done and not lost:
        err.message += "; the writes before it were put back"
    for message in lost:
        err.message += f"; and the way back failed: {message}"
