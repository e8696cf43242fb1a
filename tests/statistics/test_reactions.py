"""Reactions: what is read from the tables by plain loops, and where there is hardly a reaction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up import KS, made_up_tables

from olmo_sparsity.statistics.several.reactions import _choice, read_reactions
from olmo_sparsity.tables.reading import read_table


def half_by_hand(recovered: list[float]) -> float:
    """Return the number of tokens at which D reaches one half, linear between the measured k, and between none and the first."""
    before, at_before = 0.0, 0.0
    for k, share in zip(KS, recovered, strict=True):
        if share >= 0.5:
            return before + (0.5 - at_before) / (share - at_before) * (k - before)
        before, at_before = k, share
    return np.inf


def test_reactions_by_loops(tmp_path: Path) -> None:
    folder = made_up_tables(tmp_path / "tables", num_documents=50, selectors=["kl", "attention", "random"])
    read = read_reactions(folder, ["random", "kl"])
    windows = {row["window_id"]: row for row in read_table(folder, "windows").to_pylist()}
    chosen = {
        (row["window_id"], row["context"], row["selector"]): row
        for row in read_table(folder, "selections").to_pylist()
        if "draw" not in row or not row["draw"]
    }
    assert read.windows["window_id"].tolist() == sorted(windows) and set(read.choices) == {"random", "kl"}
    reached = []
    for w, window_id in enumerate(read.windows["window_id"]):
        window = windows[window_id]
        for name in ("doc_id", "weight", "target_class", "train_overlap"):
            assert read.windows[name][w] == window[name]
        assert read.entropy_W[w] == window["entropy_short_nats"]
        for c, (context, prefix) in enumerate({"real": "", "null": "null_"}.items()):
            reaction = window[f"{prefix}kl_short_nats"]
            gain = window["loss_short_no_gap_nats"] - window[f"{prefix}loss_long_nats"]
            assert (read.reaction_CW[c, w], read.gain_CW[c, w]) == pytest.approx((reaction, gain), abs=1e-12)
            for selector, choice in read.choices.items():
                row = chosen[window_id, context, selector]
                recovered = [1 - kl / reaction for kl in row["kl_sparse_nats"]]
                assert choice.distance_CW[c, w] == row["distance_tokens"][0]
                assert choice.sparsity("best")[c, w] == pytest.approx(recovered[0], abs=1e-9)
                assert choice.sparsity("half")[c, w] == pytest.approx(-half_by_hand(recovered), abs=1e-9)
                reached.append(half_by_hand(recovered))
    assert len(set(reached)) > 10


def test_what_hardly_reacts_has_no_sparsity() -> None:
    """Below a millionth of a nat; a reaction of more has one, however small."""
    reaction_CW = np.array([[0.9e-6, 1.1e-6, 0.5], [0.4, 0.0, 1.1e-6]])
    kl_CWK = reaction_CW[..., None] * [0.7, 0.4, 0.1]
    choice = _choice(kl_CWK, reaction_CW, [1, 2, 4], np.ones((2, 3), np.int64))
    reacts_CW = np.array([[False, True, True], [True, False, True]])
    np.testing.assert_allclose(choice.best_CW, np.where(reacts_CW, 0.3, np.nan))
    np.testing.assert_allclose(choice.half_CW, np.where(reacts_CW, -(1 + 0.2 / 0.3), np.nan))
