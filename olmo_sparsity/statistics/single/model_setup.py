"""What a measurement was taken of: the model, the definition of visible, the first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import msgspec

from olmo_sparsity.records.measured import Anchor, AnchorCheck, ModelRecord
from olmo_sparsity.records.measured import AnchorChoice as AnchorChoice
from olmo_sparsity.records.measured import Visibility as Visibility


@dataclass(frozen=True)
class ModelSetup:
    """What a measurement was taken of, and how tokens were hidden.

    Attributes:
        model: the pretrained model; None: the model of a run that was trained here.
        visibility: who sees what, ``hidden`` or ``contextual``.
        anchor: the always visible first token; None: there is none.
        anchor_check: what the other choice of the first token gives; None: it was not tried.
        precision: of the losses, ``fp32`` or ``bf16``; None: unknown.
    """

    model: Optional[ModelRecord]
    visibility: Visibility
    anchor: Optional[Anchor]
    anchor_check: Optional[AnchorCheck]
    precision: Optional[str] = None

    @property
    def anchor_choice(self) -> AnchorChoice:
        """``bos`` if there is an anchor, else ``none``."""
        return "none" if self.anchor is None else "bos"

    @property
    def label(self) -> str:
        """The definition of visible, and whether there is an anchor: ``hidden, no anchor``."""
        return f"{self.visibility}, {'no anchor' if self.anchor is None else 'anchor'}"

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any]) -> ModelSetup:
        """Read the setup from the manifest of a folder of tables."""
        model, anchor, check = (manifest.get(key) for key in ("model", "anchor", "fit"))
        return cls(
            model=model and msgspec.convert(model, ModelRecord),
            visibility=manifest.get("visibility", "hidden"),
            anchor=anchor and msgspec.convert(anchor, Anchor),
            anchor_check=check and check["anchor"] and msgspec.convert(check["anchor"], AnchorCheck),
            precision=manifest.get("precision"),
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
