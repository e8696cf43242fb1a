"""Times the engine against captum and against the machine's peak, in one run: ``make bench``.

For each model, every method computes the loss of each single unmasking of the same windows, with the same threads and
weights, in turn and several times. Prints medians, their spread, ratios, and the share of the measured peak of a matrix
product; writes ``table.json``. SmolLM2 (``make weights``) is timed where its file lies on the disk.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Optional

import torch
from rich.console import Console
from rich.table import Table
from transformers import OlmoConfig, OlmoForCausalLM

from benchmarks.results import check_results
from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.devices import device_name, has_bf16_units
from olmo_sparsity.model.pretrained import open_pretrained

CAPTUM, LAST_ONLY = "captum, ", ", last logits only"  # how names of captum begin, and may end
CAPTUM_BATCH = 64  # candidates of a pass; captum is also timed with passes of as many tokens as ours
PEAK_CUBE = {"cpu": 2048, "cuda": 8192}  # side of the matrices whose product gives the peak
# The methods whose operations are counted: (which count, which peak).
COUNTED = {
    "compact, fp32": ("needed", "peak fp32"),
    "compact, bf16": ("needed", "peak bf16"),
    "plain, fp32": ("rows", "peak fp32"),
    "masked, fp32": ("masked", "peak fp32"),
}
SMOLLM2 = Path("data/SmolLM2-135M-Instruct.Q4_1.gguf")
Method = Callable[[], torch.Tensor]  # returns losses [W, M]


@dataclass(frozen=True)
class Size:
    """A model, and the windows whose single unmaskings are timed."""

    local_len: int
    num_long_range: int
    num_windows: int
    config: Optional[OlmoConfig] = None  # of a model with random weights; None: SmolLM2


def _olmo(width: int, *, layers: int, heads: int, mlp: int, vocab_size: int) -> OlmoConfig:
    return OlmoConfig(
        vocab_size=vocab_size, hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads,
        max_position_embeddings=256, tie_word_embeddings=True, pad_token_id=None, eos_token_id=0,
        initializer_range=2 * width**-0.5,  # large enough for attention not to be uniform, and for predictions to differ
    )  # fmt: skip


SIZES = {
    "demo": Size(16, 32, 64, _olmo(128, layers=2, heads=4, mlp=256, vocab_size=4096)),
    "5M": Size(64, 64, 4, _olmo(256, layers=5, heads=8, mlp=1024, vocab_size=4096)),
    "100M": Size(64, 64, 1, _olmo(768, layers=8, heads=12, mlp=3072, vocab_size=50280)),
    "SmolLM2": Size(64, 64, 1),
}


def build(size: Size, device: torch.device) -> CausalLM:
    """The model of a size in fp32, with random weights or those of SmolLM2."""
    if size.config is None:
        return open_pretrained(PretrainedConfig(model=str(SMOLLM2)), device=device, precision="fp32").model
    torch.manual_seed(0)
    return CausalLM(OlmoForCausalLM._from_config(size.config, attn_implementation="sdpa").to(device))


def count_operations(config: Any, size: Size) -> dict[str, float]:
    """Floating-point operations of all single unmaskings under ``hidden``: two for each multiply-add of a matrix product.

    ``needed``: what ``olmo_sparsity.model.compact`` has to do. The layers between the first and the last run all L local tokens
    of a row. The first needs no projections of queries, keys and values, the last keys and values of all tokens and the rest
    of the last token only. Each candidate runs through all layers once, each row needs the vocabulary once. ``rows``: rows of
    L + 1 tokens that are run as they are. ``masked``: rows of L + M tokens.
    """
    local_len, layers, width = size.local_len, config.num_hidden_layers, config.hidden_size
    rows, vocabulary = size.num_windows * size.num_long_range, 2 * config.vocab_size * width
    kv_share = config.num_key_value_heads / config.num_attention_heads
    query, keys_values = 2 * width**2, 4 * width**2 * kv_share  # of a token, as the following
    behind = 2 * width**2 + 6 * width * config.intermediate_size  # output projection and MLP
    token = query + keys_values + behind

    def attention(queries: int, keys: int) -> float:
        return 4.0 * width * (queries * keys - queries * (queries - 1) / 2)

    def layer(tokens: int) -> float:
        return tokens * token + attention(tokens, tokens)

    first = local_len * behind + 4 * width * local_len
    between = (layers - 2) * (local_len * token + attention(local_len, local_len + 1))
    last = local_len * keys_values + query + behind + attention(1, local_len + 1)
    local = size.num_windows * (local_len * (query + keys_values) + attention(local_len, local_len))
    return {
        "needed": rows * (first + between + last + layers * token + vocabulary) + local,
        "rows": rows * (layers * layer(local_len + 1) + vocabulary),
        "masked": rows * (layers * layer(local_len + size.num_long_range) + vocabulary),
    }


@dataclass(frozen=True)
class Problem:
    """The windows of one size, and their model."""

    size: Size
    model: CausalLM
    tokens_WT: torch.Tensor
    targets_W: torch.Tensor

    def losses(self, path: str, *, dtype: torch.dtype = torch.float32, visibility: Any = "hidden") -> Method:
        """The losses of all single unmaskings, [W, M], by the engine."""
        engine = Engine(self.model.in_dtype(dtype), self.size.local_len, visibility=visibility, path=path)

        def run() -> torch.Tensor:
            engine._kept.clear()  # prefixes are computed each time
            (num_windows, _), num_far = self.tokens_WT.shape, self.size.num_long_range
            windows_R = torch.arange(num_windows, device=self.tokens_WT.device).repeat_interleave(num_far)
            shown_RM = torch.eye(num_far, dtype=torch.bool, device=self.tokens_WT.device).repeat(num_windows, 1)
            losses_R = torch.empty(len(windows_R), device=self.tokens_WT.device)
            for rows, log_p_rV in engine.log_probs(self.tokens_WT, windows_R, shown_RM):
                losses_R[rows] = -log_p_rV.gather(1, self.targets_W[windows_R[rows], None])[:, 0]
            return losses_R.view(num_windows, num_far)

        return run

    def captum(self, *, per_pass: int, last_logits_only: bool) -> torch.Tensor:
        """The same losses by captum's ``FeatureAblation``, so many candidates a pass."""
        found = [
            captum_losses(
                self.model.raw, tokens_T, target=int(target), num_long_range=self.size.num_long_range, per_pass=per_pass,
                last_logits_only=last_logits_only,
            )
            for tokens_T, target in zip(self.tokens_WT, self.targets_W, strict=True)
        ]  # fmt: skip
        return torch.stack(found)


def make_problem(size: Size, device: torch.device) -> Problem:
    """Random windows of one size, and their model."""
    model, generator = build(size, device), torch.Generator().manual_seed(1)
    shape = (size.num_windows, size.local_len + size.num_long_range)
    tokens_WT = torch.randint(1, model.vocab_size, shape, generator=generator).to(device)
    targets_W = torch.randint(1, model.vocab_size, shape[:1], generator=generator).to(device)
    return Problem(size, model, tokens_WT, targets_W)


def captum_losses(
    model: Any, tokens_T: torch.Tensor, *, target: int, num_long_range: int, per_pass: int, last_logits_only: bool
) -> torch.Tensor:
    """Losses of the single unmaskings of one window by captum, [M].

    Its features are a visibility mask over the long-range tokens, all of them hidden, and ablating a feature shows its token.
    Hidden tokens are masked in the attention mask; position IDs do not move.
    """
    from captum.attr import FeatureAblation

    positions_1T = torch.arange(len(tokens_T), device=tokens_T.device)[None]

    def loss(visible_RM: torch.Tensor) -> torch.Tensor:
        local_RL = visible_RM.new_ones(len(visible_RM), len(tokens_T) - num_long_range)
        logits_RTV = model(
            input_ids=tokens_T.expand(len(visible_RM), -1),
            attention_mask=torch.cat([visible_RM, local_RL], dim=1).long(),
            position_ids=positions_1T.expand(len(visible_RM), -1),
            logits_to_keep=int(last_logits_only),
            use_cache=False,
        ).logits
        return -logits_RTV[:, -1].float().log_softmax(dim=-1)[:, target]

    hidden_1M = torch.zeros(1, num_long_range, device=tokens_T.device)
    with torch.no_grad():
        gains_1M = FeatureAblation(loss).attribute(
            hidden_1M, baselines=torch.ones_like(hidden_1M), perturbations_per_eval=per_pass
        )
        return loss(hidden_1M) - gains_1M[0]


def methods(problem: Problem) -> dict[str, Method]:
    """The methods by their names in tables and figures; those in bf16 where the device has units for it."""
    calls = {"compact, fp32": problem.losses("compact")}
    if has_bf16_units(problem.tokens_WT.device):
        calls["compact, bf16"] = problem.losses("compact", dtype=torch.bfloat16)
    calls["plain, fp32"] = problem.losses("plain")
    calls["contextual, fp32"] = problem.losses("compact", visibility="contextual")
    calls["masked, fp32"] = problem.losses("masked")
    engine, num_long_range = Engine(problem.model, problem.size.local_len), problem.size.num_long_range
    as_ours = engine.rows_per_pass(problem.tokens_WT.shape[1])
    for per_pass in sorted({min(number, num_long_range) for number in (CAPTUM_BATCH, as_ours)}):
        for ending in ("", LAST_ONLY):
            calls[f"{CAPTUM}{per_pass} a pass{ending}"] = partial(
                problem.captum, per_pass=per_pass, last_logits_only=bool(ending)
            )
    return calls


def fastest_captum(seconds: Mapping[str, list[float]], *, last_logits_only: bool = False) -> float:
    """The median seconds of captum at the number of candidates a pass at which it is fastest."""
    return min(
        median(times)
        for name, times in seconds.items()
        if name.startswith(CAPTUM) and name.endswith(LAST_ONLY) == last_logits_only
    )


def timed(call: Callable[[], object], device: torch.device) -> float:
    """The seconds that a call takes until the device is done."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - start


def _peaks(device: torch.device) -> dict[str, Method]:
    wide = torch.randn(PEAK_CUBE[device.type], PEAK_CUBE[device.type], device=device)
    peaks: dict[str, Method] = {"peak fp32": lambda: wide @ wide}
    if has_bf16_units(device):
        low = wide.bfloat16()
        peaks["peak bf16"] = lambda: low @ low
    return peaks


@dataclass(frozen=True)
class Comparison:
    """All methods at one size."""

    size: str
    num_parameters: int
    lengths: dict[str, int]  # local_len, num_long_range, num_windows
    seconds: dict[str, list[float]]  # of each method, every repeat
    difference_nats: dict[str, float]  # of each method, the largest distance of a loss from the definition
    operations: dict[str, float]
    peak_per_second: dict[str, float]  # operations of a large matrix product, by precision

    def share_of_peak(self, method: str) -> Optional[float]:
        """The share of the measured peak that a method reaches; None where its operations are not counted."""
        if method not in COUNTED:
            return None
        count, peak = COUNTED[method]
        return self.operations[count] / median(self.seconds[method]) / self.peak_per_second[peak]


def compare(name: str, device: torch.device, *, repeats: int) -> Comparison:
    """Time every method at one size, in turns, and compare its losses with the definition."""
    size = SIZES[name]
    problem = make_problem(size, device)
    calls, peaks = methods(problem), _peaks(device)
    definitions = {
        visibility: problem.losses("masked", visibility=visibility)() for visibility in ("hidden", "contextual")
    }
    difference_nats = {}
    for method, call in calls.items():  # which also warms each method up
        definition_WM = definitions["contextual" if method.startswith("contextual") else "hidden"]
        difference_nats[method] = float((call() - definition_WM).abs().max())
    seconds: dict[str, list[float]] = {method: [] for method in {**calls, **peaks}}
    for _ in range(repeats):
        for method, call in {**calls, **peaks}.items():
            seconds[method].append(timed(call, device))
    cube = PEAK_CUBE[device.type]
    return Comparison(
        name,
        problem.model.num_parameters,
        lengths={key: value for key, value in vars(size).items() if key != "config"},
        peak_per_second={key: 2 * cube**3 / median(seconds.pop(key)) for key in peaks},
        seconds=seconds,
        difference_nats=difference_nats,
        operations=count_operations(problem.model.config, size),
    )


def comparison_table(comparison: Comparison) -> Table:
    """The table of one size, a row for each method."""
    captum, captum_last = (fastest_captum(comparison.seconds, last_logits_only=last) for last in (False, True))
    peaks = ", ".join(f"{key} {value / 1e9:,.0f} GFLOP/s" for key, value in comparison.peak_per_second.items())
    operations = ", ".join(f"{key} {value / 1e9:,.1f}" for key, value in comparison.operations.items())
    lengths = ", ".join(f"{key} {value}" for key, value in comparison.lengths.items())
    table = Table(
        "method", "median s", "min - max", "times the fastest captum", "with last logits only", "share of peak",
        "max difference, nats",
        title=f"{comparison.size}: {comparison.num_parameters / 1e6:.2f}M parameters, {lengths}",
        caption=f"{peaks}; operations, GFLOP: {operations}",
    )  # fmt: skip
    for method, seconds in comparison.seconds.items():
        share, middle = comparison.share_of_peak(method), median(seconds)
        table.add_row(
            method, f"{middle:.3f}", f"{min(seconds):.3f} - {max(seconds):.3f}", f"{captum / middle:.2f}",
            f"{captum_last / middle:.2f}", "-" if share is None else f"{share:.2f}", f"{comparison.difference_nats[method]:.1e}",
        )  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=SIZES, help="model, repeatable; default: all that are here")
    parser.add_argument("--repeats", type=int, default=5, help="how often each method is timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the table")
    arguments = parser.parse_args()
    device, console = torch.device(arguments.device), Console(width=160)
    check_results(arguments.out / "table.json")
    arguments.out.mkdir(parents=True, exist_ok=True)
    console.print(f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    if not has_bf16_units(device):
        console.print("this device has no units for bf16: methods in bf16 are not timed")
    comparisons = []
    for name in arguments.size or [name for name in SIZES if SIZES[name].config is not None or SMOLLM2.exists()]:
        comparisons.append(compare(name, device, repeats=arguments.repeats))
        console.print(comparison_table(comparisons[-1]))
    table = {"device": device_name(device), "sizes": [dataclasses.asdict(comparison) for comparison in comparisons]}
    (arguments.out / "table.json").write_text(json.dumps(table, indent=2))
    console.print(f"{arguments.out}: table.json")


if __name__ == "__main__":
    main()
