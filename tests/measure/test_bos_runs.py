"""A run whose rows begin with a BOS is measured with it in front of every window, unless the anchor is switched off."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from conftest import write_corpus
from defined import log_probs

from olmo_sparsity.config import Config, ContextConfig, PretrainedConfig
from olmo_sparsity.export import export_hf, to_transformers_tokenizer
from olmo_sparsity.files import read_json
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.opening import open_model
from olmo_sparsity.tables import read_table
from olmo_sparsity.text.tokenizer import eos_id_of, read_tokenizer

LOCAL, FULL, M = 8, 20, 12


def with_settings(config: Config, **changes: object) -> Config:
    changes = {"num_windows": 4, "selectors": ["kl"], "resampled_draws": 0, **changes}
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))  # type: ignore[arg-type]


def test_losses_are_those_with_the_bos_at_position_0(
    bos_config: Config, bos_run: Path, tiny_config: Config, tiny_run: Path
) -> None:
    """By definition: the BOS is visible, the positions of the window are one higher; distances do not count it."""
    opened = open_model(bos_config, bos_run)
    models = (opened.model.raw, open_model(tiny_config, tiny_run).model.raw)
    assert [raw.config.max_position_embeddings for raw in models] == [FULL + 1, FULL]
    eos_id = eos_id_of(read_tokenizer(bos_run / "tokenizer.json"), bos_config.data.eos_token)
    tables = measure(with_settings(bos_config), bos_run)
    assert read_json(tables / "manifest.json")["anchor"] == {"id": eos_id, "text": "<|endoftext|>"}
    rows = read_table(tables, "selections").to_pylist()
    selections = {row["window_id"]: row for row in rows if row["context"] == "real"}
    for window in read_table(tables, "windows").to_pylist():
        chosen, number = selections[window["window_id"]], window["last_n"].index(LOCAL)
        losses = [window["loss_short_nats"], window["loss_long_nats"], chosen["loss_sparse_nats"][1]]
        sets = [set(), set(range(M)), set(chosen["positions"][:2])]
        gates = torch.tensor([[j in shown for j in range(M)] for shown in sets])
        tokens = torch.tensor([window["token_ids"]])
        expected = -log_probs(opened.model.raw, tokens.expand(3, -1), gates, anchor_id=eos_id)[:, window["target_id"]]
        assert losses == pytest.approx(expected.tolist(), abs=1e-5)
        alone = log_probs(opened.model.raw, tokens[:, -LOCAL:], torch.ones(1, 0), anchor_id=eos_id)
        assert window["loss_last_nats"][number] == window["loss_short_no_gap_nats"]
        assert window["loss_last_nats"][number] == pytest.approx(-float(alone[0, window["target_id"]]), abs=1e-5)
        assert abs(window["loss_short_no_gap_nats"] - window["loss_short_nats"]) > 1e-4
        assert max(chosen["distance_tokens"]) <= FULL


@pytest.fixture(scope="module")
def other_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that no run was trained on, so that a run leaves none of them out."""
    return write_corpus(tmp_path_factory.mktemp("other") / "words.jsonl", 400, seed=7)


def measured_as_exported(config: Config, export: Path, **influence: object) -> Config:
    """Return the configuration of a measurement of an export with the lengths of its run; nothing of the run is known in it."""
    named = dataclasses.replace(config, pretrained=PretrainedConfig(str(export)), context=ContextConfig(8, 20))
    return with_settings(named, **influence)


@pytest.mark.parametrize(("visibility", "has_bos"), [("hidden", True), ("contextual", False)])
def test_an_export_has_the_numbers_of_its_run_with_no_option(
    visibility: str,
    has_bos: bool,
    bos_config: Config,
    bos_run: Path,
    tiny_config: Config,
    tiny_run: Path,
    other_text: Path,
    tmp_path: Path,
) -> None:
    """Of the same text: the same windows, anchor, losses and chosen tokens."""
    config, run = (bos_config, bos_run) if has_bos else (tiny_config, tiny_run)
    options = {"visibility": visibility, "data": str(other_text), "num_windows": 12, "selectors": ["kl", "attention"]}
    export = export_hf(run, tmp_path / "hf").folder
    of_run = measure(with_settings(config, **options), run, out=tmp_path / "of-run")
    of_export = measure(measured_as_exported(tiny_config, export, **options), tmp_path / "results")
    anchors = [read_json(folder / "manifest.json")["anchor"] for folder in (of_run, of_export)]
    assert anchors[0] == anchors[1] and (anchors[0] is not None) == has_bos
    pairs = [
        list(zip(*(read_table(folder, table).to_pylist() for folder in (of_run, of_export)), strict=True))
        for table in ("windows", "selections")
    ]
    for ours, theirs in pairs[0]:
        assert ours["token_ids"] == theirs["token_ids"]
        for name in ("loss_short_nats", "loss_long_nats"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-5)
    for ours, theirs in pairs[1]:
        assert (ours["selector"], ours["context"]) == (theirs["selector"], theirs["context"])
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-5)
        chosen, also = ([ours["scores"][position] for position in of["positions"]] for of in (ours, theirs))
        assert chosen == pytest.approx(also, abs=1e-5)  # the same tokens, but for scores that rounding may swap
        if ours["positions"] == theirs["positions"]:
            assert ours["loss_sparse_nats"] == pytest.approx(theirs["loss_sparse_nats"], abs=1e-5)
    alike = [ours["positions"] == theirs["positions"] for ours, theirs in pairs[1]]
    assert sum(alike) > len(alike) / 2


def test_an_export_that_lost_its_bos_is_compared_with_one_that_has_it(
    bos_run: Path, tiny_config: Config, other_text: Path, tmp_path: Path
) -> None:
    export = export_hf(bos_run, tmp_path / "hf").folder
    (export / "manifest.json").unlink()  # it has hashes of what changes here
    content = json.loads((export / "config.json").read_text())
    del content["rows_have_bos"]
    (export / "config.json").write_text(json.dumps({**content, "bos_token_id": None}))
    tokenizer = read_tokenizer(bos_run / "tokenizer.json")
    to_transformers_tokenizer(
        tokenizer, eos_id=content["eos_token_id"], rows_have_bos=False, max_position=21
    ).save_pretrained(export)
    config = measured_as_exported(tiny_config, export, data=str(other_text))
    manifest = read_json(measure(config, tmp_path / "results") / "manifest.json")
    check = manifest["fit"]["anchor"]
    assert (manifest["anchor"], check["chosen"]) == (None, "none")
    assert check["text"] == "<|endoftext|>" and check["num_windows"] == min(64, manifest["num_windows"])
