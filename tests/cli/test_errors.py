# SPDX-License-Identifier: GPL-2.0
"""Errors of `--json` are JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from errno import EACCES, ENOSPC, EROFS
from pathlib import Path
from typing import Any

import click
import pytest

from mmpolicy.ab import presets
from mmpolicy.errors import Error
from mmpolicy.host.disk import explained
from mmpolicy.host.files import READ_REMEDIES
from mmpolicy.verbs.group import PACKAGE, Verbs, _print_no_more

from .fakes import DEFAULT, FakeTree, Run
from .kernels import Small
from .test_fit import NEEDS

KNOB = f"{DEFAULT}/anon_order/fixed/max_order"


def error(run: Run, *words: str) -> tuple[str, dict[str, object]]:
    """Run a command that fails; return its name and the error."""
    result = run(*words, "--json")
    assert result.out == ""
    data = json.loads(result.err)
    assert data["version"] == 1
    assert data["error"]["exit"] == result.code
    return data["command"], data["error"]


@pytest.mark.parametrize("words", [["policy", "new", "mine"], ["doctor", "--kernel", "vmlinux"]])
def test_a_file_of_the_package_is_missing(tmp_path: Path, words: list[str]) -> None:
    """If a file of the command itself is missing, no directory of the user is the cause."""
    package = tmp_path / "mmpolicy"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    gone = [package / "verbs/skeleton.bpf.c", package / "kernel/needs.h"]
    for file in gone:
        file.unlink()
    (tmp_path / "vmlinux").write_bytes(Small(NEEDS).vmlinux())
    done = subprocess.run(
        [sys.executable, "-m", "mmpolicy", *words], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    (path,) = [file for file in gone if str(file) in done.stderr]
    text = f"mmpolicy: the installation of mmpolicy is incomplete: there is no {path}\n"
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{text}next: reinstall mmpolicy\n"


def test_a_preset_of_the_package_is_missing(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.make_cgroup("/web.service")
    monkeypatch.setattr(presets, "FOLDER", PACKAGE / "ab/gone")
    result = run("ab", "run", "--preset", "adaptive", "--unit", "web", "--dry-run")
    assert (result.code, result.out) == (3, "")
    assert "is incomplete: there is no" in result.err
    assert result.err.endswith("next: reinstall mmpolicy\n")


def test_a_refusal(run: Run, tree: FakeTree) -> None:
    name, told = error(run, "set", "anon_order", "fixed", "max_order=99")
    assert (name, told["exit"], told["errno"]) == ("set", 5, "ERANGE")
    assert told["path"] == str(tree.real(KNOB))
    assert "cannot write '99' to" in str(told["message"])
    assert told["next"]


@pytest.mark.parametrize(
    ("words", "name", "code"),
    [
        (["set", "anon_ordr", "fixed"], "set", 2),
        (["set"], "set", 2),
        (["profile", "show", "nobody"], "profile show", 2),
        (["bind", "--pid", "zero", "default"], "bind", 2),
        (["apply", "/no/such/file"], "apply", 1),
        (["nonsense"], "", 2),
        (["show", "--nonsense"], "show", 2),
    ],
)
def test_other_errors(run: Run, words: list[str], name: str, code: int) -> None:
    found, told = error(run, *words)
    assert (found, told["exit"], bool(told["message"])) == (name, code, True)


def test_without_the_module(run: Run, tree: FakeTree) -> None:
    tree.make_unloaded()
    _, told = error(run, "list")
    assert (told["exit"], told["next"]) == (3, "mmpolicy load")


def test_a_verb_that_is_mistyped(run: Run) -> None:
    result = run("stauts")
    assert (result.code, "did you mean stats?" in result.err) == (2, True)


def test_a_run_directory_that_cannot_be_written(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.open

    def fail(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".lock") and flags & os.O_CREAT:
            raise OSError(EROFS, "Read-only file system", path)
        return plain(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", fail)
    result = run("set", "anon_order", "never")
    assert (result.code, tree.writes) == (1, [])
    assert f"cannot lock {tree.real('/run/mmpolicy/change.lock')}: EROFS" in result.err
    assert "next: run the command where /run is mounted read-write" in result.err


@pytest.mark.parametrize(
    ("euid", "hint"),
    [(0, ("root has no access to this process here")), (1000, "run the command as root")],
)
def test_what_nobody_may_read_below_proc(
    monkeypatch: pytest.MonkeyPatch, euid: int, hint: str
) -> None:
    """A hint for other users is not printed for root."""
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    with pytest.raises(Error) as told, explained("read", Path("/proc/1/smaps"), READ_REMEDIES):
        raise OSError(EACCES, "Permission denied")
    assert (told.value.exit_code, told.value.next_step.startswith(hint)) == (4, True)


def test_codes_that_are_no_errors_stay(run: Run, tree: FakeTree) -> None:
    tree.denied = True
    result = run("doctor", "--json")
    assert (result.code, result.json["exit"], result.err) == (4, 4, "")
    assert run("list", "--json").code == 0


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (None, 0, ""),
        (click.Abort(), 130, "mmpolicy: interrupted\n"),
        (BrokenPipeError(), 141, ""),
        (
            OSError(ENOSPC, "No space"),
            1,
            "mmpolicy: cannot print: ENOSPC (No space left",
        ),
        (
            OSError(EROFS, "Read-only", "/x"),
            1,
            "mmpolicy: cannot use /x: EROFS (Read-only",
        ),
        (OSError("odd"), 1, "mmpolicy: cannot print: 0 (Success)"),
        (Error("why", 6, "what next"), 6, "mmpolicy: why\nnext: what next\n"),
        (
            ZeroDivisionError("by 0"),
            70,
            f"mmpolicy: internal error: ZeroDivisionError: by 0 (in {__file__}:",
        ),
    ],
)
def test_how_a_verb_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    fault: BaseException | None, code: int, said: str,
) -> None:  # fmt: skip
    """A verb exits with the code of the reason for its end, and each reason is reported."""
    monkeypatch.setattr("mmpolicy.verbs.group._print_no_more", lambda: None)

    def verb() -> None:
        if fault:
            raise fault

    verbs = Verbs("mmpolicy", groups={"All": {"end": "end"}})
    verbs.add_command(click.Command("end", callback=verb))
    monkeypatch.setattr("sys.argv", ["mmpolicy", "end"])
    monkeypatch.setattr("mmpolicy.verbs.group._end", sys.exit)
    with pytest.raises(SystemExit) as ended:
        verbs.main()
    err = capsys.readouterr().err
    assert (ended.value.code, err.startswith(said), bool(err)) == (code, True, bool(said))


def test_what_is_still_to_be_printed_goes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output that is still to be printed after the reader left goes nowhere, and no file stays open
    for it.
    """
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr("sys.__stdout__", out)
        unused = os.dup(out.fileno())
        os.close(unused)
        _print_no_more()
        assert Path(f"/proc/self/fd/{out.fileno()}").samefile(os.devnull)
        assert not Path(f"/proc/self/fd/{unused}").exists()
        assert os.write(out.fileno(), b"x") == 1
    assert (tmp_path / "out").read_bytes() == b""


def test_without_an_output_of_its_own_it_is_the_first_file(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    monkeypatch.setattr("sys.__stdout__", None)
    monkeypatch.setattr(os, "dup2", lambda _null, file: copied.append(file))
    _print_no_more()
    assert copied == [1]
