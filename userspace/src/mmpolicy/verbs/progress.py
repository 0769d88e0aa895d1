# SPDX-License-Identifier: GPL-2.0
"""Displays of the progress of `ab run`: plain lines, or on a terminal a progress bar with the
estimates of each metric below it.
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
    """Prints each message, and the progress of the run at the end of each block, as a line on
    standard error.
    """

    def say(self, line: str) -> None:
        click.echo(line, err=True)

    def report(self, progress: Progress) -> None:
        """Print how far the run has come, as one line."""
        self.say(progress.line())

    def tick(self, left_s: float) -> None:
        """Do nothing: the line for each block is enough."""


class Screen:
    """Shows a progress bar on the terminal, and below it one line for each metric."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.progress = Progress(0, 0, "aa", 0.0, [])
        self.left_s = -1

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def report(self, progress: Progress) -> None:
        """Show how far the run has come, on the progress bar and in the lines of the metrics."""
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
    """Passes messages on to another display of `ab run`. If the terminal or the pipe of that
    display is closed, messages are dropped from then on, so that the run goes on.
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
        """Show how far the run has come, if there is a display."""
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
    """Yield the display for standard error: a bar if it is a terminal, else lines."""
    if not sys.stderr.isatty():
        yield Quiet(Lines())
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield Quiet(Screen(live))
