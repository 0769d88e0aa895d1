# SPDX-License-Identifier: GPL-2.0
"""Commands that an operator gives to an experiment, each within a time."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TextIO

from mmpolicy.ab.lab import StoppedError

POLL_S = 0.2  # what goes on meanwhile is looked at this often


@dataclass(frozen=True)
class Commands:
    """Runs commands. Where one fails or takes too long, the experiment ends."""

    limit_s: float
    tick: Callable[[], None]  # lease and guards go on meanwhile

    def number(self, command: str) -> float:
        """Return the number that a command prints last."""
        words = self.run(command).split()
        try:
            return float(words[-1])
        except (IndexError, ValueError):
            text = f"'{command}' does not print a number"
            raise StoppedError("failed", text) from None

    def run(self, command: str) -> str:
        """Return what a command prints."""
        with tempfile.TemporaryFile("w+") as output, self._started(command, output) as process:
            self._wait(command, process)
            output.seek(0)
            text = output.read()
        if process.returncode:
            raise StoppedError("failed", f"'{command}' ended with status {process.returncode}")
        return text

    def _wait(self, command: str, process: subprocess.Popen[bytes]) -> None:
        end = monotonic() + self.limit_s
        while process.poll() is None:
            self.tick()
            if monotonic() > end:
                text = f"'{command}' did not end within {self.limit_s:g} s"
                raise StoppedError("failed", text)
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(POLL_S, self.limit_s))

    @contextmanager
    def _started(self, command: str, output: TextIO) -> Iterator[subprocess.Popen[bytes]]:
        argv, null = ["/bin/sh", "-c", command], subprocess.DEVNULL
        process = subprocess.Popen(argv, stdin=null, stdout=output, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
