# SPDX-License-Identifier: GPL-2.0
"""try_ends.py SEED FIRST ROUNDS CGROUP LOAD: in a guest, end trials of `try` at drawn moments.

Round N of a seed draws its moment and the way in which the trial ends from the seed and N alone:
while the trial starts, in its blocks, or while it keeps the setting. The treatment always wins, as
LOAD sleeps while its cgroup is bound.
After each round, the state of the module and of /etc/mmpolicy must be the former or the kept one,
and `try --status` says which. If only a part was kept, it exits with 6, and the commands that it
prints restore the former state. Standard output has a JSON object on a line for each round.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from guest.cut import TREE, run
from mmpolicy.ab.report import report
from mmpolicy.control.experiment import is_ours
from mmpolicy.control.keys import State
from mmpolicy.control.state import read_state
from mmpolicy.errors import Exit
from mmpolicy.host.files import CONTROL

SEED, FIRST, ROUNDS = map(int, sys.argv[1:4])
CGROUP, LOAD = sys.argv[4:]
GROUP = Path(f"/sys/fs/cgroup{CGROUP}")
OWN = Path("/sys/fs/cgroup/trial")  # the cgroup in which the trial's own processes run
STORE, TOLD = Path("/var/lib/mmpolicy"), Path("/run/try-ends.txt")
TYPED, STATE = Path("/run/try-ends-typed.txt"), f"{CONTROL}/state"
PHASES = ("start", "blocks", "blocks", "keep")
LEASE_S, PATIENCE_S = 6, 300
TRY = ["try", "--cgroup", CGROUP, "--candidate", "adaptive", "--yes", "--foreground", "--block"]
TRY += ["5", "--pairs", "10", "--lease", str(LEASE_S)]


def shell(text: str) -> str:
    """Run a command of the shell, and return its output, whatever its exit code is."""
    return subprocess.run(["sh", "-c", text], check=False, capture_output=True, text=True).stdout


def begin() -> int:
    """Start a trial of `try` in a process that has already imported all Python modules, and in a
    cgroup of its own; return its pid.
    """
    pid = os.fork()
    if not pid:
        os.setsid()
        (OWN / "cgroup.procs").write_text("0")
        null = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(null, file)
        try:
            code, text = run(*TRY)
            TOLD.write_text(f"{code}: {text}")
        finally:
            os._exit(0)
    return pid


def work() -> None:
    """Start the service that the trial is about, unless it runs in its cgroup already."""
    GROUP.mkdir(exist_ok=True)
    if not (GROUP / "cgroup.procs").read_text():
        words = ["sh", "-c", f"echo $$ >{GROUP}/cgroup.procs; {LOAD}"]
        subprocess.Popen(words, start_new_session=True)
        wait_for(lambda: (GROUP / "cgroup.procs").read_text())


def wait_for(what: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until what() returns true; raise an error if this takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(
                f"not in {seconds} s; the trial: {TOLD.exists() and TOLD.read_text()}"
            )
        time.sleep(0.02)


def state() -> tuple[State, list[str]]:
    """Return the settings of the module that are in force, without those of experiments, and the
    names of the manifests that a boot would apply.
    """
    now = {key: value for key, value in read_state(TREE).items() if not is_ours(key)}
    return now, sorted(path.name for path in Path("/etc/mmpolicy").iterdir())


def experiment() -> bool:
    """Return whether the kernel runs an experiment."""
    with suppress(FileNotFoundError):
        return Path(CONTROL, "experiment/enabled").read_text().strip() == "1"
    return False


def ended(pid: int) -> bool:
    """Return whether a child has ended."""
    return bool(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))


def phase() -> str:
    """Return the phase that the record of the trial names; "" if there is no record."""
    for path in (STORE / "try").glob("*.json"):
        with suppress(ValueError, FileNotFoundError):
            return str(json.loads(path.read_text())["phase"])
    return ""


def rest(pid: int, seconds: float) -> None:
    """Wait for these seconds, or until the trial has ended."""
    with suppress(TimeoutError):
        wait_for(lambda: ended(pid), seconds)


def wait_for_moment(rng: random.Random, at: str, pid: int) -> None:
    """Wait until a random moment in this phase of the trial, or until the trial has ended."""
    if at == "start":
        rest(pid, rng.uniform(0, 2))
    elif at == "blocks":
        wait_for(lambda: experiment() or ended(pid))
        rest(pid, rng.uniform(0, 8))
    else:
        wait_for(lambda: phase() in ("keeping", "kept") or ended(pid))
        rest(pid, rng.uniform(0, 0.2))


def end_one(pid: int, rng: random.Random) -> None:
    """Kill one of the trial's processes, chosen at random. After the lease has passed, end the rest
    by SIGTERM.
    """
    pids = [*map(int, (OWN / "cgroup.procs").read_text().split())]
    with suppress(ProcessLookupError):
        os.kill(rng.choice(pids or [pid]), signal.SIGKILL)
    rest(pid, LEASE_S)
    os.kill(pid, signal.SIGTERM)


def fill_disk(pid: int, _rng: random.Random) -> None:
    """Fill the disk on which the trial writes its samples and its record. After the lease has
    passed, end the trial.
    """
    shell(f"cat /dev/zero >{STORE}/fill")
    rest(pid, LEASE_S)
    os.kill(pid, signal.SIGTERM)


def end_service(_pid: int, _rng: random.Random) -> None:
    """Kill the service, and remove its cgroup, as systemd does with a unit that has ended."""
    (GROUP / "cgroup.kill").write_text("1")
    wait_for(lambda: not (GROUP / "cgroup.procs").read_text())
    GROUP.rmdir()


def restart(pid: int, rng: random.Random) -> None:
    """Kill the service, and start it again in a new cgroup."""
    end_service(pid, rng)
    work()


def boot(_pid: int, _rng: random.Random) -> None:
    """Imitate a boot: end all processes, remove the module and /run/mmpolicy, and start
    mmpolicy.service after the cgroup of the service exists.
    """
    (OWN / "cgroup.kill").write_text("1")
    (GROUP / "cgroup.kill").write_text("1")
    wait_for(lambda: not (GROUP / "cgroup.procs").read_text())
    GROUP.rmdir()
    shell("rmmod mmpolicy; rm -rf /run/mmpolicy")
    work()
    start_module()


def start_module() -> None:
    """Load the module and apply the manifests, as mmpolicy.service does at its start."""
    shell("modprobe mmpolicy")
    run("apply", "--skip-missing", "--skip-invalid", "/etc/mmpolicy")


def upgrade(_pid: int, _rng: random.Random) -> None:
    """Unload and load the module, as the scripts of the packages do in an upgrade."""
    shell(f"echo 1 >{CONTROL}/reset; rmmod mmpolicy")
    start_module()


def begin_second(pid: int, _rng: random.Random) -> None:
    """Check that a second trial is refused while the first one runs. Then end the first one."""
    code, text = run(*TRY)
    assert code == Exit.EXPERIMENT or ended(pid), f"{code}: {text}"
    os.kill(pid, signal.SIGTERM)


def stop(pid: int, _rng: random.Random) -> None:
    """End the trial by `try --stop`. If the trial had not begun then, so that the command did not
    find it, kill its process.
    """
    run("try", "--stop")
    rest(pid, LEASE_S)
    os.kill(pid, signal.SIGKILL)


def set_shadow(pid: int, _rng: random.Random) -> None:
    """Set the shadow policy with --force, as an administrator may who does not wait for the end of
    the trial.
    """
    code, text = run("set", "anon_order", "shadow=adaptive", "--force")
    TYPED.write_text(f"{code}: {text}")
    rest(pid, LEASE_S)
    os.kill(pid, signal.SIGTERM)  # in case the trial had not begun, so that --force did not end it


ENDS: dict[str, Callable[[int, random.Random], object]] = {
    "kill": lambda pid, _: os.kill(pid, signal.SIGKILL),
    "term": lambda pid, _: os.kill(pid, signal.SIGTERM),
    "all": lambda _pid, _: (OWN / "cgroup.kill").write_text("1"),
    "full disk": fill_disk,
    "restart": restart,
    "set": set_shadow,
    "unload": lambda _pid, _: shell("rmmod mmpolicy"),
    "second": begin_second,
    "one": end_one,
    "stop": stop,
    "removed": end_service,
    "boot": boot,
    "upgraded": upgrade,
}


def check_set() -> str:
    """Check that the shadow policy which set_shadow() has chosen is set, unless the lease has
    expired, which sets all to stock; then undo it. Return what is wrong, or "".
    """
    seen, now = TREE.read(f"{CONTROL}/profiles/default/anon_order/shadow"), TREE.read(STATE)
    if ("[adaptive]" in seen) == (now == "expired") or not TYPED.read_text().startswith("0:"):
        return f"shadow: {seen}; {now}; {TYPED.read_text()}; {TOLD.read_text()[-2000:]}"
    run("reset") if now == "expired" else run("set", "anon_order", "shadow=none")
    return ""


def decision() -> str:
    """Return the decision of the trial, with its reasons, as its record has it; "" if there is no
    record.
    """
    for path in (STORE / "try").glob("*.json"):
        with suppress(ValueError, FileNotFoundError):
            page = json.loads(path.read_text())["page"]
            return "; ".join(
                line for line in page if line.startswith(("metric", "verdict", "note", "decision"))
            )
    return ""


def check(kind: str, before: tuple[State, list[str]]) -> tuple[str, str]:
    """Return two texts after an end of the trial: how its change stands, and what is wrong, or ""
    if nothing is. before: the settings in force before the trial.
    """
    now = state()
    code, text = run("try", "--status", "--json")
    if code == Exit.FAILED and not phase():
        return "no record", "" if now == before else f"changed: {now}"
    found = json.loads(text)
    stands = found["standing"]
    whole = stands in ("cut off", "back", "changed nothing")
    if (code == Exit.DRIFT) != (stands == "half kept"):
        return stands, f"exit {code}"
    if not whole and stands not in ("kept", "half kept", "changed since"):
        return stands, "that is no end"
    if whole != (now == before):
        return stands, f"the state: {before} -> {now}"
    if stands == "changed since" and kind not in ("unload", "removed", "restart"):
        return stands, "nobody has changed it"
    if not whole:
        undo = found["trial"]["undo"]
        shell(undo)
        if state() != before:
            return stands, f"{undo} leaves {state()}, not {before}"
    return stands, ""


def one(number: int) -> dict[str, object]:
    """Run round `number` of the test: a trial that ends or is disturbed in one way. In the returned
    data, "fault" is "" if nothing is wrong.
    """
    rng = random.Random(f"{SEED} {number}")
    kind, at = [*ENDS][number % len(ENDS)], rng.choice(PHASES)
    shell(f"rm -rf {STORE}/* {TOLD} /etc/mmpolicy/*")
    work()
    before, start = state(), time.monotonic()
    pid = begin()
    wait_for_moment(rng, at, pid)
    at = {"": "start", "running": "blocks"}.get(phase(), phase())
    told = {"seed": SEED, "round": number, "end": kind, "at": at}
    with suppress(ProcessLookupError):
        ENDS[kind](pid, rng)
    wait_for(lambda: ended(pid))
    os.waitpid(pid, 0)
    wait_for(lambda: not experiment())
    shell(f"rm -f {STORE}/fill; modprobe mmpolicy; mkdir -p {GROUP}")
    if kind == "set" and (fault := check_set()):
        return {**told, "fault": fault}
    why, (stands, fault) = decision(), check(kind, before)
    shell(f"echo 1 >{CONTROL}/reset")
    wait_for(lambda: not (OWN / "cgroup.procs").read_text(), 60)
    told |= {"why": why} if at in ("back", "keeping", "kept") else {}
    return {**told, "standing": stands, "fault": fault, "s": round(time.monotonic() - start)}


if __name__ == "__main__":
    assert report
    OWN.mkdir(exist_ok=True)
    shell(f"mkdir -p {STORE}; mount -t tmpfs -o size=4m none {STORE}")
    for word in "try", "set":
        run(word, "--help")
    for each in range(FIRST, FIRST + ROUNDS):
        told = one(each)
        print(json.dumps(told), flush=True)
        if told["fault"]:
            break
