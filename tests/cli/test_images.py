# SPDX-License-Identifier: GPL-2.0
"""Data read from images of kernels, byte by byte."""

from __future__ import annotations

import ctypes
import gzip
import lzma
import struct
from ctypes.util import find_library
from typing import Any

import pytest

from mmpolicy.kernel import btf, fit
from mmpolicy.kernel.btf import Btf
from mmpolicy.kernel.fit import Listed, kernel_of, running_kernel
from mmpolicy.kernel.image import AR, Image, kernel_of_package
from mmpolicy.kernel.needs import NEVER, Need, One, needs, read_needs
from mmpolicy.kernel.symbols import symbols
from mmpolicy.kernel.unpack import NotReadableError, unpacked

from .fakes import FakeTree, Run
from .kernels import RELEASE, Small, Types, bare, bzimage, elf, kallsyms
from .test_fit import NEEDS, package


def refused(call: Any, *args: Any) -> str:
    """Return why data cannot be read."""
    with pytest.raises(NotReadableError) as found:
        call(*args)
    return str(found.value)


# Types


def members(types: Types, name: str, rows: list[tuple[str, int, int]], flagged: bool = False,
            kind: int = btf.STRUCT) -> int:  # fmt: skip
    """Add a structure of members with a type and an offset."""
    rest = b"".join(
        struct.pack("<III", types._string(each) if each else 0, number, place)
        for each, number, place in rows
    )
    return types._add(name, kind, len(rows) | flagged << 31, 8, rest)


def test_members_of_structures() -> None:
    """Bit fields have their size above the offset; anonymous members are flattened, as in C."""
    types = Types()
    word = types.number("int")
    inner = members(types, "", [("a", word, 0), ("b", word, 32)], kind=btf.UNION)
    const = types._add("", btf.CONST, 0, inner)
    volatile = types._add("", btf.VOLATILE, 0, inner)
    values = types._add("", btf.ENUM, 2, 4, struct.pack("<IiIi", types._string("one"), 1, 0, 2))
    rest = [("", volatile, 256), ("", word, 320), ("", values, 352)]
    members(types, "s", [("x", word, 64), ("", const, 128), *rest])
    members(types, "bits", [("one", word, 1 << 24 | 3), ("two", word, 5 << 24 | 9)], flagged=True)
    members(types, "union", [("u", word, 0)], kind=btf.UNION)
    found = Btf(types.section())
    assert found.members("s") == {"x": ("int", 64), "a": ("int", 128), "b": ("int", 160)}
    assert found.members("bits") == {"one": ("int", 3), "two": ("int", 9)}
    assert found.members("union") is None
    assert found.members("none") is None


def test_the_first_type_is_one_like_others() -> None:
    types = Types()
    members(types, "first", [("wrong", 2, 0)])
    word = types.number("int")
    members(types, "s", [("x", word, 0), ("", word, 64)])
    assert Btf(types.section()).members("s") == {"x": ("int", 0)}
    types = Types()
    types._add("", btf.CONST, 0, 2)
    members(types, "", [("a", 3, 0)])
    word = types.number("int")
    members(types, "s", [("x", word, 0), ("", 1, 64)])
    found = Btf(types.section())
    assert found.members("s") == {"x": ("int", 0), "a": ("int", 64)}
    assert found.text(1) == " const"
    types = Types()
    types._add("", btf.PTR, 0, 0)
    assert Btf(types.section()).text(1) == "void*"


def test_types_in_words() -> None:
    types = Types()
    types.function("f", "void(char const*, long*, int volatile)")
    types.function("g", "char*()")
    types.function("f", "int()")
    deep = types.number("int")
    for _ in range(9):
        deep = types._add("", btf.PTR, 0, deep)
    found = Btf(types.section())
    assert found.prototype("f") == "void(char const*, long*, int volatile)"
    assert found.prototype("g") == "char*()"
    assert found.prototype("h") is None
    assert found.text(deep - 1) == "int********"
    assert found.text(deep) == "********"
    assert found.text(0) == "void"
    assert refused(found.text, 999) == "the BTF of the kernel refers to a type that does not exist"


def test_kinds_of_types_are_passed_over() -> None:
    """Types of each kind are skipped by their own length, so that the following ones are found."""
    types = Types()
    for kind, rest in (
        (btf.ARRAY, 12), (btf.FWD, 0), (btf.TYPEDEF, 0), (btf.RESTRICT, 0), (btf.VAR, 4),
        (btf.FLOAT, 0), (btf.DECL_TAG, 4), (btf.TYPE_TAG, 0),
    ):  # fmt: skip
        types._add("x", kind, 0, 0, bytes(rest))
    for kind, each in ((btf.ENUM, 8), (btf.DATASEC, 12), (btf.ENUM64, 12), (btf.UNION, 12)):
        types._add("x", kind, 2, 0, bytes(2 * each))
    types._add("linked", btf.FUNC, 2, types._add("", btf.PROTO, 0, 0))  # its linkage, no members
    types.function("last", "void()")
    found = Btf(types.section())
    assert [found.prototype(name) for name in ("linked", "last")] == ["void()"] * 2


def test_types_that_are_damaged() -> None:
    types = Types()
    types.function("f", "int()")
    data = types.section()
    assert refused(Btf, data[:23]) == "the kernel was built without BTF"
    assert refused(Btf, b"\0" + data[1:]) == "the BTF of the kernel has an unknown format"
    assert (
        refused(Btf, data[:2] + b"\2" + data[3:]) == "the BTF of the kernel has an unknown format"
    )
    assert refused(Btf, data[:-1]) == "the BTF of the kernel ends early"
    assert Btf(data + b"\0").prototype("f") == "int()"
    types._add("bad", 20, 0, 0)
    assert "a type of unknown kind (20)" in refused(Btf, types.section())
    none = Types()
    none._add("f", btf.FUNC, 0, none.number("int"))
    found = Btf(none.section())
    assert refused(found.prototype, "f") == "the BTF of the kernel has no prototype of f"


# Names


@pytest.mark.parametrize("number", [257, 512, 513, 40_000])
def test_names_that_several_things_have(number: int) -> None:
    names = [f"name_{at}" for at in range(number - 2)] + ["twice", "twice"]
    assert symbols(bytes(8) + kallsyms(names, 0)) == set(names) - {"twice"}


def test_too_few_names_are_no_list() -> None:
    assert ("the symbol table (kallsyms) in the kernel image is missing") in refused(
        symbols, bytes(8) + kallsyms(["a"] * 256, 0)
    )


def test_names_of_the_kernel_that_runs() -> None:
    found = Listed(b"00 T one\n00 t two\n00 T two\n00 T three\t[module]\n00 T one_more\n")
    assert ["one" in found, "two" in found, "three" in found, "o" in found] == [
        True, False, False, False,
    ]  # fmt: skip
    types = Types()
    kernel = running_kernel("1", b"SMP PREEMPT_RT", b"0 T mm_policy_register\n", types.section())
    assert (kernel.release, kernel.real_time, kernel.hooks) == ("1", True, True)
    assert kernel.has("mm_policy_register")
    assert not running_kernel("1", b"SMP PREEMPT", b"0 T x\n", b"").real_time
    assert running_kernel("1", b"", b"0 T x\n", b"").btf is None
    assert refused(running_kernel, "1", b"", b"", b"") == "/proc/kallsyms is not readable"


# Images


def test_where_a_kernel_lies_in_a_vmlinuz() -> None:
    """A kernel lies in a vmlinuz after a number of setup sectors, or after 4 if the number is 0."""
    kernel = elf({".x": b"abc"})
    image = bzimage(kernel)
    assert Image(image).section(".x") == b"abc"
    four = bytearray(image[:1024] + bytes(3 * 512) + image[1024:])
    four[0x1F1] = 0
    assert Image(bytes(four)).section(".x") == b"abc"
    moved = bytearray(image[:1024] + b"1234" + image[1024:])
    struct.pack_into("<I", moved, 0x248, 4)
    assert Image(bytes(moved)).section(".x") == b"abc"
    for protocol, good in ((0x0208, True), (0x0207, False)):
        other = bytearray(image)
        struct.pack_into("<H", other, 0x206, protocol)
        if good:
            assert Image(bytes(other)).section(".x") == b"abc"
        else:
            assert refused(Image, bytes(other)).startswith(
                "the file is neither a kernel image of x86"
            )
    assert refused(Image, image[:-1]) == "the file ends in the middle of the kernel image"
    for length, said in (
        (0, "the file ends"),
        (3, "the file ends"),
        (4, "the file ends"),
        (5, "the gzip"),
    ):
        short = bytearray(image)
        struct.pack_into("<I", short, 0x24C, length)
        assert refused(Image, bytes(short)).startswith(said)
    assert refused(Image, bzimage(b"no ELF")) == "the kernel in the image is not an ELF file"
    assert refused(Image, bytes(2000)).startswith("the file is neither a kernel image of x86")


def test_sections_of_an_image() -> None:
    image = Image(elf({".a": b"one", ".b": b"", ".c": b"three"}))
    assert [image.section(name) for name in (".a", ".b", ".c", ".d")] == [
        b"one",
        b"",
        b"three",
        b"",
    ]
    cut = bytearray(elf({".a": b"one"}))
    table = struct.unpack_from("<Q", cut, 0x28)[0]
    struct.pack_into("<Q", cut, table + 64 + 32, 1 << 40)
    assert refused(Image(bytes(cut)).section, ".a") == (
        "the kernel image ends in the middle of its section .a"
    )
    assert ("the ELF header of the kernel is damaged") in refused(
        Image(b"\x7fELF\x02\x01").section, ".a"
    )


def test_what_an_image_says_of_itself() -> None:
    text = b"\0Linux version \nLinux version 6.1-x (me) #1 SMP\nLinux version 7\n"
    image = Image(elf({".rodata": text}))
    assert (image.release, image.banner) == ("6.1-x", b"Linux version 6.1-x (me) #1 SMP")
    none = Image(elf({".x": b"Linux version"}))
    assert (none.release, none.banner) == ("", b"")
    assert refused(kernel_of, none.data) == "the image does not contain the release of its kernel"
    small = kernel_of(Small(NEEDS, "6.12.9-y").vmlinux())
    assert (small.release, small.real_time, small.hooks) == ("6.12.9-y", False, False)


def test_an_image_of_arm64() -> None:
    """An image of arm64 is no ELF file, and its BTF is found by the header; bytes that only begin
    like BTF are not.
    """
    small = Small(needs("arm64"))
    header = small.types()[:24]
    for before in (b"", header, header[:8] + bytes(16), bytes(40)):
        image = Image(bare(small, before))
        assert image.section(".BTF") == small.types()
        kernel = kernel_of(image.data)
        assert (kernel.machine, kernel.release) == ("arm64", RELEASE)
        assert {each.status for each in fit.fit(kernel, needs("arm64"), set())} == {"fits", "lacks"}
    lacking = kernel_of(bare(small.without("contpte_set_ptes")))
    found = {each.point: each.reasons for each in fit.fit(lacking, needs("arm64"), set())}
    assert found["anon_order"] == ("the kernel has no function contpte_set_ptes",)
    assert Image(bytes(0x38) + b"ARM\x64" + bytes(100)).section(".BTF") == b""
    assert kernel_of(Small(NEEDS).vmlinux()).machine == "x86"


def test_packages() -> None:
    whole = package(b"kernel")
    assert kernel_of_package(whole) == b"kernel"
    assert kernel_of_package(package(b"kernel", "./boot/vmlinuz-7.1+x")) == b"kernel"
    assert ("the Debian package has no kernel") in refused(
        kernel_of_package, package(b"", "./boot/other")
    )
    assert "the Debian package has no kernel" in refused(kernel_of_package, AR)
    assert refused(kernel_of_package, whole[:-20]) == "the file ends early"
    empty = f"{'data.tar':16}{'':32}{0:<10}`\n".encode()
    assert refused(kernel_of_package, AR + empty).startswith(
        "data.tar in the Debian package is damaged"
    )
    assert "the Debian package has no kernel" in refused(kernel_of_package, AR + empty[:-1])
    size = whole.index(b"4         `\n")
    assert refused(kernel_of_package, whole[:size] + b"x" + whole[size + 1 :]) == (
        "the archive in the Debian package is damaged"
    )
    odd = whole.replace(b"4         `\n2.0\n", b"3         `\n2.0\n")
    assert kernel_of_package(odd) == b"kernel"
    data = whole.index(b"\xfd7zXZ")
    damaged = whole[: data + 30] + b"\0\0\0\0" + whole[data + 34 :]
    assert "data.tar.xz in the Debian package is damaged, or of an unknown kind" in refused(
        kernel_of_package, damaged
    )


def test_what_is_packed_with_zstd() -> None:
    """A zstd frame need not state its own size; libzstd is installed wherever a kernel uses it."""
    lib = ctypes.CDLL(find_library("zstd") or "libzstd.so.1")
    data = bytes(range(256)) * 30
    place = ctypes.create_string_buffer(2 * len(data))
    lib.ZSTD_compress.restype = ctypes.c_size_t
    size = lib.ZSTD_compress(
        place, ctypes.c_size_t(len(place)), data, ctypes.c_size_t(len(data)), 3
    )
    packed = place.raw[:size]
    assert unpacked(packed, len(data)) == data
    assert unpacked(packed + b"more", len(data)) == data
    for bad, length in ((packed[:-1], len(data)), (packed, len(data) - 1), (packed, len(data) + 1)):
        assert refused(unpacked, bad, length) == "the zstd data of the kernel is damaged"


def test_what_is_packed_is_named() -> None:
    data = b"x" * 100
    assert refused(unpacked, gzip.compress(data)[:11], 100) == (
        "the gzip data of the kernel ends early"
    )
    assert refused(unpacked, b"\x1f\x8b" + b"\xff" * 20, 100).startswith(
        "the gzip data of the kernel is damaged: Error"
    )
    assert refused(unpacked, lzma.compress(data), 101) == "the xz data of the kernel ends early"
    for size in (0, -1, (1 << 30) + 1):
        assert refused(unpacked, gzip.compress(data), size) == (
            f"the compressed kernel claims to have {size} bytes, and 1 to {1 << 30} are possible"
        )
    assert refused(unpacked, b"abcdef", 5).endswith("in an unknown format (61626364)")


# Needs


def test_the_list_of_needs() -> None:
    text = """
    /* MMP_HOOK(NO, NO) */
MMP_HOOK(ONE, MMP_X, MMP_ALWAYS, { "f", "int(" "void)" }, { "g", "int()", MMP_WAY(NEW) })
MMP_CALL(ONE, MMP_Y, MMP_IF(NEW), { "h", "void()" })
MMP_VARIABLE(TWO, MMP_Z, MMP_UNLESS(NEW), { "v" })
MMP_MEMBER(TWO, MMP_M, MMP_ALWAYS, page, { "m", "int" })
#ifdef SOME
MMP_VARIABLE(TWO, MMP_S, MMP_ALWAYS, { "s" })
#endif
MMP_NOTHING(TWO, MMP_N, "not ever")
"""
    assert read_needs(text) == [
        Need("HOOK", "one", NEVER, NEVER, "",
             (One("f", "int(void)", NEVER), One("g", "int()", frozenset({"NEW"})))),
        Need("CALL", "one", frozenset({"NEW"}), NEVER, "", (One("h", "void()", NEVER),)),
        Need("VARIABLE", "two", NEVER, frozenset({"NEW"}), "", (One("v", "", NEVER),)),
        Need("MEMBER", "two", NEVER, NEVER, "page", (One("m", "int", NEVER),)),
        Need("VARIABLE", "two", NEVER, NEVER, "", (One("s", "", NEVER),), "SOME"),
        Need("NOTHING", "two", NEVER, NEVER, "", (One("not ever", "", NEVER),)),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="a row without an end"):
        read_needs('MMP_HOOK(ONE, MMP_X, { "f"')


def one_point(*needs: Need, change: Any = None) -> fit.Fit:
    """Return the state of a point with these needs."""
    kernel = Small(needs)
    if change:
        change(kernel)
    (found,) = fit.fit(kernel_of(kernel.vmlinux()), list(needs), set())
    return found


def need(row: str, *names: str, kind: str = "int()", structure: str = "", follows: str = "",
         when: str = "", unless: str = "") -> Need:  # fmt: skip
    """Return a need that any of the given alternatives meets."""
    ways = frozenset(filter(None, [follows]))
    ones = tuple(One(name, kind, ways if not at else NEVER) for at, name in enumerate(names))
    return Need(row, "p", frozenset(filter(None, [when])), frozenset(filter(None, [unless])),
                structure, ones)  # fmt: skip


def test_why_a_point_is_lacking() -> None:
    hook = need("HOOK", "f", "g")
    assert one_point(hook) == ("p", "fits", ())
    for change, reason in (
        (lambda k: k.without("f"), "the kernel has no function f or g"),
        (lambda k: k.functions.update(f="char()"), "f has become char()"),
        (lambda k: k.names.discard("f"), "f was not found"),
    ):  # fmt: skip
        assert one_point(hook, change=change) == ("p", "lacks", (reason,))
    variable = need("VARIABLE", "v", "v", kind="")
    assert one_point(variable, change=lambda k: k.without("v")).reasons == (
        "the kernel has no variable v",
    )
    member = need("MEMBER", "m", kind="int", structure="page")
    assert one_point(member).status == "fits"
    for change, reason in (
        (lambda k: k.structures.clear(), "the kernel has no structure page"),
        (lambda k: k.structures.update(page={"n": "int"}), "page has no int m"),
        (lambda k: k.structures.update(page={"m": "char"}), "page.m has become char"),
    ):  # fmt: skip
        assert one_point(member, change=change).reasons == (reason,)
    assert one_point(need("NOTHING", "never")).reasons == ("never",)


def test_needs_of_one_way_alone() -> None:
    way = need("HOOK", "f", follows="NEW")
    only, never = need("NOTHING", "if", when="NEW"), need("NOTHING", "unless", unless="NEW")
    assert one_point(way, only).reasons == ("if",)
    assert one_point(way, never).reasons == ()
    other = need("HOOK", "f")
    assert one_point(other, only).reasons == ()
    assert one_point(other, never).reasons == ("unless",)


def test_a_file_is_not_looked_for_where_kernels_are(run: Run, tree: FakeTree) -> None:
    told = run("doctor", "--kernel", "./no/file")
    assert told.code == 1
    assert "/boot" not in told.err
