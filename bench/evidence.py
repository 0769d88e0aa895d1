# SPDX-License-Identifier: GPL-2.0
"""Write documents from the results of ./dev bench time, by `python3 -m bench.evidence`.

bench/evidence/ becomes docs/evidence.md. The programs with gigabytes in bench/evidence/large/ also
become a table of docs/workloads/data.md.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from bench import with_table

TREE = Path(__file__).resolve().parent.parent
FILES = TREE / "bench/evidence"
DOCUMENT, DATA = TREE / "docs/evidence.md", TREE / "docs/workloads/data.md"
# programs in the table of docs/workloads/data.md
OF_DATA = ("duckdb", "chdb", "polars", "pandas", "gather")
PAGE, FOLIO = 4 << 10, 64 << 10  # sizes in bytes of a page, and of a folio of the arm "to 64"
# If the ratio of the means differs from the estimated ratio by more than this, both are shown.
APART = 0.05

HEAD = """\
<!-- SPDX-License-Identifier: GPL-2.0; made by bench/evidence.py -->
# Evidence: time on real machines

CPU time of whole programs under folio sizes of the kernel itself, as a multiple of the same
program with all sizes off.
`./dev bench time` measures it: each program under all arms in turn, in rounds of random
order.
A ratio is the median of the rounds, in brackets its 95 % interval: neighbours on the same
CPU or cache slow down some runs for a while, which moves a mean, and not a median.
If the ratio of the means is more than 0.05 away, it is there too: some runs of one of the
two took much longer than most.
With `--precision`, an arm takes part in rounds until it is known so closely.
"Off again" is the same setting as "off", and shows how far equal arms lie apart.
"To 64" has all sizes from 16 to 64 kB, which is what the policy `fixed` does with
`max_order=4`.

The last table of a machine is about faults: how many "to 64" spares, what it saves, and what
the [cost of a fault](bench.md#what-a-fault-costs), calibrated just before and after the
program, explains of that, if each folio spares 15 faults.
A shadow estimates in the same way, so its estimate is of the system time that faults take.
The rest is what programs save in their own time, as they miss the TLB and caches less; on a
virtual machine a miss walks two page tables.
That differs from program to program, and no calibration tells it: only `mmpolicy bench` does.
Both savings are by the ratios, with their intervals: system time is counted by ticks, so it is
known less closely than the sum.

No policy decides here.
What `adaptive` reaches of "to 64" in faults and memory is in
[anon_order](policies/anon_order.md).
To add a machine of your own:
`./dev bench time --precision 2 --cpus 1 --json bench/evidence/NAME.json --about 'what it is'`,
then `python3 -m bench.evidence`.
`--cpus 1` keeps all on one CPU: those of a virtual machine have different neighbours, so on all
of them it takes several times as many rounds.
`--fragmented` cuts the free memory into pieces below 64 kB first.
`--large --json bench/evidence/large/NAME.json` takes programs that use 0.7 to 4 GB on all CPUs
instead.
It tries each of them first, and says how long the whole will take.
"""


def load(path: Path | None, about: str) -> dict[str, Any]:
    """Return the content of a result file; without a file, an empty result."""
    if path and path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {"version": 1, "about": about, "programs": {}}


def is_ratio(found: dict[str, Any] | None) -> bool:
    """Return whether a metric of two arms was compared by a ratio.

    A metric that is 0 in some runs is compared by a difference.
    """
    return found is not None and found["scale"] != "difference"


def ratio(arm: dict[str, Any], metric: str, of_first: float) -> str:
    """Format the ratio of an arm to the first one, with its interval; also the ratio of the means
    if it differs by more than APART.

    of_first: mean of the metric in the first arm.
    """
    found = arm["ratio"][metric]
    if not is_ratio(found):
        return "-"
    text = f"{found['estimate']:.2f}"
    if found["low"] is not None:
        text += f" ({found['low']:.2f} .. {found['high']:.2f})"
    of_means: float = arm["mean"][metric] / of_first
    apart = abs(of_means - found["estimate"]) > APART
    return f"{text}, means {of_means:.2f}" if apart else text


def beside(arm: dict[str, Any], first: dict[str, Any]) -> dict[str, float]:
    """Return the means of the first arm over those rounds in which `arm` ran, too."""
    found: dict[str, float] = arm.get("mean_of_first", first["mean"])
    return found


def cell(arms: dict[str, dict[str, Any]], name: str, metric: str) -> str:
    """Format the ratio of the arm `name` to the first arm. arms: arms of one program by name."""
    first = next(iter(arms.values()))
    return ratio(arms[name], metric, beside(arms[name], first)[metric])


def table(results: dict[str, Any]) -> Iterator[str]:
    """Yield the CPU time of all programs of a file, and their memory."""
    programs = results["programs"]
    names = list(dict.fromkeys(arm["name"] for each in programs.values() for arm in each["arms"]))
    first, *others = names
    for metric, title in (("cpu", "CPU time"), ("peak_rss", "peak RSS")):
        yield f"| {title} | {first} | {' | '.join(others)} |"
        yield "|---" * (len(names) + 1) + "|"
        for program, found in programs.items():
            arms = {arm["name"]: arm for arm in found["arms"]}
            of_first = arms[first]["mean"][metric]
            base = f"{of_first * 1000:.0f} ms" if metric == "cpu" else f"{of_first / 2**20:.0f} MiB"
            cells = [cell(arms, name, metric) if name in arms else "" for name in others]
            yield f"| {program} | {base} | {' | '.join(cells)} |"
        yield ""


def fault_ns(calibrations: list[list[dict[str, Any]]]) -> dict[int, float]:
    """Return the cost of a fault in ns, by folio size in bytes: the mean of all calibrations."""
    found: dict[int, list[float]] = {}
    for each in itertools.chain(*calibrations):
        found.setdefault(each["size"], []).append(each["ns"])
    return {size: mean(ns) for size, ns in found.items()}


def saved_ms(arm: dict[str, Any], first: dict[str, float], metric: str) -> str:
    """Return the CPU time that an arm saves, in ms, computed from its ratio to the first arm, with
    the interval.

    If the ratio or its interval is missing, as some runs took less than a tick, the saving is the
    difference of the means.
    """
    found, mean_ms = arm["ratio"][metric], 1000 * first[metric]
    if not is_ratio(found) or found["low"] is None:
        return f"{mean_ms - 1000 * arm['mean'][metric]:.1f} ms"
    low, saved, high = (mean_ms * (1 - found[each]) for each in ("high", "estimate", "low"))
    return f"{saved:.1f} ms ({low:.1f} .. {high:.1f})"


def faults(results: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the CPU time that the arm "to 64" saves for each program, with the part of
    it that the cost of a fault on this machine explains.
    """
    of_all = [results["calibration"]] if "calibration" in results else []
    rows = []
    for program, found in results["programs"].items():
        arms = {arm["name"]: arm for arm in found["arms"]}
        cost = fault_ns(found.get("calibrations", of_all))
        if "to 64" not in arms or not {PAGE, FOLIO} <= cost.keys():
            continue
        first = beside(arms["to 64"], found["arms"][0])
        spared = first["faults"] - arms["to 64"]["mean"]["faults"]
        saved = [saved_ms(arms["to 64"], first, metric) for metric in ("cpu", "system")]
        told = spared * (cost[PAGE] - (cost[FOLIO] - cost[PAGE]) / (FOLIO // PAGE - 1)) / 1e6
        cells = [f"{spared:.0f}", *saved, f"{cost[PAGE] / 1000:.2f} µs", f"{told:.1f} ms"]
        rows.append(f"| {program} | {' | '.join(cells)} |")
    if rows:
        yield "| program | faults spared | CPU time saved | of it system | a fault | by calibrate |"
        yield "|---" * 6 + "|"
        yield from [*rows, ""]


def machine(results: dict[str, Any]) -> str:
    """Return two or three sentences about the machine of a result file."""
    host = next(iter(results["programs"].values()))["host"]
    kind = "a virtual machine" if host["virtual"] else "hardware"
    large = results.get("large_percent")
    share = f"\n{large} % of its free memory lay in blocks of 64 kB or more."
    free = "" if large is None else share
    return (
        f"{results['about']}.\nIt is {kind}, {host['cpus']} CPUs ({host['cpu']}), "
        f"{host['memory'] / 2**30:.0f} GiB, Linux {host['kernel']}.{free}"
    )


def page() -> str:
    """Return the text of docs/evidence.md."""
    parts = [HEAD]
    for path in sorted(FILES.rglob("*.json")):
        results = json.loads(path.read_text())
        programs = results["programs"].values()
        arms = [(arm, each) for each in programs for arm in each["arms"]]
        rounds = sorted({arm.get("rounds", each["rounds"]) for arm, each in arms})
        number = " to ".join(dict.fromkeys(map(str, (rounds[0], rounds[-1]))))
        kinds = {each.get("statistic", "mean") for each in programs}
        of = " Ratios are means." if "mean" in kinds else ""
        once = "\nFaults were calibrated once, before all." if "calibration" in results else ""
        title = path.relative_to(FILES).with_suffix("")
        parts.append(f"## {title}\n\n{machine(results)}\n{number} rounds.{of}{once}\n")
        parts.append("\n".join([*table(results), *faults(results)]))
    return "\n".join(parts).rstrip() + "\n"


def data_table() -> Iterator[str]:
    """Yield for each machine a table of the CPU time and peak RSS of the programs in OF_DATA."""
    columns = [("cpu", "off again"), *itertools.product(("cpu", "peak_rss"), ("to 64", "2 MB"))]
    for path in sorted((FILES / "large").glob("*.json")):
        results = json.loads(path.read_text())
        yield f"{machine(results)}\n"
        yield ("| program | CPU time, peak RSS | CPU time, the same again | 16 to 64 kB | 2 MB "
               "| peak RSS, 16 to 64 kB | 2 MB |")  # fmt: skip
        yield "|---" * 7 + "|"
        for program in OF_DATA:
            arms = {arm["name"]: arm for arm in results["programs"][program]["arms"]}
            first = arms["off"]["mean"]
            cells = [cell(arms, name, metric) for metric, name in columns]
            yield (f"| {program} | {first['cpu']:.1f} s, {first['peak_rss'] / 2**20:.0f} MiB | "
                   f"{' | '.join(cells)} |")  # fmt: skip


if __name__ == "__main__":
    DOCUMENT.write_text(page())
    DATA.write_text(with_table(DATA.read_text(), "time", data_table()))
