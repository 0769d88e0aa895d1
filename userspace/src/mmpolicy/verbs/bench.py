# SPDX-License-Identifier: GPL-2.0
"""`bench`: run whole programs under one memory setting after another."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from mmpolicy import __version__
from mmpolicy.bench.arms import AS_IS, COLLAPSE, NO_THP, Arm, Arms, arms_of
from mmpolicy.bench.events import read_events
from mmpolicy.bench.programs import Programs, Work
from mmpolicy.errors import Error
from mmpolicy.host.disk import check_savable, save_as
from mmpolicy.host.evidence import folios_made
from mmpolicy.host.knobs import names_of, read_knobs
from mmpolicy.host.machine import Host, hardware_of
from mmpolicy.host.signals import interrupted, noted
from mmpolicy.host.step import Step
from mmpolicy.memory.follow import Follower
from mmpolicy.render import as_json, emit, progress_line
from mmpolicy.verbs.former import former_option
from mmpolicy.verbs.in_force import in_force
from mmpolicy.verbs.options import (
    FILE,
    Count,
    Number,
    Seconds,
    completer,
    dry_run_option,
    json_option,
    pass_host,
)

if TYPE_CHECKING:
    from mmpolicy.bench.result import Result
    from mmpolicy.bench.rounds import Bench

PLACE = "{threads}"  # text in the command that stands for the number of threads
RUNS = 12  # default number of rounds
# If the CPU time of a run is a smaller share of its duration, a warning is printed: another
# process, which is not measured, may have done the work.
IDLE = 0.05


def _arms(host: Host, given: tuple[str, ...]) -> Arms:
    now = read_knobs(host.tree)
    return Arms(host.tree, now, arms_of(host.tree, now, given), host.log)


def _facts(host: Host, work: Work, seed: int) -> dict[str, Any]:
    """Return the facts about the benchmarked command and the host, for the output file."""
    made_of = hardware_of(host.tree)
    return {
        "command": list(work.command),
        "server": work.server,
        "tool": __version__,
        "seed": seed,
        "host": {
            "kernel": host.release(),
            "machine": made_of.machine,
            "cpu": made_of.cpu or "",
            "cpus": made_of.cpus,
            "virtual": made_of.virtual,
            "memory": made_of.memory,
        },
    }


def _dry_run(arms: Arms, want_json: bool) -> None:
    lines, data = [], []
    for arm in arms.arms:
        for path, value in arms.knobs.arms[arm.name].items():
            step = Step(names_of(path)[0], value, arms.knobs.before[path], value)
            lines.append(f"{arm.name}: {step.line()}")
        lines += [f"{arm.name}: {name} <- {value}" for name, value in _own(arm)]
        data.append({"name": arm.name, "settings": arm.told()})
    emit("bench", want_json, {"dry_run": True, "arms": data}, lines or ["no arm changes a setting"])


def _own(arm: Arm) -> Iterator[tuple[str, str]]:
    """Yield name and value of those settings of an arm that apply only to the benchmarked command,
    not to the whole host.
    """
    for key, value in arm.settings.items():
        yield f"{arm.profile}/{key.inside}", value
    if arm.no_thp:
        yield "prctl", "PR_SET_THP_DISABLE"
    if arm.collapse:
        yield "collapse", "2 MB"


class Threads(click.ParamType):
    """A parameter type: a list of numbers of threads, such as 1,4,16."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        words = str(value).split(",")
        if not all(re.fullmatch("0*[1-9][0-9]{0,5}", word) for word in words):
            self.fail(f"'{value}' is not a list of numbers such as 1,4,16", param, ctx)
        return [int(word) for word in words]


def _works(work: Work, threads: Sequence[int]) -> dict[int, Work]:
    """Return the command for each number of threads, with the number in place of {threads};
    without --threads, the command as given, under the key 0.
    """
    if not threads:
        return {0: work}
    if not any(PLACE in word for word in (*work.command, work.server)):
        text = f"--threads needs {PLACE} in the command, as in: env OMP_NUM_THREADS={PLACE} load"
        raise click.UsageError(text)

    def filled(word: str, number: int) -> str:
        return word.replace(PLACE, str(number))

    return {
        number: replace(
            work,
            command=[filled(word, number) for word in work.command],
            server=filled(work.server, number),
            ready=filled(work.ready, number),
        )
        for number in threads
    }


def _check_outputs(options: dict[str, Any]) -> None:
    """Raise an error before the first run if an output file cannot be written later."""
    plot, html = options["plot"], options["html"]
    if options["threads"] and (plot or html):
        raise click.UsageError("--plot and --html are for one number of threads")
    if plot and plot.suffix not in (".svg", ".png"):
        raise click.UsageError(f"{plot}: the name must end in .svg or .png")
    if plot or html:
        import mmpolicy.bench.picture  # noqa: F401 (fails now if a library is missing)
    for path in filter(None, (options["out"], plot, html)):
        check_savable(path)


def _warn_of_few(arms: int, options: dict[str, Any]) -> None:
    """Warn before the first run if there are too few rounds to show a difference."""
    from mmpolicy.ab.design import least_pairs

    runs, need = options["runs"], least_pairs(max(arms - 1, 1))
    if arms > 1 and runs < need and not (options["detect"] or options["within"]):
        text = (
            f"--runs {runs} is too few to show a difference between {arms} arms; give "
            f"--runs {need} or more"
        )
        click.echo(f"warning: {text}", err=True)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--arm", "arms", multiple=True, metavar="ARM", shell_complete=completer("arm"),
    help="As in `ab run`: knobs of the kernel, POINT=POLICY[,KNOB=VALUE ...] or a profile; "
    f"or `{AS_IS}`, or `{NO_THP}` for the command alone. All arms are compared with the first.  "
    f"[default: {AS_IS}, also with a single arm]",
)  # fmt: skip
@click.option(
    "--collapse", is_flag=True,
    help=f"The same as --arm {COLLAPSE}: turn memory that COMMAND uses in full into 2 MB pages, as "
    "soon as it does, see `mmpolicy collapse`; needs root.",
)  # fmt: skip
@click.option(
    "--runs", type=click.IntRange(1, 1000), default=RUNS, show_default=True,
    help="Runs of each arm, in rounds of random order.",
)  # fmt: skip
@click.option(
    "--detect", type=Number(min=0.1), metavar="PERCENT",
    help="Instead of --runs: as many runs as find a change of this size with 80 % probability.",
)  # fmt: skip
@click.option(
    "--precision", "within", type=Number(min=0.1), metavar="PERCENT",
    help="Instead of --runs: run until the median of each ratio is known to this precision.",
)  # fmt: skip
@click.option(
    "--metric", type=click.Choice(["cpu", "wall", "system", "faults", "peak_rss"]), default="cpu",
    show_default=True, help="The metric that decides whether an arm differs.",
)  # fmt: skip
@click.option(
    "--warmup", type=Count(min=0), default=1, show_default=True,
    help="Rounds at the beginning that are not counted, to warm up.",
)  # fmt: skip
@click.option(
    "--server", default="", metavar="COMMAND",
    help="A server to start for each run and to measure, with COMMAND as its load.",
)  # fmt: skip
@click.option(
    "--ready",
    default="",
    metavar="COMMAND",
    help="A command that exits with 0 once the server accepts its load.",
)
@click.option(
    "--timeout", type=Seconds(), default="10m", show_default=True,
    help="End the bench if one run takes longer.",
)  # fmt: skip
@click.option(
    "--threads", type=Threads(), metavar="N[,N...]",
    help=(
        "Run the whole bench once for each number of threads, which takes the place of "
        f"{PLACE} in COMMAND and --server."
    ),
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the order of the runs.")
@click.option("--out", type=FILE, metavar="FILE", help="Write all numbers to FILE, as JSON.")
@click.option(
    "--plot",
    type=FILE,
    metavar="FILE",
    help="Draw the ratios to the first arm into FILE, which must end in .svg or .png.",
)
@click.option("--html", type=FILE, metavar="FILE", help="Write the result as an HTML page.")
@dry_run_option
@json_option
@former_option("--within", "--precision")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_host
def bench(
    host: Host,
    arms: tuple[str, ...],
    command: tuple[str, ...],
    collapse: bool,
    dry_run: bool,
    want_json: bool,
    **options: Any,
) -> None:
    """Run COMMAND under one memory setting after the other, and compare.

    \b
    mmpolicy bench --arm 'off: hugepages-*/enabled=never' \\
        --arm '64 kB: hugepages-*/enabled=never,hugepages-64kB/enabled=always' -- python3 load.py

    Each round has one run of each arm, in a random order. The bench measures CPU time, time, page
    faults and the peak of memory. Knobs of the kernel are set for the whole host during a run; a
    policy decides for COMMAND alone. Whatever ends this command, the settings are as before.

    If a run fails or takes longer than --timeout, the bench ends, says which run of which arm it
    was, and prints the result of the complete rounds before it. Processes that outlive COMMAND
    are not measured; the bench names them.
    """
    if options["detect"] and options["within"]:
        raise click.UsageError("choose one of --detect and --precision")
    work = Work(command, options["server"], options["ready"], options["timeout"])
    works = _works(work, options["threads"] or ())
    chosen = _arms(host, (*arms, *[COLLAPSE] * collapse))
    if dry_run:
        _dry_run(chosen, want_json)
        return
    _check_outputs(options)
    _warn_of_few(len(chosen.arms), options)
    seed = options["seed"] if options["seed"] is not None else random.SystemRandom().getrandbits(62)
    benches: dict[int, Bench] = {}
    for number, each in works.items():
        if number:
            click.echo(f"threads: {number}", err=True)
        done, failure = _measure(host, chosen, each, seed, options)
        if done.runs:
            benches[number] = done
        if failure:
            break
    if benches:
        _tell(host, benches, work, failure, want_json, options)
    if failure:
        raise failure


def _measure(
    host: Host, arms: Arms, work: Work, seed: int, options: dict[str, Any]
) -> tuple[Bench, Error | None]:
    """Run the benchmark for one number of threads; return its complete rounds, and the error that
    ended it early, or None.
    """
    from mmpolicy.bench.rounds import Bench, Length

    length = Length(
        options["runs"],
        options["detect"] or 0.0,
        options["metric"],
        within=options["within"] or 0.0,
    )
    with noted() as caught:

        def tick() -> None:
            if caught:
                raise interrupted(caught[0])

        arms.knobs.look = tick
        with Programs(work, tick) as programs:
            bench = Bench(
                arms, programs, length, seed, lambda: folios_made(host.tree),
                lambda pid: Follower(host, pid).end, lambda: read_events(host.tree),
            )  # fmt: skip
            try:
                with in_force(host, arms, arms.changes_host):
                    for done in bench.rounds(options["warmup"]):
                        progress_line(length.progress(done), done == length.rounds)
                        tick()
            except Error as err:
                return bench, err
    if note := length.note():
        click.echo(f"warning: {note}", err=True)
    return bench, None


def _tell(
    host: Host,
    benches: dict[int, Bench],
    work: Work,
    failure: Error | None,
    want_json: bool,
    options: dict[str, Any],
) -> None:
    """Print the result of the complete rounds, then write the output files.

    The output files come last, so that an error in writing them does not hide the result.
    """
    from mmpolicy.bench.result import Result

    results = {
        number: Result(
            done.arms.arms, done.runs, options["metric"], done.seed, bool(options["within"])
        )
        for number, done in benches.items()
    }
    for note in dict.fromkeys(chain.from_iterable(map(_not_counted, benches.values()))):
        click.echo(f"warning: {note}", err=True)
    *_, (last, done) = benches.items()
    found = {
        number: {**result.data(), "outlived": sorted(benches[number].programs.outlived)}
        for number, result in results.items()
    }
    facts = _facts(host, work, done.seed)
    data = {
        "dry_run": False, **facts,
        **(found.get(0) or {"threads": [{"threads": n, **each} for n, each in found.items()]}),
        "failed": failure.message if failure else None,
    }  # fmt: skip

    def lines() -> Iterator[str]:
        for number, result in results.items():
            yield from [f"threads: {number}", ""] if number else []
            yield from result.lines()
            yield from [""] if number != last else []

    emit("bench", want_json, data, lines)
    if failure:
        rounds = len(done.runs)
        failure.message += (
            f"; {rounds} complete round{'s' * (rounds > 1)} before the failure, see above"
        )
    _save(results[last], data, facts, shlex.join(work.command), options, failure)


def _save(
    result: Result,
    data: dict[str, Any],
    facts: dict[str, Any],
    title: str,
    options: dict[str, Any],
    failure: Error | None,
) -> None:
    """Write each output file, even if another one cannot be written, and then raise the first
    error; failure: an earlier error of the bench, which comes first.
    """
    out, plot, html = options["out"], options["plot"], options["html"]
    deeds: list[Callable[[], None]] = []
    if out:
        deeds.append(lambda: save_as(out, as_json("bench", data).encode() + b"\n"))
    if plot or html:
        from mmpolicy.bench.picture import page, save_picture

        told = [(name, str(value)) for name, value in {**facts, **facts["host"]}.items()]
        if plot:
            deeds.append(lambda: save_picture(result, plot))
        if html:
            deeds.append(lambda: save_as(html, page(result, title, told).encode()))
    for deed in deeds:
        try:
            deed()
        except Error as err:
            if failure:
                err.show()
            failure = failure or err
    if failure:
        raise failure


def _not_counted(done: Bench) -> Iterator[str]:
    """Yield a warning for each kind of work that the figures miss: work of processes that outlive
    the benchmarked command, and work that other processes do for it.
    """
    if names := sorted(done.programs.outlived):
        yield (
            "these processes outlived the one that started them, so their CPU time, "
            f"faults and memory are not counted: {', '.join(names)}"
        )
    values = [each for run in done.runs for each in run.values()]
    cpu, wall = (sum(each[name] for each in values) for name in ("cpu", "wall"))
    if cpu < IDLE * wall and not done.programs.work.server:
        yield (
            f"the command used {cpu / wall:.1%} of a CPU: the work of other processes for it, "
            "such as a server or a container runtime, is not counted; --server measures a server"
        )
