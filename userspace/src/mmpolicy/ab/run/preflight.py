# SPDX-License-Identifier: GPL-2.0
"""Checks of `ab run` before the run changes anything."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import click

from mmpolicy.ab.guards import WINDOW_S, Guard, Watch
from mmpolicy.ab.metrics import Metric, all_sources
from mmpolicy.ab.run.commands import POLL_S
from mmpolicy.ab.run.scope import Scope
from mmpolicy.ab.sources import (
    Arm,
    ArmTimes,
    CgroupFile,
    Command,
    Reader,
    Source,
    UnitFile,
    Units,
)
from mmpolicy.control.counters import read_counters
from mmpolicy.control.keys import DEFAULT
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host

# Fewest cgroups in a split run: below LEAST_UNITS it is refused, below FEW_UNITS it prints a
# warning.
LEAST_UNITS, FEW_UNITS = 2, 20


def check_sources(
    tree: Tree, metrics: Sequence[Metric], guards: Sequence[Guard], design: str
) -> None:
    """Raise an error for metrics with equal names, and for sources that cannot be read or would
    mislead in this design.
    """
    for name, count in Counter(metric.name for metric in metrics).items():
        if count > 1:
            text = f"{count} metrics have the name '{name}'"
            raise Error(text, Exit.USAGE, "give each metric a name of its own: NAME=SOURCE")
    sources = all_sources([*metrics, *(guard.metric for guard in guards)])
    for each in sources:
        if isinstance(each, Arm):
            _check_counter(tree, each)
    Reader(tree, sources, {}).read(0.0)
    for metric in metrics:
        for each in metric.sources():
            _check_meaning(each, design)


def _check_counter(tree: Tree, source: Arm) -> None:
    """Raise an error if the module does not have the counter of a source. The module lists counters
    of 0, too, so a missing name shows a mistake already before the run.
    """
    names: Iterable[str] = read_counters(tree, DEFAULT, source.point)[source.point]
    if isinstance(source, ArmTimes):
        names = {name.partition("_log2_")[0] for name in names}
    pick(f"counter of the hook point {source.point}", source.counter, names)


def _check_meaning(source: Source, design: str) -> None:
    if source.averaged:
        total = f"{source.text.rpartition('avg')[0]}total/s"
        text = f"metric '{source.text}' is a moving average, which includes earlier blocks"
        raise click.UsageError(f"{text}: use {total}; only a guard may use the average")
    if isinstance(source, (CgroupFile, UnitFile)) and source.counts and not source.rate:
        text = (
            f"metric '{source.text}' is a counter, which only increases, so its mean says nothing"
        )
        raise click.UsageError(f"{text}: use its rate, {source.text}/s")
    if isinstance(source, UnitFile) and design != "split":
        text = f"metric '{source.text}' is for --design split, which compares units"
        raise click.UsageError(
            f"{text}: use cgroup:PATH/FILE:KEY, or give --design split with --unit cgroup"
        )
    if design == "split" and not isinstance(source, (Arm, Units, UnitFile)):
        text = (
            f"metric '{source.text}' is measured on the whole host, where --design split "
            "runs both arms at once"
        )
        hint = "use arm.POINT.COUNTER or unit:FILE:KEY as the metric, or --design switchback"
        raise click.UsageError(f"{text}: {hint}")


def check_units(scope: Scope, metrics: Sequence[Metric], unit: str) -> Iterator[str]:
    """Raise an error if there are too few units, or if they lack the files of the metrics; yield
    warnings as text.
    """
    own = [each for each in all_sources(metrics) if isinstance(each, UnitFile)]
    if unit != "cgroup":
        if own:
            raise click.UsageError(
                f"metric '{own[0].text}' is read from a file of each cgroup: give --unit cgroup"
            )
        return
    state = read_state(scope.tree)
    units, reader = scope.units(state), Reader(scope.tree, own, {})
    if len(units) < LEAST_UNITS:
        text = (
            "--unit cgroup needs two cgroups with processes or more, one for each arm; at "
            f"or below {scope.path} there are {len(units)}"
        )
        raise Error(text, Exit.USAGE, "give --design switchback, or another --cgroup")
    having = Counter(text for each in units for text in reader.unit(each))
    for source in own:
        if having[source.text] < LEAST_UNITS:
            text = (
                f"metric '{source.text}': only {having[source.text]} of {len(units)} "
                "cgroups have this number in the file"
            )
            raise Error(
                text,
                Exit.USAGE,
                "correct FILE or KEY of the metric; if the cgroups do not have the file, enable "
                "its controller in cgroup.subtree_control of their parent",
            )
        if having[source.text] < len(units):
            without = len(units) - having[source.text]
            yield (
                f"metric '{source.text}': {without} of {len(units)} cgroups do not have "
                "this number, and are left out of the metric"
            )
    if len(units) < FEW_UNITS and len(own) < len(all_sources(metrics)):
        yield (
            f"with only {len(units)} cgroups, a counter of an arm depends mostly on "
            "which cgroups are in the arm; unit:FILE:KEY compares each cgroup with "
            "itself"
        )


def first_look(host: Host, guards: Sequence[Guard]) -> None:
    """Raise an error if a guard is broken before the run begins. A guard on a rate needs several
    samples for this, so the check takes WINDOW_S seconds.

    Guards on the arms are not checked here: their counters exist only during the run.
    """
    known = [guard for guard in guards if not guard.of_arms]
    reader = Reader(host.tree, all_sources(guard.metric for guard in known), {})
    watch, began = Watch(known), host.clock()
    end = began + (0 if all(guard.momentary for guard in known) else WINDOW_S)
    while True:
        broken = watch.look(reader.read(host.clock() - began))
        if broken:
            hint = "wait until the condition of the guard is true, or give another --guard"
            raise Error(
                f"{broken[0]}, before the run has begun; nothing was changed", Exit.FAILED, hint
            )
        if host.clock() >= end:
            return
        host.sleep(POLL_S)


def check_commands(metrics: Sequence[Metric], at_switch: str | None) -> None:
    """Raise an error if a command of the options does not exist. This can be checked only if the
    command line begins with a plain word, not with shell syntax.
    """
    sources = [each for each in all_sources(metrics) if isinstance(each, Command)]
    for command in [each.command for each in sources] + [at_switch] * bool(at_switch):
        word = command.split()[0] if command and command.split() else ""
        if (
            re.fullmatch(r"[\w./+-]+", word)
            and subprocess.run(
                ["sh", "-c", 'command -v -- "$1" >/dev/null', "sh", word], check=False
            ).returncode
        ):
            raise Error(
                f"there is no command '{word}', which a metric or --at-switch names",
                Exit.USAGE,
                "give the full path of the command, or install it",
            )


def wants_times(metrics: Sequence[Metric], guards: Sequence[Guard]) -> bool:
    """Return whether a metric or guard needs the module to time page faults."""
    sources = all_sources([*metrics, *(guard.metric for guard in guards)])
    return any(isinstance(each, ArmTimes) for each in sources)
