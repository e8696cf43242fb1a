"""The folder that ``export hf`` writes, loaded with transformers."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from conftest import Messages
from exported_models import TEXTS, rollout, rows
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.errors import UserError
from olmo_sparsity.export import hugging_face as export
from olmo_sparsity.export.conversion import to_transformers_tokenizer
from olmo_sparsity.export.hugging_face import export_hf
from olmo_sparsity.files import partial_path, read_json, sha256_file, write_manifest
from olmo_sparsity.model.checkpoint import latest_checkpoint, load_model, read_checkpoint_info
from olmo_sparsity.model.convert import to_transformers
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.vocabulary import read_tokenizer, train_bpe

FILES = {
    "README.md",
    "config.json",
    "generation_config.json",
    "manifest.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}

OF_THE_END = ("steps", "tokens", "validation_loss_nats", "seconds")  # keys of a finished run


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
@torch.no_grad()
def test_the_command(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "model"
    result = CliRunner().invoke(app, ["export", "hf", str(tiny_run), str(folder)])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(folder)
    assert {path.name for path in folder.iterdir()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1

    checkpoint = latest_checkpoint(tiny_run / "checkpoints")
    assert checkpoint is not None
    model, tokenizer = load_model(checkpoint, torch.device("cpu")), read_tokenizer(tiny_run / "tokenizer.json")
    theirs, loaded = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    vocab_size = tokenizer.get_vocab_size()
    assert theirs.config.vocab_size == vocab_size < model.transformer.wte.weight.shape[0]
    assert theirs.config.max_position_embeddings == model.config.max_sequence_length == 20
    tokens, gaps = rows(4, 12, vocab_size, 20)
    torch.testing.assert_close(
        theirs(input_ids=tokens, position_ids=gaps).logits, model(tokens, gaps)[..., :vocab_size], atol=1e-5, rtol=0
    )

    store = open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "validation")
    for number in range(20):
        ids = store.tokens[store.begins_G[number] : store.ends_G[number]].tolist()
        assert ids.pop() == loaded.eos_token_id
        assert loaded(loaded.decode(ids), verbose=False)["input_ids"] == ids

    texts = ["the", "river stone"]  # of different lengths: one is padded
    batch = loaded(texts, padding=True, return_tensors="pt")
    assert batch["input_ids"].shape[1] <= 16
    assert batch["attention_mask"][0, 0] == 0  # generate continues from the last column
    continued = theirs.generate(**batch, max_new_tokens=4)
    for text, row in zip(texts, continued, strict=True):
        prompt = torch.tensor([loaded(text)["input_ids"]])
        alone = rollout(model, prompt, 4)[0, prompt.shape[1] :].tolist()
        new = row[batch["input_ids"].shape[1] :].tolist()
        assert new[: len(alone)] == alone
        assert set(new[len(alone) :]) <= {loaded.eos_token_id}

    manifest = read_json(folder / "manifest.json")
    assert (manifest["step"], manifest["name"], manifest["status"]) == (12, "tiny", "complete")
    assert (manifest["architecture"], manifest["transformers"]) == ("OlmoeForCausalLM", transformers.__version__)
    assert manifest["checkpoint_sha256"] == read_checkpoint_info(checkpoint).sha256
    assert manifest["num_parameters"] == sum(one.numel() for one in theirs.parameters())
    assert manifest["files"] == {name: sha256_file(folder / name) for name in FILES - {"manifest.json"}}
    assert manifest["largest_logit_difference"] <= 1e-5
    card = (folder / "README.md").read_text(encoding="utf-8")
    of_run = read_json(tiny_run / "manifest.json")
    trained = f"12 of 12 steps, {12 * 16 * 8:,} tokens; validation loss {of_run['validation_loss_nats']:.3f} nats."
    for fact in ("`tiny`", trained, "rows of 8 tokens", "3 chunks", "Position IDs from 20 on", "words.jsonl"):
        assert fact in card, fact
    assert "trust_remote_code" not in card
    assert "auto_map" not in (folder / "config.json").read_text()


@pytest.mark.parametrize("has_bos", [False, True], ids=["no BOS", "BOS"])
@torch.no_grad()
def test_an_export_carries_the_bos_of_its_run(has_bos: bool, tiny_run: Path, bos_run: Path, tmp_path: Path) -> None:
    """In the configurations of model and generation, and in front of every text; that rows had none is said, too."""
    run = bos_run if has_bos else tiny_run
    folder = export_hf(run, tmp_path / "model").folder
    theirs, loaded = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    eos = theirs.config.eos_token_id
    bos = eos if has_bos else None
    assert (theirs.config.bos_token_id, theirs.generation_config.bos_token_id, loaded.bos_token_id) == (bos, bos, bos)
    assert theirs.config.rows_have_bos is has_bos
    plain = read_tokenizer(run / "tokenizer.json").encode("river stone", add_special_tokens=False).ids
    prompt = loaded("river stone", return_tensors="pt")
    assert prompt["input_ids"].tolist() == [[eos, *plain] if has_bos else plain]
    model = load_model(run / "checkpoints" / "latest", torch.device("cpu"))
    expected = rollout(model, prompt["input_ids"], 4)
    assert torch.equal(theirs.generate(**prompt, max_new_tokens=4)[:, : expected.shape[1]], expected)
    theirs.save_pretrained(tmp_path / "again")  # as when it is put on a hub
    assert read_json(tmp_path / "again" / "config.json")["rows_have_bos"] is has_bos


@pytest.mark.parametrize("has_bos", [False, True], ids=["no BOS", "BOS"])
def test_nothing_is_exported_if_the_tokenizer_has_another_bos(
    has_bos: bool, tiny_run: Path, bos_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*arguments: Any, rows_have_bos: bool, **named: Any) -> object:
        return to_transformers_tokenizer(*arguments, rows_have_bos=not rows_have_bos, **named)

    monkeypatch.setattr(export, "to_transformers_tokenizer", other)
    with pytest.raises(UserError, match="makes another tokenizer"):
        export_hf(bos_run if has_bos else tiny_run, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_exported_if_transformers_computes_another_model(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashes() -> dict[str, str]:
        return {path.relative_to(tmp_path).as_posix(): sha256_file(path) for path in tmp_path.rglob("*.*")}

    export_hf(tiny_run, tmp_path / "model")
    before = hashes()

    def last_layer_a_little_off(*model: Any, **named: Any) -> object:
        changed: Any = to_transformers(*model, **named)
        changed.lm_head.weight.data[0, 0] += 0.02
        return changed

    def not_a_number(*model: Any, **named: Any) -> object:
        changed: Any = to_transformers(*model, **named)
        changed.lm_head.weight.data[3, 0] = torch.nan  # one logit of each token
        return changed

    def reads_special_tokens(*arguments: object, **named: object) -> object:
        changed = to_transformers_tokenizer(*arguments, **named)  # type: ignore[arg-type]
        changed.split_special_tokens = False
        return changed

    def stopped(*_: object, **named: object) -> object:
        raise KeyboardInterrupt

    for name, replacement, error in (
        ("to_transformers", last_layer_a_little_off, "computes another model.*logits differ by"),
        ("to_transformers", not_a_number, r"computes another model.*logits differ by nan"),
        ("to_transformers_tokenizer", reads_special_tokens, "makes another tokenizer"),
        ("model_card", stopped, None),
    ):
        for folder in (tmp_path / "model", tmp_path / "new"):
            with monkeypatch.context() as patch:
                patch.setattr(export, name, replacement)
                with pytest.raises(UserError if error else KeyboardInterrupt, match=error):
                    export_hf(tiny_run, folder, overwrite=True)
            assert [path.name for path in tmp_path.iterdir()] == ["model"]
            assert hashes() == before


def test_only_an_earlier_export_is_replaced_and_only_with_overwrite(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    leftover = partial_path(folder)  # from an export that was killed
    leftover.mkdir()
    (leftover / "model.safetensors").write_text("half")
    export_hf(tiny_run, folder)  # an empty folder is treated as a new one
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (folder / "config.json").write_text("changed")
    with pytest.raises(UserError, match="already holds an exported model; replace it with --overwrite"):
        export_hf(tiny_run, folder)
    assert (folder / "config.json").read_text() == "changed"
    export_hf(tiny_run, folder, overwrite=True)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "olmoe"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

    notes = {f"{letter}.txt" for letter in "bdac"}
    for name in notes:
        (folder / name).write_text("mine")
    with pytest.raises(UserError, match=r"model: it also holds a\.txt, b\.txt, c\.txt, which was not.*does not delete"):
        export_hf(tiny_run, folder, overwrite=True)
    assert {path.name for path in folder.iterdir()} == FILES | notes

    others = tmp_path / "others"
    others.mkdir()
    (others / "notes.txt").write_text("mine")
    for there, message in (
        (others, "no hf folder"),
        (others / "notes.txt", "this is a file"),
        (tiny_run, "manifest says 'run'"),
    ):
        with pytest.raises(UserError, match=message):
            export_hf(tiny_run, there, overwrite=True)
    assert [path.name for path in others.iterdir()] == ["notes.txt"]


def test_what_lies_beside_the_folder_is_kept(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    others = [tmp_path / ".model.partial", tmp_path / ".model.replaced", partial_path(tmp_path / "another")]
    for other in others:
        other.mkdir()
        (other / "notes.txt").write_text("mine")
    partial_path(folder).symlink_to(others[0])
    export_hf(tiny_run, folder)
    export_hf(tiny_run, folder, overwrite=True)
    assert all((other / "notes.txt").read_text() == "mine" for other in others)
    (tmp_path / ".model.lock").write_text("mine")
    with pytest.raises(UserError, match=r"\.model\.lock: this file is no lock of olmo-sparsity"):
        export_hf(tiny_run, folder, overwrite=True)
    assert (tmp_path / ".model.lock").read_text() == "mine"


def test_an_export_that_cannot_be_put_in_place_keeps_the_earlier_one(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_hf(tiny_run, tmp_path / "model").folder
    (folder / "config.json").write_text("the earlier one")
    replace = os.replace

    def fails(source: Path, target: Path) -> None:
        if target == folder and not (source / "config.json").read_text().startswith("the earlier"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        replace(source, target)

    monkeypatch.setattr(export.os, "replace", fails)
    with pytest.raises(UserError, match="cannot put the exported folder there"):
        export_hf(tiny_run, folder, overwrite=True)
    assert (folder / "config.json").read_text() == "the earlier one"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_only_a_trained_run_is_exported(messages: Messages, tiny_run: Path, tmp_path: Path) -> None:
    for missing in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="no trained model here; train it first"):
            export_hf(missing, tmp_path / "model")
    with pytest.raises(UserError, match="manifest says 'hf'"):
        export_hf(export_hf(tiny_run, tmp_path / "model").folder, tmp_path / "again")
    task = tmp_path / "task"
    shutil.copytree(tiny_run, task, symlinks=True)
    write_manifest(task, {**read_json(task / "manifest.json"), "synthetic_task": "parity"})
    with pytest.raises(UserError, match="trained on a synthetic task, not on text"):
        export_hf(task, tmp_path / "again")
    other = tmp_path / "other"
    shutil.copytree(tiny_run, other, symlinks=True)
    (other / "tokenizer.json").write_text(train_bpe(TEXTS, 320, eos_token="<|endoftext|>").to_str())
    with pytest.raises(UserError, match="not the tokenizer that the manifest beside it was written with"):
        export_hf(other, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    begun = tmp_path / "begun"
    shutil.copytree(tiny_run, begun, symlinks=True)
    manifest = read_json(begun / "manifest.json")
    running = {key: value for key, value in manifest.items() if key not in OF_THE_END}
    (begun / "manifest.json").write_text(json.dumps({**running, "status": "running"}))
    shutil.rmtree(begun / "checkpoints" / "step12")
    messages.clear()
    folder = export_hf(begun, tmp_path / "early").folder
    assert "not finished; this is step8" in messages[0]
    assert "8 of 12 steps" in (folder / "README.md").read_text()
    (begun / "manifest.json").write_text(json.dumps(manifest))
    messages.clear()
    card = (export_hf(begun, tmp_path / "gone").folder / "README.md").read_text()
    assert messages[0] == f"{begun}: its last checkpoint, of step 12, is gone; this is step8"
    assert f"- **Training**: 8 of 12 steps, {8 * 16 * 8:,} tokens.\n" in card


def test_the_checkpoint_of_another_run_is_not_exported(tiny_run: Path, bos_run: Path, tmp_path: Path) -> None:
    mixed = Path(shutil.copytree(tiny_run, tmp_path / "mixed", symlinks=True))
    shutil.rmtree(mixed / "checkpoints")
    shutil.copytree(bos_run / "checkpoints", mixed / "checkpoints", symlinks=True)
    with pytest.raises(UserError, match=r"step12: run .* saved this checkpoint, not this run"):
        export_hf(mixed, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["mixed"]


def test_an_export_that_another_process_finished_first_is_kept(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, write = tmp_path / "model", export._write

    def overtaken(*given: Any, **named: Any) -> Any:
        written = write(*given, **named)
        shutil.copytree(named["partial"], folder)
        (folder / "README.md").write_text("of the other")
        return written

    monkeypatch.setattr(export, "_write", overtaken)
    with pytest.raises(UserError, match="already holds an exported model; replace it with --overwrite"):
        export_hf(tiny_run, folder)
    assert (folder / "README.md").read_text() == "of the other"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@torch.no_grad()
def test_logits_are_compared_in_order_and_with_gaps(tiny_run: Path) -> None:
    """A model that knows no position IDs but those in order differs, and so does one that is wrong without them."""
    model = load_model(tiny_run / "checkpoints" / "latest", torch.device("cpu"))

    def loaded(*, knows_gaps: bool, shift: float) -> Any:
        def forward(input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> SimpleNamespace:
            in_order = torch.arange(input_ids.shape[1]).expand(len(input_ids), -1)
            used = in_order if position_ids is None or not knows_gaps else position_ids
            logits = model(input_ids, used)[..., : model.config.vocab_size]
            return SimpleNamespace(logits=logits + shift * (position_ids is None))

        return forward

    assert export._largest_difference(model, loaded(knows_gaps=True, shift=0.0))[0] == 0
    assert export._largest_difference(model, loaded(knows_gaps=False, shift=0.0))[0] > export.MAX_DIFFERENCE
    assert export._largest_difference(model, loaded(knows_gaps=True, shift=-0.5))[0] == pytest.approx(0.5)
