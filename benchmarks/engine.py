"""Times the influence engine against captum and against the machine's peak, in one run: ``make bench``.

For each size of model, every method computes the loss of each single unmasking of the same windows, with the same threads
and weights, in turn and several times. Prints medians, their spread, ratios, and the share of the measured peak of a matrix
product; writes ``table.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Optional

import torch
from rich.console import Console
from rich.table import Table
from transformers import OlmoForCausalLM

from benchmarks.results import check_results
from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, ModelConfig
from olmo_sparsity.export.conversion import to_transformers
from olmo_sparsity.measure.visible.batch_size import make_evaluator
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs, single_losses, surprisal, target_losses
from olmo_sparsity.measure.visible.visibility import visible_mask
from olmo_sparsity.model.devices import device_name, has_bf16_units
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config

CAPTUM, LAST_ONLY = "captum, ", ", last logits only"  # what names of captum begin, and may end, with
CAPTUM_BATCH = 64  # candidates a pass; captum is also timed with passes of as many tokens as ours
PEAK_CUBE = {"cpu": 2048, "cuda": 8192}  # side of the matrices whose product gives the peak
# The methods whose operations are counted: (which count, which peak).
COUNTED = {
    "compact, fp32": ("needed", "peak fp32"),
    "compact, bf16": ("needed", "peak bf16"),
    "plain, fp32": ("rows", "peak fp32"),
    "masked, fp32, all logits": ("masked", "peak fp32"),
}
Method = Callable[[], torch.Tensor]  # returns losses [W, M]


@dataclass(frozen=True)
class Size:
    """A model, and the windows whose single unmaskings are timed."""

    model: ModelConfig
    vocab_size: int
    _: KW_ONLY
    local_len: int
    num_long_range: int
    num_windows: int

    @property
    def full_len(self) -> int:
        """Tokens of a window."""
        return self.local_len + self.num_long_range


# All are OLMo 1, which the peers know too.
SIZES = {
    "demo": Size(
        ModelConfig(d_model=128, n_heads=4, n_layers=2, mlp_ratio=4),
        4096,
        local_len=16,
        num_long_range=32,
        num_windows=64,
    ),
    "5M": Size(
        ModelConfig(d_model=256, n_heads=8, n_layers=5, mlp_ratio=8),
        4096,
        local_len=64,
        num_long_range=64,
        num_windows=4,
    ),
    "100M": Size(
        ModelConfig(d_model=768, n_heads=12, n_layers=8, mlp_ratio=8),
        50280,
        local_len=64,
        num_long_range=64,
        num_windows=1,
    ),
}


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of all single unmaskings: two for each multiply-add of a matrix product.

    ``needed`` is what ``olmo_sparsity.model.compact`` has to do. A row has L local tokens. The layers between the first and the
    last run all of it. The first layer needs no projections of queries, keys and values. The last one needs keys and values of
    all tokens, and the rest of the last token only. Each candidate runs through all layers once. Each row needs the vocabulary.
    """

    needed: float
    rows: float  # rows of L + 1 tokens that are run as they are
    masked: float  # rows of L + M tokens, with the logits of all tokens


def count_operations(size: Size) -> Operations:
    """Return the number of operations at one size."""
    model, length = size.model, size.local_len
    width, layers, hidden = model.d_model, model.n_layers, model.mlp_ratio * model.d_model
    mlp, projections, out = 2 * 1.5 * hidden * width, 2 * 3 * width**2, 2 * width**2
    rows = size.num_windows * size.num_long_range
    vocabulary = 2 * size.vocab_size * width

    def attention(queries: int, keys: int) -> float:
        return 4.0 * width * (queries * keys - queries * (queries - 1) / 2)

    def layer(tokens: int) -> float:
        return tokens * (projections + out + mlp) + attention(tokens, tokens)

    first = length * (out + mlp) + 4 * width * length
    between = (layers - 2) * (length * (projections + out + mlp) + attention(length, length + 1))
    last = length * 2 * 2 * width**2 + 2 * width**2 + out + mlp + attention(1, length + 1)
    alone = layers * (projections + out + mlp)
    local = size.num_windows * (length * projections + attention(length, length))
    return Operations(
        needed=rows * (first + between + last + alone + vocabulary) + local,
        rows=rows * (layers * layer(length + 1) + vocabulary),
        masked=rows * (layers * layer(size.full_len) + size.full_len * vocabulary),
    )


def random_model(model: ModelConfig, vocab_size: int, *, full_len: int, device: torch.device) -> OLMoWithPositions:
    """Return a model with random weights, large enough for attention not to be uniform and for predictions to differ."""
    config = Config(model=model, context=ContextConfig(local_len=min(16, full_len - 1), full_len=full_len))
    settings = olmo_model_config(config, vocab_size=vocab_size, eos_id=0)
    built = build_model(settings, seed=0).to(device).eval().requires_grad_(False)
    for parameter in built.parameters():
        parameter.mul_(2.0)
    return built


@dataclass(frozen=True)
class Problem:
    """The windows of one size, and the model in the forms that the methods need."""

    size: Size
    _: KW_ONLY
    tokens_WT: torch.Tensor
    targets_W: torch.Tensor
    exact: Evaluator  # the compact path in fp32
    low: Evaluator  # the compact path in bf16 on a device with units for it, otherwise in fp32
    peer: OlmoForCausalLM  # the same weights in ``transformers``
    loss_short_W: torch.Tensor  # with only the local tokens visible, nats

    @property
    def olmo(self) -> OLMoWithPositions:
        """The model in fp32."""
        assert isinstance(self.exact.model, OLMoWithPositions)
        return self.exact.model

    @property
    def all_positions_WM(self) -> torch.Tensor:
        """All long-range positions, int64."""
        return torch.arange(self.size.num_long_range, device=self.tokens_WT.device).expand(len(self.tokens_WT), -1)

    def evaluator(self, path: str) -> Evaluator:
        """Return the model in fp32 on another path."""
        return Evaluator(self.exact.model, self.size.local_len, path=path, batch_tokens=self.exact.batch_tokens)


def make_problem(size: Size, device: torch.device) -> Problem:
    """Return random windows and a random model of one size."""
    model = random_model(size.model, size.vocab_size, full_len=size.full_len, device=device)
    generator = torch.Generator().manual_seed(1)
    tokens_WT = torch.randint(1, size.vocab_size, (size.num_windows, size.full_len), generator=generator).to(device)
    targets_W = torch.randint(1, size.vocab_size, (size.num_windows,), generator=generator).to(device)
    low = torch.bfloat16 if has_bf16_units(device) else torch.float32
    exact = make_evaluator(model, InfluenceConfig(), full_len=size.full_len, local_len=size.local_len)
    return Problem(
        size,
        tokens_WT=tokens_WT,
        targets_W=targets_W,
        exact=exact,
        low=Evaluator(model.in_dtype(low), size.local_len, batch_tokens=exact.batch_tokens),
        peer=to_transformers(model).to(device),
        loss_short_W=surprisal(short_log_probs(exact, tokens_WT), targets_W),
    )


def fastest_captum(seconds: dict[str, list[float]]) -> float:
    """Return the median seconds of captum, with all logits, at the number of candidates a pass at which it is fastest."""
    return min(
        median(times) for name, times in seconds.items() if name.startswith(CAPTUM) and not name.endswith(LAST_ONLY)
    )


def masked_definition(problem: Problem) -> torch.Tensor:
    """Return the losses by the definition, [W, M]."""
    return target_losses(
        problem.evaluator("masked"),
        problem.tokens_WT,
        targets_W=problem.targets_W,
        visible_WNS=problem.all_positions_WM[:, :, None],
    )[0]


def methods(problem: Problem) -> dict[str, Method]:
    """Return the methods by the names that tables give them; those in bf16 where the device has units for it."""
    calls: dict[str, Method] = {"compact, fp32": lambda: _singles(problem, problem.exact)}
    if has_bf16_units(problem.tokens_WT.device):
        calls["compact, bf16"] = lambda: _singles(problem, problem.low)
    calls["plain, fp32"] = lambda: _singles(problem, problem.evaluator("plain"))
    calls["masked, fp32, all logits"] = lambda: _masked_all_logits(problem)
    as_ours = max(1, problem.exact.batch_tokens // problem.size.full_len)
    for per_pass in sorted({min(number, problem.size.num_long_range) for number in (CAPTUM_BATCH, as_ours)}):
        for ending in ("", LAST_ONLY):
            calls[f"{CAPTUM}{per_pass} a pass{ending}"] = partial(
                _captum, problem, per_pass=per_pass, last_logits_only=bool(ending)
            )
    return calls


def _singles(problem: Problem, evaluator: Evaluator) -> torch.Tensor:
    return single_losses(
        evaluator,
        problem.tokens_WT,
        targets_W=problem.targets_W,
        candidates_WJ=problem.all_positions_WM,
    )[0]


@torch.inference_mode()
def _masked_all_logits(problem: Problem) -> torch.Tensor:
    """The masked path in its simplest form: every token's logits, one window's candidates per pass."""
    size, device = problem.size, problem.tokens_WT.device
    model, num_long_range = problem.olmo, size.num_long_range
    visible_MT = visible_mask(problem.all_positions_WM[0, :, None], size.full_len, local_len=size.local_len)
    itself_TT = torch.eye(size.full_len, dtype=torch.bool, device=device)
    allowed_MTT = (visible_MT[:, None, :] & torch.ones_like(itself_TT).tril()) | itself_TT
    positions_MT = torch.arange(size.full_len, device=device).expand(num_long_range, -1)
    losses = []
    for tokens_T, target in zip(problem.tokens_WT, problem.targets_W, strict=True):
        logits_MTV = model(tokens_T.expand(num_long_range, -1), positions_MT, attention_bias=allowed_MTT[:, None])
        log_p_MV = logits_MTV[:, -1, : size.vocab_size].float().log_softmax(dim=-1)
        losses.append(-log_p_MV[:, target])
    return torch.stack(losses)


def _captum(problem: Problem, *, per_pass: int, last_logits_only: bool) -> torch.Tensor:
    scores = [
        captum_scores(
            problem.peer,
            tokens_T,
            target=int(target),
            num_long_range=problem.size.num_long_range,
            perturbations_per_eval=per_pass,
            last_logits_only=last_logits_only,
        )
        for tokens_T, target in zip(problem.tokens_WT, problem.targets_W, strict=True)
    ]
    return problem.loss_short_W[:, None] - torch.stack(scores)


def captum_scores(
    model: OlmoForCausalLM,
    tokens_T: torch.Tensor,
    *,
    target: int,
    num_long_range: int,
    perturbations_per_eval: int,
    last_logits_only: bool,
) -> torch.Tensor:
    """Return the scores of ``unmask-one`` for one window by captum's ``FeatureAblation``, [M].

    The features are a visibility mask over the long-range tokens, all of them hidden, and ablating a feature shows its
    token. Hidden tokens are masked in the attention mask; position IDs do not move.
    """
    from captum.attr import FeatureAblation

    positions_1T = torch.arange(len(tokens_T), device=tokens_T.device)[None]

    def loss(visible_RM: torch.Tensor) -> torch.Tensor:
        num_rows = len(visible_RM)
        local_RL = visible_RM.new_ones(num_rows, len(tokens_T) - num_long_range)
        logits_RTV = model(
            input_ids=tokens_T.expand(num_rows, -1),
            attention_mask=torch.cat([visible_RM, local_RL], dim=1).long(),
            position_ids=positions_1T.expand(num_rows, -1),
            logits_to_keep=int(last_logits_only),
            use_cache=False,
        ).logits
        return -logits_RTV[:, -1].float().log_softmax(dim=-1)[:, target]

    hidden_1M = torch.zeros(1, num_long_range, device=tokens_T.device)
    with torch.no_grad():
        return FeatureAblation(loss).attribute(
            hidden_1M, baselines=torch.ones_like(hidden_1M), perturbations_per_eval=perturbations_per_eval
        )[0]


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a call takes until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def timed_in_turn(calls: Mapping[str, Method], *, repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of each call, every repeat; the calls take turns. They are warm already."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(timed(call, device))
    return seconds


@dataclass(frozen=True)
class Comparison:
    """All methods at one size."""

    size: str
    num_parameters: int
    _: KW_ONLY
    local_len: int
    num_long_range: int
    vocab_size: int
    num_windows: int
    batch_tokens: int  # of a forward pass
    seconds: dict[str, list[float]]  # of each method, every repeat
    difference_nats: dict[str, float]  # of each method, the largest distance of a loss from the definition
    operations: Operations
    peak_per_second: dict[str, float]  # operations of a large matrix product, by precision

    def share_of_peak(self, method: str) -> Optional[float]:
        """Return the share of the measured peak that a method reaches; None where its operations are not counted."""
        if method not in COUNTED:
            return None
        count, peak = COUNTED[method]
        return getattr(self.operations, count) / median(self.seconds[method]) / self.peak_per_second[peak]


def _peaks(device: torch.device) -> dict[str, Method]:
    cube = PEAK_CUBE[device.type]
    wide = torch.randn(cube, cube, device=device)
    peaks: dict[str, Method] = {"peak fp32": lambda: wide @ wide}
    if has_bf16_units(device):
        low = wide.bfloat16()
        peaks["peak bf16"] = lambda: low @ low
    return peaks


def compare(name: str, device: torch.device, *, repeats: int) -> Comparison:
    """Time every method at one size, interleaved, and compare its losses with the definition."""
    size = SIZES[name]
    problem = make_problem(size, device)
    calls, peaks = methods(problem), _peaks(device)
    definition_WM = masked_definition(problem)
    difference_nats = {  # which also warms each method up
        method: float((call() - definition_WM).abs().max()) for method, call in calls.items()
    }
    seconds = timed_in_turn({**calls, **peaks}, repeats=repeats, device=device)
    return Comparison(
        name,
        sum(parameter.numel() for parameter in problem.olmo.parameters()),
        local_len=size.local_len,
        num_long_range=size.num_long_range,
        vocab_size=size.vocab_size,
        num_windows=size.num_windows,
        batch_tokens=problem.exact.batch_tokens,
        peak_per_second={key: 2 * PEAK_CUBE[device.type] ** 3 / median(seconds.pop(key)) for key in peaks},
        seconds=seconds,
        difference_nats=difference_nats,
        operations=count_operations(size),
    )


def comparison_table(comparison: Comparison) -> Table:
    """Return the table of one size, one row per method."""
    captum = fastest_captum(comparison.seconds)
    peaks = ", ".join(f"{key} {value / 1e9:,.0f} GFLOP/s" for key, value in comparison.peak_per_second.items())
    counts = dataclasses.asdict(comparison.operations)
    operations = ", ".join(f"{key} {value / 1e9:,.1f}" for key, value in counts.items())
    table = Table(
        "method", "median s", "min - max", "times the fastest captum", "share of peak", "max difference, nats",
        title=f"{comparison.size}: {comparison.num_parameters / 1e6:.1f}M parameters, L {comparison.local_len}, "
        f"M {comparison.num_long_range}, {comparison.num_windows} windows",
        caption=f"{peaks}; operations, GFLOP: {operations}; passes of {comparison.batch_tokens} tokens",
    )  # fmt: skip
    for method, seconds in comparison.seconds.items():
        share = comparison.share_of_peak(method)
        table.add_row(
            method,
            f"{median(seconds):.3f}",
            f"{min(seconds):.3f} - {max(seconds):.3f}",
            f"{captum / median(seconds):.2f}",
            "-" if share is None else f"{share:.2f}",
            f"{comparison.difference_nats[method]:.1e}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=SIZES, help="size of model, repeatable; default: all")
    parser.add_argument("--repeats", type=int, default=5, help="how often each method is timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the table")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    console = Console(width=160)
    check_results(arguments.out / "table.json")
    arguments.out.mkdir(parents=True, exist_ok=True)
    console.print(f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    if not has_bf16_units(device):
        console.print("this device has no units for bf16: methods in bf16 are not timed")
    comparisons = []
    for name in arguments.size or SIZES:
        comparisons.append(compare(name, device, repeats=arguments.repeats))
        console.print(comparison_table(comparisons[-1]))
    table = {
        "device": device_name(device),
        "sizes": [dataclasses.asdict(comparison) for comparison in comparisons],
    }
    (arguments.out / "table.json").write_text(json.dumps(table, indent=2))
    console.print(f"{arguments.out}: table.json")


if __name__ == "__main__":
    main()
