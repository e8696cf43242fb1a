"""Checks that training computes correctly on this machine, and measures its speed: ``make gpu-check``, or
``python -m benchmarks.gpu_check``.

Trains small models with ``train`` on generated text in a temporary folder. Prints a line per check: passed, FAILED, skipped,
or a measurement. Exit code 1 if a check failed. Needs no network and no prepared data. On a machine without a GPU, it does
the same on the CPU with smaller models.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from olmo_sparsity.config import Config, ContextConfig, DataConfig, ModelConfig, PoseConfig, TrainingConfig
from olmo_sparsity.errors import Interrupted
from olmo_sparsity.files import read_json
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.convert import to_transformers
from olmo_sparsity.model.devices import device_name, pick_device
from olmo_sparsity.model.olmo import build_model, load_model, olmo_model_config
from olmo_sparsity.train.loop import train
from olmo_sparsity.train.step import resolve_compile, resolve_precision

FALLS_NATS = 0.3  # by how much the mean loss must fall, at least, from the first steps to the last
BF16_NATS = 0.05  # the largest difference allowed between bf16 and fp32, of the mean loss of the last steps
COMPILED_NATS = {"fp32": 1e-3, "bf16": 2e-2}  # the largest difference allowed in any step, compiled and not
PATHS_NATS = 1e-5  # the largest difference allowed between the compact and the masked path, fp32
MEAN_STEPS = 10  # the number of first, and of last, steps whose mean loss is compared
STEPS, RESUME_STEPS, RESUME_AT, COMPILED_STEPS, SPEED_STEPS = 80, 20, 10, 8, 60
LOG_EVERY = 10  # steps over which speed is averaged


class Outcome(NamedTuple):
    """The result of a check. ``passed`` is None if the check was skipped, or is a measurement, which cannot fail."""

    passed: Optional[bool]
    message: str


Check = Callable[[Config, Path], Outcome]


def made_up_corpus(path: Path, *, num_documents: int, num_words: int) -> Path:
    """Write documents of made-up words; a few words of each document are repeated often."""
    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "il")]
    words = np.array(["".join(rng.choice(syllables, int(rng.integers(1, 4)))) for _ in range(num_words)])
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(num_documents):
            favourites = rng.choice(words, 8)
            length = int(rng.integers(100, 300))
            common_words = words[np.minimum(rng.zipf(1.3, length) - 1, num_words - 1)]
            text = np.where(rng.random(length) < 0.4, rng.choice(favourites, length), common_words)
            file.write(json.dumps({"text": " ".join(text.tolist())}) + "\n")
    return path


def small(folder: Path, on_gpu: bool) -> Config:
    """Return the experiment of most checks: rows of 64 tokens (CPU: 16) with PoSE positions, and made-up text."""
    num_documents, num_words = (3000, 8000) if on_gpu else (300, 500)
    corpus = made_up_corpus(folder / "words.jsonl", num_documents=num_documents, num_words=num_words)
    tokenizer = "bpe:8192" if on_gpu else "bpe:512"
    width, layers, rows, local_len = (256, 4, 256, 64) if on_gpu else (64, 2, 32, 16)
    return Config(
        name="gpu-check",
        data=DataConfig(source=str(corpus), tokenizer=tokenizer, cache_dir=str(folder / "data"), validation_percent=10),
        context=ContextConfig(local_len=local_len, full_len=2 * local_len),
        pose=PoseConfig(num_chunks=2),
        model=ModelConfig(
            d_model=width, n_heads=width // 32, n_layers=layers, attention_layer_norm=True, layer_norm_type="rms"
        ),
        training=TrainingConfig(batch_rows=rows, warmup_steps=10, eval_rows=rows, learning_rate=3e-3),
    )


def _with_training(config: Config, **training: Any) -> Config:
    """Return the configuration with these keys of training, and evaluation and checkpoint only after the last step."""
    settings = {"log_every": 1, "eval_every": 10**6, "checkpoint_every": 10**6, **training}
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **settings))


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _losses(config: Config, run: Path) -> list[float]:
    train(config, run)
    return [line["loss_nats"] for line in _metrics(run)]


def bf16_trains(config: Config, folder: Path) -> Outcome:
    """Check that in bf16 the loss is finite and falls to where it falls in fp32."""
    steps = max(min(config.training.steps, STEPS), 3 * MEAN_STEPS)
    ends = {}
    for precision in ("fp32", "bf16"):
        changed = _with_training(config, steps=steps, precision=precision, compile="never")
        losses = _losses(changed, folder / f"trained-{precision}")
        ends[precision] = sum(losses[:MEAN_STEPS]) / MEAN_STEPS, sum(losses[-MEAN_STEPS:]) / MEAN_STEPS
    (first, last), fp32_last = ends["bf16"], ends["fp32"][1]
    passed = math.isfinite(last) and last < first - FALLS_NATS and abs(last - fp32_last) <= BF16_NATS
    return Outcome(
        passed,
        f"first {MEAN_STEPS} of {steps} steps {first:.3f} nats, last {MEAN_STEPS} {last:.3f} (required: at least {FALLS_NATS} "
        f"lower), in fp32 {fp32_last:.3f} (required: within {BF16_NATS})",
    )


def compiled_is_the_same(config: Config, folder: Path) -> Outcome:
    """Compare the losses of the first steps, compiled and not, in the precisions that this device trains in."""
    device = pick_device(config.training.device)
    if not resolve_compile(dataclasses.replace(config.training, compile="auto"), device):
        return Outcome(None, "skipped: there is no C++ compiler (g++), so training is not compiled")
    passed, messages = True, []
    for precision in dict.fromkeys(("fp32", resolve_precision(config.training, device))):
        compiled, plain = (
            _losses(
                _with_training(config, steps=COMPILED_STEPS, precision=precision, compile=how),
                folder / f"{how}-{precision}",
            )
            for how in ("always", "never")
        )
        difference = max(abs(a - b) for a, b in zip(compiled, plain, strict=True))
        passed = passed and difference <= COMPILED_NATS[precision]
        messages.append(
            f"{precision}: losses of {COMPILED_STEPS} steps differ by at most {difference:.1e} nats (required: "
            f"{COMPILED_NATS[precision]})"
        )
    return Outcome(passed, "; ".join(messages))


def _interrupted(config: Config, run: Path) -> bool:
    """Train, and send a signal in step ``RESUME_AT``. Return True if training stopped and saved."""
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == RESUME_AT:
            signal.raise_signal(signal.SIGINT)

    hook = register_optimizer_step_post_hook(count)
    try:
        train(config, run)
    except Interrupted:
        return True
    finally:
        hook.remove()
    return False


def resumes_exactly(config: Config, folder: Path) -> Outcome:
    """Check that a run that was stopped by a signal and resumed equals an uninterrupted one, bit for bit."""
    changed = _with_training(config, steps=RESUME_STEPS)
    uninterrupted, stopped = folder / "uninterrupted", folder / "stopped"
    expected = _losses(changed, uninterrupted)
    if not _interrupted(changed, stopped):
        return Outcome(False, f"SIGINT in step {RESUME_AT} did not stop the run")
    losses = _losses(changed, stopped)
    cpu = torch.device("cpu")
    ours, theirs = (load_model(run / "checkpoints" / "latest", cpu).state_dict() for run in (stopped, uninterrupted))
    other_losses = sum(a != b for a, b in zip(losses, expected, strict=True))
    other_weights = [name for name, value in theirs.items() if not torch.equal(ours[name], value)]
    manifest = read_json(uninterrupted / "manifest.json")
    start = manifest["starts"][0]
    settings = f"{start['precision']}, {'compiled' if start['compiled'] else 'not compiled'}"
    return Outcome(
        other_losses == 0 and not other_weights,
        f"{settings}, interrupted at step {RESUME_AT} of {RESUME_STEPS}: {other_losses} losses and {len(other_weights)} of "
        f"{len(theirs)} weight tensors differ (required: none)",
    )


def losses_of(engine: Engine, tokens_WT: torch.Tensor, targets_W: torch.Tensor, *, masked: bool) -> torch.Tensor:
    """The loss of each target with each long-range token unmasked, or masked, alone, [W, M]."""
    num_windows, num_far = len(tokens_WT), tokens_WT.shape[1] - engine.local_len
    shown_RM = torch.eye(num_far, dtype=torch.bool, device=tokens_WT.device).repeat(num_windows, 1)
    windows_R = torch.arange(num_windows, device=tokens_WT.device).repeat_interleave(num_far)
    losses_R = torch.empty(len(windows_R), device=tokens_WT.device)
    for rows, log_p_rV in engine.log_probs(tokens_WT, windows_R, ~shown_RM if masked else shown_RM):
        losses_R[rows] = -log_p_rV.gather(1, targets_W[windows_R[rows], None])[:, 0]
    return losses_R.view(num_windows, num_far)


def paths_agree(config: Config, folder: Path) -> Outcome:
    """Compare losses by the compact path with those by the masked path, which is the definition; fp32, TF32 off."""
    device = pick_device(config.training.device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        vocab_size, full_len, local_len = 512, config.context.full_len, config.context.local_len
        # Llama's layers, which the compact path knows; with normalised queries and keys it does not.
        plain_norms = dataclasses.replace(config, model=dataclasses.replace(config.model, attention_layer_norm=False))
        olmo = build_model(olmo_model_config(plain_norms, vocab_size=vocab_size, eos_id=0), 0)
        for parameter in olmo.requires_grad_(False).parameters():
            parameter.mul_(2.0)  # so that attention is not uniform, and predictions differ
        model = CausalLM(to_transformers(dataclasses.asdict(olmo.config), olmo.state_dict()).to(device))
        generator = torch.Generator().manual_seed(1)
        tokens_WT = torch.randint(1, vocab_size, (4, full_len), generator=generator).to(device)
        targets_W = torch.randint(1, vocab_size, (4,), generator=generator).to(device)
        differences, spreads = [], []
        ours, masked = Engine(model, local_len), Engine(model, local_len, path="masked")
        for is_masked in (False, True):
            expected = losses_of(masked, tokens_WT, targets_W, masked=is_masked)
            found = losses_of(ours, tokens_WT, targets_W, masked=is_masked)
            differences.append(float((found - expected).abs().max()))
            spreads.append(float(expected.std(dim=1).mean()))
    finally:
        torch.set_float32_matmul_precision(before)
    # Losses that do not depend on the visible tokens agree on any path, so they would prove nothing.
    passed = max(differences) < PATHS_NATS and min(spreads) > 100 * PATHS_NATS
    return Outcome(
        passed,
        f"fp32: losses with one token unmasked differ by at most {differences[0]:.1e} nats, with one masked by "
        f"{differences[1]:.1e} (required: below {PATHS_NATS}; these losses vary from token to token by {spreads[0]:.1e} and "
        f"{spreads[1]:.1e})",
    )


def speed(config: Config, folder: Path) -> Outcome:
    """Measure the speed of a training step, and the memory that it takes."""
    device = pick_device(config.training.device)
    if device.type == "cuda":
        # 12 layers of width 768: about 100M parameters.
        model = dataclasses.replace(config.model, d_model=768, n_heads=12, n_layers=12)
        config = dataclasses.replace(
            config,
            model=model,
            training=dataclasses.replace(config.training, batch_rows=1024, micro_batch_rows=256, learning_rate=6e-4),
        )
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    run = folder / "speed"
    train(_with_training(config, steps=SPEED_STEPS, log_every=LOG_EVERY), run)
    manifest, lines = read_json(run / "manifest.json"), _metrics(run)[2:]  # compilation takes place before
    rate, start = median(line["tokens_per_second"] for line in lines), manifest["starts"][0]
    batch_tokens = config.training.batch_rows * config.context.row_len
    message = (
        f"{manifest['num_parameters'] / 1e6:.2f}M parameters, {start['precision']}, "
        f"{'compiled' if start['compiled'] else 'not compiled'}: {1000 * batch_tokens / rate:.1f} ms per step of "
        f"{batch_tokens:,} tokens, {rate:,.0f} tokens/s"
    )
    if device.type == "cuda":
        message += f", at most {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB of GPU memory"
    return Outcome(None, message)


CHECKS: dict[str, Check] = {
    "bf16 training": bf16_trains,
    "compiled": compiled_is_the_same,
    "exact resume": resumes_exactly,
    "compact and masked": paths_agree,
    "speed": speed,
}


def run_checks(config: Config, folder: Path, *, checks: dict[str, Check]) -> bool:
    """Run all checks and print their results. Return True if none failed; a check that raises an error has failed."""
    all_passed = True
    for name, check in checks.items():
        start = time.perf_counter()
        try:
            passed, message = check(config, folder)
        except Exception as error:
            passed, message = False, f"{type(error).__name__}: {error}"
        verdict = {True: "passed", False: "FAILED", None: "-"}[passed]
        print(f"{verdict:7} {name}: {message} [{time.perf_counter() - start:.0f} s]", flush=True)
        all_passed = all_passed and passed is not False
    return all_passed


def main() -> int:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        print(f"On {device_name(torch.device('cuda'))}, torch {torch.__version__}:", flush=True)
    else:
        print(
            f"There is no GPU: the same checks on the CPU, with smaller models, torch {torch.__version__}:", flush=True
        )
    with tempfile.TemporaryDirectory() as temporary:
        all_passed = run_checks(small(Path(temporary), on_gpu), Path(temporary), checks=CHECKS)
    print("No check failed." if all_passed else "At least one check FAILED.")
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
