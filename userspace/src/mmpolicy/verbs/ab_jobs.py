# SPDX-License-Identifier: GPL-2.0
"""`ab run --detach`, `ab status`, `ab stop` and `ab list`: experiments without a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from mmpolicy.ab.run.progress import clock
from mmpolicy.control.experiment import FOLDER, end_it, in_the_way, live, running
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.render import emit, table
from mmpolicy.verbs.options import json_option, pass_host

SERVICE = "mmpolicy-ab"  # systemd unit of a detached run
ZIPAPP = ".pyz"  # suffix of the command's file if the whole package is one archive for Python
NEXT = "mmpolicy ab status shows the progress; mmpolicy ab stop ends the run and restores the state"
# Options of `ab run --detach` that are not passed on to the run in its systemd unit.
HERE = ("detach", "out", "dry_run", "want_json", "yes", "preset")


def words_of(ctx: click.Context) -> Iterator[str]:
    """Yield the options of this `ab run` as command-line words. The systemd unit that runs the
    experiment gets them.
    """
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if param.name in HERE or value is None or value is False or value == ():
            continue
        several = isinstance(param, click.Option) and param.multiple
        for each in value if several else [value]:
            yield param.opts[0]
            yield ",".join(map(str, each)) if isinstance(each, tuple) else str(each)


def own_command() -> list[str]:
    """Return the words with which a new command line can start this program: its path, preceded by
    the Python interpreter if it was started as an archive or as a Python module.
    """
    path = Path(sys.argv[0])
    if path.suffix == ZIPAPP:
        return [sys.executable, str(path.resolve())]
    return [str(path.resolve())] if path.name == "mmpolicy" else [sys.executable, "-m", "mmpolicy"]


def new_file(tree: Tree) -> Path:
    """Return the path of a new file for the samples of a detached run."""
    return tree.real(FOLDER) / f"ab-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.jsonl"


def start_own_unit(
    host: Host, unit: str, description: str, argv: Sequence[str], properties: Sequence[str] = ()
) -> None:
    """Start this command as a systemd unit, and wait until it reports that it works.

    KillMode=process: run_as_unit() says why. There is no time limit for the start: on a slow host,
    loading the libraries and setting each knob once may take longer than systemd's 90 s.
    """
    wanted = ("KillMode=process", "Type=notify", "TimeoutStartSec=infinity", *properties)
    how = ["--collect", *(word for each in wanted for word in ("--property", each))]
    host.start_unit(own_unit(host, unit, description, how, argv))


def own_unit(
    host: Host, unit: str, description: str, how: Sequence[str], argv: Sequence[str]
) -> list[str]:
    """Return the words for systemd-run to run this command with the arguments `argv`; how: further
    options of systemd-run.
    """
    words = ["--unit", unit, *how, "--quiet", "--description", description]
    words += ["--working-directory", str(Path.cwd()), "--setenv", f"PATH={os.environ['PATH']}"]
    root = ["--root", str(host.tree.root)] if str(host.tree.root) != "/" else []
    own = [*own_command(), *root, *argv]
    return [*words, "--", *(word.replace("$", "$$") for word in own)]


def run_as_unit(host: Host, ctx: click.Context, out: Path | None, want_json: bool) -> None:
    """Start `ab run` as a systemd unit, so that a logout or a closed terminal does not end it.

    A stop of the unit signals only the main process, which then ends its commands and its watchdog.
    If all got the signal, the main process would take the end of a command for a failure. This
    function returns when the run works, so that an early error is reported here.
    """
    if who := running(host.tree):
        raise in_the_way(who)
    file = out or new_file(host.tree)
    file.parent.mkdir(parents=True, exist_ok=True)
    argv = ["ab", "run", *words_of(ctx), "--out", str(file.absolute())]
    start_own_unit(host, SERVICE, "Experiment of mmpolicy", argv)
    data = {"dry_run": False, "unit": f"{SERVICE}.service", "file": str(file)}
    emit(
        "ab run",
        want_json,
        data,
        [
            f"{SERVICE}.service runs the experiment, and writes the samples to {file}",
            f"next: {NEXT}",
        ],
    )


@click.command()
@json_option
@pass_host
def status(host: Host, want_json: bool) -> None:
    """Show the progress of the running experiment.

    Prints phase, block, arm, the time left, and the last value of each guard.
    """
    now = live(host.tree)
    if not now:
        who = running(host.tree)
        text = who and f"an experiment is starting or ending: {who}"
        emit("ab status", want_json, {"running": bool(who)}, [text or "no experiment runs"])
        return
    emit("ab status", want_json, {"running": True, **now}, list(told_of_run(now)))


def told_of_run(now: dict[str, Any]) -> Iterator[str]:
    yield (
        f"the experiment compares {now['control']} with {now['treatment']}, and writes to "
        f"{now['file']}"
    )
    if "block" in now:
        part = "measured" if now["measured"] else "wash-out"
        yield (
            f"block {now['block']} of {now['blocks']}, phase {now['phase']}, arm {now['arm']}, "
            f"{part}, {clock(now['left_s'])} left"
        )
    else:
        yield f"phase {now['phase']}"
    for text, value in now.get("guards", {}).items():
        yield f"guard {text}" + (f": the value is {figure(value)}" if value is not None else "")


@click.command()
@json_option
@pass_host
def stop(host: Host, want_json: bool) -> None:
    """End the running experiment, and wait until the former state is restored."""
    now = live(host.tree)
    if not running(host.tree):
        raise Error(
            "no experiment runs",
            Exit.FAILED,
            "mmpolicy ab list shows the experiments that have run",
        )
    end_it(host.tree)
    file = now.get("file", "")
    lines = ["the experiment was stopped, and the former state is restored"]
    lines += [f"next: mmpolicy ab report {file}"] * bool(file)
    emit("ab stop", want_json, {"stopped": True, "file": file or None}, lines)


@click.command("list")
@json_option
@pass_host
def list_runs(host: Host, want_json: bool) -> None:
    """List the experiments in this folder, and in /var/lib/mmpolicy/ab."""
    found = list(_kept(host.tree))
    rows = [(each["file"], each["started"], each["status"], str(each["blocks"]),
             f"{each['control']} : {each['treatment']}") for each in found]  # fmt: skip
    head = ("FILE", "STARTED", "STATUS", "BLOCKS", "ARMS")
    lines = (
        table(head, rows)
        if rows
        else [f"there is no file of an experiment in this folder or in {host.tree.real(FOLDER)}"]
    )
    emit("ab list", want_json, {"runs": found}, lines)


def _kept(tree: Tree) -> Iterator[dict[str, Any]]:
    at_work = live(tree).get("file")
    folders = dict.fromkeys(each.resolve() for each in (tree.real(FOLDER), Path.cwd()))
    for path in [path for folder in folders for path in sorted(folder.glob("*.jsonl"))]:
        if found := _summary(path):
            ends = "running" if str(path) == at_work else found["status"]
            yield {"file": str(path), **found, "status": ends}


def _summary(path: Path) -> dict[str, Any]:
    """Return a summary of a samples file without parsing its samples; {} if the file is not a
    samples file.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            header = json.loads(next(lines))
            control, treatment = header["control"]["given"], header["treatment"]["given"]
            blocks, last = 0, ""
            for last in lines:
                blocks += last.startswith('{"kind": "block"')
        end = json.loads(last) if '"kind": "end"' in last else {"status": "killed"}
        return {
            "started": header.get("started", ""),
            "status": end["status"],
            "blocks": blocks,
            "control": control,
            "treatment": treatment,
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return {}
