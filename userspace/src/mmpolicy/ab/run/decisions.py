# SPDX-License-Identifier: GPL-2.0
"""Count the decisions of each arm's policies, and the faults that were timed, so that a report
notices an arm whose policies did nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmpolicy.ab.arms import Settings
from mmpolicy.ab.metrics import TIMES
from mmpolicy.control.counters import COUNTERS, read_counters
from mmpolicy.control.experiment import PROFILES
from mmpolicy.control.keys import DEFAULT
from mmpolicy.host.files import Tree

# number of events, by kind of event ("decisions", "timed" faults or "missed" faults) and by arm
Counts = dict[str, dict[str, int]]
LEFT_ALONE = "stock"  # policy, and the counter of decisions that are left to the kernel
NOT_DECISIONS = ("fault_", "cost_", "shadow_")  # prefixes of counters of other things
# Counter of page faults whose time could not be measured. It is at the same hook point as the
# histogram of fault times.
MISSED = "fault_missed"


class Decisions:
    """Reads how many decisions the policies of each arm have made. Without debugfs there are no
    counters to read.
    """

    def __init__(self, tree: Tree, arms: Mapping[str, Settings], timing: bool) -> None:
        self.tree = tree
        self.timing = timing
        self.points = {
            arm: {key.point for key, value in settings.items() if key.is_choice and _acts(value)}
            for arm, settings in arms.items()
        }

    def read(self) -> Counts:
        """Return the counts of decisions and fault times since the module was loaded; {} without
        debugfs.
        """
        if not self.tree.is_dir(COUNTERS):
            return {}
        found: Counts = {"decisions": {}}
        for arm, points in self.points.items():
            if points:
                found["decisions"][arm] = sum(self._decided(arm))
        if self.timing:
            for arm, profile in PROFILES.items():
                timed, missed = self._times(profile)
                found.setdefault("timed", {})[arm] = timed
                found.setdefault("missed", {})[arm] = missed
        return found

    def _decided(self, arm: str) -> Iterator[int]:
        """Yield the number of decisions at each point of an arm. A point that exists only in the
        default profile, for the whole host, is read there.
        """
        for point in sorted(self.points[arm]):
            own = self.tree.is_dir(f"{COUNTERS}/{PROFILES[arm]}/{point}")
            profile = PROFILES[arm] if own else DEFAULT
            counters = read_counters(self.tree, profile, point)[point]
            yield from (count for name, count in counters.items() if _is_decision(name))

    def _times(self, profile: str) -> tuple[int, int]:
        """Return how many faults of a profile were timed, and how many could not be timed."""
        for counters in read_counters(self.tree, profile, None).values():
            if MISSED in counters:
                start = f"{TIMES}_log2_"
                timed = (count for name, count in counters.items() if name.startswith(start))
                return sum(timed), counters[MISSED]
        return 0, 0


def _acts(policy: str) -> bool:
    return policy != LEFT_ALONE


def _is_decision(name: str) -> bool:
    return name != LEFT_ALONE and not name.startswith(NOT_DECISIONS)


def risen(before: Counts, now: Counts) -> Counts:
    """Return by how much each count has risen between two readings."""
    return {
        what: {arm: count - before.get(what, {}).get(arm, 0) for arm, count in counts.items()}
        for what, counts in now.items()
    }
