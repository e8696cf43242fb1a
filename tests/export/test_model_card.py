"""The model card of an exported model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from olmo_sparsity.config import Config, PoseConfig
from olmo_sparsity.export.model_card import ExportedModel, model_card
from olmo_sparsity.model.checkpoint import CheckpointInfo

EXPORTED = ExportedModel(Path("x"), "OlmoForCausalLM", 1, 0.0, 1)
INFO = CheckpointInfo(step=1, tokens=1, seconds=0.0, run_id="0123")


def card_of(config: Config, *, eos_token: str = "end") -> str:
    return model_card(EXPORTED, config, info=INFO, loss_nats=None, eos_token=eos_token)


@pytest.mark.parametrize("source", ["a|b/*.txt", "``x` <b>", "`", "two\nlines # [x](y)", "<script>"])
def test_the_model_card_escapes_names(source: str, tiny_config: Config) -> None:
    card = card_of(replace(tiny_config, data=replace(tiny_config.data, source=source)), eos_token=source)
    tokens = [child for token in MarkdownIt().parse(card) for child in token.children or []]
    assert [token.content for token in tokens if token.type == "code_inline"].count(" ".join(source.split())) == 2
    assert not [token for token in tokens if token.type == "html_inline"]
    c4 = replace(tiny_config, data=replace(tiny_config.data, source="c4", c4_revision=source))
    (line,) = (line for line in card_of(c4).split("\n") if line.startswith("- **Text**"))
    assert line.startswith("- **Text**: [allenai/c4](https://huggingface.co/datasets/allenai/c4), `en`, revision `")
    tokens = [child for token in MarkdownIt().parse(line) for child in token.children or []]
    assert [token.content for token in tokens if token.type == "code_inline"] == ["en", " ".join(source.split())]


def test_the_model_card_tells_which_positions_were_trained(tiny_config: Config) -> None:
    def card(**pose: Any) -> str:
        positions = PoseConfig(**{"num_chunks": 2, "vary_chunks": True, "max_position": 64, **pose})
        return card_of(replace(tiny_config, pose=positions, data=replace(tiny_config.data, source="builtin")))

    without = card(num_chunks=1, vary_chunks=False)
    assert "without PoSE: position IDs are 0 to 7." in without
    assert "Position IDs from 8 on were never trained" in without
    assert "do not report results of such evaluations" in without
    for said, pose in (
        (
            "cut into up to 2 chunks, whose position IDs are moved apart, below 64; the text of a row is consecutive.",
            {},
        ),
        (
            "below 64; the chunks are as far apart in the document as in their position IDs.",
            {"contents": "matched"},
        ),
        (
            "cut into 2 chunks, whose position IDs are moved apart, below 64; the text of a row is consecutive.",
            {"vary_chunks": False},
        ),
        (
            "with RandPos: position IDs are a sorted random sample of those below 64.",
            {"method": "randpos", "vary_chunks": False},
        ),
    ):
        assert said in card(**pose)
        assert "Position IDs from 64 on were never trained" in card(**pose)


def test_the_model_card_tells_of_the_first_token_of_training(bos_config: Config) -> None:
    """It stands at position 0 in front of every row, so rows and positions are one more."""
    card, length = card_of(bos_config), bos_config.context.row_len
    assert f"trained on rows of {length + 1} tokens" in card and "The first of them is `end`, at position 0." in card
    assert f"Position IDs from {bos_config.num_positions} on were never trained" in card
    assert f"never saw more than {length + 1} tokens at once" in card
    assert "the token IDs that it had in training: `end` in front of it, as in front of every row" in card
    assert "olmo-sparsity influence --model FOLDER --local-len 8 --full-len 20" in card
    ordinary = card_of(replace(bos_config, pose=PoseConfig(num_chunks=1)))
    assert f"without PoSE: position IDs are 0 to {length}." in ordinary
    assert f"Position IDs from {length + 1} on were never trained" in ordinary


def test_the_model_card_has_each_number_in_its_place(tiny_config: Config) -> None:
    exported = ExportedModel(Path("x"), "OlmoeForCausalLM", 12_345_678, 1.26e-5, 98_765)
    info = CheckpointInfo(step=1_070, tokens=56_789, seconds=3.0, run_id="0123")
    config = replace(tiny_config, name="my run", training=replace(tiny_config.training, steps=4_321))
    for loss, words in ((3.14159, "; validation loss 3.142 nats"), (0.0, "; validation loss 0.000 nats"), (None, "")):
        card = model_card(exported, config, info=info, loss_nats=loss, eos_token="end")
        assert f"- **Training**: 1,070 of 4,321 steps, 56,789 tokens{words}.\n" in card
        assert (
            "- **Architecture**: `OlmoeForCausalLM`, 12.35M parameters, fp32; with a single expert it is a dense model. Its "
            "logits differ from those of the trained model by at most 1.3e-05 (98,765 compared)."
        ) in card
        assert "\n# `my run`\n" in card
    measured = replace(tiny_config, influence=replace(tiny_config.influence, local_len=3, full_len=7))
    card = model_card(EXPORTED, measured, info=info, loss_nats=None, eos_token="end")
    assert "measures it with a local context of 3 and a full context of 7 tokens" in card
    assert "--local-len 3 --full-len 7`" in card
    assert "expert" not in model_card(EXPORTED, config, info=info, loss_nats=None, eos_token="end")
