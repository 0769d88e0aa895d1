# SPDX-License-Identifier: GPL-2.0
"""`try --status`, `--stop`, `--report` and `--list`: present and former trials."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mmpolicy.ab.samples import load
from mmpolicy.control.experiment import LOOK_AGAIN_S, PATIENCE_S, end_it, live
from mmpolicy.control.experiment import running as experiment_of
from mmpolicy.control.keys import MANIFESTS
from mmpolicy.control.trials import (
    CHANGED,
    CUT_OFF,
    FOLDER,
    HALF_KEPT,
    KEEPING,
    KEPT,
    LEFT,
    RUN,
    RUNNING,
    Trial,
    read_trials,
    running,
    standing,
    undo_of,
)
from mmpolicy.control.watched import ENDED, read_watched, watched_of
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.memory.worth import ONCE
from mmpolicy.render import duration, emit, table
from mmpolicy.verbs.ab_jobs import told_of_run
from mmpolicy.verbs.try_watch import stop_watches, watch_lines

NEXT = {
    CUT_OFF: "the trial was killed; nothing was kept, and the former state is restored: try again",
    LEFT: "mmpolicy ab restore restores the sizes that the trial has left changed",
    HALF_KEPT: "the trial was killed while it kept the setting, and a part of it is in force; this "
    "undoes it: ",
    CHANGED: "the setting that was kept is no longer in force; mmpolicy log has the changes that "
    "mmpolicy made",
}
UNLOADED = (
    f"the module is not loaded, so all is at stock; mmpolicy load && mmpolicy apply {MANIFESTS} "
    "applies the setting again"
)
REPORT = "report     mmpolicy try --report shows the whole page"
ONCE_CUT_OFF = (
    "the trial was killed; no setting has changed, but its verb may have changed memory: try again"
)


def _last(tree: Tree) -> Trial:
    trials = read_trials(tree)
    if not trials:
        text = f"no trial has run: there is no record in {tree.real(FOLDER)}"
        raise Error(text, Exit.FAILED, "mmpolicy try --help has an example")
    return trials[-1]


def _line(trial: Trial, stands: str) -> str:
    return f"{stands}: {trial.candidate} on {trial.cgroup}, started {trial.started}"


def _is_unloaded(tree: Tree, trial: Trial) -> bool:
    """Return whether a setting that was kept is not in force just because the module is not
    loaded.
    """
    own = trial.profile and not trial.maintained
    return bool(own) and not tree.is_dir(CONTROL) and tree.exists(trial.manifest)


def _next_step(tree: Tree, trial: Trial, stands: str) -> str:
    """Return as text why the host does not agree with the decision of a trial, or why there is
    none, with the command to type; "" if all is as decided.
    """
    if stands == CUT_OFF and trial.candidate in ONCE:
        return ONCE_CUT_OFF
    if stands == CHANGED and _is_unloaded(tree, trial):
        return UNLOADED
    if stands in NEXT:
        return NEXT[stands] + trial.undo * (stands == HALF_KEPT)
    if (trial.phase, stands) == (KEEPING, KEPT):
        text = "the trial ended before it could record that the setting is kept"
        return f"{text}; this undoes it: {trial.undo}"
    return ""


def _progress(host: Host, trial: Trial) -> dict[str, Any]:
    """Return the progress of the running trial; {} if the trial has not written any
    progress yet.
    """
    if not trial.doing:
        return live(host.tree)
    left = max(trial.until - host.clock(), 0.0) if trial.until else None
    return {"phase": trial.doing, "left_s": left}


def _told_of_phase(now: dict[str, Any]) -> Iterator[str]:
    left = now["left_s"]
    yield now["phase"] + (f": {duration(left)} left at most" if left is not None else "")


def tell_status(host: Host, want_json: bool) -> int:
    """Print the progress of the last trial, or its effects and decision, and whether its setting is
    in force; then the settings of earlier trials that `try --watch` still tests. Return the exit
    code: Exit.DRIFT if a killed trial has left changes, else 0.
    """
    trial = _last(host.tree)
    stands = standing(host.tree, trial)
    now = _progress(host, trial) if stands == RUNNING else {}
    if trial.phase == KEEPING:
        trial = replace(trial, undo=undo_of(host.tree, trial))
    watched = watched_of(host.tree, trial.name)
    others = [each for each in read_watched(host.tree)
              if each.trial != trial.name and each.phase != ENDED and not each.known]  # fmt: skip

    def lines() -> Iterator[str]:
        yield _line(trial, stands)
        if now:
            yield from _told_of_phase(now) if trial.doing else told_of_run(now)
        step = _next_step(host.tree, trial, stands)
        if not step:
            yield from (*trial.effects, *trial.decision)
        if trial.decision:
            yield REPORT
        if step:
            yield f"next: {step}"
        if watched:
            yield from watch_lines(host.tree, watched)
        for each in others:
            yield f"earlier    {each.trial}: profile {each.profile} on {each.cgroup}"
            yield from watch_lines(host.tree, each)

    data = {"running": bool(running(host.tree)), "standing": stands, "trial": asdict(trial),
            "experiment": now,
            "watch": asdict(watched) if watched else None,
            "earlier_watches": [asdict(each) for each in others]}  # fmt: skip
    emit("try", want_json, data, lines)
    return int(Exit.DRIFT if stands in (LEFT, HALF_KEPT) else Exit.DONE)


def end_trial(host: Host, want_json: bool) -> None:
    """End the running trial, and wait until the former state is restored. If no trial runs, end all
    tests that `try --watch` has started.
    """
    who = running(host.tree)
    if not who:
        if stop_watches(host):
            tell_status(host, want_json)
            return
        raise Error("no trial is running", Exit.FAILED, "mmpolicy try --list shows ended trials")
    end, asked = host.clock() + PATIENCE_S, False
    while running(host.tree) == who:
        if experiment_of(host.tree):
            end_it(host.tree)
        elif not asked and _last(host.tree).candidate in ONCE:
            asked = True
            with suppress(ProcessLookupError):
                os.kill(int(who.removeprefix(RUN)), signal.SIGTERM)
        if host.clock() > end:
            raise Error(f"the trial does not end: {who}", Exit.EXPERIMENT, "mmpolicy try --status")
        host.sleep(LOOK_AGAIN_S)
    tell_status(host, want_json)


def tell_report(host: Host, want_json: bool, name: str | None, html: Path | None = None) -> int:
    """Print the report of the trial `name`, or of the last one that has ended; return its exit
    code.

    html: file for the report with the figures and plots of `ab report`; only after a switchback.
    """
    done = [trial for trial in read_trials(host.tree)
            if trial.page and name in (None, trial.name)]  # fmt: skip
    if name and not done:
        raise Error(f"no trial {name} has ended", Exit.FAILED, "mmpolicy try --list")
    trial = done[-1] if done else _last(host.tree)
    stands = standing(host.tree, trial)
    data = {"standing": stands, "trial": asdict(trial)}
    lines = [*trial.page, f"now        {stands}"]
    if html and trial.candidate in ONCE:
        text = f"{trial.candidate} was measured before and after, without samples for a plot"
        raise Error(text, Exit.FAILED, "mmpolicy try --report without --html")
    if html:
        from mmpolicy.ab.report.report import Report
        from mmpolicy.verbs.ab_report import write_html

        write_html(Report(load(Path(trial.file))), html, lines)
    emit("try", want_json, data, lines)
    return trial.exit if trial.page else int(Exit.INCONCLUSIVE)


def tell_list(host: Host, want_json: bool) -> None:
    """Print all trials of this host, and for each one whether its change is still in force."""
    found = [(trial, standing(host.tree, trial)) for trial in read_trials(host.tree)]
    data = {"trials": [{**asdict(trial), "standing": stands} for trial, stands in found]}
    rows = [(trial.name, trial.started, trial.cgroup, trial.candidate, stands, trial.exit)
            for trial, stands in found]  # fmt: skip
    head = ("TRIAL", "STARTED", "CGROUP", "CANDIDATE", "NOW", "EXIT")
    emit("try", want_json, data, table(head, rows) if rows else ["no trial has run"])
