# SPDX-License-Identifier: GPL-2.0
"""Numbers on the screen have no exponent."""

from __future__ import annotations

import re
from math import inf, nan
from pathlib import Path

import pytest

import mmpolicy
from mmpolicy.figures import figure

SOURCE = Path(mmpolicy.__file__).parent
FORMAT = re.compile(r"\{([^{}]*:\+?(?:\.\d+)?g)\}")
# constants, percentages with bounds, and p values, which statisticians print with an exponent
FINE = re.compile(
    r"(?:100 \* )?[A-Z_]+:g|given\.cpu:g"
    r"|(?:\w+\.)?(?:margin|percent|rare|watch|least|most|_limit):g"
    r"|(?:[\w.]+\.)?(?:p|\w+_p|p_here|corrected)(?:\[arm\.name\])?:\.2g"
)
OTHERS = {  # numbers of code that has its own rules, with those that are left
    "host/bpf.py": {"seconds:.15g"},  # no exponent below 1e15
    "memory/collapse.py": {"longest:g"},
}


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 2, "0"), (0.13, 2, "0.13"), (1.3, 2, "1.3"), (99.4, 2, "99"), (187.0, 2, "190"),
        (99.6, 2, "100"), (1234567.0, 6, "1234570"), (8526612.5, 5, "8526600"), (-250.0, 2, "-250"),
        (999.6, 3, "1000"), (0.000012, 2, "0.000012"), (0.0000996, 2, "0.0001"), (1e-13, 3, "0"),
        (1e-6, 6, "0.000001"),
        (3600.0, 6, "3600"), (31622400.0, 6, "31622400"), (1e300, 3, "1e+300"), (inf, 2, "inf"),
        (nan, 2, "nan"), (5, 6, "5"),
    ],
)  # fmt: skip
def test_a_number_is_rounded(value: float, digits: int, text: str) -> None:
    assert figure(value, digits) == text


def test_a_sign() -> None:
    assert [figure(each, 3, "+") for each in (12345.6, -0.5, 0.0, 1e-20)] == [
        "+12300", "-0.5", "+0", "+0",
    ]  # fmt: skip


def test_other_formats_cannot_give_an_exponent() -> None:
    """Each place with a format that can, and whose number has no bounds, uses figure()."""
    found = []
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        for each in FORMAT.findall(path.read_text()):
            if not FINE.fullmatch(each) and each not in OTHERS.get(name, ()):
                found.append(f"{name}: {each}")
    assert not found
