# SPDX-License-Identifier: GPL-2.0
"""Load object files of BPF policies by the helper program, and record where the files are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from mmpolicy.control.model import check_loaded
from mmpolicy.control.programs import (
    Program,
    Source,
    check_available,
    keep_source,
    programs,
    read_source,
    sources,
)
from mmpolicy.errors import Error
from mmpolicy.host.bpf import PINS, object_name, verifier_log, why
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host

TIMEOUT_S = 30.0


def run_object(
    host: Host,
    words: Sequence[str],
    file: str,
    data: bytes,
    timeout: float = TIMEOUT_S,
    want_log: bool = False,
) -> str:
    """Pass an object file to the helper program that loads or checks BPF policies; return the name
    of the policy in the file. Raise an error if the kernel's verifier refuses the policy.

    words: the verb of the helper, and optionally the name that the policy must have. data: the
    contents of the file. timeout: seconds.
    """
    check_loaded(host.tree)
    check_available(host.tree)
    verb, *name = words
    done = host.bpf([verb, object_name(file), PINS, *name], data, timeout)
    if done.status:
        if want_log:
            click.echo(verifier_log(done.err), nl=False, err=True)
        raise why(done, file, timeout)
    return done.out.strip()


def loaded_as(host: Host, verb: str, name: str, source: Source) -> Program:
    """Return the policy that was just loaded. Record the path of its object file, for `save`; if
    that fails, print a message.
    """
    (found,) = [each for each in programs(host.tree) if each.name == name]
    try:
        keep_source(host.tree, found, source)
    except Error as err:
        click.echo(f"mmpolicy: {err.message}; so mmpolicy save will leave the policy out", err=True)
    host.log(f"policy {verb}: {name}, program {found.program}, from {source.file}")
    return found


def load_again(host: Host, verb: str, name: str, source: Source) -> None:
    """Load a BPF policy from the object file that a manifest names, or that was recorded when the
    policy was loaded before. verb: "load", or "replace" for a policy that is loaded now.
    """
    data = read_source(source)
    run_object(host, [verb, name], source.file, data)
    loaded_as(host, verb, name, source)


def not_to_be_loaded(tree: Tree) -> Iterator[str]:
    """Yield a line for each loaded BPF policy that is missing from the manifest that `save` writes,
    so that `apply` could not load it again.
    """
    for name, source in sources(tree).items():
        if not source:
            yield (
                f"the manifest does not contain the policy {name}, as another program than "
                "mmpolicy has loaded it"
            )
            continue
        try:
            read_source(source)
        except Error as err:
            yield f"the policy {name} cannot be loaded again after a boot: {err.message}"
