"""Reactions: what is read from the tables by plain loops, and where there is hardly a reaction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up import made_up_tables

from olmo_sparsity.statistics.several.reactions import _choice, read_reactions
from olmo_sparsity.tables.reading import read_table


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
    for w, window_id in enumerate(read.windows["window_id"]):
        window = windows[window_id]
        for name in ("doc_id", "weight"):
            assert read.windows[name][w] == window[name]
        assert read.entropy_W[w] == window["entropy_short_nats"]
        for c, (context, prefix) in enumerate({"real": "", "null": "null_"}.items()):
            reaction = window[f"{prefix}kl_short_nats"]
            gain = window["loss_short_no_gap_nats"] - window[f"{prefix}loss_long_nats"]
            assert (read.reaction_CW[c, w], read.gain_CW[c, w]) == pytest.approx((reaction, gain), abs=1e-12)
            for selector, choice in read.choices.items():
                row = chosen[window_id, context, selector]
                recovered = 1 - row["kl_sparse_nats"][0] / reaction
                assert choice.distance_CW[c, w] == row["distance_tokens"][0]
                assert choice.best_CW[c, w] == pytest.approx(recovered, abs=1e-9)


def test_what_hardly_reacts_has_no_sparsity() -> None:
    """Below a millionth of a nat; a reaction of more has one, however small."""
    reaction_CW = np.array([[0.9e-6, 1.1e-6, 0.5], [0.4, 0.0, 1.1e-6]])
    choice = _choice(0.7 * reaction_CW, reaction_CW, np.ones((2, 3), np.int64))
    reacts_CW = np.array([[False, True, True], [True, False, True]])
    np.testing.assert_allclose(choice.best_CW, np.where(reacts_CW, 0.3, np.nan))
