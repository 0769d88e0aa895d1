# SPDX-License-Identifier: GPL-2.0
"""The text format of Prometheus, for the textfile collector of its node exporter."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mmpolicy.control.counters import counted_profiles, read_counters
from mmpolicy.control.model import check_loaded, lease_of
from mmpolicy.control.state import State, read_state
from mmpolicy.host.files import Tree

Value = tuple[dict[str, str], float]


class Metric(NamedTuple):
    """One metric: its kind, what it is, and a value for each set of labels."""

    name: str
    kind: str
    told: str
    values: list[Value]


def text(metrics: list[Metric]) -> Iterator[str]:
    """Yield the lines of metrics that have values."""
    for name, kind, told, values in metrics:
        if values:
            yield f"# HELP mmpolicy_{name} {told}"
            yield f"# TYPE mmpolicy_{name} {kind}"
        yield from (f"mmpolicy_{name}{_labels(labels)} {value}" for labels, value in values)


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def collect(tree: Tree) -> list[Metric]:
    """Return the state and all counters as metrics."""
    now = check_loaded(tree)
    state = read_state(tree)
    left = lease_of(tree).get("lease_left_ms", 0) / 1000
    return [
        Metric("state", "gauge", "1: stock, active or expired.", [({"state": now}, 1)]),
        Metric(
            "lease_left_seconds", "gauge", "Time until all is stock; 0: no lease.", [({}, left)]
        ),
        Metric("policy", "gauge", "1: the policy of a point.", list(_policies(state))),
        Metric("knob", "gauge", "Value of a knob.", list(_knobs(state))),
        Metric("bound", "gauge", "Cgroups and processes bound to a profile.", _bound(state)),
        Metric("events_total", "counter", "Counters of the module.", list(_events(tree))),
    ]


def _policies(state: State) -> Iterator[Value]:
    for key, value in state.items():
        if key.endswith("/policy"):
            _, profile, point, _ = key.split("/")
            yield {"profile": profile, "point": point, "policy": value}, 1


def _knobs(state: State) -> Iterator[Value]:
    for key, value in state.items():
        words = key.split("/")
        if len(words) > 3 and value.isdigit():
            policy = words[3] if len(words) > 4 else ""
            labels = {"profile": words[1], "point": words[2], "policy": policy, "knob": words[-1]}
            yield labels, int(value)


def _bound(state: State) -> list[Value]:
    count: dict[tuple[str, str], int] = {}
    for key, profile in state.items():
        kind = key.partition("/")[0]
        if kind in ("cgroups", "pids"):
            count[profile, kind] = count.get((profile, kind), 0) + 1
    return [({"profile": name, "kind": kind}, number) for (name, kind), number in count.items()]


def _events(tree: Tree) -> Iterator[Value]:
    for profile in counted_profiles(tree):
        for point, counters in read_counters(tree, profile, None).items():
            for name, value in counters.items():
                yield {"profile": profile, "point": point, "event": name}, value
