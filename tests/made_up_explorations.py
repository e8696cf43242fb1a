"""An exploration of invented tokens and numbers that differ in every place: a page that shows a wrong one is found out."""

from __future__ import annotations

import numpy as np

from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.view.exploration import (
    Exploration,
    ExploredChoices,
    ExploredContext,
    ExploredSelector,
    Numbers,
    Record,
)
from olmo_sparsity.wording.tokens import unseen_words

LOCAL, FULL = 3, 9
KS = [1, 2, 4]
TOLERANCES = [0.01, 0.05, 0.1, 0.5]
SELECTORS = ["kl", "attention", "unmask-one", "random"]


def made_up_exploration(
    texts: list[str], *, seed: int = 0, long_gain: float = 0.3, groups: bool = False
) -> Exploration:
    """Return an exploration of these tokens.

    Args:
        texts: the tokens.
        seed: of the numbers.
        long_gain: of which size the divergences are, in nats.
        groups: k counts words, of two tokens each.
    """
    rng = np.random.default_rng(seed)
    num_targets, far = len(texts) - FULL, FULL - LOCAL

    def distinct(low: float, high: float, *shape: int) -> np.ndarray:
        """Return numbers of which no two are alike to three digits behind the point, as far as there are so many."""
        return np.round(rng.uniform(low, high, shape), 7)

    def choices() -> ExploredChoices:
        order = np.argsort(rng.random((num_targets, far)), axis=1)[:, : KS[-1]]
        kl_WK = distinct(0.0, long_gain, num_targets, len(KS)) / np.array([1, 3, 9])
        return ExploredChoices(
            distances=(FULL - order).tolist(),
            ranks=[[1, 1, 2, 2]] * num_targets if groups else None,
            loss_sparse_nats=distinct(1.0, 9.0, num_targets, len(KS)).tolist(),
            kl_sparse_nats=np.round(kl_WK, 7).tolist(),
        )

    def context() -> ExploredContext:
        return ExploredContext(
            loss_long_nats=distinct(1.0, 9.0, num_targets).tolist(),
            kl_short_nats=distinct(0.0, long_gain, num_targets).tolist(),
            choices={name: choices() for name in SELECTORS},
        )

    optimism: list[Numbers | None] = distinct(0.0, 0.4, num_targets, len(KS)).tolist()
    record = Record(
        texts=texts,
        offsets=np.cumsum([0, *map(len, texts[:-1])]).tolist(),
        first_target=FULL,
        local_len=LOCAL,
        full_len=FULL,
        unit=("word", "words") if groups else ("token", "tokens"),
        ks=KS,
        tolerances_nats=(TOLERANCES, 0.05),
        selectors=[
            ExploredSelector(name, name == "unmask-one", optimism if name == "unmask-one" else None)
            for name in SELECTORS
        ],
        loss_short_nats=distinct(1.0, 9.0, num_targets).tolist(),
        contexts={"real": context(), "null": context()},
        null_begins=rng.integers(0, len(texts) - far, num_targets).tolist(),
        null_orders=[None if target % 2 else rng.permutation(far).tolist() for target in range(num_targets)],
        unseen=unseen_words(texts),
    )
    setup = ModelSetup(model=None, visibility="hidden", anchor=None, anchor_check=None)
    return Exploration("made <b>up</b>.txt", "runs & co", setup, "shuffled", record)
