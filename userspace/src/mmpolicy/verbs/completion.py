# SPDX-License-Identifier: GPL-2.0
"""Shell completion: offers names that exist on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
)

from mmpolicy.ab.metrics import FORMS
from mmpolicy.control.keys import DEFAULT
from mmpolicy.control.model import Control
from mmpolicy.control.owners import OWNERS
from mmpolicy.control.programs import programs
from mmpolicy.errors import Error
from mmpolicy.host.cgroups import cgroup_list
from mmpolicy.host.evidence import CPU_TIMES
from mmpolicy.host.files import MODULE, Tree
from mmpolicy.host.knobs import choices, names_of, read_knobs
from mmpolicy.host.machine import Host
from mmpolicy.host.systemd import template_of

STOCK = "stock"
Words = Iterator[str]
# Type of the functions that yield the words to offer in shell completion. Arguments: the tree, the
# parameters typed before, and the beginning of the word.
Offer = Callable[[Tree, dict[str, Any], str], Words]


def _points(tree: Tree, given: dict[str, Any], _before: str) -> Words:
    yield from Control(tree).point_names(given["profile"])


def _settings(tree: Tree, given: dict[str, Any], _before: str) -> Words:
    """Offer the policies of the hook point, unless one is typed already, and the knobs of the typed
    policy or else of the active one, with their values.
    """
    control = Control(tree)
    point = control.point(given["profile"], given["point"])
    chosen = [word for word in given.get("settings") or () if "=" not in word]
    knobs = point.common | point.knobs.get(chosen[0] if chosen else point.active, {})
    yield from () if chosen else point.policies
    yield from (f"{knob}={value}" for knob, value in control.values(knobs).items())


def _programs(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    """Offer the names of the BPF policies that are loaded."""
    yield from (each.name for each in programs(tree))


def _profiles(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    yield from Control(tree).profiles()


def _cgroups(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    yield from cgroup_list(tree)


def _units(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    """Offer the services that run now, and the templates of those that are instances."""
    units = [path.rpartition("/")[2] for path in cgroup_list(tree)
             if re.fullmatch(r"(/[^/]+\.slice)*/[^/]+\.service", path)]  # fmt: skip
    yield from units
    yield from sorted({template_of(unit) for unit in units} - {""})


def _owners(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    yield from tree.names(OWNERS)


def _pids(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    yield from sorted(filter(str.isdigit, tree.names("/proc")), key=int)


def _arms(tree: Tree, _given: dict[str, Any], before: str) -> Words:
    """Offer the parts of an experiment's arm: profiles, policies, knobs of the policies typed
    before, and knobs of the kernel. before: the finished parts of the word, each with a comma.
    """
    if not before:
        yield STOCK
    words = [word.partition("=") for word in before.split(",") if word]
    try:
        control = Control(tree)
        points = list(control.points(DEFAULT))
        yield from () if before else control.profiles()
    except Error:  # the module is not loaded; an arm can still have knobs of the kernel
        points = []
    yield from (f"{point.name}={policy}" for point in points for policy in point.policies)
    for point in points:
        for policy in [value for name, _, value in words if name == point.name]:
            knobs = control.values(point.common | point.knobs.get(policy, {}))
            yield from (f"{knob}={value}" for knob, value in knobs.items())
    for path in read_knobs(tree):
        yield from (f"{names_of(path)[0]}={value}" for value in choices(tree, path))


def _metrics(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    """Offer the prefixes of all sources of metrics, and all names of vmstat, cpu and psi, which can
    be listed.
    """
    yield from re.findall(r"(?:^|, )(\w+[.:])", FORMS)
    for line in tree.read("/proc/vmstat").splitlines():
        yield f"vmstat.{line.split()[0]}"
    yield from (f"cpu.{name}/s" for name in ("busy", *CPU_TIMES))
    if tree.is_dir("/proc/pressure"):
        for resource in tree.names("/proc/pressure"):
            for line in tree.read(f"/proc/pressure/{resource}").splitlines():
                kind, *fields = line.split()
                yield from (f"psi.{resource}.{kind}.{each.partition('=')[0]}" for each in fields)


def _kernels(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    """Offer the releases of the installed kernels."""
    yield from tree.names("/lib/modules")


def _parameters(tree: Tree, _given: dict[str, Any], _before: str) -> Words:
    """Offer the parameters of the module."""
    for key, value in Host(tree).kmod().info(MODULE):
        if key == "parm":
            yield f"{value.partition(':')[0]}="


OFFERS: dict[str, Offer] = {
    "point": _points,
    "setting": _settings,
    "profile": _profiles,
    "program": _programs,
    "cgroup": _cgroups,
    "unit": _units,
    "pid": _pids,
    "owner": _owners,
    "arm": _arms,
    "metric": _metrics,
    "parameter": _parameters,
    "kernel": _kernels,
}


def words_for(kind: str, ctx: click.Context, incomplete: str) -> list[str]:
    """Return the words of a kind, such as "point", that begin with `incomplete`. The text of an arm
    has parts separated by commas, of which only the last is completed.
    """
    tree = Tree(ctx.find_root().params["root"])
    done = incomplete[: incomplete.rfind(",") + 1] if kind == "arm" else ""
    try:
        found = [f"{done}{word}" for word in OFFERS[kind](tree, ctx.params, done)]
    except Error:
        return []
    return [word for word in found if word.startswith(incomplete)]


class Bash(BashComplete):
    """Completion for bash, which splits the command line at `=` and `:`."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words typed so far and the word to complete. Bash has split them at `=` and
        `:`; this joins them again.
        """
        typed = os.environ["COMP_WORDS"].split("\n")[1 : int(os.environ["COMP_CWORD"]) + 1]
        words: list[str] = []
        goes_on = False
        for word in typed:
            divides = word in ("=", ":")
            if words and (divides or goes_on):
                words[-1] += word
            else:
                words.append(word)
            goes_on = divides
        *args, incomplete = words or [""]
        return [word.strip("'\"") for word in args], incomplete.lstrip("'\"")

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return the completions without the part up to the last `=` or `:`. Bash takes that part
        for a word of its own, and would insert it twice.
        """
        items = super().get_completions(args, incomplete)
        begun = re.match(r".*[=:]", incomplete)
        for item in items:
            item.value = item.value[begun.end() if begun else 0 :]
        return items


add_completion_class(Bash)
