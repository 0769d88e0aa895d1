# SPDX-License-Identifier: GPL-2.0
"""Shadows: set, shown, kept in manifests, and their predicted effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmpolicy.control.shadow import Shadow, shadow_of

from .fakes import COMMON, CONTROL, COUNTERS, DEFAULT, FakeTree, Run, read_named

FILE = f"{DEFAULT}/anon_order/shadow"
STATS = f"{COUNTERS}/anon_order/stats"
COUNTED = {
    "requested_order_0": 5,
    "shadow_requested_order_0": 100,
    "shadow_requested_order_2": 8,
    "shadow_requested_order_4": 892,
    "shadow_allocated_order_2": 4,
    "shadow_allocated_order_4": 96,
    "shadow_reason_no_room": 50,
    "shadow_reason_dense_neighbour": 900,
}
TEXT = (
    "shadow of anon_order: of 1000 page faults, this policy would have avoided 800 to 850 "
    "(80 to 85 %), and it would have taken 602 to 652 pages more"
)


def test_set_and_show(run: Run, tree: FakeTree) -> None:
    rows = [line.split() for line in run("set", "anon_order", "shadow=fixed").out.splitlines()]
    assert ["default/anon_order/shadow", "none", "->", "fixed"] in rows
    assert tree.writes == [(FILE, "fixed")]
    assert "[fixed]" in tree.read(FILE)
    assert "anon_order  (any)" in run("show").out
    assert run("show", "--json").json["points"]["anon_order"]["knobs"]["shadow"] == "fixed"
    refused = run("set", "anon_order", "shadow=stock")
    assert (refused.code, "EINVAL" in refused.err) == (5, True)


def test_status_tells_a_shadow_alone(run: Run) -> None:
    assert "shadow" not in run("set", "anon_order", "fixed").out + run("status").out
    run("reset")
    run("set", "anon_order", "shadow=adaptive")
    out = run("status").out.splitlines()
    assert out[0] == "state: active"
    row = f"all others default anon_order stock {COMMON} shadow=adaptive"
    assert " ".join(out[-1].split()) == row
    data = run("status", "--json").json["profiles"]["default"]["points"]["anon_order"]
    assert (data["policy"], data["knobs"]["shadow"]) == ("stock", "adaptive")


def test_a_manifest_is_the_whole_state(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    run("set", "anon_order", "shadow=adaptive")
    kept = tmp_path / "kept.toml"
    kept.write_text(run("save").out)
    assert 'shadow = "adaptive"' in kept.read_text()
    without = tmp_path / "without.toml"
    without.write_text("version = 1\n")
    assert run("apply", str(without)).code == 0
    assert read_named(tree)["profiles/default/anon_order/shadow"] == "none"
    assert run("apply", str(kept)).code == 0
    assert read_named(tree)["profiles/default/anon_order/shadow"] == "adaptive"
    run("revert")
    assert tree.read(f"{CONTROL}/state") == "stock"


def test_a_new_profile_has_none(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    run("profile", "create", "web")
    run("set", "anon_order", "shadow=fixed", "--profile", "web")
    text = run("save").out
    run("reset")
    tree.writes.clear()
    manifest = tmp_path / "web.toml"
    manifest.write_text(text)
    assert run("apply", str(manifest)).code == 0
    assert (f"{CONTROL}/profiles/web/anon_order/shadow", "fixed") in tree.writes
    assert all(path != FILE for path, _ in tree.writes)


def test_what_it_would_have_done() -> None:
    assert shadow_of(COUNTED) == Shadow(1000, 800, 850, 602, 652)
    assert shadow_of({"shadow_requested_order_0": 0, "requested_order_4": 7}) is None
    fixed = {"shadow_requested_order_4": 160, "shadow_allocated_order_4": 10}
    found = shadow_of(fixed)
    assert found == Shadow(160, 150, 150, 0, 0)
    assert found.text() == (
        "of 160 page faults, this policy would have avoided 150 (94 %), and it would have "
        "taken 0 pages more"
    )


def test_stats(run: Run, tree: FakeTree) -> None:
    tree.put(STATS, "\n".join(f"{name} {value}" for name, value in COUNTED.items()))
    assert run("stats", "anon_order").out.splitlines()[-1] == TEXT
    data = run("stats", "--json").json["shadows"]
    assert data == {"anon_order": shadow_data_of(1000, 800, 850, 602, 652)}
    tree.put(STATS, "requested_order_4 7")
    assert "shadow" not in run("stats").out
    assert run("stats", "--json").json["shadows"] == {}


def shadow_data_of(*numbers: int) -> dict[str, int]:
    names = ("faults", "spared_least", "spared_most", "pages_least", "pages_most")
    return dict(zip(names, numbers, strict=True))


def test_export(run: Run) -> None:
    line = 'mmpolicy_shadow{point="anon_order",policy="fixed",profile="default"} 1.0'
    assert line not in run("export").out
    run("set", "anon_order", "shadow=fixed")
    assert line in run("export").out


@pytest.mark.parametrize("metric", ["arm.anon_order.shadow_allocated_order_4/s lower"])
def test_an_experiment_can_compare_them(ab: Run, tree: FakeTree, metric: str) -> None:
    tree.put(STATS, "shadow_allocated_order_4 0")
    words = ["--control", "anon_order=stock,shadow=fixed", "--metric", metric, "--dry-run"]
    planned = ab("--treatment", "anon_order=stock,shadow=adaptive", *words)
    assert planned.code == 0
    assert "ab-control/anon_order/shadow <- fixed" in planned.out
    assert "ab-treatment/anon_order/shadow <- adaptive" in planned.out
