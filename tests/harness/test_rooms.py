# SPDX-License-Identifier: GPL-2.0
"""The check of rooms finds one planted violation of each kind, and nothing else."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest

from lint.rooms import TREE, check, read_c

POLICY = "module/bulk/fixed.c"
PROFILE = "module/control/profile.c"
COMMAND = "userspace/src/mmpolicy"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of all checked folders."""
    for folder in ("module", COMMAND, "tests", "bench"):
        shutil.copytree(TREE / folder, tmp_path / folder)
    return tmp_path


def plant(tree: Path, path: str, text: str) -> None:
    """Append lines to a file."""
    with (tree / path).open("a") as file:
        file.write(f"\n{text}\n")


@functools.cache
def here() -> list[str]:
    """Return the violations in the project."""
    return check(TREE)


def found(tree: Path) -> list[str]:
    """Return the violations in a tree, without those of the project itself."""
    return [line for line in check(tree) if line not in here()]


def test_nothing_is_wrong_here() -> None:
    """The project itself has no violation."""
    assert here() == []


@pytest.mark.parametrize(
    ("path", "text", "wrong"),
    [
        (
            POLICY,
            '#include "../thp_gfp/effort.h"',
            "bulk/fixed: bulk may not use thp_gfp: #include ../thp_gfp/effort.h of thp_gfp/effort",
        ),
        (
            POLICY,
            "static bool late(void)\n{\n\treturn mmp_latched();\n}",
            "bulk/fixed: bulk may not use control: mmp_latched of control/change",
        ),
        (
            "module/sense/available.c",
            "#define LATE mmp_latched()\nstatic bool late(void) { return LATE; }",
            "sense/available: sense may not use control: mmp_latched of control/change",
        ),
        (
            "module/sense/available.c",
            "static const struct mmp_point *point = &mmp_point_bulk;",
            "sense/available: sense may not use bulk: mmp_point_bulk of bulk/point",
        ),
        (
            f"{COMMAND}/host/late.py",
            "from ..verbs import lease",
            "host/late.py: host may not use verbs: lease of verbs/lease",
        ),
        (
            f"{COMMAND}/control/late.py",
            "def f() -> None:\n    import mmpolicy.ab.design",
            "control/late.py: control may not use ab: mmpolicy.ab.design of ab/design",
        ),
        (
            f"{COMMAND}/ab/run/late.py",
            "from mmpolicy.ab.report.stats import sign_test",
            "ab/run/late.py: ab/run may not use ab/report: sign_test of ab/report/stats",
        ),
        (
            f"{COMMAND}/ab/late.py",
            "from mmpolicy.ab.run import keeper",
            "ab/late.py: ab may not use ab/run: keeper of ab/run/keeper",
        ),
        (
            "tests/lab/late.py",
            "from guest.tools import poke",
            "lab/late.py: lab may not use guest: poke of guest/tools",
        ),
        (
            "bench/late.py",
            "import guest.machines",
            "bench/late.py: bench may not use guest: guest.machines of guest/machines",
        ),
        (
            f"{COMMAND}/nowhere/room.py",
            "from ..errors import Failure",
            "nowhere/room.py: the table has no room nowhere",
        ),
    ],
)
def test_forbidden_use(tree: Path, path: str, text: str, wrong: str) -> None:
    """The finding names the file and the forbidden use."""
    (tree / path).parent.mkdir(exist_ok=True)
    plant(tree, path, text)
    assert found(tree) == [wrong]


def test_circle_in_c(tree: Path) -> None:
    """A profile calls the lease, which calls change.c as other users do."""
    plant(tree, PROFILE, "void late(void)\n{\n\tmmp_lease_clear();\n}")
    plant(tree, "module/control/lease.c", "int early(void)\n{\n\treturn late();\n}")
    assert found(tree) == [
        "circle: control/lease -> control/profile (late), "
        "control/profile -> control/lease (mmp_lease_clear)"
    ]


def test_circle_in_python(tree: Path) -> None:
    """The circle passes through a third module."""
    plant(tree, f"{COMMAND}/host/one.py", "from .two import x")
    plant(tree, f"{COMMAND}/host/two.py", "from . import three")
    plant(tree, f"{COMMAND}/host/three.py", "from mmpolicy.host.one import y")
    assert found(tree) == [
        "circle: host/one -> host/two (x), host/three -> host/one (y), host/two -> host/three "
        "(three)"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "/* mmp_latched() is not for us. */",
        'static const char *text = "mmp_latched()";',
        "// mmp_latched()",
        "bool mmp_latched(void);",
        "extern struct mmp_point mmp_point_thp_gfp;",
    ],
)
def test_no_use(tree: Path, text: str) -> None:
    """Comments, strings and declarations are no use."""
    plant(tree, POLICY, text)
    assert found(tree) == []


def test_what_a_file_defines() -> None:
    """A file defines names for other files only: nothing static, no type, no declaration."""
    source = read_c(
        "struct type { int a; };\n"
        "struct aligned { int a; } __aligned(8);\n"
        "extern int elsewhere;\n"
        "static int own;\n"
        "int mine;\n"
        "struct type table[] = { { 1 } };\n"
        "DEFINE_MUTEX(lock);\n"
        "DEFINE_PER_CPU(struct type, each);\n"
        "static DEFINE_MUTEX(hidden);\n"
        "DECLARE_STATIC_KEY_FALSE(key);\n"
        "int prototype(struct type *t);\n"
        "static int inner(void)\n{\n\treturn mine;\n}\n"
        "struct type *outer(int (*call)(int a), int b)\n{\n\tif (b) { return call(b); }\n}\n"
    )
    assert source.defined == {"mine", "table", "lock", "each", "outer"}
