"""Our own parsers, on any text: they return what they promise, or raise the error that becomes one line."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_sparsity.cli.options import keys_of_k, parse_k, selectors_named
from olmo_sparsity.config import DataConfig, load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.parts import share_of_process
from olmo_sparsity.selectors import ALL_SELECTORS
from olmo_sparsity.text.places import EncodedText, place_at
from olmo_sparsity.text.tokenizer import tokenizer_text
from olmo_sparsity.torchrun import current_process

like_numbers = st.text(st.sampled_from("0123456789,/:- \u0663\u00b2"), max_size=40)


@pytest.mark.parametrize(
    ("text", "values"),
    [("8", [1, 2, 4, 8]), ("1", [1]), ("6", [1, 2, 4, 6]), ("1,3,5", [1, 3, 5]), ("5,3", [3, 5]), ("3,", [3])],
)
def test_k(text: str, values: list[int]) -> None:
    assert parse_k(text) == values
    assert keys_of_k(text) == {"k": values, "k_grid": None}


def test_a_name_stands_for_a_grid_of_k() -> None:
    assert [keys_of_k(text) for text in ("all", "geometric")] == [{"k_grid": "all"}, {"k_grid": "geometric"}]


@pytest.mark.parametrize("text", ["", "x", "1;2", "-1", "1.5", "every", "all,3"])
def test_bad_k(text: str) -> None:
    for parse in (parse_k, keys_of_k):
        with pytest.raises(UserError, match=r"--k .*must be a number"):
            parse(text)


def test_selectors_are_named_once_in_the_order_given_behind_all() -> None:
    assert selectors_named(["kl", "random"]) == ["kl", "random"]
    assert selectors_named(["random", "all"]) == list(ALL_SELECTORS)
    assert selectors_named(["h2o", "kl", "all"]) == [*ALL_SELECTORS, "h2o"]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=8))
def test_a_list_of_k_is_sorted_and_each_once(values: list[int]) -> None:
    assert parse_k(",".join(map(str, values)) + ",") == sorted(set(values))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 10**9 - 1))
def test_one_k_stands_for_the_powers_of_two_up_to_it(value: int) -> None:
    ks = parse_k(str(value))
    assert ks[-1] == value
    assert ks[:-1] == [2**i for i in range(len(ks) - 1)]
    assert 2 ** (len(ks) - 1) >= value


@settings(deadline=None, max_examples=40)
@given(st.text() | like_numbers)
def test_any_other_text_is_no_k(text: str) -> None:
    if re.fullmatch("[0-9]{1,9}(,[0-9]{1,9})*,?", text):
        return
    with pytest.raises(UserError, match="must be a number"):
        parse_k(text)


@settings(deadline=None, max_examples=40)
@given(st.text() | like_numbers)
def test_a_shard_is_a_share_or_a_mistake(text: str) -> None:
    try:
        share = share_of_process(text, overwrite=False, variables={})
    except UserError:
        return
    assert 0 <= share.index < share.count
    assert text == f"{share.index}/{share.count}" or text.split("/")[0].startswith("0") or "/0" in text


@settings(deadline=None, max_examples=40)
@given(st.text() | like_numbers, st.text() | like_numbers)
def test_the_variables_of_torchrun_are_numbers_or_a_mistake(rank: str, size: str) -> None:
    try:
        process = current_process({"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size})
    except UserError:
        return
    assert 0 <= process.rank == int(rank) < process.world_size == int(size)


words = st.text(st.sampled_from("abc=.[]{}:,'\"#&*!%@`? \n0123456789-_$"), max_size=30)


@settings(deadline=None, max_examples=40)
@given(
    st.text(max_size=30) | words, st.sampled_from(["", "training.", "training.steps=", "data.source=", "influence.k="])
)
def test_an_override_is_a_configuration_or_a_mistake(text: str, beginning: str) -> None:
    try:
        config = load_config(None, [beginning + text])
    except UserError:
        return
    assert 1 <= config.training.steps <= 10**9
    assert isinstance(config.data.source, str)


@settings(deadline=None, max_examples=40)
@given(like_numbers | st.text(max_size=10))
def test_a_bpe_has_a_number_of_entries_or_is_a_mistake(text: str) -> None:
    if re.fullmatch("[0-9]+", text) and 300 <= int(text) <= 200_000:
        return
    with pytest.raises((UserError, OSError, ValueError)) as caught:
        tokenizer_text(replace(DataConfig(), tokenizer=f"bpe:{text}"))
    assert not isinstance(caught.value, ValueError) or "null" in str(caught.value)


def encoded(pieces: list[str]) -> EncodedText:
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return EncodedText("".join(pieces), np.arange(len(pieces)), ends - [len(piece) for piece in pieces], ends)


pieces = st.lists(st.sampled_from(["a", " a", "ab", " b", "\n", "\u00e9"]), min_size=1, max_size=20)


@settings(deadline=None, max_examples=40)
@given(pieces, st.integers(-5, 60), st.integers(2, 8))
def test_a_place_is_the_token_of_its_character_or_a_mistake(parts: list[str], offset: int, full_len: int) -> None:
    text = encoded(parts)
    try:
        token = place_at(text, offset, full_len=full_len, local_len=1)
    except UserError:
        of_character = [i for i in range(len(parts)) if text.begins[i] <= offset < text.ends[i]]
        assert not of_character or of_character[0] < full_len
        return
    assert text.begins[token] <= offset < text.ends[token]
    assert token >= full_len
