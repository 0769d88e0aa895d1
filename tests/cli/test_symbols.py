# SPDX-License-Identifier: GPL-2.0
"""The names in a kernel, from tables that lie anywhere among other data."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from itertools import accumulate

import pytest

from mmpolicy.kernel.symbols import DIGITS, _places, _tokens, symbols
from mmpolicy.kernel.unpack import NotReadableError, unpacked

from .kernels import kallsyms

PAIRS = ("in", "it", "__", "mm", "_s")


def some_names(rng: random.Random, number: int) -> list[str]:
    """Return names of all lengths, the longest as long as C++ and Rust make them."""
    letters = "abinmst_0123456789."
    lengths = [1, 3, 20, 30, 60, 125, 140]
    texts = ["".join(rng.choices(letters, k=rng.choice(lengths))) for _ in range(number - 1)]
    return [*(f"f{at}_{text}" for at, text in enumerate(texts)), "f" + "b" * 500]


@pytest.mark.parametrize("aligned", [4, 8])
@pytest.mark.parametrize("number", [257, 511, 512, 513, 770, 1025])
def test_all_names_are_found(number: int, aligned: int) -> None:
    """All names are found whatever data is around the tables, even data that looks like a part of
    one.
    """
    rng = random.Random(number)
    for before in (0, aligned, 40, 4096):
        names = some_names(rng, number)
        junk = bytes(rng.randrange(1, 256) for _ in range(before))
        decoy = DIGITS + bytes(-len(DIGITS) % 8) if before > 40 else b""
        data = decoy + junk + bytes(8) + kallsyms(names, 0, aligned, PAIRS)
        for behind in (b"", b"\0" * 999, DIGITS * 40):
            assert symbols(data + behind) == set(names)


def damages(tables: bytes) -> list[bytes]:
    """Return damaged lists of names."""
    digits = tables.index(DIGITS)
    return [
        b"", DIGITS, bytes(100_000), DIGITS * 1000, tables[:digits], tables[:-1],
        tables[digits:], tables.replace(DIGITS, bytes(len(DIGITS))), bytes(8) + tables[8:],
        tables[:-512] + tables[-256:] + tables[-512:-256],
    ]  # fmt: skip


def test_what_is_no_list_is_refused() -> None:
    for data in damages(kallsyms(some_names(random.Random(1), 600), 0)):
        with pytest.raises(NotReadableError):
            symbols(data)


def packers() -> dict[str, Callable[[bytes], bytes]]:
    """Return the compressions of kernels that Python supports."""
    import bz2
    import gzip
    import lzma

    return {
        "gzip": gzip.compress, "xz": lzma.compress, "bzip2": bz2.compress,
        "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    }  # fmt: skip


@pytest.mark.parametrize("kind", packers())
def test_what_is_compressed_is_as_long_as_it_says(kind: str) -> None:
    data = bytes(range(256)) * 50
    packed = packers()[kind](data)
    assert unpacked(packed, len(data)) == data
    assert unpacked(packed + b"more", len(data)) == data
    for bad, size in ((packed, len(data) + 1), (packed[: len(packed) // 2], len(data)), (packed, 0),
                      (packed, (1 << 30) + 1), (b"none" + packed, len(data))):  # fmt: skip
        with pytest.raises(NotReadableError):
            unpacked(bad, size)


def test_places_of_tokens_are_those_of_the_table() -> None:
    """Places of tokens are those of the table: each begins after the end of the one before, the
    first after a zero.
    """
    words = [b"%c" % at if at in range(48, 58) else b"t%d" % at for at in range(256)]
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    table = b"".join(word + b"\0" for word in words)
    places = struct.pack("<256H", *starts[:-1])
    whole, digits = b"\0" + table + places, 1 + starts[ord("0")]
    assert _places(whole, 1 + len(table), digits) == tuple(starts[:-1])
    for data in (
        whole[:-1], b"\1" + whole[1:], whole[: starts[1]] + b"x" + whole[starts[1] + 1 :],
        whole[: -len(places)] + b"\1" + places[1:], whole[:-4] + places[-2:] + places[-4:-2],
    ):  # fmt: skip
        assert _places(data, 1 + len(table), digits) == ()
    assert _places(whole[1:], len(table), digits - 1) == ()


@pytest.mark.parametrize("aligned", [4, 8])
def test_tokens_are_found_wherever_they_lie(aligned: int) -> None:
    """Tokens are found wherever they lie: their offsets follow at the next multiple of
    4, or of 8.
    """
    words = [b"%c" % at if at in range(48, 58) else b"t%d" % at for at in range(256)]
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    table = b"".join(word + b"\0" for word in words)
    for lead in range(1, 26):
        data = bytes(lead) + table
        data += bytes(-len(data) % aligned) + struct.pack("<256H", *starts[:-1])
        assert _tokens(data) == (lead, words)
        assert _tokens(data[:-1]) is None
