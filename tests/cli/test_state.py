# SPDX-License-Identifier: GPL-2.0
"""The state as a whole: reading it, and the way from any state to any other."""

import random
from collections.abc import Callable

import pytest

from mmpolicy.control.state import State, plan, read_state, restore
from mmpolicy.errors import Error

from .fakes import CONTROL, KNOBS, POINTS, FakeTree

Step = Callable[[random.Random], tuple[str, str]]


@pytest.fixture
def busy(tree: FakeTree) -> FakeTree:
    """Return a host with something to bind."""
    for number in range(4):
        tree.make_cgroup(f"/app.slice/{number}")
        tree.make_process(100 + number)
    return tree


def wander(tree: FakeTree, rng: random.Random, steps: int) -> State:
    """Make writes at random; the kernel refuses some of them."""
    names = ["default", "a", "b", "c"]
    cgroups = [str(tree.inode(f"/sys/fs/cgroup/app.slice/{n}")) for n in range(4)]
    for _ in range(steps):
        base = f"profiles/{rng.choice(names)}"
        knob, (_, low, high) = rng.choice(list(KNOBS.items()))
        point = rng.choice(list(POINTS))
        writes = [
            ("profiles/create", rng.choice(names)),
            ("profiles/create", rng.choice(names)),
            ("profiles/delete", rng.choice(names)),
            (f"{base}/{knob}", str(rng.randint(low, high))),
            (f"{base}/{point}/policy", rng.choice(POINTS[point])),
            (f"{base}/cgroups", rng.choice(["", "-"]) + rng.choice(cgroups)),
            (f"{base}/pids", rng.choice(["", "-"]) + str(rng.randint(100, 103))),
            ("experiment/control", rng.choice([*names, "none"])),
            ("experiment/treatment", rng.choice([*names, "none"])),
            ("experiment/percent", str(rng.randint(0, 100))),
            ("experiment/unit", rng.choice(["process", "cgroup"])),
            ("experiment/enabled", rng.choice("01")),
            ("lease_ms", rng.choice(["0", "60000"])),
        ]
        path, value = rng.choice(writes)
        try:
            tree.write(f"{CONTROL}/{path}", value)
        except Error as err:
            assert err.errno, err.message
    return read_state(tree)


@pytest.mark.parametrize("seed", range(4))
def test_there_is_a_way_from_any_state_to_any_other(busy: FakeTree, seed: int) -> None:
    rng = random.Random(seed)
    states = [wander(busy, rng, 60) for _ in range(4)]
    for _ in range(6):
        state = rng.choice(states)
        restore(busy, state)
        assert read_state(busy) == state
        assert plan(read_state(busy), state) == []


def test_a_lease_begins_first_and_ends_last(tree: FakeTree) -> None:
    old = read_state(tree)
    new = old | {"lease_ms": "1000", "profiles/default/anon_order/policy": "never"}
    assert [path for path, _ in plan(old, new)] == [
        f"{CONTROL}/lease_ms",
        f"{CONTROL}/profiles/default/anon_order/policy",
    ]
    assert plan(new, old)[-1] == (f"{CONTROL}/lease_ms", "0")


def test_percent_alone_does_not_stop_the_experiment(tree: FakeTree) -> None:
    for name in "ab":
        tree.write(f"{CONTROL}/profiles/create", name)
    tree.write(f"{CONTROL}/experiment/control", "a")
    tree.write(f"{CONTROL}/experiment/treatment", "b")
    tree.write(f"{CONTROL}/experiment/enabled", "1")
    old = read_state(tree)
    new = old | {"experiment/percent": "100"}
    assert plan(old, new) == [(f"{CONTROL}/experiment/percent", "100")]
    swapped = old | {"experiment/control": "b", "experiment/treatment": "a"}
    restore(tree, swapped)
    assert read_state(tree) == swapped


def test_what_has_ended_is_not_bound_again(tree: FakeTree) -> None:
    tree.write(f"{CONTROL}/profiles/create", "web")
    base = f"{CONTROL}/profiles/web"
    kept, gone = tree.make_cgroup("/kept"), tree.make_cgroup("/gone")
    for pid in (10, 11, 12):
        tree.make_process(pid)
        tree.write(f"{base}/pids", str(pid))
    tree.write(f"{base}/cgroups", kept)
    tree.write(f"{base}/cgroups", gone)
    state = read_state(tree)
    tree.write(f"{CONTROL}/reset", "1")
    tree.remove("/sys/fs/cgroup/gone")
    tree.remove("/proc/11")
    tree.make_process(12, start=8)  # another process with its number
    restore(tree, state)
    assert tree.read(f"{base}/cgroups").split() == [kept]
    assert tree.read(f"{base}/pids").split() == ["10"]


def test_a_module_without_bindings_and_experiments(tree: FakeTree) -> None:
    for path in ("experiment", "lease_ms", "profiles/default/cgroups", "profiles/default/pids"):
        tree.remove(f"{CONTROL}/{path}")
    state = read_state(tree)
    assert all(key.startswith("profiles/default") for key in state)
    new = state | {"profiles/default/anon_order/policy": "fixed"}
    restore(tree, new)
    assert read_state(tree) == new
