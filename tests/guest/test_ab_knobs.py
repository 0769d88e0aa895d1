# SPDX-License-Identifier: GPL-2.0
"""Experiments whose arms set knobs of a kernel without hooks; the module is not loaded. Programs
print the folios that they get.
"""

from __future__ import annotations

import json
import random

import pytest

from lab.guest import Guest
from lab.programs import ran, workload

from .conftest import Machines
from .test_ab import SHORT, ab_run, wait_for
from .tools import ROOT, THP, Pages, folios, must

pytestmark = pytest.mark.flavor("unpatched")

DENSE = "map 4096 touch 0 4096 folios 0 4096"
# A metric: 1 if a program with dense access gets folios of 64 kB, else 0.
LARGE = f"large=cmd:{workload('ops')} {DENSE} | grep -c '\"4\"' || true"
# An arm that turns huge pages off, on which the kernel also changes min_free_kbytes by itself.
ARM = "hugepages-64kB/enabled=always,transparent_hugepage/enabled=never"
ARM += ",compaction_proactiveness=0,khugepaged/pages_to_scan=1"
KNOBS = f"cd / && find {THP} /proc/sys/vm -type f -perm -600 ! -name stat_refresh | sort"
KNOBS += " | xargs grep -s ."
# A command that prints the oom_score_adj of the watchdog: of the child of the process whose PID is
# in the file {mark}.
SPARED = (
    'cd /proc; cat $(grep -ls "^PPid:.$(cat {mark})$" [0-9]*/status | sed s/status/oom_score_adj/)'
)
SMALL: list[Pages] = [{0: 4096}]
FREE = "/proc/sys/vm/min_free_kbytes"
RECOVERY = "/run/mmpolicy/knobs.json"


@pytest.fixture
def plain(machines: Machines) -> Guest:
    """Return a guest whose kernel has no hooks; the module is not loaded."""
    guest = machines.get("unpatched", mem="2G", cpus=2, swap="1G")
    must(guest, f"[ ! -e {ROOT} ] && mmpolicy ab run --help >/dev/null")
    return guest


def test_what_programs_get_changes_with_the_arm(plain: Guest) -> None:
    """In an experiment with knobs, programs get folios of 64 kB only in blocks of the treatment. At
    its end, all knobs have their former values.
    """
    free = must(plain, f"cat {FREE}; echo 12345 >{FREE}")
    before = must(plain, KNOBS)
    assert folios(plain, DENSE) == SMALL
    out, command = ab_run(plain, f"{SHORT} --aa-pairs 1 --pairs 6 --treatment {ARM}", LARGE).split(
        " ", 1
    )
    assert "the former state was restored" in must(plain, command)
    assert must(plain, KNOBS) == before
    assert folios(plain, DENSE) == SMALL
    lines = [json.loads(line) for line in must(plain, f"cat {out}").splitlines()]
    arms = {line["number"]: line["arm"] for line in lines if line["kind"] == "block"}
    phases = {line["number"]: line["phase"] for line in lines if line["kind"] == "block"}
    for sample in (line for line in lines if line["kind"] == "sample"):
        number = sample["block"]
        treated = phases[number] == "ab" and arms[number] == "treatment"
        assert list(sample["host"].values()) == [float(treated)]
    must(plain, f"echo {free.strip()} >{FREE}")


@pytest.mark.parametrize("times", [pytest.param(3), pytest.param(20, marks=pytest.mark.full)])
def test_sigkill_at_any_moment(plain: Guest, times: int) -> None:
    """After SIGKILL at any moment of an experiment, knobs and folios are as before within the
    lease, because the watchdog restores them.
    """
    rng, before, in_force = random.Random(times), must(plain, KNOBS), 0
    endless = (
        "--design switchback --block 0.3 --washout 0.1 --interval 0.1 --aa-pairs 0 --pairs 500"
    )
    knob = f"{THP}/hugepages-64kB/enabled"
    for number in range(times):
        mark = f"/run/pid-knobs-{number}"
        words = f"{endless} --lease 3s --treatment {ARM}"
        command = ab_run(plain, words, "vmstat.pgfault/s").split(" ", 1)[1]
        job = plain.start(f"sh -c 'echo $$ >{mark}; exec {command}' || exit")
        wait_for(plain, f"[ -s {mark} ] && [ -e {RECOVERY} ]")
        if number % 2:  # kill it while the knobs are in force
            wait_for(plain, f"grep -q '.always' {knob}")
            assert must(plain, SPARED.format(mark=mark)) == "-1000\n"
            # SIGSTOP first: a stopped process cannot end the block before the kill
            moment = f"p=$(cat {mark}); until kill -STOP $p; grep -q '.always' {knob}; "
            moment += "do kill -CONT $p; sleep 0.1; done"
        else:  # kill it at any moment of its first second
            moment = f"sleep {rng.uniform(0, 1):.2f}"
        seen = must(plain, f"{moment}; cat {knob}; kill -KILL $(cat {mark})")
        job.wait()
        wait_for(plain, f"[ ! -e {RECOVERY} ]")
        in_force += "[always]" in seen
        assert must(plain, KNOBS) == before, f"{number}: {moment}"
        assert folios(plain, DENSE) == SMALL
        must(plain, f"[ ! -e {RECOVERY} ] && mmpolicy log | grep -q 'was killed'")
    assert in_force
    print(f"killed {times} times, in {in_force} of them with an arm in force")


def test_what_the_administrator_writes_stays(plain: Guest) -> None:
    """If an administrator writes to a knob that an experiment uses, the experiment ends and says
    so. The written value stays, and the other knobs get their former values.
    """
    before = must(plain, KNOBS)
    words = "--design switchback --block 1 --washout 0.1 --interval 0.1 --aa-pairs 0 --pairs 500"
    words += f" --lease 1m --treatment {ARM}"
    command = ab_run(plain, words, "vmstat.pgfault/s").split(" ", 1)[1]
    job = plain.start(command)
    wait_for(plain, f"grep -q '.always' {THP}/hugepages-64kB/enabled && [ -e {RECOVERY} ]")
    # The experiment may overwrite a write that comes at the same moment as its own, so repeat the
    # write until the experiment notices it.
    file, ends = f"{THP}/hugepages-64kB/enabled", f"[ ! -e {RECOVERY} ]"
    must(plain, f"until {ends}; do echo madvise >{file}; sleep 0.3; done", 60)
    result = job.wait()
    assert result.rc == 1
    assert "has changed a knob of the experiment: transparent_hugepage/hugepages-64kB" in result.out
    assert "[madvise]" in must(plain, f"cat {THP}/hugepages-64kB/enabled")
    must(plain, f"echo never >{THP}/hugepages-64kB/enabled")
    assert must(plain, KNOBS) == before


def test_what_is_shown_without_the_module(plain: Guest) -> None:
    """On a kernel without the module, `mmpolicy thp` shows folio sizes, counters and cgroups while
    a program runs.
    """
    must(
        plain, "mkdir -p /sys/fs/cgroup/shown; echo +memory >/sys/fs/cgroup/cgroup.subtree_control"
    )
    must(plain, f"echo always >{THP}/hugepages-64kB/enabled")
    show = "mmpolicy thp --json --cgroup shown"
    inner = f"echo 0 >/sys/fs/cgroup/shown/cgroup.procs; exec {workload('ops')} {DENSE} sh"
    first = ran(plain, show)
    shown = must(plain, f"sh -c {json.dumps(f'{inner} {json.dumps(show)}')}")
    held = json.loads(shown[shown.index("{\n") :])
    must(plain, f"echo never >{THP}/hugepages-64kB/enabled; rmdir /sys/fs/cgroup/shown")
    counted = [int(each["sizes"]["64 kB"]["stats"]["anon_fault_alloc"]) for each in (first, held)]
    assert counted[1] - counted[0] >= 256
    assert held["sizes"]["64 kB"]["set"]["enabled"] == "always"
    assert held["cgroups"]["/shown"]["anon_kib"] >= 16384 > first["cgroups"]["/shown"]["anon_kib"]
    assert held["vmstat"]["pgfault"] > first["vmstat"]["pgfault"]
