"""What a measurement was taken of: the model, the definition of visible, the first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import msgspec

from olmo_sparsity.records.measured import Anchor, AnchorCheck, ModelRecord
from olmo_sparsity.records.measured import AnchorChoice as AnchorChoice
from olmo_sparsity.records.measured import PositionIDs as PositionIDs
from olmo_sparsity.records.measured import Visibility as Visibility
from olmo_sparsity.records.selectors import SCREENED


@dataclass(frozen=True)
class Screening:
    """Only some candidates were scored exactly, the best by a cheaper ranking.

    Attributes:
        num_candidates: how many, in each window.
        ranking: what ranked them.
        selectors: whose scores these are.
        precision: of the ranking, in tables of earlier versions; None: that of the losses.
        proxy_sha256: fingerprint of the weights of the model that ranked, in tables of earlier versions; None: it was the
            measured model.
    """

    num_candidates: int
    ranking: str
    selectors: tuple[str, ...]
    precision: Optional[str] = None
    proxy_sha256: Optional[str] = None


@dataclass(frozen=True)
class ModelSetup:
    """What a measurement was taken of, how tokens were hidden, and whether all candidates were scored.

    Attributes:
        model: the pretrained model; None: the model of a run that was trained here.
        visibility: who sees what, ``hidden`` or ``contextual``.
        anchor: the always visible first token; None: there is none.
        anchor_check: what the other choice of the first token gives; None: it was not tried.
        screening: how candidates were screened; None: all of them were scored.
        positions: of the visible tokens, ``kept`` or ``compact``.
        precision: of the losses, ``fp32`` or ``bf16``; None: unknown.
    """

    model: Optional[ModelRecord]
    visibility: Visibility
    anchor: Optional[Anchor]
    anchor_check: Optional[AnchorCheck]
    screening: Optional[Screening] = None
    positions: PositionIDs = "kept"
    precision: Optional[str] = None

    @property
    def anchor_choice(self) -> AnchorChoice:
        """``bos`` if there is an anchor, else ``none``."""
        return "none" if self.anchor is None else "bos"

    @property
    def label(self) -> str:
        """The definition of visible, whether there is an anchor, and whether candidates were screened: ``hidden, no anchor``.

        Compact positions are named, kept ones are not.
        """
        positions = "" if self.positions == "kept" else f", {self.positions} positions"
        screened = "" if self.screening is None else ", screened"
        return f"{self.visibility}{positions}, {'no anchor' if self.anchor is None else 'anchor'}{screened}"

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any]) -> ModelSetup:
        """Read the setup from the manifest of a folder of tables."""
        model, anchor, check = (manifest.get(key) for key in ("model", "anchor", "fit"))
        visibility, positions = definition_of(manifest)
        return cls(
            model=model and msgspec.convert(model, ModelRecord),
            visibility=visibility,
            anchor=anchor and msgspec.convert(anchor, Anchor),
            anchor_check=check and check["anchor"] and msgspec.convert(check["anchor"], AnchorCheck),
            screening=_screening(manifest),
            positions=positions,
            precision=manifest.get("precision"),
        )


def definition_of(manifest: dict[str, Any]) -> tuple[Visibility, PositionIDs]:
    """Return the definition of visible, and the positions of visible tokens; an earlier version, which wrote none, had one."""
    return manifest.get("visibility", "hidden"), manifest.get("positions", "kept")


def _screening(manifest: dict[str, Any]) -> Optional[Screening]:
    settings = manifest.get("influence", {})
    screened = tuple(name for name in settings.get("selectors", ()) if name in SCREENED)
    if settings.get("screen") is None or not screened:
        return None
    return Screening(
        num_candidates=settings["screen"],
        ranking=settings["screen_by"],
        selectors=screened,
        precision=manifest.get("screen_precision"),
        proxy_sha256=manifest.get("screen_proxy", {}).get("weights_sha256"),
    )


def subject_name(run: str, setup: ModelSetup) -> str:
    """Return the short name of the pretrained model, or the name of the run."""
    return run if setup.model is None else setup.model.short_name


def subject_names(subjects: Sequence[tuple[str, ModelSetup]]) -> list[str]:
    """Return the names of several runs or models, as (name of the run, setup); of models with one short name, as they were
    given."""
    names = [subject_name(run, setup) for run, setup in subjects]
    given = [run if setup.model is None else setup.model.name for run, setup in subjects]
    return [
        long if len({one for other, one in zip(names, given, strict=True) if other == name}) > 1 else name
        for name, long in zip(names, given, strict=True)
    ]
