"""The rows of the influence tables from their definitions, by transformers in float64 and without code that measures.

Every position runs under a mask that hides the hidden tokens from all others. Where the package has a function for a part that
other tests hold against its own definition (which windows are drawn, the class of a target), the row is built from it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from sklearn.preprocessing import StandardScaler

from olmo_sparsity.export.conversion import to_transformers
from olmo_sparsity.model.olmo import OLMoWithPositions

SEES_TARGET = {
    "unmask-one": True, "mask-one": True, "greedy": True, "kl": False, "greedy-kl": False, "gradient": True,
    "attention": False, "lasso": True, "nearest": False, "random": False,
}  # fmt: skip
CONTEXTS = ("real", "null")
GATE = 1e-9  # at which the derivative is taken

# Purposes of random generators: [seed, purpose, window, context or draw].
RANDOM_SCORES, LASSO_MASKS, DRAWN_LABELS = 3, 4, 6


def kl(log_p_V: np.ndarray, log_q_V: np.ndarray) -> float:
    """Return KL(p, q) in nats."""
    return float((np.exp(log_p_V) * (log_p_V - log_q_V)).sum())


class Definition:
    """What a model predicts after windows of which it sees the last ``local_len`` tokens and some of the others."""

    def __init__(self, model: OLMoWithPositions, local_len: int) -> None:
        self.local_len = local_len
        self._model = to_transformers(model).double().eval()
        self._model.set_experts_implementation("eager")
        self._eager = copy.deepcopy(self._model)
        self._eager.set_attn_implementation("eager")
        self._known: dict[tuple[tuple[int, ...], frozenset[int]], np.ndarray] = {}

    def log_q(self, tokens: list[int], sets: Iterable[Iterable[int]]) -> np.ndarray:
        """Return the log-probabilities under each visible set of long-range positions, float64 [sets, V]."""
        keys = [(tuple(tokens), frozenset(visible)) for visible in sets]
        new = sorted({key for key in keys if key not in self._known}, key=lambda key: sorted(key[1]))
        if new:
            gates_RT = torch.zeros(len(new), len(tokens), dtype=torch.float64)
            gates_RT[:, max(0, len(tokens) - self.local_len) :] = 1
            for row, (_, visible) in zip(gates_RT, new, strict=True):
                row[list(visible)] = 1
            with torch.no_grad():
                log_q_RV = self._logits(tokens, gates_RT).log_softmax(-1).numpy()
            self._known.update(zip(new, log_q_RV, strict=True))
        return np.stack([self._known[key] for key in keys])

    def gate_derivatives(self, tokens: list[int], p_V: np.ndarray) -> np.ndarray:
        """Return the derivative of a cross-entropy with respect to a gate on one long-range token, near gate 0, for each, [M].

        ``p_V``: probabilities; of the loss, 1 at the label.
        """
        num_long_range = len(tokens) - self.local_len
        gates_M = torch.full((num_long_range,), GATE, dtype=torch.float64, requires_grad=True)
        local_ML = torch.ones(num_long_range, self.local_len, dtype=torch.float64)
        logits_MV = self._logits(tokens, torch.cat([gates_M.diag(), local_ML], dim=1))
        cross_entropy = -(logits_MV.log_softmax(-1) @ torch.from_numpy(p_V)).sum()
        (derivatives_M,) = torch.autograd.grad(cross_entropy, gates_M)
        return np.asarray(derivatives_M.numpy())

    @torch.no_grad()
    def attention(self, tokens: list[int]) -> np.ndarray:
        """Return the attention of the last token to each long-range one under full context, the mean of layers and heads."""
        of_layers = self._eager(torch.tensor([tokens]), output_attentions=True).attentions
        return torch.stack(of_layers)[:, 0, :, -1, : len(tokens) - self.local_len].mean(dim=(0, 1)).double().numpy()

    def _logits(self, tokens: list[int], gates_RT: torch.Tensor) -> torch.Tensor:
        """Run rows whose tokens see themselves, and earlier ones with the attention weight times a gate; float64 [R, V]."""
        num_rows, length = gates_RT.shape
        gates_RTT = gates_RT[:, None, :].expand(-1, length, -1).tril(-1) + torch.eye(length, dtype=torch.float64)
        return self._model(
            torch.tensor([tokens]).expand(num_rows, -1),
            attention_mask=gates_RTT.log()[:, None],
            position_ids=torch.arange(length).expand(num_rows, -1),
            use_cache=False,
        ).logits[:, -1]


@dataclass(frozen=True)
class Choice:
    """What a selector chooses among: the tokens of the window, the label, and the prediction that divergences are from.

    Sets are of groups of long-range positions; by default every position is one.
    """

    definition: Definition
    tokens: list[int]
    label: int
    log_p: np.ndarray
    generator_key: list[int]  # [seed, purpose, window, context] with the purpose left at 0
    groups: Optional[list[list[int]]] = None

    @property
    def members(self) -> list[list[int]]:
        """The positions of each group."""
        return self.groups or [[j] for j in range(len(self.tokens) - self.definition.local_len)]

    def log_q(self, sets: Iterable[Iterable[int]]) -> np.ndarray:
        return self.definition.log_q(self.tokens, [{j for i in chosen for j in self.members[i]} for chosen in sets])

    def costs_of_showing(self, sets: Iterable[Iterable[int]]) -> np.ndarray:
        """Return KL(p_{}, p_S) of each set: minus its mean gain on a label drawn from the short-context prediction."""
        log_p_short_V = self.log_q([[]])[0]
        return np.array([kl(log_p_short_V, log_q_V) for log_q_V in self.log_q(sets)])

    def losses(self, sets: Iterable[Iterable[int]]) -> np.ndarray:
        return -self.log_q(sets)[:, self.label]

    def divergences(self, sets: Iterable[Iterable[int]]) -> np.ndarray:
        return np.array([kl(self.log_p, log_q) for log_q in self.log_q(sets)])

    def sums(self, values_M: np.ndarray) -> np.ndarray:
        """Return the sum of the positions' values in each group."""
        return np.array([values_M[positions].sum() for positions in self.members])

    def generator(self, purpose: int) -> np.random.Generator:
        seed, _, window, context = self.generator_key
        return np.random.default_rng([seed, purpose, window, context])


def tokens_under(window: dict[str, Any], context: str) -> list[int]:
    """Return the tokens of a row of `windows`."""
    tokens, foreign = list(window["token_ids"]), list(window["null_token_ids"])
    return tokens if context in ("real", "resampled") else [*foreign, *tokens[len(foreign) :]]


def choices(
    window: dict[str, Any],
    definition: Definition,
    *,
    selectors: Iterable[str],
    seed: int,
    groups: Optional[dict[str, list[list[int]]]] = None,
) -> Iterator[tuple[str, str, int, Choice]]:
    """Yield (selector, context, draw, what it chooses among) of every row of a window, in the order of the table.

    ``groups``: those of the real and of the null context; by default every position is one.
    """
    everything = range(len(window["null_token_ids"]))
    p_all = {context: definition.log_q(tokens_under(window, context), [everything])[0] for context in CONTEXTS}

    def choice(context: str, label: int) -> Choice:
        foreign = context in ("null", "null-resampled")
        return Choice(
            definition,
            tokens_under(window, context),
            label,
            p_all["null" if foreign else "real"],
            [seed, 0, window["window_id"], int(foreign)],
            groups and groups["null" if foreign else "real"],
        )

    for name in selectors:
        for context in CONTEXTS:
            yield name, context, 0, choice(context, window["target_id"])
        for context in ("resampled", "null-resampled") if SEES_TARGET[name] or name == "random" else ():
            for draw, label in enumerate(window["resampled_target_ids"][: None if context == "resampled" else 1]):
                yield name, context, draw, choice(context, label)


def expected_scores(selector: str, choice: Choice, *, lasso_masks: int, lasso_alpha: float) -> np.ndarray:
    """Return the scores of a selector that is no forward selection, one for each group."""
    everything = range(len(choice.members))
    singles, others = [{i} for i in everything], [set(everything) - {i} for i in everything]
    if selector == "unmask-one":
        return choice.losses([set()]) - choice.losses(singles)
    if selector == "mask-one":
        return choice.losses(others) - choice.losses([set(everything)])
    if selector == "kl":
        return choice.divergences([set()]) - choice.divergences(singles)
    if selector == "gradient":
        is_label_V = (np.arange(len(choice.log_p)) == choice.label).astype(float)
        return choice.sums(-choice.definition.gate_derivatives(choice.tokens, is_label_V))
    if selector == "attention":
        return choice.sums(choice.definition.attention(choice.tokens))
    if selector == "nearest":
        return np.arange(len(everything), dtype=float)
    if selector == "random":
        return choice.generator(RANDOM_SCORES).random(len(everything))
    assert selector == "lasso"
    visible_NI = choice.generator(LASSO_MASKS).random((lasso_masks, len(everything))) < 0.5
    losses_N = choice.losses([set(np.flatnonzero(visible_I).tolist()) for visible_I in visible_NI])
    scaler = StandardScaler()
    fitted = Lasso(alpha=lasso_alpha).fit(scaler.fit_transform(visible_NI.astype(float)), losses_N)
    return -fitted.coef_ / scaler.scale_


def assert_forward_selection(selector: str, choice: Choice, scores: list[float], max_k: int) -> None:
    """Each step takes the group with the lowest value beside those taken before; step i scores max_k - i, others 0."""
    candidates = list(range(len(choice.members)))
    taken = sorted((i for i in candidates if scores[i] != 0), key=lambda i: -scores[i])
    assert [scores[i] for i in taken] == [max_k - step for step in range(min(max_k, len(candidates)))]
    for step, chosen in enumerate(taken):
        left = [i for i in candidates if i not in taken[:step]]
        sets = [{*taken[:step], i} for i in left]
        values = dict(zip(left, (choice.losses if selector == "greedy" else choice.divergences)(sets), strict=True))
        assert values[chosen] <= min(values.values()) + 1e-5


def expected_evaluations(selector: str, num_groups: int, *, max_k: int, lasso_masks: int) -> int:
    """Return the cost of a selector's scores in forward passes; a backward pass counts as two."""
    steps = sum(num_groups - step for step in range(min(max_k, num_groups)))
    cost = {
        "unmask-one": num_groups + 1, "kl": num_groups + 2, "mask-one": num_groups + 1, "greedy": steps,
        "greedy-kl": steps + 1, "gradient": 3, "attention": 1, "lasso": lasso_masks, "nearest": 0, "random": 0,
    }[selector]  # fmt: skip
    return cost


def assert_same_row(row: dict[str, Any], expected: dict[str, Any], *, tolerance: float = 2e-5) -> None:
    """Compare all columns of a row: fractional numbers within the tolerance, everything else exactly."""
    assert set(row) == set(expected), "every column has a definition here"
    for column, value in expected.items():
        is_fractional = value is not None and np.asarray(value).dtype.kind == "f" and np.size(value) > 0
        wanted = pytest.approx(value, abs=tolerance) if is_fractional else value
        assert row[column] == wanted, (column, row.get("selector"), row.get("context"), row[column], value)
