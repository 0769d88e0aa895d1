# SPDX-License-Identifier: GPL-2.0
"""`apply`, `save`, `diff`, `verify` and `revert`."""

from __future__ import annotations

import json
from errno import EIO
from pathlib import Path

import pytest

from mmpolicy.control.journal import APPLIED
from mmpolicy.control.toml import key_lines

from .fakes import CONTROL, FakeTree, Run, read_named

POLICY = f"{CONTROL}/profiles/default/anon_order/policy"
JOURNAL = "/var/lib/mmpolicy/journal.jsonl"

FORTY = """\
version = 1
lease_ms = 60000  # a minute

[profiles.default.anon_order]
policy = "adaptive"
min_available_percent = 20

[profiles.default.anon_order.adaptive]
max_order = 6
min_folios = 3

[profiles.default.anon_order.fixed]
max_order = 2

[profiles.default.bulk]
policy = "stock"

[profiles.web]
anon_order.policy = "fixed"
anon_order.min_available_percent = 30
anon_order.fixed.max_order = 3
anon_order.adaptive.max_order = 4

[profiles.cache.anon_order]
policy = "never"

[profiles.cache.anon_order.adaptive]
min_folios = 5

[bindings]
"/app.slice/web.service" = "web"
"cache.service" = "cache"

[experiment]
control = "web"
treatment = "cache"
percent = 25
unit = "cgroup"
cgroup = "/app.slice"
seed = 42
enabled = 1
"""
BAD = {
    2: "lease_ms = 99",
    5: 'policy = "adaptve"',
    6: "min_available_percent = 101",
    9: "max_order = -1",
    10: 'min_folios = "many"',
    13: "max_order = [1, 2]",
    16: 'policy = "never"',
    19: 'anon_ordr.policy = "fixed"',
    20: "anon_order.min_available_percent = 1.5",
    21: "anon_order.fixed.max_ordr = 3",
    25: 'policy = ""',
    28: "min_folios = 0",
    31: '"/app.slice/no-such.service" = "web"',
    32: '"cache.service" = "no-such"',
    35: 'control = "default"',
    36: 'treatment = "web"',
    37: "percent = 101",
    39: 'cgroup = "/no-such"',
    41: "enabled = nonsense",
}


@pytest.fixture
def forty(tree: FakeTree, tmp_path: Path) -> Path:
    """Return a manifest for a host that has the cgroups it names."""
    tree.make_cgroup("/app.slice/web.service")
    tree.make_cgroup("/app.slice/cache.service")
    return put(tmp_path / "forty.toml", FORTY)


def put(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def snapshot(tree: FakeTree) -> dict[str, bytes]:
    """Return every file of the control tree, byte by byte."""
    base = tree.real(CONTROL)
    return {str(path): path.read_bytes() for path in base.rglob("*") if path.is_file()}


def test_apply_makes_the_state_what_the_file_says(run: Run, tree: FakeTree, forty: Path) -> None:
    assert run("apply", str(forty)).code == 0
    state = read_named(tree)
    assert state["lease_ms"] == "60000"
    assert state["profiles/web/anon_order/fixed/max_order"] == "3"
    assert state["profiles/cache/anon_order/policy"] == "never"
    assert state[f"cgroups/{tree.inode('/sys/fs/cgroup', 'app.slice/cache.service')}"] == "cache"
    assert state["experiment/cgroup"] == str(tree.inode("/sys/fs/cgroup", "app.slice"))
    assert (state["experiment/unit"], state["experiment/enabled"]) == ("cgroup", "1")
    tree.writes.clear()
    assert run("apply", str(forty)).code == 0
    assert tree.writes == [(f"{CONTROL}/lease_ms", "60000")]  # only the lease is renewed
    assert run("verify", str(forty)).code == 0


@pytest.mark.parametrize("number", BAD)
def test_one_bad_line_leaves_the_state_as_it_was(
    run: Run, tree: FakeTree, forty: Path, number: int
) -> None:
    run("profile", "create", "old")
    run("bind", "--cgroup", "web.service", "old")
    run("set", "anon_order", "fixed", "max_order=7", "--profile", "old")
    before = snapshot(tree)
    lines = FORTY.splitlines()
    lines[number - 1] = BAD[number]
    result = run("apply", str(put(forty, "\n".join(lines))))
    assert result.code == 1
    named = f"{forty}:{number}: " in result.err or f"at line {number}, " in result.err
    assert named, result.err
    assert result.err.splitlines()[1].startswith("next: ")
    assert snapshot(tree) == before


def test_a_refusal_in_the_middle_is_rolled_back(run: Run, tree: FakeTree, forty: Path) -> None:
    before = snapshot(tree)
    tree.refusals[f"{CONTROL}/experiment/seed"] = EIO  # written after profiles and bindings
    result = run("apply", str(forty))
    assert (result.code, f"{forty}:40: cannot write '42'" in result.err) == (1, True)
    assert "the earlier writes of this command were undone" in result.err
    assert len(tree.writes) > 20
    assert snapshot(tree) == before


def test_dry_run_prints_the_writes(run: Run, tree: FakeTree, forty: Path) -> None:
    result = run("apply", "--dry-run", str(forty))
    assert (result.code, tree.writes) == (0, [])
    lines = result.out.splitlines()
    assert lines[0] == f"{CONTROL}/lease_ms <- 60000  (0 -> 60000)"
    assert lines[-1] == f"{CONTROL}/experiment/enabled <- 1  (0 -> 1)"
    assert f"{CONTROL}/profiles/create <- web  (- -> exists)" in lines
    writes = run("apply", "--dry-run", "--json", str(forty)).json["writes"]
    assert [f"{write['path']} <- {write['value']}" for write in writes] == [
        line.partition("  (")[0] for line in lines
    ]


@pytest.mark.parametrize("name", ["host.toml", "examples/workloads.toml"])
def test_files_of_the_package_are_taken(run: Run, tree: FakeTree, name: str) -> None:
    file = Path(__file__).parents[2] / "debian" / name
    assert run("apply", str(file)).code == 0
    assert run("verify", str(file)).code == 0


def test_what_the_file_does_not_name_goes(run: Run, tree: FakeTree, forty: Path) -> None:
    run("apply", str(forty))
    run("apply", str(put(forty, "version = 1\n")))
    state = read_named(tree)
    assert state["profiles/default/anon_order/policy"] == "stock"
    assert state["profiles/default/anon_order/min_available_percent"] == "20"  # knobs stay
    assert (state["experiment/enabled"], state["experiment/control"]) == ("0", "none")
    assert state["lease_ms"] == "0"
    assert not [key for key in state if key.startswith(("cgroups/", "profiles/web"))]


def test_save_and_apply_are_a_round_trip(
    run: Run, tree: FakeTree, forty: Path, tmp_path: Path
) -> None:
    run("apply", str(forty))
    state, saved = read_named(tree), tmp_path / "saved.toml"
    assert run("save", str(saved)).code == 0
    assert saved.read_text() == run("save").out
    assert '"/app.slice/web.service" = "web"' in saved.read_text()
    run("reset")
    assert read_named(tree) != state
    assert run("apply", str(saved)).code == 0
    assert read_named(tree) == state | {"lease_ms": "0"}  # which would not be renewed


def test_diff_says_by_its_code_if_anything_differs(run: Run, tree: FakeTree, forty: Path) -> None:
    """`diff` returns another exit code for differences only on request."""
    assert (run("diff", str(forty)).code, run("diff", "--exit-code", str(forty)).code) == (0, 6)
    run("apply", str(forty))
    result = run("diff", "--exit-code", str(forty))
    assert (result.code, result.out) == (0, f"the state is as {forty} says\n")
    assert run("diff", "--json", str(forty)).json["differences"] == []
    assert tree.real(APPLIED).stat().st_mode & 0o777 == 0o644


def test_heal_binds_what_is_there_alone(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    tree.make_profile("web")
    text = 'version = 1\n[profiles.web]\n[bindings]\n"/none" = "web"\n'
    result = run("verify", "--heal", str(put(tmp_path / "m.toml", text)))
    assert (result.code, result.err, tree.writes) == (6, "", [])


def test_a_file_of_its_own_that_is_wrong_is_never_left_out(
    run: Run, tree: FakeTree, tmp_path: Path
) -> None:
    wrong = put(tmp_path / "wrong.toml", "version = 1\n[profiles.web.anon_ordr]\n")
    result = run("apply", "--skip-invalid", str(wrong))
    assert (result.code, "left out" in result.err, tree.writes) == (1, False, [])


def test_what_is_saved_under_a_lease_has_none(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    """A manifest saved under a lease has no lease, so ten minutes after the next boot the policy is
    still on.
    """
    assert run("save").err == ""
    run("lease", "600")
    run("set", "anon_order", "adaptive")
    saved = tmp_path / "host.toml"
    result = run("save", str(saved))
    assert (result.code, ("the manifest does not contain the lease of 600 s") in result.err) == (
        0,
        True,
    )
    tree.make_unloaded()  # a boot
    tree.make_loaded()
    assert run("apply", str(saved)).code == 0
    assert (tree.read(f"{CONTROL}/lease_ms"), "[adaptive]" in tree.read(POLICY)) == ("0", True)


def test_bindings_of_processes_are_left_alone(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    tree.make_process(10)
    run("profile", "create", "web")
    run("bind", "--pid", "10", "web")
    saved = put(tmp_path / "saved.toml", run("save").out)
    assert "10" not in [word for line in run("save").out.splitlines() for word in line.split()[:1]]
    assert run("apply", str(saved)).code == 0
    assert tree.read(f"{CONTROL}/profiles/web/pids") == "10"
    before = snapshot(tree)
    result = run("apply", str(put(saved, "version = 1\n")))  # web would go, but is in use
    assert (result.code, "EBUSY" in result.err) == (1, True)
    assert snapshot(tree) == before


def test_diff_and_verify_find_drift(run: Run, tree: FakeTree, forty: Path) -> None:
    assert run("verify").code == 1  # the manifest was not applied
    run("apply", str(forty))
    assert run("verify").out.startswith("the state is as ")
    tree.write(POLICY, "never")
    tree.remove("/sys/fs/cgroup/app.slice/cache.service")
    tree.put(f"{CONTROL}/profiles/cache/cgroups", "")  # as the kernel does
    for result in (run("verify"), run("verify", str(forty))):
        assert result.code == 6
        rows = [line.split() for line in result.out.splitlines()]
        assert ["default/anon_order/policy", "never", "adaptive"] in rows
        assert ["cgroup", "cache.service", "(does", "not", "exist)", "-", "cache"] in rows
    found = run("diff", "--json", str(forty)).json["differences"]
    assert {"path": POLICY, "now": "never", "wanted": "adaptive"} in found
    assert run("diff", str(forty)).code == 0
    assert run("diff", "--exit-code", str(forty)).code == 6


def test_revert_restores_and_reverts_itself(run: Run, tree: FakeTree, forty: Path) -> None:
    assert "there is no change to take back" in run("revert").err
    run("set", "anon_order", "fixed", "max_order=7")
    before = snapshot(tree)
    run("apply", str(forty))
    after = snapshot(tree)
    assert f"{CONTROL}/profiles/delete <- web" in run("revert", "--dry-run").out
    assert snapshot(tree) == after
    assert run("revert").code == 0
    assert snapshot(tree) == before
    assert run("revert").code == 0
    assert snapshot(tree) == after


def test_revert_brings_back_what_reset_took(run: Run, tree: FakeTree, forty: Path) -> None:
    run("apply", str(forty))
    before = snapshot(tree)
    run("reset")
    assert run("revert").code == 0
    assert snapshot(tree) == before


def test_revert_keeps_what_others_set_elsewhere(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed")
    tree.write(f"{CONTROL}/profiles/default/anon_order/min_available_percent", "33")
    assert run("revert").code == 0
    assert "[stock]" in tree.read(POLICY)
    assert tree.read(f"{CONTROL}/profiles/default/anon_order/min_available_percent") == "33"


def test_revert_overwrites_nothing_without_force(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed")
    tree.write(POLICY, "never")  # the admin's own edit
    writes = list(tree.writes)
    result = run("revert")
    assert (result.code, tree.writes) == (1, writes)
    assert "settings of 'set' were changed again since" in result.err
    assert "default/anon_order/policy was fixed, is never" in result.err
    assert run("revert", "--force").code == 0
    assert "[stock]" in tree.read(POLICY)


def test_revert_after_a_boot_or_with_a_damaged_file(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed")
    line = tree.read(JOURNAL).splitlines()[-1]
    tree.put("/proc/sys/kernel/random/boot_id", "another")
    assert "change 1, 'set' of 20" in run("revert").err
    assert "was made before the last boot" in run("revert").err
    other = json.dumps(json.loads(line) | {"version": 3})
    assert json.loads(line)["version"] == 2
    for text in ("{", "[]", "{}", "7", other, f"{line}\n{line[:-9]}"):
        tree.put(JOURNAL, text)
        result = run("revert")
        assert (result.code, "is damaged" in result.err) == (1, True)
        assert "[fixed]" in tree.read(POLICY)


def test_a_line_that_a_crash_has_cut_off_is_passed_over(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed")
    line = tree.read(JOURNAL).splitlines()[-1]
    tree.real(JOURNAL).write_text(f"{line}\n{line[:-9]}")
    run("set", "anon_order", "min_available_percent=20")
    assert len(tree.read(JOURNAL).splitlines()) == 4
    assert run("revert").code == 0
    assert tree.read(f"{CONTROL}/profiles/default/anon_order/min_available_percent") == "5"


def test_a_change_is_good_even_if_the_way_back_cannot_be_kept(run: Run, tree: FakeTree) -> None:
    tree.put("/var/lib/mmpolicy", "a file where the folder should be")
    result = run("set", "anon_order", "fixed")
    assert (result.code, "mmpolicy revert will not know" in result.err) == (0, True)
    assert "[fixed]" in tree.read(POLICY)


@pytest.mark.parametrize("text", ["", "# nothing\n", "lease_ms = 0\n", "[profiles.web]\n"])
def test_a_file_without_version_is_no_manifest(
    run: Run, tree: FakeTree, tmp_path: Path, text: str
) -> None:
    run("set", "anon_order", "fixed")
    before = snapshot(tree)
    for verb in ("apply", "diff", "verify"):
        result = run(verb, str(put(tmp_path / "cut-off.toml", text)))
        assert (result.code, "has no `version` line" in result.err) == (1, True)
    assert snapshot(tree) == before


def test_missing_cgroups_may_be_left_out(run: Run, tree: FakeTree, forty: Path) -> None:
    tree.remove("/sys/fs/cgroup/app.slice/cache.service")
    before = snapshot(tree)
    failed = run("apply", str(forty))
    assert (
        failed.code,
        f"{forty}:32: there is no cgroup 'cache.service' to bind" in failed.err,
    ) == (1, True)
    assert "--skip-missing" in failed.err
    assert snapshot(tree) == before
    result = run("apply", "--skip-missing", str(forty))
    assert (
        result.code,
        ("no cgroup 'cache.service' to bind: this binding is left out") in result.err,
    ) == (0, True)
    web = tree.inode("/sys/fs/cgroup", "app.slice/web.service")
    assert read_named(tree)[f"cgroups/{web}"] == "web"
    assert run("verify", str(forty)).code == 6


def test_an_experiment_is_not_for_all_where_its_cgroup_is_missing(
    run: Run, tree: FakeTree, forty: Path
) -> None:
    put(forty, FORTY.replace('cgroup = "/app.slice"', 'cgroup = "/gone.slice"'))
    before = snapshot(tree)
    result = run("apply", "--skip-missing", str(forty))
    assert (
        result.code,
        f"{forty}:39: there is no cgroup '/gone.slice', to which the" in result.err,
    ) == (
        1,
        True,
    )
    assert snapshot(tree) == before
    assert run("verify", str(forty)).code == 6


def test_a_manifest_that_cannot_be_kept_is_applied_all_the_same(
    run: Run, tree: FakeTree, forty: Path
) -> None:
    tree.put("/var/lib/mmpolicy", "a file where the folder should be")
    result = run("apply", str(forty))
    assert (result.code, "verify will need a FILE" in result.err) == (0, True)
    assert run("verify", str(forty)).code == 0


def test_files_that_cannot_be_used(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    for verb in ("apply", "diff", "verify"):
        result = run(verb, str(tmp_path / "nofile"))
        assert (result.code, "cannot read" in result.err) == (1, True)
        assert "next: give the path of a file that exists" in result.err
    result = run("save", str(tmp_path / "no" / "file"))
    assert (result.code, "ENOENT" in result.err, "next: " in result.err) == (1, True, True)
    (tmp_path / "link").symlink_to(put(tmp_path / "precious", "precious"))
    result = run("save", str(tmp_path / "link"))
    assert (result.code, "ELOOP" in result.err) == (1, True)
    assert (tmp_path / "precious").read_text() == "precious"
    result = run("apply", str(put(tmp_path / "latin", "")))
    (tmp_path / "latin").write_bytes(b"version = 1 # \xe4\n")
    assert "save the file as UTF-8" in run("apply", str(tmp_path / "latin")).err
    tree.make_unloaded()
    assert run("verify").code == 3


def test_after_a_lease_has_expired(run: Run, tree: FakeTree, forty: Path) -> None:
    run("apply", str(forty))
    tree.expire()
    result = run("apply", str(forty))
    assert (result.code, "the lease has expired" in result.err) == (1, True)
    assert "next: mmpolicy reset" in result.err
    run("reset")
    assert run("apply", str(forty)).code == 0


@pytest.mark.parametrize("verb", ["apply", "apply --dry-run", "diff", "verify"])
@pytest.mark.parametrize("lacks", ["module", "tree", "abi"])
def test_what_the_kernel_lacks_is_no_fault_of_the_file(
    run: Run, tree: FakeTree, forty: Path, verb: str, lacks: str
) -> None:
    """What the kernel lacks is no fault of the file: exit 3 as other verbs, and not 1 as for a line
    that is wrong.
    """
    if lacks == "module":
        tree.make_unloaded()
    elif lacks == "tree":
        tree.remove(CONTROL)
    else:
        tree.put(f"{CONTROL}/abi", "3")
    result = run(*verb.split(), str(forty))
    assert (result.code, tree.writes) == (3, [])


def test_no_permission(run: Run, tree: FakeTree, forty: Path) -> None:
    tree.denied = True
    assert run("apply", str(forty)).code == 4


def test_lines_of_keys() -> None:
    text = '# c\n\n[a]\nb = [\n 1,\n]\nc.d = 2\n\n["e.f".g]\nh = """\n[x]\n"""\ni = { j = 1 }\n'
    assert key_lines(text) == {
        ("a",): 3, ("a", "b"): 4, ("a", "c", "d"): 7, ("e.f", "g"): 9, ("e.f", "g", "h"): 10,
        ("e.f", "g", "i", "j"): 13,
    }  # fmt: skip
