# SPDX-License-Identifier: GPL-2.0
"""The settings of an experiment's arm: stock, those of a profile, or those written out in the
option.
"""

from __future__ import annotations

import click

from mmpolicy.control.keys import DEFAULT, Setting, State
from mmpolicy.control.model import Control
from mmpolicy.control.state import profiles_of, settings_of
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.knobs import Values, check_value, find_knobs, no_knob

STOCK = "stock"

Settings = dict[Setting, str]  # value by setting; the keys name the profile default, for any arm


def split_arm(tree: Tree, knobs: Values, text: str) -> tuple[str, Values]:
    """Split the text of an arm into two parts: its policy settings, as text, and the settings of
    the kernel's own knobs, as values by the path of the knob.

    A word `NAME=VALUE` is a knob if NAME matches a knob of the kernel. If two words set one knob,
    the last value counts.
    """
    if "=" not in text:
        return text, {}
    rest: list[str] = []
    own: Values = {}
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        found = find_knobs(knobs, name)
        own |= {path: check_value(tree, path, value) for path in found}
        if not found:
            rest.append(word)
            _check_loaded_for(tree, knobs, name)
    return ",".join(rest), own


def _check_loaded_for(tree: Tree, knobs: Values, name: str) -> None:
    """Raise an error if a name that matches no knob of the kernel cannot be a policy point either:
    it is a folio size that this kernel lacks, or the module is not loaded.
    """
    err = no_knob(knobs, name)
    if err.exit_code == Exit.LACKING:
        raise err
    if not tree.is_dir(CONTROL):
        text = f"{err.message}; if you mean a policy of the module: the module is not loaded"
        hint = f"for a policy of the module, mmpolicy load; for a knob, {err.next_step}"
        raise Error(text, Exit.LACKING, hint)


def settings_of_arm(control: Control, state: State, text: str) -> Settings:
    """Return the settings that the text of an arm describes; raise a usage error if the text is
    invalid.

    The text is `stock`, the name of a profile, or `POINT=POLICY[,KNOB=VALUE ...]`, where another
    POINT=POLICY begins the next point. The settings of a profile are copied now: a change to the
    profile during the run does not change the experiment.
    """
    if "=" in text:
        return _written_out(control, text)
    if text == STOCK:
        return {}
    profile = pick("profile", text, [*profiles_of(state), STOCK])
    return {key.of(DEFAULT): value for key, value in settings_of(state, profile).items()}


def _written_out(control: Control, text: str) -> Settings:
    points, point = control.point_names(DEFAULT), None
    settings: Settings = {}
    for word in text.split(","):
        name, equals, value = word.strip().partition("=")
        if not equals or not value:
            raise click.UsageError(f"'{word}' is not of the form POINT=POLICY or KNOB=VALUE")
        if point is None or name in points:
            point = control.point(DEFAULT, name)
            policy = pick(f"policy of {name}", value, point.policies)
            settings[point.choice] = policy
        else:
            settings[point.find_knob(policy, name)] = value
    return settings
