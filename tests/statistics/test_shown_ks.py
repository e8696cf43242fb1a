"""Which of the measured k are shown where there is no room for all."""

from __future__ import annotations

import pytest
from planted_lengths import planted_length

from olmo_sparsity.statistics.single.shown_ks import few_ks, shown_ks

POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


@pytest.mark.parametrize(
    ("ks", "num_units", "shown"),
    [
        (POWERS[:7], 64, [1, 4, 16]),  # up to a quarter, about four times apart, and never all
        ([*POWERS, 1984], 1984, [1, 8, 32, 256]),  # no more than four
        (POWERS[:4], 12, [1, 2, 8]),  # the default k, as --k 8 measures them in the demo; 2 are the most that are few
        ([1, 2, 4, 8, 12], 12, [1, 2, 8]),
        ([1, 4, 12], 12, [1, 4]),
        ([1, 3, 5], 64, [1, 5]),
        ([4, 8, 12, 32], 128, [4, 32]),  # apart from the smallest, not from 1
        ([16], 64, [16]),
        ([1, 32, 64], 64, [1, 32]),  # two, where only one is up to a quarter
        ([20, 32, 48], 64, [20, 32]),
        ([48, 64], 64, [48]),
        ([64], 64, [64]),  # there is no other
        ([1, 2, 4, 8], 6.5, [1, 4]),  # sentences: more than there are on average
    ],
)
def test_a_few_are_shown_up_to_a_quarter_of_all(ks: list[int], num_units: float, shown: list[int]) -> None:
    assert shown_ks(ks, num_units) == shown
    few = few_ks(ks, num_units)
    assert few == [k for k in ks if shown[0] <= k <= shown[-1]]  # all between, where there is room for them


def test_the_number_of_tokens_of_all_windows_is_exact() -> None:
    """Otherwise rounding of a weighted mean would make k = all less than all."""
    measurement = planted_length(128).measurement
    assert measurement.num_units == 64 and len(set(measurement.weights_W)) == 3
