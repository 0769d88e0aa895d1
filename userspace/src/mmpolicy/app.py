# SPDX-License-Identifier: GPL-2.0
"""What every verb is given, and the options and completions that verbs share."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mmpolicy.control.model import MODULE, Control
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_list
from mmpolicy.host.files import Tree

if TYPE_CHECKING:
    from mmpolicy.host.kmod import Kmod

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


class App:
    """The host a verb works on; tests put models in its place."""

    def __init__(
        self,
        tree: Tree,
        kmod: "Kmod | None" = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tree = tree
        self.sleep = sleep
        self.clock = clock
        self._kmod = kmod

    def release(self) -> str:
        """Return the release of the running kernel."""
        return self.tree.read("/proc/sys/kernel/osrelease")

    def kmod(self) -> "Kmod":
        """Return libkmod for this host; ctypes costs time, so only now."""
        from mmpolicy.host.kmod import Kmod

        if not self._kmod:
            modules = self.tree.real(f"/lib/modules/{self.release()}")
            self._kmod = Kmod(None if str(self.tree.root) == "/" else str(modules))
        return self._kmod

    def module_file(self) -> str:
        """Return the path of the module for this kernel."""
        path = self.kmod().path(MODULE)
        if not path:
            text = f"no {MODULE}.ko in {self.tree.real('/lib/modules')}/{self.release()}"
            hint = "build and install the module for this kernel (dkms autoinstall), then depmod"
            raise Error(text, Exit.LACKING, hint)
        return path


def _completer(offer: Callable[[Control, dict[str, Any]], list[str]]) -> Completer:
    """Make a completion of what `offer` finds in the tree for the words given so far."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            names = offer(Control(Tree(ctx.find_root().params["root"])), ctx.params)
        except Error:
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _settings(control: Control, given: dict[str, Any]) -> list[str]:
    """Offer the policies of the point until one is given, and the knobs as they are now."""
    point = control.point(given["profile"], given["point"])
    chosen = [word for word in given.get("settings") or () if "=" not in word]
    knobs = point.common | point.knobs.get(chosen[0] if chosen else point.active, {})
    values = [f"{knob}={value}" for knob, value in control.values(knobs).items()]
    return values if chosen else [*point.policies, *values]


complete_point = _completer(lambda control, given: control.point_names(given["profile"]))
complete_setting = _completer(_settings)
complete_profile = _completer(lambda control, _given: control.profiles())
complete_cgroup = _completer(lambda control, _given: cgroup_list(control.tree))

pass_app = click.make_pass_decorator(App)
json_option = click.option("--json", "want_json", is_flag=True, help="Print JSON.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the writes that would be made; change nothing."
)
profile_option = click.option(
    "--profile", default="default", show_default=True, metavar="NAME", help="Use this profile.",
    shell_complete=complete_profile,
)  # fmt: skip
point_argument = click.argument("point", required=False, shell_complete=complete_point)
