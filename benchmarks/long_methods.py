"""The methods that ``benchmarks.long_peers`` compares: each scores the groups of a window, and NaN where it scores none.

A *ranking* of ours is followed by exact scores of its best groups (``benchmarks.long_fidelity.screened``), or stands alone.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial

import numpy as np
import torch

from benchmarks import attribot
from benchmarks.context_cite import context_cite
from benchmarks.long_problems import Problem
from benchmarks.peers import captum_of_groups
from olmo_sparsity.measure.visible.group_losses import all_but_one_group_losses
from olmo_sparsity.measure.visible.losses import long_log_probs_and_attention
from olmo_sparsity.model.attribution import Attribution
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.model.transformers_model import TransformersModel
from olmo_sparsity.progress import listening
from olmo_sparsity.records.selectors import rank

EXACT, CAPTUM = "exact, ours", "captum, batched"
BOTH = "patching and attention"
PARAGRAPH = 4  # sentences of what stands for AttriBoT's paragraph
LASSO_MASKS = (32, 256)
REPEATS, REPEATED_BELOW = 3, 3.0  # a method that takes fewer seconds is timed so often
LIMIT_SECONDS = 180.0  # captum is timed on a few groups where it would take longer on all
FEW = 4  # groups of this trial, or one pass of them where it holds more


@dataclass(frozen=True)
class Models:
    """The models of a comparison.

    Attributes:
        proxy: ranks for those that use a smaller model; None: there is none.
        proxy_share: its cost a token, relative to the model that is measured.
    """

    proxy: CausalModel | None
    proxy_share: float


Score = Callable[[Problem, Models], np.ndarray]


@dataclass(frozen=True)
class Method:
    """A way to score groups.

    Attributes:
        score: (problem, models) -> scores, float [I].
        is_ranking: exact scores of its best groups may follow.
        needs_proxy: it cannot run without a proxy.
        whose: who proposed it; colours of the figure.
    """

    score: Score
    _: KW_ONLY
    is_ranking: bool = False
    needs_proxy: bool = False
    whose: str = "ours"


@dataclass(frozen=True)
class Outcome:
    """What a method found in one window, and its cost.

    Attributes:
        scores_I: fp64; NaN for groups that it does not score.
        seconds: CPU time of each repeat, on one thread: other work of the machine does not enter it.
        tokens: that models ran, in tokens of the measured model.
        num_timed: the groups that were timed, where seconds and tokens are extrapolated from them by count; None: they are not.
    """

    scores_I: np.ndarray
    seconds: list[float]
    tokens: float
    num_timed: int | None = None


def upper_half_left_out(model: TransformersModel) -> tuple[TransformersModel, float]:
    """Return a model that ends after half of the layers, and its share of the layers. It shares the weights."""
    raw = model.raw
    shallow = copy.deepcopy(raw, {id(parameter): parameter for parameter in raw.parameters()})
    inner = shallow.get_decoder()
    num_layers = len(inner.layers)
    kept = (num_layers + 1) // 2
    inner.layers = inner.layers[:kept]
    shallow.config.num_hidden_layers = kept
    return TransformersModel(shallow), kept / num_layers


def _exact_tokens(problem: Problem, models: Models) -> np.ndarray:
    return np.asarray(-problem.scores().loss_single_WI[0])


def _exact_sentences(problem: Problem, models: Models) -> np.ndarray:
    return np.asarray(problem.scores().loss_all_but_one_WI[0])


def _estimated(problem: Problem, models: Models, *, attribution: Attribution) -> np.ndarray:
    return -problem.scores().estimates("loss", attribution=attribution)[0]


def alternating(scores: list[np.ndarray]) -> np.ndarray:
    """Return scores whose order takes the best group of each ranking in turn, then the next best of each; fp64 [I]."""
    orders = [rank(scores_I[None])[0] for scores_I in scores]
    in_turn = dict.fromkeys(int(i) for places in zip(*orders, strict=True) for i in places)
    merged_I = np.empty(len(in_turn))
    merged_I[list(in_turn)] = -np.arange(len(in_turn))
    return merged_I


def _in_turn(problem: Problem, models: Models) -> np.ndarray:
    return alternating([_estimated(problem, models, attribution="patching"), _attention(problem, models)])


def _contextual(problem: Problem, models: Models) -> np.ndarray:
    """Leave a sentence out of what the local tokens see; the other long-range tokens still saw it."""
    evaluator = dataclasses.replace(problem.evaluator, visibility="contextual")
    losses_1IA = all_but_one_group_losses(
        evaluator, problem.tokens_1T, groups=problem.groups, labels_WA=problem.targets_1[:, None]
    )
    return losses_1IA[0, :, 0].cpu().numpy()


def _attention(problem: Problem, models: Models) -> np.ndarray:
    return problem.groups.sums(long_log_probs_and_attention(problem.evaluator, problem.tokens_1T)[1].cpu().numpy())[0]


def _attribot_context(problem: Problem) -> attribot.Context:
    return attribot.context_of(
        problem.tokens_1T,
        groups_M=problem.groups.groups_WM[0],
        anchor_id=problem.evaluator.anchor_id,
        target=problem.target,
    )


def _cached(problem: Problem, models: Models) -> np.ndarray:
    return attribot.leave_one_out(attribot.Runner(problem.evaluator.model), _attribot_context(problem))


def _hierarchical(problem: Problem, models: Models, *, share: float) -> np.ndarray:
    sentences = np.arange(problem.num_groups)
    paragraphs = np.split(sentences, sentences[PARAGRAPH::PARAGRAPH])
    return attribot.hierarchical(
        attribot.Runner(problem.evaluator.model),
        _attribot_context(problem),
        paragraphs=paragraphs,
        keep=max(1, round(share * len(paragraphs))),
    )


def _proxy(models: Models) -> attribot.Runner:
    assert models.proxy is not None
    return attribot.Runner(models.proxy, models.proxy_share)


def _by_proxy(problem: Problem, models: Models) -> np.ndarray:
    return attribot.leave_one_out(_proxy(models), _attribot_context(problem))


def _pruning(problem: Problem, models: Models, *, share: float) -> np.ndarray:
    return attribot.pruning(
        attribot.Runner(problem.evaluator.model),
        _attribot_context(problem),
        proxy=_proxy(models),
        keep=max(1, round(share * problem.num_groups)),
    )


def _lasso(problem: Problem, models: Models, *, num_masks: int) -> np.ndarray:
    return context_cite(problem, num_masks)


_LASSO = {
    f"ContextCite, {num} masks": Method(partial(_lasso, num_masks=num), whose="ContextCite") for num in LASSO_MASKS
}
METHODS: dict[str, dict[str, Method]] = {
    "tokens": {
        EXACT: Method(_exact_tokens),
        "gradient": Method(partial(_estimated, attribution="gradient"), is_ranking=True),
        "patching": Method(partial(_estimated, attribution="patching"), is_ranking=True),
        "attention": Method(_attention, is_ranking=True),
        BOTH: Method(_in_turn, is_ranking=True),
        **_LASSO,
    },
    "sentences": {
        EXACT: Method(_exact_sentences),
        "attention": Method(_attention, is_ranking=True),
        "contextual": Method(_contextual, is_ranking=True),
        "AttriBoT, key-value cache": Method(_cached, whose="AttriBoT"),
        "AttriBoT, hierarchical 1/2": Method(partial(_hierarchical, share=0.5), whose="AttriBoT"),
        "AttriBoT, hierarchical 1/4": Method(partial(_hierarchical, share=0.25), whose="AttriBoT"),
        "AttriBoT, proxy": Method(_by_proxy, needs_proxy=True, whose="AttriBoT"),
        "AttriBoT, pruning 1/4": Method(partial(_pruning, share=0.25), needs_proxy=True, whose="AttriBoT"),
        **_LASSO,
    },
}
WHOSE = {
    CAPTUM: "captum",
    **{name: method.whose for methods in METHODS.values() for name, method in methods.items()},
}


def _timed(score: Callable[[], np.ndarray]) -> Outcome:
    ran: list[int] = []
    begin = time.process_time()
    with listening(ran.append):
        scores_I = score()
    return Outcome(np.asarray(scores_I, dtype=np.float64), [time.process_time() - begin], sum(ran))


def run_method(method: Method, problem: Problem, models: Models, *, repeats: int = REPEATS) -> Outcome:
    """Run a method on a window, several times where it is quick."""

    def score() -> np.ndarray:
        problem.evaluator.kept_prefixes.clear()  # those of the method before: every method pays for its own
        return method.score(problem, models)

    _ = problem.log_p_short_1V  # computed once, for all methods
    outcome = _timed(score)
    if outcome.seconds[0] < REPEATED_BELOW:
        for _ in range(repeats - 1):
            outcome.seconds.extend(_timed(score).seconds)
    return outcome


def run_captum(problem: Problem) -> Outcome:
    """Run captum on a window; on a few groups where all would take too long: cost by count, and the other scores NaN."""
    evaluator, num_groups = problem.evaluator, problem.num_groups
    rows = evaluator.rows_per_pass(evaluator.window_len(problem.tokens_1T.shape[1]))

    def score(num_scored: int) -> np.ndarray:
        scores_i = captum_of_groups(
            evaluator,
            problem.tokens_1T,
            target=problem.target,
            groups_M=torch.from_numpy(problem.groups.groups_WM[0].copy()),
            unmask=problem.quantity == "tokens",
            num_scored=num_scored,
        )
        return np.append(scores_i.cpu().numpy(), np.full(num_groups - num_scored, np.nan))

    few = min(num_groups, max(FEW, rows))
    trial = _timed(lambda: score(few))
    if few == num_groups:
        return trial
    times = (num_groups + 1) / (few + 1)  # a run more than groups: that of the input
    if times * trial.seconds[0] < LIMIT_SECONDS:
        return _timed(lambda: score(num_groups))
    return Outcome(trial.scores_I, [times * trial.seconds[0]], times * trial.tokens, num_timed=few)
