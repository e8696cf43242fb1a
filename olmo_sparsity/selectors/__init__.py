"""Selectors by name. To add one, write a function in its family's file and list it here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Optional, TypedDict

import msgspec

from olmo_sparsity.selectors import controls, estimates, exact, policies, rules
from olmo_sparsity.selectors.registry import NAME
from olmo_sparsity.selectors.registry import Selector as Selector
from olmo_sparsity.selectors.registry import rank as rank
from olmo_sparsity.selectors.registry import selector as selector

NULL_DRAWS = 1  # drawn labels for which choices are also made under the null context, as a check
# In the order of the tables. ``olmo_sparsity.selectors.own`` adds those of a user.
SELECTORS: dict[str, Selector] = {
    one.name: one
    for one in (
        *(exact.unmask_one, exact.kl, estimates.gradient, estimates.attention, controls.random, controls.nearest),
        *(exact.mask_one, exact.greedy, exact.greedy_kl, estimates.greedy_patching, estimates.lasso),
        *(rules.same_token, rules.rarest, rules.bm25, rules.sentence_start),
        *(policies.h2o, policies.snapkv, policies.streaming_llm, policies.key_norm, policies.quest),
    )
}
ALL_SELECTORS = tuple(name for name, one in SELECTORS.items() if not one.is_extra)  # what `all` stands for
CONTROLS = tuple(name for name, one in SELECTORS.items() if one.is_control)


class OwnEntry(TypedDict):
    """What a manifest records of a user's selector."""

    file: str
    sha256: Optional[str]  # None: its source was typed in
    meaning: str
    sees_target: bool


OwnEntries = dict[Annotated[str, msgspec.Meta(pattern=f"^{NAME.pattern}$")], OwnEntry]  # `own_selectors` of a manifest


def is_own(text: str) -> bool:
    """Whether a selector is named as one of a user's file, FILE.py:NAME."""
    return re.fullmatch(r".+\.py:[^:]*", text, re.DOTALL) is not None


def meaning_of(name: str, manifest: Mapping[str, Any]) -> str:
    """What the score of a measured selector says; the manifest has it for a user's selector, whose file is not run again."""
    own = manifest.get("own_selectors", {}).get(name)
    return str(own["meaning"]) if own else SELECTORS[name].meaning if name in SELECTORS else ""


def own_entries(names: Iterable[str]) -> OwnEntries:
    """What a manifest records of a user's selectors among these names."""
    entries = {}
    for one in (SELECTORS[name] for name in names):
        if one.source is not None:
            file, sha256 = one.source
            entries[one.name] = OwnEntry(file=file, sha256=sha256, meaning=one.meaning, sees_target=one.sees_target)
    return entries


def sources_of(names: Iterable[str]) -> list[tuple[str, Optional[str]]]:
    """A user's selectors among these names, each with the SHA-256 of its source; None where it is not known."""
    return [(name, entry["sha256"]) for name, entry in own_entries(names).items()]
