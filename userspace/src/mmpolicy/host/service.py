# SPDX-License-Identifier: GPL-2.0
"""Ask systemd whether a service is being changed, and detect its restart or reload.

If systemd does not answer, as in a container, the service counts as not being changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

SETTLED_S = 30.0  # seconds for which a main process may still be filling its memory after its start
LOOK_S = 5.0  # seconds between two queries of systemd
STEADY = ("active", "inactive", "failed")  # states of a unit that systemd is not changing
# properties that change with a restart, a reload or a new main process
MARKS = ("InvocationID", "MainPID", "StateChangeTimestampMonotonic")
DEPENDANTS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "WantedBy")
STATE = ("Id", "ActiveState", "SubState", "Job", "ExecMainStartTimestampMonotonic")
ASKED = (*STATE, *MARKS, *DEPENDANTS)

Show = Callable[[Sequence[str]], str]


def show_units(words: Sequence[str]) -> str:
    """Return the output of `systemctl show`; empty if systemd does not answer."""
    import subprocess

    try:
        done = subprocess.run(
            ["systemctl", "show", *words], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def _properties(show: Show, names: Sequence[str], units: Sequence[str]) -> list[dict[str, str]]:
    """Return the properties of units, which systemctl separates by an empty line."""
    text = show([*(f"--property={name}" for name in names), "--", *units])
    parts = (part.splitlines() for part in text.strip().split("\n\n"))
    found = ({line.partition("=")[0]: line.partition("=")[2] for line in part} for part in parts)
    return [each for each in found if each]


@dataclass(frozen=True)
class Service:
    """Properties of a systemd unit at one moment."""

    unit: str
    found: dict[str, str]

    @classmethod
    def ask(cls, show: Show, unit: str) -> Service:
        """Return the properties of a unit as systemd reports them; none if it does not answer."""
        answers = _properties(show, ASKED, [unit]) if unit else []
        return cls(unit, answers[0] if answers else {})

    @property
    def marks(self) -> tuple[str, ...]:
        """Return the properties that change with a restart, a reload or a new main process."""
        return tuple(self.found.get(name, "") for name in MARKS)

    def dependants(self) -> list[str]:
        """Return the units that require or want this unit, or are bound to it."""
        return [unit for name in DEPENDANTS for unit in self.found.get(name, "").split()]

    def changing(self) -> str:
        """Return how systemd is changing the service now, as text; "" if it is not."""
        state, job = self.found.get("ActiveState", STEADY[0]), self.found.get("Job", "")
        if state not in STEADY:
            return f"{self.unit} is {state}"
        if job not in ("", "0"):
            return f"systemd is about to start, stop or reload {self.unit}"
        return ""


def unsteady(show: Show, unit: str) -> Iterator[str]:
    """Yield each reason against changing a service now: a deployment, or a failure."""
    service = Service.ask(show, unit)
    if why := service.changing():
        yield why
    began = service.found.get("ExecMainStartTimestampMonotonic", "")
    age = time.clock_gettime(time.CLOCK_MONOTONIC) - int(began) / 1e6 if began.isdigit() else None
    if age is not None and began != "0" and 0 <= age < SETTLED_S:
        yield f"the main process of {unit} has run for {age:.0f} s, less than {SETTLED_S:.0f} s"
    yield from failed_dependants(show, service)


def failed_dependants(show: Show, service: Service) -> Iterator[str]:
    """Yield each failed unit that depends on the service."""
    for name in _failed(show, service.dependants()):
        yield f"the unit {name}, which depends on {service.unit}, has failed"


def _failed(show: Show, units: Sequence[str]) -> Iterator[str]:
    """Yield the names of those of the units that have failed."""
    for found in _properties(show, STATE, units) if units else ():
        if found.get("ActiveState") == "failed":
            yield found.get("Id", "")


class Watch:
    """Detects during a run that a service is restarted or reloaded, or that a unit that depends on
    it fails, or the unit that would restore the host if the run was killed.

    restore: name of that unit; "" if the run needs none.
    """

    def __init__(
        self, show: Show, clock: Callable[[], float], unit: str, restore: str = ""
    ) -> None:
        self._show, self._clock, self._unit, self._restore = show, clock, unit, restore
        self._first = Service.ask(show, unit)
        self._due = clock() + LOOK_S

    def __call__(self) -> str:
        """Return the reason to end the run as text; "" if the service was not changed."""
        if self._clock() < self._due:
            return ""
        self._due = self._clock() + LOOK_S
        if self._restore and any(_failed(self._show, [self._restore])):
            unit = f"the unit {self._restore}, which restores the host if the run is killed,"
            return f"{unit} has failed"
        if not self._first.found:
            return ""
        now = Service.ask(self._show, self._unit)
        if not now.found:  # no answer may mean that systemd itself is being restarted
            return ""
        return now.changing() or self._changed(now) or next(failed_dependants(self._show, now), "")

    def _changed(self, now: Service) -> str:
        """Return how the service has changed since the run began, as text."""
        words = ("was restarted", "has another main process now", "was reloaded, or changed state")
        for old, new, text in zip(self._first.marks, now.marks, words):
            if old != new:
                return f"{self._unit} {text}"
        return ""
