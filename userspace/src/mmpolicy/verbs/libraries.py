# SPDX-License-Identifier: GPL-2.0
"""The libraries that only some verbs need, and how to get one that is missing."""

from __future__ import annotations

import shutil
import sys

from mmpolicy.errors import Error, Exit

# What an import wants, and what to install for it: scipy brings numpy with it.
PACKAGES = {
    "numpy": "scipy",
    "scipy": "scipy",
    "matplotlib": "matplotlib",
    "jinja2": "jinja2",
    "markupsafe": "jinja2",
}
DISTRIBUTION = "/usr"  # where the Python is for which distributions have packages
NEW_ENOUGH = (3, 11)  # distributions with an older one have a scipy that is too old, too
INSTALLERS = ("apt", "dnf", "zypper")


def lacking(err: ModuleNotFoundError) -> Error | None:
    """Return the error for a library that is not installed; None for a fault of this command."""
    name = (err.name or "").partition(".")[0]
    if name not in PACKAGES:
        return None
    text = f"this needs the Python library {name}, which is not installed"
    return Error(text, Exit.LACKING, how_to_get(name))


def how_to_get(library: str) -> str:
    """Return the line that installs a library for the Python that runs this command."""
    package = PACKAGES[library]
    if sys.prefix != sys.base_prefix:
        return f"{sys.prefix}/bin/pip install {package}"
    found = next((each for each in INSTALLERS if shutil.which(each)), None)
    if found and sys.prefix == DISTRIBUTION and sys.version_info >= NEW_ENOUGH:
        return f"{found} install python3-{package}"
    return f"{sys.executable} -m pip install --user {package}"
