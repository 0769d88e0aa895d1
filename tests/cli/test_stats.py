# SPDX-License-Identifier: GPL-2.0
"""`stats`, once and repeatedly."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mmpolicy import __version__

from .fakes import CONTROL, COUNTERS, Clock, FakeTree, Run
from .sparse import make_sparse, make_thp, reuse

STATES = ("stock", "active", "expired")
STATS = f"{COUNTERS}/anon_order/stats"


def test_only_counters_that_are_not_zero(run: Run) -> None:
    rows = [line.split() for line in run("stats").out.splitlines()]
    assert rows == [
        ["POINT", "COUNTER", "VALUE"],
        ["anon_order", "decisions", "100"],
        ["anon_order", "raised", "40"],
    ]
    assert run("stats", "bulk").out == "every counter is 0\n"


def test_where_the_action_is(run: Run, tree: FakeTree) -> None:
    run("profile", "create", "web")
    tree.put("/sys/kernel/debug/mmpolicy/web/anon_order/stats", "decisions 20")
    tree.put(STATS, "decisions 0")
    assert run("stats").out.splitlines() == [
        "every counter is 0",
        "profiles with counters above 0: web (mmpolicy stats --profile NAME)",
    ]
    assert "but not of" not in run("stats", "--profile", "web").out


def test_times_are_told_and_not_their_histogram(run: Run, tree: FakeTree) -> None:
    """Times are printed instead of their histogram: half of 100 faults from 1,024 to 1,152 ns, half
    from 2,048 to 2,304.
    """
    times = "fault_ns_log2_10_0 50\nfault_ns_log2_11_0 50\nfault_ns_log2_12_7 0"
    tree.put(STATS, f"decisions 100\nfault_ns 163200\n{times}")
    rows = run("stats").out.splitlines()
    assert rows[1:] == [
        "anon_order  decisions  100",
        "anon_order  fault_ns   163200",
        "anon_order fault_ns of 100: mean 1632, p50 1152, p90 2253, p99 2299 ns",
    ]
    tree.put(STATS, f"decisions 100\n{times.replace('50', '0')}")
    assert "mean" not in run("stats").out


def test_json_has_all(run: Run, tree: FakeTree) -> None:
    tree.put(STATS, "decisions 18446744073709551615\n# a comment\nlowered 0")
    data = run("stats", "anon_order", "--json").json
    assert (data["version"], data["profile"]) == (1, "default")
    assert data["points"] == {"anon_order": {"decisions": 2**64 - 1, "lowered": 0}}


def test_watch_shows_rates_until_ctrl_c(run: Run, tree: FakeTree, clock: Clock) -> None:
    clock.steps = [lambda: tree.put(STATS, "decisions 150\nraised 40")]
    result = run("stats", "anon_order", "--watch", "--interval", "2")
    assert result.code == 0
    first, second = result.out.strip().split("\n\n")
    assert "PER_SECOND" in first
    assert first.splitlines()[1].split() == ["anon_order", "decisions", "100", "-"]
    assert second.splitlines()[1].split() == ["anon_order", "decisions", "150", "25.0"]
    assert second.splitlines()[2].split() == ["anon_order", "raised", "40", "0.0"]


def test_watch_ends_with_the_process(run: Run, tree: FakeTree, clock: Clock) -> None:
    """Memory of another program with the same PID is not shown."""
    make_thp(tree)
    make_sparse(tree, 10)
    tree.put("/proc/10/smaps_rollup", "Rss: 16384 kB\nLazyFree: 10000 kB")
    clock.steps = [lambda: None, lambda: reuse(tree, 10), lambda: None]
    result = run("stats", "--watch", "--pid", "10", "--interval", "2")
    assert (result.code, result.out.count("process 10 ")) == (1, 2)
    assert result.err.startswith("mmpolicy: process 10 has ended\n")


def test_watch_json_is_one_object_a_line(run: Run, tree: FakeTree, clock: Clock) -> None:
    clock.steps = [lambda: tree.put(STATS, "decisions 30")]  # the module was loaded anew
    result = run("stats", "--watch", "--json")
    first, second = (json.loads(line) for line in result.out.splitlines())
    assert (first["version"], first["per_second"]) == (1, {})
    assert second["per_second"]["anon_order"] == {"decisions": 30.0}


def test_wrong_names_and_interval(run: Run) -> None:
    assert "did you mean anon_order?" in run("stats", "anon_orde").err
    assert run("stats", "--profile", "other").code == 2
    assert run("stats", "--watch", "--interval", "0").code == 2


def test_without_debugfs(run: Run, tree: FakeTree) -> None:
    tree.remove("/sys/kernel/debug/mmpolicy")
    result = run("stats")
    assert (result.code, "ENOENT" in result.err) == (3, True)
    assert "next: mount -t debugfs none /sys/kernel/debug" in result.err


def test_watch_shows_what_rises_in_all_profiles(run: Run, tree: FakeTree, clock: Clock) -> None:
    run("profile", "create", "web")
    run("set", "anon_order", "never", "--profile", "web")
    run("lease", "60")
    counters = "/sys/kernel/debug/mmpolicy/web/anon_order/stats"
    clock.steps = [lambda: tree.put(counters, "decisions 20")]
    first, second = run("watch", "--interval", "2").out.split("state: ")[1:]
    assert "no counter rises" in first
    assert second.strip().splitlines()[-1].split() == [
        "web/anon_order",
        "never",
        "decisions",
        "20",
        "10.0",
    ]
    clock.steps = [lambda: None]
    lines = [json.loads(line) for line in run("watch", "--json").out.splitlines()]
    assert (lines[0]["state"], lines[0]["lease_ms"]) == ("active", 60000)
    assert lines[1]["points"]["web/anon_order"] == {"decisions": 20}


def test_watch_tells_of_the_experiment(run: Run, tree: FakeTree, clock: Clock) -> None:
    for arm, name in (("control", "a"), ("treatment", "b")):
        run("profile", "create", name)
        tree.write(f"/sys/kernel/mmpolicy/experiment/{arm}", name)
    tree.write("/sys/kernel/mmpolicy/experiment/enabled", "1")
    lines = run("watch").out.splitlines()
    assert lines[:2] == ["state: stock", "experiment: b for 50 %, a for the others"]
    assert "[default: 1.0; 0.1<=x<=86400]" in " ".join(run("watch", "--help").out.split())
    for verb in ("watch", "stats"):
        assert run(verb, "--interval", "0.1").code == 0
        assert run(verb, "--interval", "0.09").code == 2


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return what an independent parser reads, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


def test_export(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "adaptive")
    text = run("export").out
    found = samples(text)
    states = {state: found["mmpolicy_state", labels(state=state)] for state in STATES}
    assert states == {"stock": 0, "active": 1, "expired": 0}
    place = {"profile": "default", "point": "anon_order"}
    assert found["mmpolicy_policy", labels(**place, policy="adaptive")] == 1
    assert found["mmpolicy_knob", labels(**place, policy="fixed", knob="max_order")] == 4
    assert found["mmpolicy_events_total", labels(**place, event="decisions")] == 100
    build = labels(abi="2", version=__version__, srcversion="ABC123")
    assert found["mmpolicy_build_info", build] == 1
    assert found["mmpolicy_counters_up", labels()] == 1
    assert "# TYPE mmpolicy_events_total counter" in text
    data = run("export", "--format", "json").json["metrics"]
    assert {"metric": "state", "labels": {"state": "active"}, "value": 1} in data


def test_export_of_the_lease(run: Run, tree: FakeTree) -> None:
    found = samples(run("export").out)
    assert found["mmpolicy_lease_seconds", labels()] == 0
    assert ("mmpolicy_lease_left_seconds", labels()) not in found
    run("lease", "90")
    tree.put(f"{CONTROL}/lease_left_ms", "4500")
    found = samples(run("export").out)
    assert found["mmpolicy_lease_left_seconds", labels()] == 4.5


def test_export_of_times_is_a_histogram(run: Run, tree: FakeTree) -> None:
    times = "fault_ns 8400\nfault_ns_log2_9_0 1\nfault_ns_log2_9_7 2\nfault_ns_log2_10_3 4\n"
    times += "fault_ns_log2_11_1 1\nraised 40"
    stalls = "stall_ns 9000\nstall_ns_log2_12 2\nstall_ns_log2_13 0\n"
    tree.put(STATS, f"{stalls}{times}")
    found = samples(run("export").out)
    place = {"profile": "default", "point": "anon_order"}
    name = "mmpolicy_fault_seconds_bucket"
    assert found[name, labels(**place, le="1.024e-06")] == 3  # 512 to 1023 ns
    assert found[name, labels(**place, le="2.048e-06")] == 7
    assert found[name, labels(**place, le="+Inf")] == 8  # the last one counts longer times too
    assert found["mmpolicy_fault_seconds_count", labels(**place)] == 8
    assert found["mmpolicy_fault_seconds_sum", labels(**place)] == pytest.approx(8.4e-6)
    assert found["mmpolicy_stall_seconds_sum", labels(**place)] == pytest.approx(9e-6)
    assert found["mmpolicy_stall_seconds_count", labels(**place)] == 2
    events = {dict(key[1])["event"] for key in found if key[0] == "mmpolicy_events_total"}
    assert events == {"decisions", "raised"}  # stall_ns and fault_ns are sums of histograms


def test_export_of_bindings(run: Run, tree: FakeTree) -> None:
    """Bindings are exported by the label of container metrics, so that these can be joined with a
    profile.
    """
    tree.make_cgroup("/system.slice/web.service")
    run("profile", "create", "web")
    run("bind", "--cgroup", "/system.slice/web.service", "web")
    found = samples(run("export").out)
    place = labels(id="/system.slice/web.service", profile="web")
    assert found["mmpolicy_binding_info", place] == 1
    assert found["mmpolicy_bound", labels(profile="web", kind="cgroups")] == 1


def test_export_of_huge_pages(run: Run, tree: FakeTree) -> None:
    """Huge pages are exported by common names and labels, also without the module."""
    stat = "anon 1000\nanon_thp 500\nshmem 1000\nshmem_thp 250\nfile 9\nfile_thp 7\nodd\n"
    for path, text in ("/vm", stat), ("/idle", "anon 0\nshmem 0"), ("/none", None):
        tree.make_cgroup(path)
        if text:
            tree.put(f"/sys/fs/cgroup{path}/memory.stat", text)
    vm, idle, none = (frozenset({("id", path)}) for path in ("/vm", "/idle", "/none"))
    for is_loaded in True, False:
        if not is_loaded:
            tree.make_unloaded()
        found = samples(run("export").out)
        for kind, value in ("anon", 500), ("shmem", 250), ("file", 7):
            name = f"container_memory_{kind}_thp_bytes"
            assert (found[name, vm], found[name, idle]) == (value, 0)
            assert (name, none) not in found
        coverage = "mmpolicy_huge_coverage_ratio"
        assert found[coverage, vm] == 0.375
        assert (coverage, idle) not in found
    tree.mount()
    assert not [name for name, _ in samples(run("export").out) if name.startswith("container")]


def test_export_to_a_file(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    file = tmp_path / "mmpolicy.prom"
    assert run("export", "-o", str(file)).code == 0
    assert samples(file.read_text())["mmpolicy_up", labels()] == 1
    assert file.stat().st_mode & 0o777 == 0o644
    tree.make_unloaded()
    assert run("export", "-o", str(file)).code == 0  # an old state would be wrong
    names = {"up", "experiment_running", "maintain_running", "knobs_left", "cut_off"}
    assert set(samples(file.read_text())) == {(f"mmpolicy_{name}", labels()) for name in names}
    printed = run("export")
    assert (printed.code, samples(printed.out)) == (0, samples(file.read_text()))
    assert printed.err.startswith("warning: no ") and "next: mmpolicy load" in printed.err
    json_file = tmp_path / "mmpolicy.json"
    assert run("export", "--format", "json", "-o", str(json_file)).code == 0
    assert json.loads(json_file.read_text())["metrics"][0]["metric"] == "up"
    assert set(tmp_path.iterdir()) == {file, json_file}


def test_export_over_http(run: Run, tree: FakeTree, clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found: list[dict[tuple[str, frozenset[tuple[str, str]]], float]] = []

    def scrape() -> None:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            found.append(samples(answer.read().decode()))

    clock.steps = [scrape, tree.make_unloaded, scrape]
    run("export", "--listen", str(port))
    up = ("mmpolicy_up", labels())
    assert [each[up] for each in found] == [1, 0]
    assert len(found[1]) == 5
    taken = run("export", "--listen", str(port))
    assert (taken.code, "cannot listen" in taken.err) == (1, True)
    assert run("export", "--listen", "nowhere").code == 2


def test_where_export_listens(run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """`export` listens only on this host if no address is given, and until it is terminated."""
    given: list[tuple[int, str]] = []
    monkeypatch.setattr(
        "prometheus_client.start_http_server", lambda port, host, _all: given.append((port, host))
    )
    for text in ("9", "[::1]:0", "0.0.0.0:65535"):
        clock.steps = [lambda: None]
        assert run("export", "--listen", text).code == 130
    assert given == [(9, "127.0.0.1"), (0, "::1"), (65535, "0.0.0.0")]
    assert run("export", "--listen", "65536").code == 2
    assert len(given) == 3
    assert clock.now == 6 * 3600


def test_export_without_debugfs(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "adaptive")
    tree.remove("/sys/kernel/debug/mmpolicy")
    result = run("export")
    found = samples(result.out)
    assert (result.code, found["mmpolicy_counters_up", labels()]) == (0, 0)
    assert found["mmpolicy_state", labels(state="active")] == 1
    assert "mmpolicy_events_total" not in {name for name, _ in found}
