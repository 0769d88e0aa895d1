# SPDX-License-Identifier: GPL-2.0
"""Models of the kernel's control tree, of libkmod and of time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EACCES, EBUSY, EEXIST, EINVAL, ENOENT, ENOSPC, ERANGE, ESRCH
from pathlib import Path
from typing import Any, NamedTuple

import abi
from mmpolicy.control.keys import CgroupBinding, Key, ProcessBinding, State
from mmpolicy.control.model import About
from mmpolicy.control.state import read_state
from mmpolicy.host.advice import Advice
from mmpolicy.host.calibration import PAGE, Calibration, FaultCost
from mmpolicy.host.cgroups import cgroup_paths
from mmpolicy.host.files import KNOB_FOLDERS, SPLIT, TRACING, Tree

RELEASE = "6.12.117-mmpolicy"
CONTROL = "/sys/kernel/mmpolicy"
DEFAULT = f"{CONTROL}/profiles/default"
COUNTERS = "/sys/kernel/debug/mmpolicy/default"
MODULE_DIR = "/sys/module/mmpolicy"
THP, VM = KNOB_FOLDERS
SLOW = Calibration([FaultCost(PAGE, 1e5, 1e5, 1e5)])  # single pages on a very slow host
SETTABLE = {
    f"{THP}/enabled": "always [madvise] never",
    f"{THP}/defrag": "always defer defer+madvise [madvise] never",
    f"{THP}/khugepaged/defrag": "1",
    f"{THP}/hugepages-64kB/enabled": "always inherit madvise [never]",
    f"{THP}/hugepages-2048kB/enabled": "always [inherit] madvise never",
    f"{VM}/compaction_proactiveness": "20",
    f"{VM}/min_free_kbytes": "4000",
    f"{VM}/lowmem_reserve_ratio": "256\t256\t32",
}

# Entries of the module's files, from its document.
ENTRIES = {
    entry.pattern.removeprefix(f"{CONTROL}/"): entry
    for entry in abi.parse(Path(__file__).parents[2] / "docs/sysfs-abi.txt")
}
BELOW_PROFILE = {
    path.removeprefix("profiles/<profile>/"): entry
    for path, entry in ENTRIES.items()
    if path.startswith("profiles/<profile>/")
}
# file below the profile -> (default, lowest, highest)
KNOBS = {
    path: (int(entry.default or 0), *entry.range)
    for path, entry in BELOW_PROFILE.items()
    if entry.range
}
POINTS = {
    path.removesuffix("/policy"): entry.values
    for path, entry in BELOW_PROFILE.items()
    if path.endswith("/policy")
}
HOST_POINTS = [
    point
    for point in POINTS
    if "in the profile default alone" in BELOW_PROFILE[f"{point}/policy"].description
]
# Knobs of anon_order that all its policies share, as status shows them.
COMMON = "max_copy_order=4 memory_on_read=0 min_available_percent=5 override_madvise=0"
CREATE = " ".join(ENTRIES["profiles/create"].description.split())
NO_NAMES = re.findall(r'"([a-z]+)"', CREATE.partition("are no names")[0])
MOST_PROFILES = int(CREATE.partition("there are ")[2].split()[0])

RESET = f"{CONTROL}/reset"
MODULE = 2  # handle of the module in libkmod
ARMS = ("control", "treatment")
EXPERIMENT = {
    path.removeprefix("experiment/"): entry
    for path, entry in ENTRIES.items()
    if path.startswith("experiment/")
}


def choose(words: tuple[str, ...], active: str) -> str:
    """Return words as sysfs shows them, with brackets around the active one."""
    return " ".join(f"[{word}]" if word == active else word for word in words)


def name_of(key: Key) -> str:
    """Return a short name for a key."""
    if isinstance(key, CgroupBinding):
        return f"cgroups/{key.number}"
    if isinstance(key, ProcessBinding):
        return f"pids/{key.number}@{key.start}"
    return getattr(key, "path", str(key)).removeprefix(f"{CONTROL}/")


def by_name(state: State) -> dict[str, str]:
    """Return a state with short names."""
    return {name_of(key): value for key, value in state.items()}


def read_named(tree: Tree) -> dict[str, str]:
    """Return the state of a host with short names."""
    return by_name(read_state(tree))


def _judge_number(value: str, lowest: int, highest: int) -> int:
    try:
        number = int(value)
    except ValueError:
        return EINVAL
    return 0 if lowest <= number <= highest else ERANGE


class FakeTree(Tree):
    """A tree on disk whose writes are accepted or refused as by the kernel."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.writes: list[tuple[str, str]] = []
        self.refusals: dict[str, int] = {}  # path -> errno
        self.denied = False  # True for a user other than root
        self.confined = False  # True for root of a user namespace
        self.read_only = False  # True where /sys is read-only, as in a container
        self.installed = True  # True if there is a module for this kernel
        self.trace = ""  # content of the trace
        self.splits: Callable[[str], None] = lambda _value: None  # the kernel's reaction to a split
        self.advice: Advice | None = None  # a model of process_madvise
        self.rounding: dict[str, str] = {}  # path -> value that the kernel stores instead
        self.under_way = ""  # reported state until this is empty

    def put(self, path: str, text: str | bytes) -> None:
        """Make a file."""
        self.real(path).parent.mkdir(parents=True, exist_ok=True)
        data = text if isinstance(text, bytes) else f"{text}\n".encode()
        self.real(path).write_bytes(data)

    def read(self, path: str) -> str:
        if self.under_way and path == f"{CONTROL}/state":
            return self.under_way
        return super().read(path)

    def is_root(self) -> bool:
        return not self.denied

    def is_confined(self) -> bool:
        return self.confined

    def writable(self, path: str) -> bool:
        return not self.denied and not self.read_only and self.exists(path)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        for name in ("trace", "trace_pipe"):
            self.put(f"{TRACING}/{name}", self.trace)
        for name in ("buffer_size_kb", "options/event-fork", "set_event_pid"):
            self.put(f"{TRACING}/{name}", "")
        for name in ("anon_order", "anon_shadow", "bulk", "bpf_compact", "bpf_question"):
            for file in ("enable", "filter"):
                self.put(f"{TRACING}/events/mmpolicy/mmpolicy_{name}/{file}", "0")
        try:
            yield
        finally:
            self.remove(TRACING)

    def store(self, path: str, value: str) -> None:
        if path.startswith(TRACING):
            super().store(path, value)
            self.writes.append((path, value))
            return
        number = EACCES if self.denied else self.refusals.get(path, 0)
        number = number or (0 if self.exists(path) else ENOENT)
        if not number and path.startswith(KNOB_FOLDERS):
            self._tune(path, value)
            return
        if not number and path == SPLIT:
            self.writes.append((path, value))
            self.splits(value)
            return
        if not number and self.read(f"{CONTROL}/state") == "expired" and path != RESET:
            number = EBUSY
        number = number or self._judge(path, value)
        if number:
            raise OSError(number, os.strerror(number))
        self.writes.append((path, value))
        self._take(path, value)

    def _tune(self, path: str, value: str) -> None:
        """Apply a write to a knob of the kernel itself."""
        words = self.read(path).replace("[", "").replace("]", "").split()
        number = words[0].isdigit()
        if not (value.isdigit() if number else value in words):
            raise OSError(EINVAL, os.strerror(EINVAL))
        marked = [f"[{word}]" if word == value else word for word in words]
        self.put(path, value if number else " ".join(marked))
        if path == f"{THP}/enabled":  # khugepaged changes it too
            self.put(f"{VM}/min_free_kbytes", "1000" if value == "never" else "4000")

    def _judge(self, path: str, value: str) -> int:
        """Return the errno that the kernel would give."""
        if path == RESET:
            return 0 if value == "1" else EINVAL
        name = Path(path).name
        if path.startswith(f"{CONTROL}/experiment"):
            return self._judge_experiment(name, value)
        if name in ("create", "delete"):
            return self._judge_profile(name, value)
        if name in ("cgroups", "pids"):
            return self._judge_binding(path, name, value)
        if name == "shadow":
            return 0 if value in ("none", *POINTS[Path(path).parent.name][1:]) else EINVAL
        if name == "policy":
            return 0 if value in POINTS[Path(path).parent.name] else EINVAL
        if name == "lease_ms":
            return _judge_number(value, 100, 86400000) if value != "0" else 0
        return _judge_number(value, *KNOBS[path.split("/", 6)[6]][1:])

    def _judge_profile(self, verb: str, name: str) -> int:
        profiles = self.dirs(f"{CONTROL}/profiles")
        if verb == "create":
            if not re.fullmatch("[a-z0-9][a-z0-9_-]{0,30}", name) or name in NO_NAMES:
                return EINVAL
            return EEXIST if name in profiles else ENOSPC if len(profiles) == MOST_PROFILES else 0
        if name not in profiles:
            return ENOENT
        base = f"{CONTROL}/profiles/{name}"
        arms = [self.read(f"{CONTROL}/experiment/{arm}") for arm in ARMS]
        bound = self.read(f"{base}/cgroups") or self.read(f"{base}/pids")
        return EBUSY if bound or name in ("default", *arms) else 0

    def _judge_binding(self, path: str, kind: str, value: str) -> int:
        if value.startswith("-"):
            return 0 if value[1:] in self.read(path).split() else ENOENT
        if kind == "pids":
            return 0 if self.exists(f"/proc/{value}/stat") else ESRCH
        return 0 if value in cgroup_paths(self) else ENOENT

    def _judge_experiment(self, name: str, value: str) -> int:
        read = {each: self.read(f"{CONTROL}/experiment/{each}") for each in ("enabled", *ARMS)}
        if name == "enabled":
            if value == "1" and "none" in (read["control"], read["treatment"]):
                return EINVAL
            return _judge_number(value, 0, 1)
        if read["enabled"] == "1" and name != "percent":
            return EBUSY
        if name in ARMS and value != "none":
            other = read[ARMS[name == "control"]]
            if value not in self.dirs(f"{CONTROL}/profiles"):
                return ENOENT
            return EINVAL if value in ("default", other) else 0
        entry = EXPERIMENT[name]
        if entry.values:
            return 0 if value in entry.values else EINVAL
        return _judge_number(value, *entry.range) if entry.range else 0

    def _take(self, path: str, value: str) -> None:
        """Apply a valid write as the kernel does."""
        name = Path(path).name
        if path == RESET:
            self.make_stock()
        elif name == "policy":
            self._activate(path, value)
        elif name == "shadow":
            names = ("none", *POINTS[Path(path).parent.name][1:])
            self._choose(path, value, names)
        elif name == "create":
            self.make_profile(value)
        elif name == "delete":
            self.remove(f"{CONTROL}/profiles/{value}")
            self.remove(f"/sys/kernel/debug/mmpolicy/{value}")
            self._tell_state()
        elif name in ("cgroups", "pids"):
            self._bind(path, name, value)
        elif name == "unit":
            self.put(path, choose(EXPERIMENT[name].values, value))
        else:
            self.put(path, self.rounding.get(path, value))

    def _bind(self, path: str, kind: str, value: str) -> None:
        for profile in self.dirs(f"{CONTROL}/profiles"):
            file = f"{CONTROL}/profiles/{profile}/{kind}"
            self.put(file, "\n".join(n for n in self.read(file).split() if n != value.strip("-")))
        if not value.startswith("-"):
            self.put(path, f"{self.read(path)}\n{value}".strip())

    def _activate(self, path: str, value: str) -> None:
        self._choose(path, value, POINTS[Path(path).parent.name])

    def _choose(self, path: str, value: str, names: tuple[str, ...]) -> None:
        self.put(path, choose(names, value))
        self._tell_state()

    def _tell_state(self) -> None:
        policies = self.real(f"{CONTROL}/profiles").glob("*/*/policy")
        shadows = self.real(f"{CONTROL}/profiles").glob("*/*/shadow")
        stock = all("[stock]" in policy.read_text() for policy in policies)
        stock = stock and all("[none]" in shadow.read_text() for shadow in shadows)
        self.put(f"{CONTROL}/state", "stock" if stock else "active")

    def make_profile(self, name: str) -> None:
        """Make a profile, all stock; points of the host are in the default one only."""
        base = f"{CONTROL}/profiles/{name}"
        points = [point for point in POINTS if name == "default" or point not in HOST_POINTS]
        for knob, (default, _, _) in KNOBS.items():
            if knob.partition("/")[0] in points:
                self.put(f"{base}/{knob}", str(default))
        for point in points:
            self.put(f"{base}/{point}/policy", "[stock]")
            self.put(f"/sys/kernel/debug/mmpolicy/{name}/{point}/stats", "decisions 0")
        self._choose(f"{base}/anon_order/shadow", "none", ("none", *POINTS["anon_order"][1:]))
        for point in points:
            self._activate(f"{base}/{point}/policy", "stock")
        for kind in ("cgroups", "pids"):
            self.put(f"{base}/{kind}", "")

    def make_stock(self) -> None:
        """Put the control tree into the state after load."""
        self.remove(f"{CONTROL}/profiles")
        self.remove("/sys/kernel/debug/mmpolicy")
        for verb in ("create", "delete"):
            self.put(f"{CONTROL}/profiles/{verb}", "")
        self.make_profile("default")
        for name, entry in EXPERIMENT.items():
            default = str(entry.default)
            self.put(
                f"{CONTROL}/experiment/{name}",
                choose(entry.values, default) if entry.values else default,
            )
        for name in ("lease_ms", "lease_left_ms"):
            self.put(f"{CONTROL}/{name}", "0")

    def expire(self) -> None:
        """Let the lease run out."""
        self.make_stock()
        self.put(f"{CONTROL}/state", "expired")

    def mount(self, *mounts: str) -> None:
        """Set the mounts of the host: kind, place, options, and root of the mount."""
        lines = []
        for each in mounts:
            kind, place, *more = each.split(" ")
            options, root = (more + ["rw", "/"][len(more) :])[:2]
            lines.append(f"31 23 0:28 {root} {place} rw shared:9 - {kind} none {options}")
        self.put("/proc/self/mountinfo", "\n".join(lines))

    def make_cgroup(self, path: str) -> str:
        """Make a cgroup and return its id."""
        self.put(f"/sys/fs/cgroup{path}/cgroup.procs", "")
        return str(self.inode("/sys/fs/cgroup", path.strip("/")))

    def make_process(self, pid: int, start: int = 7) -> None:
        """Make a process that started at the given time."""
        self.put(f"/proc/{pid}/stat", f"{pid} (a (b) c) S {'0 ' * 18}{start} 0")

    def make_host(self) -> None:
        """Make a host with a patched kernel on which the module is not loaded."""
        self.put("/proc/sys/kernel/osrelease", RELEASE)
        self.put("/proc/sys/kernel/random/boot_id", "6f1c")
        self.put("/proc/self/mounts", "bpf /sys/fs/bpf bpf rw 0 0")
        self.mount("cgroup2 /sys/fs/cgroup")
        self.put("/sys/fs/cgroup/cgroup.procs", "")
        self.put("/proc/kallsyms", "0000000000000000 T mm_policy_register")
        self.put(f"/boot/config-{RELEASE}", "CONFIG_MM=y\nCONFIG_MM_POLICY=y")
        for path, text in SETTABLE.items():
            self.put(path, text)
        for path, mode in (f"{VM}/drop_caches", 0o200), (f"{THP}/hpage_pmd_size", 0o444):
            self.put(path, "2097152")
            self.real(path).chmod(mode)
        self.put(f"/lib/modules/{RELEASE}/build/Makefile", "")

    def make_loaded(self, options: str = "") -> None:
        """Make the files that appear when the module is loaded."""
        self.put(f"{CONTROL}/abi", "2")
        self.put(f"{CONTROL}/reset", "")
        self.put(f"{CONTROL}/provider", "hooks")
        for point, policies in POINTS.items():
            self.put(f"{CONTROL}/points/{point}", "available")
            for policy in policies:
                self.put(f"{CONTROL}/policies/{point}/{policy}", "available")
        self.put(f"{CONTROL}/bpf/available", "available")
        for name in ("hooked_functions", "kernel_fingerprint", "kernel_tested"):
            self.put(f"{CONTROL}/{name}", b"")
        for knob, (default, low, high) in KNOBS.items():
            texts = (low, high, default, BELOW_PROFILE[knob].unit, f"so many pieces of {knob}")
            for name, text in zip(About._fields, texts, strict=True):
                self.put(f"{CONTROL}/knobs/{knob}/{name}", str(text))
        self.put(f"{MODULE_DIR}/srcversion", "ABC123")
        self.put(f"{MODULE_DIR}/refcnt", "0")
        self.make_stock()
        for point, _, policy in (word.partition("=") for word in options.split()):
            self._activate(f"{DEFAULT}/{point}/policy", policy)
        self.put("/sys/kernel/debug/mmpolicy/measure", "0")
        self.put(f"{COUNTERS}/anon_order/stats", "decisions 100\nraised 40\nlowered 0")
        self.put(f"{COUNTERS}/bulk/stats", "decisions 0")

    def remove(self, path: str) -> None:
        """Remove a file or a directory."""
        real = self.real(path)
        if not real.exists():
            return
        for child in list(real.iterdir()) if real.is_dir() else []:
            self.remove(f"{path}/{child.name}")
        if real.is_dir():
            real.rmdir()
        else:
            real.unlink(missing_ok=True)

    def make_unloaded(self) -> None:
        """Remove the files that disappear when the module is unloaded."""
        for path in (CONTROL, MODULE_DIR, "/sys/kernel/debug/mmpolicy"):
            self.remove(path)


class FakeLib:
    """The calls of libkmod that the wrapper makes, with one known module."""

    def __init__(self, tree: FakeTree) -> None:
        self.tree = tree
        self.path: bytes | None = f"/lib/modules/{RELEASE}/updates/mmpolicy.ko".encode()
        self.options: bytes | None = None
        self.info = [(b"srcversion", b"ABC123")]
        self.info += [(b"parm", f"{point}:policy at load".encode()) for point in POINTS]
        self.insert_result = 0
        self.remove_result = 0
        self.inserted: list[tuple[int, bytes]] = []
        self.open_modules = 0
        self.open_lists = 0
        self.on_insert: Callable[[str], None] = tree.make_loaded
        self.on_remove: Callable[[], None] = tree.make_unloaded

    def kmod_new(self, directory: bytes | None, config: None) -> int:
        return 1

    def kmod_set_log_priority(self, context: int, priority: int) -> None:
        pass

    def kmod_module_new_from_name(self, context: int, name: bytes, out: Any) -> int:
        assert name == b"mmpolicy"
        out._obj.value = MODULE
        self.open_modules += 1
        return 0

    def kmod_module_unref(self, module: Any) -> None:
        self.open_modules -= 1

    def kmod_module_get_path(self, module: Any) -> bytes | None:
        return self.path if self.tree.installed else None

    def kmod_module_get_options(self, module: Any) -> bytes | None:
        return self.options

    def kmod_module_get_info(self, module: Any, out: Any) -> int:
        if not self.path or not self.tree.installed:
            return -ENOENT
        out._obj.value = 1 if self.info else None
        self.open_lists += 1
        return len(self.info)

    def _entry(self, entry: Any) -> tuple[bytes, bytes]:
        number: int = getattr(entry, "value", entry)
        return self.info[number - 1]

    def kmod_module_info_get_key(self, entry: Any) -> bytes:
        return self._entry(entry)[0]

    def kmod_module_info_get_value(self, entry: Any) -> bytes:
        return self._entry(entry)[1]

    def kmod_module_info_free_list(self, head: Any) -> None:
        self.open_lists -= 1

    def kmod_list_next(self, head: Any, entry: Any) -> int | None:
        number = getattr(entry, "value", entry)
        return number + 1 if number < len(self.info) else None

    def kmod_module_probe_insert_module(
        self, module: Any, flags: int, options: bytes, *callbacks: None
    ) -> int:
        assert getattr(module, "value", module) == MODULE
        self.inserted.append((flags, options))
        if self.insert_result == 0:
            self.on_insert(options.decode())
        return self.insert_result

    def kmod_module_remove_module(self, module: Any, flags: int) -> int:
        assert (getattr(module, "value", module), flags) == (MODULE, 0)
        if self.remove_result == 0:
            self.on_remove()
        return self.remove_result


class Clock:
    """Time that passes only in sleep(); Ctrl-C comes after the last step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[Callable[[], object]] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)()


class Result(NamedTuple):
    """Result of a run of the command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]
