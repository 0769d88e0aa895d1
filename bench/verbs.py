# SPDX-License-Identifier: GPL-2.0
"""Run every verb on Debian's kernels from 5.10 to 7.3, for the table of docs/kernels.md.

Exit codes and reasons are stored in bench/verbs.json. Each guest has Debian's default settings, and
the module if it can be built for the kernel.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from bench import with_table
from lab import counting
from lab.counting import THP
from lab.guest import PYTHON, SCRIPT, Guest, by_line
from lab.machine import TREE
from lab.policies import example, helper
from lab.programs import BenchError, must, workload

KEPT = TREE / "bench/verbs.json"
PAGE = TREE / "docs/kernels.md"
SERIES = {"5.10": "linux-5.10", "6.1": "linux-6.1", "6.12": "6.12", "7.2": "7.2", "7.3": "7.3"}
LIMIT_S = 3600.0
ANSWERED = (0, 6, 7, 8)  # exit codes that are no refusal: done, drift, verdicts of an experiment
# lines of which another exit code is no refusal: Ctrl-C has ended them, or the module or an
# experiment is missing
ENDED = {"watch": 130, "maintain --pid SPARSE": 130, "doctor": 3, "ab stop": 1}
GROUP, HERE = "/sys/fs/cgroup/t/group", "/run/verbs"
TRIED = "/sys/fs/cgroup/t/tried"  # cgroup of the program SPARSE
# SPARSE has 2 MB folios with four used pages, for `trim`; FULL has single pages that are all used,
# for `collapse`.
TOUCHES = " ".join(f"touch {page} {page + 1}" for page in range(0, 16384, 128))
HOLDERS = {
    "SPARSE": f"map 16384 {TOUCHES}",
    "FULL": "map 4096 madvise 0 4096 15 touch 0 4096 madvise 0 4096 14",
}
SETUP = f"""
echo always >{THP}/enabled; echo 600000 >{THP}/khugepaged/scan_sleep_millisecs
mkdir -p {GROUP} {TRIED} /sys/fs/bpf
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
rm -rf /var/lib/mmpolicy {HERE}; mkdir {HERE}; cd {HERE}
printf 'version = 1\\n[profiles.web]\\n' >host.toml
hold() {{
    setsid {workload("ops")} $2 sh "touch $1; exec sleep infinity" >$1.log 2>&1 &
    echo $!
    [ $1 != SPARSE ] || echo $! >{TRIED}/cgroup.procs
    for i in $(seq 300); do [ ! -e $1 ] || break; sleep 0.1; done
}}
"""
SETUP += "\n".join(f"hold {name} '{words}'" for name, words in HOLDERS.items())
FAULTS = "--metric 'vmstat.pgfault/s lower'"
# The command lines in the order in which they run. OBJECT stands for the object file of the example
# policy backoff.
LINES = (
    "",
    "doctor",
    "thp",
    "top -n 1",
    "map SPARSE",
    "explain SPARSE --seconds 1",
    "recommend --seconds 3",
    "recommend SPARSE --seconds 1",
    "try --cgroup /t/tried --seconds 3",
    "try --host --candidate thp-sizes --dry-run",
    "trim --pid SPARSE --dry-run",
    "trim --pid SPARSE",
    "collapse --pid FULL --max-stop 10000 --dry-run",
    "collapse --pid FULL --max-stop 10000",
    "maintain --pid SPARSE",
    f"ab run --treatment hugepages-64kB/enabled=always {FAULTS} --dry-run",
    "ab list",
    "ab status",
    "ab stop",
    "ab restore",
    "load",
    "status",
    "list",
    "show anon_order",
    "profile create web",
    "set anon_order adaptive --profile web",
    "profile list",
    "profile show web",
    "bind --cgroup /t/group web",
    "stats anon_order",
    "watch",
    "export",
    "save saved.toml",
    "unbind --cgroup /t/group",
    "diff host.toml",
    "apply host.toml",
    "verify host.toml",
    "lease 600",
    "revert",
    "log",
    "policy new mine",
    "policy load OBJECT",
    "policy list",
    "policy show backoff",
    "policy replace OBJECT",
    "policy unload backoff",
    "profile delete web",
    "reset",
    "unload",
    "calibrate --dry-run",
    "bench --dry-run --arm enabled=never -- true",
    f"ab run --treatment enabled=never {FAULTS} --dry-run",
)
FILES_ALONE = ("ab report", "ab pool", "ab plan")  # these do not depend on the kernel
Answer = dict[str, Any]  # "exit": the exit code of a line; "reason": the error, if it was refused


def answer(status: int, line: str, output: str, names: dict[str, str]) -> Answer:
    """Return what is stored about a line: its exit code, and the error if it was refused.

    names: replacements for values of this guest, such as the PID of SPARSE.
    """
    if status in (*ANSWERED, ENDED.get(line)):
        return {"exit": status}
    reasons = re.findall(r"^(?:mmpolicy|Error): (.*)", output, re.MULTILINE)
    reason = reasons[-1] if reasons else output[-1000:]
    for word, name in names.items():
        reason = reason.replace(word, name)
    return {"exit": status, "reason": reason}


def answers(
    guest: Guest, lines: Sequence[str] = LINES, keep: Callable[[str, Answer], object] = print
) -> dict[str, Answer]:
    """Run each line in a guest, and call keep() with its answer; return all answers.

    The programs and files are removed afterwards; only the settings of huge pages stay changed.
    """
    sparse, full = must(guest, SETUP).split()
    words = {"SPARSE": sparse, "FULL": full, "OBJECT": str(example("backoff"))}
    names = {word: name for name, word in words.items()}
    names[must(guest, "uname -r").strip()] = "RELEASE"
    text = json.dumps([[line, [words.get(w, w) for w in shlex.split(line)]] for line in lines])
    found, problems = dict[str, Answer](), list[str]()

    def take(each: str) -> None:
        if not each.startswith("["):
            problems.append(each)
            return
        line, status, output = json.loads(each)
        found[line] = answer(status, line, output, names)
        keep(line, found[line])

    program = f"PATH={helper().parent}:$PATH {SCRIPT} {TREE}/bench/typist.py"
    try:
        put = f"cat >{HERE}/lines <<'END'\n{text}\nEND\n"
        result = guest.run(f"{put}cd {HERE} && {program} <lines", LIMIT_S, sink=by_line(take))
    finally:
        guest.run(f"kill -KILL -{sparse} -{full}; rm -r {HERE} /var/lib/mmpolicy")
    if result.rc or problems:
        text = "\n".join([*problems, result.out])
        raise BenchError(f"typist.py: exit status {result.rc} after {[*found][-1:]}:\n{text}")
    return found


def table(kept: dict[str, dict[str, Answer]]) -> Iterator[str]:
    """Yield a table with "yes" or "no" for each line and kernel, and a table of the reasons."""
    reasons: dict[str, int] = {}
    yield f"| verb | {' | '.join(kept)} |"
    yield "|---" * (len(kept) + 1) + "|"
    for line in LINES:
        cells = []
        for found in kept.values():
            reason = found.get(line, {"reason": "not run"}).get("reason")
            number = reason and reasons.setdefault(reason, len(reasons) + 1)
            cells.append(f"no ({number})" if reason else "yes")
        yield f"| {f'`{line}`' if line else 'alone'} | {' | '.join(cells)} |"
    yield "\n| no | reason |\n|---|---|"
    for reason, number in reasons.items():
        yield f"| {number} | {reason.replace('|', chr(92) + '|')} |"


def page(kept: dict[str, dict[str, Answer]]) -> str:
    """Return docs/kernels.md with a new table."""
    return with_table(PAGE.read_text(), "verbs", table(kept))


def read() -> dict[str, dict[str, Answer]]:
    """Return the stored answers of bench/verbs.json, by kernel series and line."""
    found: dict[str, dict[str, Answer]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found


def keep(series: str, line: str, found: Answer) -> None:
    """Store the answer to a line on a kernel series in the file."""
    counting.progress(f"{found['exit']:4} {line} {found.get('reason', '')}")
    kept = read()
    by_line = {**kept.get(series, {}), line: found}
    kept[series] = {each: by_line[each] for each in LINES if each in by_line}
    text = json.dumps({name: kept[name] for name in SERIES if name in kept}, indent=1)
    KEPT.write_text(f"{text}\n")


def main(argv: list[str]) -> None:
    """Run the command lines in guests of the named kernels, or of all, and write the table."""
    parser = argparse.ArgumentParser(prog="./dev bench verbs", description=__doc__)
    parser.add_argument("--only", choices=SERIES, action="append", help="run only on this kernel")
    parser.add_argument("--line", choices=LINES, action="append", help="run only this line")
    given = parser.parse_args(argv)
    compile_all = [str(PYTHON), "-m", "compileall", "-q", str(TREE / "userspace/src")]
    subprocess.run(compile_all, check=True)
    for series in given.only or SERIES:
        with Guest(series=SERIES[series], flavor="cloud", mem="2G", cpus=2, swap="1G") as guest:
            counting.progress(must(guest, "uname -r").strip())
            answers(guest, given.line or LINES, partial(keep, series))
        PAGE.write_text(page(read()))
