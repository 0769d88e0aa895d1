# SPDX-License-Identifier: GPL-2.0
"""`host`: what is shown without the module."""

import json

import pytest

from .fakes import THP, VM, Clock, FakeTree, Run

STAT = "anon 8388608\nfile 4096\nanon_thp 2097152\nfile_thp 0\npgfault 12"
PSI = (
    "some avg10=1.50 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=3"
)


@pytest.fixture(autouse=True)
def plain(tree: FakeTree) -> FakeTree:
    """Return a host without the module, on which something goes on."""
    tree.make_unloaded()
    tree.put(f"{THP}/hugepages-64kB/stats/anon_fault_alloc", "5")
    tree.put(f"{THP}/hugepages-64kB/stats/swpout", "0")
    tree.put(f"{THP}/khugepaged/pages_collapsed", "33")
    tree.put("/proc/pressure/memory", PSI)
    tree.put("/proc/vmstat", "pgfault 100\nthp_fault_alloc 0\nnr_mapped 8")
    for path in ("/a", "/a/b", "/a/b/c"):
        tree.make_cgroup(path)
        tree.put(f"/sys/fs/cgroup{path}/memory.current", "16777216")
        tree.put(f"/sys/fs/cgroup{path}/memory.stat", STAT)
        tree.put(f"/sys/fs/cgroup{path}/memory.pressure", PSI)
    tree.make_cgroup("/threads")  # nobody accounts for it
    return tree


def rows(out: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in out.splitlines()]


def test_tables(run: Run) -> None:
    result = run("host")
    assert (result.code, result.err) == (0, "")
    found = rows(result.out)
    assert ["64", "kB", "enabled=never", "anon_fault_alloc=5"] in found
    assert ["2048", "kB", "enabled=inherit", "-"] in found
    for line in ["defrag", "madvise"], ["khugepaged/pages_collapsed", "33"], ["pgfault", "100"]:
        assert line in found
    assert ["memory", "some", "1.50", "0.00", "0.00", "7"] in found
    assert ["/a", "16384", "8192", "2048", "4", "0", "1.5", "0.25"] in found
    assert not any("thp_fault_alloc" in line or "nr_mapped" in line for line in found)
    assert not any(line[:1] == ["/a/b"] for line in found)


def test_below_a_cgroup(run: Run) -> None:
    assert list(run("host", "--cgroup", "/a/b", "--json").json["cgroups"]) == ["/a/b", "/a/b/c"]
    assert run("host", "--cgroup", "/none").code == 2


def test_all(run: Run) -> None:
    data = run("host", "--all", "--json").json
    assert data["vmstat"] == {"pgfault": 100, "thp_fault_alloc": 0, "nr_mapped": 8}
    assert data["knobs"]["vm/compaction_proactiveness"] == "20"
    assert "vm/drop_caches" not in data["knobs"]
    assert ["vm/min_free_kbytes", "4000"] in rows(run("host", "--all").out)


def test_watch(run: Run, tree: FakeTree, clock: Clock) -> None:
    clock.steps = [lambda: tree.put("/proc/vmstat", "pgfault 150")]
    first, second = map(json.loads, run("host", "--watch", "--json").out.splitlines())
    assert (first["per_second"], second["per_second"]) == ({}, {"vmstat": {"pgfault": 50.0}})
    clock.steps = [lambda: tree.put("/proc/vmstat", "pgfault 190")]
    assert ["pgfault", "190", "40.0"] in rows(run("host", "--watch").out)


def test_a_host_that_has_little(run: Run, tree: FakeTree) -> None:
    """No huge pages, no pressure, no cgroup v2: what there is is shown."""
    for path in (THP, VM, "/proc/pressure"):
        tree.remove(path)
    tree.put("/proc/self/mounts", "")
    assert rows(run("host").out) == [["EVENT", "VALUE"], ["pgfault", "100"]]
    tree.remove("/proc/vmstat")
    assert run("host").code == 3
