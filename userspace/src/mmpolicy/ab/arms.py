# SPDX-License-Identifier: GPL-2.0
"""The two arms: settings that are given as a profile, or written out."""

import click

from mmpolicy.control.model import CONTROL, Control
from mmpolicy.control.state import State, profiles_of
from mmpolicy.errors import pick

STOCK = "stock"
PROFILES = {"control": "ab-control", "treatment": "ab-treatment"}

Settings = dict[str, str]  # as in a state, without the profile: anon_order/policy -> fixed


def settings_of(control: Control, state: State, text: str) -> Settings:
    """Return the settings that the text describes, else a usage error.

    It is `stock`, the name of a profile, or `POINT=POLICY[,KNOB=VALUE ...]`, where a further
    POINT=POLICY begins the next point. A profile is taken as it is now: who changes it
    during the run does not change the experiment.
    """
    if "=" in text:
        return _written_out(control, text)
    if text == STOCK:
        return {}
    base = f"profiles/{pick('profile', text, [*profiles_of(state), STOCK])}/"
    return {key.removeprefix(base): value for key, value in state.items() if key.startswith(base)}


def _written_out(control: Control, text: str) -> Settings:
    points, settings, point = control.point_names("default"), {}, None
    for word in text.split(","):
        name, equals, value = word.strip().partition("=")
        if not equals or not value:
            raise click.UsageError(f"'{word}' is not of the form POINT=POLICY or KNOB=VALUE")
        if point is None or name in points:
            point = control.point("default", name)
            policy = pick(f"policy of {name}", value, point.policies)
            settings[f"{name}/policy"] = policy
        else:
            path = point.find_knob(policy, name)
            settings[path.removeprefix(f"{CONTROL}/profiles/default/")] = value
    return settings
