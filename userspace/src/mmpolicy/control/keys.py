# SPDX-License-Identifier: GPL-2.0
"""What a state is made of: each thing that can be set has a type, a checked name and a path.

A name comes from an operator, a manifest or a journal. None becomes part of a path unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Union

from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import CONTROL

PROFILES = f"{CONTROL}/profiles"
EXPERIMENT = f"{CONTROL}/experiment"
DEFAULT = "default"
NO_ARM = "none"
NO_SHADOW = "none"
PROFILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")  # the kernel's own rule
NO_PROFILES = (NO_ARM, "create", "delete", "experiment", "measure")
MANIFESTS = "/etc/mmpolicy"  # what mmpolicy.service applies
UNIT_NAME = re.compile(r"[\w:.\\@-]{1,240}\.service", re.ASCII)
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")  # names of points, policies and knobs


def _check_profile(name: str) -> None:
    if not PROFILE_NAME.fullmatch(name) or name in NO_PROFILES:
        hint = "take a-z, 0-9, _ and -, at most 31, the first of them a letter or a digit"
        raise Error(f"{name!r} is no name for a profile: EINVAL", Exit.REFUSED, hint)


def _check_words(*names: str) -> None:
    for name in names:
        if not WORD.fullmatch(name):
            hint = "mmpolicy show lists points, policies and knobs"
            raise Error(f"{name!r} is no name of a file in {CONTROL}", Exit.USAGE, hint)


def _check_numbers(*numbers: int) -> None:
    for number in numbers:
        if type(number) is not int or number < 0:
            raise Error(f"{number!r} is no id", Exit.USAGE, "give a number")


@dataclass(frozen=True)
class Lease:
    """The lease, in milliseconds."""

    path = f"{CONTROL}/lease_ms"

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return ("lease",)


@dataclass(frozen=True)
class ExperimentFile:
    """One file of the experiment."""

    name: str

    def __post_init__(self) -> None:
        """Refuse a name that no file of the module has."""
        _check_words(self.name)

    @property
    def path(self) -> str:
        """Return its file."""
        return f"{EXPERIMENT}/{self.name}"

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return "experiment", self.name


@dataclass(frozen=True)
class Profile:
    """That there is a profile; its value is empty."""

    name: str

    def __post_init__(self) -> None:
        """Refuse names that the kernel refuses."""
        _check_profile(self.name)

    @property
    def path(self) -> str:
        """Return its directory."""
        return f"{PROFILES}/{self.name}"

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return "profiles", self.name


@dataclass(frozen=True)
class Setting:
    """A knob of a policy or, without one, of a point; or the choice of the policy itself."""

    profile: str
    point: str
    policy: str  # "" for what belongs to the point
    name: str

    def __post_init__(self) -> None:
        """Refuse names that could lead elsewhere."""
        _check_profile(self.profile)
        _check_words(self.point, self.name, *filter(None, [self.policy]))

    @property
    def is_choice(self) -> bool:
        """Tell if this is which policy the point has."""
        return not self.policy and self.name == "policy"

    @property
    def is_shadow(self) -> bool:
        """Tell if this is which policy the point asks without obeying it."""
        return not self.policy and self.name == "shadow"

    @property
    def off(self) -> str | None:
        """Return the value at stock; None for a knob, whose default the module reports."""
        return "stock" if self.is_choice else NO_SHADOW if self.is_shadow else None

    @property
    def below(self) -> str:
        """Return its path below the point."""
        return "/".join(filter(None, (self.policy, self.name)))

    @property
    def inside(self) -> str:
        """Return its path in the profile."""
        return f"{self.point}/{self.below}"

    @property
    def path(self) -> str:
        """Return its file."""
        return f"{PROFILES}/{self.profile}/{self.inside}"

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return "profiles", self.profile, *filter(None, (self.point, self.policy, self.name))

    def of(self, profile: str) -> Setting:
        """Return this setting in another profile."""
        return replace(self, profile=profile)


def choice(profile: str, point: str) -> Setting:
    """Return the setting that says which policy a point has."""
    return Setting(profile, point, "", "policy")


@dataclass(frozen=True)
class CgroupBinding:
    """The profile that a cgroup is bound to, by the cgroup's id."""

    number: int

    def __post_init__(self) -> None:
        """Refuse an invalid id."""
        _check_numbers(self.number)

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return "cgroups", f"{self.number:020}"

    def path(self, profile: str) -> str:
        """Return the file that binds it to a profile."""
        return f"{Profile(profile).path}/cgroups"


@dataclass(frozen=True)
class ProcessBinding:
    """The profile that a process is bound to. Its start tells it from a later one."""

    number: int
    start: int  # in ticks since boot

    def __post_init__(self) -> None:
        """Refuse an invalid id."""
        _check_numbers(self.number, self.start)

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return "pids", f"{self.number:020}", f"{self.start:020}"

    def path(self, profile: str) -> str:
        """Return the file that binds it to a profile."""
        return f"{Profile(profile).path}/pids"


@dataclass(frozen=True)
class UnitBinding:
    """The profile that a service is bound to whenever it starts, by a file of its own."""

    unit: str

    def __post_init__(self) -> None:
        """Refuse what systemd would never call a service."""
        if not UNIT_NAME.fullmatch(self.unit):
            hint = "systemctl list-units lists them"
            raise Error(f"{self.unit!r} is no name of a service", Exit.USAGE, hint)

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return "units", self.unit

    @property
    def path(self) -> str:
        """Return its file."""
        return f"{MANIFESTS}/90-{self.unit}.toml"


@dataclass(frozen=True)
class AbsentCgroup:
    """A cgroup that a manifest binds and that is not there. Nothing can be written for it."""

    given: str

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return "cgroups", self.given


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy in BPF that is loaded; its value is the SHA-256 of its object."""

    name: str

    def __post_init__(self) -> None:
        """Refuse a name that no policy of the module has."""
        _check_words(self.name)

    @property
    def order(self) -> tuple[str, ...]:
        """Return what keys are sorted by."""
        return "policies", self.name


BINDINGS = (CgroupBinding, ProcessBinding)
Binding = Union[CgroupBinding, ProcessBinding]
Key = Union[
    Lease,
    ExperimentFile,
    Profile,
    Setting,
    CgroupBinding,
    ProcessBinding,
    UnitBinding,
    AbsentCgroup,
    LoadedPolicy,
]
State = dict[Key, str]

LEASE = Lease()
CONTROL_ARM, TREATMENT_ARM = ExperimentFile("control"), ExperimentFile("treatment")
ENABLED, PERCENT = ExperimentFile("enabled"), ExperimentFile("percent")
UNIT, SCOPE, SEED = ExperimentFile("unit"), ExperimentFile("cgroup"), ExperimentFile("seed")
TIMES = ExperimentFile("time_faults")

KINDS: dict[str, type[Key]] = {
    "lease": Lease,
    "experiment": ExperimentFile,
    "profile": Profile,
    "setting": Setting,
    "cgroup": CgroupBinding,
    "process": ProcessBinding,
    "unit": UnitBinding,
    "policy": LoadedPolicy,
}
NAMES = {kind: name for name, kind in KINDS.items()}


def to_record(key: Key) -> dict[str, Any]:
    """Return a key for JSON."""
    return {"kind": NAMES[type(key)], **asdict(key)}


def from_record(record: Mapping[str, Any]) -> Key:
    """Return the key of a record; raises an error if it is not one of ours."""
    fields = dict(record)
    return KINDS[fields.pop("kind")](**fields)
