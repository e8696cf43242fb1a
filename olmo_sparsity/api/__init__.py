"""Measuring from Python: open a model, choose windows, measure them, get DataFrames. Mistakes raise ``UserError``, in one line.

Importing this loads torch; importing ``olmo_sparsity`` does not.
"""

from olmo_sparsity.api.exploring import Exploration, explore
from olmo_sparsity.api.measuring import losses, measure, scores
from olmo_sparsity.api.opening import Model, open_model
from olmo_sparsity.api.results import Results, read_results
from olmo_sparsity.api.windows import ChosenWindows, window_at, windows_from_texts, windows_from_tokens
from olmo_sparsity.selectors import Selector, selector

__all__ = [
    "ChosenWindows", "Exploration", "Model", "Results", "Selector", "explore", "losses", "measure", "open_model", "read_results",
    "scores", "selector", "window_at", "windows_from_texts", "windows_from_tokens",
]  # fmt: skip
