# SPDX-License-Identifier: GPL-2.0
"""Experiments in the kernel module: each unit (a process or a cgroup) gets the folios of its arm,
and is counted in the counters of that arm.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from lab.guest import Guest
from lab.machine import cache_dir
from lab.programs import ran, workload
from mmpolicy.ab.design import MAX_SEED
from mmpolicy.ab.run.units import arms_of, balanced

from .tools import ROOT, TOP, Pages, Poke, histograms, must, ops_command, poke, refused

PROFILES = f"{ROOT}/profiles"
EXPERIMENT = f"{ROOT}/experiment"
DEBUG = "/sys/kernel/debug/mmpolicy"
UNITS = 24
DENSE = ops_command("map 64 touch 0 64 folios 0 64")
CONTROL: Pages = {0: 64}
TREATED: Pages = {4: 64}
ARMS = ("control", "treatment")


@pytest.fixture
def arms(loaded: Guest) -> Iterator[Guest]:
    """Yield a guest with cgroups, and an experiment that only has to be enabled. The profile of its
    control arm gives single pages, that of its treatment arm 64 kB folios.
    """
    script = f"""
    for arm in {" ".join(ARMS)}; do
        echo $arm >{PROFILES}/create && echo $arm >{EXPERIMENT}/$arm || exit
    done
    echo never >{PROFILES}/control/anon_order/policy
    echo fixed >{PROFILES}/treatment/anon_order/policy
    mkdir -p {TOP} && cd {TOP} && mkdir $(seq {UNITS})
    """
    must(loaded, script)
    yield loaded
    must(loaded, f"echo 1 >{ROOT}/reset; cd {TOP} && rmdir $(seq {UNITS}) && rmdir {TOP}")


def enable(guest: Guest, **files: object) -> None:
    """Disable the experiment, write these values to its files, and enable it again."""
    lines = [f"echo {value} >{EXPERIMENT}/{name}" for name, value in files.items()]
    switch = f"echo 0 >{EXPERIMENT}/enabled", *lines, f"echo 1 >{EXPERIMENT}/enabled"
    must(guest, " && ".join(switch))


def run_in_each_cgroup(guest: Guest) -> set[int]:
    """Run a program in each cgroup, and return the numbers of the cgroups whose program got the
    folios of the treatment. All others must have got those of the control.
    """
    body = f"echo $$ >{TOP}/$1/cgroup.procs && exec {DENSE}"
    found = must(
        guest, f"for i in $(seq {UNITS}); do sh -c {shlex.quote(body)} sh $i || exit; done"
    )
    pages = histograms(found)
    assert len(pages) == UNITS
    assert all(some in (CONTROL, TREATED) for some in pages)
    return {unit for unit, some in enumerate(pages) if some == TREATED}


def units(guest: Guest) -> dict[str, int]:
    """Return how many units (processes or cgroups) each arm of the experiment has."""
    lines = must(guest, f"cat {DEBUG}/experiment/units").splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def stats(guest: Guest, profile: str) -> dict[str, int]:
    """Return the counters of the hook point anon_order in a profile."""
    lines = must(guest, f"cat {DEBUG}/{profile}/anon_order/stats").splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def timed(counters: dict[str, int], octave: str = "") -> int:
    """Return how many faults are in the histogram of fault times, or in one octave of it."""
    return sum(n for name, n in counters.items() if name.startswith(f"fault_ns_log2_{octave}"))


def least_ns(counters: dict[str, int]) -> float:
    """Return a lower bound of the ns that all faults in the histogram took together: each fault
    counts as the lower end of its bucket.
    """
    names = (re.fullmatch(r"fault_ns_log2_(\d+)_(\d)", name) for name in counters)
    return sum(counters[m[0]] * 2.0 ** int(m[1]) * (8 + int(m[2])) / 8 for m in names if m)


def test_cgroups_as_units(arms: Guest) -> None:
    """A cgroup keeps its arm as long as the seed stays. A higher percentage moves cgroups only from
    control to treatment, and another seed assigns all of them anew.
    """
    enable(arms, unit="cgroup", percent=30, seed=1)
    some = run_in_each_cgroup(arms)
    assert 0 < len(some) < UNITS
    must(arms, f"echo 60 >{EXPERIMENT}/percent")
    more = run_in_each_cgroup(arms)
    assert some < more
    assert len(more) < UNITS
    for percent, count in ((0, 0), (100, UNITS)):
        must(arms, f"echo {percent} >{EXPERIMENT}/percent")
        assert len(run_in_each_cgroup(arms)) == count
    enable(arms, percent=30, seed=2)
    assert run_in_each_cgroup(arms) != some
    enable(arms, percent=30, seed=1)
    assert run_in_each_cgroup(arms) == some


@pytest.mark.parametrize(("seed", "percent"), [(1, 50), (2**40 + 7, 40), (MAX_SEED - 1, 50)])
def test_the_command_knows_the_arm_of_a_cgroup(arms: Guest, seed: int, percent: int) -> None:
    """mmpolicy computes the arms of cgroups as the kernel does, and finds seeds with which the
    kernel treats half of them.
    """
    ids = must(arms, f"cd {TOP} && stat -c %i $(seq {UNITS})").split()
    units = {str(unit): int(number) for unit, number in enumerate(ids)}
    found = arms_of(units, seed, percent)
    enable(arms, unit="cgroup", percent=percent, seed=seed)
    treated = {int(unit) for unit, arm in found.items() if arm == "treatment"}
    assert run_in_each_cgroup(arms) == treated
    assert 0 < len(treated) < UNITS
    even = balanced(units, seed)
    enable(arms, percent=50, seed=even)
    assert len(run_in_each_cgroup(arms)) == UNITS / 2


def test_processes_as_units(arms: Guest) -> None:
    """With processes as units, a process keeps its arm, also after exec(). Each of its children is
    a unit of its own.
    """
    enable(arms, percent=50, seed=3)
    again = ops_command("map 64 touch 0 64 folios 0 64 map 64 touch 0 64 folios 0 64")
    shells = f"for i in $(seq 40); do sh -c 'exec sh -c \"exec {again}\"' & wait $!; done"
    found = histograms(must(arms, shells))
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(first == second for first, second in pairs)
    assert 6 < sum(first == TREATED for first, _ in pairs) < 34
    seen = units(arms)
    assert seen["control"] + seen["treatment"] >= 40
    assert not seen["full"]


def test_only_a_part_of_the_hierarchy(arms: Guest) -> None:
    """If the experiment is limited to a cgroup, the default profile decides for processes in all
    other cgroups.
    """
    enable(arms, unit="cgroup", percent=100, cgroup=f"$(stat -c %i {TOP}/7)")
    assert run_in_each_cgroup(arms) == {6}
    assert units(arms) == {"control": 0, "treatment": 1, "full": 0}


def test_bindings_win(arms: Guest) -> None:
    """A cgroup that is bound to a profile takes no part in the experiment until it is unbound."""
    enable(arms, unit="cgroup", percent=100, cgroup=f"$(stat -c %i {TOP})")
    number = must(arms, f"stat -c %i {TOP}/3").strip()
    must(arms, f"echo {number} >{PROFILES}/control/cgroups")
    everyone = {*range(UNITS)}
    assert run_in_each_cgroup(arms) == everyone - {2}
    must(arms, f"echo -{number} >{PROFILES}/control/cgroups")
    assert run_in_each_cgroup(arms) == everyone


def test_what_may_not_change_meanwhile(arms: Guest) -> None:
    """While an experiment runs, its arms, unit, seed and cgroup cannot be changed, nor the profiles
    of its arms deleted; the cgroups keep their arms.
    """
    enable(arms, unit="cgroup", percent=50, seed=4)
    before = run_in_each_cgroup(arms)
    values = {"control": "none", "treatment": "none", "unit": "process", "seed": "5", "cgroup": "1"}
    values["time_faults"] = "1"
    pokes = [Poke(f"{EXPERIMENT}/{name}", text, 1, ("EBUSY",)) for name, text in values.items()]
    pokes += [Poke(f"{PROFILES}/delete", arm, 1, ("EBUSY",)) for arm in ARMS]
    refused(poke(arms, pokes))
    assert run_in_each_cgroup(arms) == before
    must(arms, f"echo 0 >{EXPERIMENT}/enabled")
    refused(poke(arms, [Poke(f"{PROFILES}/delete", arm, 1, ("EBUSY",)) for arm in ARMS]))


def test_nothing_runs_without_two_arms(arms: Guest) -> None:
    """An experiment with fewer than two arms cannot be enabled: the write fails with EINVAL, and
    all policies stay at stock.
    """
    must(arms, f"echo none >{EXPERIMENT}/control")
    pokes = [Poke(f"{EXPERIMENT}/enabled", "1", 1, ("EINVAL",))]
    pokes += [Poke(f"{EXPERIMENT}/control", "default", 1, ("EINVAL",))]
    pokes += [Poke(f"{EXPERIMENT}/control", "treatment", 1, ("EINVAL",))]
    pokes += [Poke(f"{EXPERIMENT}/control", name, 1, ("ENOENT",)) for name in ("nobody", "\nb")]
    pokes += [
        Poke(f"{EXPERIMENT}/percent", text, 1, ("ERANGE", "EINVAL")) for text in ("101", "-1")
    ]
    refused(poke(arms, pokes))
    assert histograms(must(arms, DENSE)) == [CONTROL]


@pytest.mark.parametrize(("arm", "percent"), [("control", 0), ("treatment", 100)])
def test_counters_of_an_arm(arms: Guest, arm: str, percent: int) -> None:
    """Decisions, folios and fault times of a process are counted in the profile of the arm that the
    process belongs to.
    """
    enable(arms, unit="cgroup", percent=percent, time_faults=1, cgroup=f"$(stat -c %i {TOP}/1)")
    other = ARMS[arm == "control"]
    inside = f"sh -c 'echo $$ >{TOP}/1/cgroup.procs && exec {workload('touch')} forward 16 2'"
    before = stats(arms, arm)
    found = ran(arms, inside)
    after = stats(arms, arm)
    rise = {name: after[name] - before[name] for name in after}
    faults = 2 * 4096 if arm == "control" else 2 * 256
    assert faults / 16.5 / 1.5 <= timed(rise) + rise["fault_missed"] <= (faults + 300) / 16.5 * 1.5
    assert rise["fault_missed"] <= 1 + timed(rise) / 10
    # the sum of the times agrees with the buckets of the histogram
    assert 1 <= rise["fault_ns"] / least_ns(rise) < 9 / 8
    assert faults <= 2 * found["faults"] + 2
    if arm == "control":
        assert rise["requested_order_0"] >= faults
    else:
        assert faults <= rise["allocated_order_4"] <= faults + 50
    assert not timed(stats(arms, other)) and not stats(arms, other)["requested_order_0"]
    must(arms, f"echo 0 >{EXPERIMENT}/enabled")
    ran(arms, inside)
    assert timed(stats(arms, arm)) == timed(after)


def test_faults_are_timed_on_request_alone(arms: Guest) -> None:
    """The module times faults only if time_faults is 1; an enabled experiment alone is not enough.
    It then times them even if all hook points are at stock.
    """
    enable(arms, unit="cgroup", percent=0, time_faults=0)
    ran(arms, f"{workload('touch')} forward 16 1")
    assert stats(arms, "control")["requested_order_0"] >= 4096
    assert not timed(stats(arms, "control"))
    must(arms, f"for file in {PROFILES}/*/anon_order/policy; do echo stock >$file || exit; done")
    enable(arms, time_faults=1)
    ran(arms, f"{workload('touch')} forward 16 1")
    after = stats(arms, "control")
    assert timed(after) > 4096 / 16.5 / 1.5
    assert after["stock"] >= 4096
    must(arms, f"echo 0 >{EXPERIMENT}/enabled")
    # read again, as reading the counters the first time has taken faults, too
    after = stats(arms, "control")
    ran(arms, f"{workload('touch')} forward 16 1")
    assert stats(arms, "control") == after


SCRAPE = """
scrape_configs:
  - job_name: mmpolicy
    scrape_interval: 5s
    scrape_timeout: 5s
    static_configs: [{targets: ["127.0.0.1:9400"]}]
"""


def test_prometheus_knows_how_long_faults_take(arms: Guest) -> None:
    """Debian's Prometheus scrapes `mmpolicy export`, and computes a quantile of fault times that
    agrees with the module's counters.
    """
    enable(arms, unit="cgroup", percent=0, time_faults=1)
    ran(arms, f"{workload('touch')} forward 16 9")
    must(arms, f"echo 0 >{EXPERIMENT}/enabled; echo {shlex.quote(SCRAPE)} >/run/scrape.yml")
    programs = cache_dir() / "prometheus/usr/bin"
    arms.start("exec mmpolicy export --listen 9400")
    server = f"exec {programs}/prometheus --config.file=/run/scrape.yml"
    arms.start(f"{server} --storage.tsdb.path=/run/p")
    series = 'mmpolicy_fault_seconds_bucket{profile="control",point="anon_order"}'
    quantile = f"histogram_quantile(0.5, {series})"
    ask = f"{programs}/promtool query instant -o json http://127.0.0.1:9090 {shlex.quote(quantile)}"
    found = must(arms, f"until {ask} 2>/dev/null | grep -m 1 value; do sleep 1; done", 300)
    must(arms, "pkill -x prometheus; pkill -f '[m]mpolicy export'")
    counts = stats(arms, "control")
    below, log2 = 0, 6
    while below < timed(counts) / 2:
        log2 += 1
        below += timed(counts, f"{log2}_")
    assert timed(counts) > 1000
    assert 2**log2 <= float(json.loads(found)[0]["value"][1]) * 1e9 <= 2 ** (log2 + 1)
