# SPDX-License-Identifier: GPL-2.0
"""The checks of `mmpolicy doctor` that need the control tree, and the list of all its checks."""

from __future__ import annotations

from collections.abc import Callable

from mmpolicy.control import model
from mmpolicy.control.counters import counted_profiles
from mmpolicy.control.notices import notices
from mmpolicy.control.programs import SLOTS, programs
from mmpolicy.errors import Exit
from mmpolicy.host.bpf import BPFFS
from mmpolicy.host.doctor import (
    LOCKDOWN,
    Check,
    Facts,
    check_build,
    check_file,
    check_headers,
    check_hooks,
    check_others,
    check_signature,
    check_tested,
    check_thp,
    try_to,
)
from mmpolicy.host.files import CONTROL

WITHOUT = "see the failed checks above; mmpolicy thp, map and ab run work without the module"


def check_can_load(facts: Facts) -> Exit:
    """Return DONE if the module is loaded, or if no check says that it cannot be loaded."""
    wrong = [check(facts).status for check in (check_hooks, check_file)] if not facts.loaded else []
    return Exit.LACKING if "fail" in wrong else Exit.DONE


def check_loaded(facts: Facts) -> Check:
    """Check that the module is loaded and its control tree exists."""
    found = try_to("loaded", "fail", lambda: f"state: {model.check_loaded(facts.tree)}")
    if check_can_load(facts) != Exit.DONE:
        return found._replace(next_step=WITHOUT)
    if found.detail != "state: expired":
        return found
    text = "state: expired: the lease was not renewed in time, so the kernel is at stock"
    return Check("loaded", "fail", text, "mmpolicy reset acknowledges the expired lease")


def check_abi(facts: Facts) -> Check:
    """Check that this command knows the ABI number of the module."""
    if not facts.tree.is_dir(CONTROL):
        return Check("abi", "-", "not checked, as the module is not loaded")
    return try_to("abi", "fail", lambda: model.check_abi(facts.tree))


def check_permission(facts: Facts) -> Check:
    """Check that this user may change policies."""
    path = f"{CONTROL}/reset"
    if not facts.tree.exists(path) and facts.tree.is_root():
        return Check("permission", "ok", "you are root, and may load the module")
    if facts.tree.writable(path):
        return Check("permission", "ok", "you may switch policies")
    return Check("permission", "fail", f"no permission to write {CONTROL}", facts.tree.who_may())


def check_counters(facts: Facts) -> Check:
    """Check that `mmpolicy stats` can read the counters."""
    if not facts.loaded:
        return Check("counters", "-", "not checked, as the module is not loaded")
    return try_to(
        "counters",
        "warn",
        lambda: f"readable, of the profiles {', '.join(counted_profiles(facts.tree))}",
    )


def check_left(facts: Facts) -> Check:
    """Check that no change, experiment or trial was left unfinished."""
    found = notices(facts.tree)
    if not found:
        return Check("left", "ok", "no change and no experiment is left unfinished")
    text, hint = ("; ".join(parts) for parts in zip(*(each[1:] for each in found)))
    return Check("left", "warn", text, hint)


def check_bpf(facts: Facts) -> Check:
    """Check that policies in BPF can be loaded; other features do not need this."""
    path = f"{SLOTS}/available"
    if not facts.loaded or not facts.tree.exists(path):
        return Check("bpf", "-", "not known until the module is loaded")
    if reason := facts.text(path).partition("unavailable: ")[2]:
        return Check("bpf", "-", f"policies cannot be BPF programs here: {reason}")
    wrong = {
        "the JIT for BPF is off (net.core.bpf_jit_enable is 0)": (
            facts.text("/proc/sys/net/core/bpf_jit_enable") == "0",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        "the BPF file system is not mounted at /sys/fs/bpf": (
            " /sys/fs/bpf bpf " not in facts.text("/proc/self/mounts"), BPFFS,
        ),
        "lockdown forbids BPF programs to read kernel memory": (
            "[confidentiality]" in facts.text(LOCKDOWN), "boot without lockdown=confidentiality",
        ),
    }  # fmt: skip
    found = {text: hint for text, (is_so, hint) in wrong.items() if is_so}
    if found:
        return Check("bpf", "warn", "; ".join(found), "; ".join(found.values()))
    names = ", ".join(each.name for each in programs(facts.tree))
    return Check("bpf", "ok", f"policies can be BPF programs; loaded: {names or 'none'}")


# The checks of `doctor` in the order in which it prints them. check_kernel() of verbs/fit.py comes
# before them; it is imported only when `doctor` runs.
CHECKS: tuple[Callable[[Facts], Check], ...] = (
    check_hooks,
    check_thp,
    check_headers,
    check_file,
    check_signature,
    check_loaded,
    check_tested,
    check_others,
    check_build,
    check_abi,
    check_permission,
    check_counters,
    check_left,
    check_bpf,
)


def verdict(checks: list[Check]) -> Exit:
    """Return DONE if policies can be switched now, DENIED if only the permission is missing, else
    LACKING.
    """
    failed = {check.name for check in checks if check.status == "fail"}
    if not failed:
        return Exit.DONE
    return Exit.DENIED if failed == {"permission"} else Exit.LACKING
