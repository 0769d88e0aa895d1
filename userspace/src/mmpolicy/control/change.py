# SPDX-License-Identifier: GPL-2.0
"""Changes: planned as a list of writes, made in order, taken back when one is refused."""

from collections.abc import Callable, Sequence
from errno import EBUSY, EINVAL, ERANGE
from typing import NamedTuple

from mmpolicy.control.keys import ExperimentFile, Key, Lease, Profile, Setting, State
from mmpolicy.control.labels import label_of
from mmpolicy.control.model import Control, about, check_loaded
from mmpolicy.control.state import (
    Write,
    changed_keys,
    go_to,
    read_profile,
    read_state,
    read_value,
)
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree

LOCK = "/run/mmpolicy/change.lock"
PATIENCE_S = 10.0  # for a change by somebody else

Where = Callable[[Write], str]


class Done(NamedTuple):
    """What writes have made of the state, or of the part of it that they have changed."""

    before: State
    after: State


def no_place(_write: Write) -> str:
    """Say that a write comes from nowhere in particular."""
    return ""


def carry_out(tree: Tree, writes: Sequence[Write], where: Where = no_place) -> Done:
    """Make all writes or none, and read back what the kernel took.

    What others change meanwhile is no part of the result, so that nobody takes it back as ours.
    `where` tells where a write comes from, such as `FILE:7: `; a refusal begins with it.
    """
    before = read_state(tree)
    ours = dict(before)
    try:
        for write in writes:
            _write(tree, write, where)
            _note(tree, ours, write)
    except BaseException as err:
        _put_back(tree, Done(before, ours), err)
        raise
    return Done(before, ours)


def _write(tree: Tree, write: Write, where: Where) -> None:
    try:
        tree.write(write.path, write.value)
    except Error as err:
        err.message = where(write) + err.message
        if err.errno in (EINVAL, ERANGE):
            _tell_bounds(tree, write.key, err)
        if err.errno == EBUSY and check_loaded(tree) == "expired":
            err.message += "; the lease has expired, everything is stock"
            err.next_step = "mmpolicy reset, which acknowledges it"
        raise


def _tell_bounds(tree: Tree, key: Key, err: Error) -> None:
    told = about(tree, key) if isinstance(key, Setting) else None
    if told:
        err.message += f"; it takes {told.range} ({told.unit}), and has {told.default} at first"
        err.next_step = f"give a number from {told.min} to {told.max}"


def _note(tree: Tree, state: State, write: Write) -> None:
    """Change the state as the write has; what others have written meanwhile stays out of it."""
    match write.key:
        case Profile(name):
            for key in [key for key in state if _is_of(key, name)]:
                del state[key]
            if write.result is not None:
                state |= read_profile(Control(tree), name)
        case Lease() | ExperimentFile() | Setting() as key:
            state[key] = read_value(tree, key)
        case key if write.result is None:
            state.pop(key, None)
        case key:
            state[key] = write.result


def _is_of(key: Key, profile: str) -> bool:
    own = isinstance(key, Setting) and key.profile == profile
    return own or key == Profile(profile)


def _put_back(tree: Tree, ours: Done, err: BaseException) -> None:
    """Undo the writes that were made, and let the error say what became of it.

    What somebody else has changed since stays.
    """
    told = "; the writes before it were put back"
    try:
        now = read_state(tree)
        if not changed_keys(*ours):
            return
        target, conflicts = undo(ours, now)
        target |= {key: now[key] for key in conflicts if key in now}
        go_to(tree, target)
        left = changed_keys(target, read_state(tree))
    except Error as again:
        told, left = f"; and the way back failed: {again.message}", []
    if isinstance(err, Error):
        err.message += told + "".join(f"; different now: {label_of(key)}" for key in left)


def undo(done: Done, now: State) -> tuple[State, list[Key]]:
    """Return now without the change, and the keys that somebody has changed since.

    What the change did not touch stays as it is now, whoever set it.
    """
    target, conflicts = dict(now), []
    for key in changed_keys(*done):
        old = done.before.get(key)
        if now.get(key) not in (old, done.after.get(key)):
            conflicts.append(key)
        target.pop(key, None)
        if old is not None:
            target[key] = old
    return target, conflicts
