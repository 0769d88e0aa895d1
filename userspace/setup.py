# SPDX-License-Identifier: GPL-2.0
"""What pyproject.toml cannot say: man pages and completions, made from the command itself."""

import sys
from functools import partial
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
OUT = Path("build/share")  # data_files takes paths relative to this file
COMPLETIONS = {
    "bash": "bash-completion/completions/mmpolicy",
    "zsh": "zsh/site-functions/_mmpolicy",
    "fish": "fish/vendor_completions.d/mmpolicy.fish",
}


def make_shared() -> list[tuple[str, list[str]]]:
    """Make what goes below /usr/share; return it by folder."""
    sys.path.insert(0, str(HERE / "src"))
    from click.shell_completion import get_completion_class
    from click_man import core

    from mmpolicy import __version__
    from mmpolicy.cli import main

    pages = HERE / OUT / "man/man1"
    pages.mkdir(parents=True, exist_ok=True)
    core.get_short_help_str = partial(core.get_short_help_str, limit=80)  # else it is cut off
    core.write_man_pages("mmpolicy", main, version=__version__, target_dir=str(pages))
    for shell, name in COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind
        file = HERE / OUT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(kind(main, {}, "mmpolicy", "_MMPOLICY_COMPLETE").source())
    files = [path.relative_to(HERE) for path in sorted((HERE / OUT).rglob("*")) if path.is_file()]
    return [(str(Path("share") / file.parent.relative_to(OUT)), [str(file)]) for file in files]


setup(data_files=make_shared())
