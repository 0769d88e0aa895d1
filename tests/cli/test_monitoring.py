# SPDX-License-Identifier: GPL-2.0
"""The metrics in the dashboard and the alert rules exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mmpolicy.control.experiment import LIVE, LOCK, RUN

from .fakes import COUNTERS, FakeTree, Run
from .test_docs import anchors

EXAMPLES = Path(__file__).parents[2] / "debian/examples"
METRIC = re.compile(r"(?<!:)\bmmpolicy_\w+")  # recorded metrics have a colon before the name
LABELS = re.compile(r"(mmpolicy_\w+)\{([^}]*)\}")
TIMES = "fault_ns_log2_9 3\nstall_ns 9\nstall_ns_log2_9 1\n"


CACHE = os.environ.get("MMPOLICY_CACHE") or Path.home() / ".cache/mmpolicy"
# Grafana's classes read a dashboard; their output is the part that Grafana understands.
UNDERSTOOD = """
import json, sys
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
plugins.register_default_plugins()
print(encoder.JSONEncoder().encode(Dashboard.from_json(json.load(sys.stdin))))
"""


def understood(dashboard: object) -> Any:
    """Return a dashboard as Grafana understands it; ./dev puts its classes into the cache."""
    done = subprocess.run(
        [sys.executable, "-c", UNDERSTOOD], input=json.dumps(dashboard), capture_output=True,
        text=True, check=True, env={**os.environ, "PYTHONPATH": str(Path(CACHE) / "grafana")},
    )  # fmt: skip
    return json.loads(done.stdout)


def not_in(part: Any, whole: Any, path: str = "") -> list[str]:
    """Return places of a part that are missing in the whole, or different there."""
    if isinstance(part, dict) and isinstance(whole, dict):
        lost = [f"{path}/{key}" for key in part.keys() - whole.keys()]
        same = part.keys() & whole.keys()
        return lost + [x for key in same for x in not_in(part[key], whole[key], f"{path}/{key}")]
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        pairs = enumerate(zip(part, whole, strict=True))
        return [x for i, (one, other) in pairs for x in not_in(one, other, f"{path}/{i}")]
    return [] if part == whole else [path]


def exported(run: Run, tree: FakeTree) -> dict[str, set[str]]:
    """Return the labels of each exported metric, on a host with all of them."""
    run("lease", "90")
    where = {"phase": "ab", "arm": "control", "block": 1, "blocks": 24, "measured": True}
    tree.put(LIVE, json.dumps(where | {"guards": {"vmstat.nr_dirty < 9": 1.0}}))
    tree.put("/sys/fs/cgroup/memory.stat", "anon 4096\nanon_thp 4096\nshmem 0\nshmem_thp 0")
    tree.put("/var/lib/mmpolicy/applied.toml", "version = 1")
    tree.put(f"{COUNTERS}/anon_order/stats", f"decisions 1\n{TIMES}")
    with tree.locked(LOCK, f"{RUN}1"):
        text = run("export").out
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: dict[str, set[str]] = {}
    for line in lines:
        found.setdefault(re.split(r"[{ ]", line)[0], set()).update(re.findall(r'(\w+)="', line))
    return found


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
    """Each panel has a place and a number of its own, and uses the selected data source."""
    boxes = [panel["gridPos"] for panel in panels()]
    assert len({(box["x"], box["y"]) for box in boxes}) == len(boxes)
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels())


def test_dashboard_is_one_of_grafana() -> None:
    """Its schema knows each entry; it adds defaults, and no entry is lost."""
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
    assert not_in(dashboard, understood(dashboard)) == []
    dashboard["panels"][0]["titel"] = "no such entry"
    assert not_in(dashboard, understood(dashboard)) == ["/panels/0/titel"]


def test_alerts_ask_for_what_is_exported(run: Run, tree: FakeTree) -> None:
    known = exported(run, tree)
    expressions = re.findall(r"expr: (.*)", (EXAMPLES / "alerts.yml").read_text())
    assert len(expressions) == 7
    for expression in expressions:
        check(expression, known)


def test_alerts_name_a_page() -> None:
    """Each alert names a page to read at 3 a.m.: a section that exists."""
    text = (EXAMPLES / "alerts.yml").read_text()
    pages = re.findall(r'runbook: "(docs/\S+)#(\S+) of mmpolicy"', text)
    assert len(pages) == text.count("alert: ")
    assert [each for each in pages if each[1] not in anchors(EXAMPLES.parents[1] / each[0])] == []


def test_rules_ask_for_what_is_exported(run: Run, tree: FakeTree) -> None:
    known = exported(run, tree)
    text = (EXAMPLES / "rules.yml").read_text()
    recorded = re.findall(r"record: (.*)", text)
    expressions = re.findall(r"expr: (.*)", text)
    assert len(recorded) == len(expressions) == 6
    for expression in expressions:
        for name in recorded:
            expression = expression.replace(name, "mmpolicy_up")
        check(expression, known)
