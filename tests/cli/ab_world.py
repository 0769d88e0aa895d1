# SPDX-License-Identifier: GPL-2.0
"""A world in which experiments run: simulated time, two working arms, and default options."""

from __future__ import annotations

from collections.abc import Callable

from .fakes import CONTROL, Clock, FakeTree, read_named

DEBUG = "/sys/kernel/debug/mmpolicy"
ARMS = ("ab-control", "ab-treatment")
SHORT = ["--block", "4", "--washout", "1", "--interval", "1"]
SHORT += ["--aa-pairs", "2", "--pairs", "6", "--seed", "1"]
PGFAULT = ["--metric", "vmstat.pgfault/s lower"]
SWITCHBACK = ["--design", "switchback", *PGFAULT, *SHORT]
SPLIT = ["--design", "split", "--metric", "arm.anon_order.allocated_order_4 / arm.units", *SHORT]
FIXED = ["--treatment", "anon_order=fixed,max_order=3"]


class World(Clock):
    """Time in which the arms work: the treatment makes 10 % fewer faults."""

    def __init__(self, tree: FakeTree) -> None:
        super().__init__()
        self.tree = tree
        self.faults = 0.0
        self.active = True  # True while policies decide
        self.of_arms = dict.fromkeys(ARMS, 0.0)
        self.at: list[tuple[float, Callable[[], object]]] = []  # time of an event -> what it does
        self.states: list[dict[str, str]] | None = None  # a list to record all states in, or None
        self.put()

    def put(self) -> None:
        """Write the files that the kernel would show."""
        self.tree.put(
            "/proc/vmstat", f"pgfault {self.faults:.0f}\nallocstall_normal 0\nnr_mapped 7"
        )
        self.tree.put("/proc/pressure/memory", "full avg10=0.00 avg60=0.00 total=0")
        for arm, count in {"default": 0.0, **self.of_arms}.items():
            if self.tree.is_dir(f"{DEBUG}/{arm}"):
                stats = (
                    f"allocated_order_4 {count * self.active:.0f}\nfault_ns {1200 * count:.0f}\n"
                )
                stats += f"fault_ns_log2_10_1 {count:.0f}\n"
                stats += f"fault_missed {count // 100:.0f}"
                self.tree.put(f"{DEBUG}/{arm}/anon_order/stats", stats)
        self.tree.put(f"{DEBUG}/experiment/units", "control 40\ntreatment 44\nfull 0")

    def policy(self, arm: str) -> str:
        """Return the active policy of an arm."""
        path = f"{CONTROL}/profiles/{arm}/anon_order/policy"
        return self.tree.read(path) if self.tree.exists(path) else ""

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.tree.read(f"{CONTROL}/experiment/enabled") == "1":
            percent = float(self.tree.read(f"{CONTROL}/experiment/percent"))
            for arm, share in zip(ARMS, (100 - percent, percent), strict=True):
                rate = 9.0 if "[fixed]" in self.policy(arm) else 10.0
                self.of_arms[arm] += share * rate * seconds
                self.faults += share * rate * seconds
        self.put()
        while self.at and self.now >= self.at[0][0]:
            self.at.pop(0)[1]()
        if self.states is not None:
            self.states.append(read_named(self.tree))
