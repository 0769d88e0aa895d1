# SPDX-License-Identifier: GPL-2.0
"""The screen of `top`: its content at each width, and its keys, in a terminal of tmux."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import children

from mmpolicy.verbs import top_screen
from mmpolicy.verbs.top_screen import View, columns_for, cut_middle, empty_kib, split_keys

from .fakes import FakeTree, Run
from .sparse import SPLIT, make_services, make_sparse, reuse

LONG = "/kubepods.slice/kubepods-burstable.slice/kubepods-pod1.slice:cri-containerd:4f0cdeadbeef"
LEGEND = "q quit ? help"


class Screen:
    """A terminal in which `top` runs on the model of a host."""

    def __init__(
        self, host: FakeTree, width: int, height: int, *words: str, **environ: str
    ) -> None:
        self.socket = f"mmpolicy-{os.getpid()}-{time.monotonic_ns()}"
        script = str(Path(__file__).with_name("fake_host.py"))
        argv = [sys.executable, script, str(host.root), "top", "--cpu", "100", *words]
        env = " ".join(f"{key}={shlex.quote(value)}" for key, value in environ.items())
        after = "code=$?; echo; echo ended with $code; stty -a; sleep 600"
        command = f"trap : INT; env {env} {shlex.join(argv)}; {after}"
        size = ["-x", str(width), "-y", str(height)]
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, f"sh -c {shlex.quote(command)}")

    def tmux(self, *words: str) -> str:
        """Run a command of tmux."""
        argv = ["tmux", "-L", self.socket, *words]
        return subprocess.run(argv, check=True, text=True, capture_output=True).stdout

    def text(self, *options: str) -> list[str]:
        """Return the lines that are on the screen."""
        return self.tmux("capture-pane", "-p", *options).splitlines()

    def until(self, text: str, *options: str, gone: bool = False) -> list[str]:
        """Wait for a text to appear, or to disappear; return the lines of a whole frame."""
        end, before = time.monotonic() + 60, [""]
        while True:
            lines = self.text(*options)
            if lines == before and any(text in line for line in lines) != gone:
                return lines
            assert time.monotonic() < end, "\n".join([text, *lines])
            before = lines  # a frame that is still being written is other lines next time
            time.sleep(0.1)

    def press(self, *keys: str) -> None:
        """Press keys, by their names in tmux."""
        self.tmux("send-keys", *keys)

    def close(self) -> None:
        """End it."""
        self.tmux("kill-server")


Open = Callable[..., Screen]


@pytest.fixture
def screen(host: FakeTree) -> Iterator[Open]:
    """Return a function that opens a screen, and waits for the first frame."""
    opened = []

    def open_one(width: int = 100, height: int = 24, *words: str, **environ: str) -> Screen:
        opened.append(Screen(host, width, height, *words, **environ))
        opened[-1].until("WASTE_MIB")
        opened[-1].until(LEGEND)
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def host(tree: FakeTree) -> FakeTree:
    """Return a host with a service that wastes 15 MiB, one that wastes none, and one in a pod."""
    make_services(tree, "web")
    make_sparse(tree, 12, "java", 512, 2, LONG)
    return tree


def rows_of(lines: list[str]) -> list[str]:
    """Return the rows of the table, without the lines above and below."""
    first = next(at for at, line in enumerate(lines) if "WASTE_MIB" in line)
    return [line for line in lines[first + 1 : -1] if line.strip()]


# Content


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (60, ["WASTE_MIB*", "OF_MIB", "FAULTS/S", "CPU%"]),
        (100, ["WASTE_MIB*", "+-", "OF_MIB", "USED|EMPTY", "FAULTS/S", "CPU%", "KERNEL%",
               "STALL%"]),
        (160, ["WASTE_MIB*", "+-", "OF_MIB", "USED|EMPTY", "FAULTS/S", "FAULT_CPU%", "CPU%",
               "KERNEL%", "STALL%", "FOLIOS", "DECIDES"]),
    ],
)  # fmt: skip
def test_columns_fit(screen: Open, host: FakeTree, width: int, titles: list[str]) -> None:
    """Each row is one line; a name is cut in its middle, as both ends identify it best."""
    lines = screen(width).text()
    (head,) = [line for line in lines if "WASTE_MIB" in line]
    assert head.split() == ["UNIT", *titles]
    rows = rows_of(lines)
    assert len(rows) == 3 and max(map(len, lines)) <= width
    assert rows[0].startswith("> + /redis.service ") and rows[0].split()[3] == "15.0"
    (pod,) = [row for row in rows if "~" in row]
    name = pod.split()[1]
    assert LONG.startswith(name.partition("~")[0]) and LONG.endswith(name.partition("~")[2])
    at = head.index("WASTE_MIB")
    assert all(row[at - 2] == " " for row in rows)
    assert lines[-1].startswith(LEGEND) and lines[-1].rstrip().endswith("t trim")


def test_it_follows_the_size_of_the_terminal(screen: Open) -> None:
    top = screen(100)
    assert "KERNEL%" in "".join(top.text())
    top.tmux("resize-window", "-x", "60", "-y", "12")
    lines = top.until("KERNEL%", gone=True)
    assert len(lines) == 12 and lines[-1].startswith(LEGEND)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colour(screen: Open, no_color: str) -> None:
    """The selected row is marked without colours, too."""
    environ = {"NO_COLOR": no_color} if no_color else {}
    lines = screen(100, 24, **environ).text("-e")
    escapes = re.findall(r"\x1b\[[0-9;]*m", "\n".join(lines))
    assert bool([each for each in escapes if each != "\x1b[39m"]) != bool(no_color)
    assert sum("> " in line for line in lines) == 1


# Keys


def test_keys(screen: Open, host: FakeTree) -> None:
    top = screen(100)
    top.press("m")
    assert "by memory" in top.until("OF_MIB*")[0]
    top.press("p")
    lines = top.until("PROCESS")
    assert [row.split()[-9:][0] for row in rows_of(lines)] != []
    assert [row.strip("> ").split()[:2] for row in rows_of(lines)] == [
        ["10", "redis"], ["11", "web"], ["12", "java"],
    ]  # fmt: skip
    top.press("/", "j", "a", "v", "a", "Enter")
    assert len(rows_of(top.until("with 'java'"))) == 1
    top.press("Escape")
    assert len(rows_of(top.until("with 'java'", gone=True))) == 3
    top.press("u")
    top.until("UNIT")
    top.press("Down", "Enter")
    top.until("    11 web")
    lines = top.until("1 processes in /web.service: 100% of the memory was looked at")
    (unit,) = [line for line in lines if line.startswith("> - ")]
    assert "/web.service" in unit
    assert "private 8.0 MiB" in lines[-2]
    top.press("Enter")
    top.until("    11 web", gone=True)
    top.press("?")
    top.until("any key goes back")
    top.press("x", "q")
    lines = top.until("ended with 0")
    assert " -icanon" not in "\n".join(top.until("icanon"))


@pytest.mark.parametrize(("keys", "code"), [(["C-c"], 0), (["q"], 0)])
def test_the_terminal_is_as_before(screen: Open, keys: list[str], code: int) -> None:
    top = screen(60, 15)
    top.press(*keys)
    top.until(f"ended with {code}")
    text = "\n".join(top.until("icanon"))
    assert not re.search(r"-icanon|-echo\b", text)


def test_sigterm_leaves_the_terminal_as_before(screen: Open) -> None:
    top = screen(60, 15)
    (shell,) = top.tmux("list-panes", "-F", "#{pane_pid}").split()
    (pid,) = children(int(shell))
    os.kill(pid, signal.SIGTERM)
    top.until("ended with 143")
    assert "-icanon" not in "\n".join(top.until("icanon"))


def test_scrolling(screen: Open, host: FakeTree) -> None:
    """The selected row is on the screen, from the first row to the last one."""
    for pid in range(20, 50):
        make_sparse(host, pid, f"small{pid}", 512, 1, f"/s{pid}.service")
    top = screen(100, 12)
    assert "> + /redis.service" in rows_of(top.text())[0]
    top.press("NPage", "NPage", "NPage", "NPage", "NPage", "NPage")
    top.until(".service")
    top.press("End")
    end = time.monotonic() + 60
    while not rows_of(top.text())[-1].startswith(">"):
        assert time.monotonic() < end
        time.sleep(0.1)
    top.press("Home")
    assert "/redis.service" in top.until("> + /redis.service")[2]


# The question


def test_trim_asks_and_enter_is_no_answer(screen: Open, host: FakeTree) -> None:
    """The question names unit and MiB; only y confirms it, by the verb as it can be typed."""
    top = screen(100)
    for answer in ("Enter", "n", "q", "Y", "Escape"):
        top.press("t")
        lines = top.until(" of /redis.service?")
        assert re.fullmatch(
            r"give back about 15\.0 MiB \(\+- 0\.\d\) of /redis\.service\?", lines[-2].rstrip()
        )
        assert lines[-1].rstrip() == "y: yes, any other key: no"
        top.press(answer)
        top.until("nothing was changed")
        top.press("Home")
        top.until(LEGEND)
    assert host.read(SPLIT) == ""
    top.press("t")
    top.until("give back")
    top.press("y")
    text = "\n".join(top.until("any key goes back to top"))
    assert "$ mmpolicy trim --cgroup /redis.service" in text
    assert "16384 KiB -> 1024 KiB" in text
    top.press("Space")
    lines = top.until(LEGEND)
    (row,) = [line for line in lines if "/redis.service" in line]
    assert "/redis.service" in row and row.split()[3] != "15.0"
    top.press("q")
    top.until("ended with 0")


def test_trim_is_for_the_process_that_was_shown(screen: Open, host: FakeTree) -> None:
    top = screen(100, 24, "--interval", "60")
    top.press("p")
    top.until("10 ")
    top.press("t")
    top.until("give back")
    reuse(host, 10)
    top.press("y")
    text = "\n".join(top.until("any key goes back to top"))
    assert "$ mmpolicy trim --pid 10" in text and "process 10 has ended" in text
    assert host.read(SPLIT) == ""


def test_trim_is_not_offered_where_nothing_is_known_to_be_empty(screen: Open) -> None:
    top = screen(100)
    top.press("/", "w", "e", "b", "Enter")
    top.until("with 'web'")
    top.press("t")
    top.until("t: no memory of /web.service is known to be empty")


def old_kernel(host: FakeTree) -> None:
    host.remove("/sys/kernel/mm/transparent_hugepage/shrink_underused")


def without_debugfs(host: FakeTree) -> None:
    host.remove(SPLIT)


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (lambda _host: None, ["--read-only"], "t: top was started with --read-only"),
        (old_kernel, [], "t: this kernel keeps the empty pages"),
        (without_debugfs, [], "t: no "),
    ],
)
def test_trim_is_absent_where_it_is_not_permitted(
    screen: Open, host: FakeTree, change: Callable[[FakeTree], None], words: list[str], said: str
) -> None:
    change(host)
    top = screen(100, 24, *words)
    assert "t trim" not in top.text()[-1]
    top.press("t")
    assert "give back" not in "\n".join(top.until(said))


# Without a terminal


def row(waste: int, error: int, looked_at: float = 1.0, **more: Any) -> dict[str, Any]:
    """Return a row of a frame."""
    given: dict[str, Any] = {
        "cgroup": "/a", "processes": 1, "waste_kib": waste, "error_kib": error, "rss_kib": 102400,
        "looked_at": looked_at, "faults_per_second": 0.0, "faults_percent": None,
        "faults_error_percent": None, "cpu_percent": 0.0, "kernel_percent": 0.0, "folios": {},
        "decides": "kernel",
    }  # fmt: skip
    return given | more


@pytest.mark.parametrize(
    ("waste", "error", "looked_at", "shown"),
    [
        (52531, 98816, 1.0, ("<148", "-")),  # 51.3 +- 96.5
        (15360, 500, 1.0, ("15.0", "0.5")),
        (500, 500, 1.0, ("<1", "-")),
        (0, 0, 1.0, ("0.0", "0.0")),
        (0, 300, 1.0, ("<1", "-")),
        (0, 0, 0.0, ("?", "?")),
        (2048000, 1024000, 1.0, ("2000", "1000")),
    ],
)
def test_an_error_above_the_value(
    waste: int, error: int, looked_at: float, shown: tuple[str, str]
) -> None:
    data = row(waste, error, looked_at)
    by_title = {each.title: each.cell(data) for each in top_screen.COLUMNS}
    assert (by_title["WASTE_MIB"], by_title["+-"]) == shown
    assert (empty_kib(data) > 0) == (looked_at == 1.0 and waste > error)
    assert empty_kib(row(4096, 0, waste_shared_kib=4096)) == 0


@pytest.mark.parametrize("width", range(3, 30))
def test_a_name_is_cut_in_its_middle(width: int) -> None:
    for text in ("", "a", "/system.slice/x.service", "ä" * 40):
        cut = cut_middle(text, width)
        assert len(cut) == min(len(text), width)
        assert cut == text or (text.startswith(cut[: (width - 1) // 2]) and "~" in cut)


def test_more_width_shows_no_less() -> None:
    before = set[str]()
    for width in range(20, 200):
        now = {each.title for each in columns_for(width)}
        assert now >= before
        before = now
    assert before == set(top_screen.IMPORTANT) == {each.title for each in top_screen.COLUMNS}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("q", ["q"]), ("\x1b[A", ["\x1b[A"]), ("\x1b[Bq", ["\x1b[B", "q"]), ("\x1b", ["\x1b"]),
        ("\x1b[5~\x1b[6~", ["\x1b[5~", "\x1b[6~"]), ("ä/", ["ä", "/"]), ("", []),
        ("\x1b[99X", ["\x1b", "[", "9", "9", "X"]),
    ],
)  # fmt: skip
def test_keys_that_come_together(text: str, keys: list[str]) -> None:
    assert split_keys(text) == keys


def test_what_is_chosen_stays_while_rows_move() -> None:
    """The selected row stays selected while rows move; it is the first row until a key moves it,
    and its neighbour if it disappears.
    """

    def frame(*names: str) -> dict[str, Any]:
        rows = [row(0, 0, cgroup=name) for name in names]
        return {"cgroups": rows, "processes": [], "notes": [], "processes_seen": 1,
                "memory_looked_at": 1.0, "longest_hold_ms": 0.25, "hold_limit_ms": 2.0}  # fmt: skip

    view = View("waste")
    for names in (("/a", "/b", "/c"), ("/b", "/a", "/c")):
        view.take(frame(*names))
        assert view.chosen == f"cgroup {names[0]}"
    view.press("j")
    assert view.chosen == "cgroup /a"
    view.take(frame("/c", "/b", "/a"))
    assert view.chosen == "cgroup /a"
    view.take(frame("/c", "/b"))
    assert view.chosen == "cgroup /b"
    view.take(frame())
    assert (view.chosen, view.press("t"), view.press("\r")) == ("", [], [])
    assert view.lines(frame(), [], 60, 10)[-1].startswith(LEGEND)


@pytest.mark.parametrize("key", ["t", "\r", "x", "/", "q", "\x1b", "Z", "\x7f"])
def test_no_key_but_y_runs_anything(key: str) -> None:
    view = View("waste")
    rows = [row(4096, 10, cgroup="/a")]
    view.take({"cgroups": rows, "processes": []})
    assert view.press("t") == []
    assert view.press(key) == []
    assert view.press("t") == [] or view.mode == "filter"


def test_tables_and_json_have_the_same_rows(run: Run, host: FakeTree, clock: Any) -> None:
    """Tables and JSON have the same rows with -n 1; a pipe gets whole names and all columns."""
    clock.steps = [lambda: None] * 9
    text = run("top", "-n", "1", "--cpu", "100").out
    clock.steps = [lambda: None] * 9
    data = json.loads(run("top", "-n", "1", "--cpu", "100", "--json").out)
    *tables, hold = text.split("\n\n")
    assert re.fullmatch(r"longest hold of an mmap_lock: \S+ ms \(limit 2 ms\)\n", hold)
    for part, rows, key in ((1, data["cgroups"], "cgroup"), (2, data["processes"], "pid")):
        head, *lines = tables[part].splitlines()
        assert head.split()[1:] == [each.title for each in top_screen.COLUMNS]
        assert [line.split()[0] for line in lines if line] == [str(each[key]) for each in rows]
    assert LONG in text


def test_memory_by_kind() -> None:
    data = row(
        0, 0, kinds_kib={"private": 102400, "swapped": 0, "lazily_freed": 2048},
        not_looked_at_kib={"hugetlb": 4096}, charged_elsewhere_kib=1024,
    )  # fmt: skip
    assert top_screen.memory_of(data) == (
        "private 100.0 MiB, lazily freed up to 2.0 MiB; not looked at: hugetlb 4.0 MiB; "
        "charged to other cgroups: 1.0 MiB"
    )
    none = row(0, 0, kinds_kib={}, not_looked_at_kib={}, charged_elsewhere_kib=0)
    assert top_screen.memory_of(none) == ""
