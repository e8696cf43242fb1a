"""Sums of values in natural text, inside a row and beyond it: the generator by brute force, the loss of few targets, commands."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_corpus
from tiny_stores import tiny_store
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import (
    Config,
    ContextConfig,
    ModelConfig,
    PoseConfig,
    SyntheticConfig,
    config_folder,
    load_config,
)
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.measure import synthetic_accuracy
from olmo_sparsity.measure.synthetic_accuracy import evaluate_synthetic, open_synthetic_run
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.synthetic.background import Background, noise, open_background, text
from olmo_sparsity.synthetic.data import (
    VALIDATION,
    evaluated_sequences,
    generated_sha256,
    open_synthetic_data,
    synthetic_batch,
    training_sequences,
)
from olmo_sparsity.synthetic.evaluation import respond
from olmo_sparsity.synthetic.sequences import Sequences
from olmo_sparsity.tables import newest_finished, read_table
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import open_store
from olmo_sparsity.torchrun import SINGLE_PROCESS
from olmo_sparsity.train.batches import IGNORE_INDEX
from olmo_sparsity.train.step import SummedLoss

MODULUS, ROW, LENGTH = 4, 7, 16
FIRST_TEXT_ID = 2 + MODULUS  # behind EOS, the query and the values
# Documents without a token in common; one is too short for the longest prompt.
DOCUMENTS = [list(range(1 + 40 * i, 1 + 40 * i + length)) for i, length in enumerate((30, 17, 12, 25))]


def config(**keys: object) -> Config:
    settings: dict[str, object] = {
        "modulus": MODULUS,
        "background": "text",
        "train_lengths": [4, ROW],
        "max_sparsity": 3,
    }
    settings |= {
        "test_lengths": [ROW, LENGTH],
        "test_sparsity": [1, 3, 5],
        "test_row_len": ROW,
        "test_rows": 300,
        **keys,
    }
    return Config(
        context=ContextConfig(local_len=2, full_len=8, train_len=8),
        pose=PoseConfig(max_position=20),
        model=ModelConfig(d_model=16, n_heads=2, n_layers=2, mlp_ratio=2),
        synthetic=SyntheticConfig(**settings),  # type: ignore[arg-type]
    )


def background() -> Background:
    return text(tiny_store(DOCUMENTS), vocab_size=200)


def planted_of(sequences: Sequences, row: int) -> list[int]:
    """Return where values lie in a prompt, read off its tokens, after comparing everything else with the documents."""
    query = int(sequences.prompt_len_B[row]) - 1
    tokens = sequences.tokens_BT[row].tolist()
    prompt = tokens[:query]
    at = [i for i, token in enumerate(prompt) if 2 <= token < FIRST_TEXT_ID]
    assert np.flatnonzero(sequences.planted_BT[row]).tolist() == at
    places = [(i, token - FIRST_TEXT_ID) for i, token in enumerate(prompt) if i not in at]
    begins = [
        (document, begin)
        for document in DOCUMENTS
        for begin in range(len(document) - query + 1)
        if all(document[begin + i] == token for i, token in places)
    ]
    assert begins, "the background is not consecutive tokens of one document"
    total = sum(prompt[i] - 2 for i in at) % MODULUS
    assert tokens[query:] == [1, 2 + total] + [0] * (len(tokens) - query - 2)
    return at


def test_a_training_row_is_consecutive_text_with_values_whose_sum_is_the_answer() -> None:
    drawn = training_sequences(config(), np.random.default_rng(0), num_rows=400, background=background()).sequences
    planted = [planted_of(drawn, row) for row in range(400)]
    assert {len(at) for at in planted} == {1, 2, 3}
    assert {int(length) - 1 for length in drawn.prompt_len_B} == set(range(4, ROW + 1))
    assert {i for at in planted for i in at} == set(range(ROW))
    values = {int(token) for row in range(400) for token in drawn.tokens_BT[row][drawn.planted_BT[row]]}
    assert values == {2, 3, 4, 5}


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize(
    ("length", "place", "expected"),
    [
        (ROW, "inside", range(ROW)),
        (LENGTH, "inside", range(LENGTH - ROW, LENGTH)),
        (LENGTH, "beyond", range(LENGTH - ROW)),
        (LENGTH, None, range(LENGTH)),
    ],
)
def test_evaluated_values_lie_inside_the_row_or_beyond_it(
    length: int, place: str | None, expected: range, k: int
) -> None:
    placed = evaluated_sequences(config(), length, k, place=place, background=background())  # type: ignore[arg-type]
    planted = [planted_of(placed.sequences, row) for row in range(300)]
    assert {len(at) for at in planted} == {k}
    assert {i for at in planted for i in at} == set(expected)
    assert (placed.ids_BT == np.arange(length + 2)).all()


def test_places_are_drawn_independently() -> None:
    answers = [
        evaluated_sequences(config(), LENGTH, 3, place=place, background=background()).sequences.tokens_BT[
            :, LENGTH + 1
        ]  # type: ignore[arg-type]
        for place in ("inside", "beyond", None)
    ]
    assert not any((one == other).all() for i, one in enumerate(answers) for other in answers[:i])


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("parity", [], "0af28c005a767386"),
        ("variables", ["synthetic.positions=pose", "model.position_embedding=rope"], "81097d7c41ea1638"),
    ],
)
def test_tasks_without_text_draw_what_they_drew_before_there_was_any(name: str, keys: list[str], expected: str) -> None:
    """The hashes are those of the version before."""
    experiment = load_config(config_folder() / "synthetic" / f"{name}.yaml", keys)
    settings, digest = experiment.synthetic, hashlib.sha256()
    for step in (0, 1, 7):
        batch = synthetic_batch(experiment, num_rows=experiment.training.batch_rows, seed=[0, step])
        for field in batch.fields:
            digest.update(field.numpy().tobytes())
    for length in settings.test_lengths:
        for k in settings.test_sparsity:
            placed = evaluated_sequences(experiment, length, k)
            for array in (placed.sequences.tokens_BT, placed.sequences.planted_BT, placed.ids_BT):
                digest.update(np.ascontiguousarray(array).tobytes())
    assert digest.hexdigest()[:16] == expected


def digest_of(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def test_placed_and_held_out_sequences_are_those_of_earlier_versions() -> None:
    """Held-out ones depend on no seed; with other purposes of the generators both would be others."""
    experiment = config(background="noise", test_sparsity=[1, 2])  # inside of a row of training, and beyond it
    placed = [evaluated_sequences(experiment, LENGTH, 2, place=at).sequences.tokens_BT for at in ("inside", "beyond")]  # type: ignore[arg-type]
    assert [digest_of(tokens) for tokens in placed] == ["63f44913003e5a87", "487f72545c5510e2"]
    held_out = []
    experiment = config(background="noise", test_row_len=None, test_sparsity=[1, 2])
    for seed in (0, 1):
        seeded = dataclasses.replace(experiment, training=dataclasses.replace(experiment.training, seed=seed))
        held_out.append(open_synthetic_data(seeded, SINGLE_PROCESS).evaluation_rows.like_training)
    assert [digest_of(rows.tokens_BT.numpy(), rows.targets_BT.numpy()) for rows in held_out] == ["faccd3e8e288ad57"] * 2


def test_the_loss_of_few_targets_is_the_loss() -> None:
    """In fp32, with its gradients, and of rows of several lengths."""
    experiment = config()
    batch = synthetic_batch(experiment, num_rows=12, seed=[0, 1], background=background())
    assert batch.num_targets == 12 == int((batch.targets_BT != IGNORE_INDEX).sum())
    found = {}
    for few_targets in (False, True):
        model = build_model(olmo_model_config(experiment, vocab_size=200 + FIRST_TEXT_ID, eos_id=0), seed=3)
        objective, nats = SummedLoss(model, "fp32", z_loss=0.01, few_targets=few_targets)(*batch.fields)
        objective.backward()
        found[few_targets] = [objective, nats, *(parameter.grad for parameter in model.parameters())]
    for few, all_targets in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(few, all_targets, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"test_row_len": 4},
            "synthetic.test_row_len = 4: of a prompt of 7 tokens 4 lie inside the row, too few for k = 5",
        ),
        (
            {"test_row_len": 12},
            "synthetic.test_row_len = 12: of a prompt of 16 tokens 4 lie beyond the row, too few for k = 5",
        ),
        ({"modulus": 1}, "synthetic.modulus = 1: must be at least 2"),
        ({"task": "variables", "test_row_len": None, "background": "noise"}, "synthetic.modulus = 4: only for"),
        ({"task": "variables", "test_row_len": None, "modulus": 2}, "synthetic.background = text: only for"),
        ({"task": "variables", "modulus": 2, "background": "noise"}, "synthetic.test_row_len = 7: only for"),
    ],
    ids=lambda value: str(value),
)
def test_mistakes_are_one_line(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        config(**keys)
    assert "\n" not in str(error.value)


TINY = """
name: tiny-sum
data: {source: words.jsonl, tokenizer: "bpe:320", cache_dir: data, validation_percent: 30}
context: {local_len: 2, full_len: 20}
model: {d_model: 16, n_heads: 2, n_layers: 1, mlp_ratio: 2}
training: {steps: 4, batch_rows: 8, warmup_steps: 1, eval_every: 4, eval_rows: 8, log_every: 1, compile: never, precision: fp32,
           device: cpu}
synthetic: {modulus: 4, background: text, max_sparsity: 2, train_lengths: [3, 6], test_lengths: [6, 12], test_sparsity: [1, 3],
            test_row_len: 6, test_rows: 60}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was trained on sums in text, and evaluated."""
    folder = tmp_path_factory.mktemp("sum")
    write_corpus(folder / "words.jsonl", 60)
    (folder / "tiny.yaml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(app, ["synth", "eval", "tiny-sum", "--config", "tiny.yaml", "--run", "run"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "trained on 3 to 6 tokens, k up to 2" in result.output
    for length in ("6, inside the row", "12, inside the row", "12, beyond it"):
        assert re.search(rf"^{length} +\d\.\d\d \[", result.output, re.MULTILINE)
    return folder


def test_the_table_has_the_places(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = read_table(newest_finished(trained / "run", "synthetic"), "answers").to_pandas()
    cells = frame.groupby(["length_tokens", "sparsity", "place"]).size().to_dict()
    assert cells == {
        (length, k, place): 60 for k in (1, 3) for length, place in ((6, "inside"), (12, "inside"), (12, "beyond"))
    }
    assert frame.window_id.tolist() == list(range(len(frame)))
    assert {int(ids[0]) for ids in frame.true_ids} == {2, 3, 4, 5}
    monkeypatch.chdir(trained)
    experiment = load_config(Path("tiny.yaml"))
    opened = open_synthetic_run(experiment, Path("run"))
    placed = evaluated_sequences(experiment, 12, 3, place="beyond", background=opened.background)
    answers = respond(opened.model, placed, predict_ids=False).tokens_WK.tolist()
    rows = frame[(frame.length_tokens == 12) & (frame.sparsity == 3) & (frame.place == "beyond")]
    assert [ids.tolist() for ids in rows.response_ids] == answers


@pytest.mark.parametrize("name", ["train_lengths", "test_lengths"])
def test_a_text_without_a_document_as_long_as_a_row_is_refused_before_training(
    trained: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(trained)
    long = 1000
    lengths = {"train_lengths": [3, 6], "test_lengths": [6, 12]} | {name: [6, long]}
    keys = [f"synthetic.{key}={value}" for key, value in lengths.items()]
    experiment = load_config(Path("tiny.yaml"), [*keys, f"pose.max_position={2 * long}"])
    split = "train" if name == "train_lengths" else "validation"
    longest = int(open_store(prepare(experiment.data), split).lengths_G.max())
    row_len = experiment.synthetic.row_len(long, 2 if name == "train_lengths" else 3)
    with pytest.raises(
        UserError, match=rf"^synthetic\.{name} = .*{long}\]: takes rows of {row_len} tokens, .* {longest}, "
    ):
        open_synthetic_data(experiment, SINGLE_PROCESS)


def test_training_and_evaluation_have_different_documents(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    experiment = load_config(Path("tiny.yaml"))
    folder = prepare(experiment.data)
    for split, other in (("train", "validation"), ("validation", "train")):
        drawn = open_background(experiment, split)
        assert drawn.text_sha256 == open_store(folder, split).tokens_sha256
        stores = {name: open_store(folder, name) for name in (split, other)}
        rows = {
            name: {
                tuple(store.tokens[at : at + 12].tolist())
                for begin, end in zip(store.begins_G, store.ends_G, strict=True)
                for at in range(begin, end - 12)
            }
            for name, store in stores.items()
        }
        made = {tuple(row) for row in drawn.draw(np.random.default_rng(0), 200, 12).tolist()}
        assert made <= rows[split] and made - rows[other]
    data, of = open_synthetic_data(experiment, SINGLE_PROCESS), experiment.training
    for batch, split, seed, other in (
        (data.draw(2), "train", [of.seed, 2], "validation"),
        (data.evaluation_rows.like_training, "validation", [VALIDATION, 0], "train"),
    ):
        drawn, mistaken = (
            synthetic_batch(experiment, num_rows=8, seed=seed, background=open_background(experiment, name)).tokens_BT
            for name in (split, other)
        )
        assert torch.equal(batch.tokens_BT, drawn) and not torch.equal(drawn, mistaken)
    assert open_synthetic_run(experiment, Path("run")).background.text_sha256 == stores["validation"].tokens_sha256


def test_a_text_that_was_changed_is_not_drawn_from(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained / "data", tmp_path / "data")
    shutil.copy2(trained / "words.jsonl", tmp_path)
    monkeypatch.chdir(tmp_path)
    experiment = load_config(trained / "tiny.yaml")
    folder = prepare(experiment.data)
    first, *_ = read_json(folder / "manifest.json")["splits"]["validation"]["files"]
    content = bytearray((folder / first["path"]).read_bytes())
    content[0] ^= 1
    (folder / first["path"]).write_bytes(content)
    with pytest.raises(UserError, match=f"{first['path']}: other contents than were written there"):
        open_background(experiment, "train")


def test_other_held_out_text_or_another_model_has_another_fingerprint(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    experiment, found = load_config(Path("tiny.yaml")), []
    opened = open_synthetic_run(experiment, Path("run"))
    monkeypatch.setattr(
        synthetic_accuracy, "measure_parts", lambda folder, manifest, **_: found.append(manifest["run_id"])
    )
    for text_sha256, model_sha256 in (("1", "a"), ("2", "a"), ("2", "a"), ("2", "b")):
        of_text = dataclasses.replace(
            opened,
            background=dataclasses.replace(opened.background, text_sha256=text_sha256),
            checkpoint=dataclasses.replace(opened.checkpoint, sha256={"model.pt": model_sha256}),
        )
        monkeypatch.setattr(synthetic_accuracy, "open_synthetic_run", lambda *_, of_text=of_text: of_text)
        assert evaluate_synthetic(experiment, Path("run"), out=tmp_path / "out") == tmp_path / "out"
    assert found[1] == found[2] and len(set(found)) == 3


def test_another_text_than_that_of_the_run_is_not_evaluated(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    shutil.copytree("run", "changed", symlinks=True)
    manifest = read_json(Path("changed/manifest.json"))
    write_json(Path("changed/manifest.json"), {**manifest, "tokens_sha256": "another"})
    with pytest.raises(
        UserError, match=r"data\.source = words\.jsonl has changed since this run was trained on it"
    ) as error:
        evaluate_synthetic(load_config(Path("tiny.yaml")), Path("changed"))
    assert "\n" not in str(error.value)
    del manifest["tokens_sha256"]
    write_json(Path("changed/manifest.json"), manifest)
    with pytest.raises(UserError, match=r"^changed/manifest\.json: key tokens_sha256 is missing; "):
        evaluate_synthetic(load_config(Path("tiny.yaml")), Path("changed"))


def test_the_hash_of_the_data_is_that_of_its_text(trained: Path) -> None:
    settings = load_config(trained / "tiny.yaml").synthetic
    of_run = read_json(trained / "run" / "manifest.json")["tokens_sha256"]
    one = background()
    assert generated_sha256(settings, one) != of_run
    assert generated_sha256(settings, dataclasses.replace(one, text_sha256="1")) != generated_sha256(settings, one)
    # Written by the version before there was text or a modulus.
    assert generated_sha256(SyntheticConfig(), noise(4)) == "b2af1e2af4e6"
