# SPDX-License-Identifier: GPL-2.0
"""Each verb answers on this kernel as the table of docs/kernels.md says."""

from __future__ import annotations

import pytest

from bench import verbs

from .conftest import Machines

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 60.0  # rough duration, for the schedule
# Only the verbs that need no module: other tests cover the rest.
FEW = verbs.LINES[: verbs.LINES.index("load")]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(FEW, marks=pytest.mark.long, id="before_load"),
        pytest.param(verbs.LINES, marks=pytest.mark.full, id="all"),
    ],
)
def test_verbs_answer_as_the_table_says(machines: Machines, lines: tuple[str, ...]) -> None:
    guest = machines.get("cloud", mem="2G", cpus=2, swap="1G")
    found, kept = verbs.answers(guest, lines), verbs.read()["6.12"]
    reasons = {line: each.get("reason") for line, each in found.items()}
    assert reasons == {line: kept[line].get("reason") for line in lines}
