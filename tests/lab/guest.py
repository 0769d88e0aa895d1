# SPDX-License-Identifier: GPL-2.0
"""Run commands in a QEMU guest that boots one of this project's kernels.

The guest sees the whole host file system; its writes stay in its memory.

    with Guest(flavor="patched", mem="1G") as guest:
        result = guest.run("cat /proc/version")
        print(result.rc, result.out)

The end of the block raises Splat if the kernel log shows a bug.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from . import uefi
from .files import DEVICE, GUEST_WORDS, VIRTIOFSD, Relay, listen
from .machine import (
    INIT,
    TREE,
    Arch,
    Kernel,
    VmError,
    accelerator,
    cache_dir,
    initramfs,
    memory,
)

__all__ = [
    "COMPILED",
    "PYTHON",
    "SCRIPT",
    "Guest",
    "Job",
    "Result",
    "Splat",
    "VmError",
    "cache_dir",
]

GUEST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = cache_dir() / "venv/bin/python"  # runs the command, in guests too
COMPILED = cache_dir() / "pyc"  # compiled Python files, also for guests
# the beginning of a shell command that runs a Python program of the tree in a guest
SCRIPT = (
    f"PYTHONPATH={TREE}/userspace/src:{TREE}/tests:{TREE} PYTHONPYCACHEPREFIX={COMPILED} {PYTHON}"
)
KEPT_LOGS = 40
TIMED_OUT = 124  # exit status of a command that was killed, as in timeout(1)
# series of the guest's kernels, for all flavors
SERIES = os.environ.get("MMPOLICY_SERIES") or "6.12"
ONE_KERNEL = "MMPOLICY_KERNEL"  # the variable that names one kernel for all flavors
MAX_COMMAND = 100_000  # Linux limits one argument to 128 KiB
LOG_WAIT_S = 60.0  # time for a line of the guest's kernel log to reach our file

# Lines that a healthy kernel never logs.
#
# KCSAN finds data races everywhere in Linux; only those of the module and the hooks count.
SPLAT = re.compile(
    r"\bBUG:(?! KCSAN: )|BUG: KCSAN: .*(?:\[mmpolicy|\bmm_policy_)"
    r"|kernel BUG at|\bWARNING:|KASAN: |UBSAN: |\bOops\b"
    r"|general protection fault[,:]|[Uu]nable to handle|inconsistent lock state"
    r"|possible (?:recursive|circular|irq|deadlock)|suspicious RCU|sleeping function called"
    r"|non-static key|list_(?:add|del) corruption"
    r"|rcu.*detected (?:expedited )?stall|rcu.*kthread.*starved|blocked for more than \d+ seconds"
    r"|suspected memory leak|unreferenced object 0x|Kernel panic"
)

# Log lines of a kernel that boots with kmemleak on, or whose kmemleak has turned itself off.
KMEMLEAK = re.compile(
    r"kmemleak: (?:Kernel memory leak detector initialized|Memory pool empty|Cannot allocate)"
)


class Splat(VmError):  # noqa: N818
    """The guest's kernel log shows a bug."""


@dataclass(frozen=True)
class Result:
    """The result of a command in the guest."""

    rc: int
    data: bytes
    timed_out: bool = False

    @property
    def out(self) -> str:
        """Return standard output and standard error, as text."""
        return self.data.decode(errors="replace")


def tail(path: Path, lines: int = 40) -> str:
    """Return the last lines of a log file; "" if there is no such file."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-lines:])


def find_splat(text: str) -> str | None:
    """Return the part of a kernel log that shows a bug, or None."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if SPLAT.search(line):
            return "\n".join(lines[max(number - 3, 0) : number + 60])
    return None


def new_log(name: str) -> Path:
    """Return the path for a guest's new log file; remove all but the latest KEPT_LOGS logs."""
    folder = cache_dir() / "log"
    folder.mkdir(parents=True, exist_ok=True)
    # The name has the time; another guest may just have removed a file.
    logs = sorted(folder.glob("guest-*.log"), key=lambda log: log.name.split("-")[-3:])
    for old in logs[:-KEPT_LOGS]:
        old.unlink(missing_ok=True)
    stamp = time.strftime("%m%d-%H%M%S")
    return folder / f"guest-{name}-{stamp}-{secrets.token_hex(2)}.log"


def by_line(take: Callable[[str], object]) -> Callable[[bytes], None]:
    """Return a sink for `Guest.run()` that calls `take` with each whole line, without newline."""
    rest = b""

    def sink(data: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            take(line.decode(errors="replace"))

    return sink


class Reply:
    """Splits what the guest sends for one command into the output and the exit status."""

    def __init__(self, token: str, sink: Callable[[bytes], None] | None) -> None:
        self.token = token
        self.mark = b"\0" + token.encode() + b" "
        self.sink = sink
        self.chunks: list[bytes] = []
        self.rest = b""

    def feed(self, data: bytes) -> int | None:
        """Take bytes from the guest; return the exit status, or None until it has arrived."""
        self.rest += data
        output, mark, end = self.rest.partition(self.mark)
        status, newline, _ = end.partition(b"\n")
        if newline and mark:
            self._put(output)
            return int(status)
        if not mark:
            held = self._held()
            self._put(self.rest[: len(self.rest) - held])
            self.rest = self.rest[len(self.rest) - held :]
        return None

    def _held(self) -> int:
        """Return the number of trailing bytes that may be the beginning of the mark."""
        start = self.rest.rfind(b"\0")
        begun = start >= 0 and self.mark.startswith(self.rest[start:])
        return len(self.rest) - start if begun else 0

    def _put(self, output: bytes) -> None:
        if self.sink and output:
            self.sink(output)
        elif output:
            self.chunks.append(output)


@dataclass
class Guest:
    """A guest in QEMU, as a context manager: it runs during the block."""

    flavor: str = "patched"
    series: str = "6.12"
    kernel: Path | None = None  # a kernel image to boot instead of the flavor's
    mem: str = "1G"
    cpus: int = 1
    nodes: int = 1
    bare: int = 0  # number of NUMA nodes that have CPUs but no memory
    swap: str | None = None  # size of zram swap, such as 512M
    icount: bool = False  # guest time counts instructions, but jumps whenever all CPUs idle
    append: str = ""  # more words of the kernel command line
    root: Path | None = None  # a folder with a system that the guest boots with systemd
    ssh: int = 0  # the port of this machine that is forwarded to the guest's port 22
    key: Path | None = None  # a certificate that is enrolled in a UEFI firmware with Secure Boot
    accel: str = "auto"  # or "kvm", "tcg"; "jumps": time jumps while all CPUs wait
    boot_timeout: float = 240.0

    def __post_init__(self) -> None:
        self.arch = Arch.of_flavor(self.flavor)
        self.log = Path()
        self.checked = 0
        # the guest's kernel has logged a bug; KASAN and lockdep report only the first one
        self.spoiled = False
        self.numbers = itertools.count(1)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: list[socket.socket] = []

    # Start and end

    def __enter__(self) -> Guest:
        try:
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.close()

    def close(self) -> None:
        """Kill the guest and its file server at once, and remove its temporary folder."""
        for process in self.processes:
            process.kill()
            process.wait()
        if hasattr(self, "relay"):
            self.relay.close()
        for end in self.sockets:
            end.close()
        self.processes, self.sockets = [], []
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _boot(self) -> None:
        for program in (self.arch.qemu, VIRTIOFSD, self.arch.busybox):
            if not shutil.which(program):
                raise VmError(f"{program} is missing; run ./dev setup")
        kernel = Kernel(self.kernel) if self.kernel else Kernel.of_flavor(self.series, self.flavor)
        self.log = new_log("image" if self.kernel else self.flavor)
        self.folder = Path(tempfile.mkdtemp(prefix="mmpolicy-vm-"))
        words = self._environment(kernel)
        files = initramfs(INIT, self.arch.busybox, env=words, **kernel.drivers())
        (self.folder / "initramfs").write_bytes(files)
        self._serve_files()
        self.console, console = socket.socketpair()  # port 0 in the guest
        self.commands, commands = socket.socketpair()  # port 1
        self.killer, killer = socket.socketpair()  # port 2
        self.sockets += [self.console, self.commands, self.killer]
        ports = {"console": console, "commands": commands, "killer": killer}
        argv = self._qemu(kernel.image, {name: end.fileno() for name, end in ports.items()})
        if self.key:
            kept = uefi.variables(self.key.read_bytes(), kernel.image.read_bytes())
            (self.folder / "uefi").write_bytes(kept)
            argv += uefi.drives(self.folder / "uefi")
        self._spawn("qemu", ["setpriv", "--pdeathsig", "KILL", *argv], [*ports.values()])
        self._await_ready()

    def _spawn(self, name: str, argv: list[str], hand_over: list[socket.socket]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[end.fileno() for end in hand_over],
            )
        self.processes.insert(0, process)
        for end in hand_over:
            end.close()

    def _serve_files(self) -> None:
        listener = listen(self.folder / "virtiofsd")
        # virtiofsd needs root; root of a separate user namespace is enough.
        argv = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
        argv += [VIRTIOFSD, f"--fd={listener.fileno()}", "-o", "source=/", "-o", "cache=always"]
        argv += ["-o", "sandbox=chroot", "-o", "log_level=warn"]
        self._spawn("virtiofsd", argv, [listener])
        self.relay = Relay(self.folder / "fs", self.folder / "virtiofsd")

    def _environment(self, kernel: Kernel) -> str:
        """Return the file of MM_ variables that the guest's init reads."""
        keep = {TREE, cache_dir().resolve(), Path.cwd()} - {Path("/tmp")}
        modules = kernel.modules
        variables = {
            "MM_PATH": GUEST_PATH,
            "MM_TERM": os.environ.get("TERM", "dumb"),
            "MM_MODULES": str(modules) if modules and not self.root else "",
            "MM_SWAP": self.swap or "",
            "MM_ROOT": str(self.root or ""),
            "MM_FOREIGN": str(self.arch.root or ""),
            "MM_ROOTLESS": "yes" if os.geteuid() else "",
            "MM_TREE": str(TREE),
            "MM_PYTHON": "/usr/bin/python3" if self.arch.root else str(PYTHON),
            "MM_COMPILED": str(COMPILED),
            "MM_KEEP": " ".join(
                str(path) for path in keep if self.arch.root or path.is_relative_to("/tmp")
            ),
        }
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())

    def _qemu(self, image: Path, ports: dict[str, int]) -> list[str]:
        words = f"{self.arch.qemu} -M {self.arch.board} -nodefaults -no-user-config"
        words += f" -display none -no-reboot -smp {self.cpus},sockets={self.cpus}"
        fixed_code = self.flavor == "kcsan"
        cpu = accelerator(self.accel, self.icount, self.cpus, image, fixed_code, self.arch)
        words += f" {cpu}"
        words += f" {memory(self.mem, self.nodes, self.cpus, self.bare)}"
        words += f" -chardev socket,id=fs,path={self.folder}/fs"
        words += f" -device {DEVICE},chardev=fs"
        words += " -device virtio-serial-pci"
        for name, descriptor in ports.items():
            device = "virtconsole" if name == "console" else "virtserialport"
            words += f" -chardev socket,id={name},fd={descriptor} -device {device},chardev={name}"
        if self.ssh:
            words += f" -netdev user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.ssh}-:22"
            words += " -device virtio-net-pci,netdev=net,romfile="
        boot = ["-kernel", str(image), "-initrd", str(self.folder / "initramfs")]
        boot += ["-chardev", f"file,id=log,path={self.log}", "-serial", "chardev:log"]
        return [*words.split(), *boot, "-append", self._command_line()]

    def _command_line(self) -> str:
        # TCG keeps the translated code of a program for each address at which it was mapped, and
        # walks all copies when such a page is written later. With random addresses that takes
        # minutes.
        words = f"console={self.arch.console} panic=-1 printk.devkmsg=on no_timer_check norandmaps"
        # khugepaged copies under rcu_read_lock() at the lowest priority. On preemptible kernels
        # and a busy host, other tasks keep it from finishing for more than a minute.
        words += f" rcupdate.rcu_cpu_stall_timeout=300 {GUEST_WORDS}"
        # Most tests write to sysfs and check the effect at once, so writes wait for the hooks.
        words += " mmpolicy.wait_ms=60000"
        if self.root:  # no udev tells systemd of the consoles, so a getty would wait for them
            words += " systemd.mask=getty.target systemd.show_status=0"
        if self.icount:
            words += " init_on_alloc=0"
        # identify_cpu() of 6.12 clears the flag for five-level page tables for a moment. If an
        # interrupt comes then, KASAN takes valid addresses for wild ones.
        if "kasan" in self.flavor:
            words += " no5lvl"
        # A kernel from another compiler is a build that the module was not tested on; so is any
        # arm64 kernel, as no arm64 hardware has run the module.
        if (
            self.flavor.startswith("traced")
            or self.arch.root
            or os.environ.get("MMPOLICY_UNTESTED")
        ):
            words += " mmpolicy.untested=1"
        return f"{words} {self.append}".rstrip()

    def _await_ready(self) -> None:
        greeting = b""
        deadline = time.monotonic() + self.boot_timeout
        while not greeting.endswith(b"ready\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.commands], [], [], left)[0]:
                raise VmError(f"guest not booted in {self.boot_timeout:.0f} s\n{self._why()}")
            greeting += self._receive(self.commands)

    def _receive(self, end: socket.socket) -> bytes:
        try:
            data = end.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            raise self._death()
        return data

    def _death(self) -> VmError:
        splat = find_splat(self.log_text())
        if splat:
            return Splat(f"the guest's kernel died:\n{splat}\nwhole log: {self.log}")
        return VmError(f"the guest ended\n{self._why()}")

    def _why(self) -> str:
        parts = [tail(self.folder / "virtiofsd.log"), tail(self.folder / "qemu.log")]
        return "\n".join([*filter(None, parts), tail(self.log), f"whole log: {self.log}"])

    # Commands

    def run(
        self,
        command: str,
        timeout: float | None = 60,
        *,
        cwd: Path | str | None = None,
        sink: Callable[[bytes], None] | None = None,
        terminal: bool = False,
    ) -> Result:
        """Run a shell command, in the caller's folder unless `cwd` is given.

        A sink gets the output as it arrives. A command that takes longer than `timeout` seconds is
        killed with its session; the guest continues to run.
        """
        reply = Reply(secrets.token_hex(8), sink)
        folder = "/" if self.root else Path.cwd()
        text = f"cd {shlex.quote(str(cwd or folder))} || exit\n{command}"
        if len(text) > MAX_COMMAND:
            raise VmError(f"command above {MAX_COMMAND} bytes: put it into a file")
        escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
        self.commands.sendall(f"{reply.token} {escaped}\n".encode(errors="surrogateescape"))
        status = self._pump(reply, timeout, terminal)
        if status is not None:
            return Result(status, b"".join(reply.chunks))
        self.killer.sendall(b"kill\n")
        if self._pump(reply, 60, terminal=False) is None:
            raise VmError(f"the guest hangs in: {command}\n{self._why()}")
        note = f"\n[killed after {timeout:g} s]\n".encode()
        return Result(TIMED_OUT, b"".join([*reply.chunks, note]), timed_out=True)

    def _pump(self, reply: Reply, timeout: float | None, terminal: bool) -> int | None:
        """Pass on the command's output, and with `terminal` the console, until the command ends.

        Return its exit status, or None if `timeout` seconds expire.
        """
        deadline = time.monotonic() + timeout if timeout else None
        screen = [self.console, sys.stdin] if terminal else []
        while True:
            left = max(deadline - time.monotonic(), 0) if deadline else None
            ready = select.select([self.commands, *screen], [], [], left)[0]
            if not ready:
                return None
            if self.console in ready:
                os.write(1, self._receive(self.console))
            if sys.stdin in ready:
                typed = os.read(0, 4096)
                self.console.sendall(typed)
                if not typed:
                    screen.remove(sys.stdin)
            if self.commands in ready:
                status = reply.feed(self._receive(self.commands))
                if status is not None:
                    return status

    def start(self, command: str) -> Job:
        """Start a command in the background of the guest, and return it as a Job."""
        job = Job(self, f"/run/vm/job{next(self.numbers)}")
        inner = f"({command}\n) >{job.path}.out 2>&1; echo $? >{job.path}.tmp"
        inner += f"; mv {job.path}.tmp {job.path}.rc"
        self.run(f"setsid sh -c {shlex.quote(inner)} & echo $! >{job.path}.pid")
        return job

    def shell(self) -> int:
        """Run an interactive shell on the caller's terminal."""
        if not sys.stdin.isatty():
            raise VmError("a shell needs a terminal")
        columns, rows = shutil.get_terminal_size()
        command = "exec </dev/hvc0 >/dev/hvc0 2>&1\n"
        # The agent runs commands in the background, where a shell ignores Ctrl-C for all its
        # children.
        command += f"stty sane rows {rows} cols {columns}\n"
        command += "exec env --default-signal=INT,QUIT bash -i"
        before = termios.tcgetattr(0)
        tty.setraw(0)
        try:
            return self.run(command, timeout=None, terminal=True).rc
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)

    # The kernel log

    def log_text(self) -> str:
        """Return the kernel log so far."""
        return self.log.read_text(errors="replace") if self.log.is_file() else ""

    def check(self) -> None:
        """Raise Splat if the kernel log shows a bug that no earlier check reported.

        Raise VmError if a line that the guest writes now does not arrive in the log: a bug would
        not arrive there either.
        """
        mark = f"vm-check-{next(self.numbers)}"
        written = self.run(f"echo {mark} >/dev/kmsg", cwd="/")
        deadline = time.monotonic() + LOG_WAIT_S
        while mark not in self.log_text()[self.checked :] and time.monotonic() < deadline:
            time.sleep(0.005)
        text = self.log_text()
        fresh, self.checked = text[self.checked :], len(text)
        if splat := find_splat(fresh):
            self.spoiled = True
            name = self.kernel or self.flavor
            raise Splat(f"the kernel ({name}) logged:\n{splat}\nwhole log: {self.log}")
        if mark not in fresh:
            raise VmError(
                f"the kernel log cannot be read: {mark} was written with status {written.rc}"
                f" and has not arrived in the log\n{written.out}{self._why()}"
            )

    def scan_leaks(self) -> None:
        """Raise an error if kmemleak finds a leak, or if it was on at boot and is off now.

        kmemleak turns itself off when it gets no memory. On a kernel without it, this does nothing.
        """
        if not KMEMLEAK.search(self.log_text()):
            return
        scan = "echo scan >/sys/kernel/debug/kmemleak"
        command = f"{scan} && sleep 6 && {scan} && cat /sys/kernel/debug/kmemleak"
        found = self.run(command, timeout=900, cwd="/")
        if found.rc:
            raise VmError(f"kmemleak does not scan any more, so leaks are not seen:\n{found.out}")
        if found.out:
            raise Splat(f"kmemleak found:\n{found.out}")


@dataclass
class Job:
    """A command in the background of a guest."""

    guest: Guest
    path: str

    def wait(self, timeout: float = 60) -> Result:
        """Wait until the command ends, and return its result; after `timeout` seconds, kill it."""
        waited = self.guest.run(f"until [ -e {self.path}.rc ]; do sleep 0.05; done", timeout)
        if waited.timed_out:
            self.stop()
        output = self.guest.run(f"cat {self.path}.out").data
        if waited.timed_out:
            return Result(TIMED_OUT, output, timed_out=True)
        return Result(int(self.guest.run(f"cat {self.path}.rc").out), output)

    def stop(self) -> None:
        """Kill the command and its process group."""
        self.guest.run(f"kill -KILL -$(cat {self.path}.pid)")


def new_guest(flavor: str, **needs: Any) -> Guest:
    """Return a guest, not yet booted, with the kernel for a flavor.

    The environment may change the kernel. MMPOLICY_SERIES names the series, unless `needs` does.
    If KSRC is set, the user's own kernel replaces the flavor "patched". MMPOLICY_KERNEL names a
    flavor that replaces all others.
    """
    if flavor == "patched" and os.environ.get("KSRC"):
        flavor = "ksrc"
    flavor = os.environ.get(ONE_KERNEL) or flavor
    return Guest(flavor=flavor, **{"series": SERIES, **needs})


def parse_options(argv: list[str]) -> argparse.Namespace:
    """Parse the options of `./dev vm` and `./dev shell`."""
    parser = argparse.ArgumentParser(prog="./dev vm", description="Run a command in a guest.")
    parser.add_argument("--series", default="6.12", help="kernel series (default: %(default)s)")
    parser.add_argument("--flavor", default="patched", help="kernel (default: %(default)s)")
    parser.add_argument("--kernel", type=Path, metavar="IMAGE", help="boot this image")
    parser.add_argument("--mem", default="1G", help="memory (default: %(default)s)")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=1, help="NUMA nodes (default: %(default)s)")
    parser.add_argument("--swap", metavar="SIZE", help="zram swap of that size")
    parser.add_argument("--icount", action="store_true", help="guest time counts instructions")
    parser.add_argument("--append", default="", metavar="S", help="add to the kernel command line")
    for accel in ("kvm", "tcg"):
        parser.add_argument(f"--{accel}", dest="accel", action="store_const", const=accel)
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="end the command after S seconds"
    )
    parser.add_argument("--shell", action="store_true", help="run an interactive shell")
    parser.add_argument("command", nargs="*", metavar="CMD", help="the command (after --)")
    options = parser.parse_args(argv)
    if bool(options.command) == options.shell:
        parser.error("give a command to run after --, or --shell")
    return options


def on_signal(number: int, _frame: FrameType | None) -> None:
    """Raise SystemExit, so that the guest is ended, too."""
    sys.exit(128 + number)


def print_bytes(data: bytes) -> None:
    """Write bytes to standard output, and flush it."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def main(argv: list[str]) -> int:
    """Run one command, or a shell, in a fresh guest; return its exit status, or 99 on errors."""
    options = vars(parse_options(argv))
    command, shell, timeout = (options.pop(name) for name in ("command", "shell", "timeout"))
    options["accel"] = options["accel"] or "auto"
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        with Guest(**options) as guest:
            if shell:
                return guest.shell()
            result = guest.run(shlex.join(command), timeout, sink=print_bytes)
            print_bytes(result.data)
            return result.rc
    except VmError as error:
        print(f"vm: {error}", file=sys.stderr)
        return 99


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
