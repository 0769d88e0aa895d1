# SPDX-License-Identifier: GPL-2.0
"""Experiments prepared for common questions, one TOML file each."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from mmpolicy import tomllib

FOLDER = files(__name__)
ABOUT = "about"


def names() -> list[str]:
    """Return the names of all presets."""
    found = (each.name for each in FOLDER.iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def read(name: str) -> dict[str, Any]:
    """Return the contents of a preset: the options of `ab run` by name, and ABOUT."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())
