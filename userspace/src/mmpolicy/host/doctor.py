# SPDX-License-Identifier: GPL-2.0
"""The checks of `mmpolicy doctor`, in the order in which a host is prepared."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.evidence import THP
from mmpolicy.host.files import CONTROL, MODULE, MODULE_DIR
from mmpolicy.host.hooked import HOOKED, others
from mmpolicy.host.machine import DOCTOR_KNOWS, Host
from mmpolicy.host.traps import traps

ENABLED = "CONFIG_MM_POLICY=y"
HOOK = "mm_policy_register"
ANOTHER_KERNEL = f"boot a kernel of docs/kernels.md, such as Debian's 6.12, or one with {ENABLED}"
FTRACE = (  # configuration options that the module needs on a kernel without its hooks
    "DYNAMIC_FTRACE_WITH_DIRECT_CALLS", "KALLSYMS_ALL", "KPROBES", "DEBUG_INFO_BTF",
)  # fmt: skip
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# the stub module (module/stub.c) has a modinfo description that begins with this word
STUB = "Stub"
SIG_ENFORCE = "/sys/module/module/parameters/sig_enforce"
LOCKDOWN = "/sys/kernel/security/lockdown"


class Check(NamedTuple):
    """The result of one check: ok, warn, fail, or - if the check does not apply."""

    name: str
    status: str
    detail: str
    next_step: str = ""


class Facts:
    """Facts about the host that several checks use; each is read once."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.tree = host.tree
        self.release = host.release()
        self.loaded = host.tree.exists(MODULE_DIR)

    @cached_property
    def info(self) -> dict[str, str]:
        """Return the modinfo of the module file; {} without such a file."""
        try:
            return dict(self.host.kmod().info(MODULE)) if self.host.module_file() else {}
        except Error:
            return {}

    def raw(self, path: str) -> bytes:
        """Return the bytes of a file; empty if it cannot be read."""
        try:
            return self.tree.read_bytes(path)
        except Error:
            return b""

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it cannot be read."""
        return self.raw(path).decode(errors="replace").strip()

    @cached_property
    def symbols(self) -> bytes:
        """Return /proc/kallsyms, the symbols of the running kernel; empty if it cannot be read."""
        return self.raw("/proc/kallsyms")

    @cached_property
    def config(self) -> str:
        """Return the configuration of the running kernel; empty if it cannot be read."""
        packed = self.raw("/proc/config.gz")
        if packed:
            return gzip.decompress(packed).decode()
        return self.text(f"/boot/config-{self.release}")


def try_to(name: str, status: str, find: Callable[[], str]) -> Check:
    """Return a check with the result of find(); if find() fails, with `status` and the error."""
    try:
        return Check(name, "ok", find())
    except Error as err:
        return Check(name, status, err.message, err.next_step)


def ftrace_points(facts: Facts) -> str:
    """Return which points the loaded module can use by ftrace, as text."""
    tree, points, policies = facts.tree, f"{CONTROL}/points", f"{CONTROL}/policies"
    if not tree.is_dir(points):
        return "once loaded, the module lists the points that work"
    names = [name for name in tree.names(points) if facts.text(f"{points}/{name}") == "available"]
    dirs = [name for name in names if tree.is_dir(f"{policies}/{name}")]
    below = [f"{name}/{policy}" for name in dirs for policy in tree.names(f"{policies}/{name}")]
    lacks = [policy for policy in below if facts.text(f"{policies}/{policy}") != "available"]
    return " ".join([*names, *(["without", *lacks] if lacks else [])])


def check_hooks(facts: Facts) -> Check:
    """Check that the running kernel has the hooks, or that the module can use points
    without them.
    """
    config = "the kernel config is not readable"
    if facts.config:
        config = ENABLED if ENABLED in facts.config.splitlines() else f"no {ENABLED}"
    symbols = facts.symbols
    if f" {HOOK}\n".encode() in symbols:
        return Check(
            "hooks", "ok", f"the kernel has hooks of its own: {HOOK} is in /proc/kallsyms, {config}"
        )
    if not symbols and (facts.loaded or config == ENABLED):
        return Check(
            "hooks",
            "ok",
            f"the hooks of the kernel cannot be checked: /proc/kallsyms is not readable, {config}",
        )
    works = facts.text(f"{CONTROL}/provider") == "ftrace"
    if works or all(f"CONFIG_{name}=y" in facts.config.splitlines() for name in FTRACE):
        return Check(
            "hooks",
            "ok",
            f"{config}; the module hooks functions by ftrace instead: {ftrace_points(facts)}",
        )
    if symbols and not facts.config:
        text = (
            f"it is not known whether the module can hook this kernel: no {HOOK} in "
            f"/proc/kallsyms, {config}; the line `kernel` says which points are possible"
        )
        return Check("hooks", "-", text)
    where = (
        "is not in /proc/kallsyms"
        if symbols
        else "may be missing, as /proc/kallsyms is not readable"
    )
    return Check("hooks", "fail", f"{HOOK} {where}, {config}", ANOTHER_KERNEL)


def check_tested(facts: Facts) -> Check:
    """Check that anon_order was tested on this kernel build, if that is required."""
    tested = facts.text(f"{CONTROL}/kernel_tested")
    if tested != "no":
        text = f"the policies of anon_order were tested on this kernel build: {tested}"
        return Check(
            "tested", "ok", text if tested else "not needed: no point depends on the kernel build"
        )
    text = (
        "anon_order was not tested on this kernel build: "
        f"{facts.text(f'{CONTROL}/kernel_fingerprint')}"
    )
    if facts.text(f"{CONTROL}/points/anon_order") == "available":
        text += "; the module was loaded with untested=1, which permits it"
    hint = "test it with modprobe mmpolicy untested=1 where a crash does no harm: docs/host.md"
    return Check("tested", "warn", text, hint)


def check_others(facts: Facts) -> Check:
    """Check whether livepatches or BPF programs use kernel functions that the module hooks."""
    if not facts.tree.exists(HOOKED):
        return Check("others", "ok", "the module has hooked no kernel function")
    found = others(facts.tree)
    if not found:
        return Check("others", "ok", "no livepatch and no BPF program uses the hooked functions")
    text = "; ".join(f"{', '.join(who)} on {function}" for function, who in found.items())
    hint = "mmpolicy list --hooks says which points cannot have a policy until these are gone"
    return Check("others", "warn", text, hint)


def check_thp(facts: Facts) -> Check:
    """Check that the kernel supports huge pages, and that its settings take effect."""
    if not facts.tree.is_dir(THP):
        text = (
            f"the kernel has no huge pages (no {THP}), so policies for them have nothing to decide"
        )
        return Check("thp", "warn", text, "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y")
    text = f"enabled: {facts.text(f'{THP}/enabled')}"
    found = traps(facts.tree)
    if not found:
        return Check("thp", "ok", text)
    texts = "; ".join([text, *(trap.text for trap in found)])
    return Check("thp", "warn", texts, "; ".join(trap.next_step for trap in found))


def check_headers(facts: Facts) -> Check:
    """Check that the kernel headers that dkms builds with are installed."""
    path = f"/lib/modules/{facts.release}/build"
    if facts.tree.exists(f"{path}/Makefile"):
        return Check("headers", "ok", path)
    if facts.info and "/dkms/" not in facts.host.module_file():
        return Check(
            "headers", "-", "not installed, and not needed, as DKMS has not built this module"
        )
    hint = f"install the headers of this kernel, such as linux-headers-{facts.release}"
    return Check(
        "headers",
        "warn",
        f"no kernel headers ({path}/Makefile), so DKMS cannot build the module",
        hint,
    )


def check_file(facts: Facts) -> Check:
    """Check that a module file exists for this kernel; a loaded module does not need it."""
    status = "warn" if facts.loaded else "fail"
    kernel = facts.info.get("vermagic", "").partition(" ")[0]
    if kernel not in ("", facts.release):
        hint = "build the module for this kernel, by dkms autoinstall or by hand; then run depmod"
        return Check("file", status, f"the module file was built for the kernel {kernel}", hint)
    if facts.info.get("description", "").startswith(STUB):
        hint = (
            "/var/lib/dkms/mmpolicy has make.log, which says why; or boot a kernel of "
            "docs/kernels.md"
        )
        return Check(
            "file", status, "the module file is a stub, as DKMS could not build the module", hint
        )
    found = try_to("file", status, facts.host.module_file)
    return found._replace(next_step=found.next_step.removesuffix(DOCTOR_KNOWS))


def check_signature(facts: Facts) -> Check:
    """Check that the module is signed if the kernel accepts only signed modules."""
    # an EFI variable begins with four bytes of attributes
    secure = facts.raw(SECURE_BOOT)[4:5] == b"\1"
    locked = "[none]" not in (facts.text(LOCKDOWN) or "[none]")
    if not secure and not locked and facts.text(SIG_ENFORCE) != "Y":
        return Check("signature", "ok", "not required")
    signer = facts.info.get("signer", "")
    if signer and signer in facts.text("/proc/keys"):
        return Check(
            "signature", "ok", f"the module is signed by '{signer}', whose key the kernel knows"
        )
    hint = "mokutil --import the certificate of the signer, reboot, and enrol it: docs/host.md"
    if signer:
        return Check(
            "signature",
            "warn",
            f"the module is signed by '{signer}', whose key the kernel does not know",
            hint,
        )
    return Check(
        "signature",
        "warn",
        "the kernel accepts only signed modules, and this module is not signed",
        hint,
    )


def check_build(facts: Facts) -> Check:
    """Check that the loaded module is the same build as the file on disk."""
    loaded, on_disk = facts.text(f"{MODULE_DIR}/srcversion"), facts.info.get("srcversion", "")
    if not facts.loaded or not facts.info:
        return Check("build", "-", "not checked: the module is not loaded, or has no file")
    if loaded and loaded == on_disk:
        return Check("build", "ok", f"the loaded module is the one on disk (srcversion {loaded})")
    text = (
        f"the loaded module is not the one on disk: its srcversion is {loaded or '?'}, "
        f"and the file has {on_disk or '?'}"
    )
    return Check("build", "warn", text, "mmpolicy unload, then mmpolicy load")
