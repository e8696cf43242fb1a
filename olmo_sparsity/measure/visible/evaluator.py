"""How a model is run on windows and visible sets: what visible means, path, and size of a forward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Optional

import torch

from olmo_sparsity.measure.visible.visibility import Visibility
from olmo_sparsity.model.causal_model import CausalModel, KeysValues
from olmo_sparsity.model.olmo import OLMoWithPositions


@dataclass(frozen=True)
class Evaluator:
    """A model together with the way it is run.

    Attributes:
        model: the model; its weights have the precision to compute in.
        local_len: L, the number of local tokens, which are always visible.
        path: ``compact``, ``plain`` or ``masked``; see ``olmo_sparsity.measure.visible.losses``.
        batch_tokens: largest number of tokens in one forward pass; a pass has at least one row.
        visibility: what a hidden token is hidden from; see ``olmo_sparsity.measure.visible.visibility``.
        anchor_id: token ID of the anchor in front of every window; None: there is none.
        kept_prefixes: windows, and the keys and values of what precedes their local tokens: of the latest two blocks, kept
            for the next question about the same windows. The tokens must not be changed in place.
    """

    model: CausalModel
    local_len: int
    _: KW_ONLY
    path: str = "compact"
    batch_tokens: int = 4096
    visibility: Visibility = "hidden"
    anchor_id: Optional[int] = None
    kept_prefixes: deque[tuple[torch.Tensor, KeysValues]] = field(
        default_factory=lambda: deque(maxlen=2), init=False, repr=False, compare=False
    )

    def rows_per_pass(self, row_len: int) -> int:
        """Return the number of rows of ``row_len`` tokens in one forward pass."""
        return max(1, self.batch_tokens // row_len)

    def batches(self, num_rows: int, row_len: int) -> Iterator[slice]:
        """Yield slices of ``num_rows`` rows of ``row_len`` tokens, one for each forward pass."""
        rows_per_pass = self.rows_per_pass(row_len)
        for begin in range(0, num_rows, rows_per_pass):
            yield slice(begin, begin + rows_per_pass)

    @property
    def num_anchors(self) -> int:
        """The number of tokens in front of a window: 1 or 0."""
        return 0 if self.anchor_id is None else 1

    def window_len(self, full_len: int) -> int:
        """Return the number of tokens of a window with its anchor."""
        return self.num_anchors + full_len

    def row_len(self, full_len: int, set_size: int) -> int:
        """Return the number of tokens that one visible set of ``set_size`` positions makes the model run."""
        return self.window_len(full_len if self.path == "masked" else self.local_len + set_size)

    def needs_prefix(self, set_size: int) -> bool:
        """Return whether a visible set's row goes on from the keys and values of all long-range tokens of its window.

        With no long-range token visible both definitions of visible are the same. With all of them they are, too, but other
        rows of the window need the prefix.
        """
        return self.goes_on_from_prefix and set_size > 0

    @property
    def goes_on_from_prefix(self) -> bool:
        """Whether the keys and values of all long-range tokens of a window are computed once, for all of its rows."""
        return self.visibility == "contextual" and self.path != "masked"

    @property
    def compact_olmo(self) -> Optional[OLMoWithPositions]:
        """The model as an OLMo whose rows ``olmo_sparsity.model.compact`` computes; None: it does not."""
        return self.model if self.path == "compact" and isinstance(self.model, OLMoWithPositions) else None

    @property
    def shared_olmo(self) -> Optional[OLMoWithPositions]:
        """The same where, besides, rows share what ``olmo_sparsity.model.compact`` can share; None elsewhere."""
        is_shared = self.visibility == "hidden" and self.anchor_id is None
        return self.compact_olmo if is_shared else None
