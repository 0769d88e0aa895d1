# SPDX-License-Identifier: GPL-2.0
"""Settings that `try` has kept and goes on proving: a record of each, and its pairs of blocks.

The record says that a block at stock has begun before it does. Whoever finds that without a
process that holds the lock knows that it was killed there, and that stock is in force.
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
RUN = "try --watch, pid "  # prefix of the text in the lock
VERSION = 1
ON, ENDED, GOING_BACK, WENT_BACK = "on", "ended", "going back", "went back"  # phases
KEEP_S = 28 * 86400.0  # so long a pair counts
READABLE = 0o644

Ends = tuple[float, float, float]  # estimate, low and high, in percent


class Watch(NamedTuple):
    """One pair of blocks: when it ended, and of each metric the values at stock and as kept."""

    at: float  # seconds since 1970
    values: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Watched:
    """A kept setting that `try --watch` goes on testing, and its progress."""

    trial: str
    cgroup: str
    profile: str
    percent: float  # of the blocks that are at stock
    metrics: tuple[str, ...]
    guards: tuple[str, ...]
    block_s: float
    washout_s: float
    interval_s: float
    began: str
    boot: str  # the id of the boot in which its process was last at work
    days: dict[str, float] = field(default_factory=dict)  # that harm takes to be found
    phase: str = ON
    reason: str = ""  # for its end
    at_stock: int = 0  # id of the cgroup that has a block at stock
    lost: int = 0  # pairs
    skipped: str = ""  # why the last pair was not begun
    effects: dict[str, Ends] = field(default_factory=dict)  # of the last week
    pairs: int = 0  # in the last week
    known: bool = False  # has somebody acknowledged that it went back?

    @property
    def path(self) -> str:
        """Return its file."""
        return f"{FOLDER}/{self.trial}.json"

    @property
    def lock(self) -> str:
        """Return the lock that its process holds."""
        return f"/run/mmpolicy/watch-{self.trial}.lock"

    @property
    def stop(self) -> str:
        """Return the file by which somebody asks its process to end."""
        return f"{FOLDER}/{self.trial}.stop"

    def running(self, tree: Tree) -> str:
        """Return its process in words; empty if there is none."""
        return tree.holder(self.lock)

    def keep(self, tree: Tree, **changes: Any) -> Watched:
        """Write it down with some changes, and return that."""
        new = replace(self, **changes)
        tree.keep_record(self.path, VERSION, asdict(new))
        return new


def read_watched(tree: Tree) -> list[Watched]:
    """Return all records of this host; a file that is none is left out."""
    try:
        found = [_parsed(record) for record in tree.records(FOLDER, VERSION)]
    except Error:  # an ordinary user may not look
        return []
    return sorted((each for each in found if each), key=lambda each: each.trial)


def watched_of(tree: Tree, trial: str) -> Watched | None:
    """Return the record about a trial."""
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
    """Return the pairs, the oldest first; a damaged line is passed over."""
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
    """Write a pair down, and forget those that are too old; return all that count."""
    known = [each for each in read_pairs(tree, trial) if each.at > pair.at - KEEP_S]
    pairs = [*known, pair]
    text = "".join(f"{json.dumps(each._asdict())}\n" for each in pairs)
    tree.keep(f"{FOLDER}/{trial}.jsonl", text, READABLE)
    return pairs


def gone_back(tree: Tree) -> list[Watched]:
    """Return those that were shown to be worse, until somebody acknowledges it."""
    return [each for each in read_watched(tree) if each.phase == WENT_BACK and not each.known]


def left_at_stock(tree: Tree) -> list[Watched]:
    """Return those whose process was killed in a block at stock."""
    return [each for each in read_watched(tree) if is_left_at_stock(tree, each)]


def is_left_at_stock(tree: Tree, record: Watched) -> bool:
    """Tell if its process was killed in a block at stock; a boot has bound the service again."""
    if not record.at_stock or record.running(tree) or record.boot != boot_of(tree):
        return False
    try:
        return CgroupBinding(record.at_stock) not in read_state(tree)
    except Error:  # the module is not loaded
        return True


def wanted_now(tree: Tree, target: State) -> State:
    """Return a target without the bindings that have a block at stock just now."""
    at_stock = {CgroupBinding(each.at_stock) for each in read_watched(tree)
                if each.at_stock and each.running(tree)}  # fmt: skip
    return {key: value for key, value in target.items() if key not in at_stock}
