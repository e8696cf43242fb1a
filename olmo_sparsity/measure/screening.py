"""Screening: a cheap ranking chooses the candidates that are unmasked one by one."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Optional

from olmo_sparsity.config import Config
from olmo_sparsity.measure.batch_size import make_evaluator
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.model.devices import has_bf16_units


@dataclass(frozen=True)
class ScreeningSettings:
    """How the candidates of a window are screened.

    Attributes:
        num_candidates: candidates that are unmasked one by one, the best of the ranking.
        ranking: ``gradient`` ranks to first order; ``unmask-one`` unmasks every candidate with ``ranker``.
        ranker: the model that ranks, for example in lower precision; None: the model whose losses are reported.
    """

    num_candidates: int
    _: KW_ONLY
    ranking: str = "gradient"
    ranker: Optional[Evaluator] = None


def make_screening(
    config: Config, model: CausalModel, *, precision: str, anchor_id: Optional[int] = None
) -> Optional[ScreeningSettings]:
    """Return the screening that ``config.influence`` asks for, or None where nothing is screened.

    Args:
        config: ``influence.screen``, ``screen_by``, ``screen_precision``, and the lengths.
        model: the model.
        precision: of the losses that are reported.
        anchor_id: token ID of the anchor in front of every window; None: there is none.
    """
    settings, lengths = config.influence, config.measured_lengths
    if settings.screen is None:
        return None
    ranking_precision = settings.screen_precision
    if ranking_precision == "auto":
        ranking_precision = "bf16" if has_bf16_units(model.device) else "fp32"
    ranker = None
    if ranking_precision != precision:
        ranker = make_evaluator(
            model,
            settings,
            full_len=lengths.full_len,
            local_len=lengths.local_len,
            precision=ranking_precision,
            anchor_id=anchor_id,
        )
    return ScreeningSettings(settings.screen, ranking=settings.screen_by, ranker=ranker)
