# SPDX-License-Identifier: GPL-2.0
"""The image of a kernel: a vmlinuz of x86 or arm64, an ELF file, or a Debian package with one."""

from __future__ import annotations

import io
import re
import struct
import tarfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import PurePath

from mmpolicy.kernel.unpack import NotReadableError, unpacked

ELF = b"\x7fELF\x02\x01"  # first bytes of a 64-bit little-endian ELF file
AR = b"!<arch>\n"
BZIMAGE = b"HdrS"
# magic of an uncompressed arm64 Image, and the machine number of an ELF file
ARM64, EM_AARCH64 = b"ARM\x64", 183
# beginning of BTF: magic, version 1, no flags, length of the header
BTF_HEADER = struct.pack("<HBBI", 0xEB9F, 1, 0, 24)
BANNER = re.compile(rb"Linux version (\S+) [^\n]*")
# first boot protocol whose header has the offset of the compressed kernel
LEAST_PROTOCOL = 0x0208


def _packed_kernel(data: bytes) -> bytes:
    """Return the ELF file in an x86 vmlinuz, as Documentation/arch/x86/boot.rst defines it."""
    if data[0x202:0x206] != BZIMAGE or struct.unpack_from("<H", data, 0x206)[0] < LEAST_PROTOCOL:
        raise NotReadableError(
            "the file is neither a kernel image of x86 or arm64, nor a vmlinux, nor a "
            "Debian package"
        )
    offset, length = struct.unpack_from("<II", data, 0x248)
    begin = ((data[0x1F1] or 4) + 1) * 512 + offset
    packed = data[begin : begin + length]
    if len(packed) < length or length <= 4:
        raise NotReadableError("the file ends in the middle of the kernel image")
    return unpacked(packed, struct.unpack_from("<I", packed, length - 4)[0])


def _members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file in an ar archive, such as a Debian package."""
    at = len(AR)
    while at + 60 <= len(archive):
        name, size = archive[at : at + 16], archive[at + 48 : at + 58]
        if not size.strip().isdigit():
            raise NotReadableError("the archive in the Debian package is damaged")
        if at + 60 + int(size) > len(archive):
            raise NotReadableError("the file ends early")
        yield name.decode(errors="replace").strip().rstrip("/"), archive[at + 60 :][: int(size)]
        at += 60 + int(size) + int(size) % 2


def kernel_of_package(package: bytes) -> bytes:
    """Return the file vmlinuz-VERSION in a Debian package."""
    for name, data in _members(package):
        if not name.startswith("data.tar"):
            continue
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as files:
                for each in files:
                    if each.isreg() and PurePath(each.name).name.startswith("vmlinuz"):
                        found = files.extractfile(each)
                        return found.read() if found else b""
        except (tarfile.TarError, OSError, EOFError, ValueError) as err:
            why = str(err).partition("\n")[0]
            raise NotReadableError(
                f"{name} in the Debian package is damaged, or of an unknown kind: {why}"
            ) from err
    raise NotReadableError("the Debian package has no kernel image in it")


def _types_in(data: bytes) -> bytes:
    """Return the BTF in an image that has no sections, found by its header; empty if there is
    none.
    """
    at = data.find(BTF_HEADER)
    while at >= 0:
        kinds, length, strings, size = struct.unpack_from("<IIII", data.ljust(at + 24), at + 8)
        end = at + 24 + strings + size
        if kinds == 0 < length <= strings and size and end <= len(data) and not data[end - 1]:
            return data[at:end]
        at = data.find(BTF_HEADER, at + 1)
    return b""


class Image:
    """The file of a kernel: an ELF file, or an arm64 Image, which is not an ELF file."""

    def __init__(self, data: bytes) -> None:
        if data.startswith(AR):
            data = kernel_of_package(data)
        # True for an arm64 Image: the kernel as it lies in memory, without sections
        self.bare = data[0x38:0x3C] == ARM64
        if not self.bare and not data.startswith(ELF):
            data = _packed_kernel(data)
        if not self.bare and not data.startswith(ELF):
            raise NotReadableError("the kernel in the image is not an ELF file")
        self.data = data

    @property
    def machine(self) -> str:
        """Return the architecture, a key of needs.ONLY."""
        arm64 = self.bare or self.data[0x12:0x14] == struct.pack("<H", EM_AARCH64)
        return "arm64" if arm64 else "x86"

    @cached_property
    def release(self) -> str:
        """Return the release, such as 6.12.117+deb12-amd64, empty if the image has none."""
        found = BANNER.search(self.data)
        return found[1].decode(errors="replace") if found else ""

    @cached_property
    def banner(self) -> bytes:
        """Return the version line that the kernel logs first."""
        found = BANNER.search(self.data)
        return found[0] if found else b""

    @cached_property
    def _sections(self) -> dict[str, tuple[int, int]]:
        try:
            table, size, count, names = struct.unpack_from("<Q10xHHH", self.data, 0x28)
            rows = [
                struct.unpack_from("<II16xQQ", self.data, table + at * size) for at in range(count)
            ]
            base = rows[names][2]
            return {
                self.data[base + name : self.data.index(b"\0", base + name)].decode(): (at, length)
                for name, _, at, length in rows
            }
        except (struct.error, IndexError, ValueError) as err:
            raise NotReadableError(f"the ELF header of the kernel is damaged: {err}") from err

    def section(self, name: str) -> bytes:
        """Return a section by its name; empty if it does not exist. An arm64 Image
        has only .BTF.
        """
        if self.bare:
            return _types_in(self.data)
        begin, length = self._sections.get(name, (0, 0))
        found = self.data[begin : begin + length]
        if len(found) != length:
            raise NotReadableError(f"the kernel image ends in the middle of its section {name}")
        return found
