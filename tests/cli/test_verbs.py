# SPDX-License-Identifier: GPL-2.0
"""Input and output of verbs, piece by piece."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from mmpolicy.errors import Error, as_data, explain, pick
from mmpolicy.memory.advice import Advice, advise
from mmpolicy.memory.explain import Explained, Wanted
from mmpolicy.verbs.ab_jobs import _summary, told_of_run
from mmpolicy.verbs.ab_preset import _filled
from mmpolicy.verbs.explain import Address, profile_name
from mmpolicy.verbs.options import Levels, Seconds
from mmpolicy.verbs.status import _knobs, _whom
from mmpolicy.verbs.top_screen import _bar, _folios, _in_faults
from mmpolicy.verbs.trim import Row, _saved

from .fakes import Run

MIB = 1 << 20


# Input


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("90s", 90), ("1.5", 1.5), ("10m", 600), ("2h", 7200), ("0.001", 0.001)],
)
def test_times(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["0", "0.0009", "-1", "1d", "x", "", "1 s", ".5", "1e3"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds().convert(text, None, None)


def test_the_least_time() -> None:
    assert Seconds(least=0).convert("0", None, None) == 0
    assert Seconds(least=1).convert("1", None, None) == 1
    with pytest.raises(click.BadParameter):
        Seconds(least=1).convert("0.9", None, None)


def test_levels() -> None:
    assert Levels().convert("10,90", None, None) == (10, 90)
    assert Levels().convert("0,99", None, None) == (0, 99)
    for text in ("90,10", "10,10", "10,100", "10", "a,b", "10,90,95", "-1,5", ""):
        with pytest.raises(click.BadParameter):
            Levels().convert(text, None, None)


def test_addresses() -> None:
    found = [Address().convert(each, None, None) for each in ("7f35", "0x10", 5)]
    assert found == [0x7F35, 16, 5]
    with pytest.raises(click.BadParameter):
        Address().convert("g", None, None)


@pytest.mark.parametrize("given", ["65536", "host:", "host:x", "::1:x"])
def test_ports(run: Run, given: str) -> None:
    result = run("export", "--listen", given)
    assert (result.code, f"'{given}' is not of the form" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("program", "taken", "name"),
    [
        ("redis <Server>", [], "redis--server"), ("***", [], "process"), ("web", ["web"], "web-2"),
        ("none", [], "none-2"), ("a" * 40, [], "a" * 31), ("a" * 31, ["a" * 31], "a" * 27 + "-2"),
        ("-_a_-", [], "a"), ("a.b", ["x"], "a-b"),
    ],
)  # fmt: skip
def test_profiles_are_called_like_programs(program: str, taken: list[str], name: str) -> None:
    assert profile_name(program, taken) == name


# Errors


def test_one_of_some_names() -> None:
    assert pick("point", "a", ["b", "a"]) == "a"
    for name, known, said, hint in (
        ("ab", ["zz", "abc"], "there is no point 'ab'; choose from: abc, zz", "did you mean abc?"),
        ("q", ["abc"], "there is no point 'q'; choose from: abc", "give one of these names"),
        ("q", [], "there is no point 'q'; there are none", "give one of these names"),
    ):
        with pytest.raises(Error) as refused:
            pick("point", name, known)
        told = refused.value
        assert (told.message, told.next_step, told.exit_code) == (said, hint, 2)


def test_errors_for_programs() -> None:
    found = as_data(explain(errno.ENOENT, "read /x", {}, "/x"))
    assert found == {
        "message": "cannot read /x: ENOENT (No such file or directory)", "path": "/x",
        "errno": "ENOENT", "exit": 1, "next": "dmesg | tail may say why",
    }  # fmt: skip
    usage = as_data(click.UsageError("no"))
    assert usage == {
        "message": "no", "path": None, "errno": None, "exit": 2, "next": "give --help",
    }  # fmt: skip
    assert explain(99999, "do it", {}).message.startswith("cannot do it: 99999 (")


# Advice


def seen(large: dict[int, int], unused: dict[int, int], **wanted: tuple[int, int, int]) -> Any:
    """Return a process; with requests: number of faults, with full neighbours, and capped."""
    found = Explained(0, 0, "all", large=Counter(large), unused=Counter(unused))
    for what, (faults, run, cap) in wanted.items():
        setattr(
            found, what, Wanted(Counter({4: faults}), Counter({"dense_neighbour": run, "cap": cap}))
        )
    return found


RARE, AREA = (
    ("so large folios would be rare, or mostly empty"),
    "the largest memory area of the process has {} MiB",
)
BESIDE = "{} of {} page faults were next to memory that is used in full"
UNUSED = "{}% of the pages in large folios of this process were never used"


@pytest.mark.parametrize(
    ("whole", "largest", "expected"),
    [
        (seen({}, {}), 0, None),
        (seen({}, {}, wanted=(99, 99, 0)), 0, None),
        (seen({}, {}, wanted=(159, 99, 60)), 0, None),
        (seen({}, {}, wanted=(100, 20, 0)), 64 * MIB,
         Advice("adaptive", 9, (BESIDE.format(20, 100), AREA.format(64)))),
        (seen({}, {}, wanted=(100, 20, 0)), 64 * MIB - 1,
         Advice("adaptive", 4, (BESIDE.format(20, 100), AREA.format(63)))),
        (seen({}, {}, wanted=(100, 19, 0)), 0,
         Advice("stock", None, (BESIDE.format(19, 100), RARE))),
        (seen({}, {}, wanted=(100, 90, 0), shadow=(101, 0, 0)), 0,
         Advice("stock", None, (BESIDE.format(0, 101), RARE))),
        (seen({4: 100}, {4: 10}), 0, None),
        (seen({4: 100}, {4: 11}), 0,
         Advice("adaptive", 2, (UNUSED.format(11), (
             "so folios larger than 16 kB are not recommended"
         )))),
        (seen({4: 100, 2: 100, 9: 100}, {4: 10, 9: 40}), 0,
         Advice("adaptive", 4, (UNUSED.format(17), (
             "so folios larger than 64 kB are not recommended"
         )))),
        (seen({9: 100, 2: 10}, {9: 5, 2: 10}), 0,
         Advice("adaptive", 2, (UNUSED.format(14), (
             "so folios larger than 16 kB are not recommended"
         )))),
        (seen({4: 100}, {4: 50}, wanted=(200, 100, 0)), 99 * MIB,
         Advice("adaptive", 2, (UNUSED.format(50), BESIDE.format(100, 200)))),
    ],
)  # fmt: skip
def test_what_suits_a_process(whole: Explained, largest: int, expected: Advice | None) -> None:
    assert advise(whole, largest) == expected


# Output


def of(waste: int, whole: int) -> dict[str, int]:
    """Return the waste of a row of `top`, in KiB."""
    return {"waste_kib": waste, "rss_kib": whole}


def test_bars() -> None:
    bars = [click.unstyle(_bar(of(waste, 100))) for waste in (0, 50, 100, 200)]
    assert bars == ["#" * 12, "######......", "." * 12, "." * 12]
    assert _bar(of(5, 0)) == _bar(of(1, 25)) == "#" * 12


def test_sizes_that_most_is_in() -> None:
    sizes = {"4 kB": 0.1, "64 kB": 0.5, "2048 kB": 0.3, "16 kB": 0.1}
    assert _folios({"folios": sizes}) == "64kB:50% 2048kB:30% 4kB:10%"
    assert _folios({"folios": {}}) == _folios({"folios": {"4 kB": 0.0}}) == "-"
    faults = [
        {"faults_percent": a, "faults_error_percent": b} for a, b in ((None, None), (0.16, 0.01))
    ]
    assert [_in_faults(row) for row in faults] == ["-", "0.16 +-0.01"]


@pytest.mark.parametrize(
    ("name", "cgroups", "pids", "whom"),
    [
        ("x", [], [], "nobody"), ("default", [], [], "all others"),
        ("x", ["/a"], [7], "/a, process 7"), ("x", ["/a", "/b", "/c"], [], "/a, /b, /c"),
        ("x", ["/a", "/b", "/c", "/d"], [7], "/a, /b, /c, 2 more"),
        ("default", ["/a", "/b", "/c"], [7], "/a, /b, /c, 1 more, all others"),
    ],
)  # fmt: skip
def test_for_whom_it_is(name: str, cgroups: list[str], pids: list[int], whom: str) -> None:
    assert _whom(name, {"cgroups": cgroups, "pids": pids}) == whom
    assert _knobs({}) == "-"
    assert _knobs({"a": "1", "b": "2"}) == "a=1 b=2"


def test_what_was_given_back() -> None:
    """A process that has exited counts as 0; a process without waste left counts with its whole
    waste.
    """
    rows = [Row(1, "a", 0, 100, 40), Row(2, "b", 0, 100, None), Row(3, "c", 0, 50, 0)]
    assert _saved(rows) == 110


# Detached experiments


HEADER = '{"started": "S", "control": {"given": "c"}, "treatment": {"given": "t"}}'
BLOCK = '{"kind": "block", "number": 0}'


@pytest.mark.parametrize(
    ("lines", "status", "blocks"),
    [
        ([HEADER, BLOCK, '{"kind": "sample"}', BLOCK, '{"kind": "end", "status": "done"}'],
         "done", 2),
        ([HEADER, BLOCK], "killed", 1),
        ([HEADER], "killed", 0),
    ],
)  # fmt: skip
def test_what_a_file_is_about(tmp_path: Path, lines: list[str], status: str, blocks: int) -> None:
    assert _summary(kept(tmp_path, lines)) == {
        "started": "S", "status": status, "blocks": blocks, "control": "c", "treatment": "t",
    }  # fmt: skip


@pytest.mark.parametrize(
    "lines", [[], ["{"], ["[]"], ["7"], ["{}"], [HEADER, '{"kind": "end"}'], ['{"control": 3}']]
)
def test_a_file_of_something_else_is_left_out(tmp_path: Path, lines: list[str]) -> None:
    assert _summary(kept(tmp_path, lines)) == {}


def kept(folder: Path, lines: list[str]) -> Path:
    """Return a file with these lines."""
    file = folder / "run.jsonl"
    file.write_text("\n".join(lines))
    return file


def test_where_a_run_is() -> None:
    about = {"control": "c", "treatment": "t", "file": "f"}
    place = {"block": 3, "blocks": 9, "phase": "ab", "arm": "control", "left_s": 75.5}
    guards = {"g < 5": 1234567.0, "h < 1": None}
    assert list(told_of_run({**about, **place, "measured": False, "guards": guards})) == [
        "the experiment compares c with t, and writes to f",
        "block 3 of 9, phase ab, arm control, wash-out, 1:15 left",
        "guard g < 5: the value is 1234570",
        "guard h < 1",
    ]
    assert "measured, 1:15 left" in [*told_of_run({**about, **place, "measured": True})][1]
    assert list(told_of_run({**about, "phase": "beginning"})) == [
        "the experiment compares c with t, and writes to f", "phase beginning",
    ]  # fmt: skip


def test_a_preset_is_about_a_cgroup() -> None:
    given = ["x {cgroup}/y", 5, ["{cgroup}"], None]
    assert _filled(given, "/a") == ("x /a/y", 5, ("/a",), None)
