# SPDX-License-Identifier: GPL-2.0
"""Cgroups on hosts of each kind: every verb accepts a name that another one prints."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable

import pytest

from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.sources import Reader
from mmpolicy.errors import Error, Exit
from mmpolicy.host import cgroups, huge
from mmpolicy.host.cgroups import Charged, cgroup_pids, find_bindable, find_cgroup
from mmpolicy.host.files import READ_REMEDIES
from mmpolicy.host.processes import cgroup_of
from mmpolicy.memory.space import huge_of

from .fakes import Clock, FakeTree, Run
from .sparse import make_sparse, make_thp

PAGES = 65536
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"
NOTHING = "/sys/fs/cgroup"


def put_v1(tree: FakeTree, path: str, pid: int = 10) -> None:
    """Make a cgroup of version 1 with a process."""
    tree.put(f"{V1}{path}/cgroup.procs", str(pid))
    tree.put(f"{V1}{path}/memory.usage_in_bytes", str(PAGES * 4096))
    kinds = ("rss", "total_rss", "total_rss_huge")
    stat = "\n".join(f"{kind} {PAGES * 4096}" for kind in kinds)
    tree.put(f"{V1}{path}/memory.stat", stat)


def version_2(tree: FakeTree) -> str:
    return "/system.slice/redis.service"


def version_1(tree: FakeTree) -> str:
    tree.remove(NOTHING)
    tree.mount("cgroup /sys/fs/cgroup/cpu rw,cpu", f"cgroup {V1} rw,memory")
    put_v1(tree, "/system.slice/redis.service")
    tree.put("/proc/10/cgroup", "9:cpu:/\n4:memory:/system.slice/redis.service")
    return "/system.slice/redis.service"


def empty_version_2(tree: FakeTree) -> str:
    """Memory is in version 1, with an empty cgroup2 mounted."""
    tree.remove(NOTHING)
    tree.mount(f"cgroup {V1} rw,memory", f"cgroup2 {V2}")
    put_v1(tree, "/api/0c3d")
    tree.put(f"{V2}/cgroup.procs", "10")
    tree.put("/proc/10/cgroup", "4:memory:/api/0c3d\n0::/")
    return "/api/0c3d"


def hybrid(tree: FakeTree) -> str:
    """As systemd sets it up: the service has a cgroup in both."""
    tree.remove(NOTHING)
    tree.mount(f"cgroup {V1} rw,memory", f"cgroup2 {V2}")
    put_v1(tree, "/system.slice/redis.service")
    tree.put(f"{V2}/system.slice/redis.service/cgroup.procs", "10")
    path = "/system.slice/redis.service"
    tree.put("/proc/10/cgroup", f"4:memory:{path}\n1:name=systemd:{path}\n0::{path}")
    return path


def not_accounted(tree: FakeTree) -> str:
    """In version 1 only the root accounts for its memory."""
    tree.remove(NOTHING)
    tree.mount(f"cgroup {V1} rw,memory", f"cgroup2 {V2}")
    put_v1(tree, "/")
    tree.put(f"{V2}/redis.service/cgroup.procs", "10")
    tree.put("/proc/10/cgroup", "4:memory:/\n0::/redis.service")
    return "/redis.service"


def threaded(tree: FakeTree) -> str:
    """Its threads are in cgroups of their own, its memory is charged to their parent."""
    tree.remove(NOTHING)
    for path, kind in (("", "domain threaded"), ("/a", "threaded"), ("/a/b", "threaded")):
        tree.put(f"/sys/fs/cgroup/pool{path}/cgroup.type", kind)
        tree.put(f"/sys/fs/cgroup/pool{path}/cgroup.threads", "10\n12")
    tree.put("/sys/fs/cgroup/pool/cgroup.procs", "10")
    tree.put("/proc/12/status", "Name:\tredis\nTgid:\t10\nPid:\t12")
    tree.put("/proc/10/cgroup", "0::/pool/a/b")
    return "/pool"


def container(tree: FakeTree) -> str:
    """Version 1 in a container: the mount begins at the cgroup of the container."""
    tree.remove(NOTHING)
    tree.mount(f"cgroup {V1} rw,memory /docker/1f")
    put_v1(tree, "/inner")
    tree.put("/proc/10/cgroup", "4:memory:/docker/1f/inner")
    return "/inner"


def colons(tree: FakeTree) -> str:
    return move(tree, "/kubepods.slice:cri-containerd:1f")


def no_text(tree: FakeTree) -> str:
    move(tree, os.fsdecode(b"/a.slice/\xff\xfex"))
    return r"/a.slice/\xff\xfex"


def control_characters(tree: FakeTree) -> str:
    move(tree, "/red\x1b[31m\u200b")
    return r"/red\x1b[31m\xe2\x80\x8b"


def escaped_by_systemd(tree: FakeTree) -> str:
    return move(tree, "/system.slice/dev-disk-by\\x2duuid.service")


def spaces(tree: FakeTree) -> str:
    return move(tree, "/a b/c  d")


def quotes(tree: FakeTree) -> str:
    return move(tree, """/it's "$HOME"/-x; #""")


def deleted(tree: FakeTree) -> str:
    """The kernel names removed cgroups like this, and here one has this name."""
    return move(tree, "/a (deleted)")


def printed_bytes(tree: FakeTree) -> str:
    """Its name is the escaped form of another name."""
    return move(tree, "/a\\xffb")


def move(tree: FakeTree, path: str) -> str:
    """Put the process into another cgroup of version 2."""
    tree.remove(NOTHING)
    tree.put(f"/sys/fs/cgroup{path}/cgroup.procs", "10")
    tree.put(f"/sys/fs/cgroup{path}/memory.current", str(PAGES * 4096))
    tree.put(f"/sys/fs/cgroup{path}/memory.stat", f"anon {PAGES * 4096}\nanon_thp 0\nfile 0")
    tree.put("/proc/10/cgroup", b"0::" + os.fsencode(path) + b"\n")
    return path


HOSTS = [
    version_2, version_1, empty_version_2, hybrid, not_accounted, threaded, container, colons,
    no_text, control_characters, escaped_by_systemd, spaces, quotes, deleted, printed_bytes,
]  # fmt: skip


@pytest.fixture
def host(tree: FakeTree, clock: Clock) -> FakeTree:
    """Return a host without the module, with one process that wastes memory."""
    tree.make_unloaded()
    make_thp(tree)
    make_sparse(tree, 10, "redis", PAGES, 16, "/system.slice/redis.service")
    clock.steps = [lambda: None] * 99
    return tree


@pytest.mark.parametrize("make", HOSTS)
def test_each_verb_takes_what_top_prints(
    run: Run, host: FakeTree, make: Callable[[FakeTree], str]
) -> None:
    name = make(host)
    (row,) = run("top", "-n", "1", "--cpu", "100", "--json").json["cgroups"]
    assert row["cgroup"] == name
    (again,) = run("top", "-n", "1", "--cpu", "100", "--cgroup", name, "--json").json["cgroups"]
    assert (again["cgroup"], again["processes"]) == (name, 1)
    trim = run("trim", "--cgroup", name, "--dry-run", "--json").json
    assert (trim["cgroup"], [each["pid"] for each in trim["processes"]]) == (name, [10])
    if make not in (threaded, not_accounted):
        assert trim["memory_current_kib"] == PAGES * 4
        assert run("thp", "--cgroup", name, "--json").json["cgroups"][name]["memory_kib"]
    host.make_loaded()
    (memory,) = run("stats", "--cgroup", name, "--json").json["memory"]
    assert memory["processes"] == 1


@pytest.mark.parametrize("make", HOSTS)
def test_what_recommend_prints_can_be_typed(
    run: Run, host: FakeTree, make: Callable[[FakeTree], str]
) -> None:
    make(host)
    commands = [
        command
        for found in run("recommend", "--seconds", "10", "--json").json["findings"]
        for command in found["commands"]
    ]
    assert [command.split()[:2] for command in commands] == [["mmpolicy", "trim"]]
    words = shlex.split(commands[0])[1:]
    assert [each["pid"] for each in run(*words, "--dry-run", "--json").json["processes"]] == [10]


@pytest.mark.parametrize("make", HOSTS)
def test_metrics_of_an_experiment(host: FakeTree, make: Callable[[FakeTree], str]) -> None:
    name = make(host)
    folder = find_cgroup(host, name).folder
    host.put(f"{folder}/io.stat", "8:0 rbytes=7 wbytes=1")
    metric = Metric.parse(f"cgroup:{name}/io.stat:8:0.rbytes/s lower")
    assert Reader(host, metric.sources(), {}).read(0.0).host == {metric.top.text: 7}
    file = Metric.parse(f"x=cgroup:{name}/cgroup.procs")
    assert file.top.place(host) == f"{folder}/cgroup.procs"  # type: ignore[attr-defined]


def test_the_members_of_a_threaded_cgroup(host: FakeTree) -> None:
    """The members of a threaded cgroup can be examined: a child has no memory, but it has threads
    of processes.
    """
    assert threaded(host) == "/pool"
    for name in "/pool", "/pool/a", "/pool/a/b":
        assert list(cgroup_pids(host, name)) == ["10"]
    assert Charged(host).name(10) == "/pool"
    assert cgroup_of(host, 10) == "/pool/a/b"  # the cgroup that can be bound


def test_both_hierarchies_of_a_hybrid_host(host: FakeTree) -> None:
    """A child of a slice in version 2 that is charged elsewhere in version 1 is not counted."""
    hybrid(host)
    host.put(f"{V2}/system.slice/other.service/cgroup.procs", "11\n12")
    host.put("/proc/11/cgroup", "4:memory:/elsewhere\n0::/system.slice/other.service")
    host.put("/proc/12/cgroup", "4:memory:/\n0::/system.slice/other.service")
    assert list(cgroup_pids(host, "/system.slice")) == ["10", "12"]
    assert list(cgroup_pids(host, "/system.slice/other.service")) == ["12"]


@pytest.mark.parametrize("make", [version_1, empty_version_2])
def test_policies_are_bound_in_version_2_alone(
    run: Run, host: FakeTree, make: Callable[[FakeTree], str]
) -> None:
    """If the name is one of version 1, the error says so, and names the cgroup to bind."""
    name = make(host)
    host.make_loaded()
    result = run("bind", "--cgroup", name, "default")
    assert result.code == Exit.LACKING
    if make is empty_version_2:
        assert "is in the cgroup v1 hierarchy" in result.err
        assert (
            f"mmpolicy bind --pid N binds a single process; {V1}{name}/cgroup.procs lists"
            in result.err
        )


def test_a_name_in_both_is_bound_in_version_2(host: FakeTree) -> None:
    name = hybrid(host)
    assert find_bindable(host, name).folder == f"{V2}{name}"
    assert find_cgroup(host, name).folder == f"{V1}{name}"
    assert find_bindable(host, "redis").number == host.inode(V2, name.strip("/"))
    assert find_cgroup(host, f"{V2}{name}").folder == f"{V2}{name}"


@pytest.mark.parametrize("verb", ["top -n 1 --cpu 100", "host", "trim --dry-run", "stats"])
def test_a_cgroup_that_goes_meanwhile(
    run: Run, host: FakeTree, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """If a cgroup is removed between the lookups of its name and of its processes, there is no
    internal error.
    """
    host.make_loaded()
    for name in "gone", "stays":
        host.put(f"/sys/fs/cgroup/{name}/cgroup.procs", "")
    find = cgroups.Finder.find

    def lost(self: cgroups.Finder, given: str) -> cgroups.Cgroup:
        found = find(self, given)
        host.remove("/sys/fs/cgroup/gone")
        return found

    monkeypatch.setattr(cgroups.Finder, "find", lost)
    result = run(*verb.split(), "--cgroup", "gone")
    assert (result.code in (0, 2), "internal" in result.err) == (True, False)


def test_a_cgroup_that_is_made_meanwhile(run: Run, host: FakeTree, clock: Clock) -> None:
    """A cgroup that is made meanwhile, with a process moved into it and another started in it, is
    in the next frame.
    """

    def make_it() -> None:
        put = "/made.slice/app.service"
        host.put(f"/sys/fs/cgroup{put}/cgroup.procs", "10\n12")
        host.put("/proc/10/cgroup", f"0::{put}")
        make_sparse(host, 12, "new", 4096, 16, put)

    clock.steps = [make_it, lambda: None]
    result = run("top", "-n", "2", "--cpu", "100", "--json")
    first, second = map(json.loads, result.out.splitlines())
    rows = [
        [(row["cgroup"], row["processes"]) for row in each["cgroups"]] for each in (first, second)
    ]
    assert (result.code, result.err) == (0, "")
    assert rows[0] == [("/system.slice/redis.service", 1)]
    assert ("/made.slice/app.service", 2) in rows[1]


def test_below_a_service_of_a_user(host: FakeTree) -> None:
    """A delegated subtree has its own units; the host's own take precedence."""
    delegated = "/user.slice/user-0.slice/user@0.service/app.slice/redis.service"
    host.make_cgroup(delegated)
    assert find_cgroup(host, "redis.service").name == "/system.slice/redis.service"
    assert find_cgroup(host, delegated).name == delegated
    host.put(f"/sys/fs/cgroup{delegated}/sub/cgroup.procs", "20")
    assert list(cgroup_pids(host, "/user.slice")) == ["20"]


def test_a_cgroup_outside_of_the_mount(host: FakeTree) -> None:
    """A cgroup outside of the mount is shown as a container sees the processes of another one."""
    host.put("/proc/10/cgroup", "0::/../other")
    name = Charged(host).name(10)
    assert name == "/../other"
    with pytest.raises(Error, match=r"no cgroup '/\.\./other'"):
        find_cgroup(host, name)


def refuse(tree: FakeTree, monkeypatch: pytest.MonkeyPatch, path: str, number: int) -> None:
    """Let the kernel refuse to show a file or a directory."""
    real = tree.real(path)

    def refused(method: Callable[[str], object]) -> Callable[[str], object]:
        def ask(given: str) -> object:
            if tree.real(given) == real:
                code, hint = READ_REMEDIES[number]
                raise Error(f"cannot look at {path}", code, hint, number)
            return method(given)

        return ask

    for name in "links", "read":
        monkeypatch.setattr(tree, name, refused(getattr(tree, name)))


@pytest.mark.parametrize("file", ["fd", "statm", "comm", "smaps_rollup"])
def test_one_process_that_cannot_be_looked_at(
    run: Run, host: FakeTree, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """If one process cannot be read, the others are shown, with the number left out."""
    for pid, name in (1, "systemd"), (20, "qemu-system-x86"):
        host.put(f"/proc/{pid}/statm", "99999 4096 0")
        host.put(f"/proc/{pid}/comm", name if file != "smaps_rollup" else "qemu")
        host.put(f"/proc/{pid}/smaps_rollup", "Rss: 16384 kB\nAnonHugePages: 0 kB")
        host.put(f"/proc/{pid}/status", "VmRSS: 16384 kB")
        host.put(f"/proc/{pid}/pagemap", "")
        host.real(f"/proc/{pid}/fd").mkdir(parents=True)
    refuse(host, monkeypatch, f"/proc/1/{file}", 13)
    result = run("thp", "--vms", "--json")
    assert result.code == 0
    assert [each["pid"] for each in result.json["machines"]] == [20]
    (note,) = [each for each in result.json["notices"] if "could not be read" in each]
    assert note.startswith(
        "note: 1 processes could not be read, and are missing here: cannot look at /proc/1/"
    )
    assert huge.machines(host, huge_of).denied[0].errno == 13
