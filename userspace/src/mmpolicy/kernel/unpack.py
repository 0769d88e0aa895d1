# SPDX-License-Identifier: GPL-2.0
"""Decompress kernels and packages."""

from __future__ import annotations

import bz2
import ctypes
import lzma
import zlib
from collections.abc import Callable
from ctypes.util import find_library

MOST = 1 << 30  # most bytes that a decompressed kernel or package may have

_ZSTD = b"\x28\xb5\x2f\xfd"


class NotReadableError(ValueError):
    """The reason why data cannot be read, without the file's name, which the caller adds."""


def _zstd(data: bytes, size: int) -> bytes:
    """Decompress one zstd frame of a given size; the frame itself may not have it."""
    try:
        lib = ctypes.CDLL(find_library("zstd") or "libzstd.so.1")
    except OSError as err:
        raise NotReadableError(
            f"the kernel is compressed with zstd, and the library libzstd is missing: {err}"
        ) from err
    lib.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
    lib.ZSTD_decompress.restype = ctypes.c_size_t
    place = ctypes.create_string_buffer(size)
    length = lib.ZSTD_findFrameCompressedSize(data, ctypes.c_size_t(len(data)))
    found = 0
    if not lib.ZSTD_isError(ctypes.c_size_t(length)):
        found = lib.ZSTD_decompress(place, ctypes.c_size_t(size), data, ctypes.c_size_t(length))
    if found != size:
        raise NotReadableError("the zstd data of the kernel is damaged")
    return place.raw


def _all_of(stream: zlib._Decompress | bz2.BZ2Decompressor | lzma.LZMADecompressor, data: bytes,
            size: int) -> bytes:  # fmt: skip
    return stream.decompress(data, size)


UNPACK: dict[bytes, tuple[str, Callable[[bytes, int], bytes]]] = {
    b"\x1f\x8b": ("gzip", lambda data, size: _all_of(zlib.decompressobj(31), data, size)),
    b"\xfd7zXZ": ("xz", lambda data, size: _all_of(lzma.LZMADecompressor(), data, size)),
    b"\x5d\0\0": ("lzma", lambda data, size: _all_of(lzma.LZMADecompressor(), data, size)),
    b"BZh": ("bzip2", lambda data, size: _all_of(bz2.BZ2Decompressor(), data, size)),
    _ZSTD: ("zstd", _zstd),
}


def unpacked(data: bytes, size: int) -> bytes:
    """Return the decompressed data, which must have the given size."""
    if not 0 < size <= MOST:
        raise NotReadableError(
            f"the compressed kernel claims to have {size} bytes, and 1 to {MOST} are possible"
        )
    for magic, (name, unpack) in UNPACK.items():
        if data.startswith(magic):
            try:
                found = unpack(data, size)
            except NotReadableError:
                raise
            except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as err:
                raise NotReadableError(f"the {name} data of the kernel is damaged: {err}") from err
            if len(found) != size:
                raise NotReadableError(f"the {name} data of the kernel ends early")
            return found
    raise NotReadableError(f"the kernel is compressed in an unknown format ({data[:4].hex()})")
