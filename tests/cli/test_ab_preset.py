# SPDX-License-Identifier: GPL-2.0
"""Presets: files that each define a whole experiment for a service."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmpolicy.ab.presets import names, read
from mmpolicy.ab.samples import load

from .ab_world import World
from .fakes import CONTROL, FakeTree, Run, read_named

REDIS = "/system.slice/redis.service"
SHORT = shlex.split(
    "--block 4 --washout 1 --interval 1 --pairs 6 --aa-pairs 0 --stop planned --seed 1"
)


class Service(World):
    """A host with redis, whose counters all rise; the treatment makes 10 % fewer faults."""

    def put(self) -> None:
        super().put()
        folder, number = f"/sys/fs/cgroup{REDIS}", int(self.faults)
        self.tree.put(f"{folder}/cgroup.procs", "17")
        self.tree.put(f"{folder}/memory.stat", f"pgfault {number}\nanon_thp 4096")
        self.tree.put(f"{folder}/memory.current", "1000000")
        self.tree.put(f"{folder}/cpu.stat", f"usage_usec {1000000 * self.now:.0f}")
        self.tree.put(f"{folder}/memory.pressure", f"some avg10=0.00 total={number}")


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which the service works."""
    return Service(tree)


@pytest.mark.parametrize("name", names())
def test_each_preset_is_a_run(ab: Run, tree: FakeTree, clock: World, name: str, out: Path) -> None:
    """Each preset is a run: it starts for that service, agrees with its file, and restores the
    state.
    """
    before = read_named(tree)
    result = ab("--preset", name, "--unit", "redis", "--yes", *SHORT)
    assert result.code == 0, result.err
    assert read_named(tree) == before
    header, preset = load(out).header, read(name)
    assert header["metrics"] == [text.replace("{cgroup}", REDIS) for text in preset["metric"]]
    assert (header["guards"], header["block_s"]) == (preset["guard"], 4)
    assert header["treatment"]["given"] == preset["treatment"]
    assert header["unit"] == "process"
    assert [each["role"] for each in header["roles"].values()].count("primary") == 1
    assert all(each["better"] for each in header["roles"].values())
    assert preset["about"] in result.err
    for metric in header["metrics"]:
        assert metric in result.err


def test_a_preset_of_knobs_for_a_cgroup(ab: Run, tree: FakeTree, clock: World, out: Path) -> None:
    """Its knobs affect the whole host, so `--cgroup` only selects the figures to compare."""
    words = ["--preset", "thp-sizes", "--cgroup", REDIS, "--yes", *SHORT]
    result = ab(*words)
    assert result.code == 0, result.err
    header = load(out).header
    assert (header["cgroup_path"], REDIS in header["metrics"][0]) == ("/", True)


def test_the_plan_is_shown_and_nobody_is_asked_twice(ab: Run, tree: FakeTree, clock: World) -> None:
    """Without a terminal, only --yes starts a preset, after the plan is shown."""
    writes = list(tree.writes)
    words = ["--preset", "adaptive", "--unit", "redis.service"]
    result = ab(*words)
    assert (result.code, "give --yes, or --dry-run" in result.err) == (2, True)
    assert "at most 120 blocks of 120 s, 240:00 in all" in result.err
    assert "metric memory (guard: may get at most 5 % worse)" in result.err
    result = ab(*words, "--dry-run")
    assert result.code == 0, result.err
    assert f"{CONTROL}/experiment/enabled" in result.out
    assert tree.writes == writes


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_it_asks(
    ab: Run, tree: FakeTree, clock: World, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:

    def confirm(_text: str, err: bool) -> bool:
        return answer == "y"

    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("mmpolicy.verbs.options.sys", terminal)
    monkeypatch.setattr("click.confirm", confirm)
    writes = list(tree.writes)
    result = ab("--preset", "adaptive", "--unit", "redis", *SHORT)
    began = answer == "y"
    assert (result.code, tree.writes != writes) == (0 if began else 1, began)
    assert began or "the answer was no, so nothing was begun or changed" in result.err


def test_what_is_typed_takes_its_place(ab: Run, clock: World, out: Path) -> None:
    words = ["--preset", "defrag", "--unit", "redis", "--yes", *SHORT]
    typed = ["--metric", "vmstat.pgfault/s lower", "--treatment", "defrag=defer+madvise"]
    assert ab(*words, *typed).code == 0
    header = load(out).header
    assert header["metrics"] == [typed[1]]
    assert header["treatment"]["given"] == typed[3]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--preset", "adaptive"], "is for a service: give --unit"),
        (["--preset", "adaptive", "--unit", "nobody"], "no cgroup 'nobody'"),
        (
            ["--preset", "no"],
            "'no' is not one of 'adaptive', 'defrag', 'madv-free', 'thp-gfp', 'thp-sizes'",
        ),
        (["--unit", "redis", "--metric", "vmstat.pgfault/s"], "--unit redis is for --preset"),
        ([], "Missing option '--metric'"),
    ],
)
def test_what_is_refused(ab: Run, words: list[str], text: str) -> None:
    result = ab(*words)
    assert (result.code, text in result.err) == (2, True), result.err
