# SPDX-License-Identifier: GPL-2.0
"""Wait until hooks are attached or detached after a write, and name the tasks that delay this."""

from __future__ import annotations

from collections.abc import Callable

from mmpolicy.control.model import check_loaded
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host

UNDER_WAY = ("attaching", "detaching")
LIMIT_S = 30.0
TELL_S = 1.0  # waits of fewer seconds are not reported
LOOK_AGAIN_S = 0.1
MOST_BLOCKERS = 5


def blockers(tree: Tree) -> list[str]:
    """Return the tasks that attaching or detaching waits for, each as text such as `1234 dd`."""
    if not tree.exists(f"{CONTROL}/blockers"):
        return []
    try:
        return tree.read(f"{CONTROL}/blockers").splitlines()
    except Error:  # only root may read this file
        return []


def point_error(tree: Tree) -> str:
    """Return why the module set a point back to stock by itself, or ""."""
    path = f"{CONTROL}/point_error"
    return tree.read(path).strip() if tree.exists(path) else ""


def describe(state: str, tasks: list[str]) -> str:
    """Return one line about hooks that are still being attached or detached, with the tasks that
    delay this.
    """
    shown = ", ".join(tasks[:MOST_BLOCKERS])
    more = len(tasks) - MOST_BLOCKERS
    held = f", delayed by {shown}" + (f" and {more} more" if more > 0 else "") if tasks else ""
    return f"{state}{held}"


def settle(host: Host, tell: Callable[[str], None], limit_s: float = LIMIT_S) -> str:
    """Wait until the hooks are attached or detached, at most limit_s seconds.

    Return the state of the module: still "attaching" or "detaching" if the time was too short.
    """
    began, is_told = host.clock(), False
    while (state := check_loaded(host.tree)) in UNDER_WAY:
        took = host.clock() - began
        if took >= limit_s:
            break
        if took >= TELL_S and not is_told:
            tell(
                "waiting until the kernel has patched its functions: "
                f"{describe(state, blockers(host.tree))}"
            )
            is_told = True
        host.sleep(LOOK_AGAIN_S)
    return state


def settle_to_unload(host: Host, tell: Callable[[str], None]) -> None:
    """Reset all points to stock, and wait until all hooks are detached."""
    host.tree.write(f"{CONTROL}/reset", "1")
    state = settle(host, tell)
    if state in UNDER_WAY:
        text = (
            "the module could not be unloaded yet; all policies are at stock, and the "
            f"hooks are {describe(state, blockers(host.tree))}"
        )
        hint = "mmpolicy status shows when the hooks are gone; then mmpolicy unload"
        raise Error(text, Exit.REFUSED, hint)
