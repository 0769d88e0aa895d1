# SPDX-License-Identifier: GPL-2.0
"""killed.py: in a guest, kill commands of mmpolicy at given moments.

Standard input is a JSON list of [shell, [argv, ...], seconds, shell]: after the first script, a
child process runs the commands one after another; it is killed after these seconds, and then the
second script runs. Standard output is a JSON list with the output of each second script. The child
has imported all Python modules before, so that the kill hits the work of a command, not its start.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import click

from mmpolicy.cli import main


def run(argv: list[str]) -> None:
    """Run a command of mmpolicy in this process, and ignore its exit code and errors."""
    with contextlib.suppress(click.ClickException, SystemExit):
        main(argv, prog_name="mmpolicy", standalone_mode=False)


def shell(script: str) -> str:
    """Run a shell script, which must succeed; return its output."""
    return subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout


def kill(before: str, commands: list[list[str]], seconds: float, after: str) -> str:
    """Run the script `before`; start a child process that runs the commands, and kill it after
    these seconds; return the output of the script `after`.
    """
    shell(before)
    pid = os.fork()
    if not pid:
        silent = os.open(os.devnull, os.O_RDWR)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        for argv in commands:
            run(argv)
        os._exit(0)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return shell(after)


if __name__ == "__main__":
    tasks = json.load(sys.stdin)
    for argv in {tuple(argv) for task in tasks for argv in task[1]}:
        with contextlib.redirect_stdout(io.StringIO()):
            run([*argv, "--help"])
    json.dump([kill(*task) for task in tasks], sys.stdout)
