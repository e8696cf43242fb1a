"""Measuring from Python: open a model, choose windows of one's own text, measure them, get DataFrames.

Importing this loads torch; importing ``olmo_sparsity`` does not.
"""

from olmo_sparsity.api.chosen_windows import ChosenWindows as ChosenWindows
from olmo_sparsity.api.chosen_windows import window_at as window_at
from olmo_sparsity.api.chosen_windows import windows_from_table as windows_from_table
from olmo_sparsity.api.chosen_windows import windows_from_texts as windows_from_texts
from olmo_sparsity.api.chosen_windows import windows_from_tokens as windows_from_tokens
from olmo_sparsity.api.exploring import explore as explore
from olmo_sparsity.api.measuring import losses as losses
from olmo_sparsity.api.measuring import measure as measure
from olmo_sparsity.api.measuring import scores as scores
from olmo_sparsity.api.opening import Model as Model
from olmo_sparsity.api.opening import open_model as open_model
from olmo_sparsity.api.results import Results as Results
from olmo_sparsity.api.results import figure4 as figure4
from olmo_sparsity.api.results import read_results as read_results
from olmo_sparsity.selectors import Selector as Selector
from olmo_sparsity.selectors import selector as selector
