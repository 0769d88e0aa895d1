# SPDX-License-Identifier: GPL-2.0
"""Records of `try --watch`, which compares a kept setting with stock from time to time.

For a short block the service runs at stock, and its metrics are compared with those of a block
with the setting. Before a block at stock begins, the record gets the id of the cgroup. If the
process is killed in this block, its lock is free and the record still has the id. So the service is
known to be at stock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from mmpolicy.control.journal import boot_of
from mmpolicy.control.keys import CgroupBinding, State
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree

FOLDER = "/var/lib/mmpolicy/watch"
# beginning of the text in the lock file while `try --watch` holds the lock
RUN = "try --watch, pid "
VERSION = 1
# phases of the test of a setting
ON, ENDED, GOING_BACK, WENT_BACK = "on", "ended", "going back", "went back"
# age in seconds at which a pair of blocks (at stock and with the setting) is dropped
KEEP_S = 28 * 86400.0
READABLE = 0o644

# estimated effect of a setting, lower end and upper end of its interval, in percent
Ends = tuple[float, float, float]


class Watch(NamedTuple):
    """A pair of blocks, one at stock and one with the setting: when the pair ended, and the value
    of each metric at stock and with the setting.
    """

    at: float  # time in seconds since 1970 at which the pair ended
    values: dict[str, tuple[float, float]]


def watch_command(percent: float, trial: str) -> str:
    """Return the command that tests the kept setting of a trial further."""
    return f"mmpolicy try --watch {percent:g}% --trial {trial}"


@dataclass(frozen=True)
class Watched:
    """A kept setting that `try --watch` tests further, and the progress of the test."""

    trial: str
    cgroup: str
    profile: str
    percent: float  # percentage of the time for which the service runs at stock
    metrics: tuple[str, ...]
    guards: tuple[str, ...]
    block_s: float
    washout_s: float
    interval_s: float
    began: str
    boot: str  # id of the boot in which the test's process last ran
    # days until the test finds a harmful effect, by metric; 0 if it would not find it
    days: dict[str, float] = field(default_factory=dict)
    phase: str = ON
    reason: str = ""  # why the test has ended; "" while it goes on
    # id of the service's cgroup while the service runs a block at stock; 0 at other times
    at_stock: int = 0
    lost: int = 0  # number of pairs of blocks that were begun and not completed
    skipped: str = ""  # why the last pair of blocks was skipped; "" if it was not
    # effects of the setting over the last week, by metric
    effects: dict[str, Ends] = field(default_factory=dict)
    pairs: int = 0  # number of pairs of blocks in the last week
    # True once a user has acknowledged that `try --watch` has undone the setting
    known: bool = False

    @property
    def path(self) -> str:
        """Return the path of the record about this setting."""
        return f"{FOLDER}/{self.trial}.json"

    @property
    def lock(self) -> str:
        """Return the lock file that the process of `try --watch` holds."""
        return f"/run/mmpolicy/watch-{self.trial}.lock"

    @property
    def stop(self) -> str:
        """Return the file whose creation asks the process of `try --watch` to end."""
        return f"{FOLDER}/{self.trial}.stop"

    @property
    def goes_on(self) -> str:
        """Return the command that goes on with this test after its process has ended."""
        return watch_command(self.percent, self.trial)

    def running(self, tree: Tree) -> str:
        """Return the process that tests the setting, as text such as `try --watch, pid 7`; "" if
        none does.
        """
        return tree.holder(self.lock)

    def keep(self, tree: Tree, **changes: Any) -> Watched:
        """Write the record with some fields changed, and return it."""
        new = replace(self, **changes)
        tree.keep_record(self.path, VERSION, asdict(new))
        return new


def read_watched(tree: Tree) -> list[Watched]:
    """Return all records of `try --watch` on this host; skip files that are not records."""
    try:
        found = [_parsed(record) for record in tree.records(FOLDER, VERSION)]
    except Error:  # only root may read the records; for other users there are none
        return []
    return sorted((each for each in found if each), key=lambda each: each.trial)


def watched_of(tree: Tree, trial: str) -> Watched | None:
    """Return the record of `try --watch` about the setting that a trial has kept; None if there is
    none.
    """
    return _parsed(tree.record_of(f"{FOLDER}/{trial}.json", VERSION))


def _parsed(record: dict[str, Any]) -> Watched | None:
    try:
        for name in "metrics", "guards":
            record[name] = tuple(record[name])
        record["effects"] = {name: tuple(ends) for name, ends in record["effects"].items()}
        return Watched(**record)
    except (TypeError, LookupError, AttributeError):
        return None


def read_pairs(tree: Tree, trial: str) -> list[Watch]:
    """Return the pairs of blocks that `try --watch` has measured for a trial, the oldest first;
    skip damaged lines of the file.
    """
    path = f"{FOLDER}/{trial}.jsonl"
    found = []
    for line in tree.read(path).splitlines() if tree.exists(path) else ():
        try:
            record = json.loads(line)
            values = {name: (float(a), float(b)) for name, (a, b) in record["values"].items()}
            found.append(Watch(float(record["at"]), values))
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    return found


def add_pair(tree: Tree, trial: str, pair: Watch) -> list[Watch]:
    """Append a pair of blocks to the file of a trial, drop pairs older than KEEP_S, and return the
    others.
    """
    known = [each for each in read_pairs(tree, trial) if each.at > pair.at - KEEP_S]
    pairs = [*known, pair]
    text = "".join(f"{json.dumps(each._asdict())}\n" for each in pairs)
    tree.keep(f"{FOLDER}/{trial}.jsonl", text, READABLE)
    return pairs


def gone_back(tree: Tree) -> list[Watched]:
    """Return the settings that `try --watch` has undone as worse, and that no user has
    acknowledged.
    """
    return [each for each in read_watched(tree) if each.phase == WENT_BACK and not each.known]


def ended_by_boot(tree: Tree) -> list[Watched]:
    """Return the settings whose test ended with a boot, as its systemd unit is transient."""
    old = [each for each in read_watched(tree) if each.boot != boot_of(tree)]
    return [each for each in old if each.phase == ON and not each.running(tree)]


def left_at_stock(tree: Tree) -> list[Watched]:
    """Return the records of those `try --watch` processes that were killed during a block at stock,
    so that their services are still at stock.
    """
    return [each for each in read_watched(tree) if is_left_at_stock(tree, each)]


def is_left_at_stock(tree: Tree, record: Watched) -> bool:
    """Return whether a killed `try --watch` has left its service at stock.

    After a reboot it has not, as the boot binds the service again.
    """
    if not record.at_stock or record.running(tree) or record.boot != boot_of(tree):
        return False
    try:
        return CgroupBinding(record.at_stock) not in read_state(tree)
    # the module is not loaded, so its state cannot be read, and the service is at stock
    except Error:
        return True


def wanted_now(tree: Tree, target: State) -> State:
    """Return a target state without the bindings that `try --watch` has removed for one block at
    stock, so that applying the state does not disturb the block.
    """
    at_stock = {CgroupBinding(each.at_stock) for each in read_watched(tree)
                if each.at_stock and each.running(tree)}  # fmt: skip
    return {key: value for key, value in target.items() if key not in at_stock}
