"""What the influence benchmark compares: sizes of models, methods that do the same work, and how much work that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import OlmoForCausalLM

from benchmarks.peers import captum_scores, inseq_occlusion
from olmo_sparsity.config import SCREEN_RANKINGS, Config, ContextConfig, InfluenceConfig, ModelConfig
from olmo_sparsity.config.measuring import Ranking
from olmo_sparsity.export.conversion import to_transformers
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import ScreeningSettings, WindowScores
from olmo_sparsity.measure.visible.batch_size import make_evaluator
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs, single_losses, surprisal, target_losses
from olmo_sparsity.measure.visible.visibility import visible_mask
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.devices import has_bf16_units
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config

SCREEN = 16  # candidates that screening keeps
CAPTUM, LAST_ONLY = "captum, ", ", last logits only"  # what names of captum begin, and may end, with
CAPTUM_BATCH = 64  # candidates a pass; captum is also timed with passes of as many tokens as ours
INSEQ = "inseq occlusion (another quantity)"
Method = Callable[[], Any]  # returns losses [W, M], NaN where not evaluated; or something else, which is not compared


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

    Attributes:
        needed: what ``olmo_sparsity.model.compact`` has to do. A row has L local tokens. The layers between the first and
            the last run all of it. The first layer needs no projections of queries, keys and values. The last one needs
            keys and values of all tokens, and the rest of the last token only. Each candidate runs through all layers once.
            Each row needs the vocabulary once.
        rows: rows of L + 1 tokens that are run as they are.
        masked: rows of L + M tokens, with the logits of all tokens.
    """

    needed: float
    rows: float
    masked: float


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
    """The windows of one size, and the model in the forms that the methods need.

    Attributes:
        size: of the model and windows.
        windows: the windows.
        exact: the compact path in fp32.
        low: the compact path in bf16 on a device with units for it, otherwise in fp32.
        peer: the same weights in ``transformers``.
        loss_short_W: losses with only the local tokens visible, nats.
    """

    size: Size
    windows: WindowBatch
    _: KW_ONLY
    exact: Evaluator
    low: Evaluator
    peer: OlmoForCausalLM
    loss_short_W: torch.Tensor

    @property
    def olmo(self) -> OLMoWithPositions:
        """The model in fp32."""
        assert isinstance(self.exact.model, OLMoWithPositions)
        return self.exact.model

    @property
    def all_positions_WM(self) -> torch.Tensor:
        """All long-range positions, int64."""
        return torch.arange(self.size.num_long_range, device=self.windows.device).expand(len(self.windows), -1)

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
        WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(size.num_windows), context="real", seed=0),
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
        problem.windows.tokens_WT,
        targets_W=problem.windows.targets_W,
        visible_WNS=problem.all_positions_WM[:, :, None],
    )[0]


def methods(problem: Problem, *, slow_peers: bool) -> dict[str, Method]:
    """Return the methods by the names that tables and figures give them; those in bf16 where the device has units for it.

    Args:
        problem: the windows and the model.
        slow_peers: also captum with one candidate per pass, and inseq.
    """
    with_bf16 = has_bf16_units(problem.windows.device)
    in_bf16: dict[str, Method] = {"compact, bf16": lambda: _singles(problem, problem.low)}
    calls: dict[str, Method] = {
        "compact, fp32": lambda: _singles(problem, problem.exact),
        **{
            f"screened to {SCREEN} by {ranking}, fp32": partial(_screened, problem, ranking)
            for ranking in SCREEN_RANKINGS
        },
        **(in_bf16 if with_bf16 else {}),
        "plain, fp32": lambda: _singles(problem, problem.evaluator("plain")),
        "masked, fp32, all logits": lambda: _masked_all_logits(problem),
    }
    as_ours = max(1, problem.exact.batch_tokens // problem.size.full_len)
    for per_pass in sorted({min(number, problem.size.num_long_range) for number in (CAPTUM_BATCH, as_ours)}):
        for ending in ("", LAST_ONLY):
            calls[f"{CAPTUM}{per_pass} a pass{ending}"] = partial(
                _captum, problem, per_pass=per_pass, last_logits_only=bool(ending)
            )
    if slow_peers:
        calls[f"{CAPTUM}1 a pass"] = partial(_captum, problem, per_pass=1, last_logits_only=False)
        occlusion = inseq_occlusion(problem.peer, problem.size.vocab_size)
        windows = problem.windows
        calls[INSEQ] = lambda: [
            occlusion(tokens_T, int(target))
            for tokens_T, target in zip(windows.tokens_WT, windows.targets_W, strict=True)
        ]
    return calls


def _singles(problem: Problem, evaluator: Evaluator) -> torch.Tensor:
    return single_losses(
        evaluator,
        problem.windows.tokens_WT,
        targets_W=problem.windows.targets_W,
        candidates_WJ=problem.all_positions_WM,
    )[0]


def _screened(problem: Problem, ranking: Ranking) -> torch.Tensor:
    log_p_short_WV = short_log_probs(problem.exact, problem.windows.tokens_WT)
    scores = WindowScores(
        Predictions(problem.exact, problem.windows, log_p_short_WV=log_p_short_WV),
        max_k=8,
        screening=ScreeningSettings(SCREEN, ranking),
    )
    return torch.from_numpy(scores.loss_single_WI)


@torch.inference_mode()
def _masked_all_logits(problem: Problem) -> torch.Tensor:
    """The masked path in its simplest form: every token's logits, one window's candidates per pass."""
    size, device = problem.size, problem.windows.device
    model, num_long_range = problem.olmo, size.num_long_range
    visible_MT = visible_mask(problem.all_positions_WM[0, :, None], size.full_len, local_len=size.local_len)
    itself_TT = torch.eye(size.full_len, dtype=torch.bool, device=device)
    allowed_MTT = (visible_MT[:, None, :] & torch.ones_like(itself_TT).tril()) | itself_TT
    positions_MT = torch.arange(size.full_len, device=device).expand(num_long_range, -1)
    losses = []
    for tokens_T, target in zip(problem.windows.tokens_WT, problem.windows.targets_W, strict=True):
        logits_MTV = model(tokens_T.expand(num_long_range, -1), positions_MT, attention_bias=allowed_MTT[:, None])
        log_p_MV = logits_MTV[:, -1, : size.vocab_size].float().log_softmax(dim=-1)
        losses.append(-log_p_MV[:, target])
    return torch.stack(losses)


def _captum(problem: Problem, *, per_pass: int, last_logits_only: bool) -> torch.Tensor:
    windows = problem.windows
    scores = [
        captum_scores(
            problem.peer,
            tokens_T,
            target=int(target),
            num_long_range=problem.size.num_long_range,
            perturbations_per_eval=per_pass,
            last_logits_only=last_logits_only,
        )
        for tokens_T, target in zip(windows.tokens_WT, windows.targets_W, strict=True)
    ]
    return problem.loss_short_W[:, None] - torch.stack(scores)
