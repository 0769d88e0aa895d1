# SPDX-License-Identifier: GPL-2.0
"""Find the symbols of a kernel in the kallsyms tables of its image (scripts/kallsyms.c).

The image does not say where the tables are. But they are adjacent, in the order numbers, names,
markers, tokens, token offsets; and the table of tokens contains the digits as text.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

from mmpolicy.kernel.unpack import NotReadableError

DIGITS = b"".join(b"%d\0" % digit for digit in range(10))
TOKENS, GROUP = 256, 256  # number of tokens, and of symbols between two markers
ALIGNED = 4  # alignment of the tables in bytes; in some kernels it is twice as much
LONGEST = 1 << 15  # most bytes of names after the last marker


def _places(data: bytes, at: int, digits: int) -> tuple[int, ...]:
    """Return the offsets of the tokens, if their table is at this address; else ()."""
    if at + 2 * TOKENS > len(data):
        return ()
    found = struct.unpack_from(f"<{TOKENS}H", data, at)
    begin = digits - found[ord("0")]
    right = found[0] == 0 and list(found) == sorted(found) and data[begin - 1 : begin] == b"\0"
    return found if right and begin > 0 and data[begin + found[1] - 1] == 0 else ()


def _tokens(data: bytes) -> tuple[int, list[bytes]] | None:
    """Return the address of the table of tokens, and the tokens."""
    at = data.find(DIGITS)
    while at >= 0:
        end = at
        for _ in range(ord("0"), TOKENS):
            end = data.find(b"\0", end) + 1
        end += -end % ALIGNED
        for places in (_places(data, end, at), _places(data, end + -end % (2 * ALIGNED), at)):
            if places:
                begin = at - places[ord("0")]
                return begin, [data[begin + x : data.index(b"\0", begin + x)] for x in places]
        at = data.find(DIGITS, at + 1)
    return None


def _marks(data: bytes, end: int) -> list[int]:
    """Return the markers, which are the offsets of each group of names; [] if they are not found.

    The table of markers ends at `end` or 4 bytes before it.
    """
    for last in (end, end - 4):
        found: list[int] = []
        at = last - 4
        while at > 0 and (not found or found[-1] > 0):
            (mark,) = struct.unpack_from("<I", data, at)
            if found and mark >= found[-1]:
                break
            found.append(mark)
            at -= 4
        if found and found[-1] == 0 and len(found) > 1:
            return found[::-1]
    return []


def _names(data: bytes, at: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each name, until the number or the end of the data is reached.

    The length of a long name takes two bytes.
    """
    for _ in range(number):
        head = data[at : at + 2]
        if len(head) < 2:
            return
        length, size = (head[0] & 0x7F | head[1] << 7, 2) if head[0] & 0x80 else (head[0], 1)
        yield at + size, at + size + length
        at += size + length


def _begin(data: bytes, table: int, marks: list[int]) -> tuple[int, int] | None:
    """Return the address of the names and their number, by the count that precedes them."""
    highest = table - 4 * len(marks) - marks[-1]
    for begin in range(highest - highest % ALIGNED, max(highest - LONGEST, ALIGNED), -ALIGNED):
        numbers = struct.unpack_from("<II", data, begin - 2 * ALIGNED)
        wanted = range(GROUP * (len(marks) - 1) + 1, GROUP * len(marks) + 1)
        number = next((each for each in numbers if each in wanted), 0)
        if not number:
            continue
        *_, (_, end) = ((0, begin), *_names(data, begin, GROUP))
        if end - begin == marks[1]:
            return begin, number
    return None


def symbols(data: bytes) -> frozenset[str]:
    """Return the symbols that occur once in a kernel image."""
    found = _tokens(data)
    marks = _marks(data, found[0]) if found else []
    place = _begin(data, found[0], marks) if found and marks else None
    if not found or not place:
        raise NotReadableError(
            "the symbol table (kallsyms) in the kernel image is missing, or has an unknown format"
        )
    texts = (b"".join([found[1][each] for each in data[x:y]]) for x, y in _names(data, *place))
    # The first letter of each text is the symbol's type.
    names = Counter(text[1:].decode(errors="replace") for text in texts)
    return frozenset(name for name, times in names.items() if times == 1)
