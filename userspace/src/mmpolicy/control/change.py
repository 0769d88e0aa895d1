# SPDX-License-Identifier: GPL-2.0
"""Make a list of planned writes in order, and undo them if the kernel refuses one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from errno import EBUSY, EINVAL, ERANGE
from typing import NamedTuple

from mmpolicy.control.keys import (
    ExperimentFile,
    Key,
    Lease,
    Profile,
    Setting,
    State,
    UnitBinding,
)
from mmpolicy.control.labels import label_of, shown
from mmpolicy.control.model import Control, about, check_loaded
from mmpolicy.control.own_units import read_units
from mmpolicy.control.state import (
    Write,
    changed_keys,
    go_to,
    perform,
    read_profile,
    read_state,
    read_value,
)
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.signals import interrupted
from mmpolicy.host.step import Step

LOCK = "/run/mmpolicy/change.lock"

# a function that returns where a write comes from, such as `FILE:7: `; the error message of a
# failed write begins with this text
Origin = Callable[[Write], str]


class StateChange(NamedTuple):
    """The state before and after some writes, or only the entries that they changed."""

    before: State
    after: State


def no_origin(_write: Write) -> str:
    """Return an empty origin, for writes that come from no file."""
    return ""


def state_of(tree: Tree, writes: Sequence[Write] = ()) -> State:
    """Return the current state that these writes will change.

    If all writes bind systemd units, the module need not be loaded, as these bindings are files.
    """
    alone = writes and all(isinstance(write.key, UnitBinding) for write in writes)
    return read_units(tree) if alone and not tree.is_dir(CONTROL) else read_state(tree)


def asked_for(before: State, writes: Sequence[Write]) -> State:
    """Return the state that all these writes together would result in."""
    state = dict(before)
    for write in writes:
        _take(state, write)
    return state


def steps_of(before: State, writes: Sequence[Write]) -> Iterator[Step]:
    """Yield each write as a step of a dry run, with the value of the entry just before the write
    and the requested value.
    """
    state = dict(before)
    for write in writes:
        off = write.key.off if isinstance(write.key, Setting) else None
        now = shown(write.key, state.get(write.key, off))
        _take(state, write)
        yield Step(write.path, write.value, now, shown(write.key, state.get(write.key)))


def carry_out(
    tree: Tree,
    writes: Sequence[Write],
    origin: Origin = no_origin,
    caught: Collection[int] = (),
    finish: Callable[[], None] = lambda: None,
) -> StateChange:
    """Make all writes, or none if one fails, and read the state back.

    Changes that other processes make meanwhile are not part of the result, so `revert` will not
    undo them. origin(): returns where a write comes from, such as `FILE:7: `, for error messages.
    caught: numbers of the signals received so far; a signal stops the writes and undoes them, as a
    refused write does. finish(): called after the last write.
    """
    before = state_of(tree, writes)
    ours = dict(before)
    try:
        for write in writes:
            for number in caught:
                raise interrupted(number)
            ours = _make(tree, ours, write, origin)
        finish()
    except BaseException as err:
        _put_back(tree, StateChange(before, ours), err, writes)
        raise
    return StateChange(before, ours)


def _make(tree: Tree, ours: State, write: Write, origin: Origin) -> State:
    try:
        perform(tree, write)
    except Error as err:
        err.message = origin(write) + err.message
        if err.errno in (EINVAL, ERANGE):
            _tell_bounds(tree, write.key, err)
        if err.errno == EBUSY and check_loaded(tree) == "expired":
            err.message += "; the lease has expired, so the kernel is at stock and takes no change"
            err.next_step = (
                "mmpolicy reset acknowledges the expired lease; then give the command again"
            )
        raise
    made = asked_for(ours, [write])
    with suppress(Error):  # another process may have removed the entry meanwhile
        _read_back(tree, made, write)
    return made


def check_values(tree: Tree, writes: Sequence[Write], origin: Origin) -> None:
    """Raise an error if a value is outside the bounds that the module reports; write nothing."""
    for write in writes:
        told = about(tree, write.key) if isinstance(write.key, Setting) else None
        digits = re.fullmatch(r"-?\d+", write.value)
        is_number = told.min <= int(write.value) <= told.max if told and digits else False
        if told and not is_number and (digits or not re.search(r"\d", write.value)):
            text = f"the kernel would refuse '{write.value}' for {tree.real(write.path)}"
            err = Error(f"{origin(write)}{text}", Exit.REFUSED, "")
            _tell_bounds(tree, write.key, err)
            raise err


def _tell_bounds(tree: Tree, key: Key, err: Error) -> None:
    told = about(tree, key) if isinstance(key, Setting) else None
    if told:
        err.message += f"; the range is {told.range} ({told.unit}), the default is {told.default}"
        err.next_step = f"give a number from {told.min} to {told.max}"


def _take(state: State, write: Write) -> None:
    """Apply one planned write to a copy of the state."""
    if isinstance(write.key, Profile):
        for key in [key for key in state if _is_of(key, write.key.name)]:
            del state[key]
    if write.result is None:
        state.pop(write.key, None)
    else:
        state[write.key] = write.result


def _read_back(tree: Tree, state: State, write: Write) -> None:
    """Update a copy of the state with the value that the module shows after a write."""
    key = write.key
    if isinstance(key, Profile) and write.result is not None:
        state |= read_profile(Control(tree), key.name)
    elif isinstance(key, (Lease, ExperimentFile, Setting)):
        state[key] = read_value(tree, key)


def _is_of(key: Key, profile: str) -> bool:
    own = isinstance(key, Setting) and key.profile == profile
    return own or key == Profile(profile)


def _put_back(tree: Tree, ours: StateChange, err: BaseException, writes: Sequence[Write]) -> None:
    """Undo the writes that were made, and add to the error message whether this succeeded.

    Entries that another process has changed since then keep their values.
    """
    told = "; the earlier writes of this command were undone"
    try:
        now = state_of(tree, writes)
        if not changed_keys(*ours):
            return
        target, conflicts = undo(ours, now)
        target |= {key: now[key] for key in conflicts if key in now}
        go_to(tree, target, now)
        left = changed_keys(target, state_of(tree, writes))
    except Error as again:
        told, left = f"; undoing the earlier writes of this command failed: {again.message}", []
        if isinstance(err, Error):
            err.half = True
    if isinstance(err, Error):
        err.message += told + "".join(f"; still changed: {label_of(key)}" for key in left)


def undo(done: StateChange, now: State) -> tuple[State, list[Key]]:
    """Return the current state with a change undone, and the entries that were changed again
    since.

    Entries that the change did not touch keep their current values.
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
