# SPDX-License-Identifier: GPL-2.0
"""Steps of a test of `ab run --detach`: the user logs out after the start, and the experiment,
which systemd runs, is watched, scraped by Prometheus and stopped.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lab.guest import Guest
from lab.machine import cache_dir
from lab.programs import must, ran, workload
from mmpolicy.ab.samples import Recording, load

from .system import HOST
from .tools import ROOT, THP

KNOB = f"{THP}/hugepages-64kB/enabled"
FAULTS = "cgroup:/system.slice/load.service/memory.stat:pgfault/s"
OPTIONS = (
    f"--design switchback --block 20 --washout 7 --interval 5 --aa-pairs 1 --pairs 99 --lease 1h \
    --treatment hugepages-64kB/enabled=always,anon_order=fixed,max_order=4 \
    --metric 'vmstat.pgfault/s lower' --metric '{FAULTS} lower' \
    --guard 'psi.memory.full.avg10 < 99'"
)
LOAD = f"while :; do {HOST}{workload('touch')} forward 8 >/dev/null; sleep 0.5; done"
STATE = f"cd /; grep -rs . {ROOT}/experiment {ROOT}/profiles {ROOT}/state {ROOT}/lease_ms \
    {THP}/enabled {THP}/hugepages-*/enabled /proc/sys/vm/min_free_kbytes | sort"
# Imitates a login on a terminal. When the login ends, systemctl stops its scope, as logind does.
LOGIN = f"""
cat >/run/login <<'END'
nohup sleep infinity >/run/nohup 2>&1 &
echo $! >/run/left
mmpolicy ab run --detach --json {OPTIONS} >/run/begun.new && mv /run/begun.new /run/begun
sleep infinity
END
setsid systemd-run -q --scope --unit=session-1 --property=SendSIGHUP=yes \\
    script -qec 'sh /run/login' /run/typescript </dev/null >/run/session 2>&1 &
for i in $(seq 900); do [ -s /run/begun ] && break; sleep 0.2; done
cat /run/begun || {{ cat /run/session /run/typescript; exit 1; }}
"""
LOGOUT = """
kill -0 $(cat /run/left) && systemctl stop session-1.scope && ! kill -0 $(cat /run/left) 2>/dev/null
"""
# The seconds that `ab stop` takes include the start of the command. How long a start takes in this
# guest is shown by the seconds of `ab status`.
STOP = f"""
now() {{ cut -d ' ' -f 1 /proc/uptime; }}
now; mmpolicy ab status >/dev/null; now
mmpolicy ab stop >/run/stopped 2>&1 &
while grep -q '\\[always\\]' {KNOB} || [ -d {ROOT}/profiles/ab-treatment ]; do sleep 0.02; done
now; wait $!; echo $?; now
"""
# the program Prometheus of Debian's package, which ./dev has put into the cache
PROMETHEUS = f"{HOST}{cache_dir()}/prometheus/usr/bin/prometheus"
SCRAPE = f"""
cat >/run/prometheus.yml <<'END'
global: {{scrape_interval: 5s, scrape_timeout: 5s}}
scrape_configs:
  - job_name: mmpolicy
    static_configs: [{{targets: ["127.0.0.1:9101"]}}]
END
systemd-run -q --unit=exporter mmpolicy export --listen 9101
systemd-run -q --unit=prometheus {PROMETHEUS} --config.file=/run/prometheus.yml \\
    --storage.tsdb.path=/run/prometheus --web.listen-address=127.0.0.1:9090
"""
ASK = "/run/vm/busybox wget -qO- 'http://127.0.0.1:9090/api/v1/query?query={}'"
Scrapes = dict[float, dict[str, str]]
PLACES = {("aa", "control"), ("ab", "control"), ("ab", "treatment")}


class Look(NamedTuple):
    """One reading during an experiment: the output of `ab status`, and the value of the knob just
    after it.
    """

    status: dict[str, Any]
    knob: str

    @property
    def place(self) -> tuple[str, str]:
        """Return the phase and the arm that `ab status` shows; ("", "") if no experiment runs."""
        return self.status.get("phase", ""), self.status.get("arm", "")


def begin(guest: Guest) -> str:
    """Start a load, Prometheus, and an experiment. The experiment is started from a login that ends
    at once, and must go on. Return the path of the samples file.
    """
    must(guest, SCRAPE)
    must(guest, f'systemd-run -q --unit=load sh -c "{LOAD}"')
    return str(json.loads(must(guest, LOGIN))["file"])


def look(guest: Guest) -> Look:
    """Run `ab status`, and read the knob that the experiment changes."""
    said, _, knob = must(guest, f"mmpolicy ab status --json; echo; cat {KNOB}").rpartition("\n\n")
    return Look(json.loads(said), knob)


def look_until(guest: Guest, place: tuple[str, str], block: int = 1) -> list[Look]:
    """Read the status repeatedly until the run is in this phase and arm, in block number `block` or
    a later one; return all readings.
    """
    looks = [look(guest)]
    while looks[-1].place != place or looks[-1].status["block"] < block:
        assert looks[-1].status["running"] and len(looks) < 300, looks
        looks.append(look(guest))
    return looks


def check_looks(looks: list[Look]) -> None:
    """Check that the knob has the value of the arm that `ab status` shows. A reading is compared
    only if the next one is in the same block, as the knob changes between blocks.
    """
    assert {each.place for each in looks} >= PLACES
    assert {each.status.get("measured") for each in looks} >= {True, False}
    compared = 0
    for before, after in pairwise(looks):
        if before.status.get("block") == after.status.get("block"):
            assert ("[always]" in before.knob) == (before.place == ("ab", "treatment")), before
            compared += 1
    print(f"{compared} of {len(looks)} looks compared")
    assert compared > len(looks) / 3


def status_in_list(guest: Guest) -> str:
    """Return the state of the only run in `ab list`."""
    (run,) = ran(guest, "mmpolicy ab list --json")["runs"]
    return str(run["status"])


def file_of(guest: Guest, path: str, folder: Path) -> Recording:
    """Return the contents of the experiment's samples file in the guest; folder: where to put a
    copy of the file.
    """
    copy = folder / "samples.jsonl"
    copy.write_text(must(guest, f"cat {path}"))
    return load(copy)


def stop(guest: Guest) -> None:
    """Stop the run by `ab stop`, and check how long it takes until the kernel's knobs are restored.

    The guest is emulated, so seconds mean little: the limit is the time in which ten commands
    start.
    """
    began, typed, restored, status, ended = map(float, must(guest, STOP).split())
    command, took = typed - began, restored - typed
    print(f"ab status {command:.2f} s; ab stop {ended - typed:.2f} s, back after {took:.2f} s")
    assert status == 0
    assert took < 10 * command
    assert look(guest).status["running"] is False


def check_file(recording: Recording) -> None:
    """Check that the samples file says why the run ended, and that it shows fewer page faults of
    the load in the treatment.
    """
    end = recording.end
    print(f"restored in {end['restore_s']:.2f} s")
    assert (end["status"], end["restored"]) == ("interrupted", True)
    (metric,) = (each for each in recording.metrics() if each.name == FAULTS)
    assert recording.pairs(metric, "ab")
    assert all(treated < control / 2 for control, treated in recording.pairs(metric, "ab"))


def scraped(guest: Guest) -> Scrapes:
    """Return the metrics of the run that Prometheus has recorded, by the time of each scrape."""
    found: Scrapes = {}
    for name in ("phase", "arm", "block", "measured", "guard"):
        asked = ASK.format(f"mmpolicy_experiment_{name}%5B2h%5D")
        for series in json.loads(must(guest, asked))["data"]["result"]:
            for time, value in series["values"]:
                found.setdefault(time, {})[name] = series["metric"].get(name, value)
    return found


def check_scrapes(scrapes: Scrapes, recording: Recording) -> None:
    """Check that the arm and the phase in each scrape of Prometheus are those that the samples file
    has for the same block.
    """
    places = set()
    for scrape in scrapes.values():
        block = recording.blocks.get(int(scrape["block"]) - 1)
        if block:
            places.add((scrape["phase"], scrape["arm"]))
            assert scrape["phase"] == block["phase"]
            assert scrape["arm"] == ("control" if block["phase"] == "aa" else block["arm"])
            assert set(scrape) == {"phase", "arm", "block", "measured", "guard"}
    assert places == PLACES
    assert {scrape["measured"] for scrape in scrapes.values()} == {"0", "1"}
    print(f"{len(scrapes)} scrapes of {len(recording.blocks)} blocks")
