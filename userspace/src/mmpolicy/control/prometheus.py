# SPDX-License-Identifier: GPL-2.0
"""Export the state and the counters as Prometheus metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from math import frexp
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from mmpolicy import __version__
from mmpolicy.control.counters import (
    HISTOGRAM,
    Bucket,
    counted_profiles,
    histograms,
    read_counters,
)
from mmpolicy.control.experiment import declared, live, running
from mmpolicy.control.keys import AbsentCgroup, CgroupBinding, Setting, State
from mmpolicy.control.labels import cgroups_of
from mmpolicy.control.maintained import live as maintained
from mmpolicy.control.manifest import Manifest
from mmpolicy.control.model import check_abi, check_loaded, lease_of
from mmpolicy.control.notices import notices
from mmpolicy.control.owners import lost, read_owned
from mmpolicy.control.state import bindings_of, changed_keys, profiles_of, read_state
from mmpolicy.control.watched import gone_back, read_watched
from mmpolicy.errors import Error
from mmpolicy.host.files import MODULE, MODULE_DIR, Tree
from mmpolicy.host.huge import KINDS, huge_of_cgroups

STATES = ("stock", "attaching", "active", "detaching", "expired")
NS = 1e-9


def families(tree: Tree) -> list[Metric]:
    """Return the state and all counters as metrics; without debugfs, only the state."""
    state = read_state(tree)
    found = [_up(1), *_left(tree), _state(tree), _build(tree), *_lease(tree), *_settings(state)]
    found += [*_bindings(state, cgroups_of(tree, state)), *_drift(tree, state), *_huge(tree)]
    try:
        counters = {
            (profile, point): values
            for profile in counted_profiles(tree)
            for point, values in read_counters(tree, profile, None).items()
        }
    except Error:
        counters = {}
    told = "1: the counters can be read. 0: there is no debugfs, or no permission for it."
    found.append(GaugeMetricFamily(f"{MODULE}_counters_up", told, int(bool(counters))))
    return found + list(_events(counters)) if counters else found


class _Source(Collector):
    """A collector for a Prometheus registry that calls a function to get its metrics."""

    def __init__(self, find: Callable[[], list[Metric]]) -> None:
        self._find = find

    def collect(self) -> list[Metric]:
        """Return all metrics."""
        return self._find()


def registry(find: Callable[[], list[Metric]]) -> CollectorRegistry:
    """Return a Prometheus registry that calls `find` whenever metrics are collected."""
    found = CollectorRegistry(auto_describe=False)
    found.register(_Source(find))
    return found


def text(found: list[Metric]) -> str:
    """Return metrics in the text format of Prometheus."""
    return generate_latest(registry(lambda: found)).decode()


def families_or_down(tree: Tree, tell: Callable[[Error], None] = lambda _err: None) -> list[Metric]:
    """Return all metrics; while the module is not loaded, only those that do not need
    the module.
    """
    try:
        return families(tree)
    except Error as err:
        tell(err)
        return [_up(0), *_left(tree), *_huge(tree)]


def _up(value: int) -> Metric:
    return GaugeMetricFamily(f"{MODULE}_up", "1: the module is loaded, and can be read.", value)


def _left(tree: Tree) -> Iterator[Metric]:
    """Yield metrics that need no module: running and unfinished changes and experiments."""
    told = "1: an experiment (mmpolicy ab run) is running."
    yield GaugeMetricFamily(f"{MODULE}_experiment_running", told, int(bool(running(tree))))
    yield from _experiment(live(tree))
    yield from _maintain(maintained(tree))
    yield from _proofs(tree)
    names = {each.name for each in notices(tree)}
    for name, told in (
        ("knobs_left", "1: a killed experiment has left knobs of the kernel changed."),
        ("cut_off", "1: a change was interrupted, and may be partly made."),
    ):
        yield GaugeMetricFamily(f"{MODULE}_{name}", told, int(name in names))


def _experiment(now: dict[str, Any]) -> Iterator[Metric]:
    """Yield metrics about the current block of the experiment, by which a query can split the
    metrics of an application; none if no block runs.
    """
    if "block" not in now:
        return
    start = f"{MODULE}_experiment"
    for name, told in (
        ("phase", "1: the experiment is in this phase."),
        ("arm", "1: this arm of the experiment is active; in a split, both are."),
    ):
        family = GaugeMetricFamily(f"{start}_{name}", told, labels=[name])
        family.add_metric([str(now[name])], 1)
        yield family
    yield GaugeMetricFamily(
        f"{start}_block", "Number of the current block of the experiment.", now["block"]
    )
    yield GaugeMetricFamily(
        f"{start}_blocks", "Planned number of blocks of the experiment.", now["blocks"]
    )
    told = (
        "1: the current block of the experiment is measured; 0: its wash-out, which is not "
        "measured, still lasts."
    )
    yield GaugeMetricFamily(f"{start}_measured", told, int(now["measured"]))
    guards = GaugeMetricFamily(
        f"{start}_guard",
        "Last value of a guard, a condition that stops the experiment.",
        labels=["guard"],
    )
    for text, value in now.get("guards", {}).items():
        if value is not None:
            guards.add_metric([text], value)
    yield guards


def _maintain(now: dict[str, Any]) -> Iterator[Metric]:
    """Yield the results of the running `maintain`, by service."""
    start = f"{MODULE}_maintain"
    yield GaugeMetricFamily(f"{start}_running", "1: mmpolicy maintain is running.", int(bool(now)))
    if not now:
        return
    told = "1: maintain waits, as memory is short or collapses are slow."
    yield GaugeMetricFamily(f"{start}_waits", told, int(bool(now["waits"])))
    yield CounterMetricFamily(f"{start}_cpu_seconds", "CPU time of maintain.", now["cpu_s"])
    for name, field, unit, told in (
        ("collapsed_bytes", "collapsed_kib", 1024, "Memory that maintain turned into 2 MB pages."),
        ("given_back_bytes", "given_back_kib", 1024, "Empty memory that maintain gave back."),
        (
            "again",
            "again",
            1,
            "How often maintain collapsed or gave back the same 2 MB of memory again.",
        ),
    ):
        family = CounterMetricFamily(f"{start}_{name}", told, labels=["service"])
        for each in now["services"]:
            family.add_metric([each["name"]], each[field] * unit)
        yield family
    told = "Memory that is full, and not in 2 MB pages."
    full = GaugeMetricFamily(f"{start}_full_bytes", told, labels=["service"])
    for each in now["services"]:
        full.add_metric([each["name"]], each["full_kib"] * 1024)
    yield full


def _proofs(tree: Tree) -> Iterator[Metric]:
    """Yield the progress of each `try --watch`, by service."""
    records, start = read_watched(tree), f"{MODULE}_try_watch"
    if not records:
        return
    gone = [each.trial for each in gone_back(tree)]
    for name, told, those in (
        ("running", "1: try --watch is testing a setting that try has kept.",
         [each.trial for each in records if each.running(tree)]),
        ("at_stock", "1: the service is at stock, for a comparison or as try --watch was killed.",
         [each.trial for each in records if each.at_stock]),
        ("taken_back", "1: the setting was shown to be worse, and is no longer in force.", gone),
    ):  # fmt: skip
        family = GaugeMetricFamily(f"{start}_{name}", told, labels=["cgroup"])
        for each in records:
            family.add_metric([each.cgroup], int(each.trial in those))
        yield family
    told = "Effect of the kept setting in the last week, against stock, with its 95 % interval."
    family = GaugeMetricFamily(f"{start}_effect_ratio", told, labels=["cgroup", "metric", "end"])
    for each in records:
        for metric, ends in each.effects.items():
            for end, value in zip(("estimate", "low", "high"), ends):
                family.add_metric([each.cgroup, metric, end], value / 100)
    yield family


def _huge(tree: Tree) -> Iterator[Metric]:
    """Yield the memory in huge pages of each cgroup, under the metric names of CRI-O."""
    cgroups = huge_of_cgroups(tree)
    for kind in KINDS:
        told = f"Memory of the kind {kind} in transparent huge pages."
        family = GaugeMetricFamily(f"container_memory_{kind}_thp_bytes", told, labels=["id"])
        for path, found in cgroups.items():
            family.add_metric([path], found.huge[kind])
        yield family
    told = "Part of the memory of the kinds anon and shmem in transparent huge pages."
    coverage = GaugeMetricFamily(f"{MODULE}_huge_coverage_ratio", told, labels=["id"])
    for path, found in cgroups.items():
        if found.coverage is not None:
            coverage.add_metric([path], found.coverage)
    yield coverage


def _state(tree: Tree) -> Metric:
    told = "1: the module is in this state."
    family = GaugeMetricFamily(f"{MODULE}_state", told, labels=["state"])
    now = check_loaded(tree)
    for state in dict.fromkeys([*STATES, now]):
        family.add_metric([state], int(state == now))
    return family


def _build(tree: Tree) -> Metric:
    version = f"{MODULE_DIR}/srcversion"
    facts = {"abi": check_abi(tree), "version": __version__}
    facts["srcversion"] = tree.read(version) if tree.exists(version) else ""
    return InfoMetricFamily(f"{MODULE}_build", "Versions of the command and of the module.", facts)


def _lease(tree: Tree) -> Iterator[Metric]:
    """Yield metrics about the lease: its length, and its remaining time if a lease is set."""
    lease = lease_of(tree)
    if lease:
        told = "Length of the lease; 0: no lease."
        yield GaugeMetricFamily(f"{MODULE}_lease_seconds", told, lease["lease_ms"] / 1000)
    if lease.get("lease_ms"):
        told, left = (
            "Time until the lease ends and the kernel goes back to stock.",
            lease["lease_left_ms"] / 1000,
        )
        yield GaugeMetricFamily(f"{MODULE}_lease_left_seconds", told, left)


def _settings(state: State) -> list[Metric]:
    policies = GaugeMetricFamily(
        f"{MODULE}_policy",
        "1: this policy is active at the point.",
        labels=["profile", "point", "policy"],
    )
    shadows = GaugeMetricFamily(
        f"{MODULE}_shadow",
        "1: the shadow of a point, a policy that is asked and not obeyed.",
        labels=["profile", "point", "policy"],
    )
    knobs = GaugeMetricFamily(
        f"{MODULE}_knob",
        "Value of a knob of a policy or point.",
        labels=["profile", "point", "policy", "knob"],
    )
    for key, value in state.items():
        if isinstance(key, Setting) and key.is_choice:
            policies.add_metric([key.profile, key.point, value], 1)
        elif isinstance(key, Setting) and key.is_shadow and value != key.off:
            shadows.add_metric([key.profile, key.point, value], 1)
        elif isinstance(key, Setting) and value.isdigit():
            knobs.add_metric([key.profile, key.point, key.policy, key.name], int(value))
    return [policies, shadows, knobs]


def _bindings(state: State, paths: dict[str, str]) -> list[Metric]:
    bound = GaugeMetricFamily(
        f"{MODULE}_bound",
        "Number of cgroups or processes bound to a profile.",
        labels=["profile", "kind"],
    )
    # the label `id` has the name that cAdvisor gives it, so that a query can join metrics of both
    told = "1: the cgroup is bound to this profile."
    binding = InfoMetricFamily(f"{MODULE}_binding", told, labels=["id", "profile"])
    for profile in profiles_of(state):
        found = bindings_of(state, profile)
        cgroups = [key.number for key in found if isinstance(key, CgroupBinding)]
        bound.add_metric([profile, "cgroups"], len(cgroups))
        bound.add_metric([profile, "pids"], len(found) - len(cgroups))
        for path in (paths[str(each)] for each in cgroups if str(each) in paths):
            binding.add_metric([path, profile], {})
    return [bound, binding]


def _drift(tree: Tree, now: State) -> Iterator[Metric]:
    """Yield the number of differences from the manifest that was applied last, and for each owner
    the number of its bindings that are not in force.

    A binding of a cgroup that does not exist is not a difference. An error in the manifest is
    ignored here, as `verify` reports it.
    """
    target = now
    with suppress(Error):
        manifest = Manifest.applied(tree)
        if manifest:
            target = declared(tree, now, manifest.target(tree, now))
            target = {
                key: value for key, value in target.items() if not isinstance(key, AbsentCgroup)
            }
            told = "Number of settings and bindings that differ from the last applied manifest."
            drift = len(changed_keys(now, target))
            yield GaugeMetricFamily(f"{MODULE}_drift", told, drift)
    told = "Number of bindings of existing cgroups that are not in force."
    family = GaugeMetricFamily(f"{MODULE}_bindings_lost", told, labels=["owner"])
    for owner, count in lost(now, target, read_owned(tree).values()).items():
        family.add_metric([owner], count)
    yield family


def _events(counters: dict[tuple[str, str], dict[str, int]]) -> Iterator[Metric]:
    """Yield all counters, and histograms of durations with a bucket for each factor of two."""
    events = CounterMetricFamily(
        f"{MODULE}_events",
        "Events that the module has counted.",
        labels=["profile", "point", "event"],
    )
    times: dict[str, HistogramMetricFamily] = {}
    for (profile, point), values in counters.items():
        found = histograms(values)
        for name, value in values.items():
            if name not in found and not HISTOGRAM.fullmatch(name):
                events.add_metric([profile, point, name], value)
        for sum_name, counts in found.items():
            name = sum_name.removesuffix("_ns")
            told = "Duration of the operation that the metric is named after."
            labels = ["profile", "point"]
            new = HistogramMetricFamily(f"{MODULE}_{name}_seconds", told, labels=labels)
            total = values.get(sum_name)
            _add_times(times.setdefault(name, new), [profile, point], counts, total)
    yield events
    yield from times.values()


def _add_times(
    family: HistogramMetricFamily,
    labels: list[str],
    counts: Mapping[Bucket, float],
    sum_ns: int | None,
) -> None:
    """Add a histogram with a bucket for each factor of two of time; the last bucket has no upper
    bound.

    sum_ns: sum of all times; None if the module does not report it.
    """
    total = None if sum_ns is None else sum_ns * NS
    # number of recorded times in each factor of two, by its upper end in ns
    octaves: dict[float, float] = defaultdict(float)
    for (start, _), count in sorted(counts.items()):
        octaves[2.0 ** frexp(start)[1]] += count
    totals = list(accumulate(octaves.values()))
    bounds = [str(end * NS) for end in [*octaves][:-1]]
    family.add_metric(labels, list(zip([*bounds, "+Inf"], totals)), total)
    if sum_ns is None:
        names = dict(zip(("profile", "point"), labels))
        family.add_sample(f"{family.name}_count", names, totals[-1])
