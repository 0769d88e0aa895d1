# SPDX-License-Identifier: GPL-2.0
"""Exact output of a host: words of errors, flags of calls, and figures at their bounds."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import syslog
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmpolicy.errors import Exit
from mmpolicy.host import bpf, disk, doctor, evidence, huge, machine
from mmpolicy.host.bpf import PINS, WRITING, Done, why
from mmpolicy.host.calibration import FILE, Calibration, FaultCost, keep_calibration
from mmpolicy.host.files import Tree
from mmpolicy.host.kmod import APPLY_BLACKLIST, FAIL_ON_LOADED, Kmod
from mmpolicy.host.knobs import checked, choices, no_knob, read_knobs
from mmpolicy.host.processes import start_of

from .fakes import RELEASE, THP, VM, FakeLib, FakeTree
from .test_host import raised

# The helper that loads policies

LOG = """libbpf: prog 'x': BPF program load failed
libbpf: prog 'x': -- BEGIN PROG LOAD LOG --
0: R1=ctx()
first of it
; a line of C
R1 invalid mem access
processed 5 insns

func#0 @0
-- END PROG LOAD LOG --
libbpf: failed to load object
"""

# Linux 7.3
LONG_LOG = LOG.replace(
    "processed",
    """
Verification failed: Register Type Safety: Invalid dereference

Suggestion:
  reload and revalidate the pointer

processed""",
)


@pytest.mark.parametrize(
    ("status", "err", "said", "code", "hint", "number"),
    [
        (-9, "", "f is refused: the verifier was not done after 2.5 s", Exit.REFUSED,
         "--timeout gives it more time; fewer branches and loops take less", 0),
        (1, "refused register 22", f"f is refused: {bpf.REGISTER[errno.EINVAL]}", Exit.REFUSED,
         WRITING, 22),
        (1, "x\nrefused register 17", f"f is refused: {bpf.REGISTER[errno.EEXIST]}", Exit.REFUSED,
         (
             "mmpolicy policy replace FILE replaces the loaded one; or give the new policy "
             "another name"
         ), 17),
        (1, "refused register 4", (
            "f is refused: the module returned EINTR"
        ), Exit.REFUSED, WRITING, 4),
        (1, "refused register 999", "f is refused: the module returned 999", Exit.REFUSED, WRITING,
         999),
        (1, "refused load 1", (
            "cannot load f: no permission to load BPF programs"
        ), Exit.DENIED, "run the command as root", 1),
        (3, "refused load 13", "f is refused: mmpolicy-bpf ended with status 3", Exit.REFUSED,
         WRITING, 13),
        (1, "refused close 1", "f is refused: mmpolicy-bpf ended with status 1", Exit.REFUSED,
         WRITING, 1),
        (1, f"{LOG}refused load 13", "f is refused: R1 invalid mem access", Exit.REFUSED,
         "--log prints all that the verifier says", 13),
        (1, f"{LONG_LOG}refused load 13", "f is refused: R1 invalid mem access", Exit.REFUSED,
         "--log prints all that the verifier says", 13),
        (1, "libbpf: one\nlibbpf: two\nother", "f is refused: one", Exit.REFUSED, WRITING, 0),
        (1, "refused folder 13", (
            f"cannot pin the policy of f in {PINS}: EACCES"
        ), Exit.LACKING, bpf.BPFFS, 13),
        (1, "refused pin 2", (
            f"cannot pin the policy of f in {PINS}: ENOENT"
        ), Exit.LACKING, bpf.BPFFS, 2),
        (1, "refused find 2", (
            f"f is refused: no policy with the name of this one is pinned in {PINS}, so there "
            "is none to replace"
        ),
         Exit.USAGE, (
             "mmpolicy policy list shows the loaded policies; mmpolicy policy load loads a new "
             "one"
         ), 2),
        (1, "refused open 0", "f is refused: the file is not a BPF object file",
         Exit.REFUSED, WRITING, 0),
        (1, "libbpf: x\nrefused name 5", (
            "f is refused: the policy in the object file has no valid name"
        ),
         Exit.REFUSED, WRITING, 5),
        (7, "", "f is refused: mmpolicy-bpf ended with status 7", Exit.REFUSED, WRITING, 0),
    ],
)  # fmt: skip
def test_why_a_policy_is_refused(
    status: int, err: str, said: str, code: Exit, hint: str, number: int
) -> None:
    found = why(Done(status, "", err), "f", 2.5)
    assert (found.message, found.exit_code, found.next_step, found.errno) == (
        said, code, hint, number,
    )  # fmt: skip


def test_how_the_helper_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packaged helper takes precedence; it reads the given input, and its time is limited."""
    for name in ("ours", "others"):
        script = tmp_path / name / bpf.HELPER
        script.parent.mkdir()
        script.write_text(f"#!/bin/sh\ncat\nprintf '{name} %s \\377' $1; echo err >&2; exit 3\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/others:/usr/bin:/bin")
    for place, name in (("ours", "ours"), ("none", "others")):
        monkeypatch.setattr(bpf, "PLACES", str(tmp_path / place))
        assert bpf.run_helper(["a"], b"text ", 60) == Done(3, f"text {name} a \ufffd", "err\n")
    (tmp_path / "others" / bpf.HELPER).write_text("#!/bin/sh\nexec sleep 60\n")
    assert bpf.run_helper([], b"", 0.05) == Done(-9, "", "")
    (tmp_path / "others" / bpf.HELPER).write_bytes(b"\x7fELF")
    told = raised(bpf.run_helper, [], b"", 60)
    assert told.message == f"cannot run {tmp_path}/others/{bpf.HELPER}: Exec format error"
    assert (told.exit_code, told.next_step) == (Exit.LACKING, "mmpolicy doctor")
    monkeypatch.setenv("PATH", "/none")
    assert raised(bpf.run_helper, [], b"", 60).exit_code == Exit.LACKING


# Files


def test_a_lock_is_tried_again_until_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, told = [0.0], list[Any]()

    def pause(seconds: float) -> None:
        told.append(seconds)
        now[0] += seconds

    def refuse(_file: int, flags: int) -> None:
        if flags & fcntl.LOCK_NB:
            raise BlockingIOError
        told.append("locked")

    monkeypatch.setattr(disk, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
    monkeypatch.setattr("mmpolicy.host.disk.fcntl.flock", refuse)
    path = tmp_path / "lock"
    path.write_text("x" * 2000)
    with path.open() as file:
        error = raised(disk.take_lock, file.fileno(), path, 0.04)
        assert error.message == f"{path} is locked by {'x' * 1000}"
        assert told == [0.02, 0.02]
        disk.take_lock(file.fileno(), path, inf)
    assert told == [0.02, 0.02, "locked"]


def test_all_is_written_and_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is written and on the disk, even if a write is partial; a folder is flushed after a file
    was renamed in it.
    """
    synced, write, sync = list[bool](), os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:2]))

    def flush(file: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(file).st_mode))
        sync(file)

    monkeypatch.setattr(os, "fsync", flush)
    files = len(list(Path("/proc/self/fd").iterdir()))
    disk.save_as(tmp_path / "x", b"12345")
    assert (tmp_path / "x").read_bytes() == b"12345"
    assert synced == [False, True]
    assert len(list(Path("/proc/self/fd").iterdir())) == files


def test_a_file_of_somebody_else_stays_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another owner stays theirs: its mode is set again, as a change of the owner clears
    bits.
    """
    told: list[Any] = []
    monkeypatch.setattr(os, "fchown", lambda _file, *owner: told.append(owner))
    monkeypatch.setattr(os, "fchmod", lambda _file, mode: told.append(mode))
    me = (os.geteuid(), os.getegid())
    for owner, expected in ((me, []), ((me[0] + 1, me[1]), [(me[0] + 1, me[1]), 0o4755])):
        disk.replace_file(tmp_path / "x", tmp_path / "new", b"", 0o4755, owner)
        assert told == expected


def test_a_line_that_cannot_be_added_is_not_begun(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Tree(str(tree.root))
    plain.append("/l", lambda _text: "one")

    def fill(file: int, data: bytes) -> None:
        os.write(file, data[:2])
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("mmpolicy.host.files.write_all", fill)
    assert "ENOSPC" in raised(plain.append, "/l", lambda _text: "two").message
    assert plain.read_bytes("/l") == b"one\n"

    def stop(_file: int, _path: Path, wait: float) -> None:
        raise KeyError(wait)

    monkeypatch.setattr("mmpolicy.host.files.take_lock", stop)
    with pytest.raises(KeyError, match="10"):
        plain.append("/l", lambda _text: "two")


def test_what_runs_last_is_killed_last(tree: FakeTree) -> None:
    tree.put("/proc/self/oom_score_adj", "0")
    plain = Tree(str(tree.root))
    plain.survive()
    assert plain.read("/proc/self/oom_score_adj") == "-1000"
    tree.remove("/proc/self/oom_score_adj")
    tree.put("/proc/self/oom_score_adj/x", "")
    plain.survive()


def test_modules_are_loaded_as_modprobe_does_it(lib: FakeLib, tree: FakeTree) -> None:
    """Modules are loaded as modprobe does it: a blacklist is obeyed, and a loaded module is an
    error; libkmod itself is silent.
    """
    told: list[tuple[int, int]] = []
    lib.kmod_set_log_priority = lambda *words: told.append(words)  # type: ignore[method-assign]
    tree.make_unloaded()
    Kmod(lib=lib).insert("mmpolicy", "bulk=fixed")
    assert (
        lib.inserted
        == [(0x20020, b"bulk=fixed")]
        == [(APPLY_BLACKLIST | FAIL_ON_LOADED, b"bulk=fixed")]
    )
    assert told == [(1, 0)]


# Figures


def test_figures_of_a_cgroup(tree: FakeTree) -> None:
    tree.make_cgroup("/a")
    base = "/sys/fs/cgroup/a"
    assert evidence.cgroup_figures(tree, "/a") == {}
    tree.put(f"{base}/memory.current", "5000000")
    tree.put(f"{base}/memory.pressure", "some avg10=1.50 total=7\nfull avg10=0.25 total=3")
    tree.put(f"{base}/memory.stat", "anon 3072\nanon_thp 1024\nfile 4096")
    expected = {
        "memory_kib": 4882, "anon_kib": 3, "anon_thp_kib": 1, "shmem_kib": 0, "shmem_thp_kib": 0,
        "file_kib": 4, "file_thp_kib": 0, "huge_percent": 33.3, "some_avg10": 1.5,
        "full_avg10": 0.25,
    }  # fmt: skip
    assert evidence.cgroup_figures(tree, "/a") == expected
    tree.put(f"{base}/memory.stat", "file 4096")
    del expected["huge_percent"]
    expected |= {"anon_kib": 0, "anon_thp_kib": 0}
    assert evidence.cgroup_figures(tree, "/a/") == expected
    tree.make_cgroup("/a/b")
    assert list(evidence.cgroups(tree, "/a")) == ["/a"]


def test_figures_of_folders(tree: FakeTree) -> None:
    tree.remove(THP)
    assert (evidence.sizes(tree), evidence.others(tree), evidence.folios_made(tree)) == (
        {}, {}, {},
    )  # fmt: skip
    tree.put(f"{THP}/a", "x [y] z")
    tree.put(f"{THP}/b/c", "1")
    tree.put(f"{THP}/empty", "")
    assert evidence.figures_in(tree, THP) == {"a": "y"}
    assert evidence.figures_in(tree, f"{THP}/none") == {}
    assert evidence.pressure(tree) == {}
    tree.put("/proc/pressure/io", "some avg10=1 total=2")
    assert evidence.pressure(tree) == {"io some": {"avg10": "1", "total": "2"}}


def test_a_machine_without_memory_has_none_in_huge_pages(tree: FakeTree) -> None:
    tree.put("/proc/7/statm", "9 1024 0")
    tree.put("/proc/7/comm", "qemu")
    assert huge.machines(tree, lambda _tree, _pid: (0, 0)).found == [(7, "qemu", 0, 0, 0.0)]
    unknown = huge.machines(tree, lambda _tree, _pid: (8, None)).found
    assert unknown == [(7, "qemu", 8, None, None)]


def test_the_error_of_a_cost_is_the_larger_side() -> None:
    """The error of a cost is the larger side; a fault of one page has the order 0."""
    for low, high, error in ((900, 1050, 100), (950, 1100, 100)):
        costs = Calibration([FaultCost(4096, 1000, low, high)])
        assert costs.percent(1e7) == (1000, error)
        assert costs.ns() == costs.ns(0) == 1000


def test_which_cost_is_kept(tree: FakeTree) -> None:
    """The stored cost is readable for others, with one line for each figure."""
    keep_calibration(tree, "6.12", [FaultCost(4096, 1.5, 1, 2)])
    assert json.loads(tree.read(FILE)) == {
        "version": 1, "kernel": "6.12",
        "faults": [{"size": 4096, "ns": 1.5, "low": 1, "high": 2}], "together": [],
    }  # fmt: skip
    assert tree.read(FILE).splitlines()[1] == ' "version": 1,'


# Checks, knobs, processes and the log


@pytest.mark.parametrize(
    ("symbols", "config", "said"),
    [
        ("x", "CONFIG_MM=y", "is not in /proc/kallsyms, no CONFIG_MM_POLICY=y"),
        ("x", "CONFIG_MM_POLICY=y", "is not in /proc/kallsyms, CONFIG_MM_POLICY=y"),
        (
            "",
            "CONFIG_MM=y",
            ("may be missing, as /proc/kallsyms is not readable, no CONFIG_MM_POLICY=y"),
        ),
        (
            "",
            "",
            (
                "may be missing, as /proc/kallsyms is not readable, the kernel config is not "
                "readable"
            ),
        ),
    ],
)
def test_a_kernel_without_hooks(tree: FakeTree, symbols: str, config: str, said: str) -> None:
    tree.make_unloaded()
    tree.put("/proc/kallsyms", symbols.encode())
    tree.put(f"/boot/config-{RELEASE}", config.encode())
    found = doctor.check_hooks(doctor.Facts(machine.Host(tree)))
    assert (found.status, found.detail) == ("fail", f"mm_policy_register {said}")
    assert found.next_step == doctor.ANOTHER_KERNEL


def test_what_is_said_of_knobs(tree: FakeTree) -> None:
    found = [f"{THP}/enabled", f"{VM}/min_free_kbytes"]
    close = no_knob(found, "enable")
    assert (close.next_step, close.exit_code) == ("did you mean enabled?", Exit.USAGE)
    assert no_knob(found, "qqq").next_step == "mmpolicy thp --all lists the knobs"
    assert choices(tree, f"{VM}/lowmem_reserve_ratio") == ["256\t256\t32"]
    assert checked(found) == found
    with pytest.raises(
        ValueError, match="'/sys/kernel/mm/transparent_hugepages' is not a knob of the kernel"
    ):
        checked([*found, f"{THP}s"])
    tree.remove(THP)
    assert f"{VM}/min_free_kbytes" in read_knobs(tree)


def test_the_beginning_of_a_process_is_the_last_of_twenty_fields(tree: FakeTree) -> None:
    for fields, start in ((19, None), (20, 7)):
        tree.put("/proc/7/stat", f"7 (x) {'S ' * (fields - 1)}7")
        assert start_of(tree, 7) == start


def test_the_log_is_that_of_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("syslog.openlog", lambda *words: told.append(words))
    monkeypatch.setattr("syslog.syslog", lambda *words: told.append(words))
    machine.tell_syslog("line")
    assert told == [
        ("mmpolicy", syslog.LOG_PID, syslog.LOG_DAEMON), (syslog.LOG_NOTICE, "line"),
    ]  # fmt: skip


def test_only_the_first_character_makes_a_socket_abstract(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"mmpolicy@{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        wire.bind(f"\0{name}")
        wire.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        machine.tell_ready()
        assert wire.recv(99) == b"READY=1"


def test_a_module_without_information(lib: FakeLib, tree: FakeTree) -> None:
    lib.info = []
    assert Kmod(lib=lib).info("mmpolicy") == []
    assert lib.open_lists == 0
    lib.remove_result = -errno.EAGAIN
    told = raised(Kmod(lib=lib).remove, "mmpolicy")
    assert told.message == (
        "cannot unload module mmpolicy: EAGAIN (Resource temporarily unavailable)"
    )
    assert told.next_step == (
        "end the processes that use the module, until refcnt in /sys/module is 0"
    )


def test_who_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, is_root in ((0, True), (1, False)):
        monkeypatch.setattr(os, "geteuid", lambda number=number: number)
        assert Tree().is_root() == is_root


def test_a_lock_is_no_link(tree: FakeTree) -> None:
    plain = Tree(str(tree.root))
    with plain.locked("/run/l", "me"):
        tree.real("/run/link").symlink_to("l")
        assert (plain.holder("/run/l"), plain.holder("/run/link")) == ("me", "")
