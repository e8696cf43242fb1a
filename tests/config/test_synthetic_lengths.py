"""Lengths of synthetic tasks: where tokens are planted, how many a sparsity takes, and by how much positions are scaled."""

from __future__ import annotations

import re
from typing import Any

import pytest

from olmo_sparsity.config import SyntheticConfig
from olmo_sparsity.errors import UserError


def settings(**keys: Any) -> SyntheticConfig:
    """Prompts of 6 to 10 tokens in training, with k of at most 2, and of 10 and 25 in evaluation, with k = 1 and 3."""
    values = {"train_lengths": [6, 10], "max_sparsity": 2, "test_lengths": [10, 25], "test_sparsity": [1, 3]}
    return SyntheticConfig(**{**values, **keys})  # type: ignore[arg-type]


def test_tokens_are_planted_inside_the_last_tokens_of_the_row_and_beyond_them() -> None:
    in_rows = settings(test_row_len=10)
    for length in range(10, 26):
        places = in_rows.places(length)
        assert places == (("inside",) if length == 10 else ("inside", "beyond"))
        inside, beyond = (range(*in_rows.places_planted(length, place)) for place in ("inside", "beyond"))
        assert [*beyond, *inside] == list(range(length)) and len(inside) == 10
        assert in_rows.places_planted(length, None) == (0, length)
    assert in_rows.places(7) == ("inside",) and in_rows.places_planted(7, "inside") == (0, 7)
    anywhere = settings()
    assert anywhere.places(25) == (None,) and anywhere.places_planted(25, None) == (0, 25)


def test_rows_hold_the_prompt_the_query_and_the_response() -> None:
    assert settings().row_len(25, 3) == 25 + 1 + 1
    assert settings(scratchpad=True).row_len(25, 3) == 25 + 1 + 3
    assert settings(task="variables").row_len(25, 3) == 25 + 2 + 1
    assert settings(task="variables", scratchpad=True).row_len(25, 3) == 25 + 2 + 3
    for spread in (1, 3):  # the first token, and each other one so many behind it
        assert [settings(spread=spread).tokens_needed(k) for k in (1, 2, 3)] == [1, 1 + spread, 1 + 2 * spread]
    assert settings(task="variables").tokens_needed(3) == 6


def test_positions_are_scaled_by_the_length_over_that_of_training_or_by_the_given_factor() -> None:
    assert settings().scaling_factor(25) == 1
    scaled = settings(rope_scaling="yarn")
    assert [scaled.scaling_factor(length) for length in (6, 10, 25)] == [1, 1, 2.5]
    assert [settings(rope_scaling="linear", rope_factor=4).scaling_factor(length) for length in (6, 25)] == [4, 4]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"locality": 5}, "synthetic.locality = 5, synthetic.spread = 1: only for synthetic.task = parity"),
        ({"spread": 2}, "synthetic.locality = None, synthetic.spread = 2: only for synthetic.task = parity"),
        ({"modulus": 3}, "synthetic.modulus = 3: only for synthetic.task = parity"),
        ({"background": "text"}, "synthetic.background = text: only for synthetic.task = parity"),
        ({"test_row_len": 10}, "synthetic.test_row_len = 10: only for synthetic.task = parity"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_keys_of_parity_are_refused_of_variables(keys: dict[str, Any], line: str) -> None:
    settings(**keys)
    with pytest.raises(UserError) as refused:
        settings(task="variables", **keys)
    assert str(refused.value) == line


@pytest.mark.parametrize(
    ("fits", "keys", "line"),
    [
        ({"locality": 5, "spread": 2}, {"locality": 4, "spread": 2}, "locality = 4: too few tokens for k = 3 with"),
        ({"train_lengths": [2, 10]}, {"train_lengths": [1, 10]}, "train_lengths: a prompt of 1 tokens has no room for k = 2"),
        ({"test_lengths": [3]}, {"test_lengths": [2, 25]}, "test_lengths: a prompt of 2 tokens has no room for k = 3"),
        ({"test_row_len": 3}, {"test_row_len": 2}, "test_row_len = 2: of a prompt of 10 tokens 2 lie inside the row"),
        ({"test_row_len": 22}, {"test_row_len": 23}, "test_row_len = 23: of a prompt of 25 tokens 2 lie beyond the row"),
        (
            {"task": "variables", "num_names": 12}, {"task": "variables", "num_names": 11},
            "num_names = 11: the longest prompt assigns 12 names",
        ),
        (
            {"task": "variables", "num_names": 13, "train_lengths": [6, 27]},
            {"task": "variables", "num_names": 12, "train_lengths": [6, 27]}, "the longest prompt assigns 13 names",
        ),
        ({"train_lengths": [6, 6]}, {"train_lengths": [7, 6]}, "must be two positive numbers, the shortest and the longest"),
        (
            {"positions": "coupled", "scratchpad": True}, {"positions": "coupled"},
            "positions = coupled: couples the tokens of a scratchpad; set synthetic.scratchpad=true",
        ),
        ({"rope_scaling": "yarn", "rope_factor": 2.0}, {"rope_factor": 2.0}, "rope_factor = 2.0: synthetic.rope_scaling is none"),
    ],
    ids=lambda value: ", ".join(map(str, value.items())) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_just_fits_is_accepted_and_one_token_less_is_not(
    fits: dict[str, Any], keys: dict[str, Any], line: str
) -> None:
    settings(**fits)
    with pytest.raises(UserError, match=re.escape(line)):
        settings(**keys)
