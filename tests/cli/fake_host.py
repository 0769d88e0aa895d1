# SPDX-License-Identifier: GPL-2.0
"""The command on the model of a host: python fake_host.py ROOT WORD..."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # as pytest has it

from cli.fakes import FakeLib, FakeTree  # noqa: E402
from cli.sparse import split  # noqa: E402
from mmpolicy.cli import main  # noqa: E402
from mmpolicy.host.kmod import Kmod  # noqa: E402
from mmpolicy.host.machine import Host  # noqa: E402


def start_unit(words: Sequence[str]) -> None:
    """Run the words of a unit on this host, as systemd would."""
    own = [word.replace("$$", "$") for word in words[words.index("--") + 1 :]]
    argv = [sys.executable, __file__, sys.argv[1], *own[own.index("ab") :]]
    subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


if __name__ == "__main__":
    tree = FakeTree(Path(sys.argv[1]))
    tree.splits = partial(split, tree)
    os.environ["ROOT"] = sys.argv[1]  # for commands of an experiment, equal on all hosts
    host = Host(tree, Kmod(lib=FakeLib(tree)), log=lambda _line: None, start_unit=start_unit)
    main(sys.argv[2:], prog_name="mmpolicy", obj=host)
