# SPDX-License-Identifier: GPL-2.0
"""Run lines of the command mmpolicy in a guest, for ./dev bench verbs.

Each line runs in a fork of this process, which has done all imports, as they are slow on an
emulated CPU. The program reads a JSON list of [line, words], and prints a JSON list for each: line,
exit status, output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from importlib import import_module
from pkgutil import walk_packages

import mmpolicy
from mmpolicy.cli import main
from mmpolicy.host.doctor import Facts
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.verbs import here
from mmpolicy.verbs.fit import points_here

ENDLESS = ("watch", "maintain")  # verbs that run until they get a SIGINT
ENDLESS_S = 5  # seconds after which the verbs of ENDLESS get a SIGINT


def fork(words: list[str], output: int) -> int:
    """Run a command line of mmpolicy in a process of its own; return its pid."""
    if pid := os.fork():
        return pid
    # a shell makes background jobs ignore SIGINT, and this undoes that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["mmpolicy", *words]
    main(words, prog_name="mmpolicy")
    os._exit(0)


def type_line(words: list[str]) -> tuple[int, str]:
    """Run a command line of mmpolicy; return its exit status and its output."""
    with tempfile.TemporaryFile() as output:
        pid = fork(words, output.fileno())
        if words and words[0] in ENDLESS:
            time.sleep(ENDLESS_S)
            os.kill(pid, signal.SIGINT)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        return status, output.read().decode(errors="replace")


if __name__ == "__main__":
    lines = json.load(sys.stdin)
    for module in walk_packages(mmpolicy.__path__, "mmpolicy."):
        if module.name.split(".")[1] in ("control", "host", "memory", "kernel", "verbs"):
            import_module(module.name)
    # points_here() reads all types of the kernel, which takes long, so all lines share its result
    points = points_here(Facts(Host(Tree())))
    vars(here)["points_here"] = lambda _facts: points
    for line, words in lines:
        status, text = type_line(words)
        print(json.dumps([line, status, text]), flush=True)
