from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Messages
from filelock import FileLock
from started_commands import start_command
from watched_runs import metrics, wait_for_lines, weights

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, sha256_file
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.model.devices import pick_device
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.text.store import open_store
from olmo_sparsity.torchrun import SINGLE_PROCESS, ProcessInfo
from olmo_sparsity.train import loop
from olmo_sparsity.train.batches import batch_at, row_source
from olmo_sparsity.train.data import TEXT, VALIDATION_SEED, TrainingData
from olmo_sparsity.train.evaluation import Evaluation
from olmo_sparsity.train.loop import train
from olmo_sparsity.train.run import LoopState
from olmo_sparsity.train.run_folder import begin_run
from olmo_sparsity.train.step import build_schedule


def assert_equal(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


def test_the_loss_falls_and_the_folder_is_complete(tiny_run: Path, tiny_config: Config) -> None:
    manifest = read_json(tiny_run / "manifest.json")
    assert manifest["status"] == "complete"
    assert manifest["tokens"] == 12 * 16 * 8
    recorded = manifest["environment"]["packages"]["torch"]  # wheels of PyPI do not name their CUDA there
    assert recorded.partition("+")[0] == torch.__version__.partition("+")[0]
    assert all(manifest["environment"]["packages"].values())
    assert {key: manifest[key] for key in ("device", "processes", "parallel", "precision", "compiled", "ended_by")} == {
        "device": "cpu", "processes": 1, "parallel": None, "precision": "fp32", "compiled": False, "ended_by": "steps",
    }  # fmt: skip
    assert manifest["num_parameters"] == sum(value.numel() for value in weights(tiny_run)["model.pt"].values())
    records = metrics(tiny_run)
    assert [r["step"] for r in records] == list(range(1, 13))
    assert records[-1]["loss_nats"] < records[0]["loss_nats"] - 0.3
    assert records[5]["validation_loss_nats"] > records[11]["validation_loss_nats"]
    assert records[4]["validation_loss_nats"] is None
    rates = [r["learning_rate"] for r in records]
    assert max(rates) == pytest.approx(tiny_config.training.learning_rate)
    assert rates[0] < rates[1] < rates[2] > rates[-1]
    schedule, highest = build_schedule(tiny_config.training), tiny_config.training.learning_rate
    assert rates == [
        schedule.get_lr(highest, step, 12) for step in range(12)
    ]  # a step has the rate of the steps before it


def test_the_same_config_gives_the_same_run_bit_for_bit(tiny_run: Path, tiny_config: Config, tmp_path: Path) -> None:
    train(tiny_config, tmp_path / "again")
    assert metrics(tmp_path / "again") == metrics(tiny_run)
    assert_equal(weights(tmp_path / "again"), weights(tiny_run))
    other = dataclasses.replace(tiny_config, training=dataclasses.replace(tiny_config.training, seed=1))
    train(other, tmp_path / "other")
    assert metrics(tmp_path / "other")[0]["loss_nats"] != metrics(tiny_run)[0]["loss_nats"]


def test_compiled_on_two_threads_a_run_is_the_same_bit_for_bit(tiny_config: Config, tmp_path: Path) -> None:
    """With enough rows that both threads add to the same embeddings in the compiled backward pass.

    One layer is enough: a second one takes the compiler as long again.
    """
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("torch.compile needs a C++ compiler, which this machine does not have")
    settings = dataclasses.replace(
        tiny_config.training, steps=12, batch_rows=1024, compile="always", threads=2, precision="bf16", log_every=1
    )
    config = dataclasses.replace(
        tiny_config, training=settings, model=dataclasses.replace(tiny_config.model, n_layers=1)
    )
    try:
        for name in ("one", "two"):
            train(config, tmp_path / name)
    finally:
        torch.set_num_threads(1)
    assert metrics(tmp_path / "two") == metrics(tmp_path / "one")
    assert_equal(weights(tmp_path / "two"), weights(tmp_path / "one"))


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_resumes_exactly(
    messages: Messages, tiny_run: Path, tiny_yaml: Path, tiny_config: Config, tmp_path: Path, stop: signal.Signals
) -> None:
    run = tmp_path / "stopped"
    process = start_command("train", "--config", str(tiny_yaml), "--run", str(run), cwd=tmp_path, pause=0.15)
    wait_for_lines(run, process, 6)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == (-9 if stop is signal.SIGKILL else 130), errors
    if stop is not signal.SIGKILL:
        assert "resumes from there" in errors
        assert "Traceback" not in errors
    assert read_json(run / "manifest.json")["status"] == "running"
    messages.clear()
    train(tiny_config, run)
    assert any("resuming at step" in line for line in messages)
    assert metrics(run) == metrics(tiny_run)
    assert_equal(weights(run), weights(tiny_run))


OF_THE_CLOCK = {"manifest.json", "metrics.jsonl"}  # hold speeds and times; of train.json its hashes are compared


def file_hashes(run: Path) -> dict[str, Any]:
    """Return what each file of a run holds: its SHA-256, of ``train.json`` all but the time that it took and the run's ID."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {
        str(path.relative_to(run)): {
            key: value for key, value in read_json(path).items() if key not in ("seconds", "run_id")
        }
        if path.name == "train.json"
        else sha256_file(path)
        for path in files
        if path.name not in OF_THE_CLOCK
    }


@pytest.mark.parametrize("step", [4, 8])
def test_a_resumed_run_has_the_bytes_of_one_that_was_not_interrupted(
    step: int, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file, ``optim.pt`` and the hashes in ``train.json`` included."""
    kept = dataclasses.replace(tiny_config, training=dataclasses.replace(tiny_config.training, keep_checkpoints=9))
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(kept, whole)
    with monkeypatch.context() as patch:

        def killed(run: Any, state: Any) -> None:
            save(run, state)
            if state.step == step:
                raise KeyboardInterrupt  # as a kill right behind the checkpoint

        save = loop._save
        patch.setattr(loop, "_save", killed)
        with pytest.raises(KeyboardInterrupt):
            train(kept, resumed)
    train(kept, resumed)
    assert {f"checkpoints/step{saved}/optim.pt" for saved in (4, 8, 12)} <= set(file_hashes(whole))
    assert file_hashes(resumed) == file_hashes(whole)
    assert metrics(resumed) == metrics(whole)


def test_a_finished_run_is_not_changed_and_another_config_is_an_error(
    messages: Messages, tiny_run: Path, tiny_config: Config
) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*") if path.is_file()}
    messages.clear()
    train(tiny_config, tiny_run)
    assert "already trained" in messages[0]
    changed = dataclasses.replace(tiny_config, pose=dataclasses.replace(tiny_config.pose, num_chunks=2))
    with pytest.raises(UserError, match=r"pose\.num_chunks = 3, not 2"):
        train(changed, tiny_run)
    assert {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*") if path.is_file()} == before


def test_a_folder_that_is_not_ours_is_not_changed(tiny_config: Config, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="is no run folder of olmo-sparsity"):
            train(tiny_config, tmp_path, overwrite=overwrite)
    for manifest in ('{"name": "my extension"}', '{"kind": "influence"}'):
        (tmp_path / "manifest.json").write_text(manifest)
        for overwrite in (False, True):
            with pytest.raises(UserError, match="is no run folder of olmo-sparsity"):
                train(tiny_config, tmp_path, overwrite=overwrite)
    with pytest.raises(UserError, match="this is a file"):
        train(tiny_config, tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_overwrite_starts_again(messages: Messages, tiny_run: Path, tiny_config: Config, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run", symlinks=True))
    (run / "figures").mkdir()
    messages.clear()
    train(tiny_config, run, overwrite=True)
    assert messages[0] == f"{run}: deleting the earlier run (--overwrite)"
    assert not (run / "figures").exists()
    assert_equal(weights(run), weights(tiny_run))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_torchrun_has_restarted_resumes(
    messages: Messages, tiny_run: Path, tiny_config: Config, tmp_path: Path
) -> None:
    """The first start has deleted the earlier run; a later one would delete what the first has trained."""
    run = Path(shutil.copytree(tiny_run, tmp_path / "run", symlinks=True))
    (run / "figures").mkdir()
    messages.clear()
    train(tiny_config, run, overwrite=True, process=dataclasses.replace(SINGLE_PROCESS, restarts=1))
    assert messages[0] == (
        f"{run}: torchrun has restarted this training, so it resumes; --overwrite is not applied again"
    )
    assert (run / "figures").exists() and not any("deleting" in line for line in messages)


def test_overwrite_of_a_linked_folder_keeps_the_link(tiny_run: Path, tiny_config: Config, tmp_path: Path) -> None:
    real = Path(shutil.copytree(tiny_run, tmp_path / "real", symlinks=True))
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "real.deleted").mkdir()
    train(tiny_config, tmp_path / "link", overwrite=True)
    assert_equal(weights(real), weights(tiny_run))
    assert (tmp_path / "real.deleted").is_dir()


def test_a_run_killed_before_it_was_marked_complete_is_completed(
    tiny_run: Path, tiny_config: Config, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run", symlinks=True))
    manifest = read_json(run / "manifest.json")
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    shutil.copytree(run / "checkpoints" / "step8", run / "checkpoints" / "step4", dirs_exist_ok=True)
    kept = tiny_config.training.keep_checkpoints
    train(tiny_config, run)
    assert len(list((run / "checkpoints").glob("step*"))) == kept
    assert read_json(run / "manifest.json")["run_id"] == manifest["run_id"]
    assert read_json(run / "manifest.json")["status"] == "complete"
    assert read_json(run / "manifest.json")["validation_loss_nats"] == manifest["validation_loss_nats"]


def test_a_run_killed_before_its_manifest_was_written_is_trained(
    tiny_run: Path, tiny_config: Config, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "manifest.json.partial").write_text("{")
    train(tiny_config, run)
    assert_equal(weights(run), weights(tiny_run))
    assert (run / "config.yaml").read_text() == (tiny_run / "config.yaml").read_text()


def test_the_validation_loss_is_that_of_held_out_rows(tiny_run: Path, tiny_config: Config) -> None:
    folder = Path(read_json(tiny_run / "manifest.json")["token_store"])
    source = row_source(open_store(folder, "validation"), row_len=8, max_position=20)
    batch = batch_at(source, tiny_config.pose, num_rows=32, seed=VALIDATION_SEED, step=0)
    model = load_model(tiny_run / "checkpoints" / "latest", torch.device("cpu"))
    with torch.no_grad():
        log_q = model(batch.tokens_BT, batch.positions_BT).log_softmax(-1)
    expected = -float(log_q.gather(2, batch.targets_BT[..., None]).mean())
    assert metrics(tiny_run)[-1]["validation_loss_nats"] == pytest.approx(expected, abs=1e-5)


def test_one_step_is_adamw_on_clipped_gradients(tiny_config: Config, tmp_path: Path) -> None:
    """The first step against torch's unfused AdamW, with strong weight decay and clipping."""
    settings = dataclasses.replace(
        tiny_config.training, steps=1, warmup_steps=0, max_grad_norm=0.05, weight_decay=5.0, learning_rate=1e-2
    )
    config = dataclasses.replace(tiny_config, training=settings)
    train(config, tmp_path / "run")
    manifest = read_json(tmp_path / "run" / "manifest.json")
    folder = Path(manifest["token_store"])
    vocab = read_json(folder / "manifest.json")
    model = build_model(olmo_model_config(config, vocab_size=vocab["vocab_size"], eos_id=vocab["eos_id"]), 0)
    source = row_source(open_store(folder, "train"), row_len=8, max_position=20)
    batch = batch_at(source, config.pose, num_rows=16, seed=0, step=0)
    logits = model(batch.tokens_BT, batch.positions_BT)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten()).backward()
    norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()
    assert norm > 0.05
    assert metrics(tmp_path / "run")[0]["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    for parameter in model.parameters():
        parameter.grad *= 0.05 / norm
    decayed = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 5.0}, {"params": norms, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), fused=False).step()
    for name, value in weights(tmp_path / "run")["model.pt"].items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-5), name


def test_overwrite_that_fails_early_deletes_nothing(tiny_run: Path, tiny_config: Config) -> None:
    missing = dataclasses.replace(tiny_config, data=dataclasses.replace(tiny_config.data, source="nowhere"))
    with pytest.raises(UserError, match="no such file"):
        train(missing, tiny_run, overwrite=True)
    assert read_json(tiny_run / "manifest.json")["status"] == "complete"


@pytest.mark.parametrize(
    ("status", "cut"), [("running", ("step12",)), ("running", ("step12", "step8")), ("complete", ("step12",))]
)
def test_behind_a_damaged_checkpoint_training_goes_on_once_it_is_deleted(
    messages: Messages, tiny_run: Path, tiny_config: Config, tmp_path: Path, status: str, cut: tuple[str, ...]
) -> None:
    """Training resumes from the checkpoint before, or from the start, and ends in the same run."""
    run = Path(shutil.copytree(tiny_run, tmp_path / "run", symlinks=True))
    manifest = read_json(run / "manifest.json")
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": status}))
    for name in cut:
        path = run / "checkpoints" / name / "optim.pt"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for name in cut:
        if status == "running":
            with pytest.raises(UserError, match=f"{name}/optim.pt: missing, cut short or changed .* delete .*{name}: "):
                train(tiny_config, run)
        shutil.rmtree(run / "checkpoints" / name)
    messages.clear()
    train(tiny_config, run)
    assert any("resuming at step 8" in line for line in messages) == (len(cut) == 1)
    assert metrics(run) == metrics(tiny_run)
    assert_equal(weights(run), weights(tiny_run))


def test_checkpoints_are_kept_by_count_and_by_interval(tiny_config: Config, tmp_path: Path) -> None:
    settings = dataclasses.replace(
        tiny_config.training, checkpoint_every=2, keep_checkpoints=2, keep_every=4, log_every=5
    )
    train(dataclasses.replace(tiny_config, training=settings), tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["latest", "step10", "step12", "step4", "step8"]
    assert [record["step"] for record in metrics(tmp_path / "run")] == [
        5,
        6,
        10,
        12,
    ]  # a step that is saved is not logged


def test_keys_that_change_no_weight_may_change_when_a_run_resumes(
    tiny_run: Path, tiny_config: Config, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run", symlinks=True))
    shutil.rmtree(run / "checkpoints" / "step12")
    settings = dataclasses.replace(tiny_config.training, checkpoint_every=1, keep_checkpoints=1, parallel="fsdp")
    train(dataclasses.replace(tiny_config, training=settings), run)
    assert_equal(weights(run), weights(tiny_run))
    assert (run / "config.yaml").read_text() == (tiny_run / "config.yaml").read_text()  # that of its beginning


def test_a_run_that_goes_on_in_another_precision_says_so(
    messages: Messages, tiny_run: Path, tiny_config: Config, tmp_path: Path
) -> None:
    """What ``auto`` chooses depends on the machine; a run that begins anew has no other one."""
    run = Path(shutil.copytree(tiny_run, tmp_path / "run", symlinks=True))
    manifest = read_json(run / "manifest.json")
    changed = {**manifest, "status": "running", "precision": "bf16", "compiled": True}
    named = {"tokenizer_text": "", "manifest": manifest, "overwrite": False}
    told = {}
    for begun, stored in (("so", manifest), ("otherwise", changed), ("anew", changed)):
        (run / "manifest.json").write_text(json.dumps(stored))
        messages.clear()
        begin_run(tiny_config, run, resumes=begun != "anew", **named)
        told[begun] = list(messages)
    auto = f"{run}: training.{{}} = auto: {{}} here and was {{}} where this run began, so it will end with other weights than"
    auto = f"{auto} there"
    assert told == {
        "so": [],
        "otherwise": [
            auto.format("precision", "precision is 'fp32'", "'bf16'"),
            auto.format("compile", "compiled is False", "True"),
        ],
        "anew": [],
    }


def test_gradient_accumulation_gives_the_same_step(tiny_config: Config, tmp_path: Path, tiny_run: Path) -> None:
    split = dataclasses.replace(tiny_config, training=dataclasses.replace(tiny_config.training, micro_batch_rows=4))
    train(split, tmp_path / "split")
    for split_line, line in zip(metrics(tmp_path / "split"), metrics(tiny_run), strict=True):
        assert split_line["loss_nats"] == pytest.approx(line["loss_nats"], abs=1e-4)


def test_only_one_process_trains_a_run_at_a_time(tiny_run: Path, tiny_config: Config, tmp_path: Path) -> None:
    """A second process fails at once and changes nothing, also if it names the folder by a link."""
    run = Path(shutil.copytree(tiny_run, tmp_path / "run", symlinks=True))
    shutil.rmtree(run / "checkpoints" / "step12")
    (tmp_path / "link").symlink_to(run)
    before = sorted(run.rglob("*"))
    with FileLock(tmp_path / ".run.lock"):
        for name in ("run", "link"):
            said = f"^{tmp_path / name}: another process is training this run; wait for it, or choose another folder with --run"
            with pytest.raises(UserError, match=said):
                train(tiny_config, tmp_path / name)
    assert sorted(run.rglob("*")) == before
    train(tiny_config, run)
    assert_equal(weights(run), weights(tiny_run))
    assert not (tmp_path / ".run.lock").exists()


def test_a_run_that_another_training_made_meanwhile_is_not_taken_over(tiny_config: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def open_late(config: Config, process: ProcessInfo) -> TrainingData:
        train(tiny_config, run)  # while the text of the other is prepared
        return TEXT.open(config, process)

    other = dataclasses.replace(tiny_config, training=dataclasses.replace(tiny_config.training, seed=7))
    with pytest.raises(UserError, match=r"made with training\.seed = 0, not 7"):
        train(other, run, source=dataclasses.replace(TEXT, open=open_late))
    manifest = read_json(run / "manifest.json")
    assert (manifest["status"], manifest["config"]["training"]["seed"]) == ("complete", 0)


def test_a_loss_that_is_not_finite_stops_the_run(tiny_config: Config, tmp_path: Path) -> None:
    wild = dataclasses.replace(
        tiny_config.training, learning_rate=1e30, max_grad_norm=1e30, warmup_steps=0, checkpoint_every=100
    )
    with pytest.raises(UserError, match=r"at step [23] the loss is .*(nan|inf)"):
        train(dataclasses.replace(tiny_config, training=wild), tmp_path / "wild")


@pytest.mark.parametrize("nats", [math.nan, math.inf])
def test_a_validation_loss_that_is_not_finite_stops_the_run(
    nats: float, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step before an evaluation may have spoilt the weights, after a loss of its own that was finite."""
    monkeypatch.setattr(loop, "evaluate", lambda *_: Evaluation(nats))
    config = dataclasses.replace(
        tiny_config, training=dataclasses.replace(tiny_config.training, eval_every=1, checkpoint_every=1)
    )
    with pytest.raises(UserError, match=rf"run: at step 1 the loss is {nats} and the gradient norm [0-9.]+; lower "):
        train(config, tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ""


def test_a_gradient_that_is_not_finite_stops_the_run(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = loop.train_step
    monkeypatch.setattr(loop, "train_step", lambda *of, **how: (step(*of, **how)[0], torch.tensor(math.nan)))
    with pytest.raises(UserError, match=r"run: at step 1 the loss is [0-9.]+ and the gradient norm nan; lower "):
        train(tiny_config, tmp_path / "run")


def test_a_run_whose_text_has_changed_is_not_resumed(tiny_config: Config, tmp_path: Path, corpus_file: Path) -> None:
    source = tmp_path / "words.jsonl"
    source.write_text(corpus_file.read_text())
    config = dataclasses.replace(tiny_config, data=dataclasses.replace(tiny_config.data, source=str(source)))
    train(config, tmp_path / "run")
    manifest = read_json(tmp_path / "run" / "manifest.json")
    (tmp_path / "run" / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    source.write_text("".join(corpus_file.read_text().splitlines(keepends=True)[5:]))
    said = f"^{tmp_path / 'run'}: its text has changed since training began; choose another folder with --run DIR$"
    with pytest.raises(UserError, match=said):
        train(config, tmp_path / "run")


def test_what_is_due_after_a_step(tiny_config: Config) -> None:
    """Intervals of which none divides another; the last step is always evaluated, logged and saved."""
    training = dataclasses.replace(tiny_config.training, steps=61, log_every=3, eval_every=4, checkpoint_every=5)
    evaluated = {*range(4, 61, 4), 61}
    logged, saved = evaluated | {*range(3, 61, 3)}, {*range(5, 61, 5), 61}
    for step in range(1, 62):
        due = loop._due_after(step, training, interrupted=False)
        assert (due.evaluate, due.log, due.save, due.stop) == (step in evaluated, step in logged, step in saved, False)
        stopped = loop._due_after(step, training, interrupted=True)
        assert stopped == dataclasses.replace(due, save=True, stop=True)


@pytest.mark.parametrize(
    ("step", "newest", "keys", "end"),
    [
        (6, 0.498, {}, None),
        (6, 0.498, {"stop_loss": 0.498}, "stop_loss"),
        (6, 0.498, {"stop_loss": 0.497}, None),
        (6, 0.502, {"stop_loss": 0.5}, None),
        (6, None, {"stop_loss": 9.0}, None),
        (12, 0.498, {"stop_loss": 0.498}, "steps"),
        (12, None, {}, "steps"),
    ],
)
def test_why_training_ends(
    step: int, newest: float | None, keys: dict[str, Any], end: str | None, tiny_config: Config
) -> None:
    state = LoopState(step=step, newest_loss_nats=newest)
    assert state.end(dataclasses.replace(tiny_config.training, **keys)) == end


@pytest.mark.parametrize("device", ["cuda:7", "gpu", "tpu:0"])
def test_a_device_that_does_not_exist(tiny_config: Config, tmp_path: Path, device: str) -> None:
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    elsewhere = dataclasses.replace(tiny_config, training=dataclasses.replace(tiny_config.training, device=device))
    with pytest.raises(UserError, match="this machine has no such device"):
        train(elsewhere, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_gpu_number_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [pick_device(f"cuda{number}") for number in ("", ":0", ":3")] == [
        torch.device(f"cuda{n}") for n in ("", ":0", ":3")
    ]
    for name in ("cuda:4", "cuda:", "cuda:x", "cuda:-1", "tpu:0", "xpu:3", "cpu:0"):
        with pytest.raises(UserError, match=f"{name}: this machine has no such device"):
            pick_device(name)
