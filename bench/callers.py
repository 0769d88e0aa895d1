# SPDX-License-Identifier: GPL-2.0
"""Programs that ask for huge pages or refuse them, and the effect on their memory.

Each program runs once under strace, which counts its calls of madvise() and prctl(). It runs once
more without strace, and /proc/PID/smaps shows how much of its anonymous memory lies in areas with
MADV_HUGEPAGE or MADV_NOHUGEPAGE. Then `mmpolicy bench` measures its peak memory under three
settings of the kernel. For this, the sizes of the whole host are set for a moment, which needs
root; --no-settings leaves this step out. Libraries are installed from wheels of pinned versions
into the cache. Programs in bench/callers.json are not run again; docs/asks.md has the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import with_table
from bench.programs import LOADS
from lab import counting
from lab.machine import TREE, cache_dir
from lab.programs import BenchError

KEPT = TREE / "bench/callers.json"
DOCUMENT = TREE / "docs/asks.md"
NONE = "transparent_hugepage/enabled=never,hugepages-*/enabled=never"
ARMS = {
    "off": NONE,
    "madvise": "hugepages-*/enabled=never,transparent_hugepage/enabled=madvise,"
    "hugepages-2048kB/enabled=inherit",
    "64 kB": f"{NONE},hugepages-64kB/enabled=always",
}
LOOKS_S = (1.0, 10.0)
TRACED_S = 8.0
RUNS = 7
CALL = re.compile(r"(?:process_)?madvise\((?:.*, )?(\d+), (MADV_[A-Z]+)(?:, 0)?\) += 0$")
REFUSED = re.compile(r"prctl\(PR_SET_THP_DISABLE, 1\b.*= 0$")
TOLD = ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MADV_COLLAPSE", "MADV_FREE", "MADV_DONTNEED")
HOLD_S = 1000
OBJECTS = "x=[bytes(100) for _ in range(300000)]"
FRAME = (
    "import polars as p; f=p.select(a=p.int_range(4000000)); "
    "g=f.group_by(p.col('a') % 100003).len(); del f, g"
)
GROUPS = (
    "import duckdb; c=duckdb.connect(); "
    "c.sql('select i % 100003 as k, count(*) from range(4000000) t(i) group by k').fetchall()"
)
NODE = "globalThis.x=Array.from({{length:200000}},(_,i)=>({{i}})); setTimeout(()=>0,{seconds}e3)"
JAVA = ("java", "-Xms256m", "-Xmx256m", "-XX:+UseG1GC")
HOLD_JAVA = str(LOADS / "Hold.java")


@dataclass(frozen=True)
class Caller:
    """A program that keeps its memory until it is killed. {hold} in its command is replaced by
    Python code that waits, {seconds} by the seconds to wait.
    """

    name: str
    command: Sequence[str]
    version: Sequence[str] = ()
    wheels: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def words(self, holds: bool) -> list[str]:
        """Return the command; with `holds`, the program waits at its end, else it ends at once."""
        python = str(environment(self.wheels) / "bin/python3") if self.wheels else "python3"
        seconds = HOLD_S if holds else 0
        hold = f"import time; time.sleep({seconds})"
        return [word.format(python=python, hold=hold, seconds=seconds) for word in self.command]


def of_wheels(name: str, code: str, *wheels: str, **env: str) -> Caller:
    """Return a program in Python that uses libraries from these wheels."""
    return Caller(name, ("{python}", "-c", f"{code}; {{hold}}"), wheels=wheels, env=env)


ARRAY = "import numpy; a=numpy.empty(64<<20,'b'); a[:]=1"
BUFFER = "import pyarrow; b=pyarrow.allocate_buffer(100)"
CALLERS = (
    Caller("300,000 objects", ("python3", "-c", f"{OBJECTS}; {{hold}}"), ("python3", "--version")),
    of_wheels("array of 64 MiB", ARRAY, "numpy==2.3.4"),
    of_wheels("buffer of 100 bytes", BUFFER, "pyarrow==21.0.0"),
    of_wheels("buffer of 100 bytes", BUFFER, "pyarrow==17.0.0"),
    of_wheels("the same with MIMALLOC_ALLOW_THP=0", BUFFER, "pyarrow==21.0.0",
              MIMALLOC_ALLOW_THP="0"),
    of_wheels("group-by of 4 M rows", FRAME, "polars==1.30.0"),
    of_wheels("group-by of 4 M rows", GROUPS, "duckdb==1.3.0"),
    Caller("200,000 objects", ("node", "-e", NODE), ("node", "--version")),
    Caller("the same with --use-largepages=on", ("node", "--use-largepages=on", "-e", NODE),
           ("node", "--version")),
    Caller("200,000 objects", (*JAVA, HOLD_JAVA, "{seconds}"), ("java", "--version")),
    Caller("the same with -XX:+UseTransparentHugePages",
           (*JAVA, "-XX:+UseTransparentHugePages", HOLD_JAVA, "{seconds}"), ("java", "--version")),
)  # fmt: skip


def environment(wheels: Sequence[str]) -> Path:
    """Return the folder of a virtual environment with these wheels, such as numpy==2.3.4."""
    folder = cache_dir() / "callers" / "-".join(wheels)
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin/pip"), "install", "--quiet", "--only-binary", ":all:", *wheels]
        subprocess.run(pip, check=True)
        (folder / "done").touch()
    return folder


@contextmanager
def running(words: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, and kill it at the end of the block."""
    with subprocess.Popen(
        words, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def calls(caller: Caller) -> dict[str, Any]:
    """Count the calls of madvise() by a program in its first seconds, and the KiB that they cover;
    return also whether it forbids huge pages by prctl().
    """
    number, size = Counter[str](), Counter[str]()
    refused = False
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/trace"
        trace = ["strace", "-f", "-qq", "-o", output, "-e", "trace=madvise,process_madvise,prctl"]
        with running([*trace, *caller.words(holds=True)], caller.env):
            time.sleep(TRACED_S)
        for line in Path(output).read_text().splitlines():
            refused |= bool(REFUSED.search(line))
            if found := CALL.search(line):
                number[found[2]] += 1
                size[found[2]] += int(found[1])
    advice = {name: [number[name], size[name] >> 10] for name in TOLD if number[name]}
    return {"advice": advice, "forbids": refused}


def shares(caller: Caller) -> dict[str, dict[str, int]]:
    """Return the program's anonymous memory, in total and in areas with MADV_HUGEPAGE or
    MADV_NOHUGEPAGE, in KiB, at each time of LOOKS_S after the start.
    """
    found = {}
    with running(caller.words(holds=True), caller.env) as process:
        start = time.monotonic()
        for look in LOOKS_S:
            time.sleep(max(start + look - time.monotonic(), 0))
            if process.poll() is not None:
                raise BenchError(f"{caller.name} ended after less than {look:g} s")
            found[f"{look:g}"] = areas(Path(f"/proc/{process.pid}/smaps").read_text())
    return found


def areas(smaps: str) -> dict[str, int]:
    """Return the anonymous memory of a process in KiB: all ("anon"), in huge pages, and in areas
    with MADV_HUGEPAGE ("asked") and MADV_NOHUGEPAGE ("refused").
    """
    total, anonymous = Counter[str](), 0
    for line in smaps.splitlines():
        name, _, rest = line.partition(":")
        if name in ("Anonymous", "AnonHugePages"):
            size = int(rest.split()[0])
            total[name] += size
            anonymous = size if name == "Anonymous" else anonymous
        elif name == "VmFlags":
            flags = rest.split()
            total["asked"] += anonymous if "hg" in flags else 0
            total["refused"] += anonymous if "nh" in flags else 0
    names = {"anon": "Anonymous", "huge": "AnonHugePages", "asked": "asked", "refused": "refused"}
    return {short: total[name] for short, name in names.items()}


def peaks(caller: Caller) -> dict[str, int]:
    """Return the program's median peak memory under each of the settings ARMS, in KiB."""
    arms = [word for name, arm in ARMS.items() for word in ("--arm", f"{name}: {arm}")]
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        how = ["--runs", f"{RUNS}", "--metric", "peak_rss", "--out", out]
        bench = [sys.executable, "-m", "mmpolicy", "bench", *arms, *how, "--"]
        done = subprocess.run(
            [*bench, *caller.words(holds=False)], env={**os.environ, **caller.env},
            capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 7, 8):
            raise BenchError(f"{caller.name}: {done.stderr.decode()}")
        return read_peaks(json.loads(Path(out).read_text()))


def read_peaks(kept: Mapping[str, Any]) -> dict[str, int]:
    """Return the median peak memory under each arm, in KiB, from the result of `mmpolicy bench`."""
    return {arm["name"]: int(median(run["peak_rss"] for run in arm["runs"])) >> 10
            for arm in kept["arms"]}  # fmt: skip


def version(caller: Caller) -> str:
    """Return the name and version of the library or runtime that calls madvise()."""
    if caller.wheels:
        return caller.wheels[0].replace("==", " ")
    told = subprocess.run(caller.version, capture_output=True, text=True, check=True).stdout
    first = told.splitlines()[0].lstrip("v").split(" (")[0]
    return first if not first[0].isdigit() else f"{caller.version[0]} {first}"


def title(caller: Caller) -> str:
    """Return the key of a program in bench/callers.json."""
    return f"{version(caller)}: {caller.name}"


def amount(kib: int) -> str:
    """Format an amount of memory in a suitable unit."""
    return f"{kib / 1024:,.0f} MiB" if kib >= 10240 else f"{kib:,} kB"


def row(name: str, found: Mapping[str, Any]) -> str:
    """Return the row of a program in the table of docs/asks.md."""
    made = [f"`{advice}` {number:,} x, {amount(kib)}"
            for advice, (number, kib) in found["advice"].items()]  # fmt: skip
    made += ["`prctl`"] * found["forbids"]
    last = found["looks"][f"{LOOKS_S[-1]:g}"]
    parts = [f"{100 * last[key] / last['anon']:.0f} %" for key in ("asked", "refused")]
    peak = " / ".join(f"{kib / 1024:,.1f}" for kib in found["peaks"].values()) or "-"
    anon = f"{last['anon'] / 1024:,.1f}"
    return f"| {name} | {'; '.join(made) or '-'} | {anon} | {' | '.join(parts)} | {peak} |"


def page(kept: Mapping[str, Any], text: str) -> str:
    """Return the text of docs/asks.md with a new table."""
    rows = [row(name, found) for name, found in kept["programs"].items()]
    head = [
        f"Linux {kept['kernel']}, {kept['machine']}, `enabled` is `madvise`.",
        f"Calls are of the first {TRACED_S:g} s, memory after {LOOKS_S[-1]:g} s, in MiB.",
        f"The peak is a median of {RUNS} runs, under off / `madvise` / 64 kB `always`.",
    ]
    table = [
        "| program | calls | anonymous | asked for | refused | peak |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    return with_table(text, "callers", [*head, "", *table])


def check_setting() -> None:
    """Raise an error if the host's setting of THP is not `madvise`, as some programs read it before
    they ask for huge pages.
    """
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if "[madvise]" not in path.read_text():
        raise BenchError(f"{path} is not madvise; echo madvise >{path}, and keep this setting")


def read() -> dict[str, Any]:
    """Return the results stored in bench/callers.json."""
    found: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found


def main(argv: list[str]) -> None:
    """Run the programs that bench/callers.json lacks, and write the table of docs/asks.md."""
    parser = argparse.ArgumentParser(prog="./dev bench callers", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="programs with this in the name")
    parser.add_argument("--no-settings", action="store_true", help="without measuring peak memory")
    parser.add_argument("--page", action="store_true", help="only write the table")
    given = parser.parse_args(argv)
    kept = read()
    host = {"kernel": os.uname().release.partition("-")[0], "machine": os.uname().machine}
    programs = kept.get("programs", {}) if {**kept, **host} == kept else {}
    for caller in () if given.page else CALLERS:
        name = title(caller)
        if given.only not in name:
            continue
        counting.progress(name)
        check_setting()
        found = programs.get(name) or {**calls(caller), "looks": shares(caller), "peaks": {}}
        check_setting()
        if not (found["peaks"] or given.no_settings):
            found["peaks"] = peaks(caller)
        programs[name] = found
        kept = {**host, "programs": programs}
        KEPT.write_text(f"{json.dumps(kept, indent=1)}\n")
    DOCUMENT.write_text(page(kept, DOCUMENT.read_text()))
