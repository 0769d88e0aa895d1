# SPDX-License-Identifier: GPL-2.0
"""The verb `try`: observe a service, try a change, and keep it or restore the former state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmpolicy.ab.run.scope import HOST
from mmpolicy.control.experiment import in_the_way
from mmpolicy.control.experiment import running as experiment_of
from mmpolicy.control.model import check_loaded
from mmpolicy.control.trials import (
    DECISION,
    KEPT,
    LOCK,
    RUN,
    SYSTEMD,
    UNTOUCHED,
    read_trials,
    running,
    standing,
)
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.host.evidence import THP
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.memory.findings import option_of, own_service
from mmpolicy.memory.reach import enabled
from mmpolicy.memory.trim import modes
from mmpolicy.memory.worth import (
    BY_MODULE,
    NAMES,
    NOT_HERE,
    NOT_NOW,
    NOT_WORTH,
    ONCE,
    OUT_OF_REACH,
    SIZES,
    WORTH,
    Candidate,
    Here,
    Seen,
    Way,
    bound_of,
    hints,
    judge,
)
from mmpolicy.render import emit
from mmpolicy.verbs.ab_jobs import start_own_unit
from mmpolicy.verbs.options import (
    FILE,
    Count,
    Seconds,
    Share,
    ask,
    complete_cgroup,
    complete_unit,
    completer,
    json_option,
)
from mmpolicy.verbs.reached import SHOWN
from mmpolicy.verbs.try_host import arm, check_systemd
from mmpolicy.verbs.try_look import (
    abilities,
    look,
    measurable,
    options_of,
    own_sizes,
    pace,
    run_time,
)

if TYPE_CHECKING:
    from mmpolicy.control.trials import Trial
    from mmpolicy.verbs.try_run import Wish

LOOK_S = 60.0  # seconds for which the service is observed, without --seconds
# the preset of `ab run` whose duration is printed as that of a trial; all presets take equally long
PRESET = "adaptive"
SERVICE = "mmpolicy-try"  # systemd unit that runs the trial
JOBS = ("status", "stop", "report", "list")
NEXT_OF = {  # next step to print after each verdict, if `try` starts no trial
    WORTH: "run the commands of one candidate",
    NOT_WORTH: "leave the service as it is",
    NOT_NOW: "give the command again when that is over",
    OUT_OF_REACH: "remove the barriers in the lines 'reach', if you can, and try again",
    NOT_HERE: "the lines 'not here' say what this host lacks",
}
TRIAL = "--trial is for --report, and for --watch without a service"
NEXT = (
    "mmpolicy try --status shows the progress; mmpolicy try --stop ends the trial and restores the "
    "former state"
)


@dataclass(frozen=True)
class TryOptions:
    """The options of `try`, except those that select a job, such as `--status`."""

    unit: str | None
    cgroup: str | None
    whole_host: bool
    seconds: float
    candidate: str | None
    without: tuple[str, ...]
    work: str | None
    block: float | None
    pairs: int | None
    lease: float | None
    watch: float | None
    trial: str | None
    bound: float | None
    yes: bool
    foreground: bool
    out: Path | None
    dry_run: bool
    want_json: bool


@dataclass(frozen=True)
class Answer:
    """The result of the observation of a service: whether a change can pay, why, and the candidates
    to try, best first.
    """

    seen: Seen
    here: Here
    verdict: str
    why: str
    candidates: list[Candidate]


@click.command("try")
@click.option(
    "--unit", metavar="NAME", shell_complete=complete_unit, help="A systemd unit that runs."
)
@click.option(
    "--cgroup", metavar="PATH", shell_complete=complete_cgroup,
    help="A cgroup: its directory, or its path below /sys/fs/cgroup.",
)  # fmt: skip
@click.option(
    "--host",
    "whole_host",
    is_flag=True,
    help="The whole host: try the kernel's own sizes of 16 to 64 kB, which need no module.",
)
@click.option(
    "--seconds", type=Seconds(), default=LOOK_S, show_default=True, metavar="TIME",
    help="Time for which the service is observed first.",
)  # fmt: skip
@click.option(
    "--candidate",
    type=click.Choice(NAMES),
    help="Try this setting, without observing the service first.",
)
@click.option(
    "--without", multiple=True, type=click.Choice(NAMES), metavar="CANDIDATE",
    help="Do not try this setting; may be repeated.",
)  # fmt: skip
@click.option(
    "--work", metavar="METRIC", shell_complete=completer("metric"),
    help="The rate at which the service works, such as `cmd:COMMAND/s`, where COMMAND prints the "
    "number of requests so far: CPU time is then compared per request.",
)  # fmt: skip
@click.option(
    "--block", type=Seconds(least=1), help="Length of a block, of which a third is wash-out; "
    "for `trim`, `collapse` and `maintain`, length of each measurement.  [default: 2m; 8m]",
)  # fmt: skip
@click.option("--pairs", type=Count(), help="The most pairs of blocks.  [default: 60]")
@click.option(
    "--lease", type=Seconds(least=1), metavar="TIME",
    help="Back to stock if the trial does not report for this time.  [default: 10s]",
)  # fmt: skip
@click.option(
    "--watch", type=Share(), metavar="PERCENT",
    help="Go on testing the kept setting, with this percentage of the blocks at stock, such as "
    "2%; without a service, test the setting of an earlier trial.  [default: off]",
)  # fmt: skip
@click.option(
    "--trial",
    metavar="NAME",
    help="With --watch: test the setting of this trial, not the one kept last; with --report: "
    "print the report of this trial.",
)
@click.option("--bound", type=float, hidden=True, help="For the unit of a trial: see Wish.bound.")
@click.option("--yes", is_flag=True, help="Begin without asking.")
@click.option(
    "--foreground", is_flag=True, help="Run the trial in the foreground, not as a unit of systemd."
)
@click.option("--out", type=FILE, metavar="FILE", help="File for the samples of a switchback.")
@click.option("--dry-run", is_flag=True, help="Print the plan and its duration; change nothing.")
@click.option(
    "--status",
    is_flag=True,
    help="Print the progress of the last trial, and the settings in force.",
)
@click.option(
    "--stop", is_flag=True,
    help="End the running trial and restore the former state; if none runs, end --watch.",
)  # fmt: skip
@click.option("--report", is_flag=True, help="Print the report of the last trial, or of --trial.")
@click.option(
    "--html", type=FILE, metavar="FILE", help="With --report: also write the report as HTML."
)
@click.option("--list", is_flag=True, help="List all trials of this host.")
@json_option
@click.pass_context
def try_service(ctx: click.Context, **options: Any) -> None:
    """Try whether a change of memory policy pays for a service: keep it, or go back.

    First looks at the service for a minute: the memory that it wastes, the most CPU time that its
    page faults can cost, and whether policies reach it. Below 1 % of a CPU, and 32 MiB or 5 % of
    its memory, the answer is "not worth it", with the figures. Else it prints the candidates that
    this host can have, the largest predicted gain first: the commands, their time, their price,
    the way back, and how they are proven. That changes nothing and needs no module.

    Then it asks, and has systemd try the best candidate: by a switchback under a lease, in which
    blocks of time with and without it alternate. `trim`, `collapse` and `maintain` cannot be
    switched back: the service is measured, they work on it once, and it is measured again. The
    candidate is kept if the gain is shown, and all other metrics are within their margins; else
    the former state is restored. --report then prints the page about it.

    --host looks at the whole host, and tries the kernel's own folios of 16 to 64 kB for all
    programs, without the module. It needs systemd, which restores the sizes if all processes of
    the trial are killed.

    With --watch 2%, it goes on testing the kept setting: one block in 50 is at stock. --status then
    says whether the setting still pays. If it is shown to be worse, it is taken back, and `verify`
    fails.

    \b
    mmpolicy try --unit redis-server.service \\
        --work "cmd:redis-cli info stats | sed -n 's/^total_commands_processed://p'/s"

    Exits with 0 after a plan whatever the verdict is; a trial in the foreground, and --report,
    with 0 if the setting was kept, 7 if the trial is inconclusive, and 8 if the setting is worse.
    """
    if options["candidate"] in ONCE and (options["pairs"] or options["lease"]):
        text = f"--pairs and --lease are for a switchback, not for {options['candidate']}"
        raise click.UsageError(f"{text}: --block is the length of each measurement")
    jobs = [name for name in JOBS if options.pop(name)]
    html = options.pop("html")
    if html and jobs != ["report"]:
        raise click.UsageError("--html is for --report")
    given = TryOptions(**options)
    if jobs:
        _do_job(ctx, jobs, given, html)
    elif not _watches(ctx, given):
        _look_and_try(ctx, given)


def _look_and_try(ctx: click.Context, given: TryOptions) -> None:
    """Observe the service, print whether a change can pay, and start a trial of the best candidate
    that can run here. With --candidate, start its trial without an observation.
    """
    host: Host = ctx.obj
    path = _path(host, given)
    _check_work(given.work)
    if given.whole_host or given.candidate == SIZES:
        way = own_sizes(host.tree, path, Way())
        if given.candidate:
            _require(way)
        if way.why_not:
            lines = [f"verdict: {NOT_HERE}: {way.why_not}", f"next: {way.next_step}"]
            data = {"cgroup": path, "verdict": NOT_HERE, "why": way.why_not, "candidates": []}
            emit("try", given.want_json, data, lines)
            return
    if (given.whole_host or given.candidate == SIZES) and not given.dry_run:
        check_systemd(host.tree)
    answer = None if given.candidate else _answer(host, path, given)
    if answer and not given.want_json:
        _print(_answer_lines(host, path, answer, given))
    candidate = given.candidate or (runnable(answer, given.work) if answer else "")
    if candidate:
        _try(ctx, given, path, candidate, answer)
    elif given.want_json and answer:
        emit("try", True, _data(path, answer), [])


def _check_work(work: str | None) -> None:
    """Raise a usage error, before the observation takes its minute, if --work has a bad metric."""
    if work:
        from mmpolicy.ab.metrics import Metric

        Metric.of_work(work)


def _require(way: Way) -> None:
    """Raise an error with the reason and the next step if the host cannot do what a candidate
    needs; way says so.
    """
    if way.why_not:
        raise Error(way.why_not, Exit.LACKING, way.next_step)


def _watches(ctx: click.Context, given: TryOptions) -> bool:
    """If the options ask to test the setting of an earlier trial (`--watch` without a service),
    start or continue this test and return True. If they are for a new trial, do nothing and return
    False.
    """
    if not given.watch or given.unit or given.cgroup or given.whole_host:
        if given.trial:
            raise click.UsageError(TRIAL)
        return False
    from mmpolicy.verbs.try_watch import How, watch_kept

    how = How(given.yes, given.foreground, given.dry_run, given.want_json)
    watch_kept(ctx, given.watch, given.trial, how)
    return True


def _path(host: Host, given: TryOptions) -> str:
    """Return the path of the cgroup that the options name, HOST for --host; raise an error unless
    exactly one of --unit, --cgroup and --host is given.
    """
    if sum([given.unit is not None, given.cgroup is not None, given.whole_host]) != 1:
        raise click.UsageError("give one of --unit NAME, --cgroup PATH and --host")
    if given.whole_host:
        if given.candidate not in (None, SIZES):
            raise click.UsageError(f"{given.candidate} is for a service; --host tries {SIZES}")
        return HOST
    path = find_cgroup(host.tree, given.unit or given.cgroup or "").name
    if path == HOST:
        raise Error("/ is the whole host, no service", Exit.USAGE, "mmpolicy try --host")
    return path


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)


def _do_job(
    ctx: click.Context, jobs: Sequence[str], given: TryOptions, html: Path | None
) -> None:  # fmt: skip
    from mmpolicy.verbs.try_jobs import end_trial, tell_list, tell_report, tell_status

    if len(jobs) > 1 or given.unit or given.cgroup or given.whole_host:
        raise click.UsageError("give one of --status, --stop, --report and --list, and no service")
    if jobs == ["report"]:
        ctx.exit(tell_report(ctx.obj, given.want_json, given.trial, html))
    if given.trial:
        raise click.UsageError(TRIAL)
    if jobs == ["status"]:
        ctx.exit(tell_status(ctx.obj, given.want_json))
    what = {"stop": end_trial, "list": tell_list}[jobs[0]]
    what(ctx.obj, given.want_json)


def _answer(host: Host, path: str, given: TryOptions) -> Answer:
    """Observe the service, and judge the candidates that the user did not exclude."""
    seen = look(host, path, given.seconds)
    target = "--host" if given.whole_host else option_of(path)
    time, length = run_time(PRESET, given.block, given.pairs), (given.block, given.pairs)
    options = options_of(given.work, *length, given.lease)
    here = abilities(host, target, path, time, options, pace(*length, given.lease))
    return Answer(seen, here, *judge(seen, here, given.without, given.whole_host))


def _data(path: str, answer: Answer) -> dict[str, Any]:
    found = [{**asdict(each), "proof": each.proof} for each in answer.candidates]
    return {"cgroup": path, "verdict": answer.verdict, "why": answer.why,
            "seen": asdict(answer.seen), "candidates": found,
            "notes": [*_notes(path, answer)]}  # fmt: skip


def _best(answer: Answer) -> Candidate | None:
    return answer.candidates[0] if answer.verdict == WORTH else None


def runnable(answer: Answer, work: str | None) -> str:
    """Return the name of the best candidate if `try` can run its trial on this host now; else "".

    work: the metric that the user gave as --work, or None.
    """
    best = _best(answer)
    if not best or not best.runs(answer.here) or best.lacks_work(work):
        return ""
    return best.name


def next_step(answer: Answer) -> str:
    """Return as text what the user can do after an observation that no trial follows."""
    best = _best(answer)
    if best and best.lacks_work(None):
        return (
            f"give --work, too: {best.name} is kept if CPU time per unit of work falls, so its "
            "trial needs a count of the work, such as requests; mmpolicy try --help has an example"
        )
    return NEXT_OF[answer.verdict]


def _answer_lines(host: Host, path: str, answer: Answer, given: TryOptions) -> Iterator[str]:
    yield from _seen_lines(host, path, answer.seen)
    past = [each for each in read_trials(host.tree) if each.cgroup == path and each.decision]
    results = {each.candidate: _result(host.tree, each) for each in past}
    for last in past[-1:]:
        report = f"mmpolicy try --report --trial {last.name}"
        yield f"  tried    {last.candidate}, {results[last.candidate]}; its report: {report}"
    yield f"verdict: {answer.verdict}: {answer.why}"
    yield from _candidate_lines(answer.candidates, results)
    yield from (f"note: {text}" for text in _notes(path, answer))
    if not runnable(answer, given.work):
        yield f"next: {next_step(answer)}; try itself has changed nothing"


def _result(tree: Tree, trial: Trial) -> str:
    """Return as text the date of a trial and its decision, and, if it has changed since, how its
    setting stands now.
    """
    stands = standing(tree, trial)
    now = f" (now {stands})" if stands != trial.phase else ""
    return f"{trial.started[:10]}: {trial.decision[0].removeprefix(DECISION)}{now}"


def _notes(path: str, answer: Answer) -> Iterator[str]:
    if path == HOST:
        yield "mmpolicy recommend looks for changes that pay for one service"
    else:
        yield from hints(answer.seen, answer.here.target)


def _without_systemd(host: Host, given: TryOptions, plan: list[str]) -> TryOptions:
    """Return the options. If the host has no systemd to run the trial as a unit, they are changed
    to a trial in the foreground, and a line that says so is appended to plan.
    """
    if given.foreground or host.tree.is_dir(SYSTEMD):
        return given
    plan.append(
        "the trial runs in the foreground, as this host has no systemd, and ends with this shell"
    )
    return replace(given, foreground=True)


def _try(
    ctx: click.Context, given: TryOptions, path: str, candidate: str, answer: Answer | None
) -> None:
    """Print the plan of a trial, ask the user, and run it in this process or as a systemd unit."""
    from mmpolicy.verbs import try_once, try_run
    from mmpolicy.verbs.try_run import Wish, keeps, new_trial

    host: Host = ctx.obj
    if given.watch and candidate not in BY_MODULE:
        text = f"--watch tests the profile of one service, and {candidate} makes no profile"
        raise Error(text, Exit.USAGE, "leave out --watch, and repeat the trial after a week")
    if candidate in BY_MODULE:
        check_loaded(host.tree)
        _require(measurable(host.tree, path))
    if who := running(host.tree) or experiment_of(host.tree):
        raise in_the_way(who)
    words = path, own_service(path), given.work, given.block, given.pairs, given.lease
    wish: Wish
    run: Callable[[Trial], Trial]
    if candidate in ONCE:
        wish = once = try_once.OnceWish(candidate, *words[:4], None, None)
        lines = [*try_once.plan_lines(host, once), f"if kept: {try_once.keeps(once)}"]
        run = partial(try_once.carry_out, host, once)
    else:
        bound = bound_of(answer.seen) if answer else given.bound or 0.0
        wish = Wish(candidate, *words, bound * (try_run.TRIES[candidate].gains == "cpu"))
        experiment = try_run.planned_of(ctx, wish)
        lines = [*try_run.plan_lines(wish, experiment), f"if kept: {keeps(host.tree, wish)}"]
        run = partial(try_run.carry_out, host, wish, experiment)
        if given.watch:
            from mmpolicy.verbs.try_watch import cost_lines

            lines += cost_lines(given.watch, experiment.design.block_s)
    data = {**(_data(path, answer) if answer else {"cgroup": path}), "candidate": candidate,
            "rule": wish.rule(), "plan": lines, "dry_run": given.dry_run}  # fmt: skip
    given = _without_systemd(host, given, lines)
    if given.dry_run:
        emit("try", given.want_json, data, lines)
        return
    for line in lines:
        click.echo(line, err=True)
    if candidate not in ONCE:
        try_run.check_libraries()
    ask(given.yes, ", or --dry-run to look")
    trial = new_trial(host.tree, wish, given.out)
    if given.foreground:
        _run_here(ctx, given, run, trial)
        return
    _start(host, trial, _words(wish, trial.file, given.watch))
    into = "" if candidate in ONCE else f", and writes its samples to {trial.file}"
    told = [f"{SERVICE}.service runs the trial{into}", f"next: {NEXT}"]
    emit("try", given.want_json, {**data, "file": trial.file}, told)


def _start(host: Host, trial: Trial, words: Sequence[str]) -> None:
    """Have systemd run a trial. If it refuses, keep a record that says so, unless the trial itself
    has kept one, and raise the error.
    """
    try:
        start_own_unit(host, SERVICE, "Trial of mmpolicy", words)
    except Error as err:
        records = [each for each in read_trials(host.tree) if each.name >= trial.name]
        if not any(each.file == trial.file for each in records):
            text = f"not started, so nothing has changed: {err.message}; next: {err.next_step}"
            code, page = int(err.exit_code), (f"{DECISION}{text}",)
            with suppress(Error):
                trial.keep(host.tree, phase=UNTOUCHED, exit=code, page=page)
        raise


def _words(wish: Wish, file: str, watch: float | None) -> list[str]:
    """Return the command-line arguments with which a systemd unit runs this trial in the foreground
    of the unit.
    """
    words = ["try", *(["--host"] if wish.cgroup == HOST else ["--cgroup", wish.cgroup])]
    words += ["--candidate", wish.candidate]
    words += ["--yes", "--foreground", *wish.options]
    words += ["--watch", f"{watch:g}%"] if watch else []
    words += ["--bound", figure(wish.bound, 15)] if wish.bound else []
    return [*words, "--out", file]


def _run_here(
    ctx: click.Context, given: TryOptions, run: Callable[[Trial], Trial], trial: Trial
) -> None:
    host: Host = ctx.obj
    if trial.candidate == SIZES:
        arm(host)
    with ExitStack() as stack:
        try:
            stack.enter_context(host.tree.locked(LOCK, f"{RUN}{os.getpid()}", 0.5))
        except Error as err:  # another trial has begun since _try() looked for one
            if who := running(host.tree):
                raise in_the_way(who) from err
            raise
        trial = run(trial)
    data = {"trial": asdict(trial), "standing": standing(host.tree, trial)}
    emit("try", given.want_json, data, trial.page)
    if given.watch and trial.phase == KEPT:
        from mmpolicy.verbs.try_watch import watch_trial

        watch_trial(host, trial, given.watch)
    ctx.exit(trial.exit)


def _seen_lines(host: Host, path: str, seen: Seen) -> Iterator[str]:
    mib = {name: getattr(seen, f"{name}_kib") / 1024
           for name in ("memory", "private", "waste", "error")}  # fmt: skip
    number = f"{seen.processes} process{'es' * (seen.processes != 1)}"
    yield f"{path}: {number}, looked at for {seen.seconds:.0f} s"
    yield (
        f"  CPU      {figure(seen.cpu, 2)} % of a CPU, {figure(seen.kernel, 2)} % in the kernel; "
        f"{seen.faults:.0f} page faults a second"
    )
    yield (
        f"  faults   cost at most {figure(seen.fault_cpu, 2)} % of a CPU, of which folios (pages "
        f"in one piece) of 64 kB save at most {figure(seen.gain, 2)} % of a CPU; the cost of a "
        f"fault is from {seen.cost_from}"
    )
    yield (
        f"  memory   {mib['memory']:.0f} MiB, {mib['private']:.0f} MiB of it private, of which "
        f"{mib['waste']:.0f} MiB (+- {mib['error']:.0f}) are empty parts of large folios, with "
        "nothing but zeros"
    )
    yield f"  host     {_host_words(host)}"
    for each in seen.barriers[:SHOWN]:
        yield f"  reach    {each}"


def _candidate_lines(candidates: list[Candidate], results: dict[str, str]) -> Iterator[str]:
    for number, each in enumerate((one for one in candidates if not one.why_not), 1):
        yield from _of_candidate(number, each)
        if each.name in results:
            yield f"   tried: {results[each.name]}"
    for each in candidates:
        if each.why_not:
            yield f"not here: {each.name} ({each.gain}): {each.why_not}; next: {each.next_step}"


def _host_words(host: Host) -> str:
    """Return as text the state of the host: the mode of huge pages, the folio sizes that are not at
    `never`, and whether the module is loaded.
    """
    sizes = (f"{size} kB {mode}" for size, mode in modes(host.tree).items() if mode != "never")
    loaded = "the module is loaded" if host.tree.is_dir(CONTROL) else "the module is not loaded"
    given = f"folios: {', '.join(sizes) or 'none'}"
    return f"{THP}/enabled is {enabled(host.tree) or 'not there'}; {given}; {loaded}"


def _of_candidate(number: int, each: Candidate) -> Iterator[str]:
    yield f"{number}. {each.name}: {each.gain}"
    yield f"   do: {' && '.join(each.commands)}"
    yield f"   time: {each.time}"
    yield f"   price: {each.price}"
    yield f"   way back: {each.undo}"
    yield f"   proof: {each.proof}"
