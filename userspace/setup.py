# SPDX-License-Identifier: GPL-2.0
"""What pyproject.toml cannot say: man pages and completions, made from the command itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from inspect import cleandoc
from pathlib import Path

from click import Command, Context, Group, Option
from click.shell_completion import get_completion_class
from click.utils import make_default_short_help
from click_man.man import ManPage
from setuptools import setup

HERE = Path(__file__).resolve().parent
OUT = Path("build/share")  # data_files takes paths relative to this file
COMPLETIONS = {
    "bash": "bash-completion/completions/mmpolicy",
    "zsh": "zsh/site-functions/_mmpolicy",
    "fish": "fish/vendor_completions.d/mmpolicy.fish",
}


STATUS = {
    0: "Done.",
    1: "Failed. Also if a line of a manifest is wrong, or the kernel refuses it.",
    2: "Wrong usage: unknown verb, option, point, policy, knob or profile.",
    3: "The kernel lacks the module, a hook or a feature.",
    4: "No permission.",
    5: "The kernel refused the value; nothing changed.",
    6: "verify: the state differs from the manifest.",
    7: "ab report: the experiment is inconclusive. recommend: too little was seen.",
    8: "ab report: the treatment is worse, or was stopped for harm.",
    9: "An experiment runs, which the change would end.",
    70: "A fault of this command.",
}
FILES = {
    "/etc/mmpolicy/*.toml": "Manifests that mmpolicy.service applies at boot.",
    "/sys/kernel/mmpolicy": "All settings; see docs/sysfs-abi.txt.",
    "/sys/kernel/debug/mmpolicy": "Counters of the module.",
    "/var/lib/mmpolicy/journal.jsonl": "Every change, for log and revert.",
    "/var/lib/mmpolicy/applied.toml": "The manifest that was applied last, for verify.",
    "/var/lib/mmpolicy/try/*.json": "Trials of try: the progress and the page of each.",
    "/run/mmpolicy/change.lock": "Locked while a command changes settings.",
}
ENVIRONMENT = {"NO_COLOR": "If set, output has no colours."}
EXAMPLES = {
    "mmpolicy": "mmpolicy set anon_order fixed max_order=4\nmmpolicy revert",
    "mmpolicy set": "mmpolicy set anon_order fixed max_order=4\n"
    "mmpolicy set anon_order adaptive --profile web --dry-run",
    "mmpolicy profile create": "mmpolicy profile create web --from default",
    "mmpolicy bind": "mmpolicy bind --cgroup redis-server.service web\nmmpolicy bind --pid 42 web\n"
    "mmpolicy bind --unit redis-server.service web",
    "mmpolicy lease": "mmpolicy lease 10m\nmmpolicy lease 0",
    "mmpolicy apply": "mmpolicy save now.toml\nmmpolicy apply --skip-missing now.toml",
    "mmpolicy revert": "mmpolicy log\nmmpolicy revert --to 3 --dry-run",
    "mmpolicy stats": "mmpolicy stats --watch\nmmpolicy stats --profile web --memory",
    "mmpolicy export": "mmpolicy export -o /var/lib/prometheus/node-exporter/mmpolicy.prom\n"
    "mmpolicy export --listen 9978",
    "mmpolicy thp": "mmpolicy thp --cgroup system.slice --watch",
    "mmpolicy ab run": "mmpolicy ab run --design switchback --metric 'vmstat.pgfault/s lower' "
    "--treatment hugepages-64kB/enabled=always",
    "mmpolicy try": "mmpolicy try --unit redis-server.service",
    "mmpolicy map": "mmpolicy map 42 -o memory.svg",
    "mmpolicy ab report": "mmpolicy ab report ab.jsonl --html ab.html",
}
SECTION = "8"


def _listed(items: Mapping[int, str] | Mapping[str, str]) -> str:
    return "\n".join(f".TP\n\\fB{name}\\fP\n{text}" for name, text in items.items())


def _as_it_is(text: str) -> str:
    """Return text as roff that keeps its line breaks."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join([".nf", *lines, ".fi"])


class Page(ManPage):  # type: ignore[misc]
    """A man page with sections that click-man does not write, such as EXIT STATUS and FILES."""

    def replace_blank_lines(self, s: str) -> str:
        """Return paragraphs as roff; a paragraph that begins with \\b keeps its line breaks."""
        found = []
        for paragraph in cleandoc(s).split("\n\n"):
            literal = paragraph.startswith("\b\n")
            found.append(_as_it_is(paragraph[2:]) if literal else paragraph)
        return "\n.PP\n".join(found)

    def __str__(self) -> str:
        """Return the page."""
        page = str(super().__str__()).replace('" "1" "', f'" "{SECTION}" "')
        page = page.replace("(1)", f"({SECTION})")
        sections = {"EXIT STATUS": _listed(STATUS), "FILES": _listed(FILES)}
        sections |= {"ENVIRONMENT": _listed(ENVIRONMENT)}
        if self.command in EXAMPLES:
            sections["EXAMPLES"] = _as_it_is(EXAMPLES[self.command])
        other = "mmpolicy doctor" if self.command == "mmpolicy" else "mmpolicy"
        sections["SEE ALSO"] = rf"\fB{other.replace(' ', '-')}\fP({SECTION})"
        return page + "".join(f".SH {name}\n{text}\n" for name, text in sections.items())


def _short(command: Command) -> str:
    return make_default_short_help(command.help or "", 80)


def _page(ctx: Context, verbs: Mapping[str, Context]) -> Page:
    """Return the man page of a verb, which lists its subcommands `verbs`."""
    from mmpolicy import __version__

    page = Page(ctx.command_path)
    page.version = __version__
    page.short_help, page.description = _short(ctx.command), ctx.command.help
    page.synopsis = " ".join(ctx.command.collect_usage_pieces(ctx))
    # From click 8.5 on, arguments have a help record, too; it may be empty.
    options = [param for param in ctx.command.params if isinstance(param, Option)]
    records = [param.get_help_record(ctx) for param in options]
    page.options = [record for record in records if record]
    page.commands = [(name, _short(verb.command)) for name, verb in verbs.items()]
    return page


def make_pages(folder: Path, ctx: Context) -> None:
    """Write the man page of a verb, and the pages of its subcommands."""
    verbs = {}
    if isinstance(ctx.command, Group):
        for name in ctx.command.list_commands(ctx):
            verb = ctx.command.get_command(ctx, name)
            assert verb
            verbs[name] = Context(verb, info_name=name, parent=ctx)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{ctx.command_path.replace(' ', '-')}.{SECTION}"
    (folder / name).write_text(str(_page(ctx, verbs)))
    for each in verbs.values():
        make_pages(folder, each)


def make_completions(folder: Path) -> None:
    """Write the completions for each shell."""
    from mmpolicy.cli import main

    for shell, name in COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(kind(main, {}, "mmpolicy", "_MMPOLICY_COMPLETE").source())


def make_shared() -> list[tuple[str, list[str]]]:
    """Make the man pages and completions; return pairs of a folder below /usr and its files."""
    # The headers are symbolic links to files outside this folder, which pip before 21.3 does not
    # copy.
    lost = sorted(path for path in HERE.rglob("*.h") if not path.exists())
    if lost:
        next_step = "pip install -U pip, then install again"
        sys.exit(f"{lost[0]} is a link without a target; next: {next_step}")
    sys.path.insert(0, str(HERE / "src"))
    from mmpolicy.cli import main

    make_pages(HERE / OUT / f"man/man{SECTION}", Context(main, info_name="mmpolicy"))
    make_completions(HERE / OUT)
    files = [path.relative_to(HERE) for path in sorted((HERE / OUT).rglob("*")) if path.is_file()]
    return [(str(Path("share") / file.parent.relative_to(OUT)), [str(file)]) for file in files]


if __name__ == "__main__":
    setup(data_files=make_shared(), license="GPL-2.0-only")
