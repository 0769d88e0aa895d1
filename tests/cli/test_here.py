# SPDX-License-Identifier: GPL-2.0
"""First commands of a new user: `mmpolicy` alone, and its output without the module."""

from __future__ import annotations

import sys

import pytest

from mmpolicy.errors import OUTSIDE
from mmpolicy.host.traps import BOOT_NEVER, TUNED, traps
from mmpolicy.verbs.overview import MANY

from .fakes import CONTROL, RELEASE, FakeLib, FakeTree, Run
from .kernels import Small
from .scenes import put_kernel
from .test_fit import NEEDS

THP = "/sys/kernel/mm/transparent_hugepage"
ASK_THE_MODULE = (
    "status", "list", "show madv_free", "set anon_order fixed", "bind --pid 1 default",
    "lease 5", "stats", "watch",
)  # fmt: skip


@pytest.fixture
def bare(tree: FakeTree, lib: FakeLib) -> FakeTree:
    """Return a host on which only the command is installed."""
    tree.make_unloaded()
    lib.path = None
    put_kernel(tree, Small(NEEDS))
    return tree


@pytest.mark.parametrize("words", ASK_THE_MODULE)
def test_no_dead_end_where_no_module_can_be(bare: FakeTree, run: Run, words: str) -> None:
    """The next step is never `mmpolicy load` on a kernel that cannot have the module, as
    it once was.
    """
    put_kernel(bare, Small(NEEDS).without("register_kprobe"))
    result = run(*words.split())
    assert (result.code, result.out) == (3, "")
    assert "the module is not loaded. This kernel cannot have policies: needs " in result.err
    assert (
        "next: mmpolicy top, or mmpolicy recommend, which work without the module\n"
    ) in result.err
    assert "mmpolicy load" not in result.err


def test_where_it_can_be_it_is_said_how(bare: FakeTree, run: Run, lib: FakeLib) -> None:
    result = run("status")
    assert "can have policies of anon_order (untried) thp_gfp compact" in result.err
    assert "next: install mmpolicy-dkms and the headers of this kernel" in result.err
    assert run("doctor").out.startswith("The module is not installed; this kernel can have")
    assert "CHECK" not in run("doctor").out and "headers" in run("doctor").out
    lib.path = f"/lib/modules/{RELEASE}/updates/mmpolicy.ko".encode()
    assert run("status").err.splitlines()[-1] == "next: mmpolicy load"


def test_a_module_that_the_kernel_would_refuse_is_not_to_be_loaded(
    tree: FakeTree, run: Run
) -> None:
    """A module that the kernel would refuse under lockdown is not offered for `mmpolicy load`, as
    it once was.
    """
    tree.make_unloaded()
    tree.put("/sys/kernel/security/lockdown", "[none] integrity confidentiality")
    assert run("status").err.splitlines()[-1] == "next: mmpolicy load"
    tree.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality")
    result = run("status")
    assert (
        "not loaded: the kernel accepts only signed modules, and this module is not signed\n"
    ) in result.err
    assert result.err.splitlines()[-1].startswith(
        "next: mokutil --import the certificate of the signer"
    )
    assert run().out.splitlines()[-1] == result.err.splitlines()[-1]


def test_a_stub_is_no_module(bare: FakeTree, run: Run, lib: FakeLib) -> None:
    lib.path = f"/lib/modules/{RELEASE}/updates/mmpolicy.ko".encode()
    lib.info = [(b"description", b"Stub for a kernel that mmpolicy cannot be built for")]
    assert "DKMS could not build the module" in run("status").err
    assert "mmpolicy load" not in run("status").err


def test_a_kernel_that_does_not_tell_is_not_said_to_be_unfit(bare: FakeTree, run: Run) -> None:
    bare.remove("/proc/kallsyms")
    err = run("status").err
    assert "it is not known which points this kernel can have" in err and "cannot have" not in err


def test_alone_it_needs_neither_root_nor_the_module(bare: FakeTree, run: Run) -> None:
    for path, mib in (("/system.slice/redis.service", 412), ("/system.slice/small.service", 9)):
        bare.make_cgroup(path)
        bare.put(f"/sys/fs/cgroup{path}/memory.stat", f"anon {520 << 20}\nanon_thp {mib << 20}")
    bare.denied = True
    put_kernel(bare, Small(NEEDS).without("register_kprobe"))
    result = run()
    assert result.code == 0
    assert "/system.slice/redis.service 412 of 520 MiB" in result.out
    assert "next: as root: mmpolicy top, or mmpolicy recommend" in result.out
    assert "small.service" not in result.out
    assert (
        "What does not work here: top, map, explain, recommend, try, trim, collapse, "
        "maintain, ab run: needs root; " in result.out
    )


def test_alone_it_shows_what_is_set_and_warns_only_if_there_is_a_reason(
    bare: FakeTree, run: Run
) -> None:
    bare.put(f"{THP}/enabled", "[always] madvise never")
    bare.put(f"{THP}/hugepages-64kB/enabled", "[always] inherit madvise never")
    out = run().out
    assert "huge pages: enabled=always, defrag=" in out and " 64 kB=always, " in out
    assert "warning" not in out and "\nok    thp " in run("doctor").out


def test_alone_it_has_the_state_first_where_the_module_is_loaded(tree: FakeTree, run: Run) -> None:
    run("set", "anon_order", "never")
    out = run().out.splitlines()
    assert (out[0], "never" in out[3]) == ("state: active", True)
    assert out[-1].startswith("next: mmpolicy top")


def test_root_of_a_user_namespace_is_not_told_to_be_root(bare: FakeTree, run: Run) -> None:
    """The kernel hides page frame numbers from it, so it can do no more than other users."""
    bare.confined = True
    lines = run().out.splitlines() + run("doctor").out.splitlines()
    works = [line for line in lines if "What works here" in line]
    assert {line.split(": ", 1)[1] for line in works} <= {"thp, bench, ab report", "thp"}
    assert "as root" not in "\n".join(lines) and any(line.endswith(OUTSIDE) for line in lines)
    bare.put("/proc/kpageflags", bytes(8))
    result = run("recommend", "--seconds", "60")
    assert (result.code, result.err.splitlines()[-1]) == (4, f"next: {OUTSIDE}")


NEVER = "[vm]\ntransparent_hugepages = never\n"


def sizes(tree: FakeTree, enabled: str, big: str, small: str = "never") -> None:
    tree.put(f"{THP}/enabled", f"[{enabled}]")
    tree.put(f"{THP}/hugepages-2048kB/enabled", f"[{big}]")
    tree.put(f"{THP}/hugepages-64kB/enabled", f"[{small}]")


@pytest.mark.parametrize(
    ("line", "big", "told"),
    [
        ("quiet thp_anon=64K:always", "never", True),
        ("thp_anon=64K:always;2M:never", "never", False),  # an administrator's choice
        ("thp_anon=2048K:never", "never", False),
        ("thp_anon=64K:always", "inherit", False),  # corrected since
        ("quiet", "never", False),
    ],
)
def test_a_command_line_that_turns_2_mb_off(
    tree: FakeTree, line: str, big: str, told: bool
) -> None:
    tree.put("/proc/cmdline", line)
    sizes(tree, "madvise", big, "always")
    assert [trap.text.startswith("thp_anon=64K:always") for trap in traps(tree)] == [True] * told


@pytest.mark.parametrize(
    ("mib", "enabled", "line", "told"),
    [(511, "never", "", True), (513, "never", "", False), (300, "madvise", "", False),
     (300, "never", "transparent_hugepage=never", False)],
)  # fmt: skip
def test_little_memory(tree: FakeTree, mib: int, enabled: str, line: str, told: bool) -> None:
    assert BOOT_NEVER == 512 << 20
    tree.put("/proc/meminfo", f"MemTotal: {mib << 10} kB")
    tree.put("/proc/cmdline", line)
    sizes(tree, enabled, "inherit")
    assert ["below 512 MB" in trap.text for trap in traps(tree)] == [True] * told


@pytest.mark.parametrize(
    ("files", "small", "told"),
    [
        ({"mine": NEVER}, "always", True),
        ({"mine": "[main]\ninclude=pg", "pg": NEVER}, "always", True),
        ({"mine": "[main]\ninclude=mine\n"}, "always", False),  # includes itself for ever
        ({"mine": NEVER}, "never", False),
        ({"mine": "[vm]\ntransparent_hugepages=always\n"}, "always", False),
        ({}, "always", False),
    ],
)  # fmt: skip
def test_tuned_writes_enabled_alone(
    tree: FakeTree, files: dict[str, str], small: str, told: bool
) -> None:
    tree.put(TUNED, "mine")
    for name, text in files.items():
        tree.put(f"/usr/lib/tuned/{name}/tuned.conf", text)
    sizes(tree, "never", "inherit", small)
    assert ["TuneD profile mine" in trap.text for trap in traps(tree)] == [True] * told


@pytest.mark.parametrize(("run_", "sharing", "told"), [("1", "5", 1), ("1", "0", 0), ("0", "5", 0)])
def test_ksm(tree: FakeTree, run_: str, sharing: str, told: int) -> None:
    tree.put("/sys/kernel/mm/ksm/run", run_)
    tree.put("/sys/kernel/mm/ksm/pages_sharing", sharing)
    assert len(traps(tree)) == told


def test_doctor_names_what_works_for_programs_too(bare: FakeTree, run: Run) -> None:
    data = run("doctor", "--json").json
    assert {"thp", "top", "map", "explain", "recommend", "bench", "ab run", "ab report"} <= {
        *data["works"]
    }
    (trim,) = data["lacks"]
    step = f"restart the program with smaller folios: after echo madvise >{THP}/enabled, only "
    step += "programs that ask for 2 MB folios get them"
    assert (trim["verb"], trim["next_step"]) == ("trim", step)
    assert CONTROL not in data["verdict"]


def read_by(run: Run, root: str) -> tuple[list[str], list[str]]:
    """Return the files that `mmpolicy` alone opens and lists below a root."""
    opened: list[str] = []
    listed: list[str] = []
    on = [True]

    def hook(event: str, words: tuple[object, ...]) -> None:
        if on and event in ("open", "os.listdir", "os.scandir"):
            path = str(words[0])
            if path.startswith(root):
                (opened if event == "open" else listed).append(path[len(root) :])

    sys.addaudithook(hook)  # audit hooks cannot be removed, so it is turned off
    try:
        assert run().code == 0
    finally:
        on.clear()
    return opened, listed


def test_alone_it_scans_nothing(bare: FakeTree, run: Run) -> None:
    """`mmpolicy` alone reads few files, and no more on a host with hundreds of processes and
    cgroups.

    This holds without root, too; of cgroups it reads only those that it reports.
    """
    root = str(bare.real("/")).rstrip("/")
    bare.denied = True
    few, _ = read_by(run, root)
    for pid in range(1000, 1400):
        for name in ("stat", "status", "smaps", "smaps_rollup", "comm"):
            bare.put(f"/proc/{pid}/{name}", "")
    some, listed = read_by(run, root)
    assert len(some) == len(few) and not [path for path in listed if path.startswith("/proc")]
    assert 10 < len(few) < 100, few
    for number in range(MANY + 200):
        path = f"/slice{number % 4}.slice/s{number}.service"
        bare.make_cgroup(path)
        bare.put(f"/sys/fs/cgroup{path}/memory.stat", "anon 0\nanon_thp 0")
    many, _ = read_by(run, root)
    stats = [path for path in many if path.endswith("/memory.stat")]
    assert len(stats) == MANY and len(many) - MANY <= len(few)
