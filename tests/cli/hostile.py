# SPDX-License-Identifier: GPL-2.0
"""Names, manifests and journals that try to write elsewhere; and files that must not change.

Needs only the command, so a guest can run it too, as root on a real tree.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

from mmpolicy.cli import main
from mmpolicy.errors import Error
from mmpolicy.host.files import CONTROL, Tree

Snapshot = dict[str, tuple[int, int, int, bytes]]

ALPHABET = "abz09_-./\\ \t\n'\"$`{}[]=#%~\x00\x7fäß\u202e😀"
WORDS = ("..", ".", "", "/", "//", "policy", "create", "delete", "cgroups", "pids", "experiment",
         "none", "default", "reset", "lease_ms", "-1", "--help", "web\n", "a" * 32, "a" * 5000,
         "..%2f", "..\\..", "~root", "$HOME", "\u2025/", "\uff0e\uff0e/")  # fmt: skip
HEADER = "version = 1\n"
ENTRIES = (
    "[profiles.{0}]\n",
    "[profiles.{0}.anon_order]\npolicy = 'stock'\n",
    "[profiles.{0}.{0}]\npolicy = {0}\n",
    "[profiles.default.{0}]\nmax_order = 3\n",
    "[profiles.default.anon_order.{0}]\nmax_order = 3\n",
    "[profiles.default.anon_order.fixed]\n{0} = 3\n",
    "[bindings]\n{0} = 'default'\n",
    "[bindings]\n'/' = {0}\n",
    "[experiment]\n{0} = 1\n",
    "[experiment]\ncontrol = {0}\n",
    "[experiment]\ncgroup = {0}\n",
    "{0} = 1\n",
)
CHANGES = (
    {"kind": "setting", "profile": "default", "point": "anon_order", "policy": "", "name": "x"},
    {"kind": "profile", "name": "x"},
    {"kind": "experiment", "name": "x"},
    {"kind": "cgroup", "number": 1},
    {"kind": "process", "number": 1, "start": 1},
    {"kind": "lease"},
)


def snapshot(root: Path, allowed: Sequence[Path]) -> Snapshot:
    """Return inode, mode, time of change and content of every file but those allowed."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if Path(folder, name) not in allowed]
        for path in (Path(folder, name) for name in [*names, "."]):
            if path not in allowed:
                seen = path.lstat()
                text = path.read_bytes() if path.is_file() else b""
                found[str(path)] = seen.st_ino, seen.st_mode, seen.st_mtime_ns, text
    return found


def names(rng: random.Random, targets: Sequence[str]) -> Iterator[str]:
    """Yield names for ever: paths to the targets, keywords, and noise."""
    while True:
        up = rng.choice(("../", "..//", "./../", "x/../../", "default/../../"))
        target = rng.choice(targets)
        kind = rng.randrange(6)
        if kind < 3:
            yield up * rng.randrange(1, 8) + target.lstrip("/")
        elif kind == 3:
            yield rng.choice((target, f"/{target}", f"a/{target}", f"{target}/."))
        elif kind == 4:
            yield rng.choice(WORDS)
        else:
            yield "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(1, 40)))


def manifest(rng: random.Random, name: str) -> str:
    """Return a manifest with a name in one of its places."""
    return HEADER + rng.choice(ENTRIES).format(json.dumps(name))


def journal(rng: random.Random, name: str, boot: str) -> str:
    """Return a journal with a name in one of its places."""
    change = dict(rng.choice(CHANGES))
    place = rng.choice(list(change))
    change[place] = rng.choice((name, [name], 3)) if place != "kind" else change[place]
    values = {"before": rng.choice((name, "stock", None, 1)), "after": rng.choice((name, "", None))}
    entry = {
        "version": 2, "number": 1, "time": "now", "boot": boot, "command": name, "note": "",
        "who": {}, "changes": [change | values],
    }  # fmt: skip
    return json.dumps(entry) + "\n"


def commands(rng: random.Random, name: str) -> list[str]:
    """Return a command with a name in one of its places."""
    word = name.replace("\0", "") if rng.randrange(2) else name
    return rng.choice([
        ["profile", "create", "--", word],
        ["profile", "create", "--from", "default", "--", word],
        ["profile", "create", "--from", word, "x"],
        ["profile", "delete", "--", word],
        ["bind", "--cgroup", word, "default"],
        ["bind", "--cgroup", "/", "--", word],
        ["unbind", "--cgroup", word],
        ["set", "--profile", word, "anon_order", "fixed"],
        ["set", "--", word, "stock"],
        ["set", "anon_order", "--", word],
        ["set", "anon_order", "--", f"{word}=1"],
        ["set", "anon_order", "fixed", "--", f"max_order={word}"],
        ["ab", "run", "--dry-run", "--metric", "vmstat.pgfault/s", "--cgroup", word],
        ["ab", "run", "--dry-run", "--metric", f"cgroup:/{word}/x", "--design", "switchback"],
        ["ab", "run", "--dry-run", "--metric", "vmstat.pgfault", "--control", word],
        ["show", "--profile", word],
        ["stats", "--profile", word, "anon_order"],
    ])  # fmt: skip


def run(root: Path, words: Sequence[str]) -> str:
    """Run the command on a folder instead of /; return its output, and raise internal errors."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):
        main(["--root", str(root), *words], prog_name="mmpolicy")
    return out.getvalue()


def attack(root: Path, number: int, rng: random.Random, targets: Sequence[str]) -> None:
    """Run number commands, a third each with a hostile name, manifest and journal."""
    source = names(rng, targets)
    boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    file = root / "var/lib/mmpolicy/hostile.toml"
    past = root / "var/lib/mmpolicy/journal.jsonl"
    past.parent.mkdir(parents=True, exist_ok=True)
    for turn in range(number):
        name = next(source)
        if turn % 3 == 0:
            run(root, commands(rng, name))
        elif turn % 3 == 1:
            file.write_bytes(manifest(rng, name).encode(errors="replace"))
            run(root, ["apply", rng.choice(("--skip-missing", "--skip-invalid")), str(file)])
        else:
            past.write_text(journal(rng, name, boot))
            run(root, ["revert", *rng.choice(([], ["--force"], ["--to", "0"]))])
            past.unlink()


def write_raw(tree: Tree, number: int, rng: random.Random, targets: Sequence[str]) -> int:
    """Try to write paths made of hostile names without the check of names; count successes."""
    written = 0
    for name, _ in zip(names(rng, targets), range(number), strict=False):
        base = rng.choice((f"{CONTROL}/profiles/", f"{CONTROL}/", f"{CONTROL}", "", "/"))
        try:
            tree.write(base + name, "mmpolicy was here")
            written += 1
        except (Error, ValueError):
            continue
    return written


if __name__ == "__main__":
    seed, number, *victims = sys.argv[1:]
    print(write_raw(Tree("/"), int(number), random.Random(seed), victims))
    attack(Path("/"), int(number) // 20, random.Random(seed), victims)
