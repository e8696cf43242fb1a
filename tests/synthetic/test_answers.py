"""Answers of models against a loop over single sequences; runs of tasks, from the command to the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Messages, write_corpus
from test_tasks import config as config_of
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import Config, changed, config_folder, load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, load_model, olmo_model_config
from olmo_sparsity.synthetic.evaluate import evaluate_task, respond
from olmo_sparsity.synthetic.tasks import (
    Sequences,
    check_task,
    evaluated_sequences,
    open_background,
    open_task,
    words_of,
)
from olmo_sparsity.tables import newest_finished, read_table
from olmo_sparsity.text.prepare import prepare
from olmo_sparsity.text.store import open_store
from olmo_sparsity.train.loop import train

LENGTH, K = 8, 3


def config(positions: str, *, embedding: str = "", **keys: Any) -> Config:
    made = config_of(positions, test_lengths=[LENGTH], train_lengths=[6, LENGTH], test_rows=30, num_names=8, **keys)
    embedding = embedding or made.model.position_embedding
    model = replace(
        made.model, d_model=16, n_heads=2, n_layers=2, mlp_ratio=2, init_std=0.5, position_embedding=embedding
    )
    return replace(made, model=model, pose=replace(made.pose, num_chunks=1 if embedding == "none" else 2))


@pytest.mark.parametrize("task", ["parity", "variables"])
@pytest.mark.parametrize(
    ("positions", "embedding", "scratchpad"),
    [
        ("predicted", "absolute", True), ("coupled", "absolute", True), ("shifted", "absolute", False), ("pose", "rope", True),
        ("pose", "none", False), ("randpos", "absolute", True),
    ],
)  # fmt: skip
def test_responses_are_those_of_a_loop_over_single_sequences(
    task: str, positions: str, embedding: str, scratchpad: bool
) -> None:
    """Of a response the model is given only position IDs, unless it predicts them."""
    experiment = config(positions, task=task, scratchpad=scratchpad, embedding=embedding)
    check_task(experiment)
    shape = olmo_model_config(experiment, vocab_size=len(words_of(experiment.synthetic)), eos_id=0)
    model, predicts = build_model(shape, seed=3).eval(), positions == "predicted"
    sequences = evaluated_sequences(experiment, LENGTH, K)
    end, length = int(sequences.prompt_len_B[0]), int((sequences.prompt_len_B + sequences.response_len_B)[0])
    found_tokens, found_ids = respond(model, hidden(sequences, ids=predicts), predict_ids=predicts)
    for row in range(30):
        written, ids = sequences.tokens_BT[row, :end].tolist(), sequences.ids_BT[row, :end].tolist()
        while len(written) < length:
            with torch.no_grad():
                tokens, at = torch.tensor([written]), torch.tensor([ids])
                written.append(int(model(tokens, at)[0, -1, : model.vocab_size].argmax()))
                given = int(sequences.ids_BT[row, len(ids)])
                ids.append(int(model.logits_and_position_logits(tokens, at)[1][0, -1].argmax()) if predicts else given)
        assert found_tokens[row].tolist() == written[end:] and found_ids[row].tolist() == ids[end:]


def hidden(sequences: Sequences, *, ids: bool) -> Sequences:
    """Return the same prompts with other responses."""
    tokens_BT, ids_BT = sequences.tokens_BT.copy(), sequences.ids_BT.copy()
    end = int(sequences.prompt_len_B[0])
    tokens_BT[:, end:] = 3
    ids_BT[:, end:] = 5 if ids else ids_BT[:, end:]
    return replace(sequences, tokens_BT=tokens_BT, ids_BT=ids_BT)


TRAINING = "{steps: 4, batch_rows: 8, warmup_steps: 1, eval_every: 4, eval_rows: 8, compile: never, precision: fp32}"
SUM = f"""
name: sum
data: {{source: words.jsonl, tokenizer: "bpe:320", cache_dir: data, validation_percent: 30}}
context: {{local_len: 2, full_len: 20}}
model: {{d_model: 16, n_heads: 2, n_layers: 1, mlp_ratio: 2}}
training: {TRAINING}
synthetic: {{modulus: 4, background: text, max_sparsity: 2, train_lengths: [3, 6], test_lengths: [6, 12], test_sparsity: [1, 3],
            test_row_len: 6, test_rows: 60}}
"""
PREDICTED = f"""
name: predicted
context: {{local_len: 2, full_len: 24}}
model: {{d_model: 16, n_heads: 2, n_layers: 1, mlp_ratio: 2, position_embedding: absolute}}
training: {TRAINING}
synthetic: {{scratchpad: true, positions: predicted, max_sparsity: 3, train_lengths: [4, 8], test_lengths: [6, 12],
            test_sparsity: [1, 3], test_rows: 10}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text and two configurations; tests add runs."""
    made = tmp_path_factory.mktemp("synthetic")
    write_corpus(made / "words.jsonl", 60)
    (made / "sum.yaml").write_text(SUM)
    (made / "predicted.yaml").write_text(PREDICTED)
    return made


@pytest.fixture
def at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["synth", *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def opened(run: Path) -> OLMoWithPositions:
    return load_model(run / "checkpoints" / "latest", torch.device("cpu"))


@pytest.mark.parametrize("name", ["sum", "predicted"])
def test_the_table_holds_what_the_model_answers(name: str, at: Path) -> None:
    """`synth eval` trains first; seeds of a run share what they are asked; `synth summary` prints the same."""
    table = printed("eval", name, "--config", f"{name}.yaml", "--run", f"runs/{name}")
    assert printed("summary", "--run", f"runs/{name}") == table
    experiment, run = load_config(Path(f"{name}.yaml")), Path("runs") / name
    before = {path: path.stat().st_mtime_ns for ending in ("jsonl", "parquet") for path in run.rglob(f"*.{ending}")}
    for command in ("train", "eval"):
        printed(command, name, "--config", f"{name}.yaml", "--run", str(run))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    frame = read_table(newest_finished(run, "synthetic"), "answers").to_pandas()
    assert frame["window_id"].tolist() == list(range(len(frame)))
    places = {("sum", 6): ["inside"], ("sum", 12): ["inside", "beyond"]}
    background, predicts = open_background(experiment, "validation"), name == "predicted"
    num_rows = experiment.synthetic.test_rows
    cells = [(n, k, place) for n in (6, 12) for k in (1, 3) for place in places.get((name, n), [None])]
    assert len(frame) == len(cells) * num_rows
    for number, (length, k, place) in enumerate(cells):
        rows = frame.iloc[number * num_rows : (number + 1) * num_rows]
        assert (rows["length_tokens"] == length).all() and (rows["sparsity"] == k).all()
        assert (
            rows.get("place", [None] * num_rows).tolist() == [place] * num_rows
            if name == "sum"
            else "place" not in rows
        )
        sequences = evaluated_sequences(experiment, length, k, place=place, background=background)
        tokens_WK, ids_WK = respond(opened(run), sequences, predict_ids=predicts)
        response = slice(-tokens_WK.shape[1], None)
        true_WK, true_ids_WK = sequences.tokens_BT[:, response], sequences.ids_BT[:, response]
        expected = {
            "response_ids": tokens_WK, "true_ids": true_WK, "response_positions": ids_WK, "true_positions": true_ids_WK,
        }  # fmt: skip
        for column, values in expected.items():
            assert [value.tolist() for value in rows[column]] == values.tolist()
        right, ids_right = (tokens_WK == true_WK).all(axis=1), (ids_WK == true_ids_WK).all(axis=1)
        assert rows["tokens_right"].tolist() == right.tolist()
        assert rows["positions_right"].tolist() == (ids_right.tolist() if predicts else [None] * num_rows)
        assert rows["right"].tolist() == (right & ids_right).tolist()


def test_what_is_answered_is_kept_and_another_model_has_another_folder(at: Path, messages: Messages) -> None:
    experiment, run = load_config(Path("predicted.yaml")), at / "runs" / "kept"
    train(experiment, run, open_data=open_task)
    folder = evaluate_task(experiment, run, overwrite=True)  # of nothing
    parts = {path: path.read_bytes() for path in sorted((folder / "answers").iterdir())}
    times = {path: path.stat().st_mtime_ns for path in parts}
    (first, *rest) = parts
    first.unlink()
    assert evaluate_task(experiment, run) == folder
    assert first.read_bytes() == parts[first] and [path.stat().st_mtime_ns for path in rest] == [times[p] for p in rest]
    assert evaluate_task(experiment, run) == folder and "already evaluated; nothing to do" in messages[-1]
    evaluate_task(experiment, run, overwrite=True)
    assert all(path.stat().st_mtime_ns > times[path] and path.read_bytes() == parts[path] for path in parts)
    fewer = changed(experiment, {"synthetic.test_rows": 1, "synthetic.test_lengths": [6]})
    with pytest.raises(UserError, match="these answers are to other prompts, or of another model; choose another"):
        evaluate_task(fewer, run, out=folder)
    assert evaluate_task(fewer, run) != folder
    evaluate_task(fewer, run, out=folder, overwrite=True)
    written = read_json(folder / "manifest.json")
    assert (written["windows_per_part"], written["context"]["num_long_range"]) == (1, 6)
    with pytest.raises(UserError, match="the longest sequence has 103 tokens"):
        evaluate_task(changed(experiment, {"synthetic.test_lengths": [99]}), run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            "synthetic.positions=shifted model.position_embedding=rope",
            "model.position_embedding = rope: .* takes absolute",
        ),
        ("synthetic.positions=pose", "synthetic.positions = pose takes rope or none"),
        ("pose.vary_chunks=true", "synthetic tasks use pose.num_chunks and pose.max_position only"),
        ("context.bos=true", "have no BOS"),
        ("pose.max_position=15 context.full_len=15", "pose.max_position = 15: the longest sequence has 16"),
        ("pose.num_chunks=7", "pose.num_chunks = 7: must be at most 6"),
        ("synthetic.scratchpad=false", "synthetic.scratchpad=true"),
        ("synthetic.background=text data.source=nowhere", "nowhere: no such file"),
        (
            "synthetic.background=text data.source=words.jsonl data.cache_dir=data data.tokenizer=bpe:320 pose.max_position=900 "
            "data.validation_percent=30 synthetic.train_lengths=[4,800]",
            "synthetic.train_lengths = .* the longest document of the train split",
        ),
        (
            "synthetic.background=text data.source=words.jsonl data.cache_dir=data data.tokenizer=bpe:320 pose.max_position=900 "
            "data.validation_percent=30 synthetic.test_lengths=[6,800]",
            "synthetic.test_lengths = .* the longest document of the validation split",
        ),
    ],
)
def test_mistakes_are_one_line(changes: str, message: str, at: Path) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.").replace(r"\.*", ".*")) as error:
        open_task(load_config(Path("predicted.yaml"), changes.split()))
    assert "\n" not in str(error.value)


def test_a_row_of_text_fits_into_a_document_and_the_text_is_checked(at: Path) -> None:
    experiment = load_config(Path("sum.yaml"))
    longest = int(open_store(prepare(experiment.data), "validation").lengths_G.max())
    fits, does_not = (
        changed(experiment, {"synthetic.test_lengths": [6, 9, longest - less], "synthetic.test_sparsity": [3]})
        for less in (3, 2)  # a row is two tokens longer than its prompt
    )
    open_background(fits, "validation")
    with pytest.raises(UserError, match=f"takes rows of {longest} tokens"):
        open_background(does_not, "validation")
    damaged = changed(experiment, {"data.cache_dir": "damaged"})
    tokens = prepare(damaged.data) / "train" / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2] + b"xx")
    with pytest.raises(UserError, match="other contents than were written there"):
        open_background(damaged, "train")


def test_runs_of_text_and_of_tasks_are_told_apart(at: Path, tiny_run: Path, tiny_config: Config) -> None:
    task, run = load_config(Path("predicted.yaml")), at / "runs" / "apart"
    check_task(changed(task, {"pose.num_chunks": 6}))  # as many as the shortest sequence has tokens
    train(task, run, open_data=open_task)
    before = read_json(run / "manifest.json")
    for overwrite in (False, True):
        with pytest.raises(
            UserError, match=f"trained on a synthetic task; train it with `.* synth train predicted --run {run}`"
        ):
            train(tiny_config, run, overwrite=overwrite)
        with pytest.raises(UserError, match=f"trained on text; train it with `olmo-sparsity train --run {tiny_run}`"):
            train(task, tiny_run, overwrite=overwrite, open_data=open_task)
    with pytest.raises(UserError, match="trained on text, not on a synthetic task"):
        evaluate_task(task, tiny_run)
    assert read_json(run / "manifest.json") == before
    freer = replace(task, synthetic=replace(task.synthetic, test_rows=3, test_lengths=[9]))
    train(freer, run, open_data=open_task)  # what is evaluated is no part of the training


@pytest.mark.parametrize("path", sorted((config_folder() / "synthetic").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_are_usable(path: Path) -> None:
    made = load_config(path)
    assert made.name == path.stem
    check_task(made)
