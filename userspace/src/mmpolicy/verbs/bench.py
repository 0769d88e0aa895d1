# SPDX-License-Identifier: GPL-2.0
"""`bench`: whole programs under one memory setting after the other."""

import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mmpolicy import __version__
from mmpolicy.ab.policy_arms import StoppedError
from mmpolicy.bench.arms import AS_IS, NO_THP, Arm, Arms, arms_of
from mmpolicy.bench.programs import Programs, Work
from mmpolicy.errors import Error, Exit
from mmpolicy.host.disk import save_as
from mmpolicy.host.evidence import folios_made
from mmpolicy.host.knobs import names_of, read_knobs
from mmpolicy.host.machine import Host, hardware_of
from mmpolicy.host.signals import interrupted, noted
from mmpolicy.host.step import Step
from mmpolicy.render import as_json, emit, progress_line
from mmpolicy.verbs.in_force import in_force
from mmpolicy.verbs.options import FILE, Seconds, completer, dry_run_option, json_option, pass_host

RUNS = 12  # rounds


def _arms(host: Host, given: tuple[str, ...]) -> Arms:
    now = read_knobs(host.tree)
    return Arms(host.tree, now, arms_of(host.tree, now, given), host.log)


def _facts(host: Host, work: Work, seed: int) -> dict[str, Any]:
    """Return where and how this was measured."""
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
    emit("bench", want_json, {"dry_run": True, "arms": data}, lines or ["nothing is changed"])


def _own(arm: Arm) -> Iterator[tuple[str, str]]:
    """Yield what an arm changes for the command alone."""
    for key, value in arm.settings.items():
        yield f"{arm.profile}/{key.inside}", value
    if arm.no_thp:
        yield "prctl", "PR_SET_THP_DISABLE"


def _check_outputs(plot: Path | None, html: Path | None) -> None:
    if plot and plot.suffix not in (".svg", ".png"):
        raise click.UsageError(f"{plot}: the name has to end in .svg or .png")
    if plot or html:
        import mmpolicy.bench.picture  # noqa: F401 (fails now rather than after minutes)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--arm", "arms", multiple=True, metavar="ARM", shell_complete=completer("arm"),
    help="As in `ab run`: knobs of the kernel, POINT=POLICY[,KNOB=VALUE ...] or a profile; "
    f"or `{AS_IS}`, or `{NO_THP}` for the command alone. The first is what others are compared "
    f"with.  [default: {AS_IS}, also beside a single arm]",
)  # fmt: skip
@click.option(
    "--runs", type=click.IntRange(1, 1000), default=RUNS, show_default=True,
    help="Runs of each arm, in rounds of random order.",
)  # fmt: skip
@click.option(
    "--detect", type=click.FloatRange(min=0.1), metavar="PERCENT",
    help="Instead of --runs, as many as find such a change with 80 % probability.",
)  # fmt: skip
@click.option(
    "--within", type=click.FloatRange(min=0.1), metavar="PERCENT",
    help="Instead of --runs, until the median of each ratio is known so closely.",
)  # fmt: skip
@click.option(
    "--metric", type=click.Choice(["cpu", "wall", "system", "faults", "peak_rss"]), default="cpu",
    show_default=True, help="What decides if a difference was found.",
)  # fmt: skip
@click.option(
    "--warmup", type=click.IntRange(min=0), default=1, show_default=True,
    help="Rounds that do not count.",
)  # fmt: skip
@click.option(
    "--server", default="", metavar="COMMAND",
    help="Start this for each run, and measure it while COMMAND is its load.",
)  # fmt: skip
@click.option(
    "--ready", default="", metavar="COMMAND", help="Ends with 0 once the server can have its load."
)
@click.option("--time-limit", type=Seconds(), default="10m", show_default=True, help="For one run.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the order of the runs.")
@click.option("--out", type=FILE, metavar="FILE", help="Write all numbers to FILE, as JSON.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw the ratios into FILE.svg or .png.")
@click.option("--html", type=FILE, metavar="FILE", help="Write a page.")
@dry_run_option
@json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_host
def bench(
    host: Host,
    arms: tuple[str, ...],
    command: tuple[str, ...],
    dry_run: bool,
    want_json: bool,
    **options: Any,
) -> None:
    """Run COMMAND under one memory setting after the other, and compare.

    \b
    mmpolicy bench --arm 'off: hugepages-*/enabled=never' \\
        --arm '64 kB: hugepages-*/enabled=never,hugepages-64kB/enabled=always' -- python3 load.py

    Each round has one run of each arm, in a random order. Measured are CPU time, time, page faults
    and the peak of memory. Knobs of the kernel are set for the whole host while a run takes; a
    policy decides for COMMAND alone. Whatever ends this command, the settings are as before.
    """
    _check_outputs(options["plot"], options["html"])
    if options["detect"] and options["within"]:
        raise click.UsageError("choose one of --detect and --within")
    work = Work(command, options["server"], options["ready"], options["time_limit"])
    chosen = _arms(host, arms)
    if dry_run:
        _dry_run(chosen, want_json)
        return
    seed = options["seed"] if options["seed"] is not None else random.SystemRandom().getrandbits(62)
    runs = _measure(host, chosen, work, seed, options)
    _tell(host, chosen, work, seed, runs, want_json, options)


def _measure(
    host: Host, arms: Arms, work: Work, seed: int, options: dict[str, Any]
) -> list[dict[str, dict[str, float]]]:
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
            try:
                with in_force(host, arms, arms.changes_host):
                    bench = Bench(arms, programs, length, seed, lambda: folios_made(host.tree))
                    for done in bench.rounds(options["warmup"]):
                        progress_line(length.progress(done), done == length.rounds)
                        tick()
            except StoppedError as err:
                raise Error(err.reason, Exit.FAILED, "give the command again") from err
    if note := length.note():
        click.echo(f"warning: {note}", err=True)
    return bench.runs


def _tell(
    host: Host,
    arms: Arms,
    work: Work,
    seed: int,
    runs: list[dict[str, dict[str, float]]],
    want_json: bool,
    options: dict[str, Any],
) -> None:
    from mmpolicy.bench.result import Result

    result = Result(arms.arms, runs, options["metric"], seed, bool(options["within"]))
    facts = _facts(host, work, seed)
    data = {"dry_run": False, **facts, **result.data()}
    if options["out"]:
        save_as(options["out"], as_json("bench", data).encode() + b"\n")
    if options["plot"] or options["html"]:
        from mmpolicy.bench.picture import page, save_picture

        title = shlex.join(work.command)
        told = [(name, str(value)) for name, value in {**facts, **facts["host"]}.items()]
        if options["plot"]:
            save_picture(result, options["plot"])
        if options["html"]:
            save_as(options["html"], page(result, title, told).encode())
    emit("bench", want_json, data, result.lines)
