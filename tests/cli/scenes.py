# SPDX-License-Identifier: GPL-2.0
"""Known hosts, and the commands typed on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from mmpolicy.ab.report import html
from mmpolicy.ab.report.report import Report
from mmpolicy.ab.samples import parse
from mmpolicy.bench import picture
from mmpolicy.bench.arms import Arm
from mmpolicy.bench.result import Result as Found
from mmpolicy.control.experiment import LIVE

from .ab_world import FIXED, SPLIT, SWITCHBACK, World
from .fakes import CONTROL, DEFAULT, MODULE_DIR, Clock, FakeTree
from .kernels import Small, bzimage
from .sparse import count, make_services, make_sparse, pressure, split
from .test_ab_pool import lines_of
from .test_ab_report import Lines, usual
from .test_calibrate import keep
from .test_explain import make_traced
from .test_fit import NEEDS
from .test_map import make_process
from .test_policy import put_slot

Words = Iterator[list[str] | str]  # commands, or other output
ALL_CPU = ("--cpu", "100")


def shown(values: Iterable[Any]) -> str:
    """Return the figures in a line."""
    return " ".join(each if isinstance(each, str) else f"{float(each):.5g}" for each in values)


def seen(figure: Any, title: str = "") -> str:
    """Return the content of a figure, in words."""
    lines = [title, f"size {shown(figure.get_size_inches())} {figure.get_supxlabel()}"]
    for axes in figure.axes:
        labels = axes.get_title(), axes.get_xlabel(), axes.get_ylabel()
        ticks = [label.get_text() for label in axes.get_yticklabels()]
        lines.append(f"axes {labels} {shown(axes.get_yticks())} {ticks}")
        lines.append(f"limits {shown(axes.get_xlim())} {shown(axes.get_ylim())}")
        for each in axes.lines:
            look = each.get_color(), each.get_marker(), each.get_markersize(), each.get_linewidth()
            xs, ys = shown(each.get_xdata()), shown(each.get_ydata())
            lines.append(f"line {each.get_label()} {look}: {xs} | {ys}")
        for each in axes.patches:
            box = each.get_extents().transformed(axes.transData.inverted())
            lines.append(f"patch {shown(box.bounds)} {shown(each.get_facecolor())}")
        for each in axes.collections:
            lines += [f"segment {shown(ends.flat)}" for ends in each.get_segments()]
    return "\n".join(lines)


def state(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Profiles, bindings, a lease and an experiment, and all verbs that show them."""
    tree.make_process(41)
    for name in "abcde":
        tree.make_cgroup(f"/app.slice/{name}")
    yield ["set", "anon_order", "fixed", "max_order=6", "--dry-run"]
    yield ["set", "anon_order", "fixed", "max_order=6"]
    yield ["profile", "create", "web"]
    yield ["set", "anon_order", "adaptive", "shadow=fixed", "--profile", "web"]
    for name in "abcd":
        yield ["bind", "--cgroup", f"/app.slice/{name}", "web"]
    yield ["bind", "--pid", "41", "web"]
    yield ["lease", "90s"]
    tree.put(f"{CONTROL}/lease_left_ms", "4500")
    for words in ("status", "status --json", "list", "list --json", "profile list", "lease",
                  "profile show web", "show anon_order", "show compact --json", "save", "log",
                  "stats", "stats --json", "stats anon_order --profile web", "thp", "watch",
                  "doctor", "doctor --brief", "unbind --pid 41", "revert --dry-run",
                  "profile delete web", "reset --dry-run", "reset", "status"):  # fmt: skip
        clock.steps = [lambda: None]
        yield words.split()


def manifests(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """A manifest that is applied, and the differences from it."""
    tree.make_cgroup("/app.slice/a")
    tree.make_cgroup("/app.slice/b")
    file = folder / "m.toml"
    file.write_text(
        'version = 1\nlease_ms = 9000\n[bindings]\n"/app.slice/a" = "web"\n'
        '"/gone" = "web"\n[profiles.web.anon_order]\npolicy = "adaptive"\n'
        "[profiles.web.anon_order.adaptive]\nmax_order = 5\n"
    )
    for words in ("diff", "apply --dry-run", "apply", "apply --skip-missing", "diff", "verify"):
        verb, *rest = words.split()
        yield [verb, str(file), *rest]
    yield ["set", "anon_order", "max_order=6", "--profile", "web"]
    yield ["bind", "--cgroup", "/app.slice/b", "web"]
    for words in ("verify", "verify --json", "diff", "apply --skip-missing", "verify"):
        verb, *rest = words.split()
        yield [verb, str(file), *rest]
    yield ["save"]
    for text in (
        "version = 2\n",
        "version = 1\n[profiles.x.anon_ordr]\npolicy = 'fixed'\n",
        "version = 1\n[profiles.x.anon_order]\npolicy = 'fixd'\n",
        "lease = 3\n",
    ):
        file.write_text(text)
        yield ["apply", str(file)]


def memory(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Services that waste memory, and the verbs that report and free it."""
    make_services(tree, "web")
    make_sparse(tree, 12, "jvm", 1024, 2, "/jvm.service")
    pressure(tree, 12.5)
    tree.splits = lambda value: split(tree, value)

    def work() -> None:
        count(tree, 11, "web", 2048, 3000, 40)
        count(tree, 12, "jvm", 1024, 9000, 7)

    for words in (["top", "-n", "2", *ALL_CPU], ["top", "-n", "2", "--json", *ALL_CPU],
                  ["top", "-n", "1", "--sort", "faults", *ALL_CPU], ["map", "12"],
                  ["recommend", "--seconds", "2"], ["recommend", "--seconds", "2", "--json"],
                  ["trim", "--unit", "redis", "--dry-run"], ["trim", "--unit", "redis"],
                  ["trim", "--pid", "12", "--json"], ["top", "-n", "1", *ALL_CPU]):  # fmt: skip
        pressure(tree, 12.5 if words[0] != "trim" else 0)
        clock.steps = [work] * 999
        yield words


def try_plans(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """A service for which no change pays, and one that wastes memory."""
    make_services(tree, "web")
    keep(tree)
    make_sparse(tree, 12, "cache", 65536, 16, "/system.slice/cache.service", "rd wr hg")

    def work(ticks: int = 40) -> None:
        count(tree, 11, "web", 2048, 75 * ticks * 10, ticks)
        times = f"usage_usec {20_000 * ticks}\nsystem_usec {10_000 * ticks}"
        tree.put("/sys/fs/cgroup/web.service/cpu.stat", times)

    for words in (["--unit", "web"], ["--unit", "web", "--json"], ["--unit", "cache"],
                  ["--unit", "cache", "--json"], ["--unit", "cache", "--without", "trim"],
                  ["--cgroup", "/"], ["--list"], ["--status"], ["--stop"], ["--report"],
                  ["--unit", "web", "--candidate", "adaptive"]):  # fmt: skip
        work(0)
        clock.steps = [work] * 9
        looks = ["--seconds", "2"] if "--unit" in words else []
        yield ["try", *words, *looks]


def ab_reports(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Runs of each kind, and their reports."""
    two = ["vmstat.pgfault/s lower", "f=vmstat.pgfault higher"]
    split: dict[str, Any] = {"design": "split", "metrics": ["arm.anon_order.n/s lower"]}
    stopped: dict[str, Any] = {"status": "guard", "reason": "g", "arm": "treatment", "block": 30}
    runs: dict[str, tuple[Lines, list[str]]] = {
        "better": (usual(-0.1), []),
        "nothing": (usual(0.0), ["--margin", "5"]),
        "two": (usual(-0.02, metrics=two), []),
        "long": (Lines().pairs("aa", 9).pairs("ab", 30, -0.03).end(), []),
        "split": (usual(-0.1, **split), []),
        "worse": (Lines(margin=5.0).pairs("aa", 8).pairs("ab", 12, 0.2).end(), []),
        "dirty": (Lines().pairs("aa", 10, -0.3).pairs("ab", 12, -0.5).end(), []),
        "noisy": (Lines().pairs("aa", 8, noise=0.3).pairs("ab", 12, -0.1).end(), []),
        "stopped": (Lines().pairs("aa", 8).pairs("ab", 7, -0.5).end(**stopped), []),
    }
    for name, (lines, words) in runs.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(lines))
        yield ["ab", "report", str(file), *words]
        yield ["ab", "report", str(file), "--json", *words]
        with patch.object(html, "as_element", seen):
            yield f"{name}.html\n{html.page(Report(parse(lines, name)))}\n"


def ab_pools(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Hosts that agree, hosts that do not, and one that was stopped."""
    fleets = {"agree": [-0.1, -0.12, -0.09, -0.11], "differ": [-0.2, 0.2, -0.2, 0.15],
              "two": [0.01, -0.01]}  # fmt: skip
    for name, effects in fleets.items():
        files = []
        for number, effect in enumerate(effects):
            lines = lines_of(number, effect)
            lines.end(**({"status": "guard", "arm": "treatment", "reason": "g"}
                         if name == "differ" and not number else {"status": "done"}))  # fmt: skip
            files.append(str(folder / f"{name}{number}.jsonl"))
            Path(files[-1]).write_text("".join(lines))
        yield ["ab", "pool", *files]
        yield ["ab", "pool", *files, "--json"]


def ab_run(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Experiments: plans, runs and reports."""
    tree.put("/proc/meminfo", "MemTotal: 4000000 kB\n")
    own = ["arm.anon_order.allocated_order_4 / arm.units higher"]
    rest = [word for word in SPLIT if "allocated_order_4" not in word]
    rest[rest.index("--metric") + 1 : 1] = own
    runs = [
        [*SWITCHBACK, *FIXED, "--margin", "5"],
        [*rest, *FIXED, "--margin", "5"],
        [*SWITCHBACK, *FIXED, "--detect", "3", "--at-switch", "true"],
        [*SWITCHBACK, *FIXED, "--stop", "anytime"],
        [*SWITCHBACK, "--label", "a=b"],
        [*SWITCHBACK, *FIXED, "--guard", "vmstat.pgfault/s < 950"],
        [*SWITCHBACK, *FIXED, "--pairs", "14", "--metric", "x=arm.anon_order.allocated_order_4/s"],
        [*SWITCHBACK, *FIXED, "--pairs", "15", "--detect-rare", "20", "--lease", "5s"],
        [*SWITCHBACK, "--treatment", "hugepages-64kB/enabled=always,vm/min_free_kbytes=5000"],
    ]
    assert isinstance(clock, World)
    told = list[str]()
    for number, words in enumerate(runs):
        file = str(folder / f"{number}.jsonl")
        yield ["ab", "run", "--out", file, *words, "--dry-run"]
        told.clear()
        clock.at = [(clock.now + at, lambda: told.append(tree.read(LIVE))) for at in (2, 9, 30, 47)]
        yield ["ab", "run", "--out", file, *words]
        yield "\n".join(["meanwhile it told others:", *told, ""])
        lines = Path(file).read_text().splitlines() if Path(file).exists() else []
        yield "\n".join([*lines[:4], *lines[-3:], ""])
        yield ["ab", "report", file]
    yield ["ab", "run", "--preset", "adaptive", "--unit", "web", "--dry-run"]
    for verb in ("status", "list", "list --json", "stop", "restore"):
        yield ["ab", *verb.split()]
    yield ["log"]


def process(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """A process with a few folios: their sizes, the sizes under a policy, and the reasons."""
    make_process(tree)
    make_traced(tree)
    picture = folder / "map.svg"
    for words in ("map 10", "map 10 --files --no-content", "map 10 --json", f"map 10 -o {picture}",
                  f"cat {picture}", "set anon_order adaptive shadow=fixed", "explain 10",
                  "explain 10 --json", "explain 10 0x10000000", "recommend 10",
                  "recommend 10 --json", "stats --pid 10", "bind --pid 10 default"):  # fmt: skip
        clock.steps = [lambda: None] * 99
        yield words.split()


def export(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Counters of two profiles, for a monitoring system and for people."""
    for name in ("web", "idle"):
        yield ["profile", "create", name]
    yield ["set", "anon_order", "adaptive", "--profile", "web"]
    for name, number in (("default", 3), ("web", 50), ("idle", 0)):
        counts = {
            "decisions": 7 * number,
            "allocated_order_0": 2 * number,
            "allocated_order_4": number,
            "reason_dense_neighbour": number,
            "fault_ns": 900 * number,
            "fault_ns_log2_10_1": number,
        }
        tree.put(f"/sys/kernel/debug/mmpolicy/{name}/anon_order/stats",
                 "\n".join(f"{key} {count}" for key, count in counts.items()))  # fmt: skip
    tree.put("/proc/vmstat", "pgfault 100\ncompact_stall 5\nthp_fault_alloc 3\nallocstall_normal 4")
    for words in ("export", "stats", "stats --json", "stats anon_order --profile web", "thp",
                  "thp --json", "stats --profile idle", "watch --json"):  # fmt: skip
        clock.steps = [lambda: tree.put("/sys/kernel/debug/mmpolicy/web/anon_order/stats",
                                        "decisions 990\nallocated_order_4 70")]  # fmt: skip
        yield words.split()


def bench(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Tables and pictures of three arms, of many rounds and of few."""
    rng = np.random.default_rng(7)
    arms = [Arm("off"), Arm("on"), Arm("again")]
    names = ("cpu", "wall", "user", "system", "faults", "peak_rss", "large_folios", "cycles")
    for rounds in (12, 3, 1):
        runs = [
            {
                arm.name: {
                    name: float(1000 * (at + 1) * rng.normal(1, 0.02) * (1 - 0.1 * (number == 1)))
                    for at, name in enumerate(names)
                }
                for number, arm in enumerate(arms)
            }
            for _ in range(rounds)
        ]
        result = Found(arms, runs, "cpu", 3)
        yield "\n".join(result.lines())
        if rounds == 3:
            yield json.dumps(result.data(), indent=1)
        yield seen(picture.draw(result))
        with patch.object(picture, "as_element", seen):
            yield picture.page(result, "a title", [("host", "a host")])


def kernels(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Kernels that each differ in one property, and the running one."""
    file = folder / "vmlinuz"
    changes: list[Callable[[Small], object]] = [
        lambda kernel: None, lambda kernel: kernel.names.discard("register_kprobe"),
        lambda kernel: kernel.without(NEEDS[0].ones[0].name),
    ]  # fmt: skip
    for change in changes:
        kernel = Small(NEEDS)
        change(kernel)
        file.write_bytes(bzimage(kernel.vmlinux()))
        yield ["doctor", "--kernel", str(file)]
    yield ["doctor", "--kernel", str(file), "--json"]
    for slot in range(4):
        put_slot(tree, slot, "own" if slot == 1 else "", "I give up" if slot == 1 else "")
    tree.put(f"{DEFAULT}/anon_order/policy", "stock adaptive fixed [own]")
    keep(tree)
    for words in ("policy list", "policy list --json", "policy show own", "policy show own --json",
                  "policy unload own", "policy unload --all --dry-run", "unload", "doctor", "reset",
                  "doctor --json", "calibrate --dry-run", "unload --dry-run", "load --dry-run",
                  "thp --json"):  # fmt: skip
        yield words.split()
    for path in ("/sys/kernel/debug/mmpolicy", f"{MODULE_DIR}/srcversion", "/lib/modules"):
        tree.remove(path)
    tree.put(f"{CONTROL}/abi", "3")
    yield ["doctor"]
    tree.make_unloaded()
    yield ["doctor"]


def hosts(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """A new user's first commands on various hosts."""
    looks: list[list[str] | str] = [[], ["doctor"]]
    yield from ["The module is loaded.", *looks]
    for line in ("enabled always [madvise] never", "defrag always [madvise] never",
                 "shrink_underused 1", "hugepages-64kB/enabled [always] inherit never",
                 "hugepages-2048kB/enabled always [inherit] never"):  # fmt: skip
        name, _, text = line.partition(" ")
        tree.put(f"/sys/kernel/mm/transparent_hugepage/{name}", text)
    for path, huge in (("/system.slice/redis.service", 412), ("/user.slice/user-1.slice", 9)):
        tree.make_cgroup(path)
        text = f"anon {520 << 20}\nanon_thp {huge << 20}"
        tree.put(f"/sys/fs/cgroup{path}/memory.stat", text)
    tree.put("/sys/kernel/debug/split_huge_pages", "")
    tree.make_unloaded()
    yield from ["It is installed, and not loaded.", *looks, ["status"]]
    tree.denied = True
    yield from ["The same, without root.", *looks]
    tree.denied = False
    tree.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality")
    yield from ["The same, under lockdown.", *looks]
    tree.remove("/sys/kernel/security")
    tree.installed = False
    put_kernel(tree, Small(NEEDS))
    yield from ["A module is possible, and missing.", *looks, ["status"]]
    put_kernel(tree, Small(NEEDS).without("register_kprobe"))
    yield from ["No module is possible.", *looks, ["status"], ["status", "--json"],
                ["show", "madv_free"], ["doctor", "--all"]]  # fmt: skip
    tree.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality")
    yield from ["Lockdown.", *looks]
    for path in ("/sys/kernel/debug", "/sys/kernel/security"):
        tree.remove(path)
    yield from ["No debugfs.", *looks]
    tree.read_only = True
    tree.remove("/sys/fs/cgroup/system.slice")
    yield from ["A container, with the same.", *looks]
    tree.read_only = False
    tree.put("/proc/cmdline", "root=/dev/sda1 thp_anon=64K:always")
    tree.put("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "always [never]")
    tree.put("/sys/kernel/mm/ksm/run", "1")
    tree.put("/sys/kernel/mm/ksm/pages_sharing", "4711")
    yield from ["Settings that are not what they seem to be.", *looks]


def put_kernel(tree: FakeTree, kernel: Small) -> None:
    """Run a kernel without hooks and without the module."""
    tree.put("/proc/kallsyms", "".join(f"0000000000000000 T {name}\n" for name in kernel.names))
    tree.put("/sys/kernel/btf/vmlinux", kernel.types())
    tree.put("/proc/version", "Linux version 6.18.4")
    tree.put("/proc/sys/kernel/osrelease", "6.18.4")
    tree.remove("/boot")


def profiles(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Bindings, moves and resets, as text and as JSON."""
    for name in ("a.service", "b.service", "pod"):
        tree.make_cgroup(f"/system.slice/{name}")
    for pid in (41, 42):
        tree.make_process(pid)
        tree.put(f"/proc/{pid}/smaps_rollup", "Rss: 100 kB\nLazyFree: 30 kB")
    tree.put("/sys/fs/cgroup/system.slice/pod/cgroup.procs", "41\n42")
    manifests = tree.real("/etc/mmpolicy")
    manifests.mkdir(parents=True)
    (manifests / "host.toml").write_text("version = 1\n[profiles.web]\n[profiles.db]\n")
    for words in ("profile create web --json", "profile create db --from default --dry-run",
                  "set anon_order fixed max_order=5 shadow=adaptive --profile web --json",
                  "profile create db --from web", "profile create db", "profile list",
                  "bind --cgroup a db", "bind --cgroup a web --json", "bind --cgroup pod web "
                  "--owner agent", "bind --cgroup pod db", "unbind --cgroup pod", "status",
                  "bind --pid 41 db", "bind --pid 42 db", "profile show db", "stats --memory "
                  "--profile db", "stats --cgroup pod --pid 41 --json", "profile delete db",
                  "profile delete web", "profile delete default", "unbind --cgroup pod --owner "
                  "agent", "unbind --cgroup pod",
                  "bind --unit b web", "bind --unit gone.service db", "status --json", "save",
                  "unbind --unit b", "unbind --unit b",
                  "unbind --unit gone.service --json", "unbind --pid 42", "unbind --pid 42",
                  "unbind --pid 41 --json", "unbind --cgroup a", "profile delete db --json",
                  "log -n 3", "revert --dry-run --json", "revert", "revert --to 1 --dry-run",
                  "revert --to 99", "reset --json"):  # fmt: skip
        yield words.split()


def refusals(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Refusals, with their reasons."""
    file = folder / "m.toml"
    file.write_text("version = 1\n")
    for words in ("sett", "set anon_order", "set anon_ordr fixed", "set anon_order fixd",
                  "set anon_order fixed stock", "set anon_order max_order=1 max_order=2",
                  "set anon_order fixed min_folios=3", "set anon_order fixed max_order=99",
                  "set anon_order fixed max_order=99 --dry-run", "set anon_order fixed --profile x",
                  "set bulk fixed pages=0 --json", "lease 1x", "lease 0.01",
                  "profile create X", "profile create none", "profile create web --from x",
                  "profile show x", "bind default", "bind --pid 1 --cgroup / default",
                  "bind --pid 77 default", "bind --cgroup /x default", "bind --cgroup / x",
                  "bind --unit x.socket default", "bind --unit x default", "bind --pid 1 --owner a "
                  "default", "bind --cgroup / --owner host default", "unbind --cgroup /",
                  "show x", "show anon_order --profile x", "stats x", "stats --pid 77",
                  "explain 77", "map 77",
                  "recommend --name x", "recommend 77", "trim", "trim --pid 77",
                  "thp --cgroup /x", "revert", "verify", f"apply {folder}/no",
                  f"save {folder}/no/x", "policy show x",
                  "policy unload", "policy unload x", "load anon_order=fixed", "load x=1",
                  "ab run", "ab run --metric x",
                  "ab run --metric vmstat.pgfault/s --design split",
                  f"ab report {file}", f"ab pool {file}",
                  "ab stop", "doctor --kernel 9.9", "completion x"):  # fmt: skip
        yield words.split()
    tree.expire()
    for words in ("status", "set anon_order fixed", f"apply {file}", "reset", "doctor --brief"):
        yield words.split()
    tree.denied = True
    for words in ("set anon_order fixed", "reset", "lease 5", "unload", "doctor"):
        yield words.split()
    tree.make_unloaded()
    for words in ("status", "status --json", "list", "set anon_order fixed", "reset",
                  "reset --json", "stats", "watch", "export", "save", f"apply {file}",
                  "policy list", "recommend 1", "unload", "ab run --metric vmstat.pgfault/s "
                  "--treatment anon_order=fixed"):  # fmt: skip
        yield words.split()


def watched(tree: FakeTree, clock: Clock, folder: Path) -> Words:
    """Counters of profiles with activity, and of those without."""
    stats = "/sys/kernel/debug/mmpolicy/{}/anon_order/stats"
    make_process(tree)
    make_traced(tree)
    for name in ("web", "idle"):
        yield ["profile", "create", name]
        tree.put(stats.format(name), "decisions 0")
    tree.put(stats.format("default"), "decisions 0")
    tree.put("/proc/vmstat", "pgfault 100\nthp_fault_alloc 0\ncompact_stall 5")
    yield ["stats"]
    tree.put(stats.format("web"), "decisions 70\nfault_ns 900\nfault_ns_log2_8_3 3")
    for words in ("stats", "stats anon_order --profile web", "stats --profile web --json",
                  "lease 90s", "set anon_order never --profile web"):  # fmt: skip
        yield words.split()
    tree.put(f"{CONTROL}/lease_left_ms", "4500")
    for arm, name in (("control", "web"), ("treatment", "idle")):
        tree.write(f"{CONTROL}/experiment/{arm}", name)
    tree.write(f"{CONTROL}/experiment/enabled", "1")

    def work() -> None:
        times = "fault_ns 900\nfault_ns_log2_8_3 3"
        tree.put(stats.format("web"), f"decisions 95\nraised 4\n{times}")
        tree.put("/proc/vmstat", "pgfault 160\ncompact_stall 5")

    for words in ("watch --interval 2", "watch --json", "stats --profile web --watch",
                  "thp --watch", "thp --watch --json", "status",
                  "profile delete idle"):  # fmt: skip
        tree.put(stats.format("web"), "decisions 70")
        tree.put("/proc/vmstat", "pgfault 100\ncompact_stall 5")
        clock.steps = [work]
        yield words.split()
    for words in ("explain 10 10000000", "explain 10 ffff", "explain 10 --seconds 2",
                  "set anon_order shadow=adaptive", "explain 10", "recommend 10 --name mine",
                  "recommend 10 --json"):  # fmt: skip
        clock.steps = [lambda: None] * 9
        yield words.split()


ALL = [
    hosts,
    profiles,
    refusals,
    watched,
    kernels,
    bench,
    state,
    manifests,
    memory,
    try_plans,
    ab_reports,
    ab_pools,
    ab_run,
    process,
    export,
]
