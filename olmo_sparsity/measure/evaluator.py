"""How a model is run on windows and visible sets: path, precision and size of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from olmo_sparsity.model.olmo import CausalModel, OLMoWithPositions


@dataclass(frozen=True)
class Evaluator:
    """A model, and how it is run: ``path`` is ``compact``, ``plain`` or ``masked``; at most ``batch_tokens`` tokens at
    once (but one row at least). ``compact`` knows OLMo alone."""

    model: CausalModel
    local_len: int
    path: str = "compact"
    batch_tokens: int = 4096

    def rows_at_once(self, row_len: int) -> int:
        """Rows of ``row_len`` tokens in a forward pass."""
        return max(1, self.batch_tokens // row_len)

    def batches(self, num_rows: int, row_len: int) -> Iterator[slice]:
        """Slices of ``num_rows`` rows of ``row_len`` tokens, each slice a forward pass."""
        rows_at_once = self.rows_at_once(row_len)
        for begin in range(0, num_rows, rows_at_once):
            yield slice(begin, begin + rows_at_once)

    def row_len(self, full_len: int, set_size: int) -> int:
        """Tokens that are run for one visible set."""
        return full_len if self.path == "masked" else self.local_len + set_size

    @property
    def olmo(self) -> OLMoWithPositions:
        """The model, where ``path`` is ``compact``."""
        assert self.path == "compact"
        return cast(OLMoWithPositions, self.model)
