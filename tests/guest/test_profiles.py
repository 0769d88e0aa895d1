# SPDX-License-Identifier: GPL-2.0
"""Profiles can be created, set and deleted; wrong requests are refused."""

from __future__ import annotations

from lab.guest import Guest

from .tools import ROOT, Poke, folios, must, poke, refused

DENSE = "map 4096 touch 0 4096 folios 0 4096"
PROFILES = f"{ROOT}/profiles"
CREATE, DELETE = f"{PROFILES}/create", f"{PROFILES}/delete"
WRONG = ("\n", "A", "-a", "_a", "a b", "a/b", "a.b", ".", "..", "a\n\n", "a\nb", "é", "x" * 32)
TAKEN = ("none", "create", "delete", "experiment", "measure")
RIGHT = ("a", "0", "a-b_c", "x" * 31)


def names(guest: Guest) -> set[str]:
    """Return the names of all profiles."""
    return {*must(guest, f"cd {PROFILES} && ls -d */").replace("/", "").split()}


def test_a_new_profile_is_stock(loaded: Guest) -> None:
    """The files of a new profile have the values that the default profile has after load. Hook
    points that apply to the whole host exist only in the default profile.
    """
    must(loaded, f"echo web-1 >{CREATE}")
    assert names(loaded) == {"default", "web-1"}
    differ = loaded.run(f"cd {PROFILES} && diff -r default web-1").out
    assert differ == "Only in default: bulk\n"
    assert must(loaded, f"cat {ROOT}/state") == "stock\n"


def test_profiles_have_settings_of_their_own(loaded: Guest) -> None:
    """Each profile has its own settings. They take effect on no fault as long as nothing is bound
    to the profile.
    """
    must(loaded, f"echo a >{CREATE} && echo fixed >{PROFILES}/a/anon_order/policy")
    must(loaded, f"echo 6 >{PROFILES}/a/anon_order/fixed/max_order")
    assert must(loaded, f"cat {PROFILES}/default/anon_order/fixed/max_order") == "4\n"
    assert must(loaded, f"cat {ROOT}/state") == "active\n"
    assert folios(loaded, DENSE) == [{0: 4096}]
    must(loaded, f"echo a >{DELETE}")
    assert must(loaded, f"cat {ROOT}/state") == "stock\n"
    assert names(loaded) == {"default"}


def test_names(loaded: Guest) -> None:
    """A profile is not created if its name is invalid. A valid name can be used for one profile,
    and again after this profile was deleted.
    """
    refused(poke(loaded, [Poke(CREATE, name, 1, ("EINVAL",)) for name in WRONG + TAKEN]))
    refused(poke(loaded, [Poke(CREATE, "x", 5000, ("EINVAL",))]))
    assert names(loaded) == {"default"}
    outcomes = ((CREATE, ""), (CREATE, "EEXIST"), (DELETE, ""), (DELETE, "ENOENT"))
    pokes = [
        Poke(path, name + end, 1, (error,))
        for name in RIGHT
        for end in ("", "\n")
        for path, error in outcomes
    ]
    refused(poke(loaded, pokes))
    assert names(loaded) == {"default"}


def test_there_are_at_most_128(loaded: Guest) -> None:
    """There can be 128 profiles with the default one; to create another one fails with ENOSPC. A
    reset deletes all but the default profile.
    """
    pokes = [Poke(CREATE, f"p{i}", 1, ("" if i < 127 else "ENOSPC",)) for i in range(129)]
    refused(poke(loaded, pokes))
    assert len(names(loaded)) == 128
    must(loaded, f"echo 1 >{ROOT}/reset")
    assert names(loaded) == {"default"}


def test_what_is_in_use_stays(loaded: Guest) -> None:
    """A profile that a cgroup, a process or an experiment uses cannot be deleted, and the default
    profile never: the write fails with EBUSY.
    """
    must(loaded, f"for name in a b c; do echo $name >{CREATE}; done")
    must(loaded, f"mkdir /sys/fs/cgroup/t && stat -c %i /sys/fs/cgroup/t >{PROFILES}/a/cgroups")
    must(loaded, f"sleep 100 & echo $! >{PROFILES}/b/pids")
    must(loaded, f"echo c >{ROOT}/experiment/treatment")
    before = must(loaded, f"cd {PROFILES} && grep -r . */")
    everyone = ("a", "b", "c", "default")
    refused(poke(loaded, [Poke(DELETE, name, 1, ("EBUSY",)) for name in everyone]))
    assert must(loaded, f"cd {PROFILES} && grep -r . */") == before
    must(loaded, f"rmdir /sys/fs/cgroup/t && kill $(cat {PROFILES}/b/pids)")
    must(loaded, f"echo none >{ROOT}/experiment/treatment")
    must(loaded, f"while [ $(wc -c <{PROFILES}/b/pids) != 0 ]; do sleep 0.1; done")
    refused(poke(loaded, [Poke(DELETE, name, 1, ("",)) for name in ("a", "b", "c")]))
    assert names(loaded) == {"default"}


def test_delete_while_files_are_open(loaded: Guest) -> None:
    """If a profile is deleted while a process has one of its files open, the process gets an error
    when it uses the file.
    """
    must(loaded, f"echo a >{CREATE}")
    script = f"exec 3<>{PROFILES}/a/anon_order/policy; echo a >{DELETE}; echo never >&3; cat <&3"
    assert loaded.run(script).rc
    assert names(loaded) == {"default"}
    assert must(loaded, f"cat {ROOT}/state") == "stock\n"
