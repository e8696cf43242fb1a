"""Training: losses and weights of twelve steps, resumed after SIGKILL, on two processes; export."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from guard_commands import Command, run
from guard_tables import assert_numbers

from olmo_sparsity.api import losses, open_model, windows_from_texts

TWELVE = ["training.steps=12", "training.checkpoint_every=12", "training.eval_every=6"]
SETTINGS = {
    "matched": ["training.z_loss=1e-4", "training.scheduler=linear_with_warmup"],
    "contiguous": [
        "pose.contents=contiguous", "pose.num_chunks=2", "pose.vary_chunks=false", "pose.max_position=40", "context.bos=false",
        "context.train_len=4", "training.micro_batch_rows=16", "training.seed=3",
    ],
    "randpos": [
        "pose.method=randpos", "model.layer_norm_type=default",
        "model.attention_layer_norm=true",
        "model.weight_tying=false", "training.scheduler=inverse_sqrt_with_warmup",
    ],
    "no-positions": [
        "model.position_embedding=none", "pose.num_chunks=1", "pose.vary_chunks=false", "pose.contents=contiguous",
    ],
}  # fmt: skip
ENTRIES = 16  # of each weight matrix


def train(run_folder: str, *keys: str, cwd: Path, processes: int = 1) -> None:
    config = "no-chunks.yaml" if "pose.method=randpos" in keys else "guard.yaml"
    run("train", "--config", config, "--run", run_folder, *keys, cwd=cwd, processes=processes)


def metrics(folder: Path) -> dict[str, Any]:
    """Return the losses and learning rates of each logged step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    names = ("loss_nats", "validation_loss_nats", "learning_rate")
    return {f"{line['step']}.{name}": line[name] for line in lines for name in names}


def weights(folder: Path) -> dict[str, float]:
    """Return some entries of each weight, at equal distances."""
    (checkpoint,) = {path.resolve() for path in (folder / "checkpoints").glob("step*")}
    tensors = torch.load(checkpoint / "model.pt", weights_only=True)
    sampled = {}
    for name, tensor in tensors.items():
        places = torch.linspace(0, tensor.numel() - 1, min(ENTRIES, tensor.numel())).long().tolist()
        sampled.update({f"{name}[{place}]": float(tensor.flatten()[place]) for place in places})
    return sampled


@pytest.mark.parametrize("setting", SETTINGS)
def test_twelve_steps(setting: str, workplace: Path) -> None:
    train(f"runs/{setting}", *TWELVE, *SETTINGS[setting], cwd=workplace)
    assert_numbers(f"losses-{setting}", metrics(workplace / "runs" / setting), tolerance=1e-6)
    assert_numbers(f"weights-{setting}", weights(workplace / "runs" / setting), tolerance=1e-5)


def test_killed_and_resumed(workplace: Path) -> None:
    keys = ["training.steps=40", "training.checkpoint_every=5", "training.eval_every=20"]
    train("runs/whole", *keys, cwd=workplace)
    arguments = ("train", "--config", "guard.yaml", "--run", "runs/killed", *keys)
    killed, logged = workplace / "runs" / "killed", random.randrange(3, 30)
    log = killed / "metrics.jsonl"
    Command(*arguments, cwd=workplace).kill_when(lambda: log.exists() and log.read_bytes().count(b"\n") > logged)
    run(*arguments, cwd=workplace)
    whole = workplace / "runs" / "whole"
    for name in ("model.pt", "optim.pt"):
        assert (killed / "checkpoints/step40" / name).read_bytes() == (whole / "checkpoints/step40" / name).read_bytes()
    assert metrics(killed) == metrics(whole)


def test_two_processes(workplace: Path) -> None:
    train("runs/two", *TWELVE, *SETTINGS["matched"], cwd=workplace, processes=2)
    assert_numbers("losses-matched", metrics(workplace / "runs/two"), tolerance=1e-6)


def test_export(workplace: Path) -> None:
    train("runs/olmo-norms", *TWELVE, *SETTINGS["randpos"], "model.attention_layer_norm=false", cwd=workplace)
    texts = [json.loads(line)["text"] for line in (workplace / "corpus/stories.jsonl").read_text().splitlines()[:20]]
    for name in ("guard", "olmo-norms"):
        run("export", "hf", f"runs/{name}", f"exported-{name}", cwd=workplace)
        exported = transformers.AutoModelForCausalLM.from_pretrained(
            workplace / f"exported-{name}", dtype=torch.float32
        )
        model = open_model(workplace / "runs" / name)
        windows = windows_from_texts(model, texts, num_windows=8)
        all_visible = losses(model, windows, [list(range(12))])["loss_nats"]
        frame = windows.frame
        rows = torch.tensor([[0, *tokens] for tokens in frame["token_ids"]])  # the BOS of the run is its token 0
        logits = exported(rows).logits[:, -1].double()
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(frame["target_id"]), reduction="none")
        assert all_visible.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
