# SPDX-License-Identifier: GPL-2.0
"""`thp`: the kernel's own figures, without the module."""

from __future__ import annotations

import json

import pytest

from .fakes import THP, VM, Clock, FakeTree, Run

STAT = (
    "anon 8388608\nfile 4096\nanon_thp 2097152\nfile_thp 0\npgfault 12\n"
    "shmem 4194304\nshmem_thp 2097152"
)
PSI = (
    "some avg10=1.50 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=3"
)


@pytest.fixture(autouse=True)
def plain(tree: FakeTree) -> FakeTree:
    """Return a host without the module, with some activity."""
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
    tree.make_cgroup("/threads")  # without memory accounting
    return tree


def rows(out: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in out.splitlines()]


def test_tables(run: Run) -> None:
    result = run("thp")
    assert (result.code, result.err) == (0, "")
    found = rows(result.out)
    assert ["64", "kB", "enabled=never", "anon_fault_alloc=5"] in found
    assert ["2048", "kB", "enabled=inherit", "-"] in found
    for line in ["defrag", "madvise"], ["khugepaged/pages_collapsed", "33"], ["pgfault", "100"]:
        assert line in found
    assert ["memory", "some", "1.50", "0.00", "0.00", "7"] in found
    assert ["/a", "16384", "8192", "2048", "4096", "2048", "4", "0", "33.3", "1.5", "0.25"] in found
    assert not any("thp_fault_alloc" in line or "nr_mapped" in line for line in found)
    assert not any(line[:1] == ["/a/b"] for line in found)


def test_cgroups_without_a_memory_controller_are_told(run: Run, tree: FakeTree) -> None:
    """Cgroups without a memory controller are reported, as on a hybrid host, where the controller
    is in a hierarchy of cgroup v1.
    """
    note = "note: the use by cgroup is not shown, as no cgroup accounts for memory on this host"
    assert note not in run("thp").out
    for path in ("/a", "/a/b", "/a/b/c"):
        for name in ("current", "stat", "pressure"):
            tree.remove(f"/sys/fs/cgroup{path}/memory.{name}")
    assert note in run("thp").out.splitlines()


def test_below_a_cgroup(run: Run) -> None:
    assert list(run("thp", "--cgroup", "/a/b", "--json").json["cgroups"]) == ["/a/b", "/a/b/c"]
    assert run("thp", "--cgroup", "/none").code == 2


def test_all(run: Run) -> None:
    data = run("thp", "--all", "--json").json
    assert data["vmstat"] == {"pgfault": 100, "thp_fault_alloc": 0, "nr_mapped": 8}
    assert data["knobs"]["vm/compaction_proactiveness"] == "20"
    assert "vm/drop_caches" not in data["knobs"]
    assert ["vm/min_free_kbytes", "4000"] in rows(run("thp", "--all").out)


ROLLUP = "Rss: {} kB\nAnonHugePages: {} kB\nShmemPmdMapped: {} kB\nFilePmdMapped: 0 kB"


@pytest.mark.parametrize(
    ("pools", "told"),
    [
        ({}, []),
        ({2048: (0, 0)}, []),
        ({2048: (100, 50)}, [["2048", "kB", "100", "50", "0", "0", "200"]]),
        (
            {2048: (100, 100), 1048576: (2, 0)},
            [
                ["1048576", "kB", "2", "0", "0", "0", "2048"],
                ["2048", "kB", "100", "100", "0", "0", "200"],
            ],
        ),
    ],
)
def test_pools_of_hugetlb(
    run: Run, tree: FakeTree, pools: dict[int, tuple[int, int]], told: list[list[str]]
) -> None:
    """Pools of hugetlb with pages are shown, as memory in them is free for no other use."""
    for size, (pages, free) in pools.items():
        for name, value in (("nr", pages), ("free", free), ("resv", 0), ("surplus", 0)):
            tree.put(f"/sys/kernel/mm/hugepages/hugepages-{size}kB/{name}_hugepages", str(value))
    found = run("thp").out.splitlines()
    at = next((n for n, line in enumerate(found) if line.startswith("HUGETLB")), -1)
    assert (at >= 0) == bool(told)
    if told:
        assert [line.split() for line in found[at + 1 : at + 1 + len(told)]] == told
    assert len(run("thp", "--json").json["hugetlb"]) == len(told)


def make_vm(tree: FakeTree, pid: int, name: str, pages: int, anon: int, shmem: int) -> None:
    """Make a process that may run a virtual machine."""
    tree.put(f"/proc/{pid}/statm", f"{pages} {pages} 0 0 0 0 0")
    tree.put(f"/proc/{pid}/comm", name)
    tree.put(f"/proc/{pid}/smaps_rollup", ROLLUP.format(pages * 4, anon, shmem))
    tree.put(f"/proc/{pid}/status", f"VmRSS:\t{pages * 4} kB")
    tree.put(f"/proc/{pid}/pagemap", "")
    tree.real(f"/proc/{pid}/fd").mkdir()


def test_virtual_machines(run: Run, tree: FakeTree) -> None:
    """Processes of QEMU, and others with KVM open, are shown as virtual machines, with their share
    in huge pages.
    """
    assert "MACHINE" not in run("thp").out and "machines" not in run("thp", "--json").json
    make_vm(tree, 20, "qemu-system-x86", 4096, 8192, 4096)
    make_vm(tree, 21, "fc_vcpu", 4096, 0, 0)
    make_vm(tree, 22, "firecracker", 4096, 0, 12288)
    make_vm(tree, 23, "qemu-img", 100, 0, 0)
    tree.real("/proc/22/fd/7").symlink_to("anon_inode:kvm-vm")
    tree.real("/proc/21/fd/7").symlink_to("anon_inode:kvm-vcpu:0")
    tree.put("/proc/24/statm", "")
    found = run("thp", "--vms", "--json").json["machines"]
    assert sorted(each["pid"] for each in found) == [20, 22]
    assert {each["pid"]: each["huge_percent"] for each in found} == {20: 75.0, 22: 75.0}
    row = ["20", "qemu-system-x86", "16384", "12288", "75.0"]
    assert row in rows(run("thp", "--vms").out)
    tree.put("/proc/20/status", f"VmRSS:\t{16 << 20} kB")  # reading smaps would stall it
    found = run("thp", "--vms", "--json").json["machines"]
    assert {each["pid"]: each["huge_percent"] for each in found} == {20: None, 22: 75.0}
    assert "not known" in run("thp", "--vms").out


def test_watch(run: Run, tree: FakeTree, clock: Clock) -> None:
    clock.steps = [lambda: tree.put("/proc/vmstat", "pgfault 150")]
    first, second = map(json.loads, run("thp", "--watch", "--json").out.splitlines())
    assert (first["per_second"], second["per_second"]) == ({}, {"vmstat": {"pgfault": 50.0}})
    clock.steps = [lambda: tree.put("/proc/vmstat", "pgfault 190")]
    assert ["pgfault", "190", "40.0"] in rows(run("thp", "--watch").out)


def test_a_host_that_has_little(run: Run, tree: FakeTree) -> None:
    """On a host without huge pages, pressure or cgroup v2, the other figures are shown."""
    for path in (THP, VM, "/proc/pressure"):
        tree.remove(path)
    tree.mount()
    note, _, *shown = run("thp").out.splitlines()
    assert note.startswith("note: no mounted cgroup hierarchy accounts for memory, by ")
    assert rows("\n".join(shown)) == [["EVENT", "VALUE"], ["pgfault", "100"]]
    tree.remove("/proc/vmstat")
    assert run("thp").code == 3
