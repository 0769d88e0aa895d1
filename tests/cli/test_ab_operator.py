# SPDX-License-Identifier: GPL-2.0
"""Words and situations of an operator: names with colons, counters as levels, dry runs, folders."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import click
import pytest

from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.samples import Recording, load
from mmpolicy.ab.sources import CgroupFile
from mmpolicy.control.experiment import FOLDER

from .ab_world import FIXED, PGFAULT, SHORT, SWITCHBACK, World
from .fakes import CONTROL, FakeTree, Run, read_named

BACK = ["--design", "switchback", *SHORT]
# As containerd names them under systemd's driver, and other names with colons.
POD = "/kubepods.slice/kubepods-pod1.slice:cri-containerd:4f0c"
COLONS = [POD, "/a:b", "/a:b/c:d", "/a:", "/:", "/lxc.payload.x / y:z"]


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    return World(tree)


# Names with colons


@pytest.mark.parametrize("path", ["", *COLONS, "/a"])
@pytest.mark.parametrize("key", ["", "anon", "8:0.rbytes"])
@pytest.mark.parametrize("rate", ["", "/s"])
def test_the_last_slash_ends_the_path(path: str, key: str, rate: str) -> None:
    text = f"cgroup:{path}/memory.stat{':' * bool(key)}{key}{rate}"
    for given in (text, f"m={text} lower", f"max({text})", f"{text} higher guard 5%"):
        top = Metric.parse(given).top
        assert isinstance(top, CgroupFile)
        assert (top.file, top.key, top.rate) == (f"{path}/memory.stat", key, bool(rate))
    for below in (text, "vmstat.pgfault"):
        metric = Metric.parse(f"{text} / {below}")
        assert metric.bottom and metric.bottom.text == below.removesuffix("/s")
        assert isinstance(metric.top, CgroupFile) and metric.top.file == f"{path}/memory.stat"


@pytest.mark.parametrize(
    "text", ["cgroup:a:b/memory.stat", "cgroup:/a:b/", "cgroup:", "cgroup:/:x"]
)
def test_what_names_no_file_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="not a source for a metric"):
        Metric.parse(text)


@pytest.mark.parametrize("path", COLONS)
def test_a_cgroup_with_a_colon_is_measured_and_guarded(
    ab: Run, out: Path, tree: FakeTree, clock: World, path: str
) -> None:
    tree.make_cgroup(path)
    tree.put(f"/sys/fs/cgroup{path}/memory.stat", "anon 7\npgfault 0")
    metric, guard = f"cgroup:{path}/memory.stat:anon", f"cgroup:{path}/memory.stat:anon < 8"
    result = ab(*BACK, *FIXED, "--metric", metric, "--guard", guard)
    assert result.code == 0, result.err
    recording = load(out)
    (parsed,) = recording.metrics()
    assert recording.pairs(parsed, "ab") == [(7, 7)] * 6


def test_a_cgroup_with_a_colon_that_is_not_there_has_a_close_one(
    ab: Run, tree: FakeTree, clock: World
) -> None:
    tree.make_cgroup(POD)
    result = ab(*BACK, "--metric", f"cgroup:{POD}d/memory.current")
    assert (result.code, f"did you mean {POD}?" in result.err) == (2, True)


@pytest.mark.parametrize("path", [POD, "/a:b"])
def test_a_cgroup_with_a_colon_wherever_one_is_named(
    ab: Run, run: Run, out: Path, tree: FakeTree, clock: World, tmp_path: Path, path: str
) -> None:
    tree.make_cgroup(path)
    number = tree.inode("/sys/fs/cgroup", path.strip("/"))
    assert ab(*SWITCHBACK, *FIXED, "--cgroup", path).code == 0
    assert load(out).header["cgroup_path"] == path
    tree.make_profile("web")
    for given in (path, path.rpartition("/")[2], f"/sys/fs/cgroup{path}"):
        assert run("bind", "--cgroup", given, "web").code == 0
        assert read_named(tree)[f"cgroups/{number}"] == "web"
        assert run("unbind", "--cgroup", given).code == 0
    file = tmp_path / "a.toml"
    file.write_text(f'version = 1\n[profiles.web]\n[bindings]\n"{path}" = "web"\n')
    assert run("apply", str(file)).code == 0
    assert read_named(tree)[f"cgroups/{number}"] == "web"
    assert f'"{path}" = "web"' in run("save").out
    assert run("verify", str(file)).code == 0


# A counter that is given as a level


def recording_of(text: str, blocks: list[list[float]]) -> tuple[Recording, Metric]:
    """Return a run whose blocks had these samples."""
    found, metric = Recording({"metrics": [text]}), Metric.parse(text)
    for number, values in enumerate(blocks):
        for second, value in enumerate(values):
            host = {metric.top.text: value}
            sample = {"kind": "sample", "block": number, "host": host, "arms": {}}
            found.add(sample | {"t": float(10 * number + second)})
    return found, metric


RISING = [[1.0, 2.0], [3.0, 4.0], [4.0, 6.0], [6.0, 7.0]]


@pytest.mark.parametrize(
    ("text", "blocks", "found"),
    [
        ("m=cmd:requests", RISING, True),
        ("m=cgroup:/a:b/some.file", RISING, True),
        ("vmstat.nr_vmscan_write", RISING, True),
        ("m=cmd:requests/s", RISING, False),
        ("vmstat.pgfault", RISING, False),  # its rise is used
        ("m=cmd:rss", RISING[:3], False),  # too few to decide
        ("m=cmd:rss", [*RISING, [6.9, 8.0]], False),  # it has fallen once
        ("m=cmd:rss", [[1.0, 1.0]] * 8, False),  # it stands still
        ("m=cmd:rss", [[1.0, 2.0], *[[2.0, 2.0]] * 4], False),  # it has settled
    ],
)
def test_a_level_that_never_falls(text: str, blocks: list[list[float]], found: bool) -> None:
    recording, metric = recording_of(text, blocks)
    assert recording.climbing(metric) == (metric.top.text if found else "")


def test_a_counter_as_a_level_is_told_early_and_doubted(
    ab: Run, run: Run, out: Path, tree: FakeTree, clock: World
) -> None:
    """A counter given as a level is reported while the run can still be ended, and the report
    concludes nothing from it.
    """
    counter = tree.real("/requests")
    counter.write_text("0")
    command = f"n=$(($(cat {counter}) + 1)); echo $n >{counter}; echo $n"
    result = ab(*BACK, *FIXED, "--metric", f"requests=cmd:{command} lower")
    assert result.code == 0, result.err
    assert result.err.count("requests has never decreased: if it is a counter, stop") == 1
    assert "block 16 of 16" in result.err.partition("has never decreased")[2]
    report = run("ab", "report", str(out))
    assert report.code == 7
    assert "doubt: requests never decreases: if it is a counter, give its rate: cmd:" in report.out
    out.unlink()
    rate = ab(*BACK, *FIXED, "--metric", f"requests=cmd:{command}/s lower")
    assert "has never decreased" not in rate.err
    assert "never decreases" not in run("ab", "report", str(out)).out


# Its end, its plan, and the folder of its files


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_is_in_the_exit_code(
    ab: Run, out: Path, tree: FakeTree, clock: World, number: int, code: int
) -> None:
    before = read_named(tree)
    clock.at = [(21.0, lambda: os.kill(os.getpid(), number))]
    result = ab(*SWITCHBACK, *FIXED)
    assert (result.code, read_named(tree)) == (code, before)
    assert f"mmpolicy ab report {out}" in result.err
    out.unlink()
    assert ab(*SWITCHBACK, *FIXED, "--guard", "vmstat.nr_mapped < 8").code == 0  # no leftover


def test_a_dry_run_of_a_profile_prints_what_changes(run: Run, tree: FakeTree) -> None:
    """A new profile has the other values already; the run itself makes those writes."""
    assert run("profile", "create", "web").code == 0
    assert run("set", "anon_order", "fixed", "max_order=3", "--profile", "web").code == 0
    tree.writes.clear()
    words = ["ab", "run", *SWITCHBACK, "--treatment", "web", "--dry-run"]
    lines = [line for line in run(*words).out.splitlines() if "/profiles/ab-treatment/" in line]
    place = f"{CONTROL}/profiles/ab-treatment/anon_order"
    assert lines == [
        f"{place}/fixed/max_order <- 3  (- -> 3)",
        f"{place}/policy <- fixed  (stock -> fixed)",
    ]
    assert tree.writes == []


def test_runs_of_this_folder_are_listed(
    run: Run, tree: FakeTree, clock: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ab list` shows runs of this folder and runs under systemd, but no files of other
    programs.
    """
    monkeypatch.chdir(tmp_path)
    nothing = f"there is no file of an experiment in this folder or in {tree.real(FOLDER)}\n"
    assert run("ab", "list").out == nothing
    assert run("ab", "run", *SWITCHBACK, *FIXED).code == 0
    assert run("ab", "run", *SWITCHBACK, *PGFAULT[:0], "--out", "mine.jsonl").code == 0
    (tmp_path / "logs.jsonl").write_text('{"level": "info"}\n' * 3)
    (tmp_path / "list.jsonl").write_text("[]\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\x00\n")
    (tmp_path / "folder.jsonl").mkdir()
    found = run("ab", "list", "--json").json["runs"]
    assert [(each["status"], each["blocks"]) for each in found] == [("done", 16)] * 2
    assert {Path(each["file"]).parent for each in found} == {tmp_path}
    arms = {"control": {"given": "stock"}, "treatment": {"given": "x"}}
    tree.put(f"{FOLDER}/a.jsonl", json.dumps({"kind": "header", "started": "now", **arms}))
    assert len(run("ab", "list", "--json").json["runs"]) == 3
    monkeypatch.chdir(tree.real(FOLDER))
    assert len(run("ab", "list", "--json").json["runs"]) == 1
