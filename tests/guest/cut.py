# SPDX-License-Identifier: GPL-2.0
"""cut.py SEED TIMES: in a guest, kill changes and experiments at random moments.

After each kill, the state must be the old one, or the one that the journal records. Otherwise
`status` and `doctor` must report an interrupted change, and `revert` must restore the old state.
Each stored file must be readable. Standard output is a JSON object: how often each kind of command
was killed, how often a change was interrupted, and the faults that were found.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import click
import tomllib

from mmpolicy.cli import main
from mmpolicy.control.experiment import LOCK, RECOVERY
from mmpolicy.control.journal import JOURNAL, read_journal
from mmpolicy.control.keys import State
from mmpolicy.control.state import read_state
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import read_knobs

TREE = Tree()
GROUPS = [f"/sys/fs/cgroup/cut{number}" for number in range(3)]
MANIFEST = """\
version = 1
[profiles.web.anon_order]
policy = "{policy}"
[profiles.web.anon_order.fixed]
max_order = {order}
[profiles.db{extra}.anon_order]
policy = "adaptive"
[profiles.db{extra}.compact]
policy = "budget"
[profiles.default.anon_order.fixed]
max_order = {order}
[bindings]
"/cut{group}" = "db{extra}"
"""
LEASE_S = 2
AB = f"ab run --design switchback --metric vmstat.pgfault/s --block 0.3 --washout 0.1 --aa-pairs 0 \
--interval 0.1 --pairs 500 --lease {LEASE_S} --out /tmp/cut-ab.jsonl --treatment".split()


def run(*words: str) -> tuple[int, str]:
    """Run a command of mmpolicy in this process; return its exit code and its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(list(words), prog_name="mmpolicy", standalone_mode=False)
        except click.ClickException as err:
            err.show(out)
            code = err.exit_code
        except SystemExit as err:
            code = err.code
    return (code if isinstance(code, int) else 0), out.getvalue()


def change(rng: random.Random) -> list[str]:
    """Return the words of a random command of mmpolicy that changes settings."""
    kinds = ["apply", "apply", "apply", "set", "set", "bind", "unit", "revert", "revert"]
    kind = rng.choice([*kinds, "ab", "knobs"])
    if kind == "apply":
        words = {"policy": rng.choice(["never", "fixed", "adaptive"]), "order": rng.randrange(2, 9)}
        text = MANIFEST.format(**words, extra=rng.randrange(3), group=rng.randrange(3))
        Path("/tmp/cut.toml").write_text(text)
        return ["apply", "/tmp/cut.toml"]
    profile = rng.choice(TREE.dirs("/sys/kernel/mmpolicy/profiles"))
    if kind == "set":
        order = f"max_order={rng.randrange(2, 9)}"
        return ["set", "anon_order", rng.choice(["fixed", "adaptive"]), order, "--profile", profile]
    if kind == "bind":
        return ["bind", "--cgroup", rng.choice(GROUPS), profile]
    if kind == "unit":
        return ["bind", "--unit", rng.choice(["cut0", "cut1", r"a\x2db"]), "web"]
    arm = "anon_order=fixed,max_order=3" if kind == "ab" else "hugepages-64kB/enabled=always"
    return ["revert"] if kind == "revert" else [*AB, arm]


def journal_size() -> int:
    """Return the length of the journal in bytes; 0 if there is none."""
    path = Path(JOURNAL)
    return path.stat().st_size if path.exists() else 0


def kill(words: list[str], seconds: float, at_work: bool) -> bool:
    """Start a command of mmpolicy, and kill it after some seconds; return whether it was still
    running when it was killed.

    at_work: count the seconds from the first line that the command writes to the journal, not from
    its start.
    """
    size, end = journal_size(), time.monotonic() + 5
    pid = os.fork()
    if not pid:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(null, file)
        try:
            run(*words)
        finally:
            os._exit(0)
    while at_work and journal_size() == size and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def unreadable() -> list[str]:
    """Return the manifests and lines of the journal that a later command could not read, each with
    the error. A kill must not damage any.
    """
    wrong = []
    read_journal(TREE, lambda line, why: wrong.append(f"journal, line {line}: {why}"))
    for path in [*Path("/etc/mmpolicy").glob("*.toml"), Path("/var/lib/mmpolicy/applied.toml")]:
        try:
            if path.exists() and "version" not in tomllib.loads(path.read_text()):
                wrong.append(f"{path} has no version")
        except tomllib.TOMLDecodeError as err:
            wrong.append(f"{path}: {err}")
    return wrong


def after_experiment(before: State, knobs: dict[str, str], counts: Counter[str]) -> list[str]:
    """Return what is still wrong 60 s after an experiment was killed. Until then, the policies must
    be those of before, or all at stock, and each knob must have its old value again. If the kill
    has also hit the watchdog, status, doctor, host and export must report the knobs that are still
    changed, and `ab restore` must restore them.
    """
    end = time.monotonic() + 60
    wrong, silent = ["not asked"], list[str]()
    while wrong and time.monotonic() < end:
        time.sleep(0.2)
        state = TREE.read("/sys/kernel/mmpolicy/state")
        wrong = [] if state == "expired" or read_state(TREE) == before else [f"state: {state}"]
        wrong += [f"knobs: {dict(read_knobs(TREE).items() ^ knobs.items())}"] * (
            read_knobs(TREE) != knobs
        )
        wrong += ["the lock is held"] * bool(TREE.holder(LOCK))
        # The recovery file is left, but no process holds the lock: the kill has also hit the
        # watchdog.
        if not TREE.holder(LOCK) and TREE.exists(RECOVERY):
            counts["knobs left"] += 1
            told = [run(verb)[1] for verb in ("status", "doctor", "host", "export")]
            silent += [f"not told: {text}" for text in told if "knobs" not in text]
            wrong += [f"restore: {run('ab', 'restore')[1]}"] * TREE.exists(RECOVERY)
    Path("/tmp/cut-ab.jsonl").unlink(missing_ok=True)
    if TREE.read("/sys/kernel/mmpolicy/state") == "expired":
        run("reset")
        run("apply", "/tmp/first.toml")
    return wrong + silent


def after_change(before: State, known: int, counts: Counter[str]) -> list[str]:
    """Return what is wrong after a command was killed while it changed settings. They must be the
    old ones, or those of the journal's last entry. If they are neither, the command must report it,
    and `revert` must restore the old ones.
    """
    entries = read_journal(TREE, lambda _line, _why: None)
    last = entries[-1] if entries and entries[-1].number > known else None
    if last and last.open:
        counts["cut off"] += 1
        told = [run(verb)[1] for verb in ("status", "doctor")]
        wrong = [f"not told: {text}" for text in told if "was interrupted" not in text]
        code, text = run("revert")
        wrong += [f"revert: {text}"] * (code != 0 or "was interrupted" not in text)
        now = read_state(TREE)
        wrong += [f"not reverted: {set(now.items()) ^ set(before.items())}"] * (now != before)
        return wrong + ["still told"] * ("was interrupted" in run("status")[1])
    wanted = dict(before)
    if last:
        for key in {*last.done.before, *last.done.after}:
            wanted.pop(key, None)
        wanted |= last.done.after
    now = read_state(TREE)
    return [f"not told: {set(now.items()) ^ set(wanted.items())}"] * (now != wanted)


def main_loop(seed: int, times: int) -> dict[str, object]:
    """Start and kill `times` random commands; return how often each case occurred, and the faults
    that were found.
    """
    rng, counts, wrong = random.Random(seed), Counter[str](), []
    Path("/tmp/first.toml").write_text(MANIFEST.format(policy="fixed", order=4, extra=0, group=0))
    run("apply", "/tmp/first.toml")
    Path("/etc/mmpolicy").mkdir(exist_ok=True)
    Path("/etc/mmpolicy/host.toml").write_text("version = 1\n[profiles.web]\n")
    for words in (["set"], ["apply"], ["bind"], ["revert"], ["ab", "run"], ["status"], ["doctor"]):
        run(*words, "--help")
    for number in range(times):
        words = change(rng)
        before, knobs = read_state(TREE), read_knobs(TREE)
        known = max([0, *(each.number for each in read_journal(TREE, lambda _l, _w: None))])
        is_run = words[0] == "ab"
        at_work = not is_run and rng.random() < 0.6
        most = 3 if is_run else 0.1 if at_work else 0.5
        killed = kill(words, rng.uniform(0, most), at_work)
        counts[words[0] if killed else "too late"] += 1
        found = (
            after_experiment(before, knobs, counts)
            if is_run
            else after_change(before, known, counts)
        )
        wrong += [f"{number} {' '.join(words)}: {each}" for each in [*found, *unreadable()]]
        if wrong:
            break
    litter = [str(path) for path in Path("/etc/mmpolicy").iterdir() if path.suffix != ".toml"]
    return {**counts, "times": times, "wrong": wrong, "litter": litter}


if __name__ == "__main__":
    json.dump(main_loop(int(sys.argv[1]), int(sys.argv[2])), sys.stdout)
