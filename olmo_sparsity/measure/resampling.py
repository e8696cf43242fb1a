"""The resampled target: a label drawn from the short-context prediction, for which the long context cannot matter.

A selector that sees the target gains even where the long-range tokens hold nothing: among M candidates it picks those that
happened to raise the probability of this target. If the target is replaced by a label that is drawn from the prediction p_{}
of the local tokens alone, the long-range tokens carry no information about it, and whatever the selector gains on it is
selection luck.
"""

from __future__ import annotations

import numpy as np
import torch

RESAMPLED_LABELS = 6  # purpose of a random generator; a change would change the tables


def draw_labels(log_p_short_WV: torch.Tensor, window_ids_W: np.ndarray, *, seed: int, num_draws: int) -> torch.Tensor:
    """Draw labels from the short-context prediction of each window.

    A label is the winner of an exponential race: with E_v exponential and independent, argmin E_v / p_v has distribution p.
    Unlike a search in cumulative sums, the race hardly depends on the rounding of p, which the size of a forward pass changes.

    Args:
        log_p_short_WV: log-probabilities with only the local tokens visible, fp32.
        window_ids_W: int64, the numbers of the windows.
        seed: draw A of a window is a function of its prediction and (seed, number of the window, A) alone.
        num_draws: A, labels of each window.

    Returns:
        int64 [W, A], on the device of the predictions.
    """
    num_windows, vocab_size = log_p_short_WV.shape
    labels_WA = np.empty((num_windows, num_draws), dtype=np.int64)
    for w, window_id in enumerate(window_ids_W.tolist()):
        log_p_V = log_p_short_WV[w].cpu().numpy()
        for draw in range(num_draws):
            rng = np.random.default_rng([seed, RESAMPLED_LABELS, window_id, draw])
            labels_WA[w, draw] = np.argmax(log_p_V - np.log(rng.standard_exponential(vocab_size)))
    return torch.from_numpy(labels_WA).to(log_p_short_WV.device)
