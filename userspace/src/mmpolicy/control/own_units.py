# SPDX-License-Identifier: GPL-2.0
"""Manifests that bind one systemd unit each; `bind` and `unbind` write and remove them."""

from __future__ import annotations

from typing import Any

from mmpolicy.control.keys import MANIFESTS, State, UnitBinding
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree

MARK = "# Written by mmpolicy bind --unit.\n"


def read_units(tree: Tree) -> State:
    """Return the profile of each unit that a manifest 90-UNIT.toml binds; skip unreadable ones."""
    if not tree.is_dir(MANIFESTS):
        return {}
    from mmpolicy import tomllib

    state: State = {}
    for name in tree.names(MANIFESTS):
        unit = name.removeprefix("90-").removesuffix(".toml")
        try:
            key = UnitBinding(unit)
            found: Any = tomllib.loads(tree.read(key.path))["bindings"][unit]
        except (Error, tomllib.TOMLDecodeError, LookupError, TypeError):
            continue
        state[key] = str(found)
    return state


def put_unit(tree: Tree, key: UnitBinding, profile: str | None) -> None:
    """Write the manifest that binds a unit from its next start on; without a profile, remove it."""
    import tomli_w

    if profile is None:
        tree.drop(key.path)
        return
    text = tomli_w.dumps({"version": 1, "bindings": {key.unit: profile}})
    tree.keep(key.path, MARK + text, 0o644)
