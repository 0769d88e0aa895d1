# SPDX-License-Identifier: GPL-2.0
"""BPF policies for the points thp_gfp and compact, and their effects on Debian's own kernel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.thp_gfp import MADVISED, SMALL_SIZES, pages
from lab.counting import counters
from lab.guest import SERIES, Guest
from lab.machine import TREE
from lab.policies import example, examples_of, loading, policy_object

from .conftest import Machines
from .test_bpf import SLOT, UNLOAD, answering
from .test_thp_gfp import SPARSE, for_large, of_nodes, reclaimed, touched
from .tools import ROOT, TRACING, must

pytestmark = [
    pytest.mark.flavor("cloud"),
    pytest.mark.amd64("mmpolicy-bpf is built for this machine alone"),
]
SECONDS = 20.0  # rough duration of each test, for the schedule

PROFILE = f"{ROOT}/profiles/default"
# Arguments of ops that leave free memory only in holes of three pages between pinned pages, so that
# compaction of a zone fails. Folios of 16 to 64 kB would make the kernel reclaim and finally call
# the OOM killer; the policy only_compact_any prevents reclaim for them.
CRUMBS = f"crumbs -10 0 4 crumbs -10 1 4 map {{}} {MADVISED} touch 1"
IN_CRUMBS = f"{SMALL_SIZES}; echo only_compact_any >{PROFILE}/thp_gfp/policy"
# values of the answer "effort" of a thp_gfp policy; the last one is not valid
LIGHT, RELAXED, NO_ANSWER = 1, 4, 5
DEFER, TRY = 1, 2  # values of the answer of a compact policy
# A BPF policy of thp_gfp that answers with the value of its knob, if its context is that of
# MADV_HUGEPAGE in this guest. Otherwise it lets the kernel reclaim, which the test notices.
EFFORT = """
#include "mmpolicy.bpf.h"
MMP_EFFORT(of_knob)
{
	static const char text[] = "I give up";

	if (effort->knob[1])
		mmp_bpf_error(effort, text);
	if (!effort->madvised || effort->stock != MMP_RELAXED || !mmp_bpf_free(effort, 0) ||
		effort->end - effort->start < 100 << 20 || mmp_bpf_pressure(effort) > 100)
		return MMP_RELAXED;
	return effort->knob[0];
}
MMP_POLICY_OF(thp_gfp, policy, .name = "of_knob", .effort = (void *)of_knob, .knobs = {
	{ "effort", "effort", "the answer", 0, 9, 1 },
	{ "error", "switch", "report an error", 0, 1, 0 },
});
"""
# A BPF policy of compact that answers with the value of its knob. If its context is impossible, it
# reports an error, after which it is no longer called.
COMPACT = """
#include "mmpolicy.bpf.h"
MMP_COMPACT(of_knob)
{
	static const char text[] = "told wrongly";
	const __u32 before = compaction->when == MMP_BEFORE;

	if (compaction->pages < compaction->free || !compaction->pages || !compaction->order ||
		compaction->order > 10 || compaction->movable > 1 || compaction->zone >= 65536 ||
		compaction->when > MMP_SUCCEEDED || (compaction->stock != 0) != before ||
		(before && compaction->scanned))
		mmp_bpf_error(compaction, text);
	return compaction->knob[0];
}
MMP_POLICY_OF(compact, policy, .name = "of_knob", .compact = (void *)of_knob, .knobs = {
	{ "answer", "answer", "the answer", 0, 9, 1 },
});
"""


def with_nodes(machines: Machines, flavor: str, **needs: bool) -> Iterator[Guest]:
    """Yield a guest with two NUMA nodes, swap and the module. BPF policies that the test has loaded
    are unloaded at its end.
    """
    guest = of_nodes(machines, flavor, cpus=1, nodes=2, swap="1G", **needs)
    must(guest, "mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf")
    yield guest
    must(guest, f"{UNLOAD}; until rmmod mmpolicy 2>/run/why; do sleep 0.1; done")


@pytest.fixture
def guest(machines: Machines, stock: str) -> Iterator[Guest]:
    """Return a guest with one of Debian's own kernels."""
    yield from with_nodes(machines, stock)


@pytest.fixture
def counting(machines: Machines) -> Iterator[Guest]:
    """Yield a new guest with Debian's kernel for clouds. Its clock counts instructions, so that
    repeated runs give the same figures.

    It must be new, as a zone remembers results of compaction, and is deferred after failures.
    """
    machines.end()
    yield from with_nodes(machines, "cloud", icount=True)


def set_policy(guest: Guest, point: str, name: str, **knobs: int) -> None:
    """Set knobs of a policy, and then choose the policy for its hook point."""
    for knob, value in knobs.items():
        must(guest, f"echo {value} >{PROFILE}/{point}/{name}/{knob}")
    must(guest, f"echo {name} >{PROFILE}/{point}/policy")


EVENTS = f"{TRACING}/events/mmpolicy"


@contextmanager
def traced(guest: Guest) -> Iterator[None]:
    """Record mmpolicy's trace events during a `with` block. Their times are of CLOCK_MONOTONIC,
    which the BPF policies read, too.
    """
    must(guest, f"cd {TRACING}; echo mono >trace_clock; echo 8192 >buffer_size_kb; echo >trace")
    must(guest, f"echo 1 >{EVENTS}/enable")
    yield
    must(guest, f"echo 0 >{EVENTS}/enable")


def told(guest: Guest, point: str) -> list[dict[str, str]]:
    """Return the context and the answer of each call of a BPF policy at a hook point, as the trace
    has them. The key "at" is the time in seconds.
    """
    lines = re.findall(
        rf" (\d+\.\d+): mmpolicy_bpf_{point}: (.*)", must(guest, f"cat {TRACING}/trace")
    )
    return [dict(fact.split("=") for fact in f"at={at} {line}".split()) for at, line in lines]


def effort_of(guest: Guest, answer: int) -> bool:
    """Return whether a process reclaims directly to get huge pages if the BPF policy gives this
    answer.
    """
    set_policy(guest, "thp_gfp", "of_knob", effort=answer)
    before = for_large(guest)
    found = reclaimed(touched(guest, SPARSE))
    reclaims = for_large(guest) > before
    assert reclaims or "pgscan_direct" not in found
    return reclaims


def test_efforts(guest: Guest) -> None:
    """Each valid answer of a BPF policy for the effort has the effect that its name says. An
    invalid answer is treated as stock, and counted.
    """
    must(guest, loading(policy_object("of_knob", EFFORT)))
    assert must(guest, f"cat {SLOT}/point") == "thp_gfp\n"
    assert "of_knob" not in must(guest, f"cat {PROFILE}/anon_order/policy")
    with traced(guest):
        assert not effort_of(guest, LIGHT)
    tried = r"mmpolicy_thp_gfp_try: vma=\w+ stock=direct answer=$"
    assert re.search(tried, must(guest, f"cat {TRACING}/trace"), re.MULTILINE)
    assert ("1", "relaxed", "light") in {
        (each["madvised"], each["stock"], each["answer"]) for each in told(guest, "thp_gfp")
    }
    assert effort_of(guest, RELAXED)
    assert must(guest, f"cat {SLOT}/clamped") == "0\n"
    assert effort_of(guest, NO_ANSWER)
    assert int(must(guest, f"cat {SLOT}/clamped")) > 0


def test_effort_gives_up(guest: Guest) -> None:
    """After a BPF policy has reported an error, its hook point is at stock, and the slot of the
    policy in sysfs has the text of the error.
    """
    must(guest, loading(policy_object("of_knob", EFFORT)))
    set_policy(guest, "thp_gfp", "of_knob", error=1)
    touched(guest, f"map 4 {MADVISED} touch 1")
    must(guest, f"until grep -q '.stock.' {PROFILE}/thp_gfp/policy; do :; done")
    assert must(guest, f"cat {SLOT}/error") == "I give up\n"


def compaction_of(guest: Guest) -> dict[str, int]:
    """Return by how much the counters of the hook point compact rise when a process requests huge
    pages in fragmented memory.
    """
    before = counters(guest, "compact")
    found = touched(guest, CRUMBS.format(56))
    after = counters(guest, "compact")
    counted = {key: after[key] - before[key] for key in after}
    assert counted["migrate_scanned"] <= found.get("compact_migrate_scanned", 0)
    return counted


def test_answers_of_compact(guest: Guest) -> None:
    """The kernel skips or scans a zone as the BPF policy answers. An invalid answer is treated as
    stock, and counted.
    """
    must(guest, f"{IN_CRUMBS}; {loading(policy_object('of_knob', COMPACT))}")
    for answer in DEFER, TRY, 9:
        set_policy(guest, "compact", "of_knob", answer=answer)
        with traced(guest):
            counted = compaction_of(guest)
        found = Counter((each["when"], each["answer"]) for each in told(guest, "compact"))
        assert found["before", "defer"] == counted["skipped"], found
        assert found["before", "try"] == (counted["attempts"] if answer == TRY else 0), found
        assert (counted["skipped"] > 0) == (answer == DEFER), counted
        assert (counted["attempts"] > 0) == (answer != DEFER), counted
        assert (int(must(guest, f"cat {SLOT}/clamped")) > 0) == (answer == 9)
    assert must(guest, f"cat {SLOT}/error") == "\n"


# The examples


def test_calm(guest: Guest) -> None:
    """Under the example policy `calm`, no page is reclaimed for huge pages that a program requests
    by MADV_HUGEPAGE; at stock, pages are.
    """
    must(guest, loading(example("calm")))
    set_policy(guest, "thp_gfp", "calm")
    assert "pgscan_direct" not in reclaimed(touched(guest, SPARSE))
    assert for_large(guest) == 0
    must(guest, f"echo stock >{PROFILE}/thp_gfp/policy")
    assert reclaimed(touched(guest, SPARSE))


# most seconds between an answer and its trace event, as the host may stop the guest in between
CLOSE_S = 0.1


def test_backoff(guest: Guest) -> None:
    """Under the example policy `backoff`, a zone is skipped after a failed compaction, for a time
    in proportion to the number of pages that the attempt has scanned.
    """
    must(guest, f"{IN_CRUMBS}; {loading(example('backoff'))}")
    for paid in 0, 1000:
        set_policy(guest, "compact", "backoff", us_per_page=paid)
        with traced(guest):
            counted = compaction_of(guest)
        assert counted["failure"] > 0
        assert (counted["skipped_undeferred"] > 0) == (paid > 0), counted
        until: dict[tuple[str, str, str], float] = {}
        for each in told(guest, "compact"):
            key, at = (each["zone"], each["order"], each["movable"]), float(each["at"])
            left = until.get(key, 0) - at
            if each["when"] == "before":
                assert abs(left) < CLOSE_S or (each["answer"] == "defer") == (left > 0), each
            else:
                cost = int(each["scanned"]) if each["when"] == "failed" else 0
                until[key] = at + paid * cost / 1e6


# Effects of the examples on a host, compared with policies in C

PAGE = (TREE / "docs/writing-a-policy.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| `([\w.]+)` " + r"\| ([\d.,to ]+) " * 3 + r"\|$", re.MULTILINE)
ROWS = [(point, policy, cells) for point, policy, *cells in ROW.findall(PAGE)]
SETUP = {"thp_gfp": ":", "compact": IN_CRUMBS}
LOAD = {"thp_gfp": SPARSE, "compact": CRUMBS.format(40)}
MACRO = {"thp_gfp": "MMP_EFFORT", "compact": "MMP_COMPACT"}
# relative deviation that a measured figure may have from the range in the document's table
CLOSE = 0.25


def measured(guest: Guest, point: str, policy: str) -> list[float]:
    """Return for a policy: MB in large folios, pages that compaction has scanned for them, and
    pages that reclaim has scanned.
    """
    set_policy(guest, point, policy)
    found = touched(guest, LOAD[point])
    compacted = sum(found.get(f"compact_{kind}_scanned", 0) for kind in ("migrate", "free"))
    return [pages(found, least=2) / 256, compacted, found.get("pgscan_direct", 0)]


@pytest.mark.full
@pytest.mark.skipif(SERIES != "6.12", reason="the table is of Linux 6.12")
@pytest.mark.parametrize(("point", "policy", "cells"), ROWS, ids=[row[1] for row in ROWS])
def test_table(counting: Guest, point: str, policy: str, cells: list[str]) -> None:
    """The table in docs/writing-a-policy.md has the figures that this test measures, for one policy
    of the hook points thp_gfp or compact.
    """
    name, _, kind = policy.partition(".")
    must(counting, f"{SETUP[point]}; {loading(example(name)) if kind else ':'}")
    for here, cell in zip(measured(counting, point, name), cells, strict=True):
        seen = [float(word) for word in cell.replace(",", "").split(" to ")]
        assert seen[0] * (1 - CLOSE) <= here <= seen[-1] * (1 + CLOSE), (here, cell)


def test_the_table_has_all_examples() -> None:
    """The table in docs/writing-a-policy.md has all example policies for the hook points thp_gfp
    and compact.
    """
    for point, macro in MACRO.items():
        named = {policy for of, policy, _ in ROWS if of == point and "." in policy}
        assert named == set(examples_of(macro))


# All points


def test_one_name(guest: Guest) -> None:
    """Two BPF policies cannot have the same name, even at different hook points. `policy list`
    prints each with its hook point.
    """
    must(guest, loading(policy_object("of_knob", EFFORT)))
    assert "refused register 17" in guest.run(loading(policy_object("of_knob_2", COMPACT))).out
    must(guest, f"mmpolicy set thp_gfp of_knob effort=4; {loading(example('fixed'))}")
    listed = must(guest, "mmpolicy policy list")
    rows = re.findall(r"^(\w+) +(\w+) +\d+ +\d+ +(\w+|-) ", listed, re.MULTILINE)
    assert rows == [("fixed64", "anon_order", "-"), ("of_knob", "thp_gfp", "default")]
    assert guest.run("mmpolicy policy unload of_knob").rc == 5
    must(guest, "mmpolicy policy unload --all")
    assert "[stock]" in must(guest, f"cat {PROFILE}/thp_gfp/policy")


def test_slots_serve_all_points(guest: Guest, tmp_path: Path) -> None:
    """The slots for BPF policies serve all hook points: one that a policy has left can be taken by
    a policy for another hook point.
    """
    for _ in range(2):
        for path in example("fixed"), policy_object("of_knob", EFFORT), example("backoff"):
            must(guest, f"{loading(path)}; {UNLOAD}; sleep 0.5")
    must(guest, loading(answering("4")))
    must(guest, f"echo answering >{PROFILE}/anon_order/policy")
    assert guest.run(f"echo answering >{PROFILE}/compact/policy").rc
