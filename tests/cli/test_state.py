# SPDX-License-Identifier: GPL-2.0
"""The state as a whole: reading it, and the way from any state to any other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mmpolicy.control.keys import (
    BINDINGS,
    CONTROL_ARM,
    DEFAULT,
    LEASE,
    PERCENT,
    TREATMENT_ARM,
    CgroupBinding,
    Key,
    ProcessBinding,
    Profile,
    Setting,
    State,
    choice,
)
from mmpolicy.control.state import go_to, plan, read_state
from mmpolicy.errors import Error

from .fakes import CONTROL, HOST_POINTS, KNOBS, POINTS, FakeTree, by_name

Step = Callable[[random.Random], tuple[str, str]]


def test_a_profile_that_goes_while_it_is_read(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a profile disappears while the state is read, as when a lease expires, the state read is
    the one after it.
    """
    expected = read_state(tree)
    tree.make_profile("short")
    read, gone = tree.read, list[str]()

    def expiring(path: str) -> str:
        if "/profiles/short/" in path and not gone:
            gone.append(path)
            tree.remove(f"{CONTROL}/profiles/short")
        return read(path)

    monkeypatch.setattr(tree, "read", expiring)
    assert read_state(tree) == expected
    assert gone


@pytest.fixture
def busy(tree: FakeTree) -> FakeTree:
    """Return a host with cgroups and processes to bind."""
    for number in range(4):
        tree.make_cgroup(f"/app.slice/{number}")
        tree.make_process(100 + number)
    return tree


def wander(tree: FakeTree, rng: random.Random, steps: int) -> State:
    """Make writes at random; the kernel refuses some of them."""
    names = ["default", "a", "b", "c"]
    cgroups = [str(tree.inode("/sys/fs/cgroup", f"app.slice/{n}")) for n in range(4)]
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
        go_to(busy, state, read_state(busy))
        assert read_state(busy) == state
        assert plan(read_state(busy), state) == []


def test_the_way_is_safe_at_every_step(busy: FakeTree) -> None:
    """On the way, no policy is on before its knobs are set, and nothing is bound to a
    partial profile.
    """
    wanted = read_state(busy) | {Profile("a"): ""}
    for knob, (_, low, high) in KNOBS.items():
        for profile in ("default", "a"):
            if profile == "default" or knob.partition("/")[0] not in HOST_POINTS:
                point, *policy, name = knob.split("/")
                key = Setting(profile, point, "".join(policy), name)
                wanted[key] = str(high if wanted.get(key) == str(low) else low)
                wanted[choice(profile, point)] = POINTS[point][-1]
    wanted[CgroupBinding(busy.inode("/sys/fs/cgroup", "app.slice/0"))] = "a"
    wanted[ProcessBinding(100, 7)] = "a"
    settings = {key for key in wanted if isinstance(key, Setting) and not key.is_shadow}
    knobs = {key for key in settings if not key.is_choice}
    written: set[Key] = set()
    for write in plan(read_state(busy), wanted):
        for key in settings - written:
            if isinstance(write.key, Setting) and write.key.is_choice and not key.is_choice:
                assert (key.profile, key.point) != (write.key.profile, write.key.point)
            assert not isinstance(write.key, BINDINGS) or key.profile != "a"
        written.add(write.key)
    assert knobs < written and ProcessBinding(100, 7) in written


def test_a_lease_begins_first_and_ends_last(tree: FakeTree) -> None:
    old = read_state(tree)
    new: State = old | {LEASE: "1000", choice(DEFAULT, "anon_order"): "never"}
    assert [write.path for write in plan(old, new)] == [
        f"{CONTROL}/lease_ms",
        f"{CONTROL}/profiles/default/anon_order/policy",
    ]
    last = plan(new, old)[-1]
    assert (last.path, last.value) == (f"{CONTROL}/lease_ms", "0")


def test_percent_alone_does_not_stop_the_experiment(tree: FakeTree) -> None:
    for name in "ab":
        tree.write(f"{CONTROL}/profiles/create", name)
    tree.write(f"{CONTROL}/experiment/control", "a")
    tree.write(f"{CONTROL}/experiment/treatment", "b")
    tree.write(f"{CONTROL}/experiment/enabled", "1")
    old = read_state(tree)
    new: State = old | {PERCENT: "100"}
    (write,) = plan(old, new)
    assert (write.path, write.value) == (f"{CONTROL}/experiment/percent", "100")
    swapped: State = old | {CONTROL_ARM: "b", TREATMENT_ARM: "a"}
    go_to(tree, swapped, old)
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
    go_to(tree, state, read_state(tree))
    assert tree.read(f"{base}/cgroups").split() == [kept]
    assert tree.read(f"{base}/pids").split() == ["10"]


def test_a_module_without_bindings_and_experiments(tree: FakeTree) -> None:
    for path in ("experiment", "lease_ms", "profiles/default/cgroups", "profiles/default/pids"):
        tree.remove(f"{CONTROL}/{path}")
    state = read_state(tree)
    assert all(name.startswith("profiles/default") for name in by_name(state))
    new: State = state | {choice(DEFAULT, "anon_order"): "fixed"}
    go_to(tree, new, state)
    assert read_state(tree) == new
