# SPDX-License-Identifier: GPL-2.0
"""`load`, `unload` and the wrapper around libkmod."""

from __future__ import annotations

import subprocess
from errno import EAGAIN, EINVAL, EKEYREJECTED, ENOENT, ENOEXEC, EOPNOTSUPP, EPERM
from pathlib import Path

import pytest

from mmpolicy.errors import Error
from mmpolicy.host import kmod
from mmpolicy.host.kmod import APPLY_BLACKLIST, FAIL_ON_LOADED, Kmod

from .fakes import MODULE_DIR, RELEASE, FakeLib, FakeTree, Run

KO = f"/lib/modules/{RELEASE}/updates/mmpolicy.ko"


@pytest.fixture
def unloaded(tree: FakeTree) -> FakeTree:
    """Return a host on which the module is not loaded."""
    tree.make_unloaded()
    return tree


def test_load_passes_options_and_shows_the_result(
    run: Run, unloaded: FakeTree, lib: FakeLib
) -> None:
    result = run("load", "anon_order=adaptive")
    assert result.code == 0
    assert lib.inserted == [(APPLY_BLACKLIST | FAIL_ON_LOADED, b"anon_order=adaptive")]
    assert result.out.splitlines()[1].split()[:3] == ["default", "anon_order", "adaptive"]
    assert (lib.open_modules, lib.open_lists) == (0, 0)


def test_load_where_there_is_nothing_to_load(run: Run, unloaded: FakeTree, lib: FakeLib) -> None:
    """`load` where there is nothing to load refers to doctor, which knows whether there could be a
    module.
    """
    lib.path = None
    result = run("load")
    assert (result.code, "dkms autoinstall" in result.err) == (3, True)
    assert "mmpolicy doctor" in result.err


def test_load_json(run: Run, unloaded: FakeTree) -> None:
    data = run("load", "--json").json
    assert (data["version"], data["loaded"], data["state"]) == (1, True, "stock")


def test_load_dry_run_shows_modprobe_options_too(
    run: Run, unloaded: FakeTree, lib: FakeLib
) -> None:
    lib.options = b"compact=stock"
    planned = f"{KO} <- load compact=stock bulk=stock  (not loaded -> loaded)\n"
    assert run("load", "bulk=stock", "--dry-run").out == planned
    data = run("load", "--dry-run", "--json").json
    step = {"path": KO, "value": "load compact=stock", "now": "not loaded", "wanted": "loaded"}
    assert data["writes"] == [step]
    assert lib.inserted == []


def test_load_when_loaded(run: Run, lib: FakeLib) -> None:
    assert run("load").code == 0
    assert run("load", "--dry-run").out == ""
    result = run("load", "anon_order=never")
    assert (result.code, lib.inserted) == (1, [])
    assert "loaded already" in result.err
    assert (
        "next: mmpolicy set POINT POLICY sets a policy now; or mmpolicy unload first"
    ) in result.err


@pytest.mark.parametrize("option", ["anon_order", "bulk=a b=c", "bulk= "])
def test_load_options_of_wrong_form(
    run: Run, unloaded: FakeTree, lib: FakeLib, option: str
) -> None:
    assert run("load", option).code == 2
    assert lib.inserted == []


def test_load_refuses_unknown_parameters(run: Run, unloaded: FakeTree, lib: FakeLib) -> None:
    result = run("load", "anon_ordr=never")
    assert (result.code, lib.inserted) == (2, [])
    assert "no module parameter 'anon_ordr'; choose from: anon_order, bulk, compact" in result.err


def test_load_of_the_stub_lets_the_kernel_speak(run: Run, unloaded: FakeTree, lib: FakeLib) -> None:
    lib.info = [(b"srcversion", b"F00")]
    lib.insert_result = -EOPNOTSUPP
    result = run("load", "anon_order=never")
    assert (result.code, "ENOTSUP" in result.err) == (3, True)  # an equal number
    assert "boot a kernel that the module supports" in result.err


def test_load_without_module_file(run: Run, unloaded: FakeTree, lib: FakeLib) -> None:
    lib.path = None
    result = run("load", "--dry-run")
    assert result.code == 3
    assert (
        f"there is no mmpolicy.ko for this kernel in {unloaded.real('/lib/modules')}/{RELEASE}"
    ) in result.err
    assert "next: install the module for this kernel" in result.err


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [
        (EINVAL, 5, "dmesg | grep mmpolicy"),
        (EPERM, 4, "run the command as root"),
        (ENOENT, 3, "boot a kernel that the module supports"),
        (ENOEXEC, 3, "build the module for this kernel"),
        (EKEYREJECTED, 3, "sign the module"),
        (EAGAIN, 1, "dmesg"),
    ],
)
def test_load_errors(
    run: Run, unloaded: FakeTree, lib: FakeLib, number: int, code: int, hint: str
) -> None:
    lib.insert_result = -number
    result = run("load", "anon_order=wrong")
    assert (result.code, result.out) == (code, "")
    assert "cannot load module mmpolicy anon_order=wrong: E" in result.err
    assert hint in result.err.splitlines()[1]


def test_load_blacklisted(run: Run, unloaded: FakeTree, lib: FakeLib) -> None:
    lib.insert_result = APPLY_BLACKLIST
    result = run("load")
    assert (result.code, "blacklisted" in result.err) == (1, True)


def test_unload_with_active_policies(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "adaptive")
    result = run("unload")
    assert (result.code, "stock again" in result.out) == (0, True)
    assert not tree.exists(MODULE_DIR)
    again = run("unload", "--json")
    assert again.json == {"version": 1, "command": "unload", "dry_run": False, "loaded": False}


def test_unload_dry_run(run: Run, tree: FakeTree) -> None:
    assert run("unload", "--dry-run").out == f"{MODULE_DIR} <- unload  (loaded -> not loaded)\n"
    assert tree.exists(MODULE_DIR)


@pytest.mark.parametrize(("number", "code"), [(EAGAIN, 1), (EPERM, 4)])
def test_unload_errors(run: Run, lib: FakeLib, number: int, code: int) -> None:
    lib.remove_result = -number
    result = run("unload")
    assert (result.code, "cannot unload module mmpolicy" in result.err) == (code, True)


def test_info_of_a_missing_and_of_an_empty_file(lib: FakeLib) -> None:
    lib.info = []
    assert Kmod(lib=lib).info("mmpolicy") == []
    lib.path = None
    with pytest.raises(Error, match="ENOENT"):
        Kmod(lib=lib).info("mmpolicy")
    assert (lib.open_modules, lib.open_lists) == (0, 0)


def test_modules_of_another_root_are_never_loaded(lib: FakeLib) -> None:
    modules = Kmod("/somewhere", lib=lib)
    with pytest.raises(Error, match="is not /lib/modules of the running kernel"):
        modules.insert("mmpolicy", "")
    with pytest.raises(Error, match="is not /lib/modules of the running kernel"):
        modules.remove("mmpolicy")
    assert lib.inserted == []


def test_libkmod_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmod, "LIBRARY", "libno-such-library.so.9")
    with pytest.raises(Error, match="cannot open") as caught:
        kmod.open_library()
    assert (caught.value.exit_code, caught.value.next_step) == (3, "install libkmod2")


def test_real_libkmod_reads_a_module(tmp_path: Path) -> None:
    modules = tmp_path / "lib/modules" / RELEASE
    (modules / "updates").mkdir(parents=True)
    source = tmp_path / "mmpolicy.c"
    pairs = {"name": "mmpolicy", "srcversion": "ABC123", "parm": "anon_order:policy"}
    text = "".join(f'"{key}={value}\\0"' for key, value in pairs.items())
    source.write_text(
        f'char info[] __attribute__((section(".modinfo"), used)) = {text};\n'
        'char module[64] __attribute__((section(".gnu.linkonce.this_module"), used));\n'
    )
    ko = modules / "updates/mmpolicy.ko"
    subprocess.run(["gcc", "-c", source, "-o", ko], check=True)
    depmod = ["depmod", "-b", str(tmp_path), RELEASE]
    subprocess.run(depmod, check=True, stderr=subprocess.DEVNULL)
    real = Kmod(str(modules))
    assert real.path("mmpolicy") == str(ko)
    assert real.path("no_such_module") is None
    assert dict(real.info("mmpolicy")).items() >= pairs.items()
    assert real.options("mmpolicy") == ""
