"""The model card of an exported model."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from olmo_sparsity.export.model_card import ExportedModel, model_card
from olmo_sparsity.model.checkpoint import CheckpointInfo
from olmo_sparsity.storage.files import read_json

EXPORTED = ExportedModel(Path("x"), "OlmoForCausalLM", 1, 0.0, 1)
INFO = CheckpointInfo(step=1, tokens=1, seconds=0.0)


@pytest.mark.parametrize("source", ["a|b/*.txt", "``x` <b>", "`", "two\nlines # [x](y)", "<script>"])
def test_the_model_card_escapes_names(source: str, tiny_run: Path) -> None:
    manifest = read_json(tiny_run / "manifest.json")
    manifest["config"]["data"]["source"] = source
    card = model_card(EXPORTED, manifest, info=INFO, eos_token=source)
    tokens = [child for token in MarkdownIt().parse(card) for child in token.children or []]
    assert [token.content for token in tokens if token.type == "code_inline"].count(" ".join(source.split())) == 2
    assert not [token for token in tokens if token.type == "html_inline"]


def test_the_model_card_tells_which_positions_were_trained(tiny_run: Path) -> None:
    manifest = read_json(tiny_run / "manifest.json")
    manifest["config"]["pose"] |= {"num_chunks": 1, "max_position": 64}
    manifest["config"]["data"]["source"] = "builtin"
    card = model_card(EXPORTED, manifest, info=INFO, eos_token="end")
    assert "without PoSE: position IDs are 0 to 7." in card
    assert "Position IDs from 8 on were never trained" in card
    assert "do not report results of such evaluations" in card

    def card_of(**pose: object) -> str:
        manifest["config"]["pose"] = {"num_chunks": 2, "vary_chunks": True, "max_position": 64, **pose}
        card = model_card(EXPORTED, manifest, info=INFO, eos_token="end")
        assert "Position IDs from 64 on were never trained" in card
        return card

    # A run that was made before the key pose.contents was added, and newer runs.
    assert (
        "cut into up to 2 chunks, whose position IDs are moved apart, below 64; the text of a row is consecutive."
        in card_of()
    )
    assert "below 64; the chunks are as far apart in the document as in their position IDs." in card_of(
        contents="matched"
    )
    assert "with RandPos: position IDs are a sorted random sample of those below 64." in card_of(
        method="randpos", vary_chunks=False
    )
