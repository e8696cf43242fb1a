"""Does training compute what it should on this machine, and how fast: ``make gpu-check``, or ``python -m benchmarks.gpu_check``.

Trains small models on made-up text in a temporary folder, by ``train`` itself, and prints a line a check: passed, FAILED,
skipped, or a figure to be read. Exit code 1 if one failed. Needs no network and no prepared data. Without a GPU, the same on
the CPU with smaller models.
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
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import all_but_one_losses, single_losses
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.model.devices import device_name, pick_device
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.training.loop import train
from olmo_sparsity.training.step import resolve_compile, resolve_precision

FALLS_NATS = 0.3  # the loss of the last steps is at least so far below that of the first ones
BF16_NATS = 0.05  # the losses of the last steps in bf16 and in fp32, their means, lie no further apart
COMPILED_NATS = {"fp32": 1e-3, "bf16": 2e-2}  # any step's loss, compiled and not
PATHS_NATS = 1e-5  # any loss by the compact path and by the masked one, fp32
SOME = 10  # first and last steps whose mean loss is compared
STEPS, RESUME_STEPS, RESUME_AT, COMPILED_STEPS, SPEED_STEPS = 80, 20, 10, 8, 60
LOG_EVERY = 10  # steps of a stretch whose speed is told


class Outcome(NamedTuple):
    """``passed`` is None where nothing can fail: the check was skipped, or is a figure."""

    passed: Optional[bool]
    words: str


Check = Callable[[Config, Path], Outcome]


def made_up_corpus(path: Path, num_documents: int, num_words: int, seed: int = 0) -> Path:
    """Documents of made-up words; a few favourites of each document come back again and again."""
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "il")]
    words = np.array(["".join(rng.choice(syllables, int(rng.integers(1, 4)))) for _ in range(num_words)])
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(num_documents):
            favourites = rng.choice(words, 8)
            length = int(rng.integers(100, 300))
            common = words[np.minimum(rng.zipf(1.3, length) - 1, num_words - 1)]
            text = np.where(rng.random(length) < 0.4, rng.choice(favourites, length), common)
            file.write(json.dumps({"text": " ".join(text.tolist())}) + "\n")
    return path


def small(folder: Path, on_gpu: bool) -> Config:
    """What most checks train: rows of 64 (CPU: 16) tokens with PoSE positions, and made-up text."""
    corpus = made_up_corpus(folder / "words.jsonl", 3000 if on_gpu else 300, 8000 if on_gpu else 500)
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


def _settled(config: Config, **training: Any) -> Config:
    """With these keys of training, and no evaluation or checkpoint before the last step."""
    settings = {"log_every": 1, "eval_every": 10**6, "checkpoint_every": 10**6, **training}
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **settings))


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _losses(config: Config, run: Path) -> list[float]:
    train(config, run)
    return [line["loss_nats"] for line in _metrics(run)]


def bf16_trains(config: Config, folder: Path) -> Outcome:
    """In bf16 the loss is finite and falls, and ends where it ends in fp32."""
    steps = max(config.training.steps if config.training.steps < STEPS else STEPS, 3 * SOME)
    ends = {}
    for precision in ("fp32", "bf16"):
        settled = _settled(config, steps=steps, precision=precision, compile="never")
        losses = _losses(settled, folder / f"trained-{precision}")
        ends[precision] = sum(losses[:SOME]) / SOME, sum(losses[-SOME:]) / SOME
    (first, last), fp32_last = ends["bf16"], ends["fp32"][1]
    passed = math.isfinite(last) and last < first - FALLS_NATS and abs(last - fp32_last) <= BF16_NATS
    return Outcome(
        passed,
        f"the first {SOME} of {steps} steps {first:.3f} nats, the last {last:.3f} (to be at least {FALLS_NATS} lower), "
        f"in fp32 {fp32_last:.3f} (within {BF16_NATS})",
    )


def compiled_is_the_same(config: Config, folder: Path) -> Outcome:
    """Losses of the first steps, compiled and not, in the precisions that this device trains in."""
    device = pick_device(config.training.device)
    if not resolve_compile(dataclasses.replace(config.training, compile="auto"), device):
        return Outcome(None, "no C++ compiler (g++) here, so that training is not compiled")
    passed, words = True, []
    for precision in dict.fromkeys(("fp32", resolve_precision(config.training, device))):
        ours, plain = (
            _losses(
                _settled(config, steps=COMPILED_STEPS, precision=precision, compile=how),
                folder / f"{how}-{precision}",
            )
            for how in ("always", "never")
        )
        apart = max(abs(a - b) for a, b in zip(ours, plain, strict=True))
        passed = passed and apart <= COMPILED_NATS[precision]
        words.append(
            f"{precision}: at most {apart:.1e} nats in {COMPILED_STEPS} steps (to be {COMPILED_NATS[precision]})"
        )
    return Outcome(passed, "; ".join(words))


def _interrupted(config: Config, run: Path) -> bool:
    """Trains until a signal comes in step ``RESUME_AT``. Did it stop and save."""
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
    """Stopped by a signal and taken up again, a run has the losses and weights of one that was not, bit for bit; in the
    precision, and compiled, as ``config`` trains."""
    settled = _settled(config, steps=RESUME_STEPS)
    straight, stopped = folder / "straight", folder / "stopped"
    expected = _losses(settled, straight)
    if not _interrupted(settled, stopped):
        return Outcome(False, f"SIGINT in step {RESUME_AT} did not stop the run")
    losses = _losses(settled, stopped)
    cpu = torch.device("cpu")
    ours, theirs = (load_model(run / "checkpoints" / "latest", cpu).state_dict() for run in (stopped, straight))
    other_losses = sum(a != b for a, b in zip(losses, expected, strict=True))
    other_weights = [name for name, value in theirs.items() if not torch.equal(ours[name], value)]
    manifest = read_json(straight / "manifest.json")
    how = f"{manifest['precision']}, {'compiled' if manifest['compiled'] else 'not compiled'}"
    return Outcome(
        other_losses == 0 and not other_weights,
        f"{how}, interrupted at {RESUME_AT} of {RESUME_STEPS} steps: {other_losses} losses and {len(other_weights)} of "
        f"{len(theirs)} tensors of weights differ (to be none)",
    )


def paths_agree(config: Config, folder: Path) -> Outcome:
    """Losses by the compact path are those by the masked one, the definition; fp32, TF32 off."""
    device = pick_device(config.training.device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        vocab_size, full_len, local_len = 512, config.context.full_len, config.context.local_len
        model = (
            build_model(olmo_model_config(config, vocab_size=vocab_size, eos_id=0), 0)
            .to(device)
            .eval()
            .requires_grad_(False)
        )
        for parameter in model.parameters():
            parameter.mul_(2.0)  # so that attention is no mean, and predictions differ
        generator = torch.Generator().manual_seed(1)
        tokens_WT = torch.randint(1, vocab_size, (4, full_len), generator=generator).to(device)
        targets_W = torch.randint(1, vocab_size, (4,), generator=generator).to(device)
        candidates_WM = torch.arange(full_len - local_len, device=device).expand(4, -1)
        apart, moves = [], []
        ours, masked = Evaluator(model, local_len), Evaluator(model, local_len, path="masked")
        for measure in (
            lambda evaluator: single_losses(evaluator, tokens_WT, targets_W=targets_W, candidates_WJ=candidates_WM)[0],
            lambda evaluator: all_but_one_losses(evaluator, tokens_WT, targets_W=targets_W),
        ):
            expected = measure(masked)
            apart.append(float((measure(ours) - expected).abs().max()))
            moves.append(float(expected.std(dim=1).mean()))
    finally:
        torch.set_float32_matmul_precision(before)
    # Losses that do not depend on what is visible agree by any path, and would show nothing.
    passed = max(apart) < PATHS_NATS and min(moves) > 100 * PATHS_NATS
    return Outcome(
        passed,
        f"fp32: single unmaskings differ by at most {apart[0]:.1e} nats, single maskings by {apart[1]:.1e} (to be below "
        f"{PATHS_NATS}; from token to token these losses vary by {moves[0]:.1e} and {moves[1]:.1e})",
    )


def speed(config: Config, folder: Path) -> Outcome:
    """A figure: the step of ``train`` as it is used, and the memory it takes."""
    device = pick_device(config.training.device)
    if device.type == "cuda":
        # 12 layers, 768 wide: some 100M parameters.
        model = dataclasses.replace(config.model, d_model=768, n_heads=12, n_layers=12)
        config = dataclasses.replace(
            config,
            model=model,
            training=dataclasses.replace(config.training, batch_rows=1024, micro_batch_rows=256, learning_rate=6e-4),
        )
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    run = folder / "speed"
    train(_settled(config, steps=SPEED_STEPS, log_every=LOG_EVERY), run)
    manifest, lines = read_json(run / "manifest.json"), _metrics(run)[2:]  # the first ones compile
    rate = median(line["tokens_per_second"] for line in lines)
    batch_tokens = config.training.batch_rows * config.context.row_len
    share = rate * manifest["training_flops_per_token"] / manifest["peak_flops_per_second"]
    words = (
        f"{manifest['num_parameters'] / 1e6:.2f}M parameters, {manifest['precision']}, "
        f"{'compiled' if manifest['compiled'] else 'not compiled'}: {1000 * batch_tokens / rate:.1f} ms a step of "
        f"{batch_tokens:,} tokens, {rate:,.0f} tokens/s, {share:.3f} of the measured peak of "
        f"{manifest['peak_flops_per_second'] / 1e12:.3g} TFLOP/s"
    )
    if device.type == "cuda":
        words += f", {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB at most"
    return Outcome(None, words)


CHECKS: dict[str, Check] = {
    "bf16 training": bf16_trains,
    "compiled": compiled_is_the_same,
    "exact resume": resumes_exactly,
    "compact and masked": paths_agree,
    "speed": speed,
}


def run_checks(config: Config, folder: Path, checks: dict[str, Check]) -> bool:
    """Runs and prints them all; a check that raises has failed. Did none fail."""
    good = True
    for name, check in checks.items():
        began = time.perf_counter()
        try:
            passed, words = check(config, folder)
        except Exception as error:
            passed, words = False, f"{type(error).__name__}: {error}"
        verdict = {True: "passed", False: "FAILED", None: "-"}[passed]
        print(f"{verdict:7} {name}: {words} [{time.perf_counter() - began:.0f} s]", flush=True)
        good = good and passed is not False
    return good


def main() -> int:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        print(f"On {device_name(torch.device('cuda'))}, torch {torch.__version__}:", flush=True)
    else:
        print(f"There is no GPU here: the same checks on the CPU, smaller. torch {torch.__version__}:", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        good = run_checks(small(Path(temporary), on_gpu), Path(temporary), CHECKS)
    print("No check failed." if good else "At least one check FAILED.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
