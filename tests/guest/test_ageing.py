# SPDX-License-Identifier: GPL-2.0
"""Under `adaptive`, densely used memory keeps its large folios while a tool clears
accessed bits.
"""

from __future__ import annotations

import pytest

from lab.guest import Guest

from .conftest import Machines
from .tools import folios, must, switch

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 30.0  # rough duration of each test, for the schedule

# PART: pages that are touched before the accessed bits are cleared; PARTS: how often that happens
PART, PARTS = 4096, 12

# Shell commands that clear the accessed bits of a program. A child of the program does it itself,
# or makes the kernel do it.
AGES = {
    "nobody": "true",
    "clear_refs": "echo 1 >/proc/$PPID/clear_refs",
    # Creates a new generation of MGLRU in the root cgroup, for which the kernel walks all page
    # tables.
    "mglru": """
        f=/sys/kernel/debug/lru_gen
        max=$(awk '$1 == "memcg" { on = $3 == "/" } on && /^ +[0-9]/ { g = $1 } END { print g }' $f)
        id=$(awk '$1 == "memcg" && $3 == "/" { print $2 }' $f)
        echo "+ $id 0 $max 1 1" >$f""",
    "damon": """
        cd /sys/kernel/mm/damon/admin/kdamonds
        [ -e 0 ] || echo 1 >nr_kdamonds
        cd 0 || exit
        if [ "$(cat state)" = off ]; then
            echo 1 >contexts/nr_contexts; cd contexts/0; echo vaddr >operations
            echo 1000 >monitoring_attrs/intervals/sample_us
            echo 20000 >monitoring_attrs/intervals/aggr_us
            echo 1000 >monitoring_attrs/nr_regions/min
            echo 2000 >monitoring_attrs/nr_regions/max
            echo 1 >targets/nr_targets; echo $PPID >targets/0/pid_target
            echo on >../../state
        fi
        sleep 0.3""",
}


def faults(guest: Guest, touch: str, age: str) -> float:
    """Return how many folios a program gets that runs the command `age` after each part of its
    memory is touched. Each folio was made by one fault.
    """
    parts = [f"{touch} {i * PART} {i * PART + PART} sh" for i in range(PARTS)]
    words = f"map {PART * PARTS} {' '.join(parts)} folios 0 {PART * PARTS} verify"
    (shown,) = folios(guest, words, *[age] * PARTS)
    return sum(pages / (1 << order) for order, pages in shown.items())


@pytest.mark.parametrize("who", [who for who in AGES if who != "nobody"])
def test_aged_while_it_fills(machines: Machines, who: str) -> None:
    """If the accessed bits of a program are cleared while it fills its memory upwards or downwards,
    it has at most a tenth more faults than otherwise.
    """
    guest = machines.get("cloud", mem="2G", cpus=2)
    must(guest, "modprobe mmpolicy; echo y >/sys/kernel/mm/lru_gen/enabled")
    switch(guest, "adaptive", max_order=4)
    for touch in "touch", "down":
        without = faults(guest, touch, AGES["nobody"])
        assert without < PART * PARTS / 15
        assert faults(guest, touch, AGES[who]) <= 1.1 * without
