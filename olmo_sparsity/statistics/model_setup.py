"""What a measurement was taken of: the model, the definition of visible, the first token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, Optional

from olmo_sparsity.config.pretrained import telling_name
from olmo_sparsity.records.selectors import SCREENED

Visibility = Literal["hidden", "contextual"]
AnchorChoice = Literal["bos", "none"]
CLEARLY = 2  # standard errors by which one choice must be better than the other


@dataclass(frozen=True)
class MeasuredModel:
    """A pretrained model, as the manifest records it under ``model``.

    Attributes:
        name: its folder, file or hub repository, as it was given.
        revision: resolved commit on the hub; None for files of this machine.
        weights_sha256: fingerprint of the weights.
        num_parameters: number of parameters.
        dtype: of the weights in memory, such as ``bfloat16``.
    """

    name: str
    revision: Optional[str]
    weights_sha256: str
    num_parameters: int
    dtype: str

    @property
    def short_name(self) -> str:
        """The name on the hub, or the last part of the path that tells which model it is."""
        return telling_name(PurePath(self.name)) if self.revision is None else self.name


@dataclass(frozen=True)
class Anchor:
    """The first token that is always visible to everyone; it is neither local nor long-range.

    Attributes:
        token_id: its ID.
        text: its text.
    """

    token_id: int
    text: str


@dataclass(frozen=True)
class AnchorCheck:
    """The mean loss with all tokens visible under both choices of the first token, on the same few windows.

    Attributes:
        loss_long_nats: of each choice.
        text: the anchor that was tried.
        num_windows: number of windows.
        standard_error_nats: of the difference of the two losses, window by window; None: it is not known.
    """

    loss_long_nats: dict[AnchorChoice, float]
    text: str
    num_windows: int
    standard_error_nats: Optional[float]


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
    """

    model: Optional[MeasuredModel]
    visibility: Visibility
    anchor: Optional[Anchor]
    anchor_check: Optional[AnchorCheck]
    screening: Optional[Screening] = None

    @property
    def anchor_choice(self) -> AnchorChoice:
        """``bos`` if there is an anchor, else ``none``."""
        return "none" if self.anchor is None else "bos"

    @property
    def better_anchor_choice(self) -> Optional[AnchorChoice]:
        """The other choice of the first token, if the mean loss with all tokens visible is lower under it; else None.

        Lower by more than two standard errors: among few windows the means differ by chance.
        """
        if self.anchor_check is None or self.anchor_check.standard_error_nats is None:
            return None
        losses, chosen = self.anchor_check.loss_long_nats, self.anchor_choice
        other: AnchorChoice = "none" if chosen == "bos" else "bos"
        lower_by = losses[chosen] - losses[other]
        return other if lower_by > CLEARLY * self.anchor_check.standard_error_nats else None

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any]) -> ModelSetup:
        """Read the setup from the manifest of a folder of tables."""
        model, anchor = manifest.get("model"), manifest.get("anchor")
        check = (manifest.get("fit") or {}).get("anchor")
        return cls(
            model=model
            and MeasuredModel(
                model["name"], model["revision"], model["weights_sha256"], model["num_parameters"], model["dtype"]
            ),
            visibility=manifest.get("visibility", "hidden"),
            anchor=anchor and Anchor(anchor["id"], anchor["text"]),
            anchor_check=check
            and AnchorCheck(
                check["loss_long_nats"], check["text"], check["num_windows"], check.get("standard_error_nats")
            ),
            screening=_screening(manifest),
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
