# SPDX-License-Identifier: GPL-2.0
"""`doctor --kernel` on images of Debian for which this machine has neither headers nor modules."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from lab import fits
from lab.guest import find_splat
from lab.machine import QEMU, accelerator, initramfs
from mmpolicy.host.files import Tree
from mmpolicy.kernel.image import Image, kernel_of_package
from mmpolicy.kernel.needs import Need, One, needs
from mmpolicy.kernel.symbols import symbols
from mmpolicy.verbs.fit import look_at

pytestmark = [
    pytest.mark.flavor("cloud"),
    pytest.mark.full,
    pytest.mark.amd64("boots kernels of amd64"),
]

INIT = Path(__file__).with_name("look.sh")
FUNCTIONS = ("HOOK", "CALL")
# kernel parameters that avoid failures on a busy host, which may stop the guest for a while
PATIENT = "no_timer_check rcupdate.rcu_cpu_stall_timeout=300"


def found_by(image: Path, folder: Path, functions: set[str]) -> dict[str, set[str]]:
    """Boot a kernel image with the script look.sh alone; return which types, symbols and traceable
    functions the running kernel has, by kind.
    """
    (folder / "initrd").write_bytes(initramfs(INIT, functions="\n".join(functions) + "\n"))
    words = f"{QEMU} -M q35 -m 512M -nodefaults -display none -no-reboot"
    words += f" {accelerator('auto', False, 1, image, False)}"
    words += f" -serial file:{folder}/log -serial file:{folder}/found"
    argv = [*words.split(), "-kernel", str(image), "-initrd", str(folder / "initrd")]
    argv += ["-append", f"console=ttyS0,115200 panic=-1 {PATIENT}"]
    subprocess.run(argv, check=True, timeout=1800)
    assert find_splat((folder / "log").read_text(errors="replace")) is None
    found: dict[str, set[str]] = {}
    for line in (folder / "found").read_text().split("\n")[:-1]:
        what, _, value = line.strip().partition(" ")
        found.setdefault(what, set()).add(value)
    assert "end" in found, (folder / "log").read_text(errors="replace")[-2000:]
    return found


def plain(prototype: str) -> tuple[str, str]:
    """Return the name and the prototype of a function, in the notation of needs.h. prototype: in
    the notation of pfunct.
    """
    text = re.sub(r"\b(struct|union|enum) ", "", prototype.rstrip(";"))
    text = re.sub(r"\bconst (\w+)", r"\1 const", text)
    text = re.sub(r"\s*\*\s*", "*", text).replace("*const", "* const")
    match = re.fullmatch(r"(.*?)\b(\w+)\((.*)\)", text)
    assert match, prototype
    kinds = [re.sub(r"(?<=[ *])\w+$", "", each.strip()).strip() for each in match[3].split(",")]
    arguments = "" if kinds in (["void"], [""]) else ", ".join(kinds)
    return match[2], f"{match[1].strip()}({arguments})"


def prototypes(types: bytes, folder: Path, functions: set[str]) -> dict[str, str]:
    """Return the prototypes of functions by name, as pfunct finds them. It reads the types (BTF)
    independently of mmpolicy.
    """
    (folder / "types").write_bytes(types)
    argv = ["pfunct", "-F", "btf", "-P", str(folder / "types")]
    lines = subprocess.run(argv, capture_output=True, check=True, text=True).stdout.splitlines()
    named = (line for line in lines if re.search(r"(\w+)\(", line))
    wanted = re.compile(rf"\b({'|'.join(functions)})\(")
    return dict(plain(line) for line in named if wanted.search(line))


def taken(rows: list[Need], found: dict[str, str]) -> Iterator[tuple[Need, One]]:
    """Yield each function that the hook points need, with the variant that fits this kernel. found:
    prototypes by name, as pfunct finds them.
    """
    ways: set[str] = set()
    for need in rows:
        if ways >= need.when and ways.isdisjoint(need.unless) and need.row in FUNCTIONS:
            ones = [one for one in need.ones if found.get(one.name) == one.kind]
            assert ones, f"{need.ones[0].name}: {[found.get(one.name) for one in need.ones]}"
            ways |= ones[0].follows
            yield need, ones[0]


@pytest.mark.parametrize("series", ("6.16", "6.17", "6.18", "6.19", "7.0", "7.1"))
def test_each_function_that_is_named(series: str, tmp_path: Path) -> None:
    """What `doctor --kernel` finds in a kernel image is true when that kernel runs: types and
    symbols. Each function to hook can be traced.
    """
    package = fits.fetched(fits.newest()[series, "cloud-amd64"])
    image, (kernel, points) = Image(package.read_bytes()), look_at(Tree(), str(package))
    names = {one.name for need in needs() if need.row in FUNCTIONS for one in need.ones}
    (tmp_path / "bzImage").write_bytes(kernel_of_package(package.read_bytes()))
    found = found_by(tmp_path / "bzImage", tmp_path, names)
    types, symbols_there = image.section(".BTF"), symbols(image.data)
    assert found["release"] == {kernel.release}
    assert found["types"] == {f"{sha256(types).hexdigest()}  -"}
    listed = "".join(f"{name}\n" for name in sorted(symbols_there))
    assert found["names"] == {f"{sha256(listed.encode()).hexdigest()}  -"}
    there = prototypes(types, tmp_path, names)
    for point in points:
        rows = [need for need in needs() if need.point == point.point]
        if point.status == "lacks":
            assert point.reasons == tuple(one.name for need in rows for one in need.ones)
            continue
        for need, one in taken(rows, there):
            assert one.name in symbols_there
            assert need.row == "CALL" or one.name in found["traced"], one.name
