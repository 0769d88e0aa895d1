# SPDX-License-Identifier: GPL-2.0
"""What can be known to be wrong before anything is changed."""

from collections.abc import Sequence

import click

from mmpolicy.ab.guards import Guard
from mmpolicy.ab.metrics import Metric, all_sources
from mmpolicy.ab.sources import Arm, ArmTimes, CgroupFile, Reader, Source, Units
from mmpolicy.control.counters import read_counters
from mmpolicy.control.keys import DEFAULT
from mmpolicy.errors import pick
from mmpolicy.host.files import Tree


def check_sources(
    tree: Tree, metrics: Sequence[Metric], guards: Sequence[Guard], design: str
) -> None:
    """Refuse what cannot be read, and what would not mean what it seems to."""
    sources = all_sources([*metrics, *(guard.metric for guard in guards)])
    for each in sources:
        if isinstance(each, Arm):
            _check_counter(tree, each)
    Reader(tree, sources, {}).read(0.0)
    for metric in metrics:
        for each in metric.sources():
            _check_meaning(each, design)


def _check_counter(tree: Tree, source: Arm) -> None:
    """Refuse a counter that the module does not have; it lists those that are 0, too."""
    names = read_counters(tree, DEFAULT, source.point)[source.point]
    if isinstance(source, ArmTimes):
        names = {name.partition("_log2_")[0]: 0 for name in names}
    pick(f"counter of {source.point}", source.counter, names)


def _check_meaning(source: Source, design: str) -> None:
    if isinstance(source, CgroupFile) and source.only_rises and not source.rate:
        text = f"'{source.text}' only rises, so that its mean says nothing"
        raise click.UsageError(f"{text}: take {source.text}/s")
    if design == "split" and not isinstance(source, Arm | Units):
        text = f"'{source.text}' is of the whole host, where both arms run at once"
        raise click.UsageError(f"{text}: take arm.POINT.COUNTER, or --design switchback")


def wants_times(metrics: Sequence[Metric], guards: Sequence[Guard]) -> bool:
    """Tell if the time of faults is asked for."""
    sources = all_sources([*metrics, *(guard.metric for guard in guards)])
    return any(isinstance(each, ArmTimes) for each in sources)
