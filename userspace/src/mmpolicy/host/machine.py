# SPDX-License-Identifier: GPL-2.0
"""The host that a command works on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.bpf import Helper, run_helper
from mmpolicy.host.files import MODULE, Tree
from mmpolicy.host.service import Show, show_units

if TYPE_CHECKING:
    from mmpolicy.host.advice import Advice
    from mmpolicy.host.kmod import Kmod


CPUINFO, MEMINFO = "/proc/cpuinfo", "/proc/meminfo"
NO_SYSTEMD = (
    "run mmpolicy bench, or ab run in the foreground: both have their own watchdog and "
    "need no systemd"
)
DOCTOR_KNOWS = "; mmpolicy doctor says whether the module can be built"


def tell_syslog(line: str) -> None:
    """Send a line to the system log; without a system log, nothing happens."""
    import syslog

    syslog.openlog(MODULE, syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_NOTICE, line)


def reload_units() -> None:
    """Make systemd read its unit files again."""
    import subprocess

    try:
        subprocess.run(["systemctl", "daemon-reload"], check=True)
    except (OSError, subprocess.CalledProcessError) as err:
        text = (
            f"systemctl daemon-reload has failed, so systemd does not know the changed units: {err}"
        )
        raise Error(text, Exit.FAILED, "systemctl daemon-reload") from err


def tell_ready() -> None:
    """Tell systemd that this service has started, if systemd waits for that."""
    import socket

    address = os.environ.pop("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
            wire.sendto(b"READY=1", address.replace("@", "\0", 1))


def start_unit(words: Sequence[str]) -> None:
    """Run a command as a transient systemd unit; `words` are the arguments of systemd-run."""
    import subprocess

    units = [f"-u {name}" for option, name in zip(words, words[1:]) if option == "--unit"]
    hint = (
        "without systemd, run the command as nohup mmpolicy ... &; leave --detach out, or give "
        "--foreground to try"
    )
    try:
        done = subprocess.run(["systemd-run", *words], capture_output=True, text=True, check=False)
    except OSError as err:
        raise Error(
            f"cannot start a systemd unit, as systemd-run does not run: {err}", Exit.LACKING, hint
        ) from err
    if done.returncode:
        why = done.stderr.strip() or "the log says why"
        log = " ".join(["journalctl", *units])
        raise Error(f"systemd did not start the unit: {why}", Exit.FAILED, log)


def start_path_unit(unit: str, words: Sequence[str]) -> None:
    """Make systemd start a command when a file appears: by the installed unit, or else by a
    transient one.
    """
    import subprocess

    try:
        done = subprocess.run(
            ["systemctl", "start", f"{unit}.path"], capture_output=True, check=False
        )
    except OSError as err:
        raise Error(f"cannot start {unit}.path: {err}", Exit.LACKING, NO_SYSTEMD) from err
    if done.returncode:
        start_unit(words)


def enable_unit(unit: str) -> None:
    """Enable an installed systemd unit and start it."""
    import subprocess

    hint = f"install the package mmpolicy, which contains {unit}"
    try:
        done = subprocess.run(
            ["systemctl", "enable", "--now", unit], capture_output=True, text=True, check=False
        )
    except OSError as err:
        raise Error(f"cannot enable {unit}: {err}", Exit.LACKING, hint) from err
    if done.returncode:
        raise Error(f"cannot enable {unit}: {done.stderr.strip()}", Exit.FAILED, hint)


class Hardware(NamedTuple):
    """Hardware and kernel, on which measurements depend; None for what is unknown."""

    machine: str
    cpus: int | None
    cpu: str | None  # model of the CPU
    virtual: bool
    memory: int | None  # size of the memory in bytes


def hardware_of(tree: Tree) -> Hardware:
    """Return the hardware and the kernel release of the host."""
    known = {path: tree.read(path) for path in (CPUINFO, MEMINFO) if tree.exists(path)}
    models = [line.partition(":")[2].strip() for line in known.get(CPUINFO, "").splitlines()
              if line.startswith("model name")]  # fmt: skip
    return Hardware(
        machine=os.uname().machine,
        cpus=os.cpu_count(),
        cpu=[*models, ""][0] if CPUINFO in known else None,
        virtual=" hypervisor" in known.get(CPUINFO, ""),
        memory=int(known[MEMINFO].split()[1]) << 10 if MEMINFO in known else None,
    )


class Host:
    """Files, modules, time, log and systemd of a host; tests replace these by models."""

    def __init__(
        self,
        tree: Tree,
        kmod: Kmod | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        log: Callable[[str], None] | None = None,
        reload: Callable[[], None] | None = None,
        start_unit: Callable[[Sequence[str]], None] = start_unit,
        bpf: Helper = run_helper,
        show: Show | None = None,
    ) -> None:
        self.tree = tree
        real = str(tree.root) == "/"
        self.log = log or (tell_syslog if real else lambda _line: None)
        self.reload_units = reload or (reload_units if real else lambda: None)
        self.start_unit = start_unit
        self.start_path_unit = start_path_unit
        self.enable_unit = enable_unit
        self.show_units = show or (show_units if real else lambda _words: "")
        self.bpf = bpf
        self.sleep = sleep
        self.clock = clock
        self._kmod = kmod
        self._advice: Advice | None = None

    @property
    def advice(self) -> Advice:
        """Return the object that calls madvise(); ctypes is imported only when it is needed."""
        from mmpolicy.host.advice import Advice

        self._advice = self._advice or Advice()
        return self._advice

    @advice.setter
    def advice(self, advice: Advice) -> None:
        self._advice = advice

    def release(self) -> str:
        """Return the release of the running kernel."""
        return self.tree.read("/proc/sys/kernel/osrelease")

    def kmod(self) -> Kmod:
        """Return libkmod for this host; ctypes is imported only when it is needed."""
        from mmpolicy.host.kmod import Kmod

        if not self._kmod:
            modules = self.tree.real(f"/lib/modules/{self.release()}")
            self._kmod = Kmod(None if str(self.tree.root) == "/" else str(modules))
        return self._kmod

    def module_file(self) -> str:
        """Return the path of the module file for this kernel."""
        path = self.kmod().path(MODULE)
        if not path:
            text = (
                f"there is no {MODULE}.ko for this kernel in "
                f"{self.tree.real('/lib/modules')}/{self.release()}"
            )
            hint = (
                "install the module for this kernel (package mmpolicy-modules, or dkms "
                "autoinstall), then run depmod"
            )
            raise Error(text, Exit.LACKING, hint + DOCTOR_KNOWS)
        return path
