# SPDX-License-Identifier: GPL-2.0
"""A copy of the source tree is changed literally as docs/adding-a-policy.md says; in a guest, the
policy that this adds then decides which folios programs get.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from abi import Entry, parse
from lab.guest import Guest, cache_dir
from lab.machine import TREE, Kernel

from . import tools
from .tools import POINT, ROOT, folios, must, ops_command

COPIED = ("Kbuild", "module", "docs", "kernel-hooks", "tests/unit", "tests/workloads")
DENSE = "map 4096 touch 0 4096 folios 0 4096"
POLICIES = re.compile(
    r"(Values:.*\b(?:stock|none)(?: adaptive| fixed| never| vma_size){4})$", re.MULTILINE
)


class Block(NamedTuple):
    """A code block of docs/adding-a-policy.md, and the file that its code belongs to: the last file
    named in the text before the block.
    """

    path: str
    kind: str
    text: str


def blocks() -> list[Block]:
    """Return all code blocks of docs/adding-a-policy.md, in order."""
    text = (TREE / "docs/adding-a-policy.md").read_text()
    found = re.findall(r"((?:[^\n]+\n)+)\n```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        Block((re.findall(r"`([\w./-]+/[\w.-]+)`", before) or [""])[-1], kind, block)
        for before, kind, block in found
    ]


def below_its_kind(text: str, line: str) -> str:
    """Return a text with a line inserted below the last line that begins with the same word, so
    that lines of one kind stay together.
    """
    kind = re.split(r"[/,]", line)[0]
    at = text.rindex("\n", 0, text.index("\n", text.rindex(f"\n{kind}") + 1) + 1) + 1
    return text[:at] + line + text[at:]


def follow(tree: Path) -> list[str]:
    """Change a copy of the source tree as docs/adding-a-policy.md says; return the lines that this
    adds to the module.
    """
    added = []
    listed = 0
    for block in blocks():
        path = tree / block.path
        if block.kind == "c" and not path.exists():
            path.write_text(block.text)
        elif block.path.startswith("module/"):
            added.append(block.text)
            path.write_text(below_its_kind(path.read_text(), block.text))
        elif block.path.startswith("docs/"):
            text, listed = POLICIES.subn(r"\1 first_page", path.read_text())
            path.write_text(f"{text.rstrip()}\n\n{block.text}")
    assert listed == 3, "the three lines that list the policies"
    return added


def build(tree: Path, guest: Guest) -> Path:
    """Build the module from this tree for the kernel of a guest; return the module's file. The
    build must print no warning.
    """
    source = Kernel.of_flavor(guest.series, guest.flavor).image.parent / "src"
    argv = ["make", "-C", str(source.resolve()), f"M={tree}", "W=1", "modules"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout + done.stderr
    return tree / "module/mmpolicy.ko"


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """Yield a copy of the source tree to which the policy of docs/adding-a-policy.md is added; it
    is removed at the end.
    """
    copy = Path(tempfile.mkdtemp(prefix="policy-", dir=cache_dir()))
    for name in COPIED:
        (copy / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (TREE / name).is_dir() else shutil.copy)(TREE / name, copy / name)
    added = follow(copy)
    assert [text.count("\n") for text in added] == [1, 1], "one file and two lines"
    yield copy
    shutil.rmtree(copy)


@pytest.fixture(scope="module")
def module(tree: Path, all_machines: Any) -> Path:
    """Return the file of the module, built on this machine for the guest's kernel, from the copy of
    the tree with the new policy.
    """
    return build(tree, all_machines.get(mem="2G", cpus=2, swap="1G"))


@pytest.fixture
def known(guest: Guest, module: Path) -> Guest:
    """Return a guest in which the module with the new policy is loaded."""
    must(guest, f"insmod {module}")
    return guest


def test_unit_tests(tree: Path) -> None:
    """The unit tests that docs/adding-a-policy.md adds pass, and so do the tests that run for every
    policy.
    """
    environment = {key: value for key, value in os.environ.items() if key != "MMPOLICY_CACHE"}
    done = subprocess.run(
        [tree / "tests/unit/run", "first_page", "policies", "knobs", "no_policy"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok     first_page_is_dense_on_forward_walks_alone\n" in done.stdout
    assert "policies_are_listed" in done.stdout


def test_in_a_guest(known: Guest) -> None:
    """The guest test in docs/adding-a-policy.md passes."""
    (block,) = [block.text for block in blocks() if block.kind == "python"]
    names: dict[str, Any] = {"Guest": Guest, "switch": tools.switch, "folios": folios}
    exec(block, names)
    names["test_first_page"](known)


def test_files(known: Guest, tree: Path) -> None:
    """The files of the new policy in sysfs agree with their entries in docs/sysfs-abi.txt."""
    entries = {entry.pattern: entry for entry in parse(tree / "docs/sysfs-abi.txt")}
    profile = f"{ROOT}/profiles/<profile>/anon_order"
    words = must(known, f"cat {POINT}/policy").split()
    assert sorted(word.strip("[]") for word in words) == sorted(entries[f"{profile}/policy"].values)
    check_knob(known, entries[f"{profile}/first_page/max_order"], f"{POINT}/first_page/max_order")


def check_knob(guest: Guest, entry: Entry, path: str) -> None:
    """Check that a knob of the new policy has the default, the mode and the range of its documented
    entry.
    """
    assert must(guest, f"cat {path}").strip() == entry.default
    assert must(guest, f"stat -c %a {path}").strip() == f"{entry.mode:o}"
    assert entry.range
    least, most = entry.range
    must(guest, f"echo {least} >{path} && echo {most} >{path}")
    assert guest.run(f"echo {most + 1} >{path}").rc
    assert must(guest, f"cat {path}").strip() == str(most)


def test_set(known: Guest) -> None:
    """The new policy takes effect when it is set: it gives folios of the size in its knob, but only
    single pages to an area whose last page is touched first.
    """
    assert folios(known, DENSE) == [{0: 4096}]
    must(known, f"echo 2 >{POINT}/first_page/max_order && echo first_page >{POINT}/policy")
    assert folios(known, DENSE) == [{2: 4096}]
    assert folios(known, "map 4 touch 1 4 touch 0 1 folios 0 4") == [{0: 4}]


def test_bound(known: Guest) -> None:
    """If one process is bound to a profile with the new policy, the policy decides for this process
    alone.
    """
    profile = f"{ROOT}/profiles/try"
    must(known, f"echo try >{ROOT}/profiles/create")
    must(known, f"echo first_page >{profile}/anon_order/policy")
    bound = f"sh -c 'echo $$ >{profile}/pids && exec {ops_command(DENSE)}'"
    assert tools.histograms(must(known, bound)) == [{4: 4096}]
    assert folios(known, DENSE) == [{0: 4096}]


def test_reset(known: Guest) -> None:
    """After a reset, the new policy and its knob are as after the load of the module."""
    must(known, f"echo 2 >{POINT}/first_page/max_order && echo first_page >{POINT}/policy")
    must(known, f"echo 1 >{ROOT}/reset")
    assert must(known, f"cat {ROOT}/state {POINT}/first_page/max_order") == "stock\n4\n"
    assert folios(known, DENSE) == [{0: 4096}]
    must(known, "rmmod mmpolicy")
