# SPDX-License-Identifier: GPL-2.0
"""Try the kernel's own folio sizes: restore them without the module, and keep them if they pay.

A trial of sizes does not need the lease of the module. If the trial is killed, the watchdog of
`ab run` restores the sizes. If the watchdog is killed too, a systemd path unit does it: the
recovery file of the run starts it. A reboot also restores the sizes, as the kernel does not store
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from mmpolicy.ab.arms import split_arm
from mmpolicy.ab.run.keeper import Keeper, told
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.control.change import StateChange
from mmpolicy.control.experiment import LOCK, RECOVERY, RUN
from mmpolicy.control.trials import BOOT_FILE, SYSTEMD, Trial
from mmpolicy.errors import Error, Exit
from mmpolicy.host.evidence import THP
from mmpolicy.host.files import PATIENCE_S, Tree
from mmpolicy.host.knobs import Values, read_knobs
from mmpolicy.host.machine import NO_SYSTEMD, Host
from mmpolicy.verbs.ab_jobs import own_unit
from mmpolicy.verbs.commit import keep_change

RESTORE = "mmpolicy-restore"  # name of the path unit that the package installs


def check_systemd(tree: Tree) -> None:
    """Raise an error if the host has no systemd. Without it, nothing would restore the folio sizes
    if all processes of the trial are killed.
    """
    if not tree.is_dir(SYSTEMD):
        text = "this host has no systemd, which restores the sizes if the trial is killed"
        raise Error(text, Exit.LACKING, NO_SYSTEMD)


def arm(host: Host) -> None:
    """Make systemd restore the kernel's knobs if the trial is killed. To be called before the first
    knob is changed.
    """
    how = ["--path-property", f"PathExists={host.tree.real(RECOVERY)}"]
    description = "Restore the knobs of an experiment that was killed"
    words = own_unit(host, RESTORE, description, how, ["ab", "restore", "--wait"])
    host.start_path_unit(RESTORE, words)


def change_of(tree: Tree, treatment: str) -> tuple[Values, Values]:
    """Return the old and the new values of the sizes that the treatment changes."""
    now = read_knobs(tree)
    wanted = split_arm(tree, now, treatment)[1]
    changed = {path: value for path, value in wanted.items() if now[path] != value}
    return {path: now[path] for path in changed}, changed


def keeps_sizes(tree: Tree, treatment: str) -> str:
    """Return as text what the trial will change for good if the folio sizes pay."""
    return f"{told(change_of(tree, treatment)[1])} for the whole host, and {BOOT_FILE} at each boot"


def keep_sizes(host: Host, trial: Trial, before: Values) -> None:
    """Set the folio sizes of a trial now and for each boot. If a step fails, undo both.

    Until both are done, a recovery file makes systemd restore the former sizes if this process is
    killed; put_back() then also removes BOOT_FILE.
    """
    tree = host.tree
    who = f"{RUN}{os.getpid()}, which keeps {trial.candidate}"
    with tree.locked(LOCK, who, PATIENCE_S):
        keeper = Keeper(tree, before)
        try:
            keeper.learn(trial.sizes)
            tree.keep(BOOT_FILE, "\n".join(_boot_lines(trial)), 0o644)
        except (Error, StoppedError) as err:
            note = keeper.back()
            if isinstance(err, Error):
                raise
            raise Error(
                "; ".join(filter(None, [str(err), note])), Exit.FAILED, "try again"
            ) from err
        tree.drop(RECOVERY)
    keep_change(host, StateChange({}, {}), f"keeps {told(trial.sizes)}")


def _boot_lines(trial: Trial) -> Iterator[str]:
    yield f"# Kept by mmpolicy try, {trial.name}: mmpolicy try --report says why."
    for path, value in sorted(trial.sizes.items()):
        yield f"w! {path} - - - - {value}"
    yield ""


def undo_sizes(before: Values) -> str:
    """Return as text the commands that undo keep_sizes(). before: the former values of the knobs,
    by path.
    """
    commands = [f"cd {THP}"]
    for value in dict.fromkeys(before.values()):
        files = (path.removeprefix(f"{THP}/") for path in sorted(before) if before[path] == value)
        commands.append(f"echo {value} | tee {' '.join(files)}")
    return " && ".join([*commands, f"rm {BOOT_FILE}"])
