# SPDX-License-Identifier: GPL-2.0
"""Records in a dict, half of them replaced: objects, strings and lists of several sizes."""

from __future__ import annotations

import sys


def record(number: int) -> dict[str, object]:
    """Return a record with a list of 0 to 6 words, so that records have several sizes."""
    words = [f"word {number + i}" for i in range(number % 7)]
    return {"number": number, "name": f"name of {number}", "words": words, "half": number / 2}


count = int(sys.argv[1])
table = {f"key {number}": record(number) for number in range(count)}
for number in range(0, count, 2):
    table[f"key {number}"] = record(number + count)
names = sorted(str(row["name"]) for row in table.values())
print(len(names), names[0])
