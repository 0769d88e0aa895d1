# SPDX-License-Identifier: GPL-2.0
"""Arms for a service that is bound to a profile: the service stays bound (treatment), or is unbound
for one block (control).
"""

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

LEASE_S = 10.0  # renew() checks the binding four times in this many seconds


class Bound(Changes):
    """Binds one service to its profile in blocks of the treatment, and unbinds it in blocks of the
    control. The kernel has no lease and no experiment for such a run: their expiry would leave the
    service at stock, while the run must end with the service bound.

    note: called with the id of the cgroup before the service is unbound, and with 0 after the
    service is bound again.
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
        """Return the cgroup of the service."""
        return self._scope

    def enter(self, block: Block) -> None:
        """Bind the service for a block of the treatment, or unbind it for one of the control."""
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
        """Raise StoppedError if another process has bound or unbound the service."""
        now = read_state(self._tree).get(self._key)
        if now != (self._profile if self._bound else None):
            raise StoppedError(
                "lost", f"another command has bound cgroup {self._scope.path} or unbound it"
            )

    def look_after(self, restarting: bool) -> None:
        """Raise StoppedError if the service was stopped or has restarted."""
        if self._scope.gone:
            raise StoppedError(
                "lost", f"the service of cgroup {self._scope.path} was stopped or restarted"
            )

    def restore(self) -> str:
        """Bind the service again at the end of the run; return a warning, or "". If the service has
        ended, or another command has bound it, leave it as it is.
        """
        if self._bound:
            return ""
        try:
            note = bind_again(self._tree, self._key.number, self._scope, self._profile)
            self._note(0)
        except Error as err:
            return (
                f"cgroup {self._scope.path} is left at stock, as it cannot be bound again: "
                f"{err.message}"
            )
        self._bound = True
        return note


def bind_again(tree: Tree, number: int, scope: Scope, profile: str) -> str:
    """Bind a cgroup again that was unbound for a block at stock; return "", or as text why that is
    not possible. number: id of the cgroup before that block. A service that has restarted has
    another id.
    """
    if scope.now() != str(number):
        return f"the service of cgroup {scope.path} was stopped or restarted"
    key = CgroupBinding(number)
    now = read_state(tree).get(key)
    if now is not None:
        return (
            ""
            if now == profile
            else f"another command has bound cgroup {scope.path} to the profile {now}"
        )
    write = bind(key, profile)
    tree.write(write.path, write.value)
    return ""
