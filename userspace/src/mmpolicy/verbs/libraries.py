# SPDX-License-Identifier: GPL-2.0
"""Libraries that only some verbs need, and how to install a missing one."""

from __future__ import annotations

import shutil
import sys
import traceback
from pathlib import Path

from mmpolicy.errors import Error, Exit

# The package to install for an imported Python module: its name on PyPI, and with the prefix
# python3- in a distribution. The package scipy installs numpy, too.
PACKAGES = {
    "numpy": "scipy",
    "scipy": "scipy",
    "matplotlib": "matplotlib",
    "jinja2": "jinja2",
    "markupsafe": "jinja2",
}
DISTRIBUTION = "/usr"  # sys.prefix of the Python of a distribution, which packages libraries for it
NEW_ENOUGH = (3, 11)  # a distribution with an older Python packages a scipy that is too old
INSTALLERS = {"apt": "reinstall", "dnf": "reinstall", "zypper": "install --force"}


def lacking(err: ImportError) -> Error | None:
    """Return the error to show for a library that cannot be imported, with the way to install it;
    None if the import failed in mmpolicy's own code, which is a bug.
    """
    name = (err.name or "").partition(".")[0]
    if isinstance(err, ModuleNotFoundError) and name in PACKAGES:
        text = f"this command needs the Python library {name}, which is not installed"
        return Error(text, Exit.LACKING, how_to_get(name))
    name = _importing(err)
    if not name:
        return None
    cause: BaseException = err
    # A library may replace the error of the dynamic loader by one of its own with long advice:
    # report the first error of the chain.
    while cause.__cause__:
        cause = cause.__cause__
    why = str(cause).strip().partition("\n")[0]
    text = (
        f"this command needs the Python library {name}, which is installed and cannot be "
        f"loaded: {why}"
    )
    return Error(text, Exit.LACKING, how_to_get(name, again=True))


def _importing(err: ImportError) -> str:
    """Return the name of the library whose own files failed to import, as the traceback shows; ""
    if the traceback contains no known library.
    """
    for frame in traceback.extract_tb(err.__traceback__):
        for folder in Path(frame.filename).parts[:-1]:
            if folder in PACKAGES:
                return folder
    return ""


def how_to_get(library: str, again: bool = False) -> str:
    """Return the command line that installs a library for the running Python; again: reinstall."""
    package = PACKAGES[library]
    force = "--force-reinstall " if again else ""
    if sys.prefix != sys.base_prefix:
        return f"{sys.prefix}/bin/pip install {force}{package}"
    found = next((each for each in INSTALLERS if shutil.which(each)), None)
    if found and sys.prefix == DISTRIBUTION and sys.version_info >= NEW_ENOUGH:
        return f"{found} {INSTALLERS[found] if again else 'install'} python3-{package}"
    return f"{sys.executable} -m pip install --user {force}{package}"
