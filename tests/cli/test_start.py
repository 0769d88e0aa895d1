# SPDX-License-Identifier: GPL-2.0
"""Imports of a verb: libraries only if they are needed, so that it starts at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmpolicy import tomllib

from .fakes import FakeTree

TREE = Path(__file__).parents[2]
LIBRARIES = {
    "rich",
    "tomli_w",
    "prometheus_client",
    "jinja2",
    "numpy",
    "scipy",
    "matplotlib",
}
MOST = 165  # modules, of which Python and click are about 95
SHARED = {f"mmpolicy.verbs.{name}" for name in ("group", "former", "options", "commit", "reached")}
CODE = """
import json, sys
from mmpolicy.cli import main
try:
    main(sys.argv[1:])
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def imported(tree: FakeTree, *words: str) -> set[str]:
    """Return the modules that a run of the command has imported."""
    command = [sys.executable, "-c", CODE, "--root", str(tree.root), *words]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--help"], set()),
        (["lease"], set()),
        (["set", "anon_order", "never", "--dry-run"], set()),
        (["reset", "--dry-run"], set()),
        (["show", "--json"], set()),
        (["list", "--json"], set()),
        (["set", "anon_order", "never", "--json"], set()),
        (["list"], set()),
        (["save"], {"tomli_w"}),
        (["export"], {"prometheus_client"}),
        (["ab", "status"], set()),
        (["ab", "run", "--help"], set()),
    ],
)
def test_libraries(tree: FakeTree, words: list[str], needed: set[str]) -> None:
    found = imported(tree, *words)
    assert {name.partition(".")[0] for name in found} & LIBRARIES == needed
    if not needed and "--help" not in words:
        assert len(found) < MOST
    if words != ["--help"]:
        verbs = {name for name in found if name.startswith("mmpolicy.verbs.")} - SHARED
        assert len(verbs) <= 5  # the verb itself, its options and its output


SCRIPTS = tomllib.loads((TREE / "userspace/pyproject.toml").read_text())["project"]["scripts"]
NAME, _, FUNCTION = SCRIPTS["mmpolicy"].partition(":")
KILL = "import os, signal\ndef kill(*_): os.kill(os.getpid(), signal.SIGINT)\n"
MOMENTS = {
    "import": "kill()",
    "callback": "type('Old', (), {'__del__': kill})()",  # Python prints and ignores an exception
    "ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN); kill(); raise SystemExit(7)",
}


@pytest.mark.parametrize(
    "words",
    [["-m", "mmpolicy"], ["-c", f"from {NAME} import {FUNCTION}; {FUNCTION}()"]],
    ids=["module", "script"],
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_during_the_imports(tmp_path: Path, words: list[str], moment: str) -> None:
    """The command ends with 130 and prints no traceback."""
    (tmp_path / "click.py").write_text(f"{KILL}{MOMENTS[moment]}\nimport time; time.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    ended = (7, "") if moment == "ignored" else (130, "mmpolicy: interrupted\n")
    assert (done.returncode, done.stderr) == ended
