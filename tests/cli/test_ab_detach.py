# SPDX-License-Identifier: GPL-2.0
"""Detached runs: --detach, and the verbs that watch a run."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mmpolicy.ab.samples import load
from mmpolicy.control.experiment import FOLDER, LIVE, LOCK, RUN
from mmpolicy.verbs.ab_jobs import own_command

from .ab_world import FIXED, SHORT, SPLIT, SWITCHBACK, World
from .fakes import CONTROL, THP, FakeTree, Run

SIZE = f"{THP}/hugepages-64kB/enabled"
ODD = "n=cmd:echo $((5 % 3)) '$x'; echo 5 / cmd:echo 1"


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    return World(tree)


def own_words(unit: list[str]) -> list[str]:
    """Return the words of the run itself, as passed on by systemd."""
    words = [word.replace("$$", "$") for word in unit[unit.index("--") + 1 :]]
    return words[words.index("ab") :]


@pytest.mark.parametrize("words", [[*SWITCHBACK, "--detect", "5"], [*SPLIT, "--stop", "anytime"]])
def test_a_unit_gets_the_same_run(
    run: Run, tree: FakeTree, units: list[list[str]], words: list[str], out: Path
) -> None:
    """The unit has the words of the user, and a file of its own."""
    before = list(tree.writes)
    options = [*words, *FIXED, "--guard", "psi.memory.full.avg10 < 5", "--label", "a=b"]
    result = run("ab", "run", *options, "--detach", "--json")
    assert result.code == 0, result.err
    assert tree.writes == before
    (unit,) = units
    assert unit[:3] == ["--unit", "mmpolicy-ab", "--collect"]
    given = own_words(unit)
    file = Path(given[-1])
    assert file == Path(result.json["file"])
    assert file.parent == tree.real(FOLDER)
    assert run(*given).code == 0
    assert run("ab", "run", *options, "--out", str(out)).code == 0
    left_out = ("started", "runs_this_week")
    kept, direct = ({name: value for name, value in load(path).header.items()
                     if name not in left_out} for path in (file, out))  # fmt: skip
    assert kept == direct
    (entry,) = run("ab", "list", "--json").json["runs"]
    assert (entry["file"], entry["status"]) == (str(file), "done")
    assert entry["blocks"] == len(load(file).blocks)


def test_a_unit_runs_this_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A unit runs this command from any folder, and as a Python module if it was started as one."""
    monkeypatch.chdir(tmp_path)
    as_module = [sys.executable, "-m", "mmpolicy"]
    for program, words in (
        ("./mmpolicy", [f"{tmp_path}/mmpolicy"]),
        ("/x/__main__.py", as_module),
    ):
        monkeypatch.setattr(sys, "argv", [program, "ab", "run"])
        assert own_command() == words


def test_words_of_a_shell_stay_as_they_are(run: Run, units: list[list[str]]) -> None:
    words = ["--design", "switchback", "--metric", ODD, *SHORT, *FIXED, "--detach"]
    assert run("ab", "run", *words).code == 0
    assert ODD in own_words(units[0])
    assert "$" not in "".join(word.replace("$$", "") for word in units[0])


def test_systemd_hears_when_it_is_at_work(
    ab: Run, run: Run, clock: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run notifies systemd once, before the first block, and not at all if it is refused."""
    heard: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as wire:
        wire.bind(str(tmp_path / "notify"))

        def listen() -> None:
            with suppress(BlockingIOError):
                assert wire.recv(99) == b"READY=1"
                heard.append(run("ab", "status", "--json").json)

        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert ab(*SWITCHBACK, *FIXED, "--guard", "vmstat.nr_mapped < 1").code != 0
        listen()
        assert heard == []
        clock.at = [(float(when), listen) for when in range(1, 20)]
        assert ab(*SWITCHBACK, *FIXED).code == 0
    assert [(each["running"], each["block"]) for each in heard] == [(True, 1)]


def test_nothing_is_begun_beside_another(run: Run, tree: FakeTree, units: list[list[str]]) -> None:
    with tree.locked(LOCK, "ab run, pid 99999999"):
        assert run("ab", "run", *SWITCHBACK, *FIXED, "--detach").code == 9
    assert run("ab", "run", *SWITCHBACK, *FIXED, "--detach", "--block", "0").code == 2
    assert units == []


def test_status_and_gauges_in_each_phase(
    ab: Run, run: Run, tree: FakeTree, clock: World, out: Path
) -> None:
    """Status and metrics show the kernel's current state in each phase; before and after, that no
    run is active.
    """
    seen: list[dict[str, Any]] = []

    def look() -> None:
        status = run("ab", "status", "--json").json
        shares = {"0": "control", "100": "treatment"}
        kernel = shares[tree.read(f"{CONTROL}/experiment/percent")]
        text = run("export").out
        assert f'mmpolicy_experiment_phase{{phase="{status["phase"]}"}} 1.0' in text
        assert f'mmpolicy_experiment_arm{{arm="{status["arm"]}"}} 1.0' in text
        assert f"mmpolicy_experiment_block {status['block']}.0" in text
        assert f"mmpolicy_experiment_measured {float(status['measured'])}" in text
        assert 'mmpolicy_experiment_guard{guard="vmstat.nr_mapped < 9"} 7.0' in text
        seen.append({**status, "kernel": kernel})

    for when in range(1, 64):
        clock.at.append((float(when), look))
    assert run("ab", "status").out == "no experiment runs\n"
    assert ab(*SWITCHBACK, *FIXED, "--guard", "vmstat.nr_mapped < 9").code == 0
    assert len(seen) == 63
    assert {each["phase"] for each in seen} == {"aa", "ab"}
    blocks = load(out).blocks
    for each in seen:
        block = blocks[each["block"] - 1]
        assert (each["phase"], each["blocks"]) == (block["phase"], len(blocks))
        assert each["kernel"] == block["arm"]
        assert each["arm"] == ("control" if each["phase"] == "aa" else block["arm"])
        assert each["file"] == str(out)
    assert {each["measured"] for each in seen} == {True, False}
    assert run("ab", "status", "--json").json["running"] is False
    assert "mmpolicy_experiment_phase" not in run("export").out
    assert not tree.exists(LIVE)


def test_a_run_of_which_nothing_is_known_yet(run: Run, tree: FakeTree) -> None:
    with tree.locked(LOCK, f"{RUN}7"):
        assert run("ab", "status").out == "an experiment is starting or ending: ab run, pid 7\n"
        assert run("ab", "status", "--json").json["running"] is True


def test_files_that_are_listed(run: Run, tree: FakeTree) -> None:
    """`ab list` leaves other files out; a run without an end counts as killed."""
    assert run("ab", "list").out == (
        f"there is no file of an experiment in this folder or in {tree.real(FOLDER)}\n"
    )
    arms = {"control": {"given": "stock"}, "treatment": {"given": "x"}}
    header = json.dumps({"kind": "header", "started": "now", **arms})
    block, end = '{"kind": "block"}', '{"kind": "end", "status": "done"}'
    tree.put(f"{FOLDER}/b.jsonl", "\n".join([header, block, block, end]))
    tree.put(f"{FOLDER}/a.jsonl", "\n".join([header, block, '{"kind": "sample"}']))
    tree.put(f"{FOLDER}/c.txt", header)
    tree.put(f"{FOLDER}/d.jsonl", "{")
    found = run("ab", "list", "--json").json["runs"]
    assert [(each["status"], each["blocks"], each["started"]) for each in found] == [
        ("killed", 1, "now"), ("done", 2, "now"),
    ]  # fmt: skip
    first = run("ab", "list").out.splitlines()[1].split()
    assert first[1:] == ["now", "killed", "1", "stock", ":", "x"]


def test_stop(
    run: Run, tree: FakeTree, tmp_path: Path, wait_until: Callable[..., None]
) -> None:  # fmt: skip
    """`ab stop` waits until the state is restored; without a run, it says so."""
    tree.make_unloaded()
    tree.put("/proc/vmstat", "pgfault 0")
    result = run("ab", "stop")
    assert (result.code, "no experiment runs" in result.err) == (1, True)
    out = tree.real(FOLDER) / "ab-1.jsonl"
    out.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "mmpolicy", "--root", str(tree.root), "ab", "run"]
    command += ["--design", "switchback", "--metric", "vmstat.pgfault/s", "--aa-pairs", "0"]
    command += ["--pairs", "99", "--treatment", "hugepages-64kB/enabled=always"]
    process = subprocess.Popen(
        [*command, "--out", str(out)], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: run("ab", "status", "--json").json.get("block"))
    (entry,) = run("ab", "list", "--json").json["runs"]
    assert entry["status"] == "running"
    result = run("ab", "stop")
    assert (result.code, f"mmpolicy ab report {out}" in result.out) == (0, True), result.err
    assert tree.read(SIZE) == "never"
    assert process.wait() == 128 + signal.SIGTERM
    assert json.loads(out.read_text().splitlines()[-1])["status"] == "interrupted"
    assert run("ab", "list", "--json").json["runs"][0]["status"] == "interrupted"
