# SPDX-License-Identifier: GPL-2.0
"""Programs that use 0.7 to 4 GB for 5 to 20 s, for ./dev bench time --large.

Some are the programs of bench/programs.py with larger loads. The others use data frames, column
stores and arrays on all CPUs. Libraries are installed from wheels of pinned versions into the
cache. ./dev bench kept takes a part of each load, for guests with less memory.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from bench.callers import environment
from bench.programs import BACKEND, BUILT, LOADS, NEW_TABLES, NOBODY, SOCKET, Program

KEYS = 2654435761  # odd, so multiplying by it scatters numbers
DUCKDB = f"""\
import duckdb
print(duckdb.sql('select count(*), max(n) from (select (i * {KEYS}) % 20000003 as k, count(*) as n'
                 ' from range(50000000) t(i) group by k)').fetchall())"""
POLARS = f"""\
import polars as p
rows = p.select(k=p.int_range(24000000))
print(rows.group_by(p.col('k') * {KEYS} % 8000009).len().height)"""
CHDB = """\
import chdb
print(chdb.query('select count(), max(n) from (select intHash64(number) % 12000017 as k,'
                 ' count() as n from numbers_mt(40000000) group by k)'))"""
PANDAS = """\
import numpy as n, pandas as p
random, rows = n.random.default_rng(1), 8000000
left = p.DataFrame({'k': random.permutation(rows), 'x': random.random(rows)})
right = p.DataFrame({'k': random.permutation(rows), 'y': random.random(rows)})
both = left.merge(right, on='k')
print(both.groupby(both.k % 100003)[['x', 'y']].mean().sum())"""
GATHER = """\
import numpy as n
table = n.arange(300000000, dtype='i8')
at = n.random.default_rng(1).integers(0, len(table), 20000000)
for _ in range(8):
    at = (at + int(table[at].sum())) % len(table)
print(at[0])"""
LOAD = f"redis-benchmark -s {SOCKET} -q -P 100 -r 5000000 -d 150"
REDIS = f"redis-server --port 0 --save '' --unixsocket {SOCKET}"


def _of_wheels(name: str, code: str, *wheels: str) -> Program:
    python = environment(wheels) / "bin/python3"
    return Program(name, f"{python} -c {shlex.quote(code)}")


def _of_backend(name: str, file: str) -> Program:
    text = shlex.quote((LOADS / file).read_text())
    backend = shlex.quote(f"exec {NOBODY} {BACKEND} postgres </run/load.sql")
    before = f"printf %s {text} >/run/load.sql && {{ {NEW_TABLES}; }}"
    return Program(name, f"sh -c {backend}", before=before)


def a_part(programs: Sequence[Program], part: float) -> list[Program]:
    """Return the programs with a part of their load: numbers of 7 to 9 digits are sizes."""

    def scaled(text: str) -> str:
        return re.sub(r"\b\d{7,9}\b", lambda found: str(int(int(found[0]) * part)), text)

    return [replace(each, command=scaled(each.command), client=scaled(each.client),
                    before=scaled(each.before)) for each in programs]  # fmt: skip


def large_programs() -> list[Program]:
    """Return the large programs; install their libraries first, if needed."""
    cpus = os.cpu_count() or 1
    compile_all = f"seq {6 * cpus} | xargs -P {cpus} -I% g++ -O1 -S -o /dev/null templates.cc"
    return [
        Program("python", "/usr/bin/python3 -I -S objects.py 1000000"),
        Program("node", "node --max-old-space-size=6144 objects.js 1500000"),
        Program("go", f"{BUILT}/go 2000000"),
        Program("java", f"java -Xmx4g -XX:+UseParallelGC -cp {BUILT} Objects 2000000"),
        Program("redis", REDIS, client=f"{LOAD} -n 6000000 -t set && {LOAD} -n 3000000 -t get"),
        _of_backend("postgres-sort", "sort-large.sql"),
        _of_backend("postgres-hash", "hash-large.sql"),
        _of_wheels("duckdb", DUCKDB, "duckdb==1.3.0"),
        _of_wheels("chdb", CHDB, "chdb==3.4.1"),
        _of_wheels("polars", POLARS, "polars==1.30.0"),
        _of_wheels("pandas", PANDAS, "pandas==2.3.3", "numpy==2.3.4"),
        _of_wheels("gather", GATHER, "pandas==2.3.3", "numpy==2.3.4"),
        Program(f"g++-j{cpus}", f"sh -c {shlex.quote(compile_all)}"),
    ]
