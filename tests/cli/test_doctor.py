# SPDX-License-Identifier: GPL-2.0
"""`doctor` on hosts that lack one part or another."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from mmpolicy.control.ready import CHECKS
from mmpolicy.host.doctor import FTRACE, LOCKDOWN, SECURE_BOOT, SIG_ENFORCE
from mmpolicy.host.hooked import LIVEPATCHES, TRACED
from mmpolicy.kernel.needs import needs
from mmpolicy.verbs.fit import TYPES, VERSION

from .fakes import CONTROL, DEFAULT, MODULE_DIR, POINTS, RELEASE, FakeLib, FakeTree, Run
from .kernels import Small

Break = Callable[[FakeTree, FakeLib], object]
NAMES = ["kernel", *(check.__name__.removeprefix("check_") for check in CHECKS)]


def statuses(run: Run) -> tuple[int, dict[str, str]]:
    result = run("doctor", "--json")
    return result.code, {each["name"]: each["status"] for each in result.json["checks"]}


def secure_boot(tree: FakeTree, lib: FakeLib) -> None:
    tree.put(SECURE_BOOT, b"\6\0\0\0\1")


def foreign_key(tree: FakeTree, lib: FakeLib) -> None:
    secure_boot(tree, lib)
    lib.info.append((b"signer", b"dkms key"))
    tree.put("/proc/keys", "1 I------ 1 perm asymmetri distribution key: X509")


def no_debugfs(tree: FakeTree, lib: FakeLib) -> None:
    tree.remove("/sys/kernel/debug/mmpolicy")


def denied(tree: FakeTree, lib: FakeLib) -> None:
    tree.denied = True


def no_headers(tree: FakeTree, lib: FakeLib) -> None:
    tree.remove("/lib/modules")
    lib.path = f"/lib/modules/{RELEASE}/updates/dkms/mmpolicy.ko".encode()


def no_file(tree: FakeTree, lib: FakeLib) -> None:
    lib.path = None


def of_another_kernel(tree: FakeTree, lib: FakeLib) -> None:
    lib.info.append((b"vermagic", b"6.12.1-other SMP mod_unload "))


def stub(tree: FakeTree, lib: FakeLib) -> None:
    tree.make_unloaded()
    text = (Path(__file__).parents[2] / "module/stub.c").read_text()
    description = text.partition('MODULE_DESCRIPTION("')[2].partition('"')[0]
    lib.info = [(b"description", description.encode())]


def no_symbol(tree: FakeTree, lib: FakeLib) -> None:
    tree.put("/proc/kallsyms", "0000000000000000 T mm_policy_register_not")


def no_jit(tree: FakeTree, lib: FakeLib) -> None:
    tree.put("/proc/sys/net/core/bpf_jit_enable", "0")


def no_bpffs(tree: FakeTree, lib: FakeLib) -> None:
    tree.put("/proc/self/mounts", "tmpfs /run tmpfs rw 0 0")


def locked_down(tree: FakeTree, lib: FakeLib) -> None:
    tree.put("/sys/kernel/security/lockdown", "none integrity [confidentiality]")


def untried(tree: FakeTree, lib: FakeLib) -> None:
    tree.put(f"{CONTROL}/kernel_tested", "no")
    tree.put(f"{CONTROL}/kernel_fingerprint", "0123456789abcdef")


def livepatched(tree: FakeTree, lib: FakeLib) -> None:
    tree.put(f"{CONTROL}/hooked_functions", "compact compact_zone")
    tree.put(f"{LIVEPATCHES}/fix/vmlinux/compact_zone,1/patched", "1")
    tree.put(f"{LIVEPATCHES}/fix/vmlinux/another,1/patched", "1")


def program(tree: FakeTree, lib: FakeLib) -> None:
    tree.put(f"{CONTROL}/hooked_functions", "compact compact_zone\nthp_gfp vma_thp_gfp_mask")
    lines = "{} (1) R   D   M \ttramp: ftrace_regs_caller+0x0/0x65\n\tdirect-->{}+0x0/0xa4\n"
    ours = lines.format("vma_thp_gfp_mask", "mmp_entry_thp_gfp")
    tree.put(TRACED, f"another (1) R\n{ours}{lines.format('compact_zone', 'bpf_trampoline_1')}")


def test_others_are_named(run: Run, tree: FakeTree, lib: FakeLib) -> None:
    program(tree, lib)
    assert " bpf_trampoline_1 on compact_zone\n" in run("doctor").out
    livepatched(tree, lib)
    assert " livepatch fix, bpf_trampoline_1 on compact_zone\n" in run("doctor").out


def test_a_kernel_that_was_tried(run: Run, tree: FakeTree, lib: FakeLib) -> None:
    tree.put(f"{CONTROL}/kernel_tested", "6.12.1-some")
    assert "tested on this kernel build: 6.12.1-some\n" in run("doctor").out
    untried(tree, lib)
    tree.put(f"{CONTROL}/points/anon_order", "unavailable: not tried on this build")
    assert "not tested on this kernel build: 0123456789abcdef\n" in run("doctor").out
    tree.put(f"{CONTROL}/points/anon_order", "available")
    assert (
        "0123456789abcdef; the module was loaded with untested=1, which permits it\n"
        in run("doctor").out
    )


def test_all_well(run: Run) -> None:
    code, found = statuses(run)
    assert (code, list(found)) == (0, NAMES)
    assert set(found.values()) == {"ok"}
    assert run("doctor").out.splitlines()[0] == "Policies can be switched (exit 0)"


def test_json(run: Run, tree: FakeTree) -> None:
    tree.make_unloaded()
    data = run("doctor", "--json").json
    assert (data["version"], data["ready"], data["exit"]) == (1, False, 3)
    loaded = next(check for check in data["checks"] if check["name"] == "loaded")
    assert loaded == {
        "name": "loaded",
        "status": "fail",
        "detail": f"no {tree.real(CONTROL)}: the module is not loaded",
        "next_step": "mmpolicy load",
    }


@pytest.mark.parametrize(
    ("name", "broken", "status", "code", "hint"),
    [
        ("hooks", no_symbol, "fail", 3, "CONFIG_MM_POLICY=y"),
        ("thp", lambda t, _: t.remove("/sys/kernel/mm"), "warn", 0, "TRANSPARENT_HUGEPAGE"),
        ("headers", no_headers, "warn", 0, f"linux-headers-{RELEASE}"),
        ("file", no_file, "warn", 0, "depmod"),
        ("file", of_another_kernel, "warn", 0, "dkms autoinstall"),
        ("file", stub, "fail", 3, "make.log"),
        ("loaded", lambda t, _: t.expire(), "fail", 3, "mmpolicy reset"),
        ("signature", secure_boot, "warn", 0, "mokutil"),
        ("signature", foreign_key, "warn", 0, "mokutil"),
        ("signature", lambda t, _: t.put(SIG_ENFORCE, "Y"), "warn", 0, "mokutil"),
        ("signature", lambda t, _: t.put(LOCKDOWN, "none [integrity]"), "warn", 0, "mokutil"),
        ("loaded", lambda t, _: t.make_unloaded(), "fail", 3, "mmpolicy load"),
        ("loaded", lambda t, _: t.remove(CONTROL), "fail", 3, "dmesg"),
        ("tested", untried, "warn", 0, "untested=1"),
        ("others", livepatched, "warn", 0, "list --hooks"),
        ("others", program, "warn", 0, "list --hooks"),
        ("build", lambda t, _: t.put(f"{MODULE_DIR}/srcversion", "F00"), "warn", 0, "unload"),
        ("build", lambda t, _: t.remove(f"{MODULE_DIR}/srcversion"), "warn", 0, "unload"),
        ("abi", lambda t, _: t.put(f"{CONTROL}/abi", "3"), "fail", 3, "came with the module"),
        ("permission", denied, "fail", 4, "run the command as root"),
        ("counters", no_debugfs, "warn", 0, "mount -t debugfs"),
        ("bpf", no_jit, "warn", 0, "sysctl net.core.bpf_jit_enable=1"),
        ("bpf", no_bpffs, "warn", 0, "mount -t bpf"),
        ("bpf", locked_down, "warn", 0, "lockdown=confidentiality"),
    ],
)
def test_one_thing_missing(
    run: Run, tree: FakeTree, lib: FakeLib, name: str, broken: Break, status: str, code: int,
    hint: str,
) -> None:  # fmt: skip
    broken(tree, lib)
    exit_code, found = statuses(run)
    assert (exit_code, found[name]) == (code, status)
    lines = run("doctor", "--all").out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.split()[:2] == [status, name])
    assert lines[place + 1].startswith("      next: ")
    assert hint in lines[place + 1]


def runs(tree: FakeTree, kernel: Small, version: str = "") -> None:
    """Let a kernel run that has no hooks."""
    tree.put("/proc/kallsyms", "".join(f"0000000000000000 T {name}\n" for name in kernel.names))
    tree.put(TYPES, kernel.types())
    tree.put(VERSION, f"Linux version 6.18.4 {version}")
    tree.put("/proc/sys/kernel/osrelease", "6.18.4")


def only_ftrace(tree: FakeTree, lib: FakeLib) -> None:
    runs(tree, Small(needs()))
    tree.put("/proc/sys/kernel/osrelease", RELEASE)
    tree.put(f"/boot/config-{RELEASE}", "\n".join(f"CONFIG_{name}=y" for name in FTRACE))


def unsigned(tree: FakeTree, lib: FakeLib) -> None:
    tree.put(SIG_ENFORCE, "Y")


def used(tree: FakeTree, lib: FakeLib) -> None:
    tree.put(f"{DEFAULT}/anon_order/policy", "stock [never]")
    tree.put(f"{CONTROL}/state", "active")


LOAD = "mmpolicy load"
WITHOUT = "see the failed checks above; mmpolicy thp, map and ab run work without the module"


@pytest.mark.parametrize(
    ("loaded", "situation", "code", "steps"),
    [
        (False, no_symbol, 3, ["boot a kernel of docs/kernels.md"]),
        (False, only_ftrace, 3, [LOAD]),
        (False, no_file, 3, ["install the module for this kernel", WITHOUT]),
        (False, of_another_kernel, 3, ["build the module for this kernel, by dkms", WITHOUT]),
        (False, unsigned, 3, ["mokutil --import the certificate of the signer", LOAD]),
        (True, denied, 4, ["run the command as root"]),
        (True, used, 0, []),
        (True, lambda t, _: t.expire(), 3, ["mmpolicy reset acknowledges the expired lease"]),
    ],
    ids=[
        "nothing",
        "ftrace",
        "no-module",
        "other-kernel",
        "unsigned",
        "no-rights",
        "used",
        "expired",
    ],
)
def test_next_steps(
    run: Run, tree: FakeTree, lib: FakeLib, loaded: bool, situation: Break, code: int,
    steps: list[str],
) -> None:  # fmt: skip
    """In each situation `doctor` prints the necessary next steps, in their order."""
    if not loaded:
        tree.make_unloaded()
    situation(tree, lib)
    result = run("doctor")
    lines = [line.partition("      next: ")[2] for line in result.out.splitlines()]
    found = [step for step in dict.fromkeys(lines) if step]
    assert (result.code, len(found)) == (code, len(steps)), found
    assert all(step.startswith(begin) for step, begin in zip(found, steps, strict=True)), found
    assert "mmpolicy doctor" not in result.out  # this is doctor


@pytest.mark.parametrize(
    ("situation", "code"), [(lambda _t, _l: None, 0), (no_symbol, 3), (no_file, 3), (stub, 3)]
)
def test_whether_the_module_can_be_loaded(
    run: Run, tree: FakeTree, lib: FakeLib, situation: Break, code: int
) -> None:
    """The condition of mmpolicy.service tells whether the module can be loaded; on a kernel that
    cannot have it, the unit is skipped.
    """
    tree.make_unloaded()
    situation(tree, lib)
    unit = (Path(__file__).parents[2] / "debian/units/mmpolicy.service").read_text()
    words = unit.partition("ExecCondition=/usr/bin/mmpolicy ")[2].splitlines()[0].split()
    result = run(*words)
    assert (result.code, result.out, result.err) == (code, "", "")


@pytest.mark.parametrize("name", ["build", "abi"])
def test_what_cannot_be_asked_is_not_ok(run: Run, tree: FakeTree, name: str) -> None:
    tree.make_unloaded()
    assert statuses(run)[1][name] == "-"


def test_missing_file_blocks_only_before_load(run: Run, tree: FakeTree, lib: FakeLib) -> None:
    tree.make_unloaded()
    lib.path = None
    assert statuses(run)[1]["file"] == "fail"


def test_without_root_before_load_is_more_than_permission(run: Run, tree: FakeTree) -> None:
    tree.make_unloaded()
    tree.denied = True
    code, found = statuses(run)
    assert (code, found["permission"], found["loaded"]) == (3, "fail", "fail")


def test_enrolled_key(run: Run, tree: FakeTree, lib: FakeLib) -> None:
    foreign_key(tree, lib)
    tree.put("/proc/keys", "1 I------ 1 perm asymmetri dkms key: 11aa X509.rsa")
    assert statuses(run)[1]["signature"] == "ok"


def test_hooks_from_the_configuration(run: Run, tree: FakeTree) -> None:
    tree.make_unloaded()
    tree.remove("/proc/kallsyms")
    assert statuses(run)[1]["hooks"] == "ok"
    tree.put("/proc/config.gz", gzip.compress(b"# CONFIG_MM_POLICY is not set\n"))
    assert statuses(run)[1]["hooks"] == "fail"


def test_ftrace_instead_of_hooks(run: Run, tree: FakeTree, lib: FakeLib) -> None:
    no_symbol(tree, lib)
    names = ["DYNAMIC_FTRACE_WITH_DIRECT_CALLS", "KALLSYMS_ALL", "KPROBES", "DEBUG_INFO_BTF"]
    tree.put(f"/boot/config-{RELEASE}", "\n".join(f"CONFIG_{name}=y" for name in names))
    for point in POINTS:
        if point != "anon_order":
            tree.put(f"{CONTROL}/points/{point}", "unavailable: no such function")
    code, found = statuses(run)
    assert (code, found["hooks"]) == (0, "ok")
    assert "ftrace instead: anon_order\n" in run("doctor").out
    tree.put(f"{CONTROL}/policies/anon_order/fixed", "available")
    tree.put(f"{CONTROL}/policies/anon_order/never", "unavailable: too late")
    assert "ftrace instead: anon_order without anon_order/never\n" in run("doctor").out
    tree.put(f"/boot/config-{RELEASE}", "\n".join(f"CONFIG_{name}=y" for name in names[1:]))
    assert statuses(run)[1]["hooks"] == "fail"
    tree.remove("/boot")
    tree.put(f"{CONTROL}/provider", "ftrace")  # the loaded module knows best
    assert statuses(run) == (0, found)


def test_stock_host_without_anything(run: Run, tree: FakeTree, lib: FakeLib) -> None:
    tree.make_unloaded()
    for path in ("/proc/kallsyms", "/boot", "/sys/kernel", "/lib"):
        tree.remove(path)
    lib.path = None
    code, found = statuses(run)
    assert (code, found["hooks"], found["file"]) == (3, "fail", "fail")


def test_a_module_that_was_built_elsewhere_needs_no_headers(run: Run, tree: FakeTree) -> None:
    tree.remove("/lib/modules")
    assert statuses(run)[1]["headers"] == "-"


def kernel_line(run: Run) -> tuple[str, str]:
    checks = run("doctor", "--json").json["checks"]
    return next((each["status"], each["detail"]) for each in checks if each["name"] == "kernel")


def test_the_running_kernel_is_judged_by_what_it_has(run: Run, tree: FakeTree) -> None:
    """The running kernel is judged by its properties, not its number, as `--kernel` does for an
    image; a module adds a row.
    """
    tree.make_unloaded()
    kernel = Small(needs())
    runs(tree, kernel)
    fits = "6.18.4 can have anon_order (untried) thp_gfp compact madv_free; without bulk"
    assert kernel_line(run) == ("ok", fits)
    runs(tree, kernel.without("vma_thp_gfp_mask"))
    without = "6.18.4 can have anon_order (untried) compact madv_free; without thp_gfp bulk"
    assert kernel_line(run) == ("ok", without)
    path = "/proc/kallsyms"
    tree.put(path, tree.read(path) + "\n0000000000000000 t vma_thp_gfp_mask\t[another]\n")
    assert kernel_line(run) == ("ok", without)
    runs(tree, kernel, "SMP PREEMPT_RT")
    reason = "6.18.4 can have no point: kernels with PREEMPT_RT are not supported"
    assert kernel_line(run) == ("warn", reason)
    runs(tree, kernel.without("register_kprobe"))
    assert kernel_line(run) == ("warn", "6.18.4 can have no point: needs CONFIG_KPROBES")


@pytest.mark.parametrize(
    ("path", "data", "why"),
    [("/proc/kallsyms", None, "/proc/kallsyms is not readable"), (TYPES, b"\0" * 40, "BTF")],
)
def test_a_running_kernel_that_does_not_tell(
    run: Run, tree: FakeTree, path: str, data: bytes | None, why: str
) -> None:
    tree.make_unloaded()
    runs(tree, Small(needs()))
    tree.remove(path)
    if data:
        tree.put(path, data)
    status, detail = kernel_line(run)
    assert status == "-" and why in detail


def test_with_hooks_all_points_can_be_had(run: Run, tree: FakeTree) -> None:
    tree.make_unloaded()
    points = "anon_order thp_gfp compact madv_free bulk"
    assert kernel_line(run) == ("ok", f"{RELEASE} can have {points}")
