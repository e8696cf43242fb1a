"""The choices that ``benchmarks.set_worth`` compares: k long-range tokens of a window, and the tokens that the model runs for it.

All are chosen without the target (AttriBoT's and ContextCite's see it). Every choice pays for its own pass over the window, which
gives the full-context prediction, the attention, and the keys and values that visible sets go on from.

- a *ranking* takes its k best;
- *best N, kl* unmasks the N best of a ranking one by one, and takes those that move the prediction most;
- *best N, leave-one-out* shows the N best but one, and keeps those whose absence costs most; *to first order*: by an estimate of
  it, from one pass forward and backward with all N visible;
- *best N, greedy-kl by b* is forward selection among the N best, b tokens a step;
- AttriBoT leaves tokens out of the text, as in its paper: other long-range tokens do not see them either, though sets are judged
  under contextual visibility;
- *rounds* take a part of the k tokens each, by a first-order estimate under which those of earlier rounds are visible; those of
  the selector ``greedy-patching`` double.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Optional, cast

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.long_fidelity import chosen
from benchmarks.long_methods import LASSO_MASKS, METHODS, Models, run_method
from benchmarks.long_problems import Problem
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.visible.passes import prefix_of_some
from olmo_sparsity.measure.visible.visibility import with_anchor
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.attribution import AttentionState, Attribution
from olmo_sparsity.model.causal_model import KeysValues
from olmo_sparsity.progress import listening, tokens_ran
from olmo_sparsity.records.selectors import SELECTORS, rank

BLIND = ("random", "nearest")  # cost nothing
POLICIES = ("snapkv", "h2o")
OF_ONE_PASS = ("attention", *POLICIES)  # the scores of these selectors, from one pass over the window
ESTIMATES: tuple[Attribution, ...] = ("gradient", "patching")  # to first order
REFINED = ("attention", "snapkv", "patching")  # whose best N are looked at again
ATTRIBOT = ("AttriBoT, hierarchical 1/4", "AttriBoT, proxy")
SEES_TARGET = (*ATTRIBOT, *(f"ContextCite, {number} masks" for number in LASSO_MASKS))
SMALLEST_REST = 1e-3  # of the attention beside a token that is hidden
DIFFERENTIATED = 3  # forward passes that one forward and one backward pass cost


@dataclass(frozen=True)
class Choice:
    """A set of long-range tokens, and the tokens that the model ran to find it."""

    groups: list[int]
    tokens: float


@dataclass(frozen=True)
class Scored:
    """Scores of the long-range tokens of a window, NaN where there is none, and what they cost."""

    scores_I: np.ndarray
    tokens: float


def scores_of(problem: Problem, *, max_k: int, number: int) -> WindowScores:
    """Return what selectors ask about the window, once the pass has run that every choice pays for.

    Args:
        problem: the window.
        max_k: the largest k.
        number: of the window; it seeds ``random``.
    """
    problem.evaluator.kept_prefixes.clear()
    windows = WindowBatch(problem.tokens_1T, problem.targets_1, window_ids_W=np.array([number]), context="real", seed=0)
    predictions = Predictions(
        problem.evaluator, windows, log_p_short_WV=problem.log_p_short_1V, with_kl=True, with_attention=True
    )
    _ = predictions.attention_WM, predictions.references  # one pass gives both
    prefix_of_some(problem.evaluator, problem.tokens_1T, windows=slice(None))
    return WindowScores(predictions, max_k=max_k)


def pass_tokens(problem: Problem) -> int:
    """Return the tokens of one pass over the window."""
    return problem.evaluator.window_len(problem.tokens_1T.shape[1])


def captum_tokens(problem: Problem) -> int:
    """Return the tokens that captum runs to score every long-range token: the window, and once more for each."""
    return (problem.num_groups + 1) * pass_tokens(problem)


def counted(score: Callable[[], np.ndarray]) -> Scored:
    """Return scores, and the tokens that the model ran for them."""
    ran: list[int] = []
    with listening(ran.append):
        scores_I = score()
    return Scored(np.asarray(scores_I, dtype=np.float64), sum(ran))


def divergences(scores: WindowScores, sets: list[list[int]]) -> np.ndarray:
    """Return KL(p_all, p_S) of sets of one size, nats [R]."""
    rows = (np.zeros(len(sets), dtype=np.int64), np.array(sets, dtype=np.int64).reshape(len(sets), -1))
    ((_, divergences_R),) = scores.evaluate_groups([rows], with_kl=True)
    return divergences_R


def forward_selection(
    scores: WindowScores, candidates: list[int], kl_single_I: np.ndarray, *, k: int, block: int
) -> list[int]:
    """Return k of the candidates, ``block`` each step: those that, each alone with the set so far, leave the least KL.

    Of equal ones the nearer. With ``block`` 1 it is ``greedy-kl`` among the candidates.

    Args:
        scores: of the window.
        candidates: long-range tokens.
        kl_single_I: KL(p_all, p_{j}) of the candidates, which is the first step.
        k: the size of the set.
        block: tokens a step.
    """
    taken: list[int] = []
    while len(taken) < k:
        left = [j for j in candidates if j not in taken]
        kl_I = np.full(scores.num_long_range, np.nan)
        kl_I[left] = divergences(scores, [[*taken, j] for j in left]) if taken else kl_single_I[left]
        taken += chosen(-kl_I, min(block, k - len(taken)))
    return taken


def left_out_one_by_one(scores: WindowScores, candidates: list[int]) -> np.ndarray:
    """Return KL(p_all, p_{S - j}) for each j of the candidates S; NaN for other tokens; [I]."""
    kl_I = np.full(scores.num_long_range, np.nan)
    kl_I[candidates] = divergences(scores, [[i for i in candidates if i != j] for j in candidates])
    return kl_I


def states_beside(problem: Problem, scores: WindowScores, taken: list[int]) -> tuple[list[AttentionState], KeysValues]:
    """Return the attention of the local tokens where some long-range ones are visible, and the keys and values of all of them.

    The attention has the derivatives of KL(p_all, prediction).
    """
    evaluator, num_anchors = problem.evaluator, problem.evaluator.num_anchors
    tokens_1T, positions_1T = with_anchor(problem.tokens_1T, evaluator.anchor_id)
    cut = tokens_1T.shape[1] - evaluator.local_len
    seen = [*range(num_anchors), *(num_anchors + j for j in sorted(taken))]
    p_1V = scores.reference_WV.exp()
    with torch.no_grad():
        prefix = prefix_of_some(evaluator, problem.tokens_1T, windows=slice(None))
        states = evaluator.model.attention_states(
            tokens_1T[:, cut:],
            positions_1T[:, cut:],
            prefix=[(k_1HPE[:, :, seen], v_1HPE[:, :, seen]) for k_1HPE, v_1HPE in prefix] if seen else None,
            loss=lambda logits_1V: F.cross_entropy(logits_1V, p_1V, reduction="sum"),
        )
    assert states is not None, "the attention of the model cannot be read"
    tokens_ran(DIFFERENTIATED * evaluator.local_len)
    return states, [(k_1HPE[:, :, num_anchors:], v_1HPE[:, :, num_anchors:]) for k_1HPE, v_1HPE in prefix]


def estimates_beside(scores: WindowScores, taken: list[int]) -> np.ndarray:
    """Return first-order estimates, highest best, of unmasking each long-range token beside some; NaN for these; [I]."""
    estimates_I = -scores.patching_beside(np.array([taken], dtype=np.int64))[0].astype(np.float64)
    estimates_I[taken] = np.nan
    return estimates_I


def estimates_without(problem: Problem, scores: WindowScores, candidates: list[int]) -> np.ndarray:
    """Return a first-order estimate of what ``left_out_one_by_one`` returns, less KL(p_all, p_S); NaN for other tokens; [I].

    Hiding j with the weight w moves the attention output o by -w / (1 - w) (v - o), if nothing before moves: attribution
    patching, the other way round.
    """
    states, far = states_beside(problem, scores, candidates)
    total_1M = torch.zeros(1, far[0][0].shape[2], device=far[0][0].device)
    for state, (k_1HME, v_1HME) in zip(states, far, strict=True):
        weight_1HNM = ((state.q_BHNE @ k_1HME.transpose(2, 3)).float() - state.log_sum_BHN[..., None]).exp()
        odds_1HNM = weight_1HNM / (1 - weight_1HNM).clamp(min=SMALLEST_REST)
        through_1HNM = (state.gradient_BHNE @ v_1HME.transpose(2, 3)).float()
        lost_1HN = (state.gradient_BHNE.float() * state.out_BHNE.float()).sum(dim=-1)
        total_1M -= (odds_1HNM * (through_1HNM - lost_1HN[..., None])).sum(dim=(-3, -2))
    kl_I = np.full(problem.num_groups, np.nan)
    kl_I[candidates] = total_1M[0].double().cpu().numpy()[candidates]
    return kl_I


def in_rounds(scores: WindowScores, *, k: int, num_rounds: int, first: list[int]) -> list[int]:
    """Return k tokens: those of ``first``, then as many of the others in each round, by ``estimates_beside``."""
    taken = list(first)
    for left in range(num_rounds, 0, -1):
        taken += chosen(estimates_beside(scores, taken), -(-(k - len(taken)) // left))
    return taken


def _is_one_of(name: str, left_out: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}, ") for one in left_out)


class ChoicesOfWindow:
    """Finds the choices of one window, one after the other. They share its pass, and each pays for it."""

    def __init__(self, problem: Problem, models: Models, *, ks: list[int], number: int) -> None:
        """Keep what choices are made of.

        Args:
            problem: the window; of every long-range token.
            models: the proxy.
            ks: the sizes of sets.
            number: of the window.
        """
        self._problem, self._models, self._ks = problem, models, ks
        self._pass = pass_tokens(problem)
        self.scores = scores_of(problem, max_k=max(ks), number=number)
        self._rankings: dict[str, Scored] = {}
        self._kl_single_I = np.full(problem.num_groups, np.nan)  # as of _kl_of_single

    def all(self, without: set[str]) -> Iterator[tuple[int, str, Choice]]:
        """Yield (k, name, choice) of all choices but those that are left out.

        Args:
            without: names of choices, or what they begin with, up to a comma.

        Raises:
            UserError: no choice has such a name.
        """
        names = [*self._ranking_names(), *(name for k in self._ks for name, _ in self._sets(k))]
        for left_out in without:
            if not any(_is_one_of(name, {left_out}) for name in names):
                raise UserError(
                    f"--without {left_out}: no choice has this name; choose of: {'; '.join(dict.fromkeys(names))}"
                )
        for name in (name for name in self._ranking_names() if not _is_one_of(name, without)):
            scored = self._ranking(name)
            for k in self._ks:
                of_ranking = rank(scored.scores_I[None])[0, :k]  # those without a score come last
                yield k, name, Choice(of_ranking.tolist(), scored.tokens)
        for k in self._ks:
            for name, find in self._sets(k):
                if not _is_one_of(name, without):
                    yield k, name, find()

    def _ranking_names(self) -> list[str]:
        names = [*BLIND, *OF_ONE_PASS, *ESTIMATES, "kl", *SEES_TARGET]
        return [name for name in names if self._models.proxy is not None or name != "AttriBoT, proxy"]

    def _ranking(self, name: str) -> Scored:
        """Return the scores of a ranking, and what it costs with the pass where it takes one."""
        if name not in self._rankings:
            self._rankings[name] = self._score(name)
        return self._rankings[name]

    def _score(self, name: str) -> Scored:
        if name in BLIND:
            return counted(lambda: SELECTORS[name].score(self.scores)[0])
        if name in SEES_TARGET:  # they run on their own
            quantity = "sentences" if name in ATTRIBOT else "tokens"  # AttriBoT's sources are single tokens here
            kept = list(self._problem.evaluator.kept_prefixes)
            outcome = run_method(METHODS[quantity][name], self._problem, self._models, repeats=1)
            self._problem.evaluator.kept_prefixes.extend(kept)
            return Scored(outcome.scores_I, outcome.tokens)
        if name in POLICIES:  # what they read is of the pass, too
            return Scored(SELECTORS[name].score(self.scores)[0].astype(np.float64), self._pass)
        if name in ("attention", "kl"):
            found = counted(lambda: SELECTORS[name].score(self.scores)[0])
            if name == "kl":
                self._kl_single_I = -found.scores_I
            return self._paid(found)
        return self._paid(counted(lambda: -self.scores.estimates("kl", attribution=cast("Attribution", name))[0]))

    def _paid(self, found: Scored) -> Scored:
        return dataclasses.replace(found, tokens=self._pass + found.tokens)

    def _sets(self, k: int) -> Iterator[tuple[str, Callable[[], Choice]]]:
        """Yield what looks at more than one token of a ranking at a time, by its name."""
        several = [number for number in (3 * k // 2, 2 * k, 4 * k) if number < self._problem.num_groups]
        names = self._ranking_names()
        for ranking in (name for name in REFINED if name in names):
            for number in several:
                yield f"{ranking}, best {number}, kl", partial(self._singles, ranking, number, k=k)
        for number in several:
            name, find = f"attention, best {number}, leave-one-out", partial(self._left_out, "attention", number, k=k)
            yield name, partial(find, is_exact=True)
            yield f"{name} to first order", partial(find, is_exact=False)
        for ranking in ("attention", "kl"):
            blocks = [(number, k // 2) for number in several[:1]] + [(number, k // 4) for number in several[1:2]]
            blocks += [(number, 1) for number in several[1:2]]
            for number, block in dict.fromkeys((number, max(1, block)) for number, block in blocks):
                name = f"{ranking}, best {number}, greedy-kl by {block}"
                yield name, partial(self._forward, ranking, number, k=k, block=block)
        yield "greedy-kl", partial(self._forward, None, self._problem.num_groups, k=k, block=1)
        for num_rounds in (number for number in (2, 4) if number <= k):
            yield f"patching, {num_rounds} rounds", partial(self._in_rounds, num_rounds, k=k, num_first=0)
        yield "attention, then patching, 2 rounds", partial(self._in_rounds, 2, k=k, num_first=k // 2)
        yield "greedy-patching", partial(self._greedy_patching, k=k)

    def _singles(self, ranking: str, number: int, *, k: int) -> Choice:
        scored = self._ranking(ranking)
        best = chosen(scored.scores_I, number)
        scores_I = np.full(self._problem.num_groups, np.nan)
        scores_I[best] = -self._kl_of_single(best)[best]
        return Choice(chosen(scores_I, k), scored.tokens + number * self._problem.evaluator.local_len)

    def _kl_of_single(self, candidates: list[int]) -> np.ndarray:
        """Return KL(p_all, p_{j}) of all that have been needed, the candidates among them; NaN for others; [I]."""
        unknown = [j for j in candidates if np.isnan(self._kl_single_I[j])]
        if unknown:
            self._kl_single_I[unknown] = divergences(self.scores, [[j] for j in unknown])
        return self._kl_single_I

    def _left_out(self, ranking: str, number: int, *, k: int, is_exact: bool) -> Choice:
        scored = self._ranking(ranking)
        best = chosen(scored.scores_I, number)
        if is_exact:
            found = counted(lambda: left_out_one_by_one(self.scores, best))
        else:
            found = counted(lambda: estimates_without(self._problem, self.scores, best))
        return Choice(chosen(found.scores_I, k), scored.tokens + found.tokens)

    def _forward(self, ranking: Optional[str], number: int, *, k: int, block: int) -> Choice:
        before, candidates = float(self._pass), list(range(number))
        if ranking is not None:
            before, candidates = self._ranking(ranking).tokens, chosen(self._ranking(ranking).scores_I, number)
        if ranking != "kl":  # else the first step is what ranks
            before += number * self._problem.evaluator.local_len
        first_I = self._kl_of_single(candidates)
        found = counted(lambda: np.array(forward_selection(self.scores, candidates, first_I, k=k, block=block)))
        return Choice([int(j) for j in found.scores_I], before + found.tokens)

    def _in_rounds(self, num_rounds: int, *, k: int, num_first: int) -> Choice:
        first = chosen(self._ranking("attention").scores_I, num_first)
        found = counted(lambda: np.array(in_rounds(self.scores, k=k, num_rounds=num_rounds, first=first)))
        return Choice([int(j) for j in found.scores_I], self._pass + found.tokens)

    def _greedy_patching(self, *, k: int) -> Choice:
        of_size = dataclasses.replace(self.scores, max_k=k)
        found = self._paid(counted(lambda: SELECTORS["greedy-patching"].score(of_size)[0]))
        return Choice(chosen(found.scores_I, k), found.tokens)
