# SPDX-License-Identifier: GPL-2.0
"""The dashboard and the rules for alerts ask for metrics that there are."""

import json
import re
from pathlib import Path
from typing import Any

from .fakes import COUNTERS, FakeTree, Run

EXAMPLES = Path(__file__).parents[2] / "debian/examples"
METRIC = re.compile(r"mmpolicy_\w+")
LABELS = re.compile(r"(mmpolicy_\w+)\{([^}]*)\}")
TIMES = "fault_ns_log2_9 3\nstall_ns 9\nstall_ns_log2_9 1\n"


def exported(run: Run, tree: FakeTree) -> dict[str, set[str]]:
    """Return the labels of each metric that is exported at its fullest."""
    run("lease", "90")
    tree.put(f"{COUNTERS}/anon_order/stats", f"decisions 1\n{TIMES}")
    lines = [line for line in run("export").out.splitlines() if not line.startswith("#")]
    return {re.split(r"[{ ]", line)[0]: set(re.findall(r'(\w+)="', line)) for line in lines}


def check(expression: str, known: dict[str, set[str]]) -> None:
    """Fail for a metric or a label that is not exported."""
    names = METRIC.findall(expression)
    assert names and set(names) <= set(known), expression
    for name, inside in LABELS.findall(expression):
        assert set(re.findall(r"(\w+)!?=", inside)) <= known[name] | {"instance"}, expression


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((EXAMPLES / "grafana.json").read_text())["panels"]
    return found


def test_dashboard_asks_for_what_is_exported(run: Run, tree: FakeTree) -> None:
    known = exported(run, tree)
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(expressions) >= 6
    for expression in expressions:
        check(expression, known)


def test_dashboard_is_laid_out() -> None:
    """Each panel has a place and a number of its own, and asks the source that is chosen."""
    boxes = [panel["gridPos"] for panel in panels()]
    assert len({(box["x"], box["y"]) for box in boxes}) == len(boxes)
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels())


def test_alerts_ask_for_what_is_exported(run: Run, tree: FakeTree) -> None:
    known = exported(run, tree)
    expressions = re.findall(r"expr: (.*)", (EXAMPLES / "alerts.yml").read_text())
    assert len(expressions) == 3
    for expression in expressions:
        check(expression, known)
