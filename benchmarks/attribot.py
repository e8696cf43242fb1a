"""The methods of AttriBoT (Liu, Kandpal, Raffel, ICLR 2025, arXiv 2411.15102), written anew for windows of tokens.

AttriBoT's own code takes text with a chat template, and models of an earlier transformers. Here are its algorithms, on the tokens
and the position IDs of a window:

- leave-one-out with a key-value cache: the whole context runs once, and without a source only what stands behind the source;
- hierarchical: leave out one paragraph at a time, keep the paragraphs that cost most, then leave out one source at a time of a
  context that holds only these;
- proxy: leave-one-out by a smaller model;
- pruning: the smaller model chooses the sources, and the model leaves out one at a time of a context that holds only these.

A source is a group of long-range tokens. Sources that are not kept have no score.

Shape letters: Y visible tokens, P tokens of a prefix, I sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch

from olmo_sparsity.measure.visible.visibility import with_anchor
from olmo_sparsity.model.causal_model import CausalModel, KeysValues
from olmo_sparsity.progress import tokens_ran


@dataclass(frozen=True)
class Context:
    """A window of which sources can be left out.

    Attributes:
        tokens_T: int64, the anchor if there is one, the long-range tokens and the local ones; each keeps its position ID.
        groups_M: int64, the source of each long-range token.
        num_anchors: tokens in front of the long-range ones.
        target: the token whose loss is asked for.
    """

    tokens_T: torch.Tensor
    groups_M: np.ndarray
    num_anchors: int
    target: int

    def visible(self, sources: np.ndarray) -> torch.Tensor:
        """Return the position IDs, int64 [Y], of the anchor, the tokens of some sources and the local tokens."""
        shown_T = np.ones(len(self.tokens_T), dtype=bool)
        shown_T[self.num_anchors : self.num_anchors + len(self.groups_M)] = np.isin(self.groups_M, sources)
        return torch.from_numpy(np.flatnonzero(shown_T)).to(self.tokens_T.device)


def context_of(tokens_1T: torch.Tensor, *, groups_M: np.ndarray, anchor_id: Optional[int], target: int) -> Context:
    """Return the context of a window without its target."""
    anchored_1T, _ = with_anchor(tokens_1T, anchor_id)
    return Context(anchored_1T[0], groups_M, int(anchor_id is not None), target)


@dataclass(frozen=True)
class Runner:
    """A model that is asked for losses.

    Attributes:
        model: the model.
        share: its cost a token, relative to the model whose fidelity is measured; it scales the count of tokens.
    """

    model: CausalModel
    share: float = 1.0

    def ran(self, num_tokens: int) -> None:
        """Count tokens."""
        tokens_ran(round(self.share * num_tokens))


@dataclass(frozen=True)
class _Cache:
    """The keys and values of all but the last token of one visible set, and its loss."""

    positions_Y: torch.Tensor
    prefix: KeysValues
    loss: float


def _loss(logits_1V: torch.Tensor, target: int) -> float:
    return -float(logits_1V[0].float().log_softmax(dim=-1)[target])


def _fill(runner: Runner, context: Context, positions_Y: torch.Tensor) -> _Cache:
    """Run a visible set, and keep what the runs of smaller ones can share."""
    tokens_1Y, positions_1Y = context.tokens_T[positions_Y][None], positions_Y[None]
    prefix = runner.model.keys_values(tokens_1Y[:, :-1], positions_1Y[:, :-1])
    logits_1V = runner.model.last_logits_after(tokens_1Y[:, -1:], positions_1Y[:, -1:], prefix=prefix)
    runner.ran(len(positions_Y))
    return _Cache(positions_Y, prefix, _loss(logits_1V, context.target))


def _loss_from(cache: _Cache, runner: Runner, context: Context, positions_Y: torch.Tensor) -> float:
    """Return the loss under a visible set; what it begins with in common with the cached one is not run again."""
    most = min(len(positions_Y) - 1, len(cache.positions_Y) - 1)
    differs = (positions_Y[:most] != cache.positions_Y[:most]).nonzero()[:, 0]
    shared = int(differs[0]) if len(differs) else most
    rest_1Y = positions_Y[None, shared:]
    tokens_1Y = context.tokens_T[rest_1Y]
    if shared:
        prefix = [(k_1HPE[:, :, :shared], v_1HPE[:, :, :shared]) for k_1HPE, v_1HPE in cache.prefix]
        logits_1V = runner.model.last_logits_after(tokens_1Y, rest_1Y, prefix=prefix)
    else:
        logits_1V = runner.model.last_logits(tokens_1Y, rest_1Y)
    runner.ran(rest_1Y.shape[1])
    return _loss(logits_1V, context.target)


def _costs(runner: Runner, context: Context, *, sources: np.ndarray, left_out: list[np.ndarray]) -> np.ndarray:
    """Return loss(sources without some) - loss(sources) for each entry of ``left_out``, fp64."""
    cache = _fill(runner, context, context.visible(sources))
    return np.array(
        [
            _loss_from(cache, runner, context, context.visible(np.setdiff1d(sources, without))) - cache.loss
            for without in left_out
        ]
    )


def _all_sources(context: Context) -> np.ndarray:
    return np.unique(context.groups_M)


def _best(costs: np.ndarray, keep: int) -> np.ndarray:
    """Return which entries cost at least as much as the one that costs ``keep``-th most; equal ones are all kept."""
    return np.flatnonzero(costs >= np.sort(costs)[-min(keep, len(costs))])


def _costs_of_some(runner: Runner, context: Context, *, kept: np.ndarray) -> np.ndarray:
    """Return leave-one-out of the kept sources in a context that holds only these, fp64 [I]; NaN for the others."""
    scores_I = np.full(len(_all_sources(context)), np.nan)
    scores_I[kept] = _costs(runner, context, sources=kept, left_out=[np.array([i]) for i in kept])
    return scores_I


@torch.inference_mode()
def leave_one_out(runner: Runner, context: Context) -> np.ndarray:
    """Return loss(all but source i) - loss(all) for every source, fp64 [I]. With a smaller model: AttriBoT's proxy."""
    return _costs_of_some(runner, context, kept=_all_sources(context))


@torch.inference_mode()
def hierarchical(runner: Runner, context: Context, *, paragraphs: list[np.ndarray], keep: int) -> np.ndarray:
    """Return leave-one-out among the sources of the paragraphs that cost most, fp64 [I]; NaN for the other sources.

    Args:
        runner: the model.
        context: the window.
        paragraphs: the sources of each paragraph.
        keep: paragraphs whose sources are left out one at a time.
    """
    costs = _costs(runner, context, sources=_all_sources(context), left_out=paragraphs)
    kept = np.sort(np.concatenate([paragraphs[i] for i in _best(costs, keep)]))
    return _costs_of_some(runner, context, kept=kept)


@torch.inference_mode()
def pruning(runner: Runner, context: Context, *, proxy: Runner, keep: int) -> np.ndarray:
    """Return leave-one-out among the sources that cost a proxy most, fp64 [I]; NaN for the other sources."""
    return _costs_of_some(runner, context, kept=_best(leave_one_out(proxy, context), keep))
