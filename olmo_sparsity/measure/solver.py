"""The solver: a small model that is trained to predict the targets of planted correlations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from olmo_sparsity.config import Config, DataConfig, ModelConfig, PoseConfig, TrainingConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.correlations import LENGTHS, NOISE, TASKS, sequence, word_tokenizer
from olmo_sparsity.model.checkpoint import check_checkpoint_of_run, latest_checkpoint, load_model
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.storage.files import write_text
from olmo_sparsity.storage.folders import exclusive_lock, make_folder
from olmo_sparsity.storage.manifests import read_manifest_of
from olmo_sparsity.training.loop import train
from olmo_sparsity.training.run_folder import is_trained

MAX_DOCUMENTS = 60_000  # longer training reads them several times
MIN_DOCUMENTS = 3000  # of which some are for validation


@dataclass(frozen=True)
class Solver:
    """The trained solver."""

    model: OLMoWithPositions
    model_sha256: str  # of the file with the weights


def training_document(rng: np.random.Generator, name: str) -> list[str]:
    """Return a sequence of a task without some of its long-range words, then its target, then noise to fill the row.

    Noise words are dropped with a probability that is drawn for each document (0 in a third of them), planted words with
    another one (0 in half of them). So the solver learns to answer as well as any visible set allows. Trained on whole
    windows only, it fails when most of a window is masked: in a trial, the planted tokens alone then made it worse than no
    long-range token at all. Natural text needs no such step, since every document begins with short contexts.
    """
    words, positions = sequence(rng, name)
    num_long_range = LENGTHS.num_long_range
    probability_M = np.full(num_long_range, rng.uniform(-0.5, 1.0))
    probability_M[positions] = rng.uniform(-1.0, 1.0)
    dropped_M = rng.random(num_long_range) < probability_M
    kept = [word for word, dropped in zip(words[:num_long_range], dropped_M, strict=True) if not dropped]
    filler = [NOISE[i] for i in rng.integers(0, len(NOISE), int(dropped_M.sum()))]
    return [*kept, *words[num_long_range:], *filler]


def num_documents(steps: int) -> int:
    """Return the number of documents that training needs: about one for each row that it reads, between two limits."""
    return min(MAX_DOCUMENTS, max(MIN_DOCUMENTS, steps * TrainingConfig().batch_rows))


def write_solver_text(folder: Path, seed: int, *, number: int) -> tuple[Path, Path]:
    """Write so many training documents, unless they exist, and the solver's tokenizer; return both paths."""
    text, tokenizer = folder / f"text-seed{seed}-n{number}.jsonl", folder / "tokenizer.json"
    make_folder(folder)
    if not text.is_file():
        rng = np.random.default_rng([seed, 20])
        tasks = list(TASKS)
        lines = []
        for _ in range(number):
            words = training_document(rng, tasks[rng.integers(len(tasks))])
            lines.append(json.dumps({"text": " ".join(words)}) + "\n")
        write_text(text, "".join(lines))
    write_text(tokenizer, word_tokenizer().to_str())
    return text, tokenizer


def solver_config(text: Path, tokenizer: Path, *, steps: int, seed: int, training: TrainingConfig) -> Config:
    """Return the solver's experiment. Its device, threads and precision are those of ``training``."""
    return Config(
        name="solver",
        data=DataConfig(
            source=str(text), tokenizer=str(tokenizer), cache_dir=str(text.parent / "tokens"), validation_percent=2
        ),
        context=LENGTHS,
        # Rows are as long as windows: the solver should be right, it need not generalize. Masking leaves gaps in positions.
        pose=PoseConfig(num_chunks=8, vary_chunks=True, max_position=48),
        model=ModelConfig(
            d_model=64,
            n_heads=4,
            mlp_ratio=4,
            attention_layer_norm=True,
            layer_norm_type="rms",
            layer_norm_with_affine=True,
        ),
        training=TrainingConfig(
            steps=steps,
            seed=seed,
            warmup_steps=min(100, steps // 10),
            log_every=50,
            device=training.device,
            threads=training.threads,
            compile=training.compile,
            precision=training.precision,
        ),
    )


def trained_solver(config: Config, folder: Path, *, device: torch.device) -> Solver:
    """Return the solver, which is trained first unless it exists.

    Args:
        config: ``validation.seed`` and ``solver_steps``, and ``training`` for device and precision.
        folder: where solvers are kept, one for each seed and number of steps.
        device: where to load the model.
    """
    settings = config.validation
    run = folder / f"seed{settings.seed}-steps{settings.solver_steps}"
    # A finished solver is used as it is, even if its run was moved, which changes the paths in the configuration.
    if not is_trained(run):
        with exclusive_lock(folder / f"{run.name}.lock"):
            if not is_trained(run):  # another process may have trained it meanwhile
                _train_solver(config, run)
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    checkpoint = check_checkpoint_of_run(latest, read_manifest_of(run))
    return Solver(load_model(latest, device), checkpoint.model_sha256)


def _train_solver(config: Config, run: Path) -> None:
    settings = config.validation
    text, tokenizer = write_solver_text(run.parent, settings.seed, number=num_documents(settings.solver_steps))
    experiment = solver_config(
        text, tokenizer, steps=settings.solver_steps, seed=settings.seed, training=config.training
    )
    try:
        train(experiment, run)
    except UserError:  # begun in another folder or on another device; it is this package's own, and minutes of work
        train(experiment, run, overwrite=True)
