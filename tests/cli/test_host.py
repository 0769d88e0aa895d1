# SPDX-License-Identifier: GPL-2.0
"""Reads and writes on a host, piece by piece: bounds, errors, and permissions."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from mmpolicy.cli import main
from mmpolicy.errors import Error, Exit, explain
from mmpolicy.host import disk, evidence, huge, machine, tracing
from mmpolicy.host.calibration import FILE, Calibration, FaultCost, keep_calibration
from mmpolicy.host.calibration import read_calibration as kept
from mmpolicy.host.cgroups import (
    Finder,
    cgroup_mount,
    cgroup_paths,
    cgroup_pids,
    charging,
    find_cgroup,
)
from mmpolicy.host.files import CONTROL, SPLIT, TRACING, Tree, parts_of, split_text
from mmpolicy.host.hooked import others
from mmpolicy.host.kmod import APPLY_BLACKLIST, Kmod
from mmpolicy.host.knobs import check_value, choices, chosen, find_knobs, names_of, read_knobs
from mmpolicy.host.processes import cgroup_of, start_of
from mmpolicy.host.service import show_units
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.lazily import memory_of_cgroup, memory_of_process
from mmpolicy.render import GAP, blocks, table

from .fakes import MODULE_DIR, THP, VM, FakeLib, FakeTree, Run

MOUNTS = "/proc/self/mountinfo"


@pytest.fixture
def plain(tree: FakeTree) -> Tree:
    """Return these files without the model of the kernel."""
    return Tree(str(tree.root))


def raised(call: Any, *args: Any) -> Error:
    """Return the error that a call raises."""
    with pytest.raises(Error) as found:
        call(*args)
    return found.value


# Files


@pytest.mark.parametrize("path", ["a//b", "", "a/./b", "..", "a/..", "a\0b", "/a", "a/"])
def test_paths_that_lead_elsewhere(path: str) -> None:
    assert (raised(parts_of, path).exit_code, raised(parts_of, path).next_step) == (
        2, "give a path without '..'",
    )  # fmt: skip


def test_writes_go_to_our_files_alone(plain: Tree, tree: FakeTree) -> None:
    tree.put(f"{CONTROL}/x", "old and longer")
    plain.write(f"{CONTROL}/x", "new")
    assert plain.read_bytes(f"{CONTROL}/x") == b"new\n"
    plain.tune(f"{VM}/min_free_kbytes", "5")
    assert plain.read(f"{VM}/min_free_kbytes") == "5"
    tree.put(SPLIT, "")
    plain.split(7, 4096, 8192)
    assert plain.read(SPLIT) == split_text(7, 4096, 8192) == "7,0x1000,0x2000,0"
    for call, path in (
        (plain.write, f"{VM}/min_free_kbytes"), (plain.write, SPLIT), (plain.write, "/etc/x"),
        (plain.write, CONTROL), (plain.write, f"{CONTROL}x/y"), (plain.tune, f"{CONTROL}/x"),
        (plain.tune, SPLIT), (plain.store, f"{SPLIT}/x"), (plain.write, f"{CONTROL}/../x"),
    ):  # fmt: skip
        assert raised(call, path, "1").exit_code == Exit.USAGE
    link = tree.real(f"{CONTROL}/link")
    link.symlink_to(tree.real(f"{VM}/min_free_kbytes"))
    assert "ELOOP" in raised(plain.write, f"{CONTROL}/link", "9").message
    assert plain.read(f"{VM}/min_free_kbytes") == "5"


def test_directories_and_links(plain: Tree, tree: FakeTree) -> None:
    for name in ("b/x", "a/x"):
        tree.put(f"/d/{name}", "")
    tree.put("/d/file", "")
    tree.real("/d/link").symlink_to(tree.real("/d/a"))
    assert plain.names("/d") == ["a", "b", "file", "link"]
    assert plain.dirs("/d") == ["a", "b"]
    assert plain.inodes("/d")["a"] == tree.real("/d/a").stat().st_ino == plain.inode("/d", "a")
    assert plain.inode("/d") == tree.real("/d").stat().st_ino
    assert [plain.inode("/d", path) for path in ("link", "file", "../d", "c", "a/")] == [0] * 5
    assert raised(plain.names, "/none").exit_code == Exit.LACKING
    assert (plain.exists("/d/file"), plain.exists("/d/no")) == (True, False)
    assert (plain.is_dir("/d"), plain.is_dir("/d/file")) == (True, False)


def test_which_links_lead_where(plain: Tree, tree: FakeTree) -> None:
    tree.real("/fd").mkdir(parents=True)
    for name, where in (("1", "anon_inode:x"), ("2", "/dev/null"), ("3", "/dev/null")):
        tree.real(f"/fd/{name}").symlink_to(where)
    assert plain.links("/fd") == {"anon_inode:x", "/dev/null"}


def test_parts_of_a_file(plain: Tree, tree: FakeTree) -> None:
    tree.put("/x", b"0123456789")
    assert [plain.read_at("/x", 3, at) for at in (0, 8, 20)] == [b"012", b"89", b""]
    assert plain.read_at("/x", 3) == b"012"
    assert "cannot read" in raised(plain.reader, "/none").message
    tree.put("/text", b" \xff a \n")
    assert plain.read("/text") == "\ufffd a"


def test_what_is_a_knob(plain: Tree, tree: FakeTree) -> None:
    for mode, knob in ((0o644, True), (0o600, True), (0o400, False), (0o200, False)):
        tree.put("/x", "1")
        tree.real("/x").chmod(mode)
        assert plain.is_knob("/x") == knob
    tree.real("/link").symlink_to("x")
    assert not plain.is_knob("/link")
    assert not plain.is_knob("/proc")


def test_an_instance_of_tracing_that_was_left(plain: Tree, tree: FakeTree) -> None:
    """An instance of tracing that was left is created again, as its settings are unknown; it is
    removed on an error, too.
    """
    above = tree.real(TRACING).parent
    assert raised(plain.tracing().__enter__).exit_code == Exit.LACKING
    above.mkdir(parents=True)
    with plain.tracing():
        assert tree.real(TRACING).is_dir()
    assert not tree.real(TRACING).exists()
    tree.real(TRACING).mkdir()
    os.utime(tree.real(TRACING), (1, 1))
    with pytest.raises(KeyError), plain.tracing():
        assert tree.real(TRACING).stat().st_mtime > 1
        raise KeyError
    assert list(above.iterdir()) == []


def test_a_file_is_kept_as_a_whole(plain: Tree, tree: FakeTree) -> None:
    tree.put("/k/x.new", "left by somebody who was killed")
    plain.keep("/k/x", "one")
    plain.keep("/k/x", "two")
    assert (plain.read_bytes("/k/x"), plain.names("/k")) == (b"two", ["x"])
    assert stat.S_IMODE(tree.real("/k/x").stat().st_mode) == 0o600
    plain.keep("/deep/er/x", "", 0o644)
    assert stat.S_IMODE(tree.real("/deep/er/x").stat().st_mode) == 0o644
    plain.drop("/k/x")
    assert plain.names("/k") == []
    assert raised(plain.drop, "/k/x").exit_code == Exit.FAILED


def test_lines_that_are_added(plain: Tree, tree: FakeTree) -> None:
    """A line that was cut off stays, and the next one is a line of its own."""
    assert plain.append("/var/l", lambda text: f"a{len(text)}") == "a0\n"
    tree.real("/var/l").write_text("a0\nhal")
    assert plain.append("/var/l", lambda text: f"b{len(text)}") == "a0\nhal\nb6\n"
    assert plain.read_bytes("/var/l") == b"a0\nhal\nb6\n"
    assert stat.S_IMODE(tree.real("/var/l").stat().st_mode) == 0o600


def test_locks_say_who_has_them(plain: Tree, tree: FakeTree) -> None:
    assert plain.holder("/run/l") == ""
    with plain.locked("/run/l", "me, for now"):
        assert plain.holder("/run/l") == "me, for now"
        told = raised(plain.locked("/run/l", "other").__enter__)
        assert told.message.endswith("/run/l is locked by me, for now")
        assert told.next_step == "wait until that process ends"
        tree.real("/run/l").write_text("")
        assert plain.holder("/run/l") == "another process"
    assert plain.holder("/run/l") == ""
    assert plain.read_bytes("/run/l") == b""
    with pytest.raises(KeyError), plain.locked("/run/l", "me"):
        raise KeyError
    with plain.locked("/run/l", "again"), plain.locked("/run/m", "me", inf):
        assert plain.holder("/run/m") == "me"


# Files named by an operator


def test_files_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text("b")
    (tmp_path / "a.toml").write_text("ä")
    (tmp_path / "a.txt").write_bytes(b"\xff")
    names = [str(tmp_path / name) for name in ("a.toml", "b.toml")]
    assert disk.files_of(str(tmp_path)) == names
    assert disk.files_of(names[0]) == names[:1]
    assert disk.read_given(names[0]) == "ä"
    bad = raised(disk.read_given, str(tmp_path / "a.txt"))
    assert (bad.exit_code, bad.next_step) == (Exit.FAILED, "save the file as UTF-8")
    assert raised(disk.read_given, str(tmp_path)).next_step == (
        "give the path of a file, not of a directory"
    )
    assert raised(disk.read_given, str(tmp_path / "no")).exit_code == Exit.FAILED
    assert [disk.is_there(name) for name in ("-", names[0], f"{names[0]}x")] == [True, True, False]


def test_files_that_are_saved(tmp_path: Path) -> None:
    new = tmp_path / "new"
    old = os.umask(0o027)
    try:
        disk.save_as(new, b"x")
    finally:
        os.umask(old)
    assert (new.read_bytes(), stat.S_IMODE(new.stat().st_mode)) == (b"x", 0o640)
    assert list(tmp_path.iterdir()) == [new]
    told = raised(disk.save_as, tmp_path / "no/new", b"x")
    assert (told.exit_code, told.next_step) == (
        Exit.FAILED, "create the directory of the file, or give another name",
    )  # fmt: skip
    (tmp_path / "link").symlink_to(new)
    assert "ELOOP" in raised(disk.save_as, tmp_path / "link", b"y").message
    assert new.read_bytes() == b"x"


def test_a_file_that_is_replaced_keeps_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "fchown", lambda _file, *owner: given.append(owner))
    for owner in ((os.geteuid(), os.getegid()), (4321, 1234)):
        disk.replace_file(tmp_path / "file", tmp_path / "new", b"x", 0o640, owner)
    assert given == [(4321, 1234)]


# Errors


def test_errors_say_what_failed_where_and_what_next() -> None:
    found = explain(errno.EACCES, "read /x", {errno.EACCES: (Exit.DENIED, "be root")}, "/x")
    assert (found.exit_code, found.errno, found.next_step) == (4, errno.EACCES, "be root")
    assert found.message == "cannot read /x: EACCES (Permission denied)"
    other = explain(errno.EIO, "read /x", {}, "/x")
    assert other.exit_code == Exit.FAILED
    assert "EIO" in other.message


@pytest.mark.parametrize(
    ("path", "root", "hint"),
    [("/proc/1/x", True, (
        "root has no access to this process here"
    )), ("/proc/1/x", False, "run the command as root"),
     ("/sys/x", True, "run the command as root"), ("/process", True, "run the command as root")],
)  # fmt: skip
def test_root_is_not_told_to_be_root(
    monkeypatch: pytest.MonkeyPatch, path: str, root: bool, hint: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    err = OSError(errno.EACCES, "")
    found = disk.explain_file(err, "read", Path(path), disk.KEEP_REMEDIES)
    assert found.next_step.startswith(hint)
    gone = disk.explain_file(OSError(errno.ENOENT, ""), "read", Path(path), disk.KEEP_REMEDIES)
    assert gone.next_step == "create the directory of the file, or give another name"


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(errno.EIO, "x", "/a/b"), "cannot use /a/b: EIO"),
     (OSError(errno.EIO, "x"), "cannot print: EIO")],
)  # fmt: skip
def test_what_the_system_refuses_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def fail(*_args: Any, **_more: Any) -> None:
        raise error

    run("--help")
    monkeypatch.setattr("mmpolicy.verbs.look.emit_points", fail)
    monkeypatch.setattr("mmpolicy.verbs.group._print_no_more", lambda: None)
    result = run("list")
    assert (result.code, said in result.err) == (1, True), result.err


def test_a_program_may_call_it(tree: FakeTree, capsys: pytest.CaptureFixture[str]) -> None:
    """If a program calls the command as a function, the program handles errors itself."""
    app = machine.Host(tree)
    main.main(["list"], "other", standalone_mode=False, obj=app)
    assert "anon_order" in capsys.readouterr().out
    with pytest.raises(Error):
        main.main(["show", "none"], "other", standalone_mode=False, obj=app)
    with pytest.raises(SystemExit) as ended:
        main.main(["show", "none"], "other", obj=app)
    assert ended.value.code == 2
    assert "mmpolicy" in capsys.readouterr().err


# Cgroups and processes


@pytest.mark.parametrize(
    ("mounts", "mount"),
    [
        ("cgroup2 /a\\040b", "/a b"),
        ("tmpfs /cgroup2\ncgroup /v1\ncgroup2 /v2", "/v2"),
        ("cgroup2 /part rw /x\ncgroup2 /v2", "/v2"),
    ],
)
def test_where_cgroups_are(tree: FakeTree, mounts: str, mount: str) -> None:
    tree.mount(*mounts.splitlines())
    tree.put(MOUNTS, f"bad\n1 2 - cgroup2\n{tree.read(MOUNTS)}")
    assert cgroup_mount(tree) == mount


@pytest.mark.parametrize("needs", (cgroup_mount, charging))
def test_without_cgroups(tree: FakeTree, needs: Callable[..., object]) -> None:
    tree.mount("tmpfs /x")
    assert raised(needs, tree).next_step == "mount -t cgroup2 none /sys/fs/cgroup"
    tree.mount("cgroup /x")
    assert "unified_cgroup_hierarchy=1" in raised(needs, tree).next_step


def test_how_cgroups_are_named(tree: FakeTree) -> None:
    for path in ("/system.slice/web.service", "/user.slice/u.service/web.service", "/one.scope/x",
                 "/a.slice/b.slice/y.service", "/twice.slice/z", "/z"):  # fmt: skip
        tree.make_cgroup(path)
    number = {path: name for name, path in cgroup_paths(tree).items()}
    web = number["/system.slice/web.service"]
    for given in ("web", "web.service", "/system.slice/web.service", "system.slice/web.service/",
                  "/sys/fs/cgroup/system.slice/web.service"):  # fmt: skip
        assert str(find_cgroup(tree, given).number) == web
    for given, path in (("x", "/one.scope/x"), ("y", "/a.slice/b.slice/y.service"),
                        ("/sys/fs/cgroup", "/"), ("/sys/fs/cgroup/", "/"), ("/", "/")):  # fmt: skip
        assert str(find_cgroup(tree, given).number) == number[path]
    for given in ("", "none", "/none", "..", "/system.slice/../z"):
        told = raised(find_cgroup, tree, given)
        assert f"there is no cgroup '{given}' in " in told.message
        assert told.exit_code == Exit.USAGE
    tree.make_cgroup("/c.slice/web.service")
    several = raised(find_cgroup, tree, "web")
    assert several.message.startswith(
        "several cgroups have the name 'web': /c.slice/web.service, /s"
    )


def test_only_a_bare_name_walks_the_tree(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.make_cgroup("/a/b")
    finder = Finder(tree)
    monkeypatch.setattr(tree, "inodes", lambda _path: pytest.fail("it walks"))
    assert finder.find("/a/b")
    assert "no cgroup '/a/c'" in raised(finder.find, "/a/c").message


def test_a_cgroup_whose_name_is_no_text(tree: FakeTree) -> None:
    tree.make_cgroup("/a")
    tree.make_cgroup("/\udcff\udcfe")
    assert sorted(cgroup_paths(tree).values()) == ["/", r"/\xff\xfe", "/a"]
    assert huge.huge_of_cgroups(tree) == {}


def test_processes_of_cgroups(tree: FakeTree) -> None:
    for path, pids in (("/a", "1 2"), ("/a/b", "3"), ("/a/c", "")):
        tree.make_cgroup(path)
        tree.put(f"/sys/fs/cgroup{path}/cgroup.procs", pids)
    tree.remove("/sys/fs/cgroup/a/c/cgroup.procs")
    tree.make_cgroup("/ab")
    assert sorted(cgroup_pids(tree, "/a")) == sorted(cgroup_pids(tree, "/a/")) == ["1", "2", "3"]
    rollup = "Rss: {} kB\nPss: 7 kB\nLazyFree: {} kB"
    tree.put("/proc/1/smaps_rollup", rollup.format(100, 30))
    tree.put("/proc/3/smaps_rollup", rollup.format(50, 0))
    assert memory_of_cgroup(tree, "/a", Holds(tree)) == ("cgroup /a", 2, 150, 30, 120, 0, 0)
    assert memory_of_process(tree, 1, Holds(tree)) == ("process 1", 1, 100, 30, 70, 0, 0)
    tree.put("/proc/2/stat", "")
    assert memory_of_process(tree, 2, Holds(tree)) == ("process 2", 0, 0, 0, 0, 0, 0)
    assert raised(memory_of_process, tree, 9, Holds(tree)).message == "there is no process 9"


@pytest.mark.parametrize("number", [errno.ESRCH, errno.ENOENT, errno.EACCES])
def test_a_process_that_ends_while_it_is_read(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tree.put("/proc/1/stat", "")
    error = explain(number, "read /proc/1/smaps_rollup", {})
    monkeypatch.setattr(tree, "read", lambda _path: (_ for _ in ()).throw(error))
    if number == errno.EACCES:
        assert raised(memory_of_process, tree, 1, Holds(tree)) is error
    else:
        assert memory_of_process(tree, 1, Holds(tree)).processes == 0


def test_when_a_process_began(tree: FakeTree) -> None:
    fields = " ".join(str(each) for each in range(1, 25))
    tree.put("/proc/7/stat", f"7 (a) b (c)) S {fields}")
    assert start_of(tree, 7) == 19
    tree.put("/proc/7/stat", "7 (x) S 1 2 3")
    assert start_of(tree, 7) is None
    tree.put("/proc/7/stat", "7 (x) S " + "1 " * 18 + "x 5")
    assert (start_of(tree, 7), start_of(tree, 8)) == (None, None)
    tree.put("/proc/7/cgroup", "3:memory:/v1\n0::/v2")
    assert cgroup_of(tree, 7) == "/v2"
    tree.put("/proc/7/cgroup", "3:memory:/v1")
    assert cgroup_of(tree, 7) == ""


# The kernel's own knobs and figures


def test_knobs_and_their_names(tree: FakeTree) -> None:
    assert [chosen(text) for text in ("a [b] c", "[a] [b]", "1 2", "[]x")] == [
        "b", "[a] [b]", "1 2", "[]x",
    ]  # fmt: skip
    tree.put(f"{VM}/stat_refresh", "1")
    tree.put(f"{VM}/empty", "")
    found = read_knobs(tree)
    assert found[f"{THP}/enabled"] == "madvise"
    assert found[f"{VM}/lowmem_reserve_ratio"] == "256 256 32"
    for name in ("stat_refresh", "empty", "drop_caches"):
        assert f"{VM}/{name}" not in found
    path = f"{THP}/khugepaged/defrag"
    assert names_of(path) == [
        "transparent_hugepage/khugepaged/defrag", path, "khugepaged/defrag",
    ]  # fmt: skip
    assert find_knobs(found, "hugepages-*/enabled") == [
        f"{THP}/hugepages-2048kB/enabled", f"{THP}/hugepages-64kB/enabled",
    ]  # fmt: skip
    assert find_knobs(found, "vm/min_free_kbytes") == [f"{VM}/min_free_kbytes"]
    assert find_knobs(found, "no") == []
    assert choices(tree, f"{THP}/enabled") == ["always", "madvise", "never"]
    assert choices(tree, f"{VM}/compaction_proactiveness") == ["20"]


@pytest.mark.parametrize(
    ("path", "value", "good"),
    [
        (f"{THP}/enabled", "never", True), (f"{THP}/enabled", "nevr", False),
        (f"{VM}/compaction_proactiveness", "-3", True),
        (f"{VM}/compaction_proactiveness", "x", False),
        (f"{VM}/compaction_proactiveness", " ", False),
        (f"{VM}/lowmem_reserve_ratio", "1 2 3", True),
        (f"{VM}/lowmem_reserve_ratio", "1 2 3x", False),
    ],
)  # fmt: skip
def test_values_for_knobs(tree: FakeTree, path: str, value: str, good: bool) -> None:
    if good:
        assert check_value(tree, path, value) == value
    else:
        assert raised(check_value, tree, path, value).exit_code == Exit.USAGE


def test_events_that_are_usual(tree: FakeTree) -> None:
    names = ("pgfault", "pgfaults", "thp_split_page", "compact_fail", "allocstall_dma", "nr_mapped",
             "nr_anon_pages", "pgmigrate_success", "pgmajfault", "pswpin")  # fmt: skip
    tree.put("/proc/vmstat", "\n".join(f"{name} {n}" for n, name in enumerate(names)))
    assert set(evidence.events(tree, False)) == set(names) - {"pgfaults", "nr_mapped", "pswpin"}
    assert evidence.events(tree, True)["pswpin"] == 9


def test_figures_of_huge_pages(tree: FakeTree) -> None:
    tree.remove(THP)
    for size in (2048, 64, 128):
        tree.put(f"{THP}/hugepages-{size}kB/enabled", "always [never]")
        tree.put(f"{THP}/hugepages-{size}kB/stats/anon_fault_alloc", str(size))
    tree.remove(f"{THP}/hugepages-128kB/stats")
    tree.put(f"{THP}/hugepages-xkB/enabled", "1")
    tree.put(f"{THP}/khugepaged/defrag", "1")
    tree.put(f"{THP}/khugepaged/none", "")
    assert list(evidence.size_folders(tree)) == [64 << 10, 128 << 10, 2048 << 10]
    assert evidence.folios_made(tree) == {64 << 10: 64, 2048 << 10: 2048}
    assert evidence.sizes(tree)["64 kB"] == {
        "set": {"enabled": "never"}, "stats": {"anon_fault_alloc": "64"},
    }  # fmt: skip
    assert evidence.others(tree) == {"hugepages-xkB/enabled": "1", "khugepaged/defrag": "1"}


def test_memory_in_huge_pages() -> None:
    found = huge.huge_in({"anon": "400", "anon_thp": "100", "shmem": "100", "shmem_thp": "25",
                          "file": "50", "file_thp": "50", "odd": "x"})  # fmt: skip
    assert (found.memory["file"], found.huge["file"]) == (50, 50)
    assert found.coverage == 0.25
    assert huge.huge_in({"file": "9"}).coverage is None


@pytest.mark.parametrize(
    ("statm", "comm", "is_one"),
    [("9 1024 0", "qemu-x", True), ("9 1023 0", "qemu-x", False), ("9 1024 0", "aqemu", False),
     ("9", "qemu", False), ("9 x", "qemu", False)],
)  # fmt: skip
def test_who_runs_a_machine(tree: FakeTree, statm: str, comm: str, is_one: bool) -> None:
    tree.put("/proc/7/statm", statm)
    tree.put("/proc/7/comm", comm)
    tree.put("/proc/7/fd/x", "")
    tree.remove("/proc/7/fd/x")
    expected = [(7, comm, 800, 101, 12.6)] if is_one else []
    assert huge.machines(tree, lambda _tree, _pid: (800, 101)).found == expected


def test_who_else_has_our_functions(tree: FakeTree) -> None:
    tree.put(f"{CONTROL}/hooked_functions", "anon_order one\ncompact two\ncompact three")
    for name in ("p/vmlinux/one,1", "p/vmlinux/far,1", "q/vmlinux/one,2", "q/mod/two,1"):
        tree.put(f"/sys/kernel/livepatch/{name}/x", "")
    entries = ("two (1) R\n\tdirect-->bpf_x+0x0/0x1", "three (1)\n\tdirect-->mmp_x+0x0/0x1",
               "other (1)\n\tdirect-->bpf_y+0x0/0x1")  # fmt: skip
    tree.put("/sys/kernel/tracing/enabled_functions", "\n".join(entries))
    assert others(tree) == {"one": ["livepatch p", "livepatch q"], "two": ["bpf_x"]}
    tree.remove("/sys/kernel/tracing")
    tree.remove("/sys/kernel/livepatch")
    assert others(tree) == {}


def test_decisions_of_a_trace() -> None:
    head = " x-7 [0] ..... 1.0: mmpolicy_anon_"
    lines = ["# entries-in-buffer/entries-written: 40/100   #P:2",
             f"{head}order: addr=1000 site=pte order=4 reason=dense_neighbour",
             f"{head}order: addr=2000 site=pmd order=4 reason=dense_neighbour",
             f"{head}order: addr=2000 site=pmd order=9 reason=cap",
             f"{head}shadow: addr=ff00 site=pte order=0 reason=no_neighbour",
             " x-7 [0] ..... 1.0: other: addr=1 site=pte order=0 reason=no_neighbour"]  # fmt: skip
    found = tracing.parse("\n".join(lines))
    assert found.lost == 60
    assert found.decisions == [(False, 0x1000, 4, "dense_neighbour"), (False, 0x2000, 9, "cap"),
                               (True, 0xFF00, 0, "no_neighbour")]  # fmt: skip
    assert tracing.parse("") == ([], 0)


# Costs of faults


def test_costs_of_faults_lie_on_a_line() -> None:
    costs = [FaultCost(2 << 20, 101000, 90000, 130000), FaultCost(4096, 1000, 900, 1050),
             FaultCost(65536, 4000, 3000, 4100)]  # fmt: skip
    found = Calibration(costs)
    assert [found.ns(order) for order in (0, 4, 9)] == [1000, 4000, 101000]
    assert found.ns(2) == pytest.approx(1000 + 3000 * 3 / 15)
    assert found.ns(5) == pytest.approx(4000 + 97000 * 16 / 496)
    assert found.ns(10) == pytest.approx(101000 + 97000 * 512 / 496)
    assert Calibration(costs[1:2]).ns(3) == 8000
    assert found.percent(10_000) == pytest.approx((1, 0.1))
    least, most = found.bounds()
    assert [least.ns(order) for order in (0, 4, 9)] == [900, 4100, 130000]
    assert [most.ns(order) for order in (0, 4, 9)] == [1050, 3000, 90000]
    assert found.saved_s(1e6, {4: 100_000, 9: 10}) == pytest.approx(1 - 0.3 - 0.001)


def test_costs_are_of_this_kernel(tree: FakeTree) -> None:
    release, cost = machine.Host(tree).release(), FaultCost(4096, 1.0, 1.0, 1.0)
    assert kept(tree) is None
    keep_calibration(tree, release, [cost])
    found = kept(tree)
    assert found and found.costs == [cost]
    assert stat.S_IMODE(tree.real(FILE).stat().st_mode) == 0o644
    for kernel, costs in (("other", [cost]), (release, [cost._replace(size=8192)]), (release, [])):
        keep_calibration(tree, kernel, costs)
        assert kept(tree) is None
    for text in ("", "[]", '{"kernel": 1}', f'{{"kernel": "{release}", "faults": [{{"a": 1}}]}}'):
        tree.put(FILE, text)
        assert kept(tree) is None


# Modules and machines


def test_modules_of_another_kernel_are_only_looked_at(tree: FakeTree, lib: FakeLib) -> None:
    kmod = Kmod("/other", lib)
    for call in kmod.insert, lambda name, _options: kmod.remove(name):
        told = raised(call, "mmpolicy", "")
        assert told.message == "/other is not /lib/modules of the running kernel"
        assert told.exit_code == Exit.USAGE
    assert lib.path
    assert kmod.path("mmpolicy") == lib.path.decode()
    assert ("srcversion", "ABC123") in kmod.info("mmpolicy")
    lib.path = None
    assert kmod.path("mmpolicy") is None
    assert raised(kmod.info, "mmpolicy").exit_code == Exit.LACKING
    assert (lib.open_modules, lib.open_lists) == (0, 0)


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [(APPLY_BLACKLIST, 1, "the module mmpolicy is blacklisted in modprobe.d"),
     (-errno.ENOENT, 3, "cannot load module mmpolicy a=b: ENOENT (No such file or directory)"),
     (-errno.EINVAL, 5, "cannot load module mmpolicy a=b: EINVAL (Invalid argument)"),
     (0, 0, ""), (1, 0, "")],
)  # fmt: skip
def test_how_a_load_ends(lib: FakeLib, tree: FakeTree, result: int, code: int, said: str) -> None:
    tree.make_unloaded()
    lib.insert_result = result
    kmod = Kmod(lib=lib)
    if code:
        told = raised(kmod.insert, "mmpolicy", "a=b")
        assert (told.exit_code, told.message) == (code, said)
    else:
        kmod.insert("mmpolicy", "")
        assert tree.is_dir(MODULE_DIR) == (result == 0)
    assert lib.open_modules == 0


def test_what_a_host_is_made_of(tree: FakeTree) -> None:
    tree.put("/proc/cpuinfo", "x: 1\nmodel name\t: A CPU: 2\nflags : a hypervisor b\nmodel name: B")
    tree.put("/proc/meminfo", "MemTotal: 2048 kB")
    found = machine.hardware_of(tree)
    assert (found.cpu, found.virtual, found.memory) == ("A CPU: 2", True, 2 << 20)
    tree.put("/proc/cpuinfo", "flags: ahypervisor")
    found = machine.hardware_of(tree)
    assert (found.cpu, found.virtual) == ("", False)
    for path in ("cpuinfo", "meminfo"):
        tree.remove(f"/proc/{path}")
    found = machine.hardware_of(tree)
    assert (found.cpu, found.virtual, found.memory) == (None, False, None)


def test_systemd_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        wire.bind(str(tmp_path / "s"))
        wire.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "s"))
        machine.tell_ready()
        assert wire.recv(99) == b"READY=1"
        machine.tell_ready()
        with pytest.raises(BlockingIOError):
            wire.recv(99)
        assert "NOTIFY_SOCKET" not in os.environ
    monkeypatch.setenv("NOTIFY_SOCKET", "@none-is-there")
    machine.tell_ready()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file to which a program, which replaces those of systemd, writes its input."""
    for name in ("systemctl", "systemd-run"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/said\n'
                          f'[ ! -e {tmp_path}/fail ] || {{ echo no >&2; exit 1; }}\n')  # fmt: skip
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


def test_systemd_reads_units_and_runs_them(systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.reload_units()
    machine.start_unit(["--a", "b"])
    assert (systemd / "said").read_text() == "systemctl daemon-reload\nsystemd-run --a b\n"
    (systemd / "fail").touch()
    assert "systemctl daemon-reload has failed" in raised(machine.reload_units).message
    told = raised(machine.start_unit, ["x"])
    assert (told.message, told.exit_code) == ("systemd did not start the unit: no", Exit.FAILED)
    (systemd / "bin/systemd-run").write_text("#!/bin/sh\nexit 1\n")
    told = raised(machine.start_unit, ["x"])
    assert told.message == "systemd did not start the unit: the log says why"
    monkeypatch.setenv("PATH", "/none")
    assert raised(machine.start_unit, ["x"]).exit_code == Exit.LACKING
    assert raised(machine.reload_units).exit_code == Exit.FAILED


def test_systemd_waits_for_a_file(systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systemd waits for a file by the installed unit; without it, by a unit of its own."""
    machine.start_path_unit("a", ["x"])
    assert (systemd / "said").read_text() == "systemctl start a.path\n"
    (systemd / "bin/systemctl").write_text("#!/bin/sh\nexit 5\n")
    machine.start_path_unit("a", ["x"])
    assert (systemd / "said").read_text() == "systemctl start a.path\nsystemd-run x\n"
    monkeypatch.setenv("PATH", "/none")
    assert raised(machine.start_path_unit, "a", ["x"]).exit_code == Exit.LACKING


def test_systemd_shows_units(systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If systemd does not answer, no property of a unit is known."""
    (systemd / "bin/systemctl").write_text('#!/bin/sh\necho "$@"\n')
    assert show_units(["--property=Id", "--", "x"]) == "show --property=Id -- x\n"
    (systemd / "bin/systemctl").write_text("#!/bin/sh\necho no\nexit 1\n")
    assert show_units(["x"]) == ""
    monkeypatch.setenv("PATH", "/none")
    assert show_units(["x"]) == ""
    assert machine.Host(Tree("/none")).show_units(["x"]) == ""


def test_only_the_real_host_has_a_log(tree: FakeTree) -> None:
    said: list[str] = []
    machine.Host(tree, log=said.append).log("x")
    assert said == ["x"]
    model = machine.Host(tree)
    assert (model.log("x"), model.reload_units()) == (None, None)
    real = machine.Host(Tree())
    assert (real.log, real.reload_units) == (machine.tell_syslog, machine.reload_units)


# Tables


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the width of the terminal."""
    return lambda columns: monkeypatch.setattr("mmpolicy.render.columns", lambda: columns)


def test_columns_are_aligned(wide: Any) -> None:
    wide(99)
    assert table(("A", "BB"), [("x", 1), ("long", ""), ("\033[31my\033[0m", 2)]) == [
        "A     BB", "x     1", "long", "\033[31my\033[0m     2",
    ]  # fmt: skip


def test_the_last_column_goes_on_in_its_place(wide: Any) -> None:
    row = ("abcdefgh", "one two three four five six seven eight nine")
    whole = 8 + len(GAP) + len(row[1])
    wide(whole)
    assert len(table(("A", "B"), [row])) == 2
    wide(whole - 1)
    lines = table(("A", "B"), [row])
    assert lines[1] == "abcdefgh  one two three four five six seven eight"
    assert lines[2] == "          nine"
    wide(8 + len(GAP) + 30)
    assert table(("A", "B"), [row])[1] == "abcdefgh  one two three four five six"
    assert table(("A", "B"), [(row[0], "")])[1] == "abcdefgh"
    wide(8 + len(GAP) + 29)  # too little room: the last column is printed below
    assert table(("A", "B"), [row])[2:] == [
        "abcdefgh", "    one two three four five six seven", "      eight nine",
    ]  # fmt: skip


def test_columns_that_stand_below(wide: Any) -> None:
    wide(12)
    rows = [("aaaa", "bbbb", "cccc", "dd"), ("a", "b", "-", "-")]
    assert blocks(("A", "B", "C", "D"), rows) == [
        ["A     B", "    C  D"], ["aaaa  bbbb", "    cccc  dd"], ["a     b"],
    ]  # fmt: skip
    wide(3)
    assert blocks(("AAAA", "B"), [("x", "y")]) == [["AAAA", "    B"], ["x", "    y"]]
