# SPDX-License-Identifier: GPL-2.0
"""Run the user's commands for an experiment, each with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TextIO

from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.figures import figure

POLL_S = 0.2  # seconds between two polls while a command runs; each calls tick()


@dataclass(frozen=True)
class Commands:
    """Runs commands. A command that fails, or exceeds the time limit, ends the experiment."""

    limit_s: float
    tick: Callable[[], None]  # called while a command runs; renews the lease and checks guards

    def numbers(self, commands: Sequence[str]) -> list[float]:
        """Run all commands at once; return for each the last number of its output."""
        with ExitStack() as stack:
            begun = [stack.enter_context(self._begun(command)) for command in commands]
            return [
                self._number(command, self._end(command, *each))
                for command, each in zip(commands, begun)
            ]

    def _number(self, command: str, text: str) -> float:
        words = text.split()
        try:
            return float(words[-1])
        except (IndexError, ValueError):
            text = f"the output of the command '{command}' does not end in a number"
            raise StoppedError("failed", text) from None

    def run(self, command: str) -> str:
        """Run a command to its end, and return its output."""
        with self._begun(command) as begun:
            return self._end(command, *begun)

    @contextmanager
    def _begun(self, command: str) -> Iterator[tuple[TextIO, subprocess.Popen[bytes]]]:
        with (
            tempfile.TemporaryFile("w+", errors="replace") as output,
            self._started(command, output) as process,
        ):
            yield output, process

    def _end(self, command: str, output: TextIO, process: subprocess.Popen[bytes]) -> str:
        self._wait(command, process)
        output.seek(0)
        text = output.read()
        if process.returncode:
            raise StoppedError(
                "failed", f"the command '{command}' ended with status {process.returncode}"
            )
        return text

    def _wait(self, command: str, process: subprocess.Popen[bytes]) -> None:
        end = monotonic() + self.limit_s
        while process.poll() is None:
            self.tick()
            if monotonic() > end:
                text = f"the command '{command}' did not end within {figure(self.limit_s)} s"
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
