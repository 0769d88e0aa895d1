# SPDX-License-Identifier: GPL-2.0
"""Small kernels: images without code, with the types and symbols of a list of needs."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Self

from mmpolicy.kernel import btf
from mmpolicy.kernel.needs import Need

RELEASE = "6.12.1-small"
BANNER = "Linux version {} (somebody@somewhere) #1 SMP PREEMPT_DYNAMIC\n"
LINKED = ("register_ftrace_direct", "register_kprobe")
SUFFIXES = {"*": btf.PTR, " const": btf.CONST, " volatile": btf.VOLATILE}


class Types:
    """BTF that grows."""

    def __init__(self) -> None:
        self.strings, self.types, self.count = b"\0", b"", 0
        self.known: dict[str, int] = {"void": 0}

    def _string(self, text: str) -> int:
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def _add(self, name: str, kind: int, members: int, other: int, rest: bytes = b"") -> int:
        place = self._string(name) if name else 0
        self.types += struct.pack("<III", place, kind << 24 | members, other) + rest
        self.count += 1
        return self.count

    def number(self, text: str) -> int:
        """The number of a type as in a prototype."""
        if text not in self.known:
            suffix = next((each for each in SUFFIXES if text.endswith(each)), "")
            inner = self.number(text.removesuffix(suffix)) if suffix else 0
            self.known[text] = (
                self._add("", SUFFIXES[suffix], 0, inner)
                if suffix
                else self._add(text, btf.INT, 0, 8, struct.pack("<I", 64))
            )
        return self.known[text]

    def function(self, name: str, prototype: str) -> None:
        """A function; its arguments have no names."""
        result, _, rest = prototype.partition("(")
        given = [self.number(each) for each in rest.rstrip(")").split(", ") if each]
        returned = self.number(result)
        params = b"".join(struct.pack("<II", 0, each) for each in given)
        self._add(name, btf.FUNC, 0, self._add("", btf.PROTO, len(given), returned, params))

    def structure(self, name: str, members: Mapping[str, str]) -> None:
        """A structure of members of 8 bytes."""
        numbers = {each: self.number(kind) for each, kind in members.items()}
        rest = b"".join(
            struct.pack("<III", self._string(each), number, 64 * at)
            for at, (each, number) in enumerate(numbers.items())
        )
        self._add(name, btf.STRUCT, len(members), 8 * len(members), rest)

    def section(self) -> bytes:
        """The whole section, as in an image."""
        lengths = (0, len(self.types), len(self.types), len(self.strings))
        return struct.pack("<HBBIIIII", btf.MAGIC, 1, 0, 24, *lengths) + self.types + self.strings


def kallsyms(
    names: Iterable[str], fillers: int = 600, aligned: int = 8, pairs: tuple[str, ...] = ()
) -> bytes:
    """The tables, in which each letter is a token, and some pairs of letters are too."""
    letters = [chr(at) if chr(at).isprintable() else "?" for at in range(128)]
    letters += ["?"] * (128 - len(pairs)) + list(pairs)
    texts = [f"t{name}" for name in names] + [f"tfiller_{at}" for at in range(fillers)]
    rows = [_as_tokens(text, letters) for text in texts]
    marks = [len(b"".join(rows[:at])) for at in range(0, len(rows), 256)]
    ends = accumulate(len(letter) + 1 for letter in letters)
    number = struct.pack("<I", len(rows))
    parts = (
        number + bytes(4) if aligned == 8 else number,
        b"".join(rows),
        struct.pack(f"<{len(marks)}I", *marks),
        "".join(f"{letter}\0" for letter in letters).encode(),
        struct.pack("<256H", 0, *list(ends)[:-1]),
    )
    return b"".join(part + bytes(-len(part) % aligned) for part in parts)


def _as_tokens(text: str, letters: list[str]) -> bytes:
    """A name preceded by its length, which takes two bytes for a long name."""
    tokens = bytearray()
    while text:
        token = letters.index(text[:2]) if text[:2] in letters else ord(text[0])
        tokens.append(token)
        text = text.removeprefix(letters[token])
    length = len(tokens)
    head = [length & 0x7F | 0x80, length >> 7] if length > 127 else [length]
    return bytes(head) + tokens


def bare(kernel: Small, before: bytes = b"") -> bytes:
    """An Image of arm64, which has no sections but their contents."""
    head = bytearray(64)
    head[0x38:0x3C] = b"ARM\x64"
    data = bytes(head) + before + kernel.types()
    return data + bytes(-len(data) % 8) + kernel.rodata() + bytes(64)


def elf(sections: Mapping[str, bytes]) -> bytes:
    """An ELF file of 64 bits with these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    data, rows = bytes(64), [bytes(64)]
    for name, content in (*sections.items(), (".shstrtab", names)):
        data += bytes(-len(data) % 8)
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        rows.append(struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, len(data), len(content), 0, 0, 8, 0))
        data += content
    data += bytes(-len(data) % 8)
    head = struct.pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 62, 1, 0, 0, len(data),
                       0, 64, 0, 0, 64, len(rows), len(rows) - 1)  # fmt: skip
    return head + data[64:] + b"".join(rows)


def bzimage(kernel: bytes) -> bytes:
    """A vmlinuz of x86, compressed with gzip, whose last four bytes are its size."""
    packed = gzip.compress(kernel, mtime=0)
    head = bytearray(1024)
    head[0x1F1], head[0x202:0x206] = 1, b"HdrS"
    struct.pack_into("<H", head, 0x206, 0x020F)
    struct.pack_into("<II", head, 0x248, 0, len(packed))
    return bytes(head) + packed


class Small:
    """A kernel that meets all needs; a test removes one."""

    def __init__(self, needs: Iterable[Need], release: str = RELEASE) -> None:
        self.banner = BANNER.format(release)
        self.functions: dict[str, str] = {}
        self.names: set[str] = set(LINKED)
        self.again: list[str] = []  # names that a second symbol has, too
        self.structures: dict[str, dict[str, str]] = {}
        ways: frozenset[str] = frozenset()
        for need in needs:
            if not (ways >= need.when and ways.isdisjoint(need.unless)):
                continue
            one = need.ones[0]
            ways |= one.follows
            if need.row == "MEMBER":
                self.structures.setdefault(need.structure, {})[one.name] = one.kind
            elif need.row != "NOTHING":
                self.names.add(one.name)
                self.functions |= {one.name: one.kind} if one.kind else {}

    def without(self, name: str) -> Self:
        """Remove a function or a variable."""
        self.names.discard(name)
        self.functions.pop(name, None)
        return self

    def types(self) -> bytes:
        """The BTF."""
        types = Types()
        for name, prototype in self.functions.items():
            types.function(name, prototype)
        for name, members in self.structures.items():
            types.structure(name, members)
        return types.section()

    def rodata(self) -> bytes:
        """The banner and the list of symbols, aligned to 8 bytes."""
        banner = self.banner.encode() + bytes(-len(self.banner) % 8)
        return banner + kallsyms(sorted([*self.names, *self.again]))

    def vmlinux(self, *, with_btf: bool = True) -> bytes:
        """The ELF file."""
        return elf({".rodata": self.rodata()} | ({".BTF": self.types()} if with_btf else {}))
