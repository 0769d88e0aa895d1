# SPDX-License-Identifier: GPL-2.0
"""The error of waste in `top` is correct: the truth is within it in 95 of 100 cases."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from mmpolicy.memory.sample import SPOT, Places, Sample
from mmpolicy.memory.survey import ENOUGH

PAGE = 4096
MIB, TIB = 1 << 20, 1 << 40
EXACT = 64 * MIB  # up to here each page is counted, beyond it a sample is as good


class Synthetic:
    """A process of some parts, each of one size of folios and with its own share of empty pages."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = Random(seed)
        size = 10 * MIB * (TIB / (10 * MIB)) ** rng.random()
        weights = [rng.random() ** 2 for _ in range(rng.randint(1, 12))]
        pages = [
            max(int(size / PAGE * each / sum(weights)), SPOT) // SPOT * SPOT for each in weights
        ]
        empty = rng.uniform(0.05, 0.95)
        # Some parts are all used or all empty, as heaps are, others are mixed.
        self.parts = [
            (number, min(max(empty + rng.choice((0.0, -0.5, 0.5, rng.uniform(-0.3, 0.3))), 0), 1))
            for number in pages
        ]
        self._seed = seed
        self.places = Places([(self._start(n), self._start(n) + each * PAGE)
                              for n, (each, _) in enumerate(self.parts)])  # fmt: skip

    @staticmethod
    def _start(number: int) -> int:
        return (number + 1) << 44

    def spot(self, start: int) -> tuple[bytes, bytes]:
        """Return kinds and zeroes of a spot; always equal for one spot."""
        number = (start >> 44) - 1
        rng = Random(start ^ self._seed << 60)
        share = self.parts[number][1]
        return b"9" * SPOT, bytes(rng.choices((1, 0), (share, 1 - share), k=SPOT))

    @property
    def truth(self) -> float:
        """Return the share that is empty."""
        pages = sum(number for number, _ in self.parts)
        if pages * PAGE > EXACT:
            return sum(number * share for number, share in self.parts) / pages
        empty = 0
        for number, (each, _) in enumerate(self.parts):
            for at in range(0, each, SPOT):
                empty += sum(self.spot(self._start(number) + at * PAGE)[1])
        return empty / pages


@pytest.mark.full
def test_the_truth_is_within_the_error() -> None:
    """The truth is within the error for 1,000 processes of 10 MiB to 1 TB; the median width agrees
    with the documents.
    """
    hits, widths = 0, []
    number = seed = 0
    while number < 1000:
        seed += 1
        process = Synthetic(seed)
        if not 0.05 <= process.truth <= 0.95:
            continue
        number += 1
        sample, rng = Sample(), Random(-seed)
        while sample.spots < ENOUGH:
            sample.add(*process.spot(process.places.draw(rng)[0]))
        hits += abs(sample.share - process.truth) <= sample.error
        widths.append(2 * sample.error)
    assert 930 <= hits <= 970
    assert 0.02 < median(widths) < 0.08


def test_older_spots_make_no_error_smaller() -> None:
    """A sample of half weight is worth half a spot: the truth stays within the error."""
    hits = 0
    for seed in range(150):
        process, sample, rng = Synthetic(seed), Sample(), Random(-seed)
        for turn in range(8):
            sample.age(turn * 15.0)
            for _ in range(64):
                sample.add(*process.spot(process.places.draw(rng)[0]))
        hits += abs(sample.share - process.truth) <= sample.error
    assert 0.91 * 150 <= hits <= 0.99 * 150
