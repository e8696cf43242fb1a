"""Runs of synthetic tasks: exact resume, any number of processes, parts and shards, and mistakes of the user."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from started_commands import Started
from tokenizers import Tokenizer
from typer.testing import CliRunner
from watched_runs import metrics, stopping_after, weights

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import (
    Config,
    ContextConfig,
    ModelConfig,
    PoseConfig,
    SyntheticConfig,
    TrainingConfig,
    changed,
    config_folder,
    load_config,
    to_yaml,
)
from olmo_sparsity.errors import Interrupted, UserError
from olmo_sparsity.files import read_json, write_json, write_manifest
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.synthetic_accuracy import evaluate_synthetic
from olmo_sparsity.measure.work import Share
from olmo_sparsity.statistics.synthetic import read_synthetic
from olmo_sparsity.synthetic.data import SYNTHETIC, check_synthetic, evaluated_sequences, open_synthetic_data
from olmo_sparsity.synthetic.evaluation import respond
from olmo_sparsity.tables import check_tables, read_table
from olmo_sparsity.torchrun import SINGLE_PROCESS, ProcessInfo, current_process
from olmo_sparsity.train import loop
from olmo_sparsity.train.evaluation import Evaluation
from olmo_sparsity.train.loop import train
from olmo_sparsity.train.resources import least_bytes


def tiny(positions: str = "predicted", **keys: Any) -> Config:
    scratchpad = positions != "pose"
    return Config(
        name="tiny",
        context=ContextConfig(local_len=2, full_len=24, train_len=8),
        pose=PoseConfig(max_position=24),
        model=ModelConfig(
            d_model=16, n_heads=2, n_layers=1, mlp_ratio=2, position_embedding="absolute" if scratchpad else "rope"
        ),
        training=TrainingConfig(
            steps=8,
            batch_rows=8,
            warmup_steps=2,
            scheduler="linear_with_warmup",
            checkpoint_every=3,
            eval_every=4,
            eval_rows=8,
            log_every=1,
            compile="never",
            precision="fp32",
            device="cpu",
        ),
        synthetic=SyntheticConfig(
            scratchpad=scratchpad,
            positions=positions,  # type: ignore[arg-type]
            max_sparsity=3,
            train_lengths=[4, 8],
            test_lengths=[6, 12],
            test_sparsity=[1, 3],
            test_rows=10,
            **keys,
        ),
    )


@pytest.fixture(scope="module")
def predicted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("synthetic") / "predicted"
    train(tiny(), run, source=SYNTHETIC)
    return run


@pytest.fixture(scope="module")
def parity_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("synthetic") / "parity"
    train(tiny("pose"), run, source=SYNTHETIC)
    return run


@pytest.mark.parametrize("stop", [2, 5])
def test_a_killed_run_resumes_exactly(predicted_run: Path, tmp_path: Path, stop: int) -> None:
    run = tmp_path / "killed"
    with pytest.raises(Interrupted):
        train(tiny(), run, source=stopping_after(stop))
    assert read_json(run / "manifest.json")["status"] == "running"
    with pytest.raises(
        UserError, match=f"trained on a synthetic task; .* `olmo-sparsity synth train tiny --run {run}`"
    ):
        train(tiny(), run)
    with pytest.raises(UserError, match="this run is trained on a synthetic task"):  # before other keys are compared
        train(tiny("pose"), run)
    with pytest.raises(UserError, match="this run is trained on a synthetic task"):  # which --overwrite would delete
        train(tiny(), run, overwrite=True)
    train(tiny(), run, source=SYNTHETIC)
    assert metrics(run) == metrics(predicted_run)
    resumed, uninterrupted = weights(run)["model.pt"], weights(predicted_run)["model.pt"]
    assert all(torch.equal(resumed[name], uninterrupted[name]) for name in uninterrupted)


def test_answers_are_measured_again_only_where_they_are_to_be_overwritten(parity_run: Path, tmp_path: Path) -> None:
    config = tiny("pose")
    folder = evaluate_synthetic(config, parity_run, out=tmp_path / "tables")
    table = folder / "answers" / "part-00000.parquet"
    first = table.stat().st_mtime_ns
    evaluate_synthetic(config, parity_run, out=folder)
    assert table.stat().st_mtime_ns == first
    evaluate_synthetic(config, parity_run, out=folder, overwrite=True)
    assert table.stat().st_mtime_ns > first


def stopping(**keys: Any) -> Config:
    """Return a configuration that is evaluated after every step and learns nothing, so that the first loss is the lowest."""
    config = tiny("pose")
    training = dataclasses.replace(config.training, eval_every=1, checkpoint_every=1, learning_rate=1e-12, **keys)
    return dataclasses.replace(config, training=training)


@pytest.mark.parametrize(
    ("keys", "step", "ended_by"),
    [
        ({"stop_loss": 100.0}, 1, "stop_loss"),
        ({"stop_loss": 0.01}, 8, "steps"),
    ],
)
def test_training_ends_where_the_held_out_loss_is_low(
    tmp_path: Path, keys: dict[str, Any], step: int, ended_by: str
) -> None:
    run = tmp_path / "run"
    train(stopping(**keys), run, source=SYNTHETIC)
    manifest = read_json(run / "manifest.json")
    assert (manifest["status"], manifest["steps"], manifest["ended_by"]) == ("complete", step, ended_by)
    assert [line["step"] for line in metrics(run)] == list(range(1, step + 1))
    assert manifest["checkpoint"]["step"] == step
    train(stopping(**keys), run, source=stopping_after(0))  # finished, so that no batch is drawn


def test_a_killed_run_ends_where_it_would_have_ended(tmp_path: Path) -> None:
    """Killed after its second step, and again after its last checkpoint, before the manifest says that it is complete."""
    config, run = stopping(steps=4), tmp_path / "killed"
    with pytest.raises(Interrupted):
        train(config, run, source=stopping_after(2))
    train(config, run, source=SYNTHETIC)
    finished = read_json(run / "manifest.json")
    write_json(run / "manifest.json", {**finished, "status": "running"})
    train(config, run, source=stopping_after(0))
    again = read_json(run / "manifest.json")
    for manifest in (finished, again):
        assert (manifest["status"], manifest["steps"], manifest["ended_by"]) == ("complete", 4, "steps")
    assert again["validation_loss_nats"] == finished["validation_loss_nats"]


def test_training_ends_at_the_first_low_loss_however_little_it_fell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loss is less than 1% below the first. Killed before the manifest says so, the run takes no further step."""
    losses = iter([1.003, 1.001, 0.9995, 0.999])
    monkeypatch.setattr(loop, "evaluate", lambda state, rows: Evaluation(next(losses)))
    config, run = stopping(stop_loss=1.0), tmp_path / "run"
    train(config, run, source=SYNTHETIC)
    manifest = read_json(run / "manifest.json")
    assert (manifest["steps"], manifest["ended_by"], manifest["validation_loss_nats"]) == (3, "stop_loss", 0.9995)
    write_json(run / "manifest.json", {**manifest, "status": "running"})
    train(config, run, source=stopping_after(0))
    again = read_json(run / "manifest.json")
    assert (again["status"], again["steps"], again["ended_by"]) == ("complete", 3, "stop_loss")


def test_the_ids_are_trained_with_the_tokens(predicted_run: Path, tmp_path: Path) -> None:
    """Without the weight of the position loss the run is another one, and its own metrics report the tokens alone."""
    run = tmp_path / "without"
    train(tiny(position_loss_weight=0.0), run, source=SYNTHETIC)
    with_ids, without = metrics(predicted_run), metrics(run)
    assert with_ids[0]["loss_nats"] == without[0]["loss_nats"]
    assert with_ids[-1]["loss_nats"] != without[-1]["loss_nats"]


def test_shares_of_processes_are_the_batches() -> None:
    config = tiny()
    whole = open_synthetic_data(config, ProcessInfo()).draw(4)
    halves = [open_synthetic_data(config, ProcessInfo(rank=rank, world_size=2)).draw(4) for rank in range(2)]
    for number, field in enumerate(whole.fields):
        assert torch.equal(torch.cat([half.fields[number] for half in halves]), field)
    assert [half.num_targets for half in halves] == [whole.num_targets] * 2
    uneven = dataclasses.replace(config, training=dataclasses.replace(config.training, eval_rows=12))
    rows = [open_synthetic_data(uneven, ProcessInfo(rank, 2)).evaluation_rows.like_training for rank in range(2)]
    whole_rows = open_synthetic_data(uneven, ProcessInfo()).evaluation_rows.like_training
    assert len(whole_rows.tokens_BT) == 12
    assert torch.equal(torch.cat([half.tokens_BT for half in rows]), whole_rows.tokens_BT)
    with pytest.raises(UserError, match=r"training\.eval_rows = 12: must be a multiple of the number of processes, 8"):
        open_synthetic_data(uneven, ProcessInfo(0, 8))


def test_the_task_is_said_and_recorded() -> None:
    behind = "k to 3, background noise, prompts of 4 to 8 tokens, position IDs"
    for config, task, encoding, words in (
        (tiny(), "parity with a scratchpad", "predicted, embedding absolute", ["0", "1"]),
        (tiny("pose", modulus=3), "parity modulo 3", "pose, embedding rope", ["0", "1", "2"]),
    ):
        data = open_synthetic_data(config, SINGLE_PROCESS)
        assert data.described == f"{task}, {behind} {encoding}" and data.eos_id == data.num_bos == 0
        assert data.manifest_entries["synthetic_task"] == config.synthetic.task
        assert data.manifest_entries["tokenizer_sha256"] == hashlib.sha256(data.tokenizer_text.encode()).hexdigest()
        num_noise, tokenizer = config.synthetic.num_noise, Tokenizer.from_str(data.tokenizer_text)
        expected = ["<|endoftext|>", "=", *words, *(f"n{i}" for i in range(num_noise))]
        assert [tokenizer.id_to_token(i) for i in range(data.vocab_size)] == expected
        assert tokenizer.get_vocab_size() == data.vocab_size


def test_the_memory_that_is_counted_is_that_of_the_tasks_rows(tiny_run: Path, tiny_config: Config) -> None:
    """Of 8 tokens with a query and a response of 3, without the last; not those of ``context``."""
    needed = least_bytes(tiny(), SINGLE_PROCESS, source=SYNTHETIC)
    assert needed["training.batch_rows"] == 8 * (8 + 1 + 3 - 1) * 24
    assert needed["training.micro_batch_rows or training.batch_rows"] == 8 * 11 * 8 * 4  # 8 words
    of_text = changed(tiny("pose"), {"synthetic.background": "text", "data.tokenizer": "bpe:320"})
    needed = least_bytes(of_text, SINGLE_PROCESS, source=SYNTHETIC)
    # Logits of =, two bits and EOS, too; of an answer, not of all 9 tokens.
    assert needed["training.micro_batch_rows or training.batch_rows"] == 8 * 1 * (320 + 4) * 4
    with pytest.raises(UserError, match=f"trained on text; train it with `olmo-sparsity train --run {tiny_run}`"):
        train(tiny_config, tiny_run, source=SYNTHETIC)


def train_both() -> None:
    """What each of the processes does: a run that is killed in the middle and resumed, and one from end to end.

    They share one process group, because torch does not reliably set up a second one after the first.
    """
    config, process = load_config(Path("tiny.yaml")), current_process()
    with loop.process_group(process, torch.device("cpu")):
        loop.process_group = lambda *_: contextlib.nullcontext()  # type: ignore[assignment]
        with contextlib.suppress(Interrupted):
            train(config, Path("killed"), process=process, source=stopping_after(5))
        print(sorted(path.name for path in Path("killed/checkpoints").iterdir()), flush=True)
        for name in ("killed", "whole"):
            train(config, Path(name), process=process, source=SYNTHETIC)


def test_two_processes_train_the_run_of_one_and_resume_it_exactly(predicted_run: Path, tmp_path: Path) -> None:
    """The batches are those of one process; the sums of their gradients have another order. Resuming changes no bit."""
    (tmp_path / "tiny.yaml").write_text(to_yaml(tiny()))
    both = Started(train_both, cwd=tmp_path, processes=2)
    out, errors = both.communicate()
    assert both.returncode == 0, errors
    assert "['latest', 'step3']" in out
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert metrics(killed) == metrics(whole)
    # The hash of the weights is among what the manifest records of the checkpoint.
    assert read_json(killed / "manifest.json")["checkpoint"] == read_json(whole / "manifest.json")["checkpoint"]
    moments, of_whole = weights(killed)["optim.pt"]["state"], weights(whole)["optim.pt"]["state"]
    torch.testing.assert_close(moments, of_whole, rtol=0, atol=0)
    for of_two, of_one in zip(metrics(whole), metrics(predicted_run), strict=True):
        assert of_two["loss_nats"] == pytest.approx(of_one["loss_nats"], abs=2e-5)
    for name, value in weights(predicted_run)["model.pt"].items():
        assert torch.allclose(weights(whole)["model.pt"][name], value, atol=1e-3), name


def test_another_task_does_not_resume_a_run_and_evaluation_keys_are_free(predicted_run: Path) -> None:
    with pytest.raises(UserError, match=r"synthetic\.max_sparsity = 3, not 2"):
        train(
            dataclasses.replace(tiny(), synthetic=dataclasses.replace(tiny().synthetic, max_sparsity=2)),
            predicted_run,
            source=SYNTHETIC,
        )
    free = dataclasses.replace(tiny().synthetic, test_lengths=[9], test_sparsity=[2], test_rows=3, test_seed=4)
    train(dataclasses.replace(tiny(), synthetic=free), predicted_run, source=SYNTHETIC)


def test_the_table_is_what_the_model_answers(predicted_run: Path, tmp_path: Path) -> None:
    config = tiny()
    folder = evaluate_synthetic(config, predicted_run, out=tmp_path / "whole")
    frame = read_table(folder, "answers").to_pandas()
    assert len(frame) == 40
    from olmo_sparsity.measure.synthetic_accuracy import open_synthetic_run

    model = open_synthetic_run(config, predicted_run).model
    for length in (6, 12):
        for k in (1, 3):
            responses = respond(model, evaluated_sequences(config, length, k), predict_ids=True)
            rows = frame[(frame.length_tokens == length) & (frame.sparsity == k)]
            assert rows.right.tolist() == responses.right_W.tolist()
            assert np.stack(rows.response_positions.tolist()).tolist() == responses.ids_WK.tolist()
    for one in read_synthetic([folder]).itertuples():
        rows = frame[(frame.length_tokens == one.x) & (frame.sparsity == one.k)]
        column = {"accuracy": "right", "accuracy_tokens": "tokens_right"}[one.quantity]
        assert one.value == pytest.approx(rows[column].mean())


def test_shards_make_the_same_table_and_a_rerun_does_only_what_is_missing(predicted_run: Path, tmp_path: Path) -> None:
    config = tiny()
    whole = evaluate_synthetic(config, predicted_run, out=tmp_path / "whole")
    for index in (1, 0):
        shared = evaluate_synthetic(config, predicted_run, out=tmp_path / "shared", share=Share(index, 2))
    assert read_table(shared, "answers").equals(read_table(whole, "answers"))
    assert not check_tables(shared)
    parts = sorted((shared / "answers").iterdir())
    assert len(parts) == 4
    parts[2].unlink()
    before = {path: path.stat().st_mtime_ns for path in parts if path.exists()}
    evaluate_synthetic(config, predicted_run, out=tmp_path / "shared")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert read_table(shared, "answers").equals(read_table(whole, "answers"))
    other = dataclasses.replace(config, synthetic=dataclasses.replace(config.synthetic, test_rows=7))
    with pytest.raises(UserError, match="other settings"):
        evaluate_synthetic(other, predicted_run, out=tmp_path / "shared")


def test_seeds_that_were_asked_something_else_are_not_averaged(parity_run: Path, tmp_path: Path) -> None:
    config = tiny("pose")
    folders = []
    for seed, test_lengths in enumerate(([6, 12], [6, 10])):
        asked = changed(config, {"synthetic.test_lengths": test_lengths})
        folders.append(evaluate_synthetic(asked, parity_run, out=tmp_path / f"seed{seed}"))
    manifest = read_json(folders[1] / "manifest.json")
    write_manifest(folders[1], {**manifest, "training_seed": manifest["training_seed"] + 1})
    with pytest.raises(UserError, match="evaluated on different sequences"):
        read_synthetic(folders)


def test_models_that_differ_in_more_than_the_seed_are_not_averaged(parity_run: Path, tmp_path: Path) -> None:
    folders = []
    for seed, steps in ((0, 8), (1, 9)):
        run = Path(shutil.copytree(parity_run, tmp_path / f"seed{seed}", symlinks=True))
        folders.append(evaluate_synthetic(tiny("pose"), run))
        trained, evaluated = run / "manifest.json", folders[-1] / "manifest.json"
        manifest = read_json(trained)
        manifest["config"]["training"] |= {"seed": seed, "steps": steps}
        write_json(trained, manifest)
        write_manifest(evaluated.parent, {**read_json(evaluated), "training_seed": seed})
    with pytest.raises(UserError, match=r"differ in training\.steps \(8, 9\), .*; summarize them apart$"):
        read_synthetic(folders)


def test_a_run_of_text_is_not_evaluated_and_a_synthetic_run_has_no_text(
    tiny_run: Path, parity_run: Path, tiny_config: Config
) -> None:
    with pytest.raises(UserError, match="trained on text"):
        evaluate_synthetic(tiny("pose"), tiny_run)
    with pytest.raises(UserError, match="synthetic task"):
        measure(load_config(parity_run / "config.yaml"), parity_run)


def test_a_checkpoint_of_another_run_is_not_evaluated(parity_run: Path, tmp_path: Path) -> None:
    other, mixed = tmp_path / "other", tmp_path / "mixed"
    config = tiny("pose")
    train(
        dataclasses.replace(config, training=dataclasses.replace(config.training, seed=7)),
        other,
        source=SYNTHETIC,
    )
    shutil.copytree(parity_run, mixed, symlinks=True)
    shutil.rmtree(mixed / "checkpoints")
    shutil.copytree(other / "checkpoints", mixed / "checkpoints", symlinks=True)
    with pytest.raises(UserError, match="saved this checkpoint, not this run"):
        evaluate_synthetic(config, mixed)


def test_a_run_whose_checkpoints_are_gone_is_not_trained_anew(parity_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(parity_run, run, symlinks=True)
    shutil.rmtree(run / "checkpoints")
    before = (run / "metrics.jsonl").read_bytes()
    result = CliRunner().invoke(app, ["synth", "eval", "tiny", "--run", str(run)])
    assert isinstance(result.exception, UserError)
    assert "its last checkpoint is gone" in str(result.exception)
    assert f"`olmo-sparsity synth train tiny --run {run}`" in str(result.exception)
    assert (run / "metrics.jsonl").read_bytes() == before and not (run / "checkpoints").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"synthetic.positions": "shifted"}, r"model\.position_embedding = rope: .* takes absolute"),
        ({"model.position_embedding": "absolute"}, r"synthetic\.positions = pose takes rope or none"),
        (
            {"model.position_embedding": "none", "pose.num_chunks": "1", "synthetic.positions": "randpos"},
            r"synthetic\.positions = randpos takes rope or absolute",
        ),
        ({"model.position_embedding": "none"}, r"model\.position_embedding = none: .* set pose\.num_chunks=1"),
        ({"pose.method": "randpos"}, r"RandPos as synthetic\.positions = randpos"),
        (
            {"pose.max_position": "13", "context.full_len": "13"},
            r"pose\.max_position = 13: the longest sequence has 14",
        ),
        (  # of training, where evaluation has shorter ones
            {"pose.max_position": "9", "context.full_len": "9", "synthetic.test_lengths": "[6]"},
            r"pose\.max_position = 9: the longest sequence has 10",
        ),
        *(  # a scratchpad has as many tokens as k, the largest that each is asked for
            ({"synthetic.scratchpad": "true", **changes}, message)
            for changes, message in (
                (
                    {"pose.max_position": "15", "context.full_len": "15"},
                    r"pose\.max_position = 15: the longest sequence has 16",
                ),
                (
                    {"pose.max_position": "11", "context.full_len": "11", "synthetic.test_lengths": "[6]"},
                    r"pose\.max_position = 11: the longest sequence has 12",
                ),
                ({"pose.num_chunks": "7"}, r"pose\.num_chunks = 7: must be at most 6"),
            )
        ),
        ({"synthetic.rope_scaling": "yarn"}, r"rope_scaling = yarn: .* take a run with pose\.num_chunks=1"),
        (
            {"synthetic.rope_scaling": "linear", "synthetic.positions": "randpos"},
            r"rope_scaling = linear: it scales .* not model\.position_embedding = rope with synthetic\.positions = randpos",
        ),
        ({"synthetic.rope_factor": "2"}, r"synthetic\.rope_factor = 2\.0: synthetic\.rope_scaling is none"),
        ({"pose.vary_chunks": "true"}, r"pose\.vary_chunks = True: synthetic tasks use pose\.num_chunks and"),
        ({"pose.num_chunks": "7"}, r"pose\.num_chunks = 7: must be at most 6"),
        ({"context.bos": "true"}, "no BOS"),
        ({"synthetic.test_lengths": "[2]"}, r"synthetic\.test_lengths: a prompt of 2 tokens has no room for k = 3"),
        ({"synthetic.train_lengths": "[9, 4]"}, r"synthetic\.train_lengths = \[9, 4\]: must be two positive numbers"),
        ({"synthetic.positions": "coupled"}, r"set synthetic\.scratchpad=true"),
        *(
            (
                {"synthetic.positions": given, "synthetic.scratchpad": "true"},
                rf"synthetic\.positions = {given} takes absolute",
            )
            for given in ("coupled", "predicted")
        ),
        ({"synthetic.locality": "2"}, r"synthetic\.locality = 2: too few tokens for k = 3"),
        ({"synthetic.task": "addition"}, "addition"),
    ],
    ids=lambda value: str(value),
)
def test_mistakes_of_the_configuration_are_one_line(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(to_yaml(tiny("pose")))
    with pytest.raises(UserError, match=message) as error:
        check_synthetic(load_config(path, [f"{key}={value}" for key, value in changes.items()]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("scratchpad", "max_position"), [("false", 14), ("true", 16)])
@pytest.mark.parametrize("key", ["pose.num_chunks", "pose.max_position"])
def test_as_many_chunks_and_positions_as_the_sequences_need_are_enough(
    tmp_path: Path, key: str, scratchpad: str, max_position: int
) -> None:
    """The shortest training sequence has 4 tokens, a query and an answer of one token; the longest of evaluation has 12, a query
    and an answer, which with a scratchpad takes as many tokens as the largest k."""
    path = tmp_path / "tiny.yaml"
    path.write_text(to_yaml(tiny("pose")))
    most = {"pose.num_chunks": 6, "pose.max_position": max_position}[key]
    keys = [f"{key}={most}", f"context.full_len={max_position}", f"synthetic.scratchpad={scratchpad}"]
    check_synthetic(load_config(path, keys))


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With paths of one part."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(to_yaml(tiny("pose")))
    options = ["--config", "tiny.yaml", "--run", "run"]
    result = CliRunner().invoke(app, ["synth", "eval", "tiny", *options, "--out", "answers"])
    assert result.exit_code == 0, result.output
    assert "trained on 4 to 8 tokens, k up to 3" in result.output
    assert re.search(r"^6 +[01]\.\d\d", result.output, re.MULTILINE)
    result = CliRunner().invoke(app, ["synth", "train", "unknown"])
    assert isinstance(result.exception, UserError) and "there are" in str(result.exception)
    result = CliRunner().invoke(app, ["synth", "train", "parity", *options])
    assert isinstance(result.exception, UserError) and "is of 'tiny', not of 'parity'" in str(result.exception)


@pytest.mark.parametrize("path", sorted((config_folder() / "synthetic").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_are_usable(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    check_synthetic(config)
