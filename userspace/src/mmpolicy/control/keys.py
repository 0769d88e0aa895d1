# SPDX-License-Identifier: GPL-2.0
"""The keys of a state: every entry that can be set has a type, a checked name and a path.

A name may come from the user, a manifest or the journal. It is checked before it becomes part of a
path.
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
# names that the module accepts for a profile
PROFILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
NO_PROFILES = (NO_ARM, "create", "delete", "experiment", "measure")
MANIFESTS = "/etc/mmpolicy"  # directory of the manifests that mmpolicy.service applies
UNIT_NAME = re.compile(r"[\w:.\\@-]{1,240}\.service", re.ASCII)
# form of the names of points, policies and knobs
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def _check_profile(name: str) -> None:
    if not PROFILE_NAME.fullmatch(name) or name in NO_PROFILES:
        hint = "use at most 31 characters of a-z, 0-9, _ and -, the first a letter or a digit"
        raise Error(f"{name!r} is not a valid name of a profile", Exit.REFUSED, hint)


def _check_words(*names: str) -> None:
    for name in names:
        if not WORD.fullmatch(name):
            hint = "mmpolicy show lists points, policies and knobs"
            raise Error(f"{name!r} is not the name of a file in {CONTROL}", Exit.USAGE, hint)


def _check_numbers(*numbers: int) -> None:
    for number in numbers:
        if type(number) is not int or number < 0:
            raise Error(f"{number!r} is not a number", Exit.USAGE, "give the id as a number")


class Sorted:
    """Base class of the keys of a state, which are sorted by `order`."""

    @property
    def order(self) -> tuple[str, ...]:
        """Return the tuple that sorts this key among others."""
        raise NotImplementedError


@dataclass(frozen=True)
class Lease(Sorted):
    """The key of the lease, which must be renewed within this time, or the module goes back to
    stock; its value is in milliseconds.
    """

    path = f"{CONTROL}/lease_ms"

    @property
    def order(self) -> tuple[str, ...]:
        return ("lease",)


@dataclass(frozen=True)
class ExperimentFile(Sorted):
    """The key, in a State, of one file in the directory that the module has for the experiment."""

    name: str

    def __post_init__(self) -> None:
        """Raise an error for a name that no file of the module can have."""
        _check_words(self.name)

    @property
    def path(self) -> str:
        """Return the path of this file in the control tree."""
        return f"{EXPERIMENT}/{self.name}"

    @property
    def order(self) -> tuple[str, ...]:
        return "experiment", self.name


@dataclass(frozen=True)
class Profile(Sorted):
    """The key of a profile itself, without its settings; its value in a state is ""."""

    name: str

    def __post_init__(self) -> None:
        """Raise an error for a name that the kernel refuses."""
        _check_profile(self.name)

    @property
    def path(self) -> str:
        """Return the directory of the profile in the control tree."""
        return f"{PROFILES}/{self.name}"

    @property
    def order(self) -> tuple[str, ...]:
        return "profiles", self.name


@dataclass(frozen=True)
class Setting(Sorted):
    """The key of a knob of a policy or of a point, or of the choice of a point's policy or
    shadow.
    """

    profile: str
    point: str
    policy: str  # policy that has the knob; "" if the setting belongs to the point itself
    name: str

    def __post_init__(self) -> None:
        """Raise an error for a name that could lead to another file, such as `..`."""
        _check_profile(self.profile)
        _check_words(self.point, self.name, *filter(None, [self.policy]))

    @property
    def is_choice(self) -> bool:
        """Return whether this setting chooses the policy of the point."""
        return not self.policy and self.name == "policy"

    @property
    def is_shadow(self) -> bool:
        """Return whether this setting chooses the shadow: a second policy that is asked and not
        obeyed.
        """
        return not self.policy and self.name == "shadow"

    @property
    def off(self) -> str | None:
        """Return the value that the setting has at stock; None for a knob, as only the module knows
        its default.
        """
        return "stock" if self.is_choice else NO_SHADOW if self.is_shadow else None

    @property
    def below(self) -> str:
        """Return the setting's path relative to its point."""
        return "/".join(filter(None, (self.policy, self.name)))

    @property
    def inside(self) -> str:
        """Return the setting's path relative to its profile."""
        return f"{self.point}/{self.below}"

    @property
    def path(self) -> str:
        """Return the path of the setting's file in the control tree."""
        return f"{PROFILES}/{self.profile}/{self.inside}"

    @property
    def order(self) -> tuple[str, ...]:
        return "profiles", self.profile, *filter(None, (self.point, self.policy, self.name))

    def of(self, profile: str) -> Setting:
        """Return the same setting in another profile."""
        return replace(self, profile=profile)


def choice(profile: str, point: str) -> Setting:
    """Return the setting that chooses the policy of a point."""
    return Setting(profile, point, "", "policy")


@dataclass(frozen=True)
class CgroupBinding(Sorted):
    """The key of the binding of a cgroup to a profile. `number` is the id of the cgroup, which is
    its inode number.
    """

    number: int

    def __post_init__(self) -> None:
        """Raise an error for a number that is no id of a cgroup."""
        _check_numbers(self.number)

    @property
    def order(self) -> tuple[str, ...]:
        return "cgroups", f"{self.number:020}"

    def path(self, profile: str) -> str:
        """Return the file that binds cgroups to a profile."""
        return f"{Profile(profile).path}/cgroups"


@dataclass(frozen=True)
class ProcessBinding(Sorted):
    """The key of the binding of a process to a profile. The start time tells the process from a
    later process with the same PID.
    """

    number: int
    start: int  # start time in ticks since boot

    def __post_init__(self) -> None:
        """Raise an error for a number that is no PID, or no start time."""
        _check_numbers(self.number, self.start)

    @property
    def order(self) -> tuple[str, ...]:
        return "pids", f"{self.number:020}", f"{self.start:020}"

    def path(self, profile: str) -> str:
        """Return the file that binds processes to a profile."""
        return f"{Profile(profile).path}/pids"


@dataclass(frozen=True)
class UnitBinding(Sorted):
    """The binding of a systemd unit to a profile at each start of the unit.

    A manifest for this unit alone contains the binding, so it outlives a boot.
    """

    unit: str

    def __post_init__(self) -> None:
        """Raise an error for a name that systemd does not accept for a service."""
        if not UNIT_NAME.fullmatch(self.unit):
            hint = "systemctl list-units lists the services"
            raise Error(f"{self.unit!r} is not the name of a service", Exit.USAGE, hint)

    @property
    def order(self) -> tuple[str, ...]:
        return "units", self.unit

    @property
    def path(self) -> str:
        """Return the path of the manifest that binds the service."""
        return f"{MANIFESTS}/90-{self.unit}.toml"


@dataclass(frozen=True)
class AbsentCgroup(Sorted):
    """A cgroup that a manifest binds and that does not exist; nothing is written for it."""

    given: str

    @property
    def order(self) -> tuple[str, ...]:
        return "cgroups", self.given


@dataclass(frozen=True)
class LoadedPolicy(Sorted):
    """A loaded policy that is a BPF program; its value is the SHA-256 of its object file."""

    name: str

    def __post_init__(self) -> None:
        """Raise an error for a name that no policy of the module can have."""
        _check_words(self.name)

    @property
    def order(self) -> tuple[str, ...]:
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
    """Return a key as a record for JSON."""
    return {"kind": NAMES[type(key)], **asdict(key)}


def from_record(record: Mapping[str, Any]) -> Key:
    """Return the key that a JSON record describes; raise an error for an unknown kind."""
    fields = dict(record)
    return KINDS[fields.pop("kind")](**fields)
