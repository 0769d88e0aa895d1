# SPDX-License-Identifier: GPL-2.0
"""Runs on knobs as real processes: killed, stopped, hung up, with a full disk or closed pipe."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import children

from mmpolicy.ab.samples import load
from mmpolicy.control.experiment import LOCK, RECOVERY
from mmpolicy.errors import Error
from mmpolicy.host.knobs import read_knobs

from .ab_world import SWITCHBACK
from .fakes import THP, FakeTree, Run

KNOBS = "hugepages-64kB/enabled=always,vm/min_free_kbytes=7"
SIZE = f"{THP}/hugepages-64kB/enabled"


@pytest.fixture
def begin(tree: FakeTree, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts a long run on the files of the host."""
    tree.make_unloaded()
    tree.put("/proc/vmstat", "pgfault 0")

    def begin(*words: str, start: list[str] | None = None) -> subprocess.Popen[str]:
        command = [*(start or [sys.executable]), "-m", "mmpolicy", "--root", str(tree.root)]
        command += ["ab", "run", "--design", "switchback", "--metric", "vmstat.pgfault/s"]
        command += ["--block", "0.2", "--washout", "0.1", "--interval", "0.1", "--aa-pairs", "0"]
        command += ["--pairs", "500", "--treatment", KNOBS, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes)  # type: ignore[call-overload, no-any-return]

    return begin


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def watchdog_of(pid: int) -> int:
    """Return the process that holds the knobs."""
    return children(pid)[0]


def stop_in_treatment(process: subprocess.Popen[str], tree: FakeTree, before: object) -> None:
    """Stop the command while the knobs are changed; its watchdog goes on."""
    while True:
        wait_until(lambda: read_knobs(tree) != before)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if read_knobs(tree) != before:
            return
        process.send_signal(signal.SIGCONT)


def is_free(tree: FakeTree) -> bool:
    """Return whether the lock is free."""
    try:
        with tree.locked(LOCK, "test"):
            return True
    except Error:
        return False


Begin = Callable[..., subprocess.Popen[str]]


def test_sigkill_at_any_moment(begin: Begin, tree: FakeTree, run: Run) -> None:
    """After SIGKILL at any moment, all values are restored within the lease, and the journal
    records it.
    """
    rng, before = random.Random(1), read_knobs(tree)
    for number in range(6):
        process = begin("--lease", "30s", "--out", f"{number}.jsonl")
        wait_until(lambda: tree.exists(RECOVERY))
        if number % 2:
            wait_until(lambda: read_knobs(tree) != before)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
        wait_until(lambda: is_free(tree), 10)
        assert read_knobs(tree) == before
        assert not tree.exists(RECOVERY)
    assert run("log").out.count("was killed; all knobs have their former values") == 6


def test_a_command_that_hangs_loses_its_lease(begin: Begin, tree: FakeTree) -> None:
    before = read_knobs(tree)
    process = begin("--lease", "1s")
    stop_in_treatment(process, tree, before)
    wait_until(lambda: not tree.exists(RECOVERY), 10)
    assert read_knobs(tree) == before
    process.send_signal(signal.SIGCONT)
    assert "the watchdog process of the experiment has ended" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert read_knobs(tree) == before


def test_a_second_run_is_refused_and_names_the_first(begin: Begin, tree: FakeTree) -> None:
    """A second run is refused and names the first, even if only the watchdog of the
    first is left.
    """
    first = begin("--lease", "5m")
    wait_until(lambda: tree.exists(RECOVERY))
    second = begin("--out", "second.jsonl")
    assert f"is locked by ab run, pid {first.pid}, until" in second.communicate(timeout=60)[1]
    watchdog = watchdog_of(first.pid)
    os.kill(watchdog, signal.SIGSTOP)
    first.kill()
    first.communicate()
    third = begin("--out", "third.jsonl")
    assert f"is locked by ab run, pid {first.pid}, until" in third.communicate(timeout=60)[1]
    os.kill(watchdog, signal.SIGCONT)
    wait_until(lambda: is_free(tree), 10)


def test_a_watchdog_that_is_killed(begin: Begin, tree: FakeTree) -> None:
    """If the watchdog is killed, the command restores all knobs, and ends."""
    before = read_knobs(tree)
    process = begin("--lease", "4s")
    wait_until(lambda: read_knobs(tree) != before)
    os.kill(watchdog_of(process.pid), signal.SIGKILL)
    assert "the watchdog process of the experiment has ended" in process.communicate(timeout=60)[1]
    assert read_knobs(tree) == before


def test_both_are_killed(begin: Begin, tree: FakeTree, run: Run) -> None:
    """If both processes are killed, the old values stay in a file, for the next run or `ab
    restore`.
    """
    before = read_knobs(tree)
    for words in (["ab", "restore"], ["ab", "run", "--out", str(tree.real("/x")), "--treatment",
                                      "min_free_kbytes=lots", *SWITCHBACK]):  # fmt: skip
        process = begin("--lease", "5m", "--out", f"{len(words)}.jsonl")
        stop_in_treatment(process, tree, before)  # or it would restore the knobs before the kill
        for pid in (watchdog_of(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()
        wait_until(lambda: is_free(tree))
        assert read_knobs(tree) != before
        tree.make_host()  # texts as the kernel shows them
        tree.put(SIZE, "[always] inherit madvise never")
        assert f"{SIZE} <- never" in run("ab", "restore", "--dry-run").out
        result = run(*words)
        assert (
            "restored the knobs that a killed experiment had left changed"
            in result.out + result.err
        )
        assert read_knobs(tree) == before
        assert not tree.exists(RECOVERY)
    assert run("ab", "restore").out == "no killed experiment has left knobs changed\n"


# Actions of an operator


def ended(process: subprocess.Popen[str]) -> str:
    """Let a run end by SIGTERM; return its output."""
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=60)[1]


def test_what_nohup_ignores_ends_no_run(begin: Begin, tree: FakeTree, tmp_path: Path) -> None:
    before = read_knobs(tree)
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = begin("--out", "samples")
    finally:
        signal.signal(signal.SIGHUP, old)
    wait_until(lambda: read_knobs(tree) != before)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    assert "interrupted: by SIGTERM" in ended(process)
    assert (read_knobs(tree), load(tmp_path / "samples").end["status"]) == (before, "interrupted")


def test_nobody_looks_any_more(begin: Begin, tree: FakeTree, tmp_path: Path) -> None:
    """If the reader of its standard error goes away, the run goes on to its end without output."""
    before = read_knobs(tree)
    process = begin("--out", "samples", "--pairs", "6")
    wait_until(lambda: read_knobs(tree) != before)
    assert process.stderr
    process.stderr.close()
    assert process.wait(60) == 0
    assert (read_knobs(tree), load(tmp_path / "samples").end["status"]) == (before, "done")


def test_a_watchdog_that_is_stopped(begin: Begin, tree: FakeTree, tmp_path: Path) -> None:
    """While the watchdog is stopped, Ctrl-C works; without it, the run ends when the lease ends."""
    before = read_knobs(tree)
    for number, words in enumerate((["--lease", "5m"], ["--lease", "1s"])):
        process = begin("--out", f"{number}", *words)
        wait_until(lambda: read_knobs(tree) != before)
        os.kill(watchdog_of(process.pid), signal.SIGSTOP)
        if not number:
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[1]
        reason = (
            "the watchdog process of the experiment has not answered for 1 s"
            if number
            else "interrupted: by SIGINT"
        )
        assert reason in said
        # The watchdog goes on then, and writes the old values again; meanwhile, a file of the model
        # of sysfs is empty for a moment. It holds the lock until it ends.
        wait_until(lambda: not tree.holder(LOCK))
        assert (read_knobs(tree), tree.exists(RECOVERY)) == (before, False)
        assert load(tmp_path / f"{number}").end["status"] == ("lost" if number else "interrupted")


FULL = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_no_room_for_the_samples(begin: Begin, tree: FakeTree, tmp_path: Path) -> None:
    """Without room for the samples, all knobs are restored, and the file says how the run ended."""
    before = read_knobs(tree)
    process = begin("--out", "samples", start=[sys.executable, "-c", FULL])
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, "cannot write samples: EFBIG" in said) == (1, True)
    assert "Traceback" not in said
    assert (read_knobs(tree), tree.exists(RECOVERY)) == (before, False)
    recording = load(tmp_path / "samples")
    assert recording.end["status"] == "failed" and recording.blocks


def test_a_command_that_prints_what_is_no_text(begin: Begin, tree: FakeTree) -> None:
    process = begin("--metric", r"cmd:printf '\377 7\n'", "--pairs", "7")
    assert process.communicate(timeout=60) and process.returncode == 0


def test_what_waits_for_the_end_of_a_run(begin: Begin, tree: FakeTree, run: Run) -> None:
    """The command of mmpolicy-restore.service restores the knobs if it is the last one that can."""
    before = read_knobs(tree)
    process = begin("--lease", "5m")
    wait_until(lambda: read_knobs(tree) != before)
    wait = [sys.executable, "-m", "mmpolicy", "--root", str(tree.root), "ab", "restore", "--wait"]
    unit = subprocess.Popen(wait, stdout=subprocess.PIPE, text=True)
    assert "mmpolicy_knobs_left 0.0" in run("export").out
    assert f"experiment: ab run, pid {process.pid}, until about 20" in run("thp").out
    with pytest.raises(subprocess.TimeoutExpired):
        unit.wait(1)
    for pid in (watchdog_of(process.pid), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert (
        "restored the knobs that a killed experiment had left changed"
        in unit.communicate(timeout=30)[0]
    )
    assert (read_knobs(tree), tree.exists(RECOVERY)) == (before, False)


def test_until_then_everybody_is_told(begin: Begin, tree: FakeTree, run: Run) -> None:
    before = read_knobs(tree)
    process = begin("--lease", "5m")
    wait_until(lambda: read_knobs(tree) != before)
    for pid in (watchdog_of(process.pid), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: is_free(tree))  # the watchdog may still be ending
    tree.make_host()
    for words in (["status"], ["thp"], ["doctor"]):
        told = run(*words).out
        assert "an experiment was killed, and knobs of the kernel still have its values" in told
        assert "mmpolicy ab restore" in told
    assert "mmpolicy_knobs_left 1.0" in run("export").out
    tree.make_host()
    tree.put(SIZE, "[always] inherit madvise never")
    assert run("ab", "restore").code == 0
    assert read_knobs(tree) == before
    assert "left knobs" not in run("thp").out
