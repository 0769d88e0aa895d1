# SPDX-License-Identifier: GPL-2.0
"""The plan of `ab run`: options, design and length."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from mmpolicy.ab.design import DIRTY, MAX_SEED, Design, least_pairs, pairs_to_see
from mmpolicy.ab.guards import Guard
from mmpolicy.ab.identity import seed_here
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.run.preflight import (
    check_commands,
    check_sources,
    check_units,
    first_look,
    wants_times,
)
from mmpolicy.ab.run.progress import clock
from mmpolicy.ab.run.runner import Length
from mmpolicy.ab.run.scope import scope_of
from mmpolicy.control.experiment import PROFILES
from mmpolicy.host.knobs import find_knobs, read_knobs
from mmpolicy.host.machine import Host

# number of pairs of blocks in a run: the default if no option sets the length, and the largest
# number that is accepted
PAIRS, MOST_PAIRS = 12, 200
UNITS = ("process", "cgroup")
UNJUDGED = "--margin needs a metric with `lower` or `higher`, which says what is better"


@dataclass(frozen=True)
class RunOptions:
    """The options of `ab run`; durations are in seconds."""

    design: str
    control: str
    treatment: str | None
    metric: tuple[str, ...]
    guard: tuple[str, ...]
    unit: str
    cgroup: str | None
    block: float
    washout: float
    interval: float
    aa: int | None
    pairs: int | None
    duration: float | None
    detect: float | None
    stop: str
    margin: float | None
    cmd_timeout: float
    at_switch: str | None
    lease: float
    seed: int | None
    experiment: str | None
    label: tuple[str, ...]
    saturation: tuple[int, int] | None
    rare: float | None

    def arms(self) -> dict[str, str]:
        """Return the text that the user gave for each arm; without --treatment both are equal."""
        return dict(zip(PROFILES, (self.control, self.treatment or self.control)))


def design_of(host: Host, given: RunOptions) -> Design:
    """Return the design that the options describe; a random seed if none is given."""
    if given.washout >= given.block:
        raise click.UsageError("--washout has to be shorter than --block")
    if given.saturation and given.design != "split":
        raise click.UsageError("--exposure is for --design split")
    seed = secrets.randbelow(MAX_SEED) if given.seed is None else seed_here(host.tree, given.seed)
    return Design(given.design, given.block, given.washout, given.interval, seed)


def length_of(given: RunOptions, design: Design, metrics: Sequence[Metric]) -> Length:
    """Return the length of the run; raise a usage error if the run is too short for an effect to
    be significant, or if options contradict each other.
    """
    if given.pairs and given.duration:
        raise click.UsageError("--pairs and --duration both set the length: give one of them")
    aa = _aa_pairs(given, len(metrics))
    anytime = given.stop == "anytime"
    if anytime and given.detect:
        raise click.UsageError("--detect and --stop anytime both set the end: give one of them")
    if given.rare and (given.detect or anytime):
        raise click.UsageError(
            "--detect-rare sets the length, as --detect and --stop anytime do: give one of them"
        )
    rare = pairs_to_see(given.rare) if given.rare else 0
    pairs = given.pairs or (MOST_PAIRS if given.detect or anytime else max(PAIRS, rare))
    if given.duration:
        left = given.duration - design.seconds(aa)
        more = 2 * design.block_s if given.saturation else 0.0
        pairs = int(left // (design.seconds(1) + more))
    number = sum(not metric.guard for metric in metrics) or 1
    least = least_pairs(number)
    if pairs < least:
        text = (
            f"{max(pairs, 0)} pairs are too few to show an effect with {number} "
            f"metric{'s' * (number > 1)}"
        )
        need = clock(design.seconds(aa + least))
        raise click.UsageError(
            f"{text}: the run needs {least} or more, which take {need} with the A/A phase"
        )
    if pairs < rare:
        text = f"{pairs} pairs may miss an event that happens in {given.rare:g} % of the blocks"
        need = clock(design.seconds(aa + rare))
        raise click.UsageError(
            f"{text}: the run needs {rare} or more, which take {need} with the A/A phase"
        )
    stretches = not given.duration
    return Length(aa, pairs, given.detect or 0.0, anytime, given.saturation, stretches)


def _aa_pairs(given: RunOptions, metrics: int) -> int:
    """Return the number of pairs in the A/A phase, in which both arms have the same settings. Warn
    if they are too few to show a difference. metrics: number of metrics.
    """
    need = least_pairs(metrics, DIRTY)
    if given.aa is None:
        return 0 if given.detect or given.stop == "anytime" else need
    if given.aa < need:
        text = f"{given.aa} A/A pairs are too few to show that equal arms differ; it takes {need}"
        click.echo(f"warning: {text}", err=True)
    return given.aa


def usual_design(host: Host, options: dict[str, Any]) -> str:
    """Return the default of --design: switchback if an arm sets a knob of the kernel, as a knob
    applies to the whole host; else split.
    """
    words = f"{options['control']},{options['treatment'] or ''}".split(",")
    names = [word.partition("=")[0].strip() for word in words if "=" in word]
    knobs = read_knobs(host.tree) if names else {}
    found = any("/" in name or find_knobs(knobs, name) for name in names)
    return "switchback" if found else "split"


class Plan(NamedTuple):
    """The plan of a run; plan_of() has found nothing that prevents it."""

    given: RunOptions
    metrics: list[Metric]
    guards: list[Guard]
    design: Design
    length: Length
    timing: bool  # whether a metric needs the module to time page faults


def plan_of(host: Host, options: dict[str, Any]) -> Plan:
    """Return the plan that the options describe; raise an error for invalid options, and if a
    guard is broken before the run begins.
    """
    if (unit := options["unit"]) not in UNITS:
        text = f"--unit {unit} is for --preset; without it, --unit is process or cgroup"
        raise click.UsageError(
            f"{text}; to limit the experiment to the service, give --cgroup {unit}"
        )
    if not options["metric"]:
        raise click.UsageError("Missing option '--metric'.")
    kind = options["design"] or usual_design(host, options)
    given = RunOptions(**options | {"design": kind})
    metrics, guards = [*map(Metric.parse, given.metric)], [*map(Guard.parse, given.guard)]
    design = design_of(host, given)
    if given.margin and not any(metric.better for metric in metrics):
        raise click.UsageError(UNJUDGED)
    without = [each.name for each in metrics if each.guard and not (each.margin or given.margin)]
    if without:
        text = f"metric {without[0]}: this guard has no margin."
        raise click.UsageError(f"{text} Write `guard 5%`, or give --margin")
    length = length_of(given, design, metrics)
    check_sources(host.tree, metrics, guards, design.kind)
    if design.kind == "split":
        for warning in check_units(scope_of(host.tree, given.cgroup), metrics, given.unit):
            click.echo(f"warning: {warning}", err=True)
    check_commands(metrics, given.at_switch)
    first_look(host, guards)
    return Plan(given, metrics, guards, design, length, wants_times(metrics, guards))
