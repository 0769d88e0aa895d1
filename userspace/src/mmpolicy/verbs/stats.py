# SPDX-License-Identifier: GPL-2.0
"""`stats`: the counters, once or again and again."""

from collections.abc import Callable, Iterator

import click

from mmpolicy.app import App, json_option, pass_app, point_argument, profile_option
from mmpolicy.counters import Counters, Rates, rates, read_counters
from mmpolicy.render import as_json, emit, table

Sample = tuple[Counters, Rates]


def _lines(counters: Counters, *watched: Rates) -> list[str]:
    """Return the table of counters that are not 0, with a column for each set of rates."""
    rows = [
        (point, name, value, *(rate.get(point, {}).get(name, "-") for rate in watched))
        for point, values in counters.items()
        for name, value in values.items()
        if value
    ]
    header = ("POINT", "COUNTER", "VALUE", "PER_SECOND")[: 3 + len(watched)]
    return table(header, rows) if rows else ["every counter is 0"]


def _samples(read: Callable[[], Counters], app: App, interval: float) -> Iterator[Sample]:
    """Yield counters and their rates for ever; the first sample has no rates."""
    counters, last = read(), app.clock()
    per_second: Rates = {}
    while True:
        yield counters, per_second
        app.sleep(interval)
        new, now = read(), app.clock()
        per_second = rates(counters, new, now - last)
        counters, last = new, now


def _watch(samples: Iterator[Sample], profile: str, want_json: bool) -> None:
    """Print samples until the user has seen enough."""
    try:
        for counters, per_second in samples:
            data = {"profile": profile, "points": counters, "per_second": per_second}
            if want_json:
                click.echo(as_json("stats", data, indent=None))
                continue
            click.clear()
            click.echo("\n".join([*_lines(counters, per_second), ""]))
    except KeyboardInterrupt:
        pass


@click.command()
@point_argument
@profile_option
@click.option("--watch", is_flag=True, help="Print again and again, with rates, until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True,
    metavar="SECONDS", help="Time between two prints of --watch.",
)  # fmt: skip
@json_option
@pass_app
def stats(
    app: App, point: str | None, profile: str, watch: bool, interval: float, want_json: bool
) -> None:
    """Show the counters that are not 0; with --watch also how fast they rise.

    JSON has all counters, with --watch one object a line.
    """
    if watch:
        samples = _samples(lambda: read_counters(app.tree, profile, point), app, interval)
        _watch(samples, profile, want_json)
        return
    counters = read_counters(app.tree, profile, point)
    emit("stats", want_json, {"profile": profile, "points": counters}, _lines(counters))
