# SPDX-License-Identifier: GPL-2.0
"""The KUnit suites of the module."""

from __future__ import annotations

import re

import pytest

from lab.guest import Guest

from .tools import must

pytestmark = pytest.mark.config("KUNIT")
RESULT = re.compile(r"^\[[ .\d]+\]\s*(not ok|ok) \d+ (mmpolicy\S*|anon_order\S*)", re.MULTILINE)
TOTALS = re.compile(r"# Totals: pass:(\d+) fail:(\d+) skip:(\d+) total:(\d+)")


def test_all_suites_pass(guest: Guest) -> None:
    """All KUnit suites pass: at least one suite ran, with at least one case, and none failed."""
    must(guest, "modprobe mmpolicy && modprobe kunit")
    must(guest, "echo kunit-begins >/dev/kmsg && modprobe mmpolicy_kunit && rmmod mmpolicy_kunit")
    log = must(guest, "dmesg").rpartition("kunit-begins")[2]
    must(guest, "rmmod kunit")
    totals = [[int(n) for n in found] for found in TOTALS.findall(log)]
    assert totals, log
    assert all(fail == 0 and skip == 0 for _, fail, skip, _ in totals), log
    assert sum(passed for passed, *_ in totals) > 0, log
    assert "not ok" not in log
    assert re.search(r"^\[[ .\d]+\] ok \d+ ", log, re.MULTILINE), log
