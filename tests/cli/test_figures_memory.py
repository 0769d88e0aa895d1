# SPDX-License-Identifier: GPL-2.0
"""Figures of `trim` and of virtual machines in documents agree with the benchmarks' files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
STAGES = ("burst", "dropped", "trimmed", "later")
ROWS = {"RSS": "rss", "charged to the cgroup": "charged", "in huge pages": "huge"}
PAGES = {"redis.md": "redis", "go.md": "go", "jvm.md": "java"}
ARMS = {
    "stock": "stock", "`never` for all": "THP off", "profile `vm`": "vm",
    "the same, and `anon_order` `fixed` 9 with `override_madvise=1`": "vm, fixed 9",
}  # fmt: skip
THREADS = ("kcompactd0", "kswapd0", "khugepaged")
RUNS = ("run 1", "run 2", "run 3")


def samples(name: str) -> dict[tuple[str, str], dict[str, float]]:
    """Return the results of a benchmark, by arm or stage, and by case."""
    found = json.loads((DOCS / "img" / name).read_text())["samples"]
    return {(each["arm"], each["case"]): each["values"] for each in found}


def of_program(program: str) -> list[str]:
    """Return the rows of a program after a burst, MiB."""
    found = samples("trim.json")
    return [
        f"| {title} | " + " | ".join(f"{found[s, program][key]:.0f}" for s in STAGES) + " |"
        for title, key in ROWS.items()
    ]


def of_machine(title: str) -> str:
    """Return the row of an arm: million instructions and MiB of three runs."""
    found = [samples("vmm.json")[ARMS[title], run] for run in RUNS]
    cells = [[each["qemu"] / 1e6 for each in found]]
    cells += [[sum(each.get(name, 0) for name in THREADS) / 1e6 for each in found]]
    cells += [[each["huge"] / 1024 for each in found]]
    texts = [", ".join(f"{value:.0f}" for value in row) for row in cells]
    return f"| {title} | {' | '.join(texts)} |"


@pytest.mark.parametrize("page", PAGES)
def test_after_a_burst(page: str) -> None:
    text = (DOCS / "workloads" / page).read_text()
    assert "\n".join(of_program(PAGES[page])) + "\n" in text
    found = samples("trim.json")
    given = found["dropped", PAGES[page]]["rss"] - found["trimmed", PAGES[page]]["rss"]
    assert f"trim` gives back {given:.0f} MiB of it" in " ".join(text.split())


@pytest.mark.parametrize("title", ARMS)
def test_virtual_machines(title: str) -> None:
    assert f"\n{of_machine(title)}\n" in (DOCS / "workloads/vm.md").read_text()


def test_the_profile_of_virtual_machines() -> None:
    """The sentences below the table of virtual machines agree with the results."""
    text = " ".join((DOCS / "workloads/vm.md").read_text().split())
    found = samples("vmm.json")

    def total(arm: str, *keys: str) -> float:
        return sum(found[arm, run].get(key, 0) for run in RUNS for key in keys)

    whole, own, huge = (
        total("vm", *keys) / total("stock", *keys)
        for keys in (("qemu", *THREADS), ("qemu",), ("huge",))
    )
    assert (
        f"takes {whole:.2f} of the instructions of stock, and QEMU itself {own:.2f}, with" in text
    )
    assert f"with {100 * huge - 100:.0f} % more huge pages" in text
    stalls, usual = (
        f"{round(total(arm, 'compact_stall') / len(RUNS), -2):,.0f}"
        for arm in ("vm, fixed 9", "vm")
    )
    assert f"about {stalls} direct compactions in a start instead of {usual}" in text
