# SPDX-License-Identifier: GPL-2.0
"""One run of a program, and what it costs: CPU time, time, faults and memory."""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from mmpolicy.bench import starter
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure

POLL_S = 0.1  # seconds between checks whether a signal has arrived
MANNERS_S = 10.0  # seconds that a server has to end after SIGTERM; then it is an error
PROMPT_S = 60.0  # time limit in seconds for a request that is immediate on an idle machine
HARDWARE, CACHE = 0, 3  # types of counters for perf_event_open()
DTLB, LOADS, STORES, MISSES = 3, 0 << 8, 1 << 8, 1 << 16
# CPU counters of each metric, as perf type and config; several counters are added up
COUNTERS = {
    "cycles": [(HARDWARE, 0)],
    "instructions": [(HARDWARE, 1)],
    "tlb_misses": [(CACHE, DTLB | LOADS | MISSES), (CACHE, DTLB | STORES | MISSES)],
}
TAIL = 500  # largest number of characters of a program's output that an error quotes

Values = dict[str, float]  # the costs of a run, by metric
Prepare = Callable[[int], None]  # a function that is called with the pid before the program begins


@dataclass(frozen=True)
class Work:
    """The work of a run: a program alone, or a server and a program that puts load on it."""

    command: Sequence[str]
    server: str = ""  # shell command of the server; its costs are measured
    ready: str = ""  # shell command that exits with 0 once the server accepts its load
    limit_s: float = 600.0


@dataclass
class Programs:
    """Runs programs. tick() is called while they run, and raises an error when `bench` must end."""

    work: Work
    tick: Callable[[], None]
    wire: socket.socket = field(init=False)
    # names of processes whose parent ended without waiting for them, so no figure has their costs
    outlived: set[str] = field(default_factory=set)

    def __enter__(self) -> Programs:
        """Start the small process that starts the programs; see starter.py."""
        self.wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-I", "-S", *_starter(), str(theirs.fileno())]
        self._starter = subprocess.Popen(
            argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self.wire.settimeout(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        """End the starter, and all programs that it has started."""
        self.wire.close()
        self._starter.kill()
        self._starter.wait()

    def run(self, prepare: Prepare, no_thp: bool) -> Values:
        """Run the work once, and return its costs by metric.

        prepare: called with the PID before the program begins. no_thp: forbid huge pages by
        prctl().
        """
        with tempfile.NamedTemporaryFile() as file:
            output = Path(file.name)
            if not self.work.server:
                return self._plain(output, prepare, no_thp)
            return self._served(output, prepare, no_thp)

    def _plain(self, output: Path, prepare: Prepare, no_thp: bool) -> Values:
        with self._started(self.work.command, output, prepare, no_thp) as pid:
            found = self._ask("go", self.work.limit_s, pid=pid, wait=True)
        return self._checked(found, self.work.command[0], output)

    def _served(self, output: Path, prepare: Prepare, no_thp: bool) -> Values:
        """Run the load against the server; return the costs. The time is that of the load, all
        other costs are those of the server.
        """
        shell = ["/bin/sh", "-c", f"exec {self.work.server}"]
        with self._started(shell, output, prepare, no_thp) as pid:
            begun = self._ask("go", pid=pid, wait=False)
            if "error" in begun:
                raise _failed(self.work.server, begun["error"], output)
            self._until_ready(pid, output)
            with self._started(self.work.command, output, lambda _: None, False) as load:
                found = self._ask("go", self.work.limit_s, pid=load, wait=True)
            wall = self._checked(found, self.work.command[0], output)["wall"]
            os.kill(pid, signal.SIGTERM)
            took = self._ask("end", MANNERS_S, pid=pid, **begun)
        return self._values(took) | {"wall": wall}

    def _until_ready(self, pid: int, output: Path) -> None:
        end = monotonic() + self.work.limit_s
        while not self._is_ready():
            self.tick()
            if self._ask("is_over", pid=pid)["over"]:
                raise _failed(self.work.server, "the server ended before it was ready", output)
            if monotonic() > end:
                raise _failed(
                    self.work.server,
                    f"--ready did not succeed within {figure(self.work.limit_s)} s",
                    output,
                )
            sleep(POLL_S)

    def _is_ready(self) -> bool:
        if not self.work.ready:
            return True
        argv, null = ["/bin/sh", "-c", self.work.ready], subprocess.DEVNULL
        done = subprocess.run(argv, stdin=null, stdout=null, stderr=null, check=False)
        return not done.returncode

    @contextmanager
    def _started(
        self, argv: Sequence[str], output: Path, prepare: Prepare, no_thp: bool
    ) -> Iterator[int]:
        """Start a process that waits until it may begin; at the end, kill its whole session."""
        fields: dict[str, Any] = {"argv": list(argv), "no_thp": no_thp, "events": COUNTERS}
        started = self._ask("start", output=str(output), **fields)
        pid: int = started["pid"]
        try:
            prepare(pid)
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ask(self, deed: str, limit_s: float = PROMPT_S, **fields: Any) -> dict[str, Any]:
        """Send a request to the starter and return its reply; raise an error after a time limit."""
        end = monotonic() + limit_s
        try:
            self.wire.send(json.dumps([deed, fields]).encode())
            while True:
                # socket.timeout is the same class as TimeoutError from Python 3.10 on
                with suppress(socket.timeout):
                    answer: dict[str, Any] = json.loads(self.wire.recv(starter.LARGEST))
                    return answer
                self.tick()
                if monotonic() > end:
                    raise self._too_late(deed, figure(limit_s))
        except (OSError, ValueError) as err:
            text = "the helper process of mmpolicy bench, which starts the programs, has ended"
            raise Error(text, Exit.FAILED, "give the command again") from err

    def _too_late(self, deed: str, limit: str) -> Error:
        """Return the error for a request that was not answered within a time limit in seconds."""
        name, hint = self.work.command[0], "give a longer --timeout, or a command that does less"
        if deed == "go":
            return Error(f"'{name}' did not end within {limit} s", Exit.FAILED, hint)
        if deed == "end":
            text = f"the server did not end within {limit} s after SIGTERM"
            return Error(text, Exit.FAILED, "give a server that SIGTERM ends")
        text = f"the helper process of mmpolicy bench did not answer '{deed}' within {limit} s"
        return Error(text, Exit.FAILED, "give the command again")

    def _checked(self, found: dict[str, Any], name: str, output: Path) -> Values:
        if "error" in found:
            raise Error(found["error"], Exit.FAILED, "give the path of the program, or install it")
        values = self._values(found)
        if found["status"]:
            raise _failed(name, f"the program ended with status {found['status']}", output)
        return values

    def _values(self, took: dict[str, Any]) -> Values:
        self.outlived |= set(took["outlived"])
        return {key: took[key] for key in took if key not in ("status", "outlived")}


def _starter() -> list[str]:
    """Return the arguments by which Python runs the starter: its file, or its source if it is in a
    zipapp.
    """
    path = Path(starter.__file__)
    return [str(path)] if path.exists() else ["-c", inspect.getsource(starter)]


def _failed(name: str, why: str, output: Path) -> Error:
    said = output.read_text(errors="replace").strip()[-TAIL:]
    return Error(
        f"'{name}': {why}{': ' * bool(said)}{said}",
        Exit.FAILED,
        "run the program by hand, and bench it once it works",
    )
