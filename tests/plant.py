#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Plant faults in the code that decides, one at a time, and see whether the fast tests find them.

plant.py [--seed N] [--count 300] [--part c|python] [--jobs N] [--only WORD] [--list]

A fault is a change of one operator, number, condition or statement. Half of them are in the C
that tests/unit compiles, half in the command. Each is planted in a copy of the tree. The tests of
a fault in C are all of tests/unit, those of one in Python are the tests of tests/cli that enter
the function that it is in. A seed always plants the same faults.

It prints each fault that no test found, and the score at the end. With --list it only prints the
faults. A fault that leaves the compiled code as it was is none, and is not planted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import marshal
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).resolve().parents[1]
COMMAND = "userspace/src/mmpolicy"
# Beyond these a fault has made a run of tests endless. A busy machine takes long for little.
LIMIT_CPU_S, LIMIT_S = 150, 900.0
FIRST = 20  # tests that are run first, as they are likely to find a fault
# Limits of the tests that run for one fault of the command: seconds of one, and of all together.
SLOW_S, ENOUGH_S = 10.0, 60.0


@dataclass(frozen=True)
class Fault:
    """One change of one file, as the text between two offsets."""

    path: str
    start: int
    end: int
    new: str
    line: int
    old: str

    def text(self) -> str:
        """One line."""
        old, new = (" ".join(part.split()) or "nothing" for part in (self.old, self.new))
        return f"{self.path}:{self.line}: {old[:60]} -> {new[:60]}"

    def planted(self, text: str) -> str:
        """The file with the fault."""
        return text[: self.start] + self.new + text[self.end :]


# ---- C

NOT_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?!define)\w+.*$", re.MULTILINE)
OPERATORS = {
    "<=": "<", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    " < ": " <= ", " > ": " >= ", " + ": " - ", " - ": " + ", " & ": " | ", " | ": " & ",
    "+=": "-=", "-=": "+=", "++": "--", "<<": ">>", ">>": "<<", " * ": " + ", " / ": " * ",
    " % ": " / ", "true": "false", "false": "true", "min(": "max(", "max(": "min(",
}  # fmt: skip
OPERATOR = re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, OPERATORS)) + r")(?![=>])")
NUMBER = re.compile(r"(?<![\w.])(\d+)(U?L{0,2})(?![\w.])")
CONDITION = re.compile(r"\b(?:if|while) \((?=[^;{}]*\)\s*(?:\n|\{))")
STATEMENT = re.compile(r"(?<=\n)\t+(?!return|break|continue|goto|case|default)[\w>.\[\]()&*-]+"
                       r"(?:\([^;{}]*\)| [-+|&]?= [^;{}]*);(?=\n)")  # fmt: skip


def blanked(text: str) -> str:
    """Blank out all text in C that is not code; offsets stay."""
    for pattern in NOT_CODE, DIRECTIVE:
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def closing(code: str, start: int) -> int:
    """Return the offset after the parenthesis that closes the one open at `at`."""
    depth = 1
    for at in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if not depth:
            return at
    return start


def faults_in_c(path: str, text: str) -> Iterator[Fault]:
    """Yield every fault that can be planted in a C file."""

    def fault(start: int, end: int, new: str) -> Fault:
        return Fault(path, start, end, new, text.count("\n", 0, start) + 1, text[start:end])

    code = blanked(text)
    for found in OPERATOR.finditer(code):
        yield fault(*found.span(), OPERATORS[found[0]])
    for found in NUMBER.finditer(code):
        yield fault(*found.span(), f"{int(found[1]) + 1}{found[2]}")
        if int(found[1]):
            yield fault(*found.span(), f"{int(found[1]) - 1}{found[2]}")
    for found in CONDITION.finditer(code):
        start, end = found.end(), closing(code, found.end())
        yield fault(start, end, f"!({text[start:end]})")
    for found in STATEMENT.finditer(code):
        yield fault(*found.span(), "\t;")


class Unit:
    """tests/unit of a copy of the tree, whose objects are made again one by one.

    It is built twice: plainly, which is fast and finds most faults, and as tests/unit/run does it.
    """

    PLAIN = ("-fno-sanitize=all", "-g0", "-O2", "-w")

    def __init__(self, tree: Path) -> None:
        """Compile everything once, and find the fast tests."""
        self.tree, self.build, self.sources = tree, tree / "cache/unit", dict[Path, set[str]]()
        self.order = Order()
        self.env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        env = os.environ | {"MMPOLICY_CACHE": str(tree / "cache")}
        subprocess.run([f"{tree}/tests/unit/run", "no such test"], env=env, check=False)
        for made in sorted(self.build.glob("*.d")):
            files = [os.path.normpath(word) for word in made.read_text().split()[1:]]
            ours = (file for file in files if Path(file).is_relative_to(tree))
            self.sources[made.with_suffix(".o")] = {
                Path(file).relative_to(tree).as_posix() for file in ours
            }
        (self.build / "plain").mkdir()
        for name in self.sources:
            self.compile(name, self.plainly(name), *self.PLAIN)
        self.objects = {
            file: file.read_bytes() for name in self.sources for file in (name, self.plainly(name))
        }
        self.tests = self.fast_and_slow(self.link(self.plainly, *self.PLAIN))

    def files(self) -> list[str]:
        """Return the files of module/ that decide: the points, and sense/, which they share."""
        used = sorted(set[str]().union(*self.sources.values()))
        shared = ("module/mmpolicy.h", "module/compat.h", "module/mm_policy.h")
        return [path for path in used if path.startswith("module/") and path not in shared]

    def source(self, name: Path) -> Path:
        """Return the sources of an object."""
        folder, stem = name.stem.split("-", 1)
        found = (path for path in self.sources[name] if path.endswith(f"{folder}/{stem}.c"))
        return self.tree / next(found)

    @staticmethod
    def plainly(name: Path) -> Path:
        """The plain one of an object."""
        return name.parent / "plain" / name.name

    def compile(self, name: Path, into: Path, *words: str) -> bool:
        """Make an object again."""
        files = ("-c", "-o", into, self.source(name))
        command = ["gcc", f"@{self.build}/flags", *words, *map(str, files)]
        return not subprocess.run(command, capture_output=True, check=False).returncode

    def link(self, which: Callable[[Path], Path], *words: str) -> Path:
        """Make the program of either kind of objects."""
        objects = sorted(which(name) for name in self.sources)
        program = objects[0].parent / "unit"
        subprocess.run(["gcc", f"@{self.build}/flags", *words, "-o", program, *objects], check=True)
        return program

    def fast_and_slow(self, program: Path) -> list[list[str]]:
        """The names of the tests in two parts."""
        said = subprocess.run([program], env=self.env, capture_output=True, text=True, check=True)
        times = dict[str, float]()
        for name in re.findall(r"^ok +(\w+)$", said.stdout, re.MULTILINE):
            begin = time.monotonic()
            subprocess.run([program, name], env=self.env, capture_output=True, check=True)
            times[name] = time.monotonic() - begin
        names = sorted(times, key=lambda name: times[name])
        return [names[: -len(names) // 6], names[-len(names) // 6 :]]

    def fails(self, fault: Fault, program: Path, tests: list[str]) -> bool:
        """Tell if a test fails; `tests` limits the choice."""
        found = failing([program, "-x", *tests], self.tree, self.env)
        return self.order.found(fault.path, found)

    def found(self, fault: Fault) -> bool | None:
        """Tell if a test fails; None if the fault does not compile or leaves the code unchanged."""
        file = self.tree / fault.path
        text = file.read_text()
        names = [name for name, files in self.sources.items() if fault.path in files]
        ours = [name for name in names if "/unit/" not in str(self.source(name))] or names
        try:
            file.write_text(fault.planted(text))
            if not all(self.compile(name, self.plainly(name), *self.PLAIN) for name in names):
                return None
            plain = [self.plainly(name) for name in ours]
            if all(each.read_bytes() == self.objects[each] for each in plain):
                return None
            program = self.link(self.plainly, *self.PLAIN)
            likely = self.order.first(fault.path, [*self.tests[0], *self.tests[1]])
            if any(self.fails(fault, program, tests) for tests in (likely, *self.tests) if tests):
                return True
            for name in names:
                self.compile(name, name, "-Wno-error")
            return self.fails(fault, self.link(lambda name: name), [])
        finally:
            file.write_text(text)
            for name in names:
                for each in (name, self.plainly(name)):
                    each.write_bytes(self.objects[each])


FAILED = re.compile(r"^FAILED +(\S+)", re.MULTILINE)


def failing(command: list[Any], folder: Path, env: dict[str, str]) -> str | None:
    """Return the first failing test, None if all pass, "" if the run does not end or name one.

    Processes that the run started are killed with it.
    """
    command = ["prlimit", f"--cpu={LIMIT_CPU_S}", *command]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command, cwd=folder, env=env, stdout=said, stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as run,
    ):  # fmt: skip
        try:
            if not run.wait(LIMIT_S):
                return None
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
        said.seek(0)
        found = FAILED.search(said.read())
        return found[1] if found else ""


class Order:
    """Order tests so that those which found a fault in a file run first on its next fault."""

    def __init__(self) -> None:
        """Begin with no finders."""
        self.finders = dict[str, list[str]]()

    def first(self, path: str, tests: list[str]) -> list[str]:
        """The tests to begin with, the last finder first."""
        return [test for test in reversed(self.finders.get(path, [])) if test in tests][:FIRST]

    def found(self, path: str, test: str | None) -> bool:
        """Record the finder of a fault, and tell if there is one."""
        if test:
            finders = self.finders.setdefault(path, [])
            finders[:] = [each for each in finders if each != test] + [test]
        return test is not None


# ---- Python


COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


class Faults(ast.NodeVisitor):
    """Collects every fault that can be planted in a module of the command."""

    def __init__(self, path: str, text: str) -> None:
        """Look through a file."""
        self.path, self.text, self.found = path, text, list[Fault]()
        lines = text.encode().splitlines(keepends=True)
        self.lines, self.starts = lines, [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line.decode()))
        self.visit(ast.parse(text))

    def offset(self, line: int, column: int) -> int:
        """The offset of a character; columns are counted in bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1][:column].decode())

    def plant(self, node: ast.expr | ast.stmt, new: str) -> None:
        """Another text in the place of a node."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        end = self.offset(node.end_lineno, node.end_col_offset)
        old = self.text[start:end]
        self.found.append(Fault(self.path, start, end, new, node.lineno, old))

    def visit_Compare(self, node: ast.Compare) -> None:
        """One operator for another."""
        for number, operator in enumerate(node.ops):
            if type(operator) in COMPARE:
                ops = [*node.ops]
                ops[number] = COMPARE[type(operator)]()
                new = ast.Compare(node.left, ops, node.comparators)
                self.plant(node, f"({ast.unparse(new)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """All operands but one."""
        for number in range(len(node.values)):
            rest = [value for other, value in enumerate(node.values) if other != number]
            new = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            self.plant(node, f"({ast.unparse(new)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """One operator for another; texts are not added otherwise, and types are no numbers."""
        texts = any(isinstance(side, ast.JoinedStr) for side in (node.left, node.right))
        if type(node.op) in ARITHMETIC and not texts:
            new = ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
            self.plant(node, f"({ast.unparse(new)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Another number."""
        if isinstance(node.value, bool):
            self.plant(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self.plant(node, repr(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        """The opposite condition."""
        self.plant(node.test, f"(not ({ast.unparse(node.test)}))")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Either value, whatever the condition."""
        self.plant(node, f"({ast.unparse(node.body)})")
        self.plant(node, f"({ast.unparse(node.orelse)})")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call that is left out."""
        if isinstance(node.value, ast.Call):
            self.plant(node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """An error that is not raised."""
        self.plant(node, "pass")

    def visit_Call(self, node: ast.Call) -> None:
        """Two arguments that have changed places; of max() and min(), that would be no fault."""
        args, same = node.args, isinstance(node.func, ast.Name) and node.func.id in ("max", "min")
        if len(args) > 1 and not same and not isinstance(args[0], ast.Starred | ast.Constant):
            new = ast.Call(node.func, [args[1], args[0], *args[2:]], node.keywords)
            self.plant(node, ast.unparse(new))
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Arguments by name; that zip() is strict only checks, as assert does."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave f-strings and their expressions as they are."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Types stay as they are."""
        if node.value:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Types stay as they are."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """The body; its decorators are a matter of types."""
        for part in node.body:
            self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """The body; decorators tell the help."""
        for part in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]:
            self.visit(part)


MINE = "_of_plant"  # a name that no function has
SEE = """
import os
told = set()
def see(place):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (test, place) not in told:
        told.add((test, place))
        try:
            with open({file!r}, "a") as out:
                out.write(f"{{test}}\\t{{place}}\\n")
        except OSError:
            pass
"""


def first_line(function: ast.FunctionDef) -> int:
    """The line in which a function begins, with its decorators."""
    return min([function.lineno, *(part.lineno for part in function.decorator_list)])


def that_tells(path: str, text: str, folder: str) -> str:
    """A module of the command whose functions tell told.py in a folder that they are entered."""
    lines, calls = text.splitlines(keepends=True), dict[int, str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if body and body[0].lineno > node.lineno:
                at = body[0]
                line = first_line(at) if isinstance(at, ast.FunctionDef) else at.lineno
                calls[line] = f"{path}:{first_line(node)}"
    for line in sorted(calls, reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        find = f"import sys as {MINE}; {folder!r} in {MINE}.path or {MINE}.path.append({folder!r})"
        see = f"import told as {MINE}; {MINE}.see({calls[line]!r})"
        lines.insert(line - 1, f"{indent}{find}; {see}\n")
    return "".join(lines)


class Results:
    """A plugin of pytest: how long each test takes, and which fail."""

    def __init__(self, file: Path) -> None:
        """Take the file that gets the results."""
        self.file, self.seconds, self.failed = file, dict[str, float](), set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails without a fault would find any."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the results."""
        passed = {name: took for name, took in self.seconds.items() if name not in self.failed}
        self.file.write_text(json.dumps(passed))


def pytest_configure(config: pytest.Config) -> None:
    """Where pytest loads this file as a plugin; with xdist, in the one that hears of all."""
    file = os.environ.get("PLANT_RESULTS")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(file)))


def cpu_of_children() -> float:
    """Return the CPU time, in seconds, of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


class Cli:
    """tests/cli of a copy of the tree."""

    one_sees = threading.Lock()

    def __init__(self, tree: Path, calls: Path) -> None:
        """Record once which functions each test enters, in a file."""
        self.tree, self.changes, self.order = tree, 0, Order()
        self.pytest = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider"]
        self.env = self.env_of(tree)
        with self.one_sees:
            if not calls.exists():
                calls.write_text(json.dumps(self.see(tree.parent / "telling")))
        self.tests: dict[str, tuple[float, list[str]]] = json.loads(calls.read_text())
        self.by_types = 0
        if self.types_are_wrong():
            sys.exit("the types of the command are wrong without a fault")

    @staticmethod
    def env_of(tree: Path) -> dict[str, str]:
        """Return the environment of pytest in a copy of the tree."""
        paths = ":".join(map(str, (tree / "userspace/src", tree / "tests", tree)))
        compiled = str(tree.parent / f"{tree.name}.pyc")
        return {**os.environ, "PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": compiled}

    def see(self, tree: Path) -> dict[str, tuple[float, list[str]]]:
        """Run all tests without a limit; record which pass and which functions each enters.

        They run in another copy, whose functions tell, in whatever process.
        """
        shutil.copytree(self.tree, tree)
        results, told = tree / "results.json", tree / "told/told.txt"
        told.parent.mkdir()
        (told.parent / "told.py").write_text(SEE.format(file=str(told)))
        for path in (tree / COMMAND).rglob("*.py"):
            name = path.relative_to(tree / COMMAND).as_posix()
            path.write_text(that_tells(name, path.read_text(), str(told.parent)))
        seeing = {**self.env_of(tree), "PLANT_RESULTS": str(results)}
        command = [*self.pytest, "-n2", "-p", "plant", "-m", "not full", "tests/cli"]
        before = cpu_of_children()
        run = subprocess.run(command, cwd=tree, env=seeing, check=False, stdout=sys.stderr)
        if run.returncode:
            print("tests of the command fail without a fault; they find nothing", file=sys.stderr)
        passed: dict[str, float] = json.loads(results.read_text())
        # A busy machine takes longer: then the tests together use less than they take.
        busy = max(sum(passed.values()) / (cpu_of_children() - before), 1.0)
        tests = {name: (took / busy, list[str]()) for name, took in passed.items()}
        for line in told.read_text().splitlines():
            name, _, place = line.rpartition("\t")
            if name in tests:
                tests[name][1].append(place)
        return tests

    def files(self) -> list[str]:
        """The modules of the command."""
        return sorted(
            path.relative_to(self.tree).as_posix() for path in (self.tree / COMMAND).rglob("*.py")
        )

    def entering(self, fault: Fault) -> list[str]:
        """The tests that enter the function of a fault, or else its module."""
        path = fault.path.removeprefix(f"{COMMAND}/")
        tree = ast.parse((self.tree / fault.path).read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        around = [node for node in functions if node.lineno <= fault.line <= (node.end_lineno or 0)]
        first = max(map(first_line, around), default=None)
        return self.tests_of(f"{path}:{first}") or self.tests_of(f"{path}:")

    def tests_of(self, place: str) -> list[str]:
        """Tests that enter a function, or a module: first a few that enter little else.

        The others follow, the fastest first.
        """
        tests = [
            (len(entered), seconds, name)
            for name, (seconds, entered) in self.tests.items()
            if seconds < SLOW_S
            and any(one == place or one.partition(":")[0] + ":" == place for one in entered)
        ]
        tests.sort()
        tests[FIRST:] = sorted(tests[FIRST:], key=lambda test: test[1])
        until = accumulate(seconds for _, seconds, _ in tests)
        return [name for (*_, name), end in zip(tests, until, strict=True) if end < ENOUGH_S]

    def found(self, fault: Fault) -> bool | None:
        """Tell if a test fails; None if the fault leaves the code unchanged."""
        file = self.tree / fault.path
        text, tests = file.read_text(), self.entering(fault)
        try:
            self.write(file, fault.planted(text))
            codes = (marshal.dumps(compile(source, "", "exec", optimize=2))
                     for source in (text, file.read_text()))  # fmt: skip
            if next(codes) == next(codes):
                return None
            likely = self.order.first(fault.path, tests)
            likely += [test for test in tests if test not in likely][: FIRST - len(likely)]
            rest = [test for test in tests if test not in likely]
            if any(self.fails(fault, part) for part in (likely, rest) if part):
                return True
            by_types = self.types_are_wrong()
            self.by_types += by_types
            return by_types
        finally:
            self.write(file, text)

    def fails(self, fault: Fault, tests: list[str]) -> bool:
        """Tell if a test fails."""
        found = failing([*self.pytest, "-x", *tests], self.tree, self.env)
        return self.order.found(fault.path, found)

    def types_are_wrong(self) -> bool:
        """Does mypy refuse the command, as the lints have it?"""
        source = self.tree / "userspace"
        words = ["--strict", f"--config-file={source}/pyproject.toml"]
        words += [f"--cache-dir={self.tree}.mypy", str(self.tree / COMMAND)]
        env = self.env | {"MYPYPATH": str(source / "src")}
        return failing([sys.executable, "-m", "mypy", *words], self.tree, env) is not None

    def write(self, file: Path, text: str) -> None:
        """Change a module; at another second each time, so that it is compiled again."""
        file.write_text(text)
        self.changes += 1
        os.utime(file, (self.changes, self.changes))


# ---- The run


def faults_of(tree: Path, files: list[str]) -> list[Fault]:
    """Every fault that can be planted in files."""
    found = list[Fault]()
    for path in files:
        text = (tree / path).read_text()
        found += Faults(path, text).found if path.endswith(".py") else faults_in_c(path, text)
    return found


def copy(tree: Path) -> None:
    """The tree as it is, without what no commit has."""
    names = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=TREE, text=True
    )
    for name in names.split("\0"):
        if name and (TREE / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, tree / name)


def plant(
    name: str, job: int, folder: Path, args: argparse.Namespace, count: int
) -> tuple[str, int, int]:
    """Plant so many faults of a part; the part, how many there were, how many were found.

    Each job of a part plants every so manieth of its faults, in a copy of its own.
    """
    tree = folder / f"{name}{job}"
    copy(tree)
    part = Unit(tree) if name == "c" else Cli(tree, args.calls or folder / "calls.json")
    faults = faults_of(tree, [path for path in part.files() if args.only in path])
    random.Random(args.seed).shuffle(faults)
    planted = found = 0
    for fault in faults[job :: args.jobs]:
        if planted == count:
            break
        if args.list:
            print(fault.text())
        result = True if args.list else part.found(fault)
        if result is None:
            continue
        planted, found = planted + 1, found + result
        if not result:
            print(f"not found: {fault.text()}", flush=True)
        if not planted % 10 and not args.list:
            print(f"  {tree.name}: {found} of {planted} found", file=sys.stderr, flush=True)
    if isinstance(part, Cli) and not args.list:
        print(f"{tree.name}: {part.by_types} found by types alone", flush=True)
    return name, planted, found


def found_of(name: str, results: list[tuple[int, int]]) -> None:
    """Print the score of a part."""
    planted, found = map(sum, zip(*results, strict=True))
    print(f"{name}: {found} of {planted} found, {100 * found / max(planted, 1):.0f} %")


def main() -> int:
    """Print the faults that no test found, and the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="faults, half of them in C")
    parser.add_argument("--part", choices=["c", "python"])
    parser.add_argument("--jobs", type=int, default=1, help="of each part at once")
    parser.add_argument("--only", default="", metavar="WORD", help="in files whose path has it")
    parser.add_argument("--calls", type=Path, help="keeps which test enters what, for later runs")
    parser.add_argument("--list", action="store_true", help="plant nothing")
    args = parser.parse_args()
    parts = [args.part] if args.part else ["c", "python"]
    count = args.count // len(parts)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as at_once:
        runs = [
            at_once.submit(plant, name, job, Path(folder), args, len(range(job, count, args.jobs)))
            for name in parts
            for job in range(args.jobs)
        ]
        results = [run.result() for run in runs]
    if not args.list:
        for name in parts:
            found_of(name, [result[1:] for result in results if result[0] == name])
        found_of("all", [result[1:] for result in results])
    return 0


if __name__ == "__main__":
    sys.exit(main())
