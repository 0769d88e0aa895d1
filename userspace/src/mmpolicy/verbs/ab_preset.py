# SPDX-License-Identifier: GPL-2.0
"""`ab run --preset`: the options of a preset, and the plan shown before the run begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from mmpolicy.ab.design import least_pairs
from mmpolicy.ab.presets import ABOUT, read
from mmpolicy.ab.run.progress import clock
from mmpolicy.figures import figure
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.host.machine import Host
from mmpolicy.verbs.ab_plan import UNITS, Plan
from mmpolicy.verbs.options import ask


def resolve(
    host: Host, ctx: click.Context, name: str, options: dict[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """Return the options of a run with a preset: an option that the user gave overrides that of the
    preset.
    """
    service = options["unit"] if options["unit"] not in UNITS else None
    where = service or options["cgroup"]
    if not where:
        raise click.UsageError(f"--preset {name} is for a service: give --unit, such as redis")
    path = find_cgroup(host.tree, where).name
    given = read(name)
    given.pop(ABOUT)
    if service:
        options["unit"] = UNITS[0]
    # A preset without a cgroup sets knobs of the kernel, which apply to the whole host. So the run
    # is not limited to the service; only its metrics are those of the service.
    if "cgroup" not in given:
        options["cgroup"] = None
    for key, value in given.items():
        if ctx.get_parameter_source(key) != ParameterSource.COMMANDLINE:
            options[key] = _filled(value, path)
    return options


def _filled(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return tuple(_filled(each, path) for each in value)
    if isinstance(value, str):
        return value.replace("{cgroup}", path)
    return value


def show(name: str, plan: Plan, agreed: bool) -> None:
    """Print the plan of a preset, and ask whether to begin; agreed: do not ask."""
    for line in plan_lines(name, plan):
        click.echo(line, err=True)
    ask(agreed, ", or --dry-run to see the plan")


def plan_lines(name: str, plan: Plan) -> Iterator[str]:
    """Yield the plan of an experiment as text: arms, metrics, guards, and duration."""
    yield f"{name}: {read(name)[ABOUT]}"
    for arm, text in plan.given.arms().items():
        yield f"{arm}: {text}"
    for metric in plan.metrics:
        role = (
            f"guard: may get at most {metric.margin:g} % worse"
            if metric.guard
            else "the metric to improve"
        )
        yield f"metric {metric.name} ({role}): {metric.text}"
    for guard in plan.guards:
        yield f"the run is stopped at once unless {guard.text}"
    design, blocks = plan.design, plan.length.blocks(plan.design)
    yield f"{design.kind}: {plan.length.rule()}"
    long = clock(blocks * design.block_s)
    least = least_pairs(sum(not metric.guard for metric in plan.metrics))
    yield (
        f"at most {blocks} blocks of {figure(design.block_s)} s, {long} in all; {least} pairs of "
        f"blocks, {clock(design.seconds(least))}, are the fewest that can show an effect"
    )
