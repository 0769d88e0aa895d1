# SPDX-License-Identifier: GPL-2.0
"""The checks of `mmpolicy doctor`, in the order in which a host is made ready."""

import gzip
import re
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from mmpolicy.app import App
from mmpolicy.control import model
from mmpolicy.control.counters import counted_profiles
from mmpolicy.control.model import CONTROL, MODULE, MODULE_DIR
from mmpolicy.errors import Error, Exit

HOOK = "mm_policy_register"
ENABLED = "CONFIG_MM_POLICY=y"
OLDEST = (6, 12)
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SIG_ENFORCE = "/sys/module/module/parameters/sig_enforce"


class Check(NamedTuple):
    """The answer of one check; status is ok, warn or fail."""

    name: str
    status: str
    detail: str
    next_step: str = ""


class Host:
    """What several checks want to know, found out once."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.tree = app.tree
        self.release = app.release()
        self.loaded = app.tree.exists(MODULE_DIR)

    @cached_property
    def info(self) -> dict[str, str]:
        """Return the modinfo of the module file, empty without one."""
        try:
            return dict(self.app.kmod().info(MODULE)) if self.app.module_file() else {}
        except Error:
            return {}

    def raw(self, path: str) -> bytes:
        """Return a file as it is, empty if we cannot read it."""
        try:
            return self.tree.read_bytes(path)
        except Error:
            return b""

    def text(self, path: str) -> str:
        """Return the text of a file, empty if we cannot read it."""
        return self.raw(path).decode(errors="replace").strip()

    @cached_property
    def config(self) -> str:
        """Return the kernel's configuration, empty if we cannot read it."""
        packed = self.raw("/proc/config.gz")
        if packed:
            return gzip.decompress(packed).decode()
        return self.text(f"/boot/config-{self.release}")


def _try(name: str, status: str, find: Callable[[], str]) -> Check:
    """Return what was found, or the status with the error and its next step."""
    try:
        return Check(name, "ok", find())
    except Error as err:
        return Check(name, status, err.message, err.next_step)


def check_kernel(host: Host) -> Check:
    """Is the kernel one of those that hooks exist for?"""
    found = re.match(r"(\d+)\.(\d+)", host.release)
    if found and (int(found[1]), int(found[2])) >= OLDEST:
        return Check("kernel", "ok", host.release)
    text = f"{host.release} is older than {OLDEST[0]}.{OLDEST[1]}"
    return Check("kernel", "warn", text, "boot a series that kernel-hooks/ has patches for")


def check_hooks(host: Host) -> Check:
    """Does the running kernel have the hooks?"""
    config = "config not readable"
    if host.config:
        config = ENABLED if ENABLED in host.config.splitlines() else f"no {ENABLED}"
    symbols = host.raw("/proc/kallsyms")
    if f" {HOOK}\n".encode() in symbols:
        return Check("hooks", "ok", f"{HOOK} in /proc/kallsyms, {config}")
    if not symbols and (host.loaded or config == ENABLED):
        return Check("hooks", "ok", f"/proc/kallsyms not readable, {config}")
    where = "not in /proc/kallsyms" if symbols else "unknown, /proc/kallsyms not readable"
    hint = f"boot a kernel with the patches of kernel-hooks/ and {ENABLED}"
    return Check("hooks", "fail", f"{HOOK} {where}, {config}", hint)


def check_thp(host: Host) -> Check:
    """Can the kernel make huge pages at all?"""
    path = "/sys/kernel/mm/transparent_hugepage"
    if host.tree.is_dir(path):
        return Check("thp", "ok", f"enabled: {host.text(f'{path}/enabled')}")
    text = f"no {path}: policies for huge pages have nothing to decide"
    return Check("thp", "warn", text, "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y")


def check_headers(host: Host) -> Check:
    """Are the kernel headers there that dkms builds against?"""
    path = f"/lib/modules/{host.release}/build"
    if host.tree.exists(f"{path}/Makefile"):
        return Check("headers", "ok", path)
    hint = f"install the headers of this kernel, such as linux-headers-{host.release}"
    return Check("headers", "warn", f"no {path}/Makefile: dkms cannot build the module", hint)


def check_file(host: Host) -> Check:
    """Is there a module for this kernel? One that is loaded already needs no file."""
    return _try("file", "warn" if host.loaded else "fail", host.app.module_file)


def check_signature(host: Host) -> Check:
    """Will a kernel that wants signed modules take this one?"""
    secure = host.raw(SECURE_BOOT)[4:5] == b"\1"  # four bytes of attributes come first
    if not secure and host.text(SIG_ENFORCE) != "Y":
        return Check("signature", "ok", "not required")
    signer = host.info.get("signer", "")
    if signer and signer in host.text("/proc/keys"):
        return Check("signature", "ok", f"signed by '{signer}', which the kernel knows")
    hint = "mokutil --import the key that dkms signs with, reboot, enrol it"
    if signer:
        return Check("signature", "warn", f"key of '{signer}' is not enrolled", hint)
    return Check("signature", "warn", "the kernel wants a signed module, this is none", hint)


def check_loaded(host: Host) -> Check:
    """Is the module loaded and its control tree there?"""
    return _try("loaded", "fail", lambda: f"state: {model.check_loaded(host.tree)}")


def check_build(host: Host) -> Check:
    """Is the loaded module the one on disk?"""
    loaded, on_disk = host.text(f"{MODULE_DIR}/srcversion"), host.info.get("srcversion", "")
    if not host.loaded or not host.info:
        return Check("build", "ok", "nothing to compare")
    if loaded and loaded == on_disk:
        return Check("build", "ok", f"srcversion {loaded}, as the file")
    text = f"loaded is srcversion {loaded or '?'}, the file is {on_disk or '?'}"
    return Check("build", "warn", text, "mmpolicy unload, then mmpolicy load")


def check_abi(host: Host) -> Check:
    """Do module and tool speak the same language?"""
    if not host.tree.is_dir(CONTROL):
        return Check("abi", "ok", "nothing to compare")
    return _try("abi", "fail", lambda: model.check_abi(host.tree))


def check_permission(host: Host) -> Check:
    """May we change anything?"""
    path = f"{CONTROL}/reset"
    if host.tree.writable(path) if host.tree.exists(path) else host.tree.is_root():
        return Check("permission", "ok", "policies may be switched")
    return Check("permission", "fail", f"no permission to write {CONTROL}", "run it as root")


def check_counters(host: Host) -> Check:
    """Can `mmpolicy stats` read the counters?"""
    return _try("counters", "warn", lambda: f"of {', '.join(counted_profiles(host.tree))}")


CHECKS: tuple[Callable[[Host], Check], ...] = (
    check_kernel,
    check_hooks,
    check_thp,
    check_headers,
    check_file,
    check_signature,
    check_loaded,
    check_build,
    check_abi,
    check_permission,
    check_counters,
)


def verdict(checks: list[Check]) -> Exit:
    """Return DONE if policies can be switched now, DENIED if only permission is missing."""
    failed = {check.name for check in checks if check.status == "fail"}
    if not failed:
        return Exit.DONE
    return Exit.DENIED if failed == {"permission"} else Exit.LACKING
