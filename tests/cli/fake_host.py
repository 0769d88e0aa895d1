# SPDX-License-Identifier: GPL-2.0
"""The command on the model of a host: python fake_host.py ROOT WORD..."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # as pytest has it

from cli.fakes import FakeLib, FakeTree  # noqa: E402
from mmpolicy.cli import main  # noqa: E402
from mmpolicy.host.kmod import Kmod  # noqa: E402
from mmpolicy.host.machine import Host  # noqa: E402

if __name__ == "__main__":
    tree = FakeTree(Path(sys.argv[1]))
    host = Host(tree, Kmod(lib=FakeLib(tree)), log=lambda _line: None)
    main(sys.argv[2:], prog_name="mmpolicy", obj=host)
