# SPDX-License-Identifier: GPL-2.0
"""Changes: planned as a list of writes, made in order, put back when one is refused."""

from collections.abc import Callable, Sequence
from errno import EBUSY
from typing import NamedTuple

from mmpolicy.control.model import CONTROL, check_loaded
from mmpolicy.control.state import State, Write, differences, read_state, restore
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree


class Done(NamedTuple):
    """What writes have made of the state."""

    before: State
    after: State


def carry_out(
    tree: Tree, writes: Sequence[Write], where: Callable[[Write], str] = lambda _write: ""
) -> Done:
    """Make all writes or none, and read back what the kernel took.

    `where` tells where a write comes from, such as `FILE:7: `; a refusal begins with it.
    """
    before = read_state(tree)
    try:
        for write in writes:
            _write(tree, write, where)
    except BaseException as err:
        _put_back(tree, before, err)
        raise
    return Done(before, read_state(tree))


def _write(tree: Tree, write: Write, where: Callable[[Write], str]) -> None:
    try:
        tree.write(*write)
    except Error as err:
        err.message = where(write) + err.message
        if err.errno == EBUSY and check_loaded(tree) == "expired":
            err.message += "; the lease has expired, everything is stock"
            err.next_step = "mmpolicy reset, which acknowledges it"
        raise


def _put_back(tree: Tree, before: State, err: BaseException) -> None:
    """Restore the state, and let the error say what became of it."""
    if read_state(tree) == before:
        return
    told = "; the writes before it were put back"
    try:
        restore(tree, before)
    except Error as again:
        told = f"; and the way back failed: {again.message}"
    lost = differences(before, read_state(tree))
    if lost:
        told = f"{told}; different now: {', '.join(f'{CONTROL}/{key}' for key in lost)}"
    if isinstance(err, Error):
        err.message += told
