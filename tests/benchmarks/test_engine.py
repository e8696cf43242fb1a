"""The engine benchmark: what captum is taken for."""

from __future__ import annotations

from benchmarks.engine import fastest_captum


def test_the_reference_is_captum_at_its_best_with_all_logits() -> None:
    seconds = {
        "compact, fp32": [0.1],
        "captum, 8 a pass": [3.0, 2.0, 9.0],
        "captum, 64 a pass": [4.0, 5.0, 2.0],
        "captum, 8 a pass, last logits only": [1.0],
    }
    assert fastest_captum(seconds) == 3.0
    assert fastest_captum({**seconds, "captum, 64 a pass": [2.5]}) == 2.5
