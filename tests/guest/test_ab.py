# SPDX-License-Identifier: GPL-2.0
"""`ab run` on a real kernel: experiments find effects that exist, and always restore the settings
of before.
"""

from __future__ import annotations

import itertools
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image
from matplotlib.colors import to_rgb

from lab.guest import Guest, Job
from lab.programs import workload
from mmpolicy.ab.report.html import COLOURS

from .conftest import Machines
from .tools import ROOT, must

STATE = f"cd {ROOT}; grep -rs . experiment profiles lease_ms state | sort"
OVER = f"until grep -qE '^(stock|expired)$' {ROOT}/state; do sleep 0.1; done"
FIXED, ADAPTIVE = ("anon_order=fixed,max_order=4", "anon_order=adaptive,max_order=4")
WIDTH, HEIGHT = 1000, 2400
BROWSER = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
BROWSER += [f"--window-size={WIDTH},{HEIGHT}", "--host-resolver-rules=MAP * ~NOTFOUND"]
NUMBERS = itertools.count()
SECONDS = 20.0  # rough duration of each test, for the schedule
INCONCLUSIVE, WORSE = 7, 8


def says(pattern: str, key: str) -> str:
    """Return the definition of a metric: a command that runs the workload touch with an access
    pattern, and takes the number after `key` from its output. Each sample runs this command.
    """
    return f"{key}=cmd:{workload('touch')} {pattern} | grep -o '\"{key}\": [0-9]*'"


def ab_run(guest: Guest, words: str, *metrics: str) -> str:
    """Return a command line that runs an experiment, preceded by the path of its samples file and a
    space.
    """
    out = f"/run/ab-{next(NUMBERS)}.jsonl"
    options = " ".join(f"--metric {shlex.quote(metric)}" for metric in metrics)
    return f"{out} mmpolicy ab run --out {out} {words} {options}"


def report_of(
    guest: Guest,
    words: str,
    *metrics: str,
    folder: Path,
    codes: Sequence[int] = (0,),
    noisy: str = "no metric",
) -> dict[str, Any]:
    """Run an experiment to its end in the guest, and return its report. The report is made on this
    machine, which is faster than the guest.

    codes: exit codes that the report may have. noisy: a metric that may vary too much for a
    finding, such as a time in an emulated guest.
    """
    out, command = ab_run(guest, words, *metrics).split(" ", 1)
    before = must(guest, STATE)
    must(guest, command)
    assert must(guest, STATE) == before
    samples, page = folder / "samples.jsonl", folder / "report.html"
    samples.write_text(must(guest, f"cat {out}"))
    argv = [sys.executable, "-m", "mmpolicy", "ab", "report", "--json", "--html", str(page)]
    report = subprocess.run([*argv, str(samples)], check=False, capture_output=True, text=True)
    data: dict[str, Any] = json.loads(report.stdout)
    assert not [doubt for doubt in data["doubts"] if not doubt.startswith(f"{noisy}:")]
    if data["doubts"]:
        codes = (*codes, INCONCLUSIVE)
    assert report.returncode in codes, data["verdict"]
    return data


def effects(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of each metric in a report, by its name."""
    return {each["metric"]: each for each in data["metrics"]}


def seen_in_a_browser(data: dict[str, Any], page: Path) -> None:
    """Check in Chromium that the page of a report shows the verdict, a line for each metric, and
    coloured plots.
    """
    picture = page.with_suffix(".png")
    argv = [*BROWSER, f"--user-data-dir={page.parent}/browser", f"--screenshot={picture}"]
    shown = subprocess.run(
        [*argv, "--dump-dom", page.as_uri()],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert f'<p class="verdict shown">{escape(data["verdict"])}</p>' in shown.stdout
    assert shown.stdout.count('<svg role="img"') == 1 + 2 * len(data["metrics"])
    pixels = (255 * image.imread(picture)[:, :, :3]).round().astype(int)
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    for colour in COLOURS.values():
        assert (pixels == [round(255 * part) for part in to_rgb(colour)]).all(axis=2).sum() > 50


# Experiments in which `ab run` must find effects that exist. The guest's clock counts instructions
# (icount) and jumps while the guest waits: an idle second takes no time, a read from the host some.
# Blocks are long, so that a jump is a small part of a block.

OPTIONS = "--design switchback --aa-pairs 2 --pairs 12 --lease 1h --cmd-timeout 1h"
LONG_BLOCKS = f"{OPTIONS} --block 100 --washout 20 --interval 80"
SHORT = f"{OPTIONS} --block 0.2 --washout 0.1 --interval 0.1"


@pytest.fixture
def counting(machines: Machines) -> Guest:
    """A guest whose clock counts instructions, with the module loaded."""
    guest = machines.get(mem="2G", icount=True)
    must(guest, "modprobe mmpolicy && mmpolicy ab run --help >/dev/null")
    return guest


@pytest.mark.full
def test_equal_arms(counting: Guest, tmp_path: Path) -> None:
    """An experiment with the same settings in both arms finds no effect."""
    metrics = says("every_64k 4", "kb"), says("forward 4", "faults")
    words = f"{LONG_BLOCKS} --control {FIXED}"
    report = report_of(counting, words, *metrics, folder=tmp_path, codes=[INCONCLUSIVE])
    for found in effects(report).values():
        assert (found["found"], found["effect"]["p"]) == (False, 1)
    assert report["verdict"] == "both arms are the same, and no difference was found"


def test_sparse_memory(counting: Guest, tmp_path: Path) -> None:
    """On sparse access (one page in 64 kB), `adaptive` saves the memory that 64 kB folios waste."""
    words = f"{LONG_BLOCKS} --control {FIXED} --treatment {ADAPTIVE}"
    metrics = f"{says('every_64k 4', 'kb')} lower", says("forward 4", "mismatches")
    report = report_of(counting, words, *metrics, folder=tmp_path)
    found = effects(report)
    assert found["kb"]["found"]
    assert found["kb"]["effect"]["high"] < -90
    assert not found["mismatches"]["found"]
    assert "kb fell by" in report["verdict"]
    seen_in_a_browser(report, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("pattern", "key"),
    (("forward 8 15", "ticks"), pytest.param("forward 2", "faults", marks=pytest.mark.full)),
)
def test_dense_speed(counting: Guest, tmp_path: Path, pattern: str, key: str) -> None:
    """On dense access, `adaptive` takes less than half the instructions of stock with 4 kB pages.

    Each run has one metric, as commands of a sample run at once and would count each other. An
    interrupt may change a round of 2 MB by a third, but not one of 8 MB.
    """
    words = f"{LONG_BLOCKS} --control stock --treatment {ADAPTIVE}"
    found = effects(report_of(counting, words, f"{says(pattern, key)} lower", folder=tmp_path))
    assert found[key]["found"]
    assert found[key]["effect"]["high"] < -50


def test_guard_restores_within_a_second(counting: Guest) -> None:
    """At most a second after a guard of an experiment is broken, another process reads the former
    value from the knob.
    """
    guest = counting
    never_idle = guest.start("exec chrt -i 0 sh -c 'while :; do :; done'")  # so no clock jumps
    must(guest, "mkdir -p /sys/fs/cgroup/guarded")
    before = must(guest, STATE)
    words = f"{SHORT} --control {FIXED} --treatment {ADAPTIVE} --pairs 200"
    guard = "--guard 'cgroup:/guarded/cgroup.stat:nr_descendants < 1'"
    out, command = ab_run(guest, f"{words} {guard}", "vmstat.pgfault/s").split(" ", 1)
    job = guest.start(command)
    wait_for(guest, f'grep -q \'"phase": "ab"\' {out}')
    now = "cut -d ' ' -f 1 /proc/uptime"
    took = must(
        guest,
        f"{now}; mkdir /sys/fs/cgroup/guarded/child\n"
        f"while grep -q 1 {ROOT}/experiment/enabled; do sleep 0.01; done; {now}\n"
        f"while [ -d {ROOT}/profiles/ab-control ]; do sleep 0.01; done; {now}\n"
        "rmdir /sys/fs/cgroup/guarded/child",
    )
    broken, stopped, restored = map(float, took.split())
    result = job.wait()
    never_idle.stop()
    assert result.rc == 1
    assert (
        "guard 'cgroup:/guarded/cgroup.stat:nr_descendants < 1' is violated: the value is 1"
        in result.out
    )
    assert must(guest, STATE) == before
    print(f"stopped {stopped - broken:.2f} s, restored {restored - broken:.2f} s after the break")
    assert stopped - broken <= restored - broken <= 1


# From here on, tests use a guest with a real clock. Leases expire by the clock, which therefore
# must not jump.


def wait_for(guest: Guest, condition: str) -> None:
    """Wait until a shell command succeeds."""
    must(
        guest, f"n=0; until {condition}; do sleep 0.05; n=$((n + 1)); [ $n -lt 1200 ] || exit; done"
    )


ENDLESS = "--block 0.3 --washout 0.1 --interval 0.1 --aa-pairs 2 --pairs 500"


def begin(guest: Guest, design: str, lease: str = "1m", more: str = "") -> tuple[str, Job]:
    """Start an experiment that lasts longer than the test. Return the PID of its process, and the
    job of the guest's shell.
    """
    metric = "vmstat.pgfault/s" if design == "switchback" else "arm.anon_order.allocated_order_4"
    words = f"--design {design} {ENDLESS} --lease {lease} --control {FIXED} --treatment {ADAPTIVE}"
    words += f" {more}"
    command = ab_run(guest, words, metric).split(" ", 1)[1]
    mark = f"/run/pid-{next(NUMBERS)}"
    job = guest.start(f"sh -c {shlex.quote(f'echo $$ >{mark}; exec {command}')} || exit")
    wait_for(guest, f"[ -s {mark} ]")
    return must(guest, f"cat {mark}").strip(), job


@pytest.mark.parametrize("times", [pytest.param(3), pytest.param(20, marks=pytest.mark.full)])
def test_sigkill_ends_in_stock(loaded: Guest, times: int) -> None:
    """After SIGKILL at any moment of an experiment, all policies are at stock within its lease, and
    it has left no file of its own.
    """
    rng = random.Random(times)
    before = must(loaded, STATE)
    expired = 0
    for number in range(times):
        pid, job = begin(loaded, ("switchback", "split")[number % 2], lease="3s")
        if number % 3 != 2:  # every third kill may hit the start of the run
            wait_for(loaded, f"grep -q 1 {ROOT}/experiment/enabled")
        moment = rng.uniform(0, 2)
        late = must(loaded, f"sleep {moment:.2f}; kill -KILL {pid}; sleep 4; {OVER}; {STATE}")
        job.wait()
        state = late.rpartition("state:")[2].strip()
        assert late.replace(f"state:{state}", "state:stock") == before, f"{number}: {moment:.2f} s"
        assert state in ("expired", "stock")
        expired += state == "expired"
        must(loaded, f"echo 1 >{ROOT}/reset")
        assert must(loaded, STATE) == before
    assert expired >= times // 2
    print(f"killed {times} times; in {expired} of them the lease had to expire")


def test_two_at_once(loaded: Guest) -> None:
    """While an experiment runs, a second one is refused with an error that names the first. SIGHUP
    and SIGTERM end the first one and restore the former state.

    SIGINT is not tested: a background job of the shell and its children ignore it.
    """
    before = must(loaded, STATE)
    for signal, status in (("HUP", 129), ("TERM", 143)):
        pid, job = begin(loaded, "switchback")
        wait_for(loaded, f"grep -q 1 {ROOT}/experiment/enabled")
        second = loaded.run(ab_run(loaded, ENDLESS, "arm.units").split(" ", 1)[1])
        assert second.rc == 1
        assert f"is locked by ab run, pid {pid}, until about " in second.out
        must(loaded, f"kill -{signal} {pid}")
        first = job.wait()
        assert first.rc == status  # 128 plus the number of the signal
        assert f"interrupted: by SIG{signal}; the former state was restored" in first.out
        assert must(loaded, STATE) == before


def test_a_cgroup_that_cannot_take_part(loaded: Guest) -> None:
    """An experiment is refused in a cgroup that is bound to a profile or inside a bound one. If the
    cgroup of a running experiment is removed, the experiment ends.
    """
    inner = "/sys/fs/cgroup/scope/inner"
    must(loaded, f"mkdir -p {inner}; mmpolicy profile create own")
    must(loaded, "mmpolicy bind --cgroup scope own")
    before = must(loaded, STATE)
    for cgroup in ("scope", "scope/inner"):
        words = f"{ENDLESS} --treatment {ADAPTIVE} --cgroup {cgroup}"
        result = loaded.run(ab_run(loaded, words, "arm.units").split(" ", 1)[1])
        assert result.rc == 2
        assert "cgroup /scope is bound to own, and a binding overrides an experiment" in result.out
        assert must(loaded, STATE) == before
    must(loaded, "mmpolicy unbind --cgroup scope; mmpolicy profile delete own")
    before = must(loaded, STATE)
    for design in ("split", "switchback"):
        _, job = begin(loaded, design, more="--cgroup scope/inner")
        wait_for(loaded, f"grep -q 1 {ROOT}/experiment/enabled")
        must(loaded, f"rmdir {inner}")
        result = job.wait()
        assert result.rc == 1
        assert "lost: cgroup /scope/inner was removed" in result.out
        assert must(loaded, STATE) == before
        must(loaded, f"mkdir {inner}")
    must(loaded, f"rmdir {inner} /sys/fs/cgroup/scope")


def test_a_cgroup_that_is_made_anew(loaded: Guest, tmp_path: Path) -> None:
    """If the command of --at-switch creates the cgroup of an experiment again, the policy of the
    arm also decides for processes in the new cgroup. If no process is in the cgroup, the report
    says that nothing was compared.
    """
    folder = "/sys/fs/cgroup/again"
    must(loaded, f"mkdir {folder}")
    anew = f"--at-switch 'rmdir {folder}; mkdir {folder}'"
    inside = f"echo $$ >{folder}/cgroup.procs; exec {workload('touch')} every_64k 1"
    metric = f"kb=cmd:sh -c '{inside}' | grep -o '\"kb\": [0-9]*'"
    words = f"--design switchback --control stock --treatment {ADAPTIVE} --lease 60 --cgroup again"
    words += " --block 0.4 --washout 0.1 --interval 0.1 --aa-pairs 2 --pairs 6"
    for compared, decided in ((metric, True), ("vmstat.pgfault/s", False)):
        out, command = ab_run(loaded, f"{words} {anew}", compared).split(" ", 1)
        must(loaded, command)
        samples = tmp_path / f"{decided}.jsonl"
        samples.write_text(must(loaded, f"cat {out}"))
        argv = [sys.executable, "-m", "mmpolicy", "ab", "report", "--json", str(samples)]
        report = subprocess.run(argv, check=False, capture_output=True, text=True)
        data = json.loads(report.stdout)
        doubt = (
            "no policy decided anything in treatment, so nothing was compared; does any "
            "process in the scope have page faults?"
        )
        assert (data["doubts"] == [doubt]) == (not decided)
    must(loaded, f"rmdir {folder}")


def test_split(loaded: Guest, tmp_path: Path) -> None:
    """With --design split, on sparse access, only the processes in the control arm (`fixed`) get
    large folios, and those in the treatment arm do not.
    """
    touch = f"{workload('touch')} every_64k 1 >/dev/null"
    job = loaded.start(f"while [ ! -e /run/enough ]; do {touch}; done")
    words = (
        f"--design split --control {FIXED} --treatment {ADAPTIVE} --lease 60 --aa-pairs 2 --pairs 7"
    )
    words += " --block 1.5 --washout 0.1 --interval 0.7"
    metrics = (
        "large=arm.anon_order.allocated_order_4 / arm.units lower",
        "arm.anon_order.fault_ns",
    )
    report = report_of(loaded, words, *metrics, folder=tmp_path, noisy=metrics[1])
    must(loaded, "touch /run/enough")
    job.wait()
    must(loaded, "rm /run/enough")
    large = effects(report)["large"]
    assert large["found"]
    assert large["treatment"] < large["control"] / 2
    balance = report["balance"]
    assert (balance["of"], balance["p"] > 0.001) == ("units", True)
    assert min(balance["control"], balance["treatment"]) > 20
