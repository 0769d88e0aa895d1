# SPDX-License-Identifier: GPL-2.0
"""`doctor --kernel`: the features of a kernel that does not run, from its image alone."""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mmpolicy.kernel.needs import ONLY, Need, needs, read_needs, tried
from mmpolicy.verbs.fit import PLACES

from .fakes import FakeTree, Run
from .kernels import RELEASE, Small, bzimage

MODULE = Path(__file__).parents[2] / "module/provider"
SITES = {name: MODULE.parent / f"arch/{name}/site.h" for name in ONLY}
MACRO = re.compile(r"^#define (\w+)", re.MULTILINE)
NEEDS = needs()
POINTS = list(dict.fromkeys(need.point for need in NEEDS))
HOOKED = {need.point for need in NEEDS if need.row == "HOOK"}
Break = Callable[[Small], object]


def write(folder: Path, data: bytes) -> str:
    path = folder / "vmlinuz"
    path.write_bytes(data)
    return str(path)


def found(run: Run, folder: Path, kernel: Small) -> tuple[int, dict[str, tuple[str, str]]]:
    result = run("doctor", "--json", "--kernel", write(folder, bzimage(kernel.vmlinux())))
    rows = result.json["points"]
    return result.code, {row["point"]: (row["status"], row["why"] or "") for row in rows}


AS_IN_5_10 = {"ftrace_ops": {"flags": "long unsigned int"}}


def test_the_list_is_that_of_the_module() -> None:
    """The list of needs is that of the module: each of its rows is read, and each name in it."""
    text = re.sub(r"/\*.*?\*/", "", (MODULE / "needs.h").read_text(), flags=re.DOTALL)
    rows = re.findall(r"^MMP_(\w+)\((\w+), (\w+)", text, re.MULTILINE)
    every = read_needs(text)
    assert [(row, point.lower()) for row, point, _ in rows] == [n[:2] for n in every]
    assert {need.only for need in every} == {"", *ONLY.values()}
    macros = {name: set(MACRO.findall(path.read_text())) for name, path in SITES.items()}
    assert {name: found & {*ONLY.values()} for name, found in macros.items()} == {
        name: {macro} for name, macro in ONLY.items()
    }
    names = [one.name for need in every for one in need.ones]
    assert names == re.findall(r'(?:\{|, )\s*"([^"]+)"', re.sub(r'",\s*"[^"]+"', '"', text))
    ways = {way for need in NEEDS for one in need.ones for way in one.follows}
    asked = {way for need in NEEDS for way in need.when | need.unless}
    assert asked <= ways
    enum = (MODULE / "direct.h").read_text()
    assert ways == set(re.findall(r"^\tMMP_WAY_(\w+),", enum, re.MULTILINE))
    assert len(tried()) == (MODULE / "tested.h").read_text().count("0x")


def test_all_that_is_needed_is_there(run: Run, tmp_path: Path) -> None:
    code, points = found(run, tmp_path, Small(NEEDS))
    assert (code, list(points)) == (0, POINTS)
    assert {point for point, (status, _) in points.items() if status == "fits"} == HOOKED
    assert "untested=1" in points["anon_order"][1]
    text = run("doctor", "--kernel", str(tmp_path / "vmlinuz")).out
    assert text.startswith(f"Linux {RELEASE}: ")
    assert text.endswith("4 of 5 points are possible (exit 0)\n")
    brief = run("doctor", "--brief", "--kernel", str(tmp_path / "vmlinuz"))
    assert brief.out == (
        f"mmpolicy: Linux {RELEASE} has anon_order (untried) thp_gfp compact madv_free;"
        " without bulk\n"
    )


def test_a_build_that_was_tried(run: Run, tmp_path: Path) -> None:
    """On a build that was tested, only the point that depends on the machine code is reported."""
    points = found(run, tmp_path, Small(NEEDS, min(tried())))[1]
    assert points.pop("anon_order") == ("tested", "")
    assert {points[point] for point in HOOKED - {"anon_order"}} == {("fits", "")}


def one_less(need: Need) -> list[Break]:
    """Possible changes of a later kernel to one of the needs of a point."""
    one = need.ones[0]
    if need.row == "MEMBER":
        return [
            lambda kernel: kernel.structures[need.structure].pop(one.name),
            lambda kernel: kernel.structures[need.structure].update({one.name: "other"}),
            lambda kernel: kernel.structures.pop(need.structure),
        ]
    gone: Break = lambda kernel: kernel.without(one.name)  # noqa: E731
    again: Break = lambda kernel: kernel.again.append(one.name)  # noqa: E731
    if need.row == "VARIABLE":
        return [gone, again]
    return [
        gone,
        again,
        lambda kernel: kernel.functions.update({one.name: f"other*{one.kind}"}),
        lambda kernel: kernel.functions.update({one.name: one.kind.replace(")", ", other)")}),
        lambda kernel: kernel.functions.pop(one.name),
        lambda kernel: kernel.names.discard(one.name),  # the compiler has renamed it
    ]


def applies(need: Need) -> bool:
    """Return whether a need applies if the first alternative of each other need is met."""
    return need.row != "NOTHING" and not need.unless


@pytest.mark.parametrize(
    "need", [need for need in NEEDS if applies(need)], ids=lambda need: need.ones[0].name
)
def test_one_change_takes_one_point(run: Run, tmp_path: Path, need: Need) -> None:
    """One change of a prototype, a member or a name makes one point unavailable, and the reason
    names the change.
    """
    for change in one_less(need):
        kernel = Small(NEEDS)
        change(kernel)
        _, points = found(run, tmp_path, kernel)
        lacking = {point for point, (status, _) in points.items() if status == "lacks"}
        assert lacking - {"bulk"} == {need.point}
        assert need.ones[0].name in points[need.point][1] or need.structure in points[need.point][1]


def test_each_that_would_do(run: Run, tmp_path: Path) -> None:
    """A point is available with any form of a function that the module knows."""
    for need in NEEDS:
        for at, one in enumerate(need.ones[1:], 1):
            others = need._replace(ones=need.ones[at:])
            kernel = Small(others if each is need else each for each in NEEDS)
            assert found(run, tmp_path, kernel)[1][need.point][0] == "fits", one


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda k: k.names.discard("register_ftrace_direct"), "DIRECT_CALLS"),
        (lambda k: k.names.discard("register_kprobe"), "CONFIG_KPROBES"),
        (lambda k: k.structures.update(AS_IN_5_10), "register_ftrace_direct() of Linux 6.4"),
        (lambda k: setattr(k, "banner", k.banner.replace("SMP", "SMP PREEMPT_RT")), "PREEMPT_RT"),
    ],
)
def test_what_takes_all_points(run: Run, tmp_path: Path, change: Break, reason: str) -> None:
    kernel = Small(NEEDS)
    change(kernel)
    code, points = found(run, tmp_path, kernel)
    assert code == 3 and all(reason in why for _, why in points.values())


def test_the_hooks_give_all_points(run: Run, tmp_path: Path) -> None:
    kernel = Small(NEEDS)
    kernel.names.add("mm_policy_register")
    assert set(found(run, tmp_path, kernel)[1].values()) == {("fits", "")}


def test_without_btf(run: Run, tmp_path: Path) -> None:
    image = write(tmp_path, bzimage(Small(NEEDS).vmlinux(with_btf=False)))
    result = run("doctor", "--json", "--kernel", image)
    assert (result.code, {row["why"] for row in result.json["points"]}) == (
        3, {"needs a kernel with BTF"},
    )  # fmt: skip


def package(content: bytes, name: str = "./boot/vmlinuz-1") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:xz") as files:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        files.addfile(entry, io.BytesIO(content))
    archive = b"!<arch>\n"
    for member, data in (("debian-binary", b"2.0\n"), ("data.tar.xz", file.getvalue())):
        head = f"{member:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n"
        archive += head.encode() + data + b"\n" * (len(data) % 2)
    return archive


@pytest.mark.parametrize("wrap", [bytes, bzimage, package, lambda k: package(bzimage(k))])
def test_kinds_of_files(run: Run, tmp_path: Path, wrap: Callable[[bytes], bytes]) -> None:
    image = write(tmp_path, wrap(Small(NEEDS).vmlinux()))
    assert run("doctor", "--kernel", image).code == 0


@pytest.mark.parametrize("place", PLACES)
def test_an_installed_kernel_by_its_release(run: Run, tree: FakeTree, place: str) -> None:
    tree.put(place.format(RELEASE), bzimage(Small(NEEDS).vmlinux()))
    assert run("doctor", "--kernel", RELEASE).code == 0
    assert "/boot/vmlinuz-9.9" in run("doctor", "--kernel", "9.9").err


def cut(data: bytes) -> list[bytes]:
    """Return the beginnings of a file."""
    return [data[: len(data) * part // 16] for part in range(16)]


def damaged(kernel: bytes) -> list[bytes]:
    """Return the file with numbers in it that are too large: offsets, lengths and counts."""
    begin = kernel.index(struct.pack("<H", 0xEB9F))
    places = [*range(0x28, 0x40), *range(begin + 2, begin + 24), *range(begin + 24, begin + 240, 7)]
    return [kernel[:at] + b"\xff" + kernel[at + 1 :] for at in places]


@pytest.mark.parametrize(
    "broken",
    [
        lambda k: cut(k), lambda k: cut(bzimage(k)), lambda k: cut(package(bzimage(k))),
        lambda _: [b"\xff" * 100_000, bytes(100_000), b"\x7fELF\x02\x01" * 999],
        lambda _: [package(b"", "./usr/share/doc/README")],
        lambda k: [bzimage(k)[:1100] + b"x" + bzimage(k)[1101:]],
        lambda k: [bzimage(k)[:0x24C] + bytes([n, 0, 0, 0]) + bzimage(k)[0x250:] for n in range(5)],
    ],
    ids=["vmlinux", "vmlinuz", "package", "garbage", "no-kernel", "damaged", "short"],
)  # fmt: skip
def test_one_clear_error(run: Run, tmp_path: Path, broken: Callable[[bytes], list[bytes]]) -> None:
    for data in broken(Small(NEEDS).vmlinux()):
        image = write(tmp_path, data)
        result = run("doctor", "--kernel", image)
        assert (result.code, result.out) == (1, "")
        first, second = result.err.splitlines()
        damaged = f"the symbols or types (kallsyms, BTF) in kernel image {image} are damaged: "
        assert first.startswith((f"mmpolicy: {image}: ", f"mmpolicy: {damaged}"))
        assert second.startswith("next: give the rel")


def test_no_number_in_an_image_is_believed(run: Run, tmp_path: Path) -> None:
    """However an image is damaged, there is an answer or one clear error."""
    for data in damaged(Small(NEEDS).vmlinux()):
        result = run("doctor", "--kernel", write(tmp_path, data))
        assert result.code in (0, 1, 3)
        assert result.code != 1 or len(result.err.splitlines()) == 2


HOOK = Path(__file__).parents[2] / "debian/kernel/zz-mmpolicy"


@pytest.fixture
def command(tmp_path: Path) -> str:
    """Return a path with the command of this tree."""
    file = tmp_path / "bin/mmpolicy"
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m mmpolicy "$@"\n')
    file.chmod(0o755)
    return f"{file.parent}:{os.environ['PATH']}"


def test_the_hook_says_it_in_one_line(tmp_path: Path, command: str) -> None:
    """The hook of a kernel's package prints one line, and apt goes on whatever the image is."""
    for data, line in ((bzimage(Small(NEEDS).vmlinux()), f"mmpolicy: Linux {RELEASE} has "),
                       (b"nothing", "mmpolicy: ")):  # fmt: skip
        image = write(tmp_path, data)
        env = os.environ | {"PATH": command}
        result = subprocess.run(
            [HOOK, RELEASE, image], env=env, capture_output=True, text=True, check=True
        )
        assert result.stdout == "" and result.stderr.startswith(line)
    without = subprocess.run([HOOK, RELEASE, image], env={"PATH": "/bin"}, check=True)
    assert without.returncode == 0
