"""Numbers in words."""

from __future__ import annotations

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.wording.numbers import fixed, interval, percent


def test_no_number_is_minus_0() -> None:
    assert interval(Estimate(-0.0004, -0.0016, 0.0003), 3) == "0.000 [-0.002, 0.000]"
    assert interval(Estimate(-0.0012, -0.004, -0.0002), 3) == "-0.001 [-0.004, 0.000]"
    assert interval(Estimate(-0.004)) == "0.00"
    assert percent(Estimate(-0.002, -0.014, 0.031)) == "0% [-1, 3]"
    assert [fixed(number, 4, sign="+") for number in (-0.00004, 0.0, 0.0123, -0.5)] == [
        "+0.0000", "+0.0000", "+0.0123", "-0.5000",
    ]  # fmt: skip
