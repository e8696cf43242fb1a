"""Selectors, by name; whoever adds one writes a function in a family's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from olmo_sparsity.selectors import controls, estimates, exact, policies, rules
from olmo_sparsity.selectors.registry import Selector as Selector
from olmo_sparsity.selectors.registry import names_of as names_of
from olmo_sparsity.selectors.registry import rank as rank
from olmo_sparsity.selectors.registry import selector as selector

NULL_DRAWS = 1  # of the drawn labels, those that choices are made for under the null context, too: a check
# In the order of the tables.
SELECTORS: dict[str, Selector] = {
    one.name: one
    for one in (
        *(exact.unmask_one, exact.kl, estimates.gradient, estimates.attention, controls.random, controls.nearest),
        *(exact.mask_one, exact.greedy, exact.greedy_kl, estimates.greedy_patching, estimates.lasso),
        *(rules.same_token, rules.rarest, rules.bm25, rules.sentence_start),
        *(policies.h2o, policies.snapkv, policies.streaming_llm, policies.key_norm, policies.quest),
    )
}
ALL_SELECTORS = tuple(names_of(one for one in SELECTORS.values() if not one.is_extra))  # what `all` stands for
CONTROLS = tuple(names_of(one for one in SELECTORS.values() if one.is_control))


def is_own(text: str) -> bool:
    """Whether what was named as a selector is one of one's own, as FILE.py:NAME."""
    return re.fullmatch(r".+\.py:[^:]*", text, re.DOTALL) is not None


def meaning_of(name: str, manifest: Mapping[str, Any]) -> str:
    """What the score of a measured selector says; of one of one's own as the manifest has it."""
    own = manifest.get("own_selectors", {}).get(name)
    return str(own["meaning"]) if own else SELECTORS[name].meaning if name in SELECTORS else ""


def num_evaluations(name: str, many: int, *, settings: Any) -> int:
    """Cost of a selector's scores in a window of so many candidates, in forward passes over one row."""
    if name == "lasso":
        return int(settings.lasso_masks)
    cost = SELECTORS[name].num_evaluations
    return cost if isinstance(cost, int) else cost(many, min(max(settings.k), many))
