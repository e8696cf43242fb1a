"""Screening: a cheap ranking chooses the candidates that are unmasked one by one."""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Optional

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import InfluenceConfig, PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.setup.fit import CHECKED_WINDOWS, check_fit
from olmo_sparsity.measure.visible.batch_size import make_evaluator
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.model.devices import has_bf16_units
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.text.windows import Windows

if TYPE_CHECKING:
    from olmo_sparsity.measure.setup.opened_model import OpenedModel
    from olmo_sparsity.model.pretrained import PretrainedModel


@dataclass(frozen=True)
class ScreeningSettings:
    """How the candidates of a window are screened.

    Attributes:
        num_candidates: candidates that are unmasked one by one, the best of the ranking.
        ranking: ``gradient``, ``patching`` and ``attention`` need one pass (``olmo_sparsity.model.attribution``); ``hierarchy``
            unmasks blocks of tokens, then smaller ones within the best; ``proxy`` unmasks every candidate.
        ranker: the model that ranks: a proxy, or the model in lower precision; None: the model whose losses are reported.
    """

    num_candidates: int
    _: KW_ONLY
    ranking: str
    ranker: Optional[Evaluator] = None


@dataclass(frozen=True)
class RankingModel:
    """The model that ranks candidates.

    Attributes:
        precision: in which it ranks, ``fp32`` or ``bf16``.
        proxy: a smaller model; None: the measured model itself.
    """

    precision: str
    proxy: Optional[PretrainedModel] = None


def open_ranking_model(
    settings: InfluenceConfig, opened: OpenedModel, *, allow_pickle: bool = False
) -> Optional[RankingModel]:
    """Open the model that ranks: the one that ``influence.screen_proxy`` names, or the measured one; None: nothing is screened.

    Args:
        settings: which model ranks, and how.
        opened: the model that is measured.
        allow_pickle: as ``pretrained.allow_pickle``.

    Raises:
        UserError: there is no such model, it has another tokenizer or too few positions, or nothing would rank more cheaply.
    """
    if settings.screen is None:
        return None
    precision = _ranking_precision(settings, opened)
    if settings.screen_proxy is None:
        if settings.ranking == "proxy" and precision == opened.precision:
            raise UserError(
                f"influence.screen_by = proxy: without influence.screen_proxy the model itself ranks, in {precision}, which is "
                "the precision of the losses and saves nothing; name a smaller model with the same tokenizer "
                "(influence.screen_proxy), or set influence.screen_precision to bf16"
            )
        return RankingModel(precision)
    from olmo_sparsity.model.pretrained import open_pretrained  # it needs libraries that runs do not need

    named = PretrainedConfig(settings.screen_proxy, allow_pickle=allow_pickle)
    proxy = open_pretrained(named, device=opened.device, precision="bf16" if precision == "bf16" else "fp32")
    where = f"influence.screen_proxy = {settings.screen_proxy}"
    _check_tokenizer(where, proxy.tokenizer, tokenizer=opened.tokenizer)
    longest = opened.lengths.full_len + opened.num_anchors
    if proxy.record.max_position < longest:
        raise UserError(
            f"{where}: it has {proxy.record.max_position} positions, and the windows take {longest}; choose a proxy with as many"
        )
    return RankingModel(precision, proxy)


def check_proxy(settings: InfluenceConfig, opened: OpenedModel, *, ranking: RankingModel, windows: Windows) -> None:
    """Check on the first windows that a proxy, where there is one, can be run as the model that is measured must be.

    Rankings hide tokens, too: a proxy that does not keep them hidden would rank by something else.

    Raises:
        UserError: it cannot; the message tells what was found.
    """
    if ranking.proxy is None:
        return
    tokens_WT = windows.tokens(np.arange(min(CHECKED_WINDOWS, len(windows))))
    check_fit(
        ranking.proxy.model,
        torch.from_numpy(tokens_WT).to(ranking.proxy.model.device),
        name=f"influence.screen_proxy = {settings.screen_proxy}",
        local_len=opened.lengths.local_len,
        dtype=torch.bfloat16 if ranking.precision == "bf16" else torch.float32,
        anchor_id=opened.anchor_id,
    )


def _check_tokenizer(where: str, of_proxy: Tokenizer, *, tokenizer: Tokenizer) -> None:
    """Check that every token of the measured model has the same ID in the proxy.

    Raises:
        UserError: a token has another, or none.
    """
    theirs = of_proxy.get_vocab(with_added_tokens=True)
    for text, token_id in sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda entry: entry[1]):
        if theirs.get(text) != token_id:
            has = "has no such token" if text not in theirs else f"has it at {theirs[text]}"
            raise UserError(
                f"{where}: its tokenizer is not that of the measured model, where token {token_id} is {text!r}; the proxy {has}; "
                "choose a model of the same family"
            )


def _ranking_precision(settings: InfluenceConfig, opened: OpenedModel) -> str:
    """Return the precision that candidates are ranked in; it may depend on the device.

    Raises:
        UserError: a model on several devices, which cannot be copied, would have to be copied into another precision.
    """
    asked, own = settings.screen_precision, opened.precision
    if opened.is_spread and settings.screen_proxy is None:
        if asked not in ("auto", own):
            raise UserError(
                f"influence.screen_precision = {asked}: a model under pretrained.device_map ranks in the precision of its "
                f"losses, {own}; leave it at auto, or name a smaller model (influence.screen_proxy)"
            )
        return own
    if asked == "auto":
        needs_fp32 = isinstance(opened.model, OLMoWithPositions) and opened.model.needs_fp32
        return "bf16" if has_bf16_units(opened.device) and not needs_fp32 else "fp32"
    return asked


def make_screening(
    settings: InfluenceConfig, opened: OpenedModel, *, ranking: Optional[RankingModel]
) -> Optional[ScreeningSettings]:
    """Return the screening that ``settings`` ask for, or None where nothing is screened.

    Args:
        settings: the keys of screening, the path, and the size of a forward pass.
        opened: the model that is measured.
        ranking: of ``open_ranking_model``.
    """
    if settings.screen is None or ranking is None:
        return None
    proxy, ranker = ranking.proxy, None
    if proxy is not None or ranking.precision != opened.precision:
        ranker = make_evaluator(
            opened.model if proxy is None else proxy.model,
            # A proxy ranks by its visible tokens; the path is about the losses that are reported.
            settings if proxy is None else dataclasses.replace(settings, path="compact"),
            full_len=opened.lengths.full_len,
            local_len=opened.lengths.local_len,
            precision=ranking.precision,
            anchor_id=opened.anchor_id,
        )
    return ScreeningSettings(settings.screen, ranking=settings.ranking, ranker=ranker)


def labels_in_vocabulary(labels: torch.Tensor, size: int) -> torch.Tensor:
    """Return labels below ``size``, int64: larger ones, which only padding of the measured model has, become the last entry."""
    return labels.clamp(max=size - 1)


def in_vocabulary(log_p_WV: torch.Tensor, size: int) -> torch.Tensor:
    """Return log-probabilities over another number of entries, fp32 [W, size].

    Models with one tokenizer may differ in the padding behind its entries, which has next to no probability.
    """
    missing = size - log_p_WV.shape[-1]
    if missing == 0:
        return log_p_WV
    return torch.nn.functional.pad(log_p_WV, (0, missing), value=torch.finfo(torch.float16).min)
