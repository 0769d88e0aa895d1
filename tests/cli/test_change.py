# SPDX-License-Identifier: GPL-2.0
"""`set` and `reset`."""

from __future__ import annotations

import threading
from errno import EBUSY, EINVAL, EIO

import pytest

from mmpolicy.errors import Error

from .fakes import CONTROL, DEFAULT, MODULE_DIR, FakeTree, Run, read_named

POINT = f"{DEFAULT}/anon_order"


def test_set_writes_knobs_before_the_policy(run: Run, tree: FakeTree, reloads: list[str]) -> None:
    result = run("set", "anon_order", "fixed", "max_order=6", "min_available_percent=20")
    assert (result.code, reloads) == (0, [])
    assert tree.writes == [
        (f"{POINT}/fixed/max_order", "6"),
        (f"{POINT}/min_available_percent", "20"),
        (f"{POINT}/policy", "fixed"),
    ]
    rows = [line.split() for line in result.out.splitlines()]
    assert ["default/anon_order/fixed/max_order", "4", "->", "6"] in rows
    assert ["default/anon_order/policy", "stock", "->", "fixed"] in rows


def test_set_without_policy_takes_knobs_of_the_active_one(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "adaptive")
    assert run("set", "anon_order", "max_order=5").code == 0
    assert tree.writes[-1] == (f"{POINT}/adaptive/max_order", "5")


def test_set_takes_common_knobs_whatever_is_active(run: Run, tree: FakeTree) -> None:
    assert run("set", "anon_order", "min_available_percent=7").code == 0
    assert tree.writes == [(f"{POINT}/min_available_percent", "7")]


def test_the_policys_own_knob_goes_before_a_common_one(run: Run, tree: FakeTree) -> None:
    tree.put(f"{POINT}/max_order", "1")
    run("set", "anon_order", "fixed", "max_order=3")
    assert tree.writes[0] == (f"{POINT}/fixed/max_order", "3")


def test_set_json_reports_what_the_kernel_took(run: Run, tree: FakeTree) -> None:
    path = f"{POINT}/min_available_percent"
    tree.rounding[path] = "16"
    data = run("set", "anon_order", "min_available_percent=17", "--json").json
    change = {"path": path, "before": "5", "asked": "17", "now": "16"}
    assert data == {"version": 1, "command": "set", "dry_run": False, "changes": [change]}
    assert "(the command asked for 17)" in run("set", "anon_order", "min_available_percent=17").out


@pytest.mark.parametrize("value", ["10", "-1", "big"])
def test_a_refused_knob_tells_its_range(run: Run, tree: FakeTree, value: str) -> None:
    result = run("set", "anon_order", "fixed", f"max_order={value}")
    assert (
        result.code,
        "; the range is 0..9 (order: 2^n pages), the default is 4" in result.err,
    ) == (5, True)
    assert result.err.endswith("next: give a number from 0 to 9\n")
    manifest = f"version = 1\n[profiles.default.anon_order.fixed]\nmax_order = '{value}'\n"
    tree.put("/run/wrong.toml", manifest)
    applied = run("apply", str(tree.real("/run/wrong.toml")))
    assert (applied.code, "the range is 0..9" in applied.err) == (1, True)
    tree.remove(f"{CONTROL}/knobs")
    assert "it takes" not in run("set", "anon_order", "fixed", f"max_order={value}").err


def test_dry_run_writes_nothing(run: Run, tree: FakeTree) -> None:
    tree.denied = True
    result = run("set", "anon_order", "fixed", "max_order=6", "--dry-run")
    assert result.code == 0
    assert result.out.splitlines() == [
        f"{POINT}/fixed/max_order <- 6  (4 -> 6)",
        f"{POINT}/policy <- fixed  (stock -> fixed)",
    ]
    data = run("set", "anon_order", "never", "--dry-run", "--json").json
    assert data["dry_run"] is True
    policy = {"path": f"{POINT}/policy", "value": "never", "now": "stock", "wanted": "never"}
    assert data["writes"] == [policy]
    assert tree.writes == []


@pytest.mark.parametrize(
    ("value", "errno"), [("-1", "ERANGE"), ("99", "ERANGE"), ("big", "EINVAL"), ("", "EINVAL")]
)
def test_the_kernel_alone_judges_values(run: Run, tree: FakeTree, value: str, errno: str) -> None:
    result = run("set", "anon_order", "fixed", f"max_order={value}")
    assert (result.code, tree.writes) == (5, [])
    path = tree.real(f"{POINT}/fixed/max_order")
    assert f"cannot write '{value}' to {path}: {errno}" in result.err
    assert result.err.splitlines()[1].startswith("next: ")


def test_refusal_puts_earlier_writes_back(run: Run, tree: FakeTree) -> None:
    tree.refusals[f"{POINT}/policy"] = EINVAL
    result = run("set", "anon_order", "adaptive", "max_order=3", "min_folios=7")
    assert result.code == 5
    assert "the earlier writes of this command were undone" in result.err
    assert tree.writes[2:] == [
        (f"{POINT}/adaptive/max_order", "4"),
        (f"{POINT}/adaptive/min_folios", "32"),
    ]
    assert tree.read(f"{POINT}/adaptive/max_order") == "4"
    assert "[stock]" in tree.read(f"{POINT}/policy")


def test_a_fault_of_our_own_puts_earlier_writes_back(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the command itself undoes earlier writes, as a refusal does."""
    store = tree.store

    def breaks(path: str, value: str) -> None:
        if path == f"{POINT}/policy":
            raise ArithmeticError("planted")
        store(path, value)

    monkeypatch.setattr(tree, "store", breaks)
    assert run("set", "anon_order", "adaptive", "max_order=3").code != 0
    assert [value for _, value in tree.writes] == ["3", "4"]
    assert tree.read(f"{POINT}/adaptive/max_order") == "4"


def test_refusal_of_a_later_knob(run: Run, tree: FakeTree) -> None:
    result = run("set", "anon_order", "adaptive", "max_order=3", "min_folios=0")
    assert (result.code, "ERANGE" in result.err) == (5, True)
    assert tree.read(f"{POINT}/adaptive/max_order") == "4"
    assert "[stock]" in tree.read(f"{POINT}/policy")


def test_a_failed_way_back_is_told(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tree.store

    def store(path: str, value: str) -> None:
        if (path, value) == (f"{POINT}/fixed/max_order", "4"):
            raise OSError(EIO, "no way back")
        plain(path, value)

    monkeypatch.setattr(tree, "store", store)
    tree.refusals[f"{POINT}/policy"] = EBUSY
    result = run("set", "anon_order", "fixed", "max_order=6")
    assert result.code == 5
    assert "undoing the earlier writes of this command failed: cannot write '4'" in result.err


def test_a_refusal_takes_back_our_writes_and_no_others(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tree.store

    def store(path: str, value: str) -> None:
        if path == f"{POINT}/policy":  # another program writes at this moment
            plain(f"{POINT}/min_available_percent", "77")
            plain(f"{POINT}/adaptive/min_folios", "8")
        plain(path, value)

    monkeypatch.setattr(tree, "store", store)
    tree.refusals[f"{POINT}/policy"] = EINVAL
    result = run("set", "anon_order", "adaptive", "max_order=3", "min_folios=7")
    assert (result.code, "the earlier writes of this command were undone" in result.err) == (
        5,
        True,
    )
    assert tree.read(f"{POINT}/min_available_percent") == "77"
    assert tree.read(f"{POINT}/adaptive/min_folios") == "8"  # that program has overwritten it
    assert tree.read(f"{POINT}/adaptive/max_order") == "4"


def test_what_others_change_meanwhile_is_not_recorded_as_ours(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tree.store

    def store(path: str, value: str) -> None:
        plain(path, value)
        if path == f"{POINT}/policy":
            plain(f"{CONTROL}/profiles/create", "theirs")
            plain(f"{POINT}/min_available_percent", "77")

    monkeypatch.setattr(tree, "store", store)
    assert "77" not in run("set", "anon_order", "fixed", "max_order=6").out
    monkeypatch.setattr(tree, "store", plain)
    assert run("revert").code == 0
    assert tree.read(f"{POINT}/min_available_percent") == "77"
    assert tree.exists(f"{CONTROL}/profiles/theirs")
    assert tree.read(f"{POINT}/fixed/max_order") == "4"


def test_a_profile_that_was_made_is_taken_back(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed", "max_order=6")
    before = read_named(tree)
    tree.refusals[f"{CONTROL}/profiles/web/anon_order/policy"] = EINVAL
    assert run("profile", "create", "web", "--from", "default").code == 5
    assert read_named(tree) == before


CHANGES = [
    ["set", "anon_order", "fixed"],
    ["profile", "create", "web"],
    ["profile", "delete", "web"],
    ["bind", "--cgroup", "/", "default"],
    ["unbind", "--cgroup", "/"],
    ["lease", "1m"],
    ["apply", "-"],
    ["revert"],
]


@pytest.mark.parametrize("words", CHANGES)
def test_two_changes_wait_for_each_other(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("mmpolicy.verbs.commit.PATIENCE_S", 0.05)
    with tree.locked("/run/mmpolicy/change.lock", "mmpolicy apply, pid 7"):
        result = run(*words)
        assert run("reset").code == 0  # which takes no lock
        assert run("set", "anon_order", "fixed", "--dry-run").code == 0
    if words != ["apply", "-"]:  # which first reports that this is no manifest
        assert "is locked by mmpolicy apply, pid 7" in result.err
    assert (result.code, tree.writes) == (1, [(f"{CONTROL}/reset", "1")])


def test_a_change_goes_on_when_the_other_one_is_done(run: Run, tree: FakeTree) -> None:
    lock = tree.locked("/run/mmpolicy/change.lock", "another")
    lock.__enter__()
    threading.Timer(0.2, lambda: lock.__exit__(None, None, None)).start()
    assert run("set", "anon_order", "fixed").code == 0
    assert "[fixed]" in tree.read(f"{POINT}/policy")


def test_no_permission(run: Run, tree: FakeTree) -> None:
    tree.denied = True
    for verb in (["set", "anon_order", "never"], ["reset"]):
        result = run(*verb)
        assert result.code == 4
        assert "EACCES" in result.err
        assert "next: run the command as root" in result.err


def test_unknown_names(run: Run, tree: FakeTree) -> None:
    policy = run("set", "anon_order", "adaptiv")
    assert "no policy of anon_order 'adaptiv'; choose from: adaptive, fixed" in policy.err
    assert "next: did you mean adaptive?" in policy.err
    knob = run("set", "anon_order", "fixed", "max_ordr=3")
    assert "choose from: max_copy_order, max_order, memory_on_read" in knob.err
    assert "next: did you mean max_order?" in knob.err
    assert (policy.code, knob.code, tree.writes) == (2, 2, [])


def test_knob_of_another_policy(run: Run, tree: FakeTree) -> None:
    result = run("set", "anon_order", "min_folios=3")
    assert (result.code, tree.writes) == (2, [])
    assert "not a knob of anon_order/stock, but of adaptive" in result.err
    assert "next: mmpolicy set anon_order adaptive min_folios=VALUE" in result.err


@pytest.mark.parametrize(
    "words", [[], ["fixed", "never"], ["max_order=1", "max_order=2"], ["--no-such-option"]]
)
def test_wrong_usage(run: Run, tree: FakeTree, words: list[str]) -> None:
    result = run("set", "anon_order", *words)
    assert (result.code, tree.writes) == (2, [])


def test_reset(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed", "max_order=6")
    result = run("reset")
    assert (result.code, result.out.splitlines()[-1]) == (0, "state: stock")
    assert tree.writes[-1] == (f"{CONTROL}/reset", "1")
    assert tree.read(f"{POINT}/fixed/max_order") == "4"
    data = run("reset", "--json").json
    assert (data["version"], data["state"], data["dry_run"]) == (1, "stock", False)
    assert data["profiles"]["default"]["anon_order"]["active"] == "stock"


@pytest.mark.parametrize("value", ["10", "-1", "big", ""])
def test_a_dry_run_knows_the_bounds(run: Run, tree: FakeTree, value: str) -> None:
    words = ["set", "anon_order", "fixed", f"max_order={value}"]
    result = run(*words, "--dry-run")
    assert (result.code, result.out, tree.writes) == (5, "", [])
    assert f"the kernel would refuse '{value}' for" in result.err
    assert "the range is 0..9 (order: 2^n pages), the default is 4" in result.err
    assert run(*words).code == 5  # as the kernel does
    tree.put("/run/wrong.toml", "version = 1\n[profiles.default.anon_order.fixed]\n"
             f"max_order = '{value}'\n")  # fmt: skip
    file = str(tree.real("/run/wrong.toml"))
    assert run("apply", file, "--dry-run").err.startswith(f"mmpolicy: {file}:3: ")


def test_a_dry_run_says_what_is_now_at_each_step(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed", "max_order=6")
    tree.put("/run/web.toml", "version = 1\n[profiles.web.anon_order]\npolicy = 'never'\n")
    lines = run("apply", str(tree.real("/run/web.toml")), "--dry-run").out.splitlines()
    assert f"{CONTROL}/profiles/create <- web  (- -> exists)" in lines
    assert f"{CONTROL}/profiles/web/anon_order/policy <- never  (stock -> never)" in lines
    assert f"{POINT}/policy <- stock  (fixed -> stock)" in lines
    assert run("reset", "--dry-run").out == f"{CONTROL}/reset <- 1  (active -> stock)\n"


def test_reset_dry_run(run: Run, tree: FakeTree) -> None:
    assert run("reset", "--dry-run").out == f"{CONTROL}/reset <- 1  (stock -> stock)\n"
    assert run("reset", "--dry-run", "--json").json["writes"][0]["value"] == "1"
    assert tree.writes == []


@pytest.mark.parametrize("half", [True, False])
def test_what_is_half_made_is_told_of_by_the_next_change(
    run: Run, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    def fail(*_given: object) -> None:
        err = Error("it does not work", 1, "do something")
        err.half = half
        raise err

    with monkeypatch.context() as patch:
        patch.setattr("mmpolicy.verbs.commit.carry_out", fail)
        assert run("set", "anon_order", "never").code == 1
    result = run("set", "anon_order", "adaptive")
    assert (result.code, "warning: " in result.err) == (0, half)
    assert run("set", "anon_order", "never").err == ""


def test_reset_works_whatever_is_wrong_with_the_rest(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_tree: object) -> None:
        raise Error("odd", 1, "do something")

    run("set", "anon_order", "never")
    monkeypatch.setattr("mmpolicy.verbs.settings.read_state", fail)
    result = run("reset")
    said = "warning: the kernel is at stock, but a later step of reset failed: odd\n"
    assert (result.code, result.out, result.err) == (0, "", said)
    assert "[stock]" in tree.read(f"{POINT}/policy")


def test_reset_says_what_is_loaded(run: Run, tree: FakeTree) -> None:
    """A module without its reset file is broken; without any trace of one, all is stock."""
    tree.remove(MODULE_DIR)
    assert "not loaded" not in run("reset").out
    tree.make_loaded()
    tree.remove(CONTROL)
    result = run("reset")
    assert (result.code > 0, "not loaded, the kernel is stock" in result.out) == (True, False)
    tree.remove(MODULE_DIR)
    assert run("reset").out == "mmpolicy: not loaded, the kernel is stock\n"


def test_a_value_is_all_behind_the_first_equals_sign(run: Run, tree: FakeTree) -> None:
    result = run("set", "anon_order", "fixed", "max_order=1=2")
    assert (result.code, "cannot write '1=2' to" in result.err, tree.writes) == (5, True, [])
