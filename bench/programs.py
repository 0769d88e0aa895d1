# SPDX-License-Identifier: GPL-2.0
"""What the policies of anon_order cost and save whole programs, against stock kernels.

Each arm runs the programs in a guest of its own. Counted is the CPU time of the
program, system time included: under icount these are instructions.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import common
import recordings
from machine import TREE, cache_dir

LOADS = TREE / "bench/loads"
BUILT = cache_dir() / "programs"
OLD_GO = "/usr/lib/go-1.19/bin/go"
SOCKET = "/run/server"


@dataclass(frozen=True)
class Program:
    """A program with its load; for a server also the client that fills it."""

    name: str
    command: str
    preload: str = ""
    client: str = ""

    def line(self) -> str:
        """The shell command that runs it and prints what it took."""
        client = f"-c 'sleep 1; {self.client}' " if self.client else ""
        preload = f"env LD_PRELOAD={self.preload} " if self.preload else ""
        run = f"{common.workload('run')} {client}{preload}{self.command}"
        return f"cd {LOADS} && {run} </dev/null 2>/run/said || {{ cat /run/said; exit 1; }}"


PYTHON = "/usr/bin/python3 -I -S objects.py"
PERL = "perl objects.pl 25000"
JAVA = f"java -Xmx512m -cp {BUILT}"
REDIS = f"redis-server --port 0 --save '' --unixsocket {SOCKET} --enable-debug-command local"
PROGRAMS = (
    Program("python", f"{PYTHON} 40000"),
    Program("python-malloc", f"env PYTHONMALLOC=malloc {PYTHON} 30000"),
    Program("perl", PERL),
    Program("perl-jemalloc", PERL, "libjemalloc.so.2"),
    Program("perl-mimalloc", PERL, "libmimalloc.so.2"),
    Program("perl-tcmalloc", PERL, "libtcmalloc_minimal.so.4"),
    Program("node", "node objects.js 20000"),
    Program("go", f"{BUILT}/go 60000"),
    Program("go-1.19", f"{BUILT}/go-1.19 60000"),
    Program("java-serial", f"{JAVA} -XX:+UseSerialGC Objects 40000"),
    Program("java-G1", f"{JAVA} -XX:+UseG1GC Objects 40000"),
    Program("sqlite", "sqlite3 -init objects.sql :memory:"),
    Program("gcc", "gcc -O2 -S -o /dev/null ../../tests/workloads/touch.c"),
    Program("g++", "g++ -S -o /dev/null templates.cc"),
    Program("redis", REDIS, client=f"redis-cli -s {SOCKET} debug populate 100000 key 150"),
    Program(
        "memcached",
        f"memcached -s {SOCKET} -u root -m 64 -t 1",
        client=f"/usr/bin/python3 -I fill.py {SOCKET} 60000",
    ),
)


def build() -> None:
    """Compile the loads that need it: Go by Debian's compiler, and by a newer one if there is."""
    BUILT.mkdir(parents=True, exist_ok=True)
    for name, go in (("go-1.19", OLD_GO), ("go", shutil.which("go") or OLD_GO)):
        command = [go, "build", "-o", str(BUILT / name), str(LOADS / "objects.go")]
        subprocess.run(command, check=True)
    subprocess.run(["javac", "-d", str(BUILT), str(LOADS / "Objects.java")], check=True)


def main(argv: list[str]) -> None:
    """Entry point of ./dev bench programs."""
    parser = argparse.ArgumentParser(prog="./dev bench programs", description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help=recordings.__doc__)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="only these programs")
    chosen: argparse.Namespace = parser.parse_args(argv)
    programs = [p for p in PROGRAMS if not chosen.names or p.name in chosen.names]
    build()
    recordings.record(chosen.record, {p.name: p.line() for p in programs})
