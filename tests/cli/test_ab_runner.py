# SPDX-License-Identifier: GPL-2.0
"""A run moment by moment, with the simplest possible surroundings."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmpolicy.ab.design import Block, Design
from mmpolicy.ab.guards import Guard
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.run.changes import Changes
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.ab.run.progress import Progress
from mmpolicy.ab.run.runner import Length, Runner
from mmpolicy.ab.run.scope import Scope
from mmpolicy.control.experiment import LIVE

from .fakes import FakeTree

TURNS = Design("switchback", 4, 1, 1.5, 3)
HEADER: dict[str, Any] = {
    "kind": "header", "version": 1, "design": "switchback", "block_s": 4, "washout_s": 1,
    "interval_s": 1.5, "seed": 3, "rule": "", "aa_pairs": 1, "pairs": 2, "guards": [],
    "metrics": ["vmstat.nr_a lower"], "host": {}, "control": {"given": "stock", "settings": {}},
    "treatment": {"given": "new", "settings": {"anon_order/policy": "fixed"}},
    "cmd_timeout_s": 5.0, "at_switch": "", "margin": None, "unit": "process",
}  # fmt: skip


class Trace:
    """A host, changes to it, a file and a display, which all record their calls."""

    def __init__(self, tree: FakeTree) -> None:
        self.tree, self.now = tree, 50.0
        self.calls: list[tuple[Any, ...]] = []  # calls that change the host
        self.lines: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.ticks: list[tuple[float, float]] = []  # time, and time left
        self.shown: list[Progress] = []
        self.live: list[tuple[float, dict[str, Any]]] = []
        self.at: dict[float, Callable[[], None]] = {}
        self.values = {"nr_a": 7}
        keep = tree.keep

        def kept(path: str, text: str, mode: int) -> None:
            assert path == LIVE
            self.live.append((round(self.now - 50, 6), json.loads(text)))
            keep(path, text, mode)

        tree.keep = kept  # type: ignore
        self.sleep(0.0)

    # The host

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time go on."""
        assert 0 <= seconds <= 0.2
        self.now = round(self.now + seconds, 6)
        self.at.pop(round(self.now - 50, 6), lambda: None)()
        self.tree.put("/proc/vmstat", "\n".join(f"{k} {v}" for k, v in self.values.items()))

    # The display

    def say(self, line: str) -> None:
        """Show a message once."""
        self.said.append(line)

    def report(self, progress: Progress) -> None:
        """Show the progress of the run."""
        self.shown.append(progress)

    def tick(self, left_s: float) -> None:
        """Show the time that is left."""
        self.ticks.append((round(self.now - 50, 6), left_s))

    # The file

    def write(self, line: str) -> None:
        """Add a line."""
        self.lines.append(json.loads(line))

    write_last = write

    def runner(
        self, length: Length, design: Design = TURNS, guards: tuple[str, ...] = (), **header: Any
    ) -> Runner:
        """Return a run."""

        def noting(name: str) -> Callable[..., str]:
            def note(*given: Any) -> str:
                self.calls.append((name, *given, round(self.now - 50, 6)))
                return ""

            return note

        names = ("set_up", "equip", "enter", "renew", "look_after", "restore")
        changes: Any = SimpleNamespace(
            **{name: noting(name) for name in names}, profiles={"control": "c", "treatment": "t"},
            arms={}, timing=False, lease_ms=3200.8, knobs=SimpleNamespace(look=None), units={},
        )  # fmt: skip
        out, host, display, given = self, self, self, HEADER | {"design": design.kind} | header
        self.path = Path("x")
        metrics = [Metric.parse(text) for text in given["metrics"]]
        parsed = [Guard.parse(text) for text in guards]
        return Runner(host, design, length, metrics, parsed, changes, given, out, display)  # type: ignore[arg-type]


@pytest.fixture
def trace(tree: FakeTree) -> Trace:
    """Return the recorder of all calls."""
    return Trace(tree)


def test_a_run_moment_by_moment(trace: Trace) -> None:
    runner = trace.runner(Length(1, 2))
    runner.run()
    assert runner.failure is None
    assert trace.said == [
        (
            "rule: 2 pairs after 1 of A/A, fixed beforehand; more if some pairs get no value, "
            "at most 8"
        ),
        "time: 0:24, 6 blocks of 4 s",
    ]  # fmt: skip
    blocks = [*TURNS.blocks("aa", 1), *TURNS.blocks("ab", 2, 2)]
    steps = [call for call in trace.calls if call[0] in ("set_up", "equip", "enter", "restore")]
    assert steps == [
        ("set_up", "process", 0), ("equip", "aa", 0),
        *(("enter", block, 4 * n) for n, block in enumerate(blocks[:2])), ("equip", "ab", 8),
        *(("enter", block, 4 * n) for n, block in enumerate(blocks[2:], start=2)), ("restore", 24),
    ]  # fmt: skip
    # It ticks five times a second, and the lease is renewed after a quarter of its length.
    assert [left for _, left in trace.ticks] == pytest.approx([24 - at for at, _ in trace.ticks])
    assert len(trace.ticks) == 6 * ((1 + 5) + (1 + 8) + (1 + 8))
    renewed = [0.0]
    for at, _ in trace.ticks:
        if at > renewed[-1] + 0.8002:
            renewed.append(at)
    assert [call[1] for call in trace.calls if call[0] == "renew"] == renewed
    assert {call[1] for call in trace.calls if call[0] == "look_after"} == {False}
    kinds = [line["kind"] for line in trace.lines]
    assert kinds == ["header", *(["sample"] * 3 + ["block"]) * 6, "end"]
    samples = [line for line in trace.lines if line["kind"] == "sample"]
    assert [line["t"] for line in samples] == [4 * n + at for n in range(6) for at in (1, 2.5, 4)]
    assert samples[4] == {
        "kind": "sample", "block": 1, "t": 6.5, "host": {"vmstat.nr_a": 7}, "arms": {}, "units": {},
    }  # fmt: skip
    last = trace.lines[-2]
    assert (last["began"], last["ended"], last["number"], "units" in last) == (20, 24, 5, False)
    assert trace.lines[-1] == {
        "kind": "end", "status": "done", "reason": "all pairs are complete", "restored": True,
        "note": "", "restore_s": 0,
    }  # fmt: skip
    assert [(each.done, each.total, each.phase, each.left_s) for each in trace.shown] == [
        (n + 1, 6, "aa" if n < 2 else "ab", 20 - 4 * n) for n in range(6)
    ]
    assert {*trace.shown[0].estimates, *trace.shown[-1].estimates} == {
        "vmstat.nr_a: no estimate of the effect yet"
    }


def test_an_arm_that_does_nothing_is_told_once(trace: Trace) -> None:
    """An arm that does nothing is reported once, after 3 pairs and before the next."""
    runner = trace.runner(Length(0, 5))
    runner.recording.idle = lambda: ["control", "treatment"]  # type: ignore[method-assign]
    runner.run()
    text = "no policy has decided anything yet in control and treatment, after 3 pairs"
    asked = "does any process in the scope have page faults?"
    assert trace.said[2:] == [f"warning: {text}: {asked}"]
    short = trace.runner(Length(0, 3))
    short.recording.idle = runner.recording.idle  # type: ignore[method-assign]
    trace.said.clear()
    short.run()
    assert len(trace.said) == 2


def test_blocks_of_saturation_come_last(trace: Trace) -> None:
    design = Design("split", 4, 1, 3, 3)
    length = Length(1, 2, saturation=(10, 90))
    runner = trace.runner(length, design)
    runner.changes.units["/a"] = "control"
    runner.run()
    entered = [call[1] for call in trace.calls if call[0] == "enter"]
    assert entered == [*design.blocks("aa", 1), *design.blocks("ab", 2, 1),
                       *design.blocks("saturation", 2, 3)]  # fmt: skip
    assert trace.said[1] == "time: 0:28, 7 blocks of 4 s"
    assert [each.left_s for each in trace.shown] == [24, 20, 16, 12, 8, 4, 0]
    assert trace.lines[-2]["units"] == {"/a": "control"}


def test_where_a_run_is_is_told_as_it_goes(trace: Trace) -> None:
    trace.runner(Length(1, 1), guards=("vmstat.nr_a < 9",)).run()
    told = trace.live
    assert [(at, each["phase"], each["arm"]) for at, each in told[:1]] == [(0, "beginning", "")]
    assert [(at, each["phase"]) for at, each in told[-1:]] == [(16, "restoring")]
    first = told[1][1]
    assert first == {
        "control": "stock", "treatment": "new", "file": str(Path("x").absolute()), "phase": "aa",
        "arm": "control", "pair": 0, "block": 1, "blocks": 4, "measured": False, "left_s": 16,
        "guards": {"vmstat.nr_a < 9": 7},
    }  # fmt: skip
    begun = [(at, each["block"]) for at, each in told if "block" in each]
    assert [(4.0 * n, n + 1) in begun for n in range(4)] == [True] * 4
    changed = [at for at, each in told if each.get("measured") and at < 16]
    assert [at for at in changed if round(at % 4, 6) < 1] == []
    assert {1.0, 5.0, 9.0, 13.0} <= set(changed)
    assert not trace.tree.exists(LIVE)


@pytest.mark.parametrize(
    ("at", "kind", "where", "place"),
    [
        (1.2, "switchback", (0, "aa", "control", 1.2), ", in control, block 0"),
        (9.4, "switchback", (2, "ab", "", 1.4), ""),
        (5.0, "split", (1, "ab", "", 1.0), ", in both arms, block 1"),
    ],
)
def test_where_a_guard_broke(
    trace: Trace, at: float, kind: str, where: tuple[int, str, str, float], place: str
) -> None:
    trace.at[at] = lambda: trace.values.update(nr_a=9)
    design = Design(kind, 4, 1, 1.5, 3)
    runner = trace.runner(Length(1, 2), design, ("vmstat.nr_a < 9",))
    runner.run()
    number, phase, arm, after = where
    if kind == "switchback" and phase == "ab":
        arm = next(design.blocks("ab", 1)).arm
        place = f", in {arm}, block 2"
    assert trace.lines[-1] == {
        "kind": "end", "status": "guard", "reason": (
            f"guard 'vmstat.nr_a < 9' is violated: the value is 9{place}"
        ),
        "block": number, "phase": phase, "arm": arm, "after_s": pytest.approx(after),
        "restored": True, "note": "", "restore_s": 0,
    }  # fmt: skip
    assert runner.end == {k: v for k, v in trace.lines[-1].items() if k != "kind"}


def test_what_ends_a_run_before_its_first_block(trace: Trace) -> None:
    trace.values["nr_a"] = 9
    trace.sleep(0.0)
    trace.runner(Length(1, 2), guards=("vmstat.nr_a < 9",)).run()
    end = trace.lines[-1]
    assert (end["block"], end["phase"], end["arm"], "after_s" in end) == (None, "", "", False)
    assert (
        end["reason"]
        == "guard 'vmstat.nr_a < 9' is violated: the value is 9, in both arms, block None"
    )


def test_an_end_that_is_no_guard_has_no_place(trace: Trace) -> None:
    def lost() -> None:
        raise StoppedError("lost", "it is gone")

    trace.at[2.0] = lost
    trace.runner(Length(1, 2)).run()
    assert (trace.lines[-1]["reason"], trace.lines[-1]["block"]) == ("it is gone", 0)


def test_a_signal_ends_it_at_once(trace: Trace) -> None:
    runner = trace.runner(Length(1, 2))
    trace.at[5.2] = lambda: runner.caught.append(signal.SIGTERM)
    runner.run()
    end = trace.lines[-1]
    assert (end["status"], end["reason"]) == ("interrupted", "by SIGTERM")
    assert trace.calls[-1] == ("restore", 5.2)


def test_what_nobody_expected_is_told_and_all_is_put_back(trace: Trace) -> None:
    def wrong() -> None:
        raise ValueError("what")

    trace.at[2.0] = wrong
    runner = trace.runner(Length(1, 2))
    runner.run()
    assert (trace.lines[-1]["status"], trace.lines[-1]["reason"]) == ("failed", "ValueError: what")
    assert isinstance(runner.failure, ValueError)
    assert trace.calls[-1] == ("restore", 2)


def test_the_cgroup_may_go_at_a_switch_alone(trace: Trace) -> None:
    trace.runner(Length(0, 1), at_switch="exec true").run()
    looked = [call[1] for call in trace.calls if call[0] == "look_after"]
    first = looked.index(False)
    assert looked[:first] == [True] * first
    assert trace.lines[-1]["status"] == "done"
    entered = [n for n, call in enumerate(trace.calls) if call[0] == "enter"]
    for place in entered:
        after = [call[1] for call in trace.calls[place:] if call[0] == "look_after"]
        assert after[0] is True
        assert after.index(False) < len(after)
    assert looked[-1] is False


@pytest.mark.parametrize(
    ("length", "values", "pairs", "said"),
    [
        (Length(0, 12, 5.0), [1000.0], 8, "the result is clear after 8 pairs"),
        (Length(0, 4, 5.0), [1000.0], 4, ""),
        (Length(0, 9, 5.0), [-1000.0], 9, ""),
        (Length(0, 9, anytime=True), [100.0, 200.0], 7, "the result is clear after 7 pairs"),
        (Length(0, 4, anytime=True), [100.0], 4, ""),
        (Length(0, 3), [100.0], 3, ""),
    ],
)
def test_when_the_last_pair_is_done(
    trace: Trace, length: Length, values: list[float], pairs: int, said: str
) -> None:
    """The last pair is decided by sizes, at any look, or as planned; decisions on the way are
    recorded.
    """
    design = Design("switchback", 4, 1, 3, 3)
    runner = trace.runner(length, design)
    arms = [block.arm for block in design.blocks("ab", 99)]
    enter = runner.changes.enter

    def entered(block: Block) -> None:
        enter(block)
        trace.values["nr_a"] = int(values[arms[block.number] == "treatment" and -1])
        trace.sleep(0.0)

    runner.changes.enter = entered  # type: ignore[method-assign]
    runner.run()
    assert len(runner.recording.blocks) == 2 * pairs
    assert trace.said[2:] == [said] * bool(said)
    assert [line["pairs"] for line in trace.lines if line["kind"] == "plan"] == [pairs] * bool(said)
    assert trace.said[1].startswith("time: at most ") == bool(length.way)


def test_estimates_on_the_way(trace: Trace) -> None:
    runner = trace.runner(Length(0, 9))
    level, other = Metric.parse("vmstat.nr_a"), Metric.parse("d=vmstat.nr_b")

    def with_pairs(*pairs: tuple[float, float]) -> str:
        runner.recording.pairs = lambda _metric, _phase: [*pairs]  # type: ignore
        return runner._estimate(level, "ab")

    assert with_pairs() == with_pairs((1.0, 2.0)) == "vmstat.nr_a: no estimate of the effect yet"
    assert with_pairs(*[(1.0, 2.0)] * 5) == "vmstat.nr_a: no estimate of the effect yet"
    assert with_pairs(*[(1.0, 2.0)] * 6) == "vmstat.nr_a: +100 (+100 .. +100) % so far"
    assert with_pairs(*[(-1.0, 2.0)] * 6) == "vmstat.nr_a: +3 (+3 .. +3) so far"
    assert runner._estimate(other, "ab").startswith("d: +3")


def test_what_both_kinds_of_arms_share(tree: FakeTree) -> None:
    knobs: Any = SimpleNamespace(
        lease_s=7.5, tree=tree, arms={"control": {}, "treatment": {}},
        restore=lambda: "knobs", rehearsal=lambda: iter(["k"]),
    )  # fmt: skip
    alone = Changes(None, knobs)
    assert (alone.lease_ms, alone.timing, alone.arms, alone.units) == (7500, False, {}, {})
    assert alone.scope == Scope(tree)
    assert alone.profiles == {"control": "default", "treatment": "default"}
    steps: list[Any] = [*alone.rehearsal("process")]
    assert (alone.restore(), steps) == ("knobs", ["k"])
    policies: Any = SimpleNamespace(
        timing=True, arms={"control": {}}, units={"/a": "control"}, scope=Scope(tree, "/a", "7"),
        restore=lambda: "policies", rehearsal=lambda unit: [unit],
    )  # fmt: skip
    both = Changes(policies, knobs)
    assert (both.timing, both.arms, both.units) == (True, {"control": {}}, {"/a": "control"})
    assert both.scope == Scope(tree, "/a", "7")
    assert both.profiles == {"control": "ab-control", "treatment": "ab-treatment"}
    assert both.restore() == "knobs; policies"
    steps = [*both.rehearsal("process")]
    assert steps == ["process", "k"]
    policies.restore, policies.timing = (lambda: ""), False
    assert (both.restore(), Changes(policies, knobs).timing) == ("knobs", False)
