# SPDX-License-Identifier: GPL-2.0
"""What this host can do, with policies and without them, and the next step that `doctor` prints."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

from mmpolicy.errors import AS_ROOT, LOAD, OUTSIDE, Error
from mmpolicy.host.doctor import STUB, Facts, check_signature
from mmpolicy.host.evidence import THP
from mmpolicy.host.machine import Host
from mmpolicy.memory.trim import check_possible
from mmpolicy.verbs.fit import points_here
from mmpolicy.verbs.libraries import how_to_get

LOOK = "mmpolicy top, or mmpolicy recommend, which work without the module"
INSTALL = "install mmpolicy-dkms and the headers of this kernel (README.md), then mmpolicy load"


class Verdict(NamedTuple):
    """Whether this kernel can have the policies of the module, as text, and the next step: how to
    get them or what to do without them.
    """

    text: str
    next_step: str
    never: bool = False  # True if the module can never be loaded on this kernel


class Verb(NamedTuple):
    """A verb that needs no module. If it does not work on this host, why_not says what is missing,
    and next_step how to get it.
    """

    name: str
    why_not: str = ""
    next_step: str = ""


def without_module(host: Host) -> Verdict:
    """Return whether this host could load the module, and the next step. The answer comes from the
    features of the kernel and the files of the module; nothing is loaded.
    """
    facts = Facts(host)
    points = points_here(facts)
    look = LOOK if host.tree.is_root() else f"as root: {LOOK}"
    look = f"on the host itself: {LOOK}" if host.tree.is_confined() else look
    if points.reasons:
        return Verdict(f"This kernel cannot have policies: {points.reasons}", look, never=True)
    if facts.info.get("description", "").startswith(STUB):
        text = "This kernel cannot have policies: DKMS could not build the module for it"
        return Verdict(text, f"{look}; /var/lib/dkms/mmpolicy has make.log", never=True)
    if facts.info:
        signature = check_signature(facts)
        if signature.status == "ok":
            return Verdict("The module is not loaded", LOAD)
        return Verdict(f"The module is not loaded: {signature.detail}", signature.next_step)
    if points.known:
        text = f"The module is not installed; this kernel can have policies of {points.text}"
        return Verdict(text, INSTALL)
    return Verdict(f"The module is not installed; {points.text}", f"{look}; mmpolicy doctor")


def verbs_here(host: Host) -> list[Verb]:
    """Return all verbs that need no module, in the order in which a user would try them."""
    needs_root = _needs_root(host)
    read_only = () if host.tree.writable(f"{THP}/enabled") else (f"{THP} is read-only", OUTSIDE)
    library = next((each for each in ("numpy", "scipy") if not _is_there(each)), "")
    lacks = (f"needs the Python library {library}", how_to_get(library)) if library else ()
    return [
        Verb("thp"),
        *(Verb(name, *needs_root) for name in ("top", "map", "explain", "recommend", "try")),
        Verb("trim", *(needs_root or _no_trim(host))),
        Verb("collapse", *(needs_root or _no_collapse(host))),
        Verb("maintain", *(needs_root or _no_collapse(host))),
        Verb("bench", *lacks),
        Verb("ab run", *(needs_root or read_only)),
        Verb("ab report", *lacks),
    ]


def _needs_root(host: Host) -> tuple[()] | tuple[str, str]:
    """Return why the verbs that need root do not work for this user, and the next step; () if they
    do.
    """
    if host.tree.is_confined():
        return "needs root of the host: the kernel hides page frame numbers here", OUTSIDE
    return () if host.tree.is_root() else ("needs root", AS_ROOT)


def _is_there(library: str) -> bool:
    try:
        return find_spec(library) is not None
    # find_spec() raises ValueError for a library that is half imported
    except ValueError:
        return False


def _no_trim(host: Host) -> tuple[()] | tuple[str, str]:
    """Return why `trim` is impossible on this host, and the first step that its error suggests; ()
    if `trim` is possible.
    """
    try:
        check_possible(host.tree)
    except Error as err:
        return err.message, err.next_step.partition(";")[0]
    return ()


def _no_collapse(host: Host) -> tuple[()] | tuple[str, str]:
    from mmpolicy.host.advice import KERNEL, NO_COLLAPSE, can_collapse

    if host.tree.is_dir(THP) and can_collapse():
        return ()
    return NO_COLLAPSE, KERNEL


def as_lines(verbs: list[Verb]) -> list[str]:
    """Return a line with the verbs that work on this host, and a line for each reason why others do
    not.
    """
    works = ", ".join(each.name for each in verbs if not each.why_not)
    found = [f"What works here without the module: {works}"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in verbs:
        if each.why_not:
            reasons.setdefault((each.why_not, each.next_step), []).append(each.name)
    return found + [
        f"What does not work here: {', '.join(names)}: {why}; next: {hint}"
        for (why, hint), names in reasons.items()
    ]


def as_data(verbs: list[Verb]) -> dict[str, Any]:
    """Return the names of the verbs that work, and why others do not, for JSON."""
    lacks = [each for each in verbs if each.why_not]
    return {
        "works": [each.name for each in verbs if not each.why_not],
        "lacks": [{"verb": name, "why": why, "next_step": hint} for name, why, hint in lacks],
    }
