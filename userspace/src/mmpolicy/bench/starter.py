# SPDX-License-Identifier: GPL-2.0
"""Start programs and wait for them, from a process that is as small as possible.

This file runs as a script of its own. The peak memory of a program (ru_maxrss) includes the memory
of the process that calls exec(), so a large process here would hide the peak of small programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SET_PDEATHSIG, SET_CHILD_SUBREAPER, SET_THP_DISABLE = 1, 36, 41  # numbers of options of prctl()
LARGEST = 1 << 16  # largest size in bytes of a request, a reply, or a file that is read

# number of the system call perf_event_open(), by architecture
PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
# read_format of perf: also return the time that a counter was enabled, and the time that it
# counted
TIMES_TOO = 1 | 2
# attributes of a perf counter: disabled, inherit, enable_on_exec
WITH_CHILDREN_FROM_EXEC = 1 << 0 | 1 << 1 | 1 << 12

LIBC = ctypes.CDLL(None, use_errno=True)
# for each program that has not begun: the pipe that lets it begin, and the pipe from which its
# costs until exec() are read
waiting: dict[int, tuple[int, int]] = {}
# for each program, by PID: files of the perf counters that are added up, by name of the figure
counters: dict[int, dict[str, list[int]]] = {}
running: set[int] = set()  # programs that were started, and whose end was not waited for yet
# PIDs of processes that outlived their program and were reported already
reported: set[int] = set()


def _become(argv: Sequence[str], no_thp: bool, output: str, gate: int, news: int) -> None:
    """Become a program: wait until it may begin, write the CPU time and faults so far to `news`,
    and exec() it.
    """
    os.setsid()
    LIBC.prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    null, out = os.open(os.devnull, os.O_RDWR), os.open(output, os.O_WRONLY | os.O_APPEND)
    for file, number in (null, 0), (null, 1), (out, 2):
        os.dup2(file, number)
    if not os.read(gate, 1):
        return
    if no_thp and LIBC.prctl(SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")
    used = resource.getrusage(resource.RUSAGE_SELF)
    os.write(news, json.dumps([used.ru_utime, used.ru_stime, used.ru_minflt]).encode() + b"\n")
    os.execvp(argv[0], list(argv))


def _open_counter(pid: int, kind: int, config: int) -> int:
    """Open a perf counter for a process, which counts from its exec() on; negative if there is
    none.
    """
    attr = struct.pack(
        "=IIQQQQQIIQ", kind, 64, config, 0, 0, TIMES_TOO, WITH_CHILDREN_FROM_EXEC, 0, 0, 0
    )
    number = PERF_EVENT_OPEN.get(os.uname().machine)
    return LIBC.syscall(number, attr, pid, -1, -1, ctypes.c_ulong(8)) if number else -1


def _count(pid: int, events: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, list[int]]:
    """Open the perf counters of each figure; leave out figures of which a counter cannot be
    opened.
    """
    found = {name: [_open_counter(pid, *each) for each in own] for name, own in events.items()}
    for files in found.values():
        if min(files) < 0:
            _close(files)
    return {name: files for name, files in found.items() if min(files) >= 0}


def _close(files: Sequence[int]) -> None:
    for each in files:
        if each >= 0:
            os.close(each)


def _counted(file: int) -> float:
    """Read and close a perf counter; return its value, scaled up if it counted for a part of the
    time only.
    """
    value, wanted, ran = struct.unpack("=QQQ", os.read(file, 24))
    os.close(file)
    return float(value * wanted / ran) if ran else 0.0


def start(
    argv: Sequence[str],
    no_thp: bool,
    output: str,
    events: Mapping[str, Sequence[tuple[int, int]]],
) -> dict[str, Any]:
    """Fork the process of a program, which then waits until go() lets it begin; return its PID."""
    (gate, our_gate), (our_news, news) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(our_gate)
            _become(argv, no_thp, output, gate, news)
        except OSError as err:
            os.write(news, json.dumps(f"{argv[0]}: {os.strerror(err.errno or 0)}").encode())
        finally:
            os._exit(127)
    os.close(gate)
    os.close(news)
    running.add(pid)
    waiting[pid] = our_gate, our_news
    counters[pid] = _count(pid, events)
    return {"pid": pid}


def go(pid: int, wait: bool) -> dict[str, Any]:
    """Let a program begin; with `wait`, wait for its end and return its costs.

    Without `wait`, return what end() needs later. If the program cannot be run, return the "error".
    """
    gate, news = waiting.pop(pid)
    began = time.monotonic()
    # fails if the program was killed before it could begin
    with contextlib.suppress(BrokenPipeError):
        os.write(gate, b"1")
    os.close(gate)
    text = b""
    while more := os.read(news, LARGEST):
        text += more
    os.close(news)
    told = [json.loads(line) for line in text.splitlines()]
    if not told or isinstance(told[-1], str):
        os.waitpid(pid, 0)
        running.discard(pid)
        return {"error": told[-1] if told else "the program was killed"}
    return end(pid, began, told[0]) if wait else {"began": began, "before": told[0]}


def is_over(pid: int) -> dict[str, Any]:
    """Return whether a program has ended, without reaping it."""
    return {"over": bool(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))}


def _read(path: str) -> str:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, LARGEST).decode(errors="replace")
    finally:
        os.close(file)


def _outlived() -> list[str]:
    """Return the names of processes whose parent has ended without waiting for them.

    The kernel makes them children of this process, so their costs belong to no program.
    """
    names = []
    try:
        children = [int(word) for word in _read(f"/proc/self/task/{os.getpid()}/children").split()]
    except OSError:  # the kernel was built without CONFIG_PROC_CHILDREN, so none are known
        return []
    for pid in children:
        if pid not in running | reported:
            with contextlib.suppress(OSError):
                names.append(_read(f"/proc/{pid}/comm").strip())
                reported.add(pid)
    for pid in sorted(reported):
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
        reported.discard(pid)
    return names


def end(pid: int, began: float, before: Sequence[float]) -> dict[str, Any]:
    """Wait for the end of a program; return its costs, with those of the children that it has
    reaped.
    """
    _, status, used = os.wait4(pid, 0)
    running.discard(pid)
    faults = used.ru_minflt - before[2]
    user, system = used.ru_utime - before[0], used.ru_stime - before[1]
    counts = {name: sum(map(_counted, files)) for name, files in counters.pop(pid).items()}
    return {
        "status": os.waitstatus_to_exitcode(status),
        "wall": time.monotonic() - began,
        "cpu": user + system,
        "user": user,
        "system": system,
        "faults": faults,
        "major_faults": used.ru_majflt,
        "peak_rss": used.ru_maxrss << 10,
        "outlived": _outlived(),
        **counts,
    }


DEEDS: dict[str, Callable[..., dict[str, Any]]] = {
    "start": start,
    "go": go,
    "is_over": is_over,
    "end": end,
}


def main() -> None:
    """Serve requests of `bench` until it closes the other end of the socket."""
    LIBC.prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    LIBC.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wire = socket.socket(fileno=int(sys.argv[1]))
    while text := wire.recv(LARGEST):
        deed, fields = json.loads(text)
        wire.send(json.dumps(DEEDS[deed](**fields)).encode())


if __name__ == "__main__":
    main()
