"""Training runs: the same bits however they are interrupted, what their folders tell, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Messages
from filelock import FileLock
from started_commands import start_command
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from watched_runs import metrics, wait_for_lines, weights

from olmo_sparsity.config import Config, PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.model.olmo import build_model, load_model, olmo_model_config
from olmo_sparsity.text.store import open_store
from olmo_sparsity.train.batches import VALIDATION_SEED, TrainingData, batch_at, open_training_text, row_source
from olmo_sparsity.train.loop import stop_signals, train


def with_training(config: Config, **keys: Any) -> Config:
    return replace(config, training=replace(config.training, **keys))


def assert_same(run: Path, other: Path) -> None:
    """Check that two runs have the same metrics, and in every byte the same weights and optimizer."""
    assert metrics(run) == metrics(other)
    for name in ("model.pt", "optim.pt", "config.yaml"):
        files = [folder / "checkpoints" / "latest" / name for folder in (run, other)]
        assert files[0].read_bytes() == files[1].read_bytes(), name


def copied(run: Path, folder: Path, *, status: str = "running", without: str = "") -> Path:
    """Copy a run as a kill may leave it: with a manifest that says ``running``, or without a checkpoint."""
    copy = Path(shutil.copytree(run, folder / "run", symlinks=True))
    write_json(copy / "manifest.json", {**read_json(copy / "manifest.json"), "status": status})
    if without:
        shutil.rmtree(copy / "checkpoints" / without)
    return copy


def test_a_run_tells_what_it_was_trained_on_and_with(tiny_run: Path, tiny_config: Config) -> None:
    manifest = read_json(tiny_run / "manifest.json")
    keys = ("status", "steps", "ended_by", "tokens")
    assert [manifest[key] for key in keys] == ["complete", 12, "steps", 12 * 16 * 8]
    (start,) = manifest["starts"]
    assert start["environment"]["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {key: start[key] for key in ("step", "device", "processes", "parallel", "threads", "precision", "compiled")} == {
        "step": 0, "device": "cpu", "processes": 1, "parallel": None, "threads": 1, "precision": "fp32", "compiled": False,
    }  # fmt: skip
    assert manifest["num_parameters"] == sum(value.numel() for value in weights(tiny_run)["model.pt"].values())
    records = metrics(tiny_run)
    assert [record["step"] for record in records] == list(range(1, 13))
    assert records[-1]["loss_nats"] < records[0]["loss_nats"] - 0.3
    assert records[5]["validation_loss_nats"] > records[11]["validation_loss_nats"] == manifest["validation_loss_nats"]
    assert records[4]["validation_loss_nats"] is None
    rates, peak = [record["learning_rate"] for record in records], tiny_config.training.learning_rate
    assert rates[:2] == pytest.approx([peak / 2, peak]) and rates[-1] == pytest.approx(
        0.05 * peak
    )  # of two steps, of all
    assert sorted(rates[1:], reverse=True) == rates[1:]
    assert sorted(path.name for path in (tiny_run / "checkpoints").iterdir()) == ["latest", "step12", "step8"]
    raw = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    assert sum(16 * 8 / record["tokens_per_second"] for record in raw) <= 1.1 * manifest["seconds"] + 0.1


def test_the_same_seed_gives_the_same_run(tiny_run: Path, tiny_config: Config, tmp_path: Path) -> None:
    """Also with gradients that are accumulated, up to the order of summation. Signals then do what they did before."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_signals() as caught:
        signal.raise_signal(signal.SIGTERM)
        assert (caught, signal.getsignal(signal.SIGTERM)) == ([signal.SIGTERM], signal.SIG_DFL)  # a second one ends it
    train(tiny_config, tmp_path / "again")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not torch.are_deterministic_algorithms_enabled()
    assert_same(tmp_path / "again", tiny_run)
    train(with_training(tiny_config, micro_batch_rows=4), tmp_path / "split")
    losses = [[record["loss_nats"] for record in metrics(run)] for run in (tmp_path / "split", tiny_run)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and losses[0] != losses[1]
    train(with_training(tiny_config, seed=1, steps=1), tmp_path / "other")
    assert metrics(tmp_path / "other")[0]["loss_nats"] != losses[1][0]


def test_the_first_steps_are_adamw_on_clipped_gradients(tiny_run: Path, tiny_config: Config, tmp_path: Path) -> None:
    """Two steps of torch's unfused AdamW, on batches that are drawn here, at the rates of the metrics."""
    config = with_training(tiny_config, steps=2)
    train(config, tmp_path / "run")
    folder = Path(read_json(tiny_run / "manifest.json")["token_store"])
    vocab = read_json(folder / "manifest.json")
    model = build_model(olmo_model_config(config, vocab_size=vocab["vocab_size"], eos_id=vocab["eos_id"]), 0)
    source = row_source(open_store(folder, "train"), row_len=8, max_position=20)
    groups = [
        {"params": [one for one in model.parameters() if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in model.parameters() if one.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=False)
    for step, record in enumerate(metrics(tmp_path / "run")):
        batch = batch_at(source, config.pose, num_rows=16, seed=0, step=step)
        logits = model(batch.tokens_BT, batch.positions_BT)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert (record["loss_nats"], record["grad_norm"]) == pytest.approx(
            (float(loss.detach()), float(norm)), rel=1e-4
        )
        for group in optimizer.param_groups:
            group["lr"] = record["learning_rate"]
        optimizer.step()
        optimizer.zero_grad()
    for name, value in weights(tmp_path / "run")["model.pt"].items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-5), name


@pytest.mark.parametrize("num_bos", [0, 1])
def test_held_out_losses_are_those_of_the_model(request: pytest.FixtureRequest, num_bos: int) -> None:
    """By position of consecutive text, token by token; a BOS has no loss of its own, and shifts no position."""
    run: Path = request.getfixturevalue("bos_run" if num_bos else "tiny_run")
    record, config = metrics(run)[-1], request.getfixturevalue("tiny_config")
    store = open_store(Path(read_json(run / "manifest.json")["token_store"]), "validation")
    eos_id = int(store.tokens[int(store.ends_G[0]) - 1])
    model = load_model(run / "checkpoints" / "latest", torch.device("cpu"))
    rows = row_source(store, row_len=8, max_position=20, bos_id=eos_id if num_bos else None)
    batch = batch_at(rows, config.pose, num_rows=32, seed=VALIDATION_SEED, step=0)
    log_q = model(batch.tokens_BT, batch.positions_BT)[:, num_bos:].log_softmax(-1)
    expected = -float(log_q.gather(2, batch.targets_BT[:, num_bos:, None]).mean())
    assert record["validation_loss_nats"] == pytest.approx(expected, abs=1e-5)
    rows = row_source(store, row_len=20, max_position=20)
    drawn = batch_at(rows, PoseConfig(num_chunks=1), num_rows=32, seed=VALIDATION_SEED, step=1)
    text = torch.cat([drawn.tokens_BT, drawn.targets_BT[:, -1:]], dim=1)
    losses = []
    for position in range(20):
        seen = torch.nn.functional.pad(text[:, : position + 1], (num_bos, 0), value=eos_id)
        log_q = model(seen, torch.arange(seen.shape[1]).expand(32, -1))[:, -1].log_softmax(-1)
        losses.append(float(-log_q.gather(1, text[:, position + 1, None]).mean()))
    assert record["loss_by_position_nats"] == pytest.approx(losses, abs=1e-5) and max(losses) - min(losses) > 0.05
    assert record["loss_within_train_len_nats"] == pytest.approx(sum(losses[:8]) / 8, abs=1e-5)
    assert record["loss_beyond_train_len_nats"] == pytest.approx(sum(losses[8:]) / 12, abs=1e-5)


def test_without_rows_there_are_no_losses_by_position(
    tiny_config: Config, tiny_run: Path, tmp_path: Path, messages: Messages
) -> None:
    """Nothing lies beyond a row as long as the full context; no document is as long as another one."""
    store = open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "validation")
    for name, train_len, full_len in (("ceiling", 20, 20), ("long", 8, int(store.lengths_G.max()))):
        context = replace(tiny_config.context, train_len=train_len, full_len=full_len)
        pose = replace(tiny_config.pose, num_chunks=train_len)  # each token a chunk
        train(with_training(replace(tiny_config, context=context, pose=pose), steps=1), tmp_path / name)
        (record,) = metrics(tmp_path / name)
        assert record["loss_beyond_train_len_nats"] is None
        assert (record["loss_by_position_nats"] is None) == (name == "long")
    assert [line for line in messages if "held-out" in line] == [
        "0 held-out documents, 50 needed for intervals: use more or longer text, or shorter windows"
    ]
    messages.clear()
    longest = int(store.lengths_G.max())
    for less in (1, 2):  # the last token of a document, which ends it, is no target
        open_training_text(replace(tiny_config, context=replace(tiny_config.context, full_len=longest - less)))
    counts = [line.partition(" held-out")[0] for line in messages if "held-out" in line]
    assert counts == ["0", str(int((store.lengths_G == longest).sum()))]


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_resumes_exactly(
    messages: Messages, tiny_yaml: Path, tmp_path: Path, stop: signal.Signals, long_run: tuple[Config, Path]
) -> None:
    config, whole = long_run
    run, keys = tmp_path / "stopped", (f"training.steps={LONG}", "training.checkpoint_every=20")
    process = start_command("train", "--config", str(tiny_yaml), "--run", str(run), *keys, cwd=tmp_path)
    wait_for_lines(run, process, 26)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == (-9 if stop is signal.SIGKILL else 130), errors
    assert ("resumes from there" in errors) == (stop is not signal.SIGKILL) and "Traceback" not in errors
    assert read_json(run / "manifest.json")["status"] == "running"
    messages.clear()
    train(config, run)
    assert any("resuming at step" in line for line in messages)
    assert_same(run, whole)
    first, second = read_json(run / "manifest.json")["starts"]
    assert first["step"] == 0 and 20 <= second["step"] < LONG


LONG = 150


@pytest.fixture(scope="module")
def long_run(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """A configuration that trains long enough to be stopped in the middle, and its run."""
    config, run = with_training(tiny_config, steps=LONG, checkpoint_every=20), tmp_path_factory.mktemp("long") / "run"
    train(config, run)
    return config, run


@pytest.mark.parametrize("cut", [(), ("step12",), ("step12", "step8")])
@pytest.mark.parametrize("status", ["running", "complete"])
def test_training_resumes_from_the_newest_intact_checkpoint(
    messages: Messages, tiny_run: Path, tiny_config: Config, tmp_path: Path, status: str, cut: tuple[str, ...]
) -> None:
    run = copied(tiny_run, tmp_path, status=status)
    for name in cut:
        path = run / "checkpoints" / name / "optim.pt"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    leftover = run / ".manifest.json.0a1b2c3d.partial"
    if cut == ("step12", "step8") and status == "running":
        with pytest.raises(
            UserError, match="all of its checkpoints are damaged; restore one, or train again with --over"
        ):
            train(tiny_config, run)
        train(tiny_config, run, overwrite=True)
    elif status == "running":
        leftover.write_text("{")
        shutil.copytree(run / "checkpoints" / "step8", run / "checkpoints" / "step4")
        train(tiny_config, run)
        assert not leftover.exists()
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["latest", "step12", "step8"]
        assert any("damaged, so training resumes from an earlier" in line for line in messages) == bool(cut)
        assert any(f"resuming at step {8 if cut else 12}" in line for line in messages)
        assert [start["step"] for start in read_json(run / "manifest.json")["starts"]] == [0, 8 if cut else 12]
    else:  # a finished run is left as it is
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        train(tiny_config, run)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        return
    assert read_json(run / "manifest.json")["status"] == "complete"
    assert_same(run, tiny_run)


def test_device_and_threads_may_change_and_each_start_is_recorded(
    messages: Messages, tiny_run: Path, tiny_config: Config, tmp_path: Path
) -> None:
    run = copied(tiny_run, tmp_path, without="step12")
    before = read_json(run / "manifest.json")["starts"]
    try:
        train(with_training(tiny_config, threads=2, device="cpu", parallel="fsdp", checkpoint_every=1), run)
    finally:
        torch.set_num_threads(1)
    starts = read_json(run / "manifest.json")["starts"]
    assert starts[:-1] == before and (starts[-1]["step"], starts[-1]["threads"]) == (8, 2)
    assert any("resumed with threads 2, not 1: the last bits of its weights will differ" in line for line in messages)
    last = [json.loads(line)["loss_nats"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert last == pytest.approx([record["loss_nats"] for record in metrics(tiny_run)], abs=1e-4)
    assert (run / "config.yaml").read_text() == (tiny_run / "config.yaml").read_text()  # that of its beginning


@pytest.mark.parametrize(("stop_loss", "steps"), [(100.0, 1), (5.6, 4), (0.01, 8)])
def test_training_ends_at_the_first_low_held_out_loss(
    tiny_config: Config, tmp_path: Path, stop_loss: float, steps: int
) -> None:
    """Killed before the manifest says so, a run takes no further step."""
    config, run = with_training(tiny_config, steps=8, eval_every=1, stop_loss=stop_loss), tmp_path / "run"
    train(config, run)
    manifest, losses = read_json(run / "manifest.json"), [line["validation_loss_nats"] for line in metrics(run)]
    assert len(losses) == manifest["steps"] == manifest["checkpoint"]["step"] == steps
    assert min([999.0, *losses[:-1]]) > stop_loss and (losses[-1] <= stop_loss) == (steps < 8)
    assert manifest["ended_by"] == ("stop_loss" if steps < 8 else "steps")
    write_json(run / "manifest.json", {**manifest, "status": "running"})
    train(config, run)
    again = read_json(run / "manifest.json")
    for key in ("status", "steps", "ended_by", "validation_loss_nats", "checkpoint", "tokens"):
        assert again[key] == manifest[key]
    assert 0 < manifest["seconds"] < 600 and 0 < again["seconds"] < 600


def test_overwrite_starts_again_and_leaves_what_is_not_of_the_run(
    messages: Messages, tiny_run: Path, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a link, too; what torchrun has restarted resumes, because the first start has deleted the run."""
    run = copied(tiny_run, tmp_path, status="complete")
    (run / "notes.txt").write_text("mine")
    (run / "config.yaml").write_text("name: earlier\n")
    (tmp_path / "link").symlink_to(run)
    train(tiny_config, tmp_path / "link", overwrite=True)
    assert_same(run, tiny_run)
    assert (run / "config.yaml").read_text() == (tiny_run / "config.yaml").read_text()
    said = "\n".join(messages)
    assert "deleting the earlier run (--overwrite)" in said and "compiling" not in said
    assert "below 20; cpu, fp32, not compiled" in said and "trained 12 steps, 1,536 tokens; validation loss " in said
    assert (run / "notes.txt").read_text() == "mine" and not (tmp_path / ".run.lock").exists()
    assert read_json(run / "manifest.json")["run_id"] != read_json(tiny_run / "manifest.json")["run_id"]
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("TORCHELASTIC_RESTART_COUNT", "1")):
        monkeypatch.setenv(name, value)
    messages.clear()
    train(tiny_config, run, overwrite=True)
    assert "torchrun has restarted this training, so it resumes" in messages[0] and "already trained" in messages[1]


REFUSED: dict[str, tuple[Callable[[Config, Path], object], dict[str, Any], str]] = {
    "another experiment": (lambda *_: 0, {"seed": 3}, r"made with training\.seed = 0, not 3; choose another folder"),
    "a device that is not there": (lambda *_: 0, {"device": "cuda:77"}, "this machine has no such device"),
    "a tracker": (lambda *_: 0, {"trackers": ["wandb"]}, "wandb is not installed; run pip install 'olmo-sparsity"),
    "a foreign folder": (lambda _, run: (run / "manifest.json").unlink(), {}, "is no run folder of olmo-sparsity"),
    "a measurement": (
        lambda _, run: write_json(run / "manifest.json", {"kind": "influence"}), {}, "is no run folder",
    ),
    "damaged metrics": (lambda _, run: (run / "metrics.jsonl").write_text('{"steps": 1}\n'), {}, r"metrics\.jsonl:1"),
    **{
        f"no {key}": (
            lambda _, run, key=key, status=status: write_json(
                run / "manifest.json", {**read_json(run / "manifest.json"), "status": status, key: None}
            ), {}, f"key {key} is missing",
        )
        for key, status in (("config", "running"), ("starts", "running"), ("steps", "complete"))
    },
    "another's checkpoint": (
        lambda _, run: write_json(run / "manifest.json", {**read_json(run / "manifest.json"), "run_id": "0a1b"}), {},
        "saved this checkpoint, not this run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_one_line_and_changes_nothing(
    name: str, tiny_run: Path, tiny_config: Config, tmp_path: Path
) -> None:
    spoil, keys, message = REFUSED[name]
    run = copied(tiny_run, tmp_path)
    spoil(tiny_config, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "manifest.json"}
    with pytest.raises(UserError, match=message) as refused:
        train(with_training(tiny_config, **keys), run)
    assert "\n" not in str(refused.value)
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "manifest.json"}
    assert before == after


def test_a_run_whose_text_has_changed_is_not_resumed(tiny_config: Config, tmp_path: Path) -> None:
    source, run = tmp_path / "words.jsonl", tmp_path / "run"
    lines = Path(tiny_config.data.source).read_text().splitlines(keepends=True)
    source.write_text("".join(lines))
    config = replace(tiny_config, data=replace(tiny_config.data, source=str(source)))
    train(with_training(config, steps=1), run)
    write_json(run / "manifest.json", {**read_json(run / "manifest.json"), "status": "running"})
    tokens = next(Path(read_json(run / "manifest.json")["token_store"]).glob("train/*.bin"))
    tokens.write_bytes(bytes(tokens.stat().st_size))
    with pytest.raises(UserError, match="other contents than were written there"):
        train(with_training(config, steps=1), run)
    source.write_text("".join(lines[5:]))
    with pytest.raises(UserError, match="its text has changed since training began; choose another folder with --run"):
        train(with_training(config, steps=1), run)


def test_only_one_process_trains_a_run_at_a_time(tiny_run: Path, tiny_config: Config, tmp_path: Path) -> None:
    """A second one fails at once, also if it names the folder by a link; the first holds the lock while it opens its text."""
    run = copied(tiny_run, tmp_path, without="step12")
    (tmp_path / "link").symlink_to(run)
    before = sorted(run.rglob("*"))
    with FileLock(tmp_path / ".run.lock"):
        for name in ("run", "link"):
            with pytest.raises(
                UserError, match=f"^{tmp_path / name}: another process is training this run; wait for it"
            ):
                train(tiny_config, tmp_path / name)
    assert sorted(run.rglob("*")) == before

    def open_slowly(config: Config) -> TrainingData:
        with pytest.raises(UserError, match="another process is training this run"):
            train(tiny_config, tmp_path / "new")
        return open_training_text(config)

    train(with_training(tiny_config, steps=1), tmp_path / "new", open_data=open_slowly)


@pytest.mark.parametrize(
    "keys", [{"learning_rate": 1e30, "warmup_steps": 0}, {"learning_rate": 1e18, "eval_every": 1, "warmup_steps": 0}]
)
def test_a_loss_that_is_not_finite_stops_the_run(tiny_config: Config, tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"at step [1-5] the loss is .* lower training\.learning_rate"):
        train(with_training(tiny_config, checkpoint_every=100, **keys), tmp_path / "wild")
    assert not list((tmp_path / "wild").glob("checkpoints/*"))


@pytest.mark.slow
@pytest.mark.needs("a C++ compiler")
def test_compiled_on_two_threads_a_run_is_the_same_bit_for_bit(
    tiny_config: Config, tmp_path: Path, messages: Messages
) -> None:
    """With enough rows that both threads add to the same embeddings in the compiled backward pass; in bf16."""
    config = with_training(
        tiny_config, steps=6, eval_every=6, batch_rows=1024, compile="always", threads=2, precision="bf16"
    )
    config = replace(config, model=replace(config.model, n_layers=1))  # a second one takes the compiler as long again
    try:
        for name in ("one", "two"):
            train(config, tmp_path / name)
    finally:
        torch.set_num_threads(1)
    assert_same(tmp_path / "two", tmp_path / "one")
    assert sum("compiling; the first step takes up to minutes" in line for line in messages) == 2


def test_tensorboard_gets_the_numbers_of_metrics_jsonl(tiny_config: Config, tmp_path: Path) -> None:
    """Also after a kill, which leaves lines behind the checkpoint."""
    config, run = with_training(tiny_config, trackers=["tensorboard"]), tmp_path / "run"
    train(config, run)
    write_json(run / "manifest.json", {**read_json(run / "manifest.json"), "status": "running"})
    shutil.rmtree(run / "checkpoints" / "step12")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 13, "lo')
    train(config, run)
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    for key in ("loss_nats", "validation_loss_nats", "loss_beyond_train_len_nats"):
        expected = [(record["step"], record[key]) for record in metrics(run) if record[key] is not None]
        written = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events.Scalars(key)]
        assert written == expected
