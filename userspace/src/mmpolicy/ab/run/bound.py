# SPDX-License-Identifier: GPL-2.0
"""Arms for a service that is bound to a profile for good: as it is, and for a block unbound."""

from __future__ import annotations

from collections.abc import Callable

from mmpolicy.ab.design import Block
from mmpolicy.ab.run.changes import Changes
from mmpolicy.ab.run.knobs import Knobs
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.ab.run.scope import Scope
from mmpolicy.control.experiment import PROFILES
from mmpolicy.control.keys import CgroupBinding
from mmpolicy.control.state import bind, read_state, unbind
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree

LEASE_S = 10.0  # a quarter of it is how often the binding is looked at


class Bound(Changes):
    """No lease and no arm of the kernel's: that would end at stock, and this ends as it was kept.

    note: is told the id of the cgroup before it is unbound, and 0 once it is bound again.
    """

    def __init__(
        self, tree: Tree, scope: Scope, profile: str, note: Callable[[int], object]
    ) -> None:
        arms: dict[str, dict[str, str]] = {arm: {} for arm in PROFILES}
        super().__init__(None, Knobs(tree, {}, arms, LEASE_S, lambda _text: None))
        self._tree, self._scope, self._profile, self._note = tree, scope, profile, note
        self._key = CgroupBinding(int(scope.number))
        self._bound = True

    @property
    def scope(self) -> Scope:
        """Return the service."""
        return self._scope

    def enter(self, block: Block) -> None:
        """Begin a block."""
        self.renew()
        bound = block.arm == "treatment"
        if bound == self._bound:
            return
        if not bound:
            self._note(self._key.number)
        write = (bind if bound else unbind)(self._key, self._profile)
        self._tree.write(write.path, write.value)
        self._bound = bound
        if bound:
            self._note(0)

    def renew(self) -> None:
        """Find out if somebody else has bound the service, or unbound it."""
        now = read_state(self._tree).get(self._key)
        if now != (self._profile if self._bound else None):
            raise StoppedError("lost", f"somebody else has bound {self._scope.path}, or unbound it")

    def look_after(self, restarting: bool) -> None:
        """End the run if the service was stopped or has started anew."""
        if self._scope.gone:
            raise StoppedError("lost", f"{self._scope.path} was stopped, or has started anew")

    def restore(self) -> str:
        """Bind it again, unless it is gone, or somebody else has bound it."""
        if self._bound:
            return ""
        try:
            note = bind_again(self._tree, self._key.number, self._scope, self._profile)
            self._note(0)
        except Error as err:
            return f"{self._scope.path} is at stock, as it cannot be bound: {err.message}"
        self._bound = True
        return note


def bind_again(tree: Tree, number: int, scope: Scope, profile: str) -> str:
    """Bind a cgroup that has had a block at stock; return why not, if that is so."""
    if scope.now() != str(number):
        return f"{scope.path} was stopped, or has started anew"
    key = CgroupBinding(number)
    now = read_state(tree).get(key)
    if now is not None:
        return "" if now == profile else f"somebody else has bound {scope.path} to {now}"
    write = bind(key, profile)
    tree.write(write.path, write.value)
    return ""
