# SPDX-License-Identifier: GPL-2.0
"""`doctor --kernel`: which hook points of the module a kernel could have, read from the image of a
kernel that need not be running.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import click

from mmpolicy.errors import Error, Exit
from mmpolicy.host.disk import is_there, read_given_bytes
from mmpolicy.host.doctor import ANOTHER_KERNEL, Check, Facts
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import PAGE
from mmpolicy.kernel.fit import BY_BUILD, Fit, Kernel, fit, kernel_of, running_kernel
from mmpolicy.kernel.needs import needs, tried
from mmpolicy.kernel.unpack import NotReadableError
from mmpolicy.render import emit, table

PLACES = ("/boot/vmlinuz-{}", "/lib/modules/{}/vmlinuz")  # where a kernel image is; {}: release
VERSION, TYPES = "/proc/version", "/sys/kernel/btf/vmlinux"
DAMAGED = (struct.error, IndexError, ValueError, OverflowError, RecursionError)
NEEDED_PAGE = 4096
UNTRIED = "not tested on this kernel build, so the module must be loaded with untested=1"
NEXT = "give the release of an installed kernel, a vmlinuz, a vmlinux or a Debian package"


def _read(tree: Tree, image: str) -> tuple[str, bytes]:
    """Return path and contents of a kernel image; image: a release, or a path. Raise a usage error
    if there is no such file.
    """
    places = [place.format(image) for place in PLACES] if "/" not in image else []
    found = [place for place in places if tree.exists(place)]
    if found:
        return found[0], tree.read_bytes(found[0])
    if places and not is_there(image):
        text = f"there is no kernel '{image}': no {' and no '.join(places)}"
        raise Error(text, Exit.USAGE, NEXT)
    return image, read_given_bytes(image)


def look_at(tree: Tree, image: str) -> tuple[Kernel, list[Fit]]:
    """Read a kernel image; return what it is, and for each point whether that kernel could have it.
    Raise an error if the file is no kernel or is damaged.
    """
    path, data = _read(tree, image)
    try:
        kernel = kernel_of(data)
        return kernel, fit(kernel, needs(kernel.machine), tried())
    except NotReadableError as err:
        raise Error(f"{path}: {err}", Exit.FAILED, NEXT, path=path) from err
    except DAMAGED as err:
        raise Error(
            f"the symbols or types (kallsyms, BTF) in kernel image {path} are damaged: {err}",
            Exit.FAILED,
            NEXT,
            path=path,
        ) from err


def _why(kernel: Kernel, found: Fit) -> str:
    untried = found.point == BY_BUILD and found.status == "fits" and not kernel.hooks
    return "; ".join(found.reasons) or (UNTRIED if untried else "")


def _lines(kernel: Kernel, points: list[Fit], result: Exit) -> Iterator[str]:
    rows = [(each.point, each.status, _why(kernel, each)) for each in points]
    yield (
        f"Linux {kernel.release}: by its image, it can have these points; the module has "
        "to be built for it"
    )
    yield from table(("POINT", "STATUS", "WHY"), rows)
    there = sum(each.status != "lacks" for each in points)
    yield f"{there} of {len(points)} points are possible (exit {int(result)})"


def told(kernel: Kernel, points: list[Fit]) -> str:
    """Return as text the hook points that a kernel could have, and after "without" those that it
    lacks.
    """
    there = [each.point + (" (untried)" if _why(kernel, each) else "")
             for each in points if each.status != "lacks"]  # fmt: skip
    rest = [each.point for each in points if each.status == "lacks"]
    without = f"; without {' '.join(rest)}" if rest and there else ""
    return f"{' '.join(there) or 'no point'}{without}"


class Points(NamedTuple):
    """The hook points that the running kernel could have, as text. reasons: why it could have none.
    known: False if the kernel's type tables cannot be read; text then says so.
    """

    text: str
    reasons: str = ""
    known: bool = True


def points_here(facts: Facts) -> Points:
    """Return the hook points of the module that the running kernel could have, or why it could have
    none.
    """
    if PAGE != NEEDED_PAGE:
        return Points(
            "none",
            f"the pages of this kernel have {PAGE >> 10} kB, and the module needs pages of 4 kB",
        )
    try:
        kernel = running_kernel(facts.release, facts.raw(VERSION), facts.symbols, facts.raw(TYPES))
        points = fit(kernel, needs(kernel.machine), tried())
    except (NotReadableError, *DAMAGED) as err:
        return Points(f"it is not known which points this kernel can have: {err}", known=False)
    if any(each.status != "lacks" for each in points):
        return Points(told(kernel, points))
    reasons = "; ".join(dict.fromkeys(reason for each in points for reason in each.reasons))
    return Points(told(kernel, points), reasons)


def check_kernel(facts: Facts) -> Check:
    """Return the check "kernel" of `doctor`: the hook points that the running kernel could have. If
    the module is loaded, it gives only the release of the kernel, as the module reports its points
    itself.
    """
    if facts.loaded:
        return Check("kernel", "ok", facts.release)
    points = points_here(facts)
    if not points.known:
        return Check("kernel", "-", f"{facts.release}; {points.text}")
    text = f"{facts.release} can have {points.text}"
    if points.reasons:
        return Check("kernel", "warn", f"{text}: {points.reasons}", ANOTHER_KERNEL)
    return Check("kernel", "ok", text)


def show_fit(tree: Tree, image: str, brief: bool, want_json: bool) -> Exit:
    """Print the hook points that a kernel could have. Return Exit.DONE if it could have at least
    one, else Exit.LACKING.
    """
    kernel, points = look_at(tree, image)
    result = Exit.DONE if any(each.status != "lacks" for each in points) else Exit.LACKING
    if brief and not want_json:
        click.echo(f"mmpolicy: Linux {kernel.release} has {told(kernel, points)}")
        return result
    rows = [
        {"point": each.point, "status": each.status, "why": _why(kernel, each) or None}
        for each in points
    ]
    data = {"kernel": kernel.release, "exit": int(result), "points": rows}
    emit("doctor", want_json, data, _lines(kernel, points, result))
    return result
