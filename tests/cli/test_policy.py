# SPDX-License-Identifier: GPL-2.0
"""`policy`: BPF programs as policies, on a model of the module and of the helper."""

from __future__ import annotations

import json
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from mmpolicy.errors import Error
from mmpolicy.host import bpf
from mmpolicy.host.bpf import PINS, Done, why
from mmpolicy.host.files import MODULE_DIR, TRACING

from .fakes import CONTROL, DEFAULT, Clock, FakeTree, Run
from .test_docs import TREE

VERIFIER = """libbpf: prog 'order': BPF program load failed: Permission denied
libbpf: prog 'order': -- BEGIN PROG LOAD LOG --
0: R1=ctx() R10=fp0
; return 0; @ x.bpf.c:1
0: (79) r1 = *(u64 *)(r1 +8)
invalid bpf_context access off=8 size=8
processed 1 insns (limit 1000000) max_states_per_insn 0 total_states 0
-- END PROG LOAD LOG --
libbpf: prog 'order': failed to load: -13
refused load 13
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return an object, whose content only the helper reads."""
    path = tmp_path / "own.bpf.o"
    path.write_bytes(b"")
    return str(path)


def put_slot(tree: FakeTree, slot: int, name: str, error: str = "") -> None:
    """Let a slot have a policy, or none."""
    point = "anon_order" if name else ""
    facts = {"name": name, "point": point, "program": "31" if name else "0"}
    facts |= {"clamped": "0", "error": error}
    for fact, text in facts.items():
        tree.put(f"{CONTROL}/bpf/slot{slot}/{fact}", text)
    if name:
        tree.put(f"{PINS}/{point}/{name}", "")


@pytest.fixture
def slots(tree: FakeTree) -> FakeTree:
    """Return the host with a module that accepts programs, and none loaded."""
    for slot in range(4):
        put_slot(tree, slot, "")
    return tree


def test_list(slots: FakeTree, run: Run) -> None:
    """`policy list` shows the loaded policies, with their profiles."""
    assert "no policy in BPF" in run("policy", "list").out
    put_slot(slots, 1, "own", error="I give up")
    slots.put(f"{DEFAULT}/anon_order/policy", "stock adaptive fixed [own]")
    (found,) = run("policy", "list", "--json").json["policies"]
    expected = {"name": "own", "point": "anon_order", "program": 31, "clamped": 0}
    assert found == expected | {"error": "I give up", "profiles": ["default"]}
    assert "I give up" in run("policy", "list").out
    assert run("policy", "show", "own", "--json").json["pin"] == f"{PINS}/anon_order/own"
    assert run("policy", "show", "owm").code == 2
    assert "own" in run("set", "anon_order", "nothing").err
    slots.put(f"{DEFAULT}/anon_order/policy", "[stock] adaptive fixed own")
    put_slot(slots, 1, "own")
    row = run("policy", "list").out.splitlines()[1].split()
    assert row == ["own", "anon_order", "31", "0", "-", "-"]
    slots.remove(f"{PINS}/anon_order/own")
    assert run("policy", "show", "own", "--json").json["pin"] is None


def test_without_the_module(tree: FakeTree, run: Run, file: str) -> None:
    """Without the module there is no program to unload; the other verbs name the next step."""
    tree.make_unloaded()
    for words in (["load", file], ["replace", file], ["list"], ["show", "x"], ["unload", "x"]):
        result = run("policy", *words)
        assert (result.code, "next: mmpolicy load\n" in result.err) == (3, True)
    assert run("policy", "unload", "--all").out == "no policy in BPF is loaded\n"


EVENTS = f"{TRACING}/events/mmpolicy/mmpolicy_bpf"


def told(event: str, facts: str) -> str:
    """Return a line of the trace, of a process with an odd name."""
    return f"  my app-2-77      [001] ..... 12.345678: mmpolicy_bpf_{event}: policy=own {facts}"


def test_live(slots: FakeTree, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`policy show --live` prints each new line, of this policy alone; the tracepoints are off
    again afterwards.
    """
    put_slot(slots, 1, "own")
    asked, answered = told("question", "question=full(-1,14) answer=1"), told("compact", "zone=2")
    slots.trace = "\n".join([asked, answered, "CPU:1 [LOST 24 EVENTS]", "", answered, answered])
    result = run("policy", "show", "own", "--live", "--count", "2")
    assert (result.code, "mmpolicy set anon_order own" in result.err) == (0, True)
    assert result.out.splitlines() == [
        "my app-2-77: question=full(-1,14) answer=1",
        "my app-2-77: zone=2",
        "24 calls are missing here, as they came too fast",
        "my app-2-77: zone=2",
    ]
    for event in "compact", "question":
        assert (f"{EVENTS}_{event}/filter", 'policy == "own"') in slots.writes
        enabled = [value for path, value in slots.writes if path == f"{EVENTS}_{event}/enable"]
        assert enabled == ["1", "0"]
    slots.put(f"{DEFAULT}/anon_order/policy", "stock adaptive fixed [own]")
    result = run("policy", "show", "own", "--live", "--json")
    assert result.err == ""
    (first, _, lost, *_) = map(json.loads, result.out.splitlines())
    facts = {"question": "full(-1,14)", "answer": "1"}
    expected = {"task": "my app-2", "pid": 77, "event": "question", "facts": facts}
    assert first == {"version": 1, "command": "policy show"} | expected
    assert lost["lost"] == 24
    slots.writes.clear()
    monkeypatch.setattr(FakeTree, "follow", interrupted)
    assert run("policy", "show", "own", "--live").code == 0
    assert (f"{EVENTS}_compact/enable", "0") in slots.writes
    assert not slots.exists(TRACING)
    assert run("policy", "show", "own", "--count", "2").code == 2


def interrupted(_tree: FakeTree, _path: str) -> Generator[str, None, None]:
    """Let Ctrl-C come while no line comes."""
    yield ""
    raise KeyboardInterrupt


def test_an_old_module(tree: FakeTree, run: Run, file: str) -> None:
    """An old module is reported, and other output is complete."""
    tree.remove(f"{CONTROL}/bpf")
    assert run("policy", "load", file).code == 3
    assert "no policy" in run("policy", "list").out
    assert run("policy", "unload", "--all").code == 0
    assert "bpf" in run("doctor").out
    assert tree.exists(f"{CONTROL}/state")


def test_a_kernel_without(slots: FakeTree, run: Run, file: str) -> None:
    """A kernel without policies in BPF gives the reason of the module."""
    slots.put(f"{CONTROL}/bpf/available", "unavailable: the module was built without BTF")
    result = run("policy", "load", file)
    assert (result.code, "without BTF" in result.err) == (3, True)
    assert "without BTF" in run("doctor").out


def test_no_helper(slots: FakeTree, run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the helper, the error names the command that builds it."""
    monkeypatch.setattr(bpf, "PLACES", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    result = run("policy", "load", file)
    assert (result.code, "./dev package --bpf" in result.err) == (3, True)


def test_the_helper_ends_in_time(
    slots: FakeTree, run: Run, file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A helper that does not end is killed."""
    helper = tmp_path / "mmpolicy-bpf"
    helper.write_text("#!/bin/sh\nexec sleep 1000\n")
    helper.chmod(0o755)
    monkeypatch.setattr(bpf, "PLACES", str(tmp_path))
    result = run("policy", "load", "--timeout", "0.1", file)
    assert (result.code, "not done after 0.1 s" in result.err) == (5, True)


def test_what_the_verifier_says(
    slots: FakeTree, run: Run, file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error has one line of the verifier's log, or all of it with --log."""
    (tmp_path / "said").write_text(VERIFIER)
    helper = tmp_path / "mmpolicy-bpf"
    helper.write_text(f"#!/bin/sh\ncat {tmp_path}/said >&2\nexit 1\n")
    helper.chmod(0o755)
    monkeypatch.setattr(bpf, "PLACES", str(tmp_path))
    few, all_of_it = (run("policy", "load", *log, file).err for log in ([], ["--log"]))
    assert "invalid bpf_context access" in few
    assert "R1=ctx()" in all_of_it and "R1=ctx()" not in few


def test_load(
    slots: FakeTree, run: Run, file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    log: list[str],
) -> None:  # fmt: skip
    """The helper loads the program; all output comes from the state of the module."""
    helper = tmp_path / "mmpolicy-bpf"
    helper.write_text('#!/bin/sh\necho "$@" >"$0.asked"\necho own\n')
    helper.chmod(0o755)
    monkeypatch.setattr(bpf, "PLACES", str(tmp_path))
    assert "verifier accepts the program" in run("policy", "load", "--dry-run", file).out
    assert (tmp_path / "mmpolicy-bpf.asked").read_text() == f"verify own {PINS}\n"
    put_slot(slots, 0, "own")
    assert run("policy", "load", file).out.splitlines() == [
        "own: loaded, as BPF program 31", "next: mmpolicy set anon_order own",
    ]  # fmt: skip
    assert (tmp_path / "mmpolicy-bpf.asked").read_text() == f"load own {PINS}\n"
    assert run("policy", "replace", file, "--json").json["program"] == 31
    assert (tmp_path / "mmpolicy-bpf.asked").read_text() == f"replace own {PINS}\n"
    assert run("policy", "replace", file).out == "own: replaced, as BPF program 31\n"
    assert [line.partition(": own, program 31, from ")[0] for line in log] == [
        "policy load", "policy replace", "policy replace",
    ]  # fmt: skip
    assert run("policy", "load", f"{tmp_path}/none").code == 2
    assert "[default: 30s]" in run("policy", "load", "--help").out


def test_unload(slots: FakeTree, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`unload` removes the pin of a policy; one in use is kept, unless it is forced."""
    put_slot(slots, 0, "own")
    slots.put(f"{DEFAULT}/anon_order/policy", "stock adaptive fixed [own]")
    result = run("policy", "unload", "own")
    assert (result.code, "in use by: default" in result.err) == (5, True)
    assert "remove" in run("policy", "unload", "--all", "--dry-run").out
    assert slots.exists(f"{PINS}/anon_order/own")
    assert run("policy", "unload").code == run("policy", "unload", "own", "--all").code == 2
    result = run("unload")
    assert (result.code, "policy unload --all" in result.err) == (5, True)
    assert "still loaded" in run("reset").out
    assert run("reset", "--json").json["loaded_policies"] == ["own"]

    def drop(tree: FakeTree, path: str) -> None:
        tree.remove(path)
        put_slot(tree, 0, "")

    monkeypatch.setattr(FakeTree, "drop", drop)
    assert run("policy", "unload", "--all", "--json").json["unloaded"] == ["own"]
    assert not slots.exists(f"{PINS}/anon_order/own")
    put_slot(slots, 0, "own")
    slots.put(f"{DEFAULT}/anon_order/policy", "stock adaptive fixed [own]")
    assert run("policy", "unload", "own").code == 5
    assert run("policy", "unload", "own", "--force").out == "own: unloaded\n"


def test_new(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`policy new` writes the file shown on the page, and prints the next step; no existing file is
    overwritten.
    """
    monkeypatch.chdir(tmp_path)
    result = run("policy", "new", "mine")
    assert "next: clang" in result.out and "policy load mine.bpf.o" in result.out
    shown = (TREE / "docs/writing-a-policy.md").read_text().partition("```c\n")[2]
    assert (tmp_path / "mine.bpf.c").read_text() == shown.partition("```")[0]
    (tmp_path / "mine.bpf.c").write_text("my work")
    assert (again := run("policy", "new", "mine")).code == 1 and "exists already" in again.err
    assert (tmp_path / "mine.bpf.c").read_text() == "my work"
    for name in "stock", "Mine", "a" * 16, "../x", "":
        assert run("policy", "new", name).code == 2
    assert run("policy", "new", "b", "--json").json["file"] == "b.bpf.c"


def test_unload_waits_for_the_module(
    slots: FakeTree, run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`unload` waits some seconds at most, until the kernel has detached the program."""
    count = f"{MODULE_DIR}/refcnt"

    def drop(tree: FakeTree, path: str) -> None:
        tree.remove(path)
        put_slot(tree, 0, "")

    monkeypatch.setattr(FakeTree, "drop", drop)
    for counts in ["2", "1", "0"], ["1"] * 60:
        put_slot(slots, 0, "own")
        slots.put(count, "3")
        clock.steps[:] = [partial(slots.put, count, each) for each in counts]
        assert run("policy", "unload", "own").code == 0
        assert len(clock.steps) == (0 if counts[-1] == "0" else 9)


def test_others_may_hold_it_for_five_seconds(
    slots: FakeTree, run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the fifth second the state is read once more, and no later."""
    monkeypatch.setattr("mmpolicy.verbs.policy.STEP_S", 2.5)
    put_slot(slots, 0, "own")
    clock.steps = [lambda: None, partial(put_slot, slots, 0, "")]
    assert (run("policy", "unload", "own").code, clock.now) == (0, 5.0)
    put_slot(slots, 0, "own")
    clock.now, clock.steps = 0.0, [lambda: None] * 9
    assert (run("policy", "unload", "own").code, clock.now) == (1, 7.5)


def test_where_nothing_is_loaded(slots: FakeTree, run: Run, log: list[str]) -> None:
    assert run("policy", "unload", "--all").out == "no policy in BPF is loaded\n"
    assert run("policy", "unload", "--all", "--json").json["unloaded"] == []
    assert (log, slots.writes) == ([], [])
    assert "no loaded policy 'own'; there are none" in run("policy", "show", "own").err


def test_held_by_others(slots: FakeTree, run: Run, clock: Clock) -> None:
    """If the pin is not the only reference to a policy, `unload` reports that."""
    put_slot(slots, 0, "own")
    clock.steps += [lambda: None] * 100
    result = run("policy", "unload", "own")
    assert (result.code, "another process or pin holds them" in result.err) == (1, True)
    result = run("policy", "unload", "own")
    assert (result.code, "is not pinned" in result.err) == (5, True)


def message(err: str, status: int = 1) -> Error:
    """Return the error for a run of the helper."""
    return why(Done(status, "", err), "x.bpf.o", 30)


def test_why() -> None:
    """Each error of the helper is one line, with the next step."""
    assert message(VERIFIER).message.endswith("invalid bpf_context access off=8 size=8")
    assert "--log" in message(VERIFIER).next_step
    assert "max_order" in message("refused register 34\n").message
    assert "replace" in message("refused register 17\n").next_step
    assert message("refused load 1\n").exit_code == 4
    assert "mount" in message("refused folder 1\n").next_step
    assert "status 139" in message("", 139).message
    assert [message(text).errno for text in (VERIFIER, "refused register 34\n", "", "odd")] == [
        13, 34, 0, 0,
    ]  # fmt: skip
    assert message("refused find 2\n").exit_code == 2
    assert "no policy with the name of this one is pinned" in message("refused find 2\n").message
    assert "EPERM" in message("refused pin 1\n").message
    assert message("refused register 999\n").message.endswith("the module returned 999")
    assert message("refused load 12\n").message.endswith("mmpolicy-bpf ended with status 1")
    assert message("refused open 0\n").message.endswith("the file is not a BPF object file")
    assert message("", -9).message.endswith("the verifier was not done after 30 s")
    assert "--log" not in message("refused register 34\n").next_step
    missing = "libbpf: extern (func ksym) 'gone': not found\nrefused load 2\n"
    assert "'gone'" in message(missing).message
