# SPDX-License-Identifier: GPL-2.0
"""docs/sysfs-abi.txt agrees with the files of the module: each file has an entry, each entry a
file, and each file refuses the writes that its entry excludes.
"""

from __future__ import annotations

import pytest

from abi import Entry, parse
from lab.guest import Guest
from lab.machine import TREE

from .tools import ROOT, Poke, must, poke, refused

ENTRIES = parse(TREE / "docs/sysfs-abi.txt")
FOLDERS = f"{ROOT} /sys/kernel/debug/mmpolicy /sys/module/mmpolicy/parameters"
NOBODY = 65534


# Errors that depend on other state, such as existing profiles. They are not tested here, but in
# test_profiles.py and others.
OWN_TESTS = {"ENOENT", "EEXIST", "ENOSPC", "ESRCH", "EBUSY"}

ENDS = ("", "\n")
NOT_NUMBERS = ["\n", "abc", "1.5", "0x4", "1e0", " 4", "4 4", "4\n\n", "--4", "-"]
OUTSIDE = ["-1", "-99999999999999999999", "99999999999999999999"]
NOT_WORDS = ["\n", "Stock", "stoc", "stock adaptive", " stock", "[stock]", "0", "-1", "1.5"]


def live(guest: Guest) -> dict[str, int]:
    """Return the mode of each file that the module has in sysfs and debugfs, by path."""
    found = must(guest, f"find {FOLDERS} -type f -printf '%p %m\\n'")
    return {path: int(mode, 8) for path, mode in map(str.split, found.splitlines())}


def entry_of(path: str) -> Entry:
    """Return the entry of docs/sysfs-abi.txt for a file; exactly one entry must match its path."""
    (found,) = [entry for entry in ENTRIES if entry.matches(path)]
    return found


def files(guest: Guest) -> list[tuple[str, Entry]]:
    """Return (path, entry) for each file of the module that is documented as stable ABI."""
    pairs = [(path, entry_of(path)) for path in live(guest)]
    return [(path, entry) for path, entry in pairs if entry.is_abi]


def plain_files(guest: Guest) -> list[tuple[str, Entry]]:
    """Return (path, entry) for each file that takes either a number within a range or one of some
    words.
    """
    pairs = [pair for pair in files(guest) if not {"ENOENT", "ESRCH"} & {*pair[1].errors}]
    return [(p, e) for p, e in pairs if (e.range or e.values) and not p.endswith("/enabled")]


def read(guest: Guest, path: str) -> str:
    """Return the value of a file as text."""
    return must(guest, f"cat {path}").strip()


# Both ways


def test_every_file_is_documented(loaded: Guest) -> None:
    """Each file of the module has exactly one entry in docs/sysfs-abi.txt, which gives its mode."""
    must(loaded, f"echo other >{ROOT}/profiles/create")
    assert {path: entry_of(path).mode for path in live(loaded)} == live(loaded)


def test_every_entry_is_live(loaded: Guest) -> None:
    """Each entry of docs/sysfs-abi.txt matches a file that the module has."""
    paths = live(loaded)
    missing = [e.pattern for e in ENTRIES if not any(e.matches(path) for path in paths)]
    assert not missing


def test_files_belong_to_root(loaded: Guest) -> None:
    """All files of the module belong to root, so that their mode decides who may write."""
    assert must(loaded, f"find {FOLDERS} ! -user root -o ! -group root") == ""


def test_defaults(loaded: Guest) -> None:
    """After the module is loaded, each of its files has the default value that docs/sysfs-abi.txt
    gives.
    """
    for path, entry in files(loaded):
        if entry.default is not None:
            text = read(loaded, path)
            assert text.partition("[")[2].partition("]")[0] or text == entry.default, path


def test_policies(loaded: Guest) -> None:
    """A file `policy` lists exactly the words that are documented. The active policy, in brackets,
    is the documented default.
    """
    for path, entry in files(loaded):
        if entry.mode == 0o644 and entry.values:
            words = read(loaded, path).split()
            assert sorted(word.strip("[]") for word in words) == sorted(entry.values)
            assert [word for word in words if word[0] == "["] == [f"[{entry.default}]"]


def test_knobs_are_told_of(loaded: Guest) -> None:
    """The folder `knobs` in sysfs has an entry for each documented knob, and no other. It gives the
    range, the default, the unit and the meaning that are documented.
    """
    folder, profile = f"{ROOT}/knobs", f"{ROOT}/profiles/default/"
    told: dict[str, dict[str, str]] = {}
    for line in must(loaded, f"cd {folder} && grep -r .").splitlines():
        path, _, text = line.partition(":")
        knob, _, name = path.rpartition("/")
        told.setdefault(knob, {})[name] = text
    assert all(len(texts.pop("meaning").split()) > 2 for texts in told.values())
    knobs = {path.removeprefix(profile): e for path, e in files(loaded) if profile in path}
    numbers = {knob: e for knob, e in knobs.items() if e.range and e.default}
    for knob, entry in numbers.items():
        assert entry.range
        low, high = map(str, entry.range)
        expected = {"min": low, "max": high, "default": entry.default, "unit": entry.unit}
        assert told.pop(knob) == expected
    assert numbers and not told


def test_counters(loaded: Guest) -> None:
    """The lines of each file `stats` are the documented counters, each with a number."""
    for path in live(loaded):
        if path.endswith("/stats"):
            pairs = [line.split() for line in read(loaded, path).splitlines()]
            entry = entry_of(path)
            assert all(entry.counts(name) and value.isdigit() for name, value in pairs)
            names = [name for name, _ in pairs]
            unknown = [p for p in entry.counters if not any(entry_counts(p, n) for n in names)]
            assert not unknown


def entry_counts(pattern: str, name: str) -> bool:
    """Return whether the name of a counter matches a pattern of docs/sysfs-abi.txt."""
    return Entry("", "", 0, None, (), None, None, (), (pattern,)).counts(name)


# Accepted writes


def test_bounds_are_accepted(loaded: Guest) -> None:
    """Each file for a number accepts its smallest and its largest documented value, with and
    without a newline.
    """
    pokes = []
    for path, entry in plain_files(loaded):
        if entry.range and entry.mode & 0o200:
            pokes += [Poke(path, f"{n}{end}", 1, ("",)) for n in entry.range for end in ENDS]
    for task, outcome in poke(loaded, pokes):
        assert outcome.error == ""
        assert outcome.after == task.text.strip(), task.path


def test_words_are_accepted(loaded: Guest) -> None:
    """Each documented word can be written to its file, which then shows it in brackets."""
    pokes = []
    for path, entry in plain_files(loaded):
        if entry.mode == 0o644 and entry.values:
            pokes += [Poke(path, word + end, 1, ("",)) for word in entry.values for end in ENDS]
    for task, outcome in poke(loaded, pokes):
        assert outcome.error == ""
        assert f"[{task.text.strip()}]" in (outcome.after or "").split(), task.path


def test_reset_restores_every_default(loaded: Guest) -> None:
    """A write to `reset` restores the defaults of all files after any other writes."""
    pokes = []
    for path, entry in plain_files(loaded):
        if entry.mode == 0o644:
            other = str(entry.range[1]) if entry.range else entry.values[-1]
            pokes.append(Poke(path, other, 1, ("",)))
    assert all(not outcome.error for _, outcome in poke(loaded, pokes))
    assert read(loaded, f"{ROOT}/state") == "active"
    must(loaded, f"echo 1 >{ROOT}/reset")
    test_defaults(loaded)
    assert read(loaded, f"{ROOT}/state") == "stock"


# Refused writes


def number_pokes(path: str, entry: Entry) -> list[Poke]:
    """Return all invalid writes to a file that takes a number, each with the error that it must
    give.
    """
    assert entry.range
    outside = [*OUTSIDE, str(entry.range[0] - 1), str(entry.range[1] + 1)]
    return [
        *(Poke(path, text, 1, ("EINVAL",)) for text in NOT_NUMBERS),
        *(Poke(path, text, 1, ("ERANGE",)) for text in outside),
        Poke(path, "x", 5000, ("EINVAL",)),
        Poke(path, "0", 5000, ("EINVAL", "ERANGE")),
        Poke(path, "1", 5000, ("EINVAL", "ERANGE")),
        Poke(path, "", 1, ("",)),
    ]


def word_pokes(path: str, entry: Entry) -> list[Poke]:
    """Return all invalid writes to a file that takes a word, each with the error that it
    must give.
    """
    return [
        *(Poke(path, text, 1, ("EINVAL",)) for text in NOT_WORDS if text not in entry.values),
        Poke(path, "stock", 1000, ("EINVAL",)),
        Poke(path, "x", 5000, ("EINVAL",)),
        Poke(path, "", 1, ("",)),
    ]


def test_bad_writes_are_refused(loaded: Guest) -> None:
    """Each invalid write to a file fails with the documented errno, and changes no value."""
    pokes = []
    for path, entry in files(loaded):
        if entry.mode & 0o200 and (entry.range or entry.values):
            some = number_pokes(path, entry) if entry.range else word_pokes(path, entry)
            pokes += some
            given = {error for task in some for error in task.errors} - {""}
            assert given == set(entry.errors) - OWN_TESTS
    refused(poke(loaded, pokes))


@pytest.mark.parametrize("text", ("1", "stock"))
def test_read_only_files(loaded: Guest, text: str) -> None:
    """Read-only files cannot be opened for writing, not even by root."""
    pokes = [
        Poke(path, text, 1, ("EACCES",)) for path, entry in files(loaded) if entry.mode == 0o444
    ]
    refused(poke(loaded, pokes))


def test_reset_cannot_be_read(loaded: Guest) -> None:
    """The file `reset` cannot be read."""
    assert loaded.run(f"cat {ROOT}/reset").rc


def test_only_root_writes(loaded: Guest) -> None:
    """Users other than root get EACCES when they write to a file, and may read it as its mode
    permits.
    """
    pokes = []
    for path, entry in files(loaded):
        text = str(entry.range[1]) if entry.range else "stock" if "policy" in path else "1"
        pokes.append(Poke(path, text, 1, ("EACCES",)))
    outcomes = poke(loaded, pokes, NOBODY)
    refused(outcomes)
    for task, outcome in outcomes:
        assert (outcome.before is not None) == bool(entry_of(task.path).mode & 0o004)
