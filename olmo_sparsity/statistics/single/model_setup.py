"""What a measurement was taken of: the model, the definition of visible, the first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, Optional

import msgspec

from olmo_sparsity.config.pretrained import telling_name
from olmo_sparsity.records.measured import Anchor
from olmo_sparsity.records.measured import AnchorChoice as AnchorChoice
from olmo_sparsity.records.measured import PositionIDs as PositionIDs
from olmo_sparsity.records.measured import Visibility as Visibility
from olmo_sparsity.records.selectors import SCREENED

ComparedLength = Literal["short", "long"]  # the local tokens alone, or all tokens
# Standard errors by which the loss with all tokens visible must be lower. Earlier versions looked once, at that loss alone, and
# their manifests do not say what this decides.
CLEARLY = 2


@dataclass(frozen=True)
class MeasuredModel:
    """A pretrained model, as the manifest records it under ``model``.

    Attributes:
        name: its folder, file or hub repository, as it was given.
        revision: resolved commit on the hub; None for files of this machine.
        weights_sha256: fingerprint of the weights.
        num_parameters: number of parameters.
        dtype: of the weights in memory, such as ``bfloat16``.
        rope_scaling: how its rotary positions were scaled, such as ``yarn:4``; None: as it has them.
    """

    name: str
    revision: Optional[str]
    weights_sha256: str
    num_parameters: int
    dtype: str
    rope_scaling: Optional[str] = None

    @property
    def short_name(self) -> str:
        """The name on the hub, or the last part of the path that tells which model it is, and how its positions are scaled."""
        name = telling_name(PurePath(self.name)) if self.revision is None else self.name
        return name if self.rope_scaling is None else f"{name} {self.rope_scaling}"


@dataclass(frozen=True)
class AnchorCheck:
    """Mean losses of the same windows with a BOS in front and without.

    Attributes:
        chosen: with which the model was measured.
        text: the BOS, as the tokenizer writes it.
        num_windows: how many windows.
        loss_short_nats: with the local tokens alone, of each choice.
        loss_long_nats: with all tokens, of each choice.
        standard_error_short_nats: of the difference of the two means with the local tokens alone; None: it is not known.
        standard_error_nats: the same with all tokens.
        lower_with: the choice with which each mean is lower; None: these windows do not decide it. Without ``short``: earlier
            versions did not ask.
    """

    chosen: AnchorChoice
    text: str
    num_windows: int
    loss_short_nats: dict[AnchorChoice, float]
    loss_long_nats: dict[AnchorChoice, float]
    standard_error_short_nats: Optional[float]
    standard_error_nats: Optional[float]
    lower_with: dict[ComparedLength, Optional[AnchorChoice]]

    @property
    def other(self) -> AnchorChoice:
        """The choice with which the model was not measured."""
        return "none" if self.chosen == "bos" else "bos"

    @property
    def is_settled(self) -> bool:
        """Whether more windows would change nothing: a mean is lower with the other choice, or both with the chosen one."""
        found = set(self.lower_with.values())
        return self.other in found or None not in found

    @property
    def is_undecided(self) -> bool:
        """Whether neither mean is known to be lower with either choice."""
        return not any(self.lower_with.values())


@dataclass(frozen=True)
class Screening:
    """Only some candidates were scored exactly, the best by a cheaper ranking.

    Attributes:
        num_candidates: how many, in each window.
        ranking: what ranked them.
        selectors: whose scores these are.
        precision: of the ranking; older manifests do not say it.
        proxy_sha256: fingerprint of the weights of the model that ranked; None: it was the measured model.
    """

    num_candidates: int
    ranking: str
    selectors: tuple[str, ...]
    precision: Optional[str]
    proxy_sha256: Optional[str]


@dataclass(frozen=True)
class ModelSetup:
    """What a measurement was taken of, how tokens were hidden, and whether all candidates were scored.

    Attributes:
        model: the pretrained model; None: the model of a run that was trained here.
        visibility: who sees what, ``hidden`` or ``contextual``; manifests that do not say it are ``hidden``.
        anchor: the always visible first token; None: there is none.
        anchor_check: what the other choice of the first token gives; None: it was not tried.
        screening: how candidates were screened; None: all of them were scored.
        positions: of the visible tokens, ``kept`` or ``compact``; manifests that do not say it are ``kept``.
    """

    model: Optional[MeasuredModel]
    visibility: Visibility
    anchor: Optional[Anchor]
    anchor_check: Optional[AnchorCheck]
    screening: Optional[Screening] = None
    positions: PositionIDs = "kept"

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
        model, anchor = manifest.get("model"), manifest.get("anchor")
        return cls(
            model=model and msgspec.convert(model, MeasuredModel),
            visibility=manifest.get("visibility", "hidden"),
            anchor=anchor and Anchor(anchor["id"], anchor["text"]),
            anchor_check=_anchor_check((manifest.get("fit") or {}).get("anchor"), "bos" if anchor else "none"),
            screening=_screening(manifest),
            positions=manifest.get("positions", "kept"),
        )


def _anchor_check(entry: Optional[dict[str, Any]], chosen: AnchorChoice) -> Optional[AnchorCheck]:
    if entry is None:
        return None
    error, losses = entry.get("standard_error_nats"), entry["loss_long_nats"]
    lower_with = entry.get("lower_with")
    if lower_with is None:
        difference = losses["bos"] - losses["none"]
        is_clear = error is not None and abs(difference) > CLEARLY * error
        lower_with = {"long": ("bos" if difference < 0 else "none") if is_clear else None}
    return AnchorCheck(
        chosen=chosen,
        text=entry["text"],
        num_windows=entry["num_windows"],
        loss_short_nats=entry.get("loss_short_nats", {}),
        loss_long_nats=losses,
        standard_error_short_nats=entry.get("standard_error_short_nats"),
        standard_error_nats=error,
        lower_with=lower_with,
    )


def _screening(manifest: dict[str, Any]) -> Optional[Screening]:
    settings = manifest.get("influence", {})
    screened = tuple(name for name in settings.get("selectors", ()) if name in SCREENED)
    if settings.get("screen") is None or not screened:
        return None
    return Screening(
        num_candidates=settings["screen"],
        ranking=settings.get("screen_by", "gradient"),
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
