"""A run whose rows begin with a BOS is measured with it in front of every window, unless the anchor is switched off."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import reference
import torch
from conftest import write_corpus

from olmo_sparsity.config import Config, ContextConfig, PretrainedConfig
from olmo_sparsity.export import export_hf, to_transformers_tokenizer
from olmo_sparsity.files import read_json
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.model.olmo import OLMoWithPositions, load_model
from olmo_sparsity.tables import read_table
from olmo_sparsity.text.tokenizer import eos_id_of, read_tokenizer

LOCAL, FULL, M = 8, 20, 12


def with_settings(config: Config, **changes: object) -> Config:
    changes = {"num_windows": 4, "selectors": ["kl"], "resampled_draws": 0, **changes}
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(bos_run: Path) -> OLMoWithPositions:
    return load_model(bos_run / "checkpoints" / "latest", torch.device("cpu"))


@pytest.fixture(scope="module")
def eos_id(bos_config: Config, bos_run: Path) -> int:
    return eos_id_of(read_tokenizer(bos_run / "tokenizer.json"), bos_config.data.eos_token)


def test_the_model_has_a_position_more(model: OLMoWithPositions, tiny_run: Path) -> None:
    """One for the BOS."""
    plain = load_model(tiny_run / "checkpoints" / "latest", torch.device("cpu"))
    assert (model.config.max_sequence_length, plain.config.max_sequence_length) == (FULL + 1, FULL)


def test_losses_are_those_with_the_bos_at_position_0(
    bos_config: Config, bos_run: Path, model: OLMoWithPositions, eos_id: int
) -> None:
    """Against the float64 reference: the BOS is visible, the positions of the window are one higher."""
    tables = measure(with_settings(bos_config), bos_run)
    assert read_json(tables / "manifest.json")["anchor"] == {"id": eos_id, "text": "<|endoftext|>"}
    selections = {
        row["window_id"]: row for row in read_table(tables, "selections").to_pylist() if row["context"] == "real"
    }
    for window in read_table(tables, "windows").to_pylist()[:2]:

        def loss(visible: set[int], window: dict = window) -> float:
            seen = {0} | {1 + j for j in visible} | set(range(1 + M, 1 + FULL))
            row = [eos_id, *window["token_ids"]]
            return reference.target_loss(model, row, list(range(FULL + 1)), seen, window["target_id"])

        assert window["loss_short_nats"] == pytest.approx(loss(set()), abs=1e-5)
        assert window["loss_long_nats"] == pytest.approx(loss(set(range(M))), abs=1e-5)
        for number, found in zip(window["last_n"], window["loss_last_nats"], strict=True):
            row, places = [eos_id, *window["token_ids"][-number:]], list(range(number + 1))
            expected = reference.target_loss(model, row, places, set(places), window["target_id"])
            assert found == pytest.approx(expected, abs=1e-5)
        assert window["loss_short_no_gap_nats"] == window["loss_last_nats"][window["last_n"].index(LOCAL)]
        assert abs(window["loss_short_no_gap_nats"] - window["loss_short_nats"]) > 1e-4
        chosen = selections[window["window_id"]]
        assert chosen["loss_sparse_nats"][1] == pytest.approx(loss(set(chosen["positions"][:2])), abs=1e-5)
        assert max(chosen["distance_tokens"]) <= FULL  # distances do not count the BOS


def test_without_the_anchor_the_losses_are_others(bos_config: Config, bos_run: Path) -> None:
    """``influence.anchor: none`` leaves it out, and the tables go to another folder."""
    with_bos, without = (measure(with_settings(bos_config, anchor=anchor), bos_run) for anchor in ("auto", "none"))
    assert with_bos != without and read_json(without / "manifest.json")["anchor"] is None
    first, second = (read_table(folder, "windows").to_pylist() for folder in (with_bos, without))
    assert [row["token_ids"] for row in first] == [row["token_ids"] for row in second]
    assert all(abs(a["loss_short_nats"] - b["loss_short_nats"]) > 1e-5 for a, b in zip(first, second, strict=True))


def test_a_run_without_a_bos_has_no_anchor_under_contextual(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    """Its model never saw one."""
    tables = measure(with_settings(tiny_config, visibility="contextual"), tiny_run, out=tmp_path / "tables")
    assert read_json(tables / "manifest.json")["anchor"] is None


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
