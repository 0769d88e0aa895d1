# SPDX-License-Identifier: GPL-2.0
"""`top`: on processes made of files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mmpolicy.errors import Error
from mmpolicy.host.calibration import Calibration, FaultCost
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import PAGE
from mmpolicy.memory.sample import Sample
from mmpolicy.memory.survey import Rates, Row, Survey
from mmpolicy.verbs.top import _data
from mmpolicy.verbs.top_screen import COLUMNS

from .fakes import THP, Clock, FakeTree, Run
from .sparse import count, make_services, make_sparse, make_thp, pressure, sizes
from .test_calibrate import keep

ALL = ("--cpu", "100")  # of a CPU: the model of a host is slow


@pytest.fixture
def host(tree: FakeTree, clock: Clock) -> FakeTree:
    """Return a host without the module, with a service that wastes memory and one that does not."""
    make_services(tree, "(a) b")
    clock.steps = [lambda: None] * 9
    return tree


def test_waste_is_estimated_and_named(run: Run, host: FakeTree) -> None:
    data = run("top", "-n", "1", "--json", *ALL).json
    assert (data["version"], data["command"], data["notes"]) == (1, "top", [])
    worst, other = data["processes"]
    assert (worst["pid"], worst["name"], worst["cgroup"]) == (10, "redis", "/redis.service")
    assert worst["waste_kib"] == 4096 * 4 * 15 // 16
    assert 0 < worst["error_kib"] < 1000
    assert (other["name"], other["waste_kib"]) == ("(a) b", 0)
    assert [row["cgroup"] for row in data["cgroups"]] == ["/redis.service", "/web.service"]
    assert worst["folios"] == {"2048 kB": 1.0}
    assert worst["decides"] == "kernel"


def test_memory_by_kind(run: Run, host: FakeTree) -> None:
    """Memory of a process and of its cgroup is shown by kind; unexamined kinds are named, with the
    time of a look.
    """
    sizes(host, 10, 4096, more="RssShmem:\t1024 kB\nHugetlbPages:\t2048 kB\nVmSwap:\t8 kB")
    data = run("top", "-n", "1", "--json", *ALL).json
    row = data["processes"][0]
    kinds = {name: row["kinds_kib"][name] for name in ("private", "shared", "swapped", "hugetlb")}
    assert kinds == {"private": 16384, "shared": 1024, "swapped": 8, "hugetlb": 2048}
    assert row["not_looked_at_kib"] == {"shared": 1024, "hugetlb": 2048}
    cgroup = data["cgroups"][0]
    assert (cgroup["rss_kib"], cgroup["kinds_kib"]["private"]) == (16384, 16384)
    assert 0 <= data["longest_hold_ms"] < 1000 * data["hold_limit_ms"]


@pytest.mark.parametrize(("merged", "kib"), [("256", 1024), ("0", 0), ("", 0), ("999999", 16384)])
def test_ksm_is_what_the_kernel_counts(run: Run, host: FakeTree, merged: str, kib: int) -> None:
    """KSM is what the kernel counts, not the bit of kpageflags: Linux 6.12 sets the bit for all
    anonymous memory.
    """
    host.put("/proc/10/ksm_merging_pages", merged)
    row = run("top", "-n", "1", "--json", *ALL).json["processes"][0]
    assert (row["pid"], row["kinds_kib"]["ksm"]) == (10, kib)


def test_table(run: Run, host: FakeTree) -> None:
    pressure(host, 12.5)
    make_sparse(host, 12, "jvm", 1024, 2, "/jvm.service")
    lines = run("top", "-n", "1", *ALL).out.splitlines()
    assert lines[0] == "3 processes, 100% of their memory looked at so far"
    rows = [line.split() for line in lines]
    (redis,) = [row for row in rows if row[:1] == ["/redis.service"]]
    assert (redis[1], redis[3], redis[4]) == ("15.0", "16.0", "#...........")
    (jvm,) = [row for row in rows if row[:1] == ["/jvm.service"]]
    assert (jvm[4], jvm[9], jvm[10]) == ("######......", "12.5", "2048kB:100%")


@pytest.mark.parametrize(
    ("sort", "first"), [("waste", 10), ("memory", 10), ("faults", 11), ("cpu", 11)]
)
def test_rates_and_sorting(run: Run, host: FakeTree, clock: Clock, sort: str, first: int) -> None:
    clock.steps = [lambda: count(host, 11, "(a) b", 2048, 4000, 125)]
    data = run("top", "-n", "1", "--sort", sort, "--json", *ALL).json
    assert data["processes"][0]["pid"] == first
    row = next(row for row in data["processes"] if row["pid"] == 11)
    assert row["faults_per_second"] == 800  # in 5 s
    assert (row["cpu_percent"], row["kernel_percent"]) == (50, 25)


def test_what_faults_take(run: Run, host: FakeTree, clock: Clock) -> None:
    """Page faults take CPU time: 800 a second of 2,000 ns each are 0.16 % of a CPU, once the host
    is calibrated.
    """
    busy = partial(count, host, 11, "(a) b", 2048, 4000, 125)
    clock.steps = [busy]
    data = run("top", "-n", "1", "--sort", "faults", "--json", *ALL).json
    assert data["processes"][0]["faults_percent"] is None
    keep(host)
    count(host, 11, "(a) b", 2048, 0, 0)
    clock.steps = [busy]
    result = run("top", "-n", "1", "--sort", "faults", *ALL)
    assert "0.16 +-0.01" in result.out
    count(host, 11, "(a) b", 2048, 0, 0)
    clock.steps = [busy]
    row, *_ = run("top", "-n", "1", "--sort", "faults", "--json", *ALL).json["processes"]
    assert (row["faults_percent"], row["faults_error_percent"]) == (0.16, 0.01)


def test_who_began_meanwhile_pays_too(run: Run, host: FakeTree, clock: Clock) -> None:
    """A process that began meanwhile counts too: a compiler lives shorter than an interval."""

    def begin() -> None:
        make_sparse(host, 13, "cc1", 512, 1, "/web.service")
        count(host, 13, "cc1", 512, 1000, 5)

    clock.steps = [begin]
    data = run("top", "-n", "1", "--sort", "faults", "--json", *ALL).json
    assert data["cgroups"][0]["faults_per_second"] == 200
    assert data["cgroups"][0]["cgroup"] == "/web.service"


def test_a_unit_alone(run: Run, host: FakeTree, clock: Clock) -> None:
    data = run("top", "-n", "1", "--unit", "web", "--json", *ALL).json
    assert [row["pid"] for row in data["processes"]] == [11]
    assert run("top", "-n", "1", "--cgroup", "/none").code == 2
    assert run("top", "--unit", "web", "--cgroup", "/web.service").code == 2


def test_live(run: Run, host: FakeTree, clock: Clock) -> None:
    """`top` prints frame by frame until Ctrl-C, or a number of frames."""
    clock.steps = [lambda: None] * 2
    frames = run("top", "--json", *ALL).out.splitlines()
    assert [json.loads(frame)["command"] for frame in frames] == ["top"] * 3
    clock.steps = [lambda: None] * 9
    assert len(run("top", "-n", "2", "--json", *ALL).out.splitlines()) == 2
    assert run("top", "-n", "2", *ALL).out.count("PROCESS ") == 2
    assert run("top", "-n", "0").code == 2


def test_who_decides(run: Run, tree: FakeTree, clock: Clock) -> None:
    make_thp(tree)
    make_sparse(tree, 10)
    make_sparse(tree, 11, "ruby", 2048, 1, "/web.service", forbids=True)
    run("profile", "create", "web")
    run("bind", "--cgroup", "/redis.service", "web")
    clock.steps = [lambda: None] * 9
    data = run("top", "-n", "1", "--json", *ALL).json
    assert [row["decides"] for row in data["processes"]] == ["web", "itself"]
    assert [row["decides"] for row in data["cgroups"]] == ["web", "default"]


def test_a_unit_that_lets_only_advised_memory_have_large_folios(
    run: Run, host: FakeTree, clock: Clock
) -> None:
    """The kernel does not show PR_THP_DISABLE_EXCEPT_ADVISED, so the files of the unit do."""
    host.put("/usr/lib/systemd/system/redis.service", "[Service]\nMemoryTHP=inherit")
    host.put("/etc/systemd/system/redis.service.d/50-thp.conf", "[Service]\nMemoryTHP=madvise")
    clock.steps = [lambda: None] * 9
    data = run("top", "-n", "1", "--json", *ALL).json
    for kind in "processes", "cgroups":
        assert [row["decides"] for row in data[kind]] == ["unit", "kernel"]


def vanish(tree: FakeTree) -> None:
    tree.remove("/proc/10")


def half_gone(tree: FakeTree) -> None:
    for file in ("maps", "status"):
        tree.remove(f"/proc/10/{file}")


def damage(tree: FakeTree) -> None:
    for file in ("stat", "status", "maps", "cgroup", "pagemap", "mem"):
        tree.put(f"/proc/10/{file}", random.Random(1).randbytes(300))
    tree.put("/proc/77/stat", "")
    tree.put("/proc/78/stat", "78 (x) S 1 2 3")
    tree.put("/proc/79/stat", f"79 (x) S {'-1 x ' * 30}")


def version_1(tree: FakeTree) -> None:
    tree.mount("cgroup /sys/fs/cgroup/memory rw,memory")
    tree.put("/proc/10/cgroup", "12:cpu,cpuacct:/x\n7:memory:/redis.slice\n1:name=systemd:/y")


def without_pages(tree: FakeTree) -> None:
    tree.remove("/proc/kpageflags")


def without_thp(tree: FakeTree) -> None:
    tree.remove(THP)


@pytest.mark.parametrize(
    "change", [vanish, half_gone, damage, version_1, without_pages, without_thp]
)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_hosts_that_are_otherwise(
    run: Run, host: FakeTree, clock: Clock, change: Callable[[FakeTree], None], when: str
) -> None:
    """On unusual hosts there is no traceback, and the other processes are shown."""
    if when == "before":
        change(host)
    else:
        clock.steps = [lambda: change(host), *([lambda: None] * 9)]
    result = run("top", "-n", "1", "--json", *ALL)
    assert (result.code, result.err) == (0, "")
    data = result.json
    assert 11 in [row["pid"] for row in data["processes"]]
    assert bool(data["notes"]) == (change is without_pages)
    if change is version_1 and when == "before":
        assert data["cgroups"][0]["cgroup"] == "/redis.slice"
    assert run("top", "-n", "1", *ALL).code == 0


def test_an_ordinary_user(run: Run, host: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an ordinary user, parts that need root are named, and the others are shown."""
    plain = host.reader

    def reader(path: str) -> object:
        if path.endswith(("kpageflags", "pagemap")):
            raise Error(f"cannot read {path}", 4, "run the command as root")
        return plain(path)

    monkeypatch.setattr(host, "reader", reader)
    result = run("top", "-n", "1", *ALL)
    assert result.out.startswith("cannot read /proc/kpageflags; next: run the command as root")
    assert result.out.count(" ? ") == 8  # waste and its error, of two cgroups and two processes


def test_a_container_that_may_not_look(
    run: Run, host: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may not be examined is left out; if there is no other, that is an error."""
    plain, denied = host.reader, ["/proc/10/"]

    def reader(path: str) -> object:
        if path.startswith(tuple(denied)) and path.endswith("pagemap"):
            raise Error(f"cannot read {path}", 4, "run the command as root")
        return plain(path)

    monkeypatch.setattr(host, "reader", reader)
    assert run("top", "-n", "1", "--json", *ALL).json["notes"] == []
    denied.append("/proc/11/")
    assert "cannot read" in run("top", "-n", "1", "--json", *ALL).json["notes"][0]


def test_names_move_no_cursor(run: Run, host: FakeTree) -> None:
    """Names cannot move the cursor, although a program chooses its own name."""
    make_sparse(host, 12, "a) \033[2J\n(b", 1024, 2, "/x")
    host.put("/proc/12/cgroup", b"0::/x\033[2J\n")
    data = run("top", "-n", "1", "--json", *ALL).json
    assert "a) ?[2J?(b" in [row["name"] for row in data["processes"]]
    assert r"/x\x1b[2J" in [row["cgroup"] for row in data["cgroups"]]
    assert "\033" not in run("top", "-n", "1", *ALL).out


@pytest.mark.parametrize("used", [0.02, 0.3, 0.5, 0.97])
def test_the_error_is_what_it_says(used: float) -> None:
    """The truth is within the printed error in about 95 of 100 samples, whatever the
    share in use.
    """
    rng = random.Random(used)
    hits = 0
    for _ in range(200):
        sample = Sample()
        for _ in range(64):
            zeroes = bytes(rng.random() > used for _ in range(16))
            whole = rng.random() < 0.5  # spots differ
            sample.add(b"9" * 16, zeroes if whole else bytes(16))
        truth = (1 - used) / 2
        hits += abs(sample.share - truth) <= sample.error
    assert hits >= 185


def test_what_was_seen_long_ago_counts_less() -> None:
    sample = Sample()
    for _ in range(64):
        sample.add(b"9" * 16, b"\1" * 16)
    sample.age(120.0)
    for _ in range(64):
        sample.add(b"0" * 16, bytes(16))
    assert 0 < sample.share < 0.1
    assert sample.sizes()[0] > 0.9


def test_areas_with_holes(tree: FakeTree) -> None:
    """A reservation of 16 GiB does not hide its 16 MiB of pages."""
    make_thp(tree)
    make_sparse(tree, 10)
    start, size = 0x700000000000, 16 << 30
    line = f"{start:x}-{start + size:x} rw-p 00000000 00:00 0"
    for file in ("maps", "smaps"):
        text = tree.read(f"/proc/10/{file}")
        more = "\nRss: 0 kB" if file == "smaps" else ""
        tree.put(f"/proc/10/{file}", f"{text}\n{line}{more}")
    with tree.real("/proc/10/pagemap").open("r+b") as pagemap:
        pagemap.truncate((start + size) // PAGE * 8)
    survey = Survey(tree, 10.0, seed=1)
    survey.turn(0.0, 5.0)
    (row,) = [row for row in survey.most(lambda each: each.pid, 99)[1] if row.pids == (10,)]
    assert abs(row.waste_kib - 15 * 1024) < 10


def crowd(tree: FakeTree, number: int) -> None:
    for pid in range(100, 100 + number):
        count(tree, pid, f"p{pid}", 100 + pid)
        tree.put(f"/proc/{pid}/cgroup", "0::/crowd")


class Meter(Tree):
    """A tree in which reading a file takes time of a clock."""

    spent = 0.0
    cost = 0.001

    def reader(self, path: str) -> object:  # type: ignore[override]
        self.spent += self.cost
        return super().reader(path)


def test_the_budget_is_kept_and_everybody_gets_a_turn(tree: FakeTree) -> None:
    """The budget is kept, and each process gets a turn: two thousand files a round, of which a turn
    may read fifty.
    """
    make_thp(tree)
    crowd(tree, 400)
    meter = Meter(str(tree.root))
    survey = Survey(meter, 0.01, cpu=lambda: meter.spent)
    survey.turn(0.0, 5.0)
    assert len(survey.processes) == 400  # the first turn counts all
    begin = meter.spent
    for turn in range(1, 40):
        before = meter.spent
        survey.turn(5.0 * turn, 5.0)
        assert meter.spent - before <= 0.05 + 40 * meter.cost  # one process more, at most
    assert meter.spent - begin <= 0.01 * 5.0 * 39
    assert min(each.looked for each in survey.processes.values()) > 0


def test_a_slow_host(
    run: Run, host: FakeTree, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow host, the first frame has all processes, whatever the cost; later ones are delayed
    by it.

    A list of processes takes four times the budget of an interval.
    """
    crowd(host, 40)
    spent, waits, reader, inodes = [0.0], [], host.reader, host.inodes

    def slow(cost: float, read: Callable[[str], object], path: str) -> object:
        spent[0] += cost
        return read(path)

    monkeypatch.setattr(host, "reader", partial(slow, 0.01, reader))
    lists = partial(slow, 0.2, inodes)
    monkeypatch.setattr(host, "inodes", lambda path: (lists if path == "/proc" else inodes)(path))
    monkeypatch.setattr("mmpolicy.verbs.top.Survey", partial(Survey, cpu=lambda: spent[0]))
    clock.steps = [lambda: waits.append((clock.now, spent[0]))] * 60
    clock.steps[0] = lambda: count(host, 11, "(a) b", 2048, 4000)
    text = run("top", "-n", "60", "--rows", "50", "--json").out
    frames = [json.loads(line) for line in text.splitlines()]
    assert frames[0]["processes_seen"] == 42
    worst = frames[0]["processes"][0]
    assert (worst["pid"], worst["waste_kib"]) == (10, 4096 * 4 * 15 // 16)
    assert sum(row["faults_per_second"] for frame in frames for row in frame["processes"]) > 0
    (begin, before), (end, after) = waits[0], waits[-1]
    assert after - before < 0.011 * (end - begin)
    assert (end - begin) / len(waits) < 60


def cells_of(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row in all columns."""
    return [column.cell(row) for column in COLUMNS]


def test_cells_of_a_row() -> None:
    """Cells of a row have MiB and percent with as many digits as help; a mark stands for unknown
    values.
    """
    data = _data(
        Row("x", False, (7,), "/", 2050, 1030, 0.12345, 333.4, 50.6, Rates(800.04, 0.12345, 0.0567),
            {9: 0.98765, 0: 0.01234, 4: 0.0}, ("y",)),
        Calibration((FaultCost(4096, 2000.0, 1900.0, 2100.0),)),
    )  # fmt: skip
    assert data == {
        "processes": 1, "waste_kib": 333, "error_kib": 51, "waste_shared_kib": 0, "kinds_kib": {},
        "not_looked_at_kib": {}, "charged_elsewhere_kib": 0, "rss_kib": 2050, "anon_kib": 1030,
        "looked_at": 0.123, "faults_per_second": 800.0, "faults_percent": 0.16,
        "faults_error_percent": 0.01, "cpu_percent": 12.3, "kernel_percent": 5.7,
        "folios": {"4 kB": 0.012, "64 kB": 0.0, "2048 kB": 0.988}, "forbids_large_folios": ["y"],
    }  # fmt: skip
    cells = cells_of({**data, "decides": "web", "stall_percent": 0.0})
    assert cells == ["0.3", "0.0", "2.0", "##########..", "800.0", "0.16 +-0.01", "12.3", "5.7",
                     "0.0", "2048kB:99% 4kB:1%", "web"]  # fmt: skip
    unknown = {"looked_at": 0, "faults_percent": None, "folios": {"4 kB": 0.0}, "decides": "-"}
    cells = cells_of({**data, **unknown})
    assert cells[:2] == ["?", "?"]
    assert (cells[5], cells[8], cells[9]) == ("-", "-", "-")
    none = {"faults_percent": 0.0, "faults_error_percent": 0.0, "decides": "-"}
    assert cells_of({**data, **none})[5] == "0.00 +-0.00"


@pytest.mark.parametrize(
    ("words", "share", "within"),
    [
        (["-n", "1"], 0.2, ""),
        (["-n", "2"], 0.01, ""),
        (["-n", "1", "--cpu", "50", "--cgroup", "/web.service"], 0.5, "/web.service"),
        (["-n", "1", "--cgroup", "/"], 0.2, ""),
    ],
)
def test_what_it_may_take_and_looks_at(
    run: Run, host: FakeTree, monkeypatch: pytest.MonkeyPatch,
    words: list[str], share: float, within: str,
) -> None:  # fmt: skip
    given: list[tuple[float, str]] = []

    def survey(tree: Tree, share: float, within: str) -> Survey:
        given.append((share, within))
        return Survey(tree, 1.0, within)

    monkeypatch.setattr("mmpolicy.verbs.top.Survey", survey)
    assert run("top", *words, "--json").code == 0
    assert given == [(share, within)]
