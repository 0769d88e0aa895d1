# SPDX-License-Identifier: GPL-2.0
"""The display of `ab run`: lines of text, or on a terminal a progress bar with the estimates
below.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from mmpolicy.ab.run.progress import Display, Progress, clock

if TYPE_CHECKING:
    from rich.live import Live


class Lines:
    """Prints each message and each block as a line."""

    def say(self, line: str) -> None:
        click.echo(line, err=True)

    def report(self, progress: Progress) -> None:
        """Print which block of the run begins."""
        self.say(progress.line())

    def tick(self, left_s: float) -> None:
        """Do nothing, as one line per block is enough."""


class Screen:
    """Shows a progress bar, and one line for each metric."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.progress = Progress(0, 0, "aa", 0.0, [])
        self.left_s = -1

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def report(self, progress: Progress) -> None:
        """Show which block of the run begins."""
        self.progress = progress
        self._show(int(progress.left_s))

    def tick(self, left_s: float) -> None:
        """Show the remaining time, once a second."""
        if int(left_s) != self.left_s:
            self._show(int(left_s))

    def _show(self, left_s: int) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        self.left_s, now = left_s, self.progress
        blocks = f"block {now.done} of {now.total} ({now.phase}), " if now.total else ""
        bar = ProgressBar(total=max(now.total, 1), completed=now.done, width=40)
        grid = Table.grid()
        grid.add_column(overflow="fold")
        grid.add_row(bar)
        for line in (f"{blocks}{clock(left_s)} left", *now.estimates):
            grid.add_row(Text(line))
        self.live.update(grid, refresh=True)


class Quiet:
    """Passes messages on to another display until its output is closed; the run goes on without
    it.
    """

    def __init__(self, shown: Display | None = None) -> None:
        self.shown = shown

    @contextmanager
    def _shown(self) -> Iterator[Display | None]:
        try:
            yield self.shown
        except OSError:
            self.shown = None

    def say(self, line: str) -> None:
        """Show a line above the bar, if there is a display."""
        with self._shown() as shown:
            if shown:
                shown.say(line)

    def report(self, progress: Progress) -> None:
        """Show which block of the run begins, if there is a display."""
        with self._shown() as shown:
            if shown:
                shown.report(progress)

    def tick(self, left_s: float) -> None:
        """Show the remaining time, if there is a display."""
        with self._shown() as shown:
            if shown:
                shown.tick(left_s)


@contextmanager
def display() -> Iterator[Display]:
    """Yield the display for standard error."""
    if not sys.stderr.isatty():
        yield Quiet(Lines())
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield Quiet(Screen(live))
