# SPDX-License-Identifier: GPL-2.0
"""`thp`: the kernel's own statistics of huge pages; needs no module."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from mmpolicy.control.counters import Counters, Rates
from mmpolicy.control.notices import notice_lines
from mmpolicy.errors import Error
from mmpolicy.figures import figure
from mmpolicy.host import evidence
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.host.files import Tree
from mmpolicy.host.huge import Machine, machines
from mmpolicy.host.knobs import names_of, read_knobs
from mmpolicy.host.machine import Host
from mmpolicy.memory.space import huge_of
from mmpolicy.render import as_json, emit, show_live, table
from mmpolicy.verbs.options import complete_cgroup, json_option, pass_host
from mmpolicy.verbs.stats import interval_option, print_json, readings

EVENTS = "vmstat"


def _read(tree: Tree, cgroup: str | None, every: bool, vms: bool) -> dict[str, Any]:
    """Return all data of the verb `thp`, by section, except the events."""
    data: dict[str, Any] = {"sizes": evidence.sizes(tree), "huge_pages": evidence.others(tree)}
    data["hugetlb"] = evidence.pools(tree)
    data["pressure"] = evidence.pressure(tree)
    data["notices"] = notice_lines(tree)
    path = find_cgroup(tree, cgroup).name if cgroup else "/"
    try:
        data["cgroups"] = evidence.cgroups(tree, path)
        if not data["cgroups"]:
            data["notices"].append(
                "note: the use by cgroup is not shown, as no cgroup accounts for memory on "
                "this host"
            )
    except Error as err:
        data["cgroups"] = {}
        data["notices"].append(f"note: {err.message}")
    if vms:
        seen = machines(tree, huge_of)
        data["machines"] = [each._asdict() for each in seen.found]
        data["notices"] += [seen.note()] * bool(seen.denied)
    if every:
        data["knobs"] = {names_of(path)[0]: value for path, value in read_knobs(tree).items()}
    return data


def _tables(data: dict[str, Any], events: Counters, rates: Rates) -> Iterator[list[str]]:
    yield _sizes(data["sizes"])
    yield table(("HUGE_PAGES", "VALUE"), data["huge_pages"].items())
    yield _wide("HUGETLB", data["hugetlb"])
    yield table(("KNOB", "VALUE"), data.get("knobs", {}).items())
    yield _wide("PRESSURE", data["pressure"])
    yield _wide("CGROUP", data["cgroups"])
    machines_found = data.get("machines", ())
    rows = [["not known" if v is None else v for v in each.values()] for each in machines_found]
    yield table([name.upper() for name in Machine._fields], rows)
    found = [
        (name, value, *([rates[EVENTS][name]] if rates else []))
        for name, value in events[EVENTS].items()
        if value
    ]
    yield table(("EVENT", "VALUE", "PER_SECOND")[: 3 if rates else 2], found)


def _sizes(sizes: dict[str, Any]) -> list[str]:
    rows = []
    for size, told in sizes.items():
        settings = (f"{name}={value}" for name, value in told["set"].items())
        counted = (f"{name}={value}" for name, value in told["stats"].items() if value != "0")
        rows.append((size, " ".join(settings), " ".join(counted) or "-"))
    return table(("FOLIO", "SET", "COUNTED"), rows)


def _wide(title: str, figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table with a row for each item, and a column for each figure that any item has."""
    names = list({name: None for each in figures.values() for name in each})
    rows = [(key, *(_short(each.get(name)) for name in names)) for key, each in figures.items()]
    return table((title, *(name.upper() for name in names)), rows)


def _short(value: str | float | None) -> str:
    return "-" if value is None else figure(value, 12) if isinstance(value, float) else value


def _lines(data: dict[str, Any], events: Counters, rates: Rates) -> list[str]:
    """Return notices and tables as lines, with an empty line between them; empty tables are left
    out.
    """
    tables = [lines for lines in _tables(data, events, rates) if len(lines) > 1]
    shown = [data["notices"]] * bool(data["notices"]) + tables
    return [line for lines in shown for line in [*lines, ""]][:-1]


@click.command("thp")
@click.option(
    "--cgroup", metavar="PATH", shell_complete=complete_cgroup,
    help="Show this cgroup and those below it, not those of the host.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Show all knobs, and all lines of /proc/vmstat.")
@click.option(
    "--vms", is_flag=True,
    help="Also show virtual machines, and how much of their memory is in huge pages.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Print again and again, with rates, until Ctrl-C.")
@interval_option
@json_option
@pass_host
def thp_verb(
    host: Host,
    cgroup: str | None,
    every: bool,
    vms: bool,
    watch: bool,
    interval: float,
    want_json: bool,
) -> None:
    """Show what the kernel itself reports; needs no module.

    Shows folio sizes and their counters, all settings of transparent huge pages, pools of hugetlb,
    pressure, memory of cgroups, and events. HUGE_PERCENT is the part of memory in huge pages; with
    --vms also that of each virtual machine, for which the kernel walks its page tables. mmpolicy
    map shows the folios of one process.
    """
    read = partial(_read, host.tree, cgroup, every, vms)

    def events() -> Counters:
        return {EVENTS: evidence.events(host.tree, every)}

    if not watch:
        now, data = events(), read()
        emit("thp", want_json, {**data, **now}, lambda: _lines(data, now, {}))
        return
    moments = readings(events, host, interval)
    if want_json:
        print_json(
            as_json("thp", {**read(), **now, "per_second": rises}, indent=None)
            for now, rises in moments
        )
        return
    show_live(_lines(read(), now, rises) for now, rises in moments)
