# SPDX-License-Identifier: GPL-2.0
"""The screen of `top`: columns that fit, keys, and the question before `trim`.

A View holds the choices of the user. It makes lines of text from a frame of data and from keys, so
it can be tested without a terminal.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import textwrap
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mmpolicy.figures import figure
from mmpolicy.render import coloured, columns, paint

if TYPE_CHECKING:
    from types import FrameType

Frame = dict[str, Any]
RowData = dict[str, Any]
BAR = 12  # cells of the bar in the column USED|EMPTY
GAP = "  "  # between two columns
NAME = 20  # the name gets at least this many columns of the terminal
# Columns before the name of a row: one for the mark of the selected row, one to indent the
# processes of a unit.
MARGIN = 2
WIDEST = 1000  # columns; output that is wider goes to a pipe, not to a terminal
# "up to": once a page was freed lazily (MADV_FREE), it cannot be told whether the program has
# written to it again, which makes it used memory.
UP_TO = "lazily freed up to"
FOLD = 3  # most lines of the screen for one note or one detail
SORTS = {"w": "waste", "m": "memory", "f": "faults", "c": "cpu"}
HELP = (
    ("Up Down PgUp PgDn Home End", "choose a row (also k and j)"),
    ("w m f c", "sort by waste, memory, faults, CPU; s takes the next one"),
    ("u p Tab", "show units, show processes, switch between both"),
    ("Enter", "show the processes of a unit, and whether a policy reaches the row"),
    ("/", "show only names that contain a text; Esc shows all"),
    ("t", "give back the empty part of large folios of the row; asks first"),
    ("q", "quit"),
    ("WASTE_MIB +-", "zero-filled part of large folios, with its error (95 %); <N: less than N"),
    ("OF_MIB", "the resident memory, which USED|EMPTY shows, too"),
    ("FAULT_CPU%", "share of a CPU that page faults take, after mmpolicy calibrate"),
    ("STALL%", "part of the last ten seconds in which a task waited for memory (PSI)"),
    ("DECIDES", (
        "what decides: a profile, the kernel, or the reason why neither does for most of "
        "the memory"
    )),
)  # fmt: skip
KEYS = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "pgup",
    "\x1b[6~": "pgdn", "\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end",
    "\x1bOH": "home", "\x1bOF": "end", "\r": "enter", "\n": "enter", "\x1b[C": "enter",
    "\x1b[D": "enter", "\x1b": "esc", "\x7f": "back", "\x08": "back", "\t": "tab",
    "k": "up", "j": "down", "h": "?",
}  # fmt: skip


# Columns


class Column(NamedTuple):
    """One column of the table."""

    title: str
    width: int  # minimum, in columns of the terminal
    cell: Callable[[RowData], str]
    sort: str = ""  # the sort order of the rows that this column stands for; "": none
    is_text: bool = False  # True for text, False for numbers

    def aligned(self, text: str, width: int) -> str:
        """Pad a text to a width with spaces: a text column is filled on the right, a column of
        numbers on the left.
        """
        rest = " " * (width - len(click.unstyle(text)))
        return f"{text}{rest}" if self.is_text else f"{rest}{text}"


def _mib(kib: float) -> str:
    mib = kib / 1024
    return f"{mib:.1f}" if mib < 1000 else f"{mib:.0f}"


def _waste(row: RowData) -> str:
    """Return the empty memory of a row in MiB as text. If it may be 0 within the error of the
    estimate, it is "<" and the upper bound; if none of the memory was looked at, it is "?".
    """
    if not row["looked_at"]:
        return "?"
    waste, error = row["waste_kib"], row["error_kib"]
    if error and error >= waste:
        return f"<{max((waste + error) / 1024, 1):.0f}"
    return _mib(waste)


def _error(row: RowData) -> str:
    if not row["looked_at"]:
        return "?"
    known = row["error_kib"] < row["waste_kib"] or not row["error_kib"]
    return _mib(row["error_kib"]) if known else "-"


def _bar(row: RowData) -> str:
    """Return a bar of BAR cells: # for used memory, and . for empty memory."""
    waste, whole = row["waste_kib"], row["rss_kib"]
    empty = min(round(BAR * waste / whole), BAR) if whole else 0
    return "#" * (BAR - empty) + paint("." * empty, "red")


def _in_faults(row: RowData) -> str:
    percent, error = row["faults_percent"], row["faults_error_percent"]
    return "-" if percent is None else f"{percent:.2f} +-{error:.2f}"


def _stall(row: RowData) -> str:
    stall = row.get("stall_percent")
    return "-" if stall is None else str(stall)


def _folios(row: RowData) -> str:
    """Return the three folio sizes that hold most of the memory, each with its share, as text."""
    most = sorted(row["folios"].items(), key=lambda each: -float(each[1]))[:3]
    return " ".join(f"{name.replace(' ', '')}:{part:.0%}" for name, part in most if part > 0) or "-"


COLUMNS = (
    Column("WASTE_MIB", 9, _waste, "waste"),
    Column("+-", 6, _error),
    Column("OF_MIB", 7, lambda row: _mib(row["rss_kib"]), "memory"),
    Column("USED|EMPTY", BAR, _bar, is_text=True),
    Column("FAULTS/S", 8, lambda row: str(row["faults_per_second"]), "faults"),
    Column("FAULT_CPU%", 12, _in_faults),
    Column("CPU%", 5, lambda row: str(row["cpu_percent"]), "cpu"),
    Column("KERNEL%", 7, lambda row: str(row["kernel_percent"])),
    Column("STALL%", 6, _stall),
    Column("FOLIOS", 24, _folios, is_text=True),
    Column("DECIDES", 8, lambda row: str(row["decides"]), is_text=True),
)
# The columns in order of importance: a narrow terminal shows only as many of the first as fit.
IMPORTANT = ("WASTE_MIB", "OF_MIB", "CPU%", "FAULTS/S", "+-", "USED|EMPTY", "KERNEL%", "STALL%",
             "DECIDES", "FOLIOS", "FAULT_CPU%")  # fmt: skip


def columns_for(width: int) -> list[Column]:
    """Return the columns that fit into a line of this width next to the name."""
    by_title, left = {each.title: each for each in COLUMNS}, width - NAME - MARGIN
    chosen = set[str]()
    for title in IMPORTANT:
        left -= by_title[title].width + len(GAP)
        if left < 0:
            break
        chosen.add(title)
    return [each for each in COLUMNS if each.title in chosen]


def cut_middle(text: str, width: int) -> str:
    """Shorten a text to a width by replacing its middle with ~, as both ends of a cgroup's path
    matter.
    """
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}~{text[len(text) - end :] if end else ''}"


class Item(NamedTuple):
    """A row of the table: a unit or a process."""

    key: str  # finds the same row again in a later frame
    label: str
    row: RowData
    depth: int = 0
    mark: str = ""  # before the label of a unit: "+ " if its processes are hidden, "- " if shown


def unit_item(row: RowData, mark: str = "") -> Item:
    return Item(f"cgroup {row['cgroup']}", row["cgroup"], row, 0, mark)


def process_item(row: RowData, depth: int = 0) -> Item:
    return Item(f"pid {row['pid']}", f"{row['pid']} {row['name']}", row, depth)


def table_of(
    title: str, items: Sequence[Item], width: int, sort: str = "", chosen: str = ""
) -> list[str]:
    """Return the header and the rows as lines, with the columns that fit into the width.

    sort: the order that is marked in the header. chosen: key of the selected row. On a terminal, a
    column stays at its place whatever the names are, and long names are shortened; in a pipe, names
    are complete.
    """
    shown, is_pipe = columns_for(width), width > WIDEST
    titles = [f"{each.title}{'*' * (sort != '' and each.sort == sort)}" for each in shown]
    cells = [[column.cell(item.row) for column in shown] for item in items]
    labels = [f"{'  ' * item.depth}{item.mark}{item.label}" for item in items]
    widths = [
        max(len(titles[at]), 0 if is_pipe else column.width, *(_width(line[at]) for line in cells))
        for at, column in enumerate(shown)
    ]
    room = max(width - MARGIN - sum(each + len(GAP) for each in widths), NAME // 2)
    if is_pipe:
        room = max(map(len, [title, *labels]))
    lines = [_row_line(" ", title.ljust(room), map(Column.aligned, shown, titles, widths))]
    for item, label, line in zip(items, labels, cells):
        name, is_chosen = cut_middle(label, room).ljust(room), item.key == chosen
        text = _row_line(">" if is_chosen else " ", name, map(Column.aligned, shown, line, widths))
        if is_chosen and coloured():
            text = click.style(click.unstyle(text).ljust(width), reverse=True)
        lines.append(text)
    return lines


def _row_line(mark: str, name: str, cells: Iterable[str]) -> str:
    return f"{mark} {GAP.join([name, *cells])}".rstrip()


def _width(text: str) -> int:
    return len(click.unstyle(text))


def as_tables(frame: Frame) -> Iterator[str]:
    """Yield a frame as lines of text, as wide as the terminal, or without limit in a pipe."""
    width = columns()
    yield from frame["notes"]
    yield seen_of(frame)
    for title, items in (
        ("CGROUP", [unit_item(row) for row in frame["cgroups"]]),
        ("PROCESS", [process_item(row) for row in frame["processes"]]),
    ):
        yield ""
        yield from (line[MARGIN:] for line in table_of(title, items, width))
    yield ""
    yield hold_of(frame)


def hold_of(frame: Frame) -> str:
    """Return as text the longest time for which a read by mmpolicy held the mmap_lock of a process,
    and the limit for it.
    """
    longest, limit = frame["longest_hold_ms"], frame["hold_limit_ms"]
    return f"longest hold of an mmap_lock: {figure(longest)} ms (limit {figure(limit)} ms)"


def memory_of(row: RowData) -> str:
    """Return as text how much memory of each kind a process or unit has, and how much of it was not
    looked at.
    """

    def by_kind(sizes: dict[str, float]) -> str:
        known = sorted(sizes.items(), key=lambda each: -each[1])
        names = {name: name.replace("_", " ") for name in sizes} | {"lazily_freed": UP_TO}
        return ", ".join(f"{names[name]} {_mib(kib)} MiB" for name, kib in known if kib)

    parts = [by_kind(row["kinds_kib"])]
    if unseen := by_kind(row["not_looked_at_kib"]):
        parts.append(f"not looked at: {unseen}")
    if row["charged_elsewhere_kib"]:
        parts.append(f"charged to other cgroups: {_mib(row['charged_elsewhere_kib'])} MiB")
    return "; ".join(filter(None, parts))


def seen_of(frame: Frame) -> str:
    """Return as text which share of the memory of all processes was looked at."""
    share = frame["memory_looked_at"]
    return f"{frame['processes_seen']} processes, {share:.0%} of their memory looked at so far"


# Choices and keys


@dataclass
class View:
    """The choices of the user: sort order, filter, selected row, expanded cgroups."""

    sort: str
    trims: str = ""  # why the key `t` cannot start `trim`; "" if it can
    by_process: bool = False
    only: str = ""  # filter: a row is shown if its name contains this text
    mode: str = ""  # what the next key means: filter, trim, help, or "" for moving and choosing
    chosen: str = ""  # key of the selected row
    # True after the user has moved the selection; until then the first row is selected
    moved: bool = False
    first: int = 0  # index of the first row on the screen
    message: str = ""
    expanded: set[str] = field(default_factory=set)  # cgroups
    details: str = ""  # key of the row whose details are shown
    page: int = 10  # number of rows that fit on the screen
    items: list[Item] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Return how many rows the next print needs: the rows above the present page, that page,
        and one page more.
        """
        return self.first + 2 * self.page + 1

    @property
    def current(self) -> Item | None:
        """Return the selected row; None if the table is empty."""
        return next((each for each in self.items if each.key == self.chosen), None)

    def take(self, frame: Frame) -> None:
        """Replace the rows by those of a new print. The selection stays on its row; if that has
        gone, it stays at its place on the screen.
        """
        old = [each.key for each in self.items]
        if self.by_process:
            self.items = [process_item(row) for row in frame["processes"]]
        else:
            self.items = list(self._units(frame))
        keys = [each.key for each in self.items]
        if not self.moved:
            self.chosen = keys[0] if keys else ""
        elif self.chosen not in keys:
            at = old.index(self.chosen) if self.chosen in old else 0
            self.chosen = keys[min(at, len(keys) - 1)] if keys else ""

    def _units(self, frame: Frame) -> Iterator[Item]:
        for row in frame["cgroups"]:
            is_open = row["cgroup"] in self.expanded
            yield unit_item(row, "- " if is_open else "+ ")
            for each in frame.get("members", {}).get(row["cgroup"], ()) if is_open else ():
                yield process_item(each, 1)

    def press(self, key: str) -> list[str]:
        """Handle a key; return the words of the verb to run, such as trim --pid 7, or []."""
        self.message = ""
        if self.mode == "filter":
            self._type(key)
        elif self.mode == "trim":
            return self._answer(key)
        elif self.mode == "help":
            self.mode = ""
        elif key == "t":
            self._ask()
        else:
            self._choose(KEYS.get(key, key))
        return []

    def _choose(self, key: str) -> None:
        keys = [each.key for each in self.items]
        steps = {"up": -1, "down": 1, "pgup": -self.page, "pgdn": self.page}
        if key in (*steps, "home", "end") and keys:
            at = keys.index(self.chosen) if self.chosen in keys else 0
            ends = {"home": 0, "end": len(keys) - 1}
            at = ends.get(key, at + steps.get(key, 0))
            self.chosen, self.moved = keys[max(0, min(at, len(keys) - 1))], True
        elif key in SORTS:
            self.sort = SORTS[key]
        elif key == "s":
            order = list(SORTS.values())
            self.sort = order[(order.index(self.sort) + 1) % len(order)]
        elif key in ("u", "p", "tab"):
            self.by_process = not self.by_process if key == "tab" else key == "p"
            self.moved, self.first = False, 0
        elif key == "enter":
            self._open()
        elif key in ("/", "?"):
            self.mode = {"/": "filter", "?": "help"}[key]
        elif key == "esc":
            self.only, self.details = "", ""

    def _open(self) -> None:
        """Show the details and the processes of the selected row; if they are shown already, hide
        them.
        """
        item = self.current
        if not item:
            return
        is_open, self.moved = self.details == item.key, True
        self.details = "" if is_open else item.key
        if "pid" not in item.row:
            path = {item.row["cgroup"]}
            self.expanded = self.expanded - path if is_open else self.expanded | path

    @property
    def opened(self) -> bool:
        """Return whether the details that are shown belong to the selected row."""
        return bool(self.details) and self.details == self.chosen

    def _type(self, key: str) -> None:
        known = KEYS.get(key, "") if len(key) > 1 or not key.isprintable() else ""
        if known in ("enter", "esc"):
            self.mode, self.only = "", self.only if known == "enter" else ""
        elif known == "back":
            self.only = self.only[:-1]
        elif key.isprintable():
            self.only += key
        self.first = 0

    def _ask(self) -> None:
        item = self.current
        if self.trims:
            self.message = f"t: {self.trims}"
        elif item and empty_kib(item.row) <= 0:
            self.message = f"t: no memory of {item.label} is known to be empty"
        elif item:
            self.mode = "trim"

    def _answer(self, key: str) -> list[str]:
        """Handle the answer to the question whether to run `trim`. Only the key `y` means yes:
        Enter may have been typed for another purpose.
        """
        self.mode, item = "", self.current
        if key != "y" or not item:
            self.message = "nothing was changed"
            return []
        if "pid" in item.row:
            return ["trim", "--pid", str(item.row["pid"])]
        return ["trim", "--cgroup", item.row["cgroup"]]

    # Lines

    def legend(self) -> str:
        """Return the last line of the screen: the possible answers to a question, or the keys."""
        if self.mode == "filter":
            return f"/{self.only}_   Enter: show only these names, Esc: show all"
        if self.mode == "trim":
            return "y: yes, any other key: no"
        if self.message:
            return self.message
        other = "u units" if self.by_process else "p processes"
        keys = ["q quit", "? help", "s sort", "/ filter", other, "Enter more"]
        return " ".join(keys + ["t trim"] * (not self.trims))

    def question(self) -> list[str]:
        """Return the question before `trim` as one line; [] if it is not asked now."""
        item = self.current
        if self.mode != "trim" or not item:
            return []
        much = f"{_mib(empty_kib(item.row))} MiB (+- {_mib(item.row['error_kib'])})"
        return [f"give back about {much} of {item.label}?"]

    def lines(self, frame: Frame, details: Sequence[str], width: int, height: int) -> list[str]:
        """Return all lines of the screen, at most `height`; details: lines below the rows."""
        if self.mode == "help":
            lines = [f"{keys:28}{what}" for keys, what in HELP]
            return [*lines[: height - 1], "any key goes back"]
        only = f", with '{self.only}'" if self.only else ""
        top = [cut_middle(f"{seen_of(frame)}, by {self.sort}{only}", width)]
        if len(top[0]) + len(hold := hold_of(frame)) + 2 <= width:
            top = [f"{top[0]}; {hold}"]
        top += [line for note in frame["notes"] for line in folded(note, width)]
        below = [line for text in (*details, *self.question()) for line in folded(text, width)]
        self.page = max(height - len(top) - len(below) - 2, 1)
        keys = [each.key for each in self.items]
        at = keys.index(self.chosen) if self.chosen in keys else 0
        self.first = max(0, min(self.first, at, len(keys) - self.page), at - self.page + 1)
        shown = self.items[self.first : self.first + self.page]
        title = "PROCESS" if self.by_process else "UNIT"
        table = table_of(title, shown, width, self.sort, self.chosen)
        table[0] = paint(table[0], "cyan")
        table += [""] * (self.page + 1 - len(table))
        return [*top, *table, *below, cut_middle(self.legend(), width)]


def empty_kib(row: RowData) -> float:
    """Return the empty memory in KiB that `trim` may give back; 0 if the estimate is not larger
    than its error. Shared memory does not count: the kernel does not give it back.
    """
    waste = float(row["waste_kib"] - row.get("waste_shared_kib", 0))
    return waste if row["looked_at"] and row["error_kib"] < row["waste_kib"] else 0.0


def folded(text: str, width: int) -> list[str]:
    """Return a text as at most FOLD lines that fit into the width."""
    return textwrap.wrap(text, width, subsequent_indent="  ", max_lines=FOLD, placeholder=" ...")


# The terminal


class Terminal:
    """Uses the whole terminal as a screen, and reads single keys without Enter; __exit__() restores
    the terminal.
    """

    def __init__(self) -> None:
        self.file = sys.stdin.fileno()
        self.stopped = False

    def __enter__(self) -> Terminal:
        """Switch the terminal to the screen and to single keys. Signals that end the program
        restore it.
        """
        from rich.live import Live

        # No redirect: Live would replace standard output by an object that is not a terminal.
        self.live = Live(
            screen=True, auto_refresh=False, vertical_overflow="crop",
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self.before = termios.tcgetattr(self.file)
        self.handlers = {
            number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGHUP)
        }
        self.handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the plain terminal, its input mode and the signal handlers."""
        self._give()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _take(self) -> None:
        tty.setcbreak(self.file)
        self.live.start()

    def _give(self) -> None:
        self.live.stop()
        termios.tcsetattr(self.file, termios.TCSADRAIN, self.before)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopped = True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Restore the plain terminal for the time of a `with` block, in which another program uses
        it.
        """
        self._give()
        try:
            yield
        finally:
            self._take()

    def show(self, lines: Sequence[str]) -> None:
        """Draw these lines on the screen; what does not fit is cut."""
        from rich.console import ConsoleDimensions
        from rich.text import Text

        self.live.console.size = ConsoleDimensions(*size_of_screen())
        text = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop")
        self.live.update(text, refresh=True)

    def keys(self, seconds: float) -> list[str]:
        """Wait for keys for at most this many seconds; return the keys, [] if none was pressed."""
        if self.stopped:  # Ctrl-Z was pressed: restore the terminal before the process stops
            self.stopped = False
            with self.aside():
                os.kill(os.getpid(), signal.SIGSTOP)
        if not select.select([self.file], [], [], max(seconds, 0))[0]:
            return []
        return split_keys(os.read(self.file, 1000).decode(errors="replace"))


def split_keys(text: str) -> list[str]:
    """Split a text that was read from the terminal into keys. One read may return several keys, and
    a key such as an arrow sends several bytes.
    """
    found = []
    while text:
        size = next((n for n in (4, 3) if text[:n] in KEYS), 1)
        found.append(text[:size])
        text = text[size:]
    return found


def size_of_screen() -> tuple[int, int]:
    """Return columns and lines of the terminal; COLUMNS and LINES of the environment are
    ignored.
    """
    return os.get_terminal_size(sys.stdout.fileno())


def run_aside(
    terminal: Terminal, words: Sequence[str], run: Callable[[Sequence[str]], None]
) -> None:
    """Run a verb on the plain terminal, and wait for a key before `top` shows its screen again."""
    with terminal.aside():
        click.echo(f"$ mmpolicy {' '.join(words)}")
        try:
            run(words)
        except click.ClickException as err:
            err.show()
        click.echo("any key goes back to top")
        tty.setcbreak(terminal.file)
        os.read(terminal.file, 1000)
