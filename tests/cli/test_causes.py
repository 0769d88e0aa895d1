# SPDX-License-Identifier: GPL-2.0
"""Each verb names each cause that keeps policies from a process, and never a false one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ab_world import SHORT
from .fakes import THP, Clock, FakeTree, Run
from .sparse import make_sparse, make_thp
from .test_explain import make_traced

SERVICE = "/system.slice/app.service"
MIB = 40  # small enough that smaps may be read
CAUSES = {
    "prctl": "forbidden large folios for all of its memory (prctl PR_SET_THP_DISABLE)",
    "MemoryTHP=disable": "cause: MemoryTHP=disable of app.service",
    "MemoryTHP=madvise": "cause: MemoryTHP=madvise of app.service",
    "MADV_NOHUGEPAGE": "refuses large folios for this memory (MADV_NOHUGEPAGE)",
    "userfaultfd": "as a userfaultfd serves the faults of this memory",
    "hugetlb": "as this memory is hugetlb",
    "shared": "as this is shared memory",
    "files": "as this memory maps files",
}
DECIDES = {
    "prctl": "itself", "MemoryTHP=disable": "itself", "MemoryTHP=madvise": "unit",
    "MADV_NOHUGEPAGE": "itself", "userfaultfd": "uffd", "hugetlb": "hugetlb", "shared": "shmem",
    "files": "files", "": "default",
}  # fmt: skip
FLAGS = {"MADV_NOHUGEPAGE": "rd wr nh", "userfaultfd": "rd wr um"}


def make(tree: FakeTree, cause: str) -> None:
    """Make a process of a service with a cause."""
    make_sparse(tree, 10, "app", MIB << 8, 16, SERVICE, FLAGS.get(cause, "rd wr"))
    mib = {"RssAnon": MIB, "RssShmem": 0, "RssFile": 0, "HugetlbPages": 0}
    other = {"shared": "RssShmem", "files": "RssFile", "hugetlb": "HugetlbPages"}.get(cause)
    if other:
        mib |= {"RssAnon": 1, other: 100}
    mib["VmRSS"] = mib["RssAnon"] + mib["RssShmem"] + mib["RssFile"]
    forbids = cause in ("prctl", "MemoryTHP=disable")
    lines = [f"{name}:\t{size << 10} kB" for name, size in mib.items()]
    tree.put("/proc/10/status", "\n".join(["Name:\tapp", *lines, f"THP_enabled:\t{1 - forbids}"]))
    if cause.startswith("MemoryTHP"):
        tree.put("/etc/systemd/system/app.service", f"[Service]\n{cause}")
    if cause == "MemoryTHP=madvise":
        smaps = tree.read("/proc/10/smaps")
        tree.put("/proc/10/smaps", smaps.replace("VmFlags", "THPeligible:    0\nVmFlags"))


@pytest.fixture
def host(tree: FakeTree, clock: Clock, run: Run) -> FakeTree:
    """Return a host with a policy for one profile, and with a size that is enabled for all."""
    make_thp(tree)
    make_traced(tree)
    tree.put(f"{THP}/hugepages-64kB/enabled", "[always] inherit madvise never")
    for file, text in ("statm", "99999 99999"), ("smaps_rollup", ""):  # smaps cost nothing
        tree.put(f"/proc/self/{file}", text)
    clock.steps = [lambda: None] * 999
    run("profile", "create", "web")
    assert run("set", "anon_order", "adaptive", "--profile", "web").code == 0
    return tree


def told(run: Run, folder: Path) -> dict[str, str]:
    """Return the output of each verb."""
    words = {
        "ab run": ["ab", "run", "--dry-run", "--design", "switchback", *SHORT, "--out",
                   str(folder / "x"), "--cgroup", SERVICE, "--treatment", "anon_order=adaptive",
                   "--metric", "vmstat.pgfault/s lower"],
        "bind": ["bind", "--cgroup", SERVICE, "web"],
        "status": ["status"],
        "explain": ["explain", "10"],
        "recommend": ["recommend", "10"],
    }  # fmt: skip
    results = {verb: run(*argv) for verb, argv in words.items()}
    return {verb: result.out + result.err for verb, result in results.items()}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_verb_names_it(run: Run, host: FakeTree, tmp_path: Path, cause: str) -> None:
    make(host, cause)
    for verb, text in told(run, tmp_path).items():
        lines = [line for line in text.splitlines() if "app (pid 10): no policy" in line]
        assert lines and CAUSES[cause] in lines[0], f"{verb}:\n{text}"
        assert "remedy: " in lines[0] or "\nnext: " in text


def test_without_a_cause_nothing_is_printed(run: Run, host: FakeTree, tmp_path: Path) -> None:
    make(host, "")
    for verb, text in told(run, tmp_path).items():
        assert "no policy for large folios" not in text, f"{verb}:\n{text}"


@pytest.mark.parametrize(("cause", "decides"), DECIDES.items())
def test_top_says_who_decides(run: Run, host: FakeTree, cause: str, decides: str) -> None:
    make(host, cause)
    (row,) = run("top", "-n", "1", "--json", "--cpu", "100").json["processes"]
    assert row["decides"] == decides
    text = "".join(f"{each['what']}; cause: {each['likely']}" for each in row["barriers"])
    assert CAUSES[cause] in text if cause else text == ""
