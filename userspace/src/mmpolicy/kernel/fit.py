# SPDX-License-Identifier: GPL-2.0
"""Find which points a kernel image would support, by the checks of module/provider/find.c."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from typing import NamedTuple

from mmpolicy.kernel.btf import Btf
from mmpolicy.kernel.image import Image
from mmpolicy.kernel.needs import Need, One
from mmpolicy.kernel.symbols import symbols
from mmpolicy.kernel.unpack import NotReadableError

# point that also depends on machine code (module/provider/fingerprint.c)
BY_BUILD = "anon_order"
HOOKS = "mm_policy_register"
# symbols that the module is linked to, unless it is the stub, with the error if one is missing
WITHOUT = {
    "register_ftrace_direct": "needs CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS",
    "register_kprobe": "needs CONFIG_KPROBES",
}
# from Linux 6.4 on, register_ftrace_direct() takes a struct ftrace_ops, which has this member
DIRECT = "ftrace_ops", "direct_call"
REAL_TIME = b"PREEMPT_RT"


class Fit(NamedTuple):
    """Whether a kernel can have a point; if not, the reasons."""

    point: str
    status: str  # "tested", "fits" (not tested), or "lacks"
    reasons: tuple[str, ...]


class Kernel:
    """Functions, variables and structures of a kernel, from an image or of the running kernel."""

    def __init__(
        self, release: str, banner: bytes, names: Container[str], btf: bytes, machine: str
    ) -> None:
        self.release, self.machine = release, machine  # the machine is a key of needs.ONLY
        self.real_time = REAL_TIME in banner
        self._symbols = names
        self.hooks = HOOKS in names
        self.btf = Btf(btf) if btf else None

    def has(self, name: str) -> bool:
        """Return whether exactly one function or variable has this name."""
        return name in self._symbols


class Point:
    """Checks the needs of one point in their order."""

    def __init__(self, kernel: Kernel, btf: Btf) -> None:
        self.kernel, self.btf = kernel, btf
        self.ways: set[str] = set()  # kernel variants that the chosen alternatives imply
        self.reasons: list[str] = []

    def look(self, need: Need) -> None:
        """Choose the first alternative of a need that exists with the expected type, or record why
        there is none.

        A need for other kernel variants than those chosen so far is skipped.
        """
        if not (self.ways >= need.when and self.ways.isdisjoint(need.unless)):
            return
        taken = next((one for one in need.ones if self._is_there(need, one)), None)
        if taken:
            self.ways |= taken.follows
        else:
            self.reasons.append(self._why(need))

    def _is_there(self, need: Need, one: One) -> bool:
        if need.row == "NOTHING":
            return False
        if need.row == "MEMBER":
            kind, bits = (self.btf.members(need.structure) or {}).get(one.name, ("", 0))
            return kind == one.kind and bits % 8 == 0
        there = self.kernel.has(one.name)
        return there and (need.row == "VARIABLE" or self.btf.prototype(one.name) == one.kind)

    def _why(self, need: Need) -> str:
        if need.row == "NOTHING":
            return need.ones[0].name
        if need.row == "MEMBER":
            return self._why_no_member(need)
        for one in need.ones:
            found = self.btf.prototype(one.name) if need.row != "VARIABLE" else None
            if found in {other.kind for other in need.ones}:
                return f"{one.name} was not found"
            if found:
                return f"{one.name} has become {found}"
        names = " or ".join(dict.fromkeys(one.name for one in need.ones))
        return f"the kernel has no {'variable' if need.row == 'VARIABLE' else 'function'} {names}"

    def _why_no_member(self, need: Need) -> str:
        (one,) = need.ones
        found = self.btf.members(need.structure)
        if found is None:
            return f"the kernel has no structure {need.structure}"
        if one.name not in found:
            return f"{need.structure} has no {one.kind} {one.name}"
        return f"{need.structure}.{one.name} has become {found[one.name][0]}"


def _all_points(needs: Iterable[Need]) -> list[str]:
    return list(dict.fromkeys(need.point for need in needs))


def _ruled_out(kernel: Kernel) -> str:
    """Return why a kernel can have no point at all; "" if it may have some."""
    if kernel.real_time:
        return "kernels with PREEMPT_RT are not supported"
    if kernel.hooks:
        return ""
    missing = (why for name, why in WITHOUT.items() if not kernel.has(name))
    if why := next(missing, "" if kernel.btf else "needs a kernel with BTF"):
        return why
    structure, member = DIRECT
    members = kernel.btf.members(structure) if kernel.btf else None
    if members is not None and member not in members:
        return "needs the register_ftrace_direct() of Linux 6.4 and newer"
    return ""


def fit(kernel: Kernel, needs: list[Need], tested: set[str]) -> list[Fit]:
    """Return for each point whether a kernel supports it."""
    points, out = _all_points(needs), _ruled_out(kernel)
    if out:
        return [Fit(point, "lacks", (out,)) for point in points]
    if kernel.hooks or not kernel.btf:
        return [Fit(point, "fits", ()) for point in points]
    found = []
    for point in points:
        looked = Point(kernel, kernel.btf)
        for need in needs:
            if need.point == point:
                looked.look(need)
        status = "lacks" if looked.reasons else "fits"
        if status == "fits" and point == BY_BUILD and kernel.release in tested:
            status = "tested"
        found.append(Fit(point, status, tuple(looked.reasons)))
    return found


def kernel_of(data: bytes) -> Kernel:
    """Return the kernel in a vmlinuz, a vmlinux or a Debian package."""
    image = Image(data)
    if not image.release:
        raise NotReadableError("the image does not contain the release of its kernel")
    names, types = symbols(image.data), image.section(".BTF")
    return Kernel(image.release, image.banner, names, types, image.machine)


class Listed:
    """The symbols in /proc/kallsyms except those of modules; searched on demand."""

    def __init__(self, lines: bytes) -> None:
        self._lines = lines

    def __contains__(self, name: object) -> bool:
        return self._lines.count(f" {name}\n".encode()) == 1


def running_kernel(release: str, banner: bytes, kallsyms: bytes, btf: bytes) -> Kernel:
    """Return the running kernel, from its files in /proc and /sys."""
    if not kallsyms:
        raise NotReadableError("/proc/kallsyms is not readable")
    machine = "arm64" if os.uname().machine == "aarch64" else "x86"
    return Kernel(release, banner, Listed(kallsyms), btf, machine)
