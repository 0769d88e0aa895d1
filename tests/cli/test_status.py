# SPDX-License-Identifier: GPL-2.0
"""`status`, the first output of `mmpolicy` alone if the module is loaded."""

from __future__ import annotations

from mmpolicy.control.experiment import RECOVERY

from .fakes import COMMON, CONTROL, FakeTree, Run


def test_all_stock(run: Run) -> None:
    assert run("status").out == "state: stock\n"
    assert run().out.startswith("state: stock\n")


def test_what_is_not_stock_and_for_whom(run: Run, tree: FakeTree) -> None:
    for name in "abcde":
        tree.make_cgroup(f"/app.slice/{name}")
    tree.make_process(41)
    run("set", "anon_order", "fixed", "max_order=6")
    for profile in ("web", "idle", "unused"):
        run("profile", "create", profile)
    run("set", "anon_order", "never", "--profile", "web")
    run("set", "compact", "stock", "--profile", "web")
    for name in "abcd":
        run("bind", "--cgroup", f"/app.slice/{name}", "web")
    run("bind", "--pid", "41", "web")
    run("bind", "--cgroup", "e", "idle")
    run("lease", "90s")
    tree.put(f"{CONTROL}/lease_left_ms", "4500")
    result = run("status")
    assert result.out.splitlines()[0] == "state: active, back to stock in 4.5 s"
    rows = [" ".join(line.split()) for line in result.out.splitlines()]
    assert rows[2:] == [
        "FOR PROFILE POINT POLICY KNOBS",
        f"all others default anon_order fixed {COMMON} max_order=6",
        f"/app.slice/a, /app.slice/b, /app.slice/c, 2 more web anon_order never {COMMON}",
        "profiles with all points at stock: idle (/app.slice/e)",
    ]
    assert run().out.startswith(result.out)
    data = run("status", "--json").json
    assert (data["state"], data["lease_ms"], data["experiment"]) == ("active", 90000, None)
    web = data["profiles"]["web"]
    assert web["cgroups"] == [f"/app.slice/{name}" for name in "abcd"]
    assert web["pids"] == [41]
    knobs = dict(word.split("=") for word in COMMON.split())
    assert web["points"] == {"anon_order": {"policy": "never", "knobs": knobs}}


def test_a_shadow_is_not_stock(run: Run) -> None:
    """A shadow is shown although no policy is on; inactive ones are not."""
    run("set", "anon_order", "shadow=adaptive", "max_copy_order=0")
    (row,) = [line.split() for line in run("status").out.splitlines() if "anon_order" in line]
    knobs = [word for word in COMMON.split() if "max_copy" not in word]
    assert row == ["all", "others", "default", "anon_order", "stock", "max_copy_order=0", *knobs,
                   "shadow=adaptive"]  # fmt: skip
    points = run("status", "--json").json["profiles"]["default"]["points"]
    assert points["anon_order"]["policy"] == "stock"


def test_experiment_and_expiry(run: Run, tree: FakeTree) -> None:
    for arm, name in (("control", "a"), ("treatment", "b")):
        run("profile", "create", name)
        tree.write(f"{CONTROL}/experiment/{arm}", name)
    tree.write(f"{CONTROL}/experiment/enabled", "1")
    assert "experiment: b for 50 %, a for the others" in run().out
    tree.expire()
    assert run("status").out.splitlines() == [
        "state: expired", (
            "the lease has expired, so the kernel is at stock: mmpolicy reset acknowledges it"
        ),
    ]  # fmt: skip


def test_without_the_module(run: Run, tree: FakeTree) -> None:
    """Without the module, people see the settings that need no module; programs get the error
    alone.
    """
    tree.make_unloaded()
    assert (run("status").code, run("status").out) == (3, "")
    tree.put(RECOVERY, "{}")
    told = (
        "an experiment was killed, and knobs of the kernel still have its values: mmpolicy ab "
        "restore\n"
    )
    assert (run("status").code, run("status").out) == (3, told)
    result = run("status", "--json")
    assert (result.code, result.out, '"exit": 3' in result.err) == (3, "", True)
