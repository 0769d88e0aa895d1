# SPDX-License-Identifier: GPL-2.0
"""Exported metrics, as read by Debian's Prometheus; ./dev puts it into the cache."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from .fakes import COUNTERS, FakeTree, Run

CACHE = os.environ.get("MMPOLICY_CACHE") or Path.home() / ".cache/mmpolicy"
PROGRAMS = Path(CACHE) / "prometheus/usr/bin"
EXAMPLES = Path(__file__).parents[2] / "debian/examples"
# Half of the faults take up to 1.024 us, the other half twice that.
TIMES = "decisions 100\nfault_ns_log2_9 50\nfault_ns_log2_10 50\nfault_ns_log2_11 0"
CONFIG = """\
scrape_configs:
  - job_name: mmpolicy
    scrape_interval: 1s
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def promtool(*words: str, given: str = "") -> str:
    """Run promtool, which must succeed without a complaint."""
    done = subprocess.run(
        [PROGRAMS / "promtool", *words], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(*argv: object) -> Iterator[None]:
    """Run a program until the end of the block."""
    words = [str(word) for word in argv]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def query(port: int, expression: str, label: str = "") -> dict[str, float]:
    """Ask until there is an answer; return the value by a label, else by state or profile."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        words = ["query", "instant", "-o", "json", f"http://127.0.0.1:{port}", expression]
        done = subprocess.run(
            [PROGRAMS / "promtool", *words], capture_output=True, text=True, check=False
        )
        found = json.loads(done.stdout) if done.returncode == 0 else []
        if found:
            return {
                each["metric"].get(label)
                or each["metric"].get("state")
                or each["metric"].get("profile", ""): float(each["value"][1])
                for each in found
            }
        time.sleep(0.5)
    raise AssertionError(f"no answer to {expression}: {done.stderr}")


def scraped(port: int) -> str:
    """Ask the listener until there is an answer."""
    end = time.monotonic() + 60
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return str(answer.read().decode())
        except URLError:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_conventions(run: Run, tree: FakeTree) -> None:
    tree.put(f"{COUNTERS}/anon_order/stats", f"{TIMES}\nstall_ns 9\nstall_ns_log2_9 1")
    run("lease", "90")
    promtool("check", "metrics", given=run("export").out)
    with pytest.raises(AssertionError):  # proves that it can fail
        promtool("check", "metrics", given="# TYPE a_ns gauge\na_ns 1\n")


@pytest.mark.parametrize("name", ["alerts", "rules"])
def test_rules(name: str) -> None:
    promtool("check", "rules", str(EXAMPLES / f"{name}.yml"))


def host(name: str, metric: str, values: str, **labels: str) -> dict[str, str]:
    """Return a series of a host, as tests of rules need it."""
    told = ",".join(f'{key}="{value}"' for key, value in {"instance": name, **labels}.items())
    return {"series": f"{metric}{{{told}}}", "values": values}


def test_what_rules_say(tmp_path: Path) -> None:
    """Rules keep arms apart, without wash-out, and alert for a condition that lasts long enough."""
    series = []
    for name, arm, measured, ratio in (
        ("a", "control", 1, 0.2), ("b", "treatment", 1, 0.6), ("c", "treatment", 0, 0.9),
    ):  # fmt: skip
        series += [
            host(name, "mmpolicy_experiment_arm", "1x60", arm=arm),
            host(name, "mmpolicy_experiment_measured", f"{measured}x60"),
            host(name, "mmpolicy_huge_coverage_ratio", f"{ratio}x60", id="/"),
            host(
                name, "mmpolicy_events_total", "0+60x60", profile=f"ab-{arm}", point="p", event="e"
            ),
        ]
    series += [
        host("a", "mmpolicy_state", "1x60", state="expired"),
        host("a", "mmpolicy_drift", "7x60"),
        host("b", "mmpolicy_drift", "2x60"),
        host("c", "mmpolicy_drift", "0x60"),
        host("b", "mmpolicy_bindings_lost", "3x60", owner="agent"),
        host("b", "mmpolicy_bindings_lost", "0x60", owner="host"),
    ]
    wanted: dict[str, dict[str, float]] = {
        "arm:mmpolicy_huge_coverage_ratio:avg": {"control": 0.2, "treatment": 0.6},
        "arm:mmpolicy_hosts:count": {"control": 1, "treatment": 1},
        'sum by (arm) (arm:mmpolicy_events:rate5m{point="p"})': {"control": 1, "treatment": 2},
    }
    expressions: list[dict[str, Any]] = [
        {"expr": expression, "eval_time": "50m", "exp_samples": [
            {"labels": f'{expression if ":" in expression and "(" not in expression else ""}'
                       f'{{arm="{arm}"}}', "value": value} for arm, value in values.items()]}
        for expression, values in wanted.items()
    ]  # fmt: skip
    firing = [("MmpolicyDrift", "b"), ("MmpolicyLeaseExpired", "a"), ("MmpolicyBindingLost", "b")]
    expressions.append(
        {"expr": 'count by (alertname, instance) (ALERTS{alertstate="firing"})',
         "eval_time": "50m", "exp_samples": [
            {"labels": f'{{alertname="{alert}", instance="{name}"}}', "value": 1}
            for alert, name in firing]}
    )  # fmt: skip
    files = [str(EXAMPLES / f"{name}.yml") for name in ("alerts", "rules")]
    test_of = {"interval": "1m", "input_series": series, "promql_expr_test": expressions}
    told: dict[str, Any] = {"rule_files": files, "tests": [test_of]}
    test = tmp_path / "test.yml"
    test.write_text(json.dumps(told))
    promtool("test", "rules", str(test))
    told["tests"][0]["input_series"] = series[4:]  # proves that it can fail
    test.write_text(json.dumps(told))
    with pytest.raises(AssertionError):
        promtool("test", "rules", str(test))


def test_by_node_exporter(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    """node_exporter reads the file without a complaint."""
    tree.put(f"{COUNTERS}/anon_order/stats", TIMES)
    assert run("export", "-o", str(tmp_path / "mmpolicy.prom")).code == 0
    port = free_port()
    command = [PROGRAMS / "prometheus-node-exporter", "--collector.disable-defaults"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--collector.textfile"]
    with running(*command, f"--collector.textfile.directory={tmp_path}"):
        text = scraped(port)
    assert "\nnode_textfile_scrape_error 0\n" in text
    assert '\nmmpolicy_state{state="stock"} 1\n' in text
    assert '\nmmpolicy_fault_seconds_count{point="anon_order",profile="default"} 100\n' in text
    promtool("check", "metrics", given=text)


def test_where_a_run_is(tree: FakeTree, tmp_path: Path) -> None:
    """Phase, arm and guard of a running experiment can be scraped during the run."""
    tree.make_unloaded()
    tree.put("/proc/vmstat", "pgfault 0\nnr_mapped 7")
    port, web = free_port(), free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(port=port))
    program = [sys.executable, "-m", "mmpolicy", "--root", tree.root]
    begin = [
        "ab",
        "run",
        "--design",
        "switchback",
        "--metric",
        "vmstat.pgfault/s",
        "--aa-pairs",
        "0",
    ]
    begin += ["--pairs", "99", "--treatment", "hugepages-64kB/enabled=always"]
    begin += ["--block", "1000", "--guard", "vmstat.nr_mapped < 9", "--seed", "1"]
    server = [PROGRAMS / "prometheus", f"--config.file={config}"]
    server += [f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{web}"]
    run = [*program, *begin, "--out", tmp_path / "samples.jsonl"]
    with running(*run), running(*program, "export", "--listen", port), running(*server):
        phases = query(web, "mmpolicy_experiment_phase", "phase")
        arms = query(web, "mmpolicy_experiment_arm", "arm")
        guards = query(web, "mmpolicy_experiment_guard", "guard")
    assert phases == {"ab": 1}
    assert arms in ({"control": 1}, {"treatment": 1})
    assert guards == {"vmstat.nr_mapped < 9": 7}


def test_scraped(tree: FakeTree, tmp_path: Path) -> None:
    """A query returns a quantile of the fault times."""
    tree.put(f"{COUNTERS}/anon_order/stats", TIMES)
    port, web = free_port(), free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(port=port))
    command = [sys.executable, "-m", "mmpolicy", "--root", tree.root, "export", "--listen", port]
    server = [PROGRAMS / "prometheus", f"--config.file={config}"]
    server += [f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{web}"]
    with running(*command), running(*server):
        states = query(web, "mmpolicy_state")
        found = query(web, "histogram_quantile(0.75, mmpolicy_fault_seconds_bucket)")
    others = ("attaching", "active", "detaching", "expired")
    assert states == {"stock": 1, **dict.fromkeys(others, 0)}
    assert found == {"default": pytest.approx(1.536e-6)}  # the middle of 1.024 to 2.048
