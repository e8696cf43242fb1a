"""Words about accuracies inside the training row and beyond it: every setting has a name of its own."""

from __future__ import annotations

import dataclasses

import pytest

from olmo_sparsity.statistics.inside_and_beyond import InsideAndBeyond, MinusReference, Twin
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.wording.inside_and_beyond import arm_words, evaluated_words, twin_sentences

POSE = Setting("parity", False, "pose", max_sparsity=2, train_lengths=(3, 6), max_position=14, modulus=4, num_chunks=2)
SHIFTED = dataclasses.replace(POSE, positions="shifted", position_embedding="absolute")


def twin_of(*settings: Setting, ceiling: Setting | None = None) -> Twin:
    """Return made-up numbers of settings; the first of them minus the ceiling."""
    found = Estimate(0.9, 0.88, 0.92, 0.01)
    everything = settings if ceiling is None else (*settings, ceiling)
    cells = tuple(
        InsideAndBeyond(
            setting, 12, 1, (0, 1), (0.9, 0.9), (0.9, 0.9), (0, 1), (0, 1), found, found, Estimate(0.0), None
        )
        for setting in everything
    )
    minus = () if ceiling is None else (MinusReference(settings[0], ceiling, 12, 1, None, None),)
    return Twin(6, 40, cells, (), minus)


@pytest.mark.parametrize(
    ("setting", "change", "words"),
    [
        (POSE, {"max_sparsity": 3}, ("K_train = 2", "K_train = 3")),
        (POSE, {"num_chunks": 4}, ("chunks 2", "chunks 4")),
        (POSE, {"position_embedding": "absolute"}, ("RoPE with PoSE", "absolute with PoSE")),
        (POSE, {"rope_scaling": "yarn", "rope_factor": 4.0}, ("RoPE with PoSE", "RoPE with PoSE, YaRN by 4")),
        (POSE, {"train_lengths": (4, 6)}, ("prompts of 3 to 6 tokens", "prompts of 4 to 6 tokens")),
        (POSE, {"max_position": 64}, ("positions below 14", "positions below 64")),
        (POSE, {"background": "text"}, ("sum modulo 4", "sum modulo 4 in text")),
        (POSE, {"locality": 4}, ("planted anywhere, 1 apart", "planted within 4, 1 apart")),
        (POSE, {"spread": 2}, ("planted anywhere, 1 apart", "planted anywhere, 2 apart")),
        (SHIFTED, {"position_embedding": "rope"}, ("embedding absolute", "embedding rope")),
    ],
)
def test_settings_of_one_name_have_what_they_differ_in_behind_it(
    setting: Setting, change: dict[str, object], words: tuple[str, str]
) -> None:
    """In the sentence of each, and where the models are listed; one of another name keeps it."""
    settings = (setting, dataclasses.replace(setting, **change))  # type: ignore[arg-type]
    ordinary = dataclasses.replace(POSE, num_chunks=1, max_sparsity=5)
    twin = twin_of(*settings, ordinary)
    short = "shifted" if setting == SHIFTED else "PoSE"
    names = [f"{short}, trained to 6 tokens, {of_one}" for of_one in words] + ["without PoSE, trained to 6 tokens"]
    assert [arm_words(one, twin) for one in (*settings, ordinary)] == names
    assert [sentence.partition(": ")[0] for sentence in twin_sentences(twin)] == names
    assert f"Models: {' (2 seeds), '.join(names)} (2 seeds);" in evaluated_words(twin)


def test_names_that_are_unique_say_no_more() -> None:
    """The ceiling differs in more than its name says."""
    ceiling = dataclasses.replace(POSE, num_chunks=1, train_lengths=(3, 12), max_position=64, max_sparsity=3)
    ordinary = dataclasses.replace(POSE, num_chunks=1)
    twin = twin_of(POSE, ordinary, ceiling=ceiling)
    assert [arm_words(one, twin) for one in (POSE, ordinary, ceiling)] == [
        "PoSE, trained to 6 tokens",
        "without PoSE, trained to 6 tokens",
        "ceiling, trained to 12 tokens",
    ]
