"""How a model is run on windows and visible sets: path, and size of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import cast

from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.model.olmo import OLMoWithPositions


@dataclass(frozen=True)
class Evaluator:
    """A model together with the way it is run.

    Attributes:
        model: the model; its weights have the precision to compute in.
        local_len: L, the number of local tokens, which are always visible.
        path: ``compact`` (OLMo only), ``plain`` or ``masked``; see ``olmo_sparsity.measure.losses``.
        batch_tokens: largest number of tokens in one forward pass; a pass has at least one row.
    """

    model: CausalModel
    local_len: int
    _: KW_ONLY
    path: str = "compact"
    batch_tokens: int = 4096

    def rows_per_pass(self, row_len: int) -> int:
        """Return the number of rows of ``row_len`` tokens in one forward pass."""
        return max(1, self.batch_tokens // row_len)

    def batches(self, num_rows: int, row_len: int) -> Iterator[slice]:
        """Yield slices of ``num_rows`` rows of ``row_len`` tokens, one for each forward pass."""
        rows_per_pass = self.rows_per_pass(row_len)
        for begin in range(0, num_rows, rows_per_pass):
            yield slice(begin, begin + rows_per_pass)

    def row_len(self, full_len: int, set_size: int) -> int:
        """Return the number of tokens that one visible set of ``set_size`` positions makes the model run."""
        return full_len if self.path == "masked" else self.local_len + set_size

    @property
    def olmo(self) -> OLMoWithPositions:
        """The model as an OLMo; only where ``path`` is ``compact``."""
        assert self.path == "compact"
        return cast(OLMoWithPositions, self.model)
