# SPDX-License-Identifier: GPL-2.0
"""The lease of the module: when it expires, all policies go to stock, without any help of user
space.
"""

from __future__ import annotations

import shlex

import pytest

from lab.guest import Guest

from .tools import ROOT, Poke, folios, must, poke, refused

DENSE = "map 4096 touch 0 4096 folios 0 4096"
PROFILES = f"{ROOT}/profiles"
ARMS = ("control", "treatment")

# Commands that change each setting of the module, and start an experiment.
EVERYTHING = f"""
for name in a b c; do echo $name >{PROFILES}/create || exit; done
for name in default a b c; do
	echo fixed >{PROFILES}/$name/anon_order/policy || exit
	echo 6 >{PROFILES}/$name/anon_order/fixed/max_order || exit
done
mkdir -p /sys/fs/cgroup/t
stat -c %i /sys/fs/cgroup/t >{PROFILES}/a/cgroups || exit
sleep 1000 & echo $! >{PROFILES}/b/pids || exit
echo b >{ROOT}/experiment/control && echo c >{ROOT}/experiment/treatment || exit
echo 7 >{ROOT}/experiment/seed && echo 1 >{ROOT}/experiment/enabled
"""
SEEN = f"cd {ROOT} && find . -type f ! -name lease_left_ms ! -name state -perm /400 | sort"
SEEN += " | xargs grep ''"


def state(guest: Guest) -> str:
    """Return the content of the file `state`."""
    return must(guest, f"cat {ROOT}/state").strip()


def test_everything_is_stock_after_expiry(loaded: Guest) -> None:
    """When the module's lease expires, each of its files gets the content that it had after load,
    byte for byte and in time. Folios are those of stock, and the log has one line about it.
    """
    fresh = must(loaded, SEEN)
    must(loaded, EVERYTHING)
    assert folios(loaded, DENSE) == [{6: 4096}]
    wait = f"echo 1500 >{ROOT}/lease_ms; a=$(date +%s%N); "
    wait += f"until [ $(cat {ROOT}/state) = expired ]; do :; done; b=$(date +%s%N); "
    took = int(must(loaded, wait + "echo $((b - a))")) / 1e6
    assert 1400 < took < 6000
    assert state(loaded) == "expired"
    assert must(loaded, SEEN) == fresh
    assert folios(loaded, DENSE) == [{0: 4096}]
    assert must(loaded, "dmesg").count("lease of 1500 ms expired") == 1
    must(loaded, "rmdir /sys/fs/cgroup/t")


@pytest.mark.parametrize(
    ("start", "after"),
    [
        (f"echo 100 >{ROOT}/lease_ms", "expired"),
        (f"(sleep 0.1; echo 1 >{ROOT}/reset) &", "stock"),
    ],
    ids=["lease", "reset"],
)
def test_nothing_in_between_is_seen(loaded: Guest, start: str, after: str) -> None:
    """As soon as the file `state` says that the lease has expired, all policies are at stock, and
    no profile is left but the default one.
    """
    body = f"""
	{EVERYTHING}
	cd {PROFILES}
	{start}
	while read state <{ROOT}/state; [ $state = active ] || [ $state = detaching ]; do :; done
	echo $state * $(grep -c "\\[stock]" default/anon_order/policy)
	echo 1 >{ROOT}/reset
	rmdir /sys/fs/cgroup/t
    """
    for _ in range(10):
        assert must(loaded, body) == f"{after} create default delete 1\n"


def test_expiry_is_latched(loaded: Guest) -> None:
    """After the lease has expired, each file of the module except `reset` refuses writes. After a
    reset, each file accepts them again.
    """
    must(loaded, f"echo 100 >{ROOT}/lease_ms; until grep -q expired {ROOT}/state; do :; done")
    paths = must(loaded, f"find {ROOT} -type f -perm /200 ! -name reset").split()
    good = {"policy": "stock", "unit": "process", "create": "x", "delete": "x", "cgroups": "1"}
    good |= {"pids": "1", "control": "none", "treatment": "none", "shadow": "none"}
    texts = {path: good.get(path.rpartition("/")[2]) for path in paths}
    values = {path: text or must(loaded, f"cat {path}").strip() for path, text in texts.items()}
    refused(poke(loaded, [Poke(path, text, 1, ("EBUSY",)) for path, text in values.items()]))
    assert state(loaded) == "expired"
    must(loaded, f"echo 1 >{ROOT}/reset")
    assert state(loaded) == "stock"
    must(loaded, f"echo fixed >{PROFILES}/default/anon_order/policy")
    assert folios(loaded, DENSE) == [{4: 4096}]


def test_renewal(loaded: Guest) -> None:
    """The lease does not expire as long as user space renews it in time. A file shows the time that
    is left.
    """
    must(loaded, f"echo fixed >{PROFILES}/default/anon_order/policy")
    must(loaded, f"for i in 1 2 3 4; do echo 8000 >{ROOT}/lease_ms; sleep 2.5; done")
    assert state(loaded) == "active"
    assert must(loaded, f"cat {ROOT}/lease_ms") == "8000\n"
    must(loaded, f"echo 60000 >{ROOT}/lease_ms")
    assert 50000 < int(must(loaded, f"cat {ROOT}/lease_left_ms")) <= 60000
    must(loaded, f"echo 0 >{ROOT}/lease_ms && sleep 1.2")
    assert must(loaded, f"cat {ROOT}/lease_left_ms") == "0\n"
    assert state(loaded) == "active"


def test_reset_ends_the_lease(loaded: Guest) -> None:
    """A reset restores the same state as the expiry of the lease, and ends the lease. Unlike after
    an expiry, the files accept writes.
    """
    fresh = must(loaded, SEEN)
    must(loaded, f"{EVERYTHING}\necho 1000 >{ROOT}/lease_ms")
    must(loaded, f"echo 1 >{ROOT}/reset && sleep 1.5")
    assert must(loaded, SEEN) == fresh
    assert state(loaded) == "stock"
    must(loaded, "rmdir /sys/fs/cgroup/t")


def test_short_leases_are_refused(loaded: Guest) -> None:
    """A lease shorter than 100 ms is refused, as no process could renew it reliably."""
    refused(poke(loaded, [Poke(f"{ROOT}/lease_ms", n, 1, ("ERANGE",)) for n in ("1", "99")]))


def test_expiry_while_somebody_writes(loaded: Guest) -> None:
    """All policies are at stock in the end if the lease expires while processes create, change,
    bind and delete profiles.
    """
    body = f"""
	while [ $(cat {ROOT}/state) != expired ]; do
		echo w$1 >{PROFILES}/create
		echo fixed >{PROFILES}/w$1/anon_order/policy
		echo $$ >{PROFILES}/w$1/pids
		echo -$$ >{PROFILES}/w$1/pids
		echo w$1 >{PROFILES}/delete
	done 2>/dev/null
	true
	"""
    writers = f"for i in 1 2 3; do sh -c {shlex.quote(body)} sh $i & done; wait"
    for _ in range(5):
        must(loaded, f"echo 200 >{ROOT}/lease_ms; {writers}")
        assert must(loaded, f"cd {PROFILES} && ls -d */") == "default/\n"
        must(loaded, f"echo 1 >{ROOT}/reset")


def test_unload_with_a_lease(loaded: Guest) -> None:
    """Unloading the module ends its lease, also while the lease expires or is being reset."""
    must(loaded, f"{EVERYTHING}\necho 100 >{ROOT}/lease_ms; rmmod mmpolicy; sleep 0.3")
    for delay in ("0.08", "0.09", "0.1"):
        must(loaded, "modprobe mmpolicy")
        must(loaded, f"echo 100 >{ROOT}/lease_ms; sleep {delay}; rmmod mmpolicy; sleep 0.2")
    assert folios(loaded, DENSE) == [{0: 4096}]
    must(loaded, "rmdir /sys/fs/cgroup/t")
