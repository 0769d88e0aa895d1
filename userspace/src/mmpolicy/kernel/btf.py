# SPDX-License-Identifier: GPL-2.0
"""Read the types of a kernel from its section .BTF, as module/provider/prototype.c does."""

from __future__ import annotations

import struct
from functools import cached_property

from mmpolicy.kernel.unpack import NotReadableError

MAGIC, VERSION = 0xEB9F, 1
(INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, PROTO, VAR,
 DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64) = range(1, 20)  # fmt: skip
# bytes that follow the header of a BTF type, by kind of the type; none for other kinds
ONCE = {INT: 4, ARRAY: 12, VAR: 4, DECL_TAG: 4}
# bytes of each member of a BTF type, by kind of the type
EACH = {STRUCT: 12, UNION: 12, ENUM: 8, PROTO: 8, DATASEC: 12, ENUM64: 12}
AFTER = {PTR: "*", CONST: " const", VOLATILE: " volatile", RESTRICT: " restrict"}
DEEPEST = 8


class Btf:
    """All types of a kernel by their numbers, read from the bytes of its section .BTF."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 24:
            raise NotReadableError("the kernel was built without BTF")
        magic, version, _, head, types, length, strings, size = struct.unpack_from(
            "<HBBIIIII", data
        )
        if (magic, version) != (MAGIC, VERSION):
            raise NotReadableError("the BTF of the kernel has an unknown format")
        self._data = data
        self._strings, self._end = head + strings, head + strings + size
        self._types = self._number(head + types, head + types + length)

    def _number(self, at: int, end: int) -> list[tuple[int, int, int, int, int]]:
        """Return for each BTF type the offset of its name, its kind, its number of members, its
        size or the type that it refers to, and the offset behind its header. Type 0 is void.
        """
        found = [(0, 0, 0, 0, 0)]
        if max(end, self._end) > len(self._data):
            raise NotReadableError("the BTF of the kernel ends early")
        while at < end:
            name, info, other = struct.unpack_from("<III", self._data, at)
            kind, members = info >> 24 & 0x1F, info & 0xFFFF
            if not 0 < kind <= ENUM64:
                raise NotReadableError(f"the BTF of the kernel has a type of unknown kind ({kind})")
            found.append((name, kind, members, other, at + 12))
            at += 12 + ONCE.get(kind, 0) + members * EACH.get(kind, 0)
        return found

    def _name(self, offset: int) -> str:
        begin = self._strings + offset
        end = self._data.find(b"\0", begin, self._end)
        return self._data[begin : max(end, begin)].decode(errors="replace")

    @cached_property
    def _found(self) -> dict[tuple[int, str], int]:
        kinds = (FUNC, STRUCT, ENUM)
        numbers: dict[tuple[int, str], int] = {}
        for number, (name, kind, *_) in enumerate(self._types):
            if kind in kinds:
                numbers.setdefault((kind, self._name(name)), number)
        return numbers

    def text(self, number: int) -> str:
        """Return a type in C syntax with qualifiers behind it, such as "char const*"."""
        parts: list[str] = []
        while 0 < number < len(self._types) and self._types[number][1] in AFTER:
            if len(parts) == DEEPEST:
                break
            parts.append(AFTER[self._types[number][1]])
            number = self._types[number][3]
        if number >= len(self._types):
            raise NotReadableError("the BTF of the kernel refers to a type that does not exist")
        inside = self._name(self._types[number][0]) if number else "void"
        return inside + "".join(reversed(parts))

    def prototype(self, function: str) -> str | None:
        """Return the prototype of a function as "result(argument, argument)"; None if it does not
        exist.
        """
        number = self._found.get((FUNC, function))
        if number is None:
            return None
        _, kind, count, result, at = self._types[self._types[number][3]]
        if kind != PROTO:
            raise NotReadableError(f"the BTF of the kernel has no prototype of {function}")
        given = (struct.unpack_from("<II", self._data, at + each * 8)[1] for each in range(count))
        return f"{self.text(result)}({', '.join(self.text(each) for each in given)})"

    def members(self, structure: str) -> dict[str, tuple[str, int]] | None:
        """Return type and bit offset of each member of a structure; None if the structure does not
        exist.
        """
        number = self._found.get((STRUCT, structure))
        return None if number is None else dict(self._members(number, 0))

    def _members(self, number: int, before: int) -> list[tuple[str, tuple[str, int]]]:
        """Return the members of a structure, including those of unnamed structures in it."""
        _, _, count, _, at = self._types[number]
        flagged = struct.unpack_from("<I", self._data, at - 8)[0] >> 31
        found: list[tuple[str, tuple[str, int]]] = []
        for each in range(count):
            name, inner, bits = struct.unpack_from("<III", self._data, at + each * 12)
            bits = before + (bits & 0xFFFFFF if flagged else bits)
            if self._name(name):
                found.append((self._name(name), (self.text(inner), bits)))
            else:
                found += self._members(self._unqualified(inner), bits)
        return found

    def _unqualified(self, number: int) -> int:
        while 0 < number < len(self._types) and self._types[number][1] == CONST:
            number = self._types[number][3]
        return number if self._types[number][1] in (STRUCT, UNION) else 0
