# SPDX-License-Identifier: GPL-2.0
"""Refuse to compare arms that cannot differ, because no policy reaches the processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmpolicy.ab.arms import Settings
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.run.scope import HOST
from mmpolicy.ab.sources import CgroupFile
from mmpolicy.errors import Error, Exit
from mmpolicy.host.evidence import THP
from mmpolicy.host.files import Tree
from mmpolicy.memory.reach import ALL, Reach
from mmpolicy.verbs.reached import OVERRIDE, POINT, reach_in, warn


def check_arms(tree: Tree, scope: str, arms: Iterable[Settings]) -> None:
    """Raise an error if the arms of an experiment cannot differ, because policies reach no memory
    of any process in the scope.

    Print a warning if policies reach only some processes or parts of their memory. The check
    applies only to arms that differ at anon_order alone: other points do not depend on reach. It
    skips the whole host, which always has processes within reach.
    """
    settings = list(arms)
    if scope == HOST or settings[0] == settings[-1]:
        return
    if _differing(*settings) != {POINT}:
        return
    override = any(
        value == "1" and key.name == OVERRIDE for each in settings for key, value in each.items()
    )
    _refuse([scope], reach_in(tree, [scope], override=override))


def _differing(first: Settings, second: Settings) -> set[str]:
    """Return the hook points at which the settings of two arms differ. Knobs of a point do not
    count if its policy is stock in both arms, as they then have no effect.
    """

    def told(settings: Settings, point: str) -> dict[str, str]:
        found = {key: value for key, value in settings.items() if key.point == point}
        asked = (key.off not in (None, value) for key, value in found.items())
        return {key.inside: value for key, value in found.items()} if any(asked) else {}

    points = {key.point for each in (first, second) for key in each}
    return {point for point in points if told(first, point) != told(second, point)}


def check_knobs(tree: Tree, paths: Iterable[str], metrics: Iterable[str]) -> None:
    """Check arms that set the kernel's folio sizes: raise an error if almost no memory in the
    cgroups of the metrics can get these sizes. If some metrics are not of a cgroup, only warn.
    """
    wanted = {path.rpartition("/")[2] for path in paths if path.startswith(f"{THP}/")}
    sources = [source for metric in metrics or () for source in Metric.parse(metric).sources()]
    files = [each.file for each in sources if isinstance(each, CgroupFile)]
    scopes = list(dict.fromkeys(each.rpartition("/")[0] or HOST for each in files))
    if wanted != {"enabled"} or not scopes or HOST in scopes:
        return
    found = reach_in(tree, scopes, own_sizes=True)
    if len(files) == len(sources):
        _refuse(scopes, found)
    else:
        warn(found)


def _refuse(scopes: Sequence[str], found: Sequence[Reach]) -> None:
    if found and all(each.barred >= ALL for each in found):
        first = found[0].barriers[0]
        text = (
            f"no policy reaches the processes of {', '.join(scopes)}, so the arms cannot differ: "
            f"{next(found[0].lines())}"
        )
        raise Error(text.removesuffix(f"; remedy: {first.way_out}"), Exit.USAGE, first.way_out)
    warn(found)
