"""Every selector by its formula: a score for each group of long-range tokens; the k highest are J_k."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import sentencex
from measure import Window
from sklearn.linear_model import Lasso
from sklearn.preprocessing import StandardScaler

CLOSE = 1e-4  # nats: a forward selection may take either of two candidates that are as close
SEED, LASSO_MASKS = 3, 24


def best(scores: Sequence[float], k: int) -> list[int]:
    """Return J_k, the best first; of equal scores the nearer."""
    return sorted(range(len(scores)), key=lambda j: (-scores[j], -j))[:k]


def mask_one(w: Window) -> list[float]:
    everything = set(range(len(w.groups)))
    return [w.loss(everything - {j}) - w.loss(everything) for j in everything]


def gradient(w: Window) -> np.ndarray:
    """Minus the derivative of the loss by a gate on the attention to each token, at gate 0."""
    return w.sums(w.derivative(j)[w.label] for j in range(w.num_long_range))


def lasso(w: Window) -> np.ndarray:
    """ContextCite's surrogate: minus the weights of a sparse linear model of the loss over random visible sets."""
    masks = np.random.default_rng([SEED, 4, *w.draw_key]).random((LASSO_MASKS, len(w.groups))) < 0.5
    scaler, model = StandardScaler(), Lasso(alpha=0.01)
    model.fit(scaler.fit_transform(masks.astype(np.float64)), [w.loss(np.flatnonzero(mask)) for mask in masks])
    return -model.coef_ / scaler.scale_


def _forward(
    w: Window,
    k: int,
    measured: Sequence[int],
    values: Callable[[list[int]], Sequence[float]],
    *,
    doubling: bool = False,
) -> list[int]:
    """Return k for the group that is taken first, one less for each later one, else 0.

    Each step takes the group with the lowest value beside those taken before, of equal ones the nearer; that of ``measured``, the
    groups that the measurement took, if it is as close. ``doubling``: values serve rounds of 1, 1, 2, 4, ... steps.
    """
    taken: list[int] = []
    while len(taken) < min(k, len(w.groups), len(measured)):
        left = {j: value for j, value in enumerate(values(taken)) if j not in taken}
        for there in measured[len(taken) : 2 * len(taken) or 1] if doubling else measured[len(taken) :][:1]:
            lowest = min(left, key=lambda j: (left[j], -j))
            taken.append(there if left.get(there, np.inf) < left[lowest] + CLOSE else lowest)
            del left[taken[-1]]
    return [k - taken.index(j) if j in taken else 0 for j in range(len(w.groups))]


def greedy(w: Window, k: int, measured: Sequence[int]) -> list[int]:
    """Each step takes the group that lowers loss(J so far + j) most."""
    return _forward(w, k, measured, lambda taken: [w.loss([*taken, j]) for j in range(len(w.groups))])


def greedy_kl(w: Window, k: int, measured: Sequence[int]) -> list[int]:
    """Each step takes the group that lowers KL(p_all, p_{J so far + j}) most."""
    return _forward(w, k, measured, lambda taken: [w.kl([*taken, j]) for j in range(len(w.groups))])


def greedy_patching(w: Window, k: int, measured: Sequence[int]) -> list[int]:
    """Rounds of 1, 1, 2, 4, ... take the groups that lower KL(p_all, p) most to first order, beside earlier rounds.

    To first order: by the share with which every attention output of the local tokens moves to the output with the token.
    """

    def changes(taken: list[int]) -> np.ndarray:
        beside = [position for group in taken for position in w.groups[group]]
        slopes = [w.derivative(j, beside, blend=True) for j in range(w.num_long_range)]
        return w.sums(-np.exp(w.everything.log_probs) @ np.transpose(slopes))

    return _forward(w, k, measured, changes, doubling=True)


def _far(w: Window, values: np.ndarray) -> np.ndarray:
    """Return the mean over layers and heads of [layers, heads, tokens of the row] at the long-range tokens."""
    return values.mean(axis=(0, 1))[len(w.anchor) :][: w.num_long_range]


def h2o(w: Window) -> np.ndarray:
    """Attention of all tokens of the window, summed."""
    return w.sums(_far(w, w.everything.attention.sum(axis=2)))


def snapkv(w: Window) -> np.ndarray:
    """Attention of the last 32 local tokens, averaged over 5 neighbours; beyond the long-range tokens it is 0."""
    paid = [0, 0, *_far(w, w.everything.attention[:, :, -min(32, w.local_len) :].sum(axis=2)), 0, 0]
    return w.sums(sum(paid[j : j + 5]) / 5 for j in range(w.num_long_range))


def streaming_llm(w: Window) -> list[int]:
    """The groups of the first 4 tokens, the anchor included, then the nearest."""
    many = len(w.groups)
    return [2 * many - i if first + len(w.anchor) < 4 else i for i, first in enumerate(w.first)]


def quest(w: Window) -> np.ndarray:
    """The largest product that the last token's query may have with a key of the page of 16 tokens that j is in."""
    query, keys = w.everything.queries[:, :, -1], w.everything.keys[:, :, len(w.anchor) :][:, :, : w.num_long_range]
    pages = [keys[:, :, j - j % 16 : j - j % 16 + 16] for j in range(w.num_long_range)]
    return w.sums(np.maximum(query * p.max(axis=2), query * p.min(axis=2)).sum(axis=-1).mean() for p in pages)


def bm25(w: Window) -> list[float]:
    """BM25 with k1 = 1.2, b = 0.75: the documents are the groups, the query is the local tokens, each occurrence a term."""
    documents, scores = [[w.tokens[j] for j in group] for group in w.groups], [0.0] * len(w.groups)
    for term in w.tokens[w.num_long_range :]:
        holding = sum(term in document for document in documents)
        rarity = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
        for i, document in enumerate(documents):
            count, length = document.count(term), len(document) * len(documents) / w.num_long_range
            scores[i] += rarity * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length))
    return scores


def sentence_start(w: Window) -> np.ndarray:
    """1 where a token is in a later sentence than the one before it: that of its first character that is no white space."""
    sentences = sentencex.segment("en", "".join(w.texts))
    ends = [end for end, own in zip(np.cumsum([*map(len, sentences)]), sentences, strict=True) if own.strip()]
    numbers, begin = [], 0
    for text in w.texts[: w.num_long_range]:
        first = begin + len(text) - len(text.lstrip())
        numbers.append(np.searchsorted(ends, first, side="right") if text.strip() else (numbers or [0])[-1])
        begin += len(text)
    return w.sums([0, *(np.diff(numbers) > 0)])


FORWARD = {"greedy": greedy, "greedy-kl": greedy_kl, "greedy-patching": greedy_patching}
SELECTORS = {
    "unmask-one": lambda w: [w.loss([]) - w.loss([j]) for j in range(len(w.groups))],
    "kl": lambda w: [w.kl([]) - w.kl([j]) for j in range(len(w.groups))],
    "random": lambda w: np.random.default_rng([SEED, 3, *w.draw_key]).random(len(w.groups)),
    "nearest": lambda w: [*range(len(w.groups))],
    "attention": lambda w: w.sums(_far(w, w.everything.attention[:, :, -1])),
    "key-norm": lambda w: w.sums(_far(w, -np.sqrt((w.everything.keys**2).sum(axis=-1)))),
    "same-token": lambda w: w.sums(token in w.tokens[w.num_long_range :] for token in w.tokens[: w.num_long_range]),
    "rarest": lambda w: w.sums(-w.counts[token] for token in w.tokens[: w.num_long_range]),
    "mask-one": mask_one, "gradient": gradient, "lasso": lasso, "h2o": h2o, "snapkv": snapkv, "streaming-llm": streaming_llm,
    "quest": quest, "bm25": bm25, "sentence-start": sentence_start, **FORWARD,
}  # fmt: skip
OF_ENTRIES = ("greedy-patching", "h2o", "snapkv", "streaming-llm", "key-norm", "quest")  # under contextual only
