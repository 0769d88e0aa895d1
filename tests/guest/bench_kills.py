# SPDX-License-Identifier: GPL-2.0
"""bench_kills.py SEED TIMES: kill benches at random moments, and sometimes their watchdogs too.

Each bench has an arm of knobs and, if the module is loaded, an arm of a policy. After each kill the
knobs must get their old values back: by the watchdog, or if the watchdog was killed too, by
`mmpolicy ab restore`. Standard output is a JSON object: how often each of the two happened, and the
faults that were found.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress

from processes import children

from guest.cut import TREE, run
from mmpolicy.control.experiment import LOCK, RECOVERY
from mmpolicy.control.keys import State
from mmpolicy.control.state import read_state
from mmpolicy.host.files import CONTROL
from mmpolicy.host.knobs import read_knobs

KNOBS = "hugepages-64kB/enabled=always,khugepaged/defrag=0"
POLICY = ["anon_order=fixed"] if TREE.is_dir(CONTROL) else []
WORDS = [word for arm in (KNOBS, *POLICY, "as-is") for word in ("--arm", arm)]
PROGRAM = ["--", "sleep", "0.05"]


def bench(rounds: int) -> tuple[int, str]:
    """Run a bench to its end; return its exit code and its output."""
    return run("bench", "--runs", str(rounds), *WORDS, *PROGRAM)


def state() -> State:
    """Return the state of the module; {} if the module is not loaded."""
    return read_state(TREE) if TREE.is_dir(CONTROL) else {}


def begin() -> int:
    """Start `mmpolicy bench` in a new process, which leads a session of its own; return its pid."""
    pid = os.fork()
    if not pid:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(null, file)
        try:
            bench(1000)
        finally:
            os._exit(0)
    return pid


def kill(moments: dict[str, float]) -> None:
    """Start `mmpolicy bench`, and kill its process and perhaps also its children, each at its own
    moment.

    moments: seconds after the start at which to kill "bench" and, if they are to be killed,
    "children".
    """
    start, pid = time.monotonic(), begin()
    known: set[int] = set()
    for who, moment in sorted(moments.items(), key=lambda each: each[1]):
        while time.monotonic() < start + moment:
            known.update(children(pid))
            time.sleep(0.002)
        for each in known if who == "children" else {pid}:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    os.waitpid(pid, 0)


def what_is_wrong(knobs: dict[str, str], counts: Counter[str]) -> list[str]:
    """Return what is wrong after `mmpolicy bench` was killed; [] if nothing is. All knobs must have
    their old values again within 60 s; if the watchdog was killed, too, `ab restore` may have to
    restore them.
    """
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if not TREE.holder(LOCK):
            if not TREE.exists(RECOVERY):
                break
            counts["put back by ab restore"] += 1
            code, text = run("ab", "restore")
            if code:
                return [f"ab restore: {text}"]
        time.sleep(0.05)
    now = read_knobs(TREE)
    return [f"knobs: {dict(now.items() ^ knobs.items())}"] * (now != knobs)


def main(seed: int, times: int) -> dict[str, object]:
    """Kill `mmpolicy bench` `times` times. A last bench then runs to its end, and must remove the
    policies that the killed ones have left in force.
    """
    rng, counts, wrong = random.Random(seed), Counter[str](), []
    knobs, before = read_knobs(TREE), state()
    # This bench loads all modules that it needs, so the next one shows how long a bench takes.
    bench(1)
    start = time.monotonic()
    bench(1)
    most = 1.5 * (time.monotonic() - start)
    for number in range(times):
        moments = {"bench": rng.uniform(0, most)}
        if rng.random() < 0.7:  # at different moments, or both at once
            moments["children"] = rng.choice([rng.uniform(0, most), moments["bench"]])
        kill(moments)
        counts["with its watchdog" if len(moments) > 1 else "alone"] += 1
        wrong += [f"{number} {moments}: {each}" for each in what_is_wrong(knobs, counts)]
    code, text = bench(1)
    wrong += [f"bench: {text}"] * bool(code)
    wrong += ["the state is another one"] * (state() != before)
    return {**counts, "wrong": wrong}


if __name__ == "__main__":
    json.dump(main(int(sys.argv[1]), int(sys.argv[2])), sys.stdout)
