"""Two measurements side by side: the numbers that both have, and their differences with intervals."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np
import pandas as pd

from olmo_sparsity.errors import UserError
from olmo_sparsity.selectors import SELECTORS
from olmo_sparsity.selectors.registry import NAME
from olmo_sparsity.statistics.frames import Frames, read_frames
from olmo_sparsity.statistics.quantities import QUANTITIES, estimate, read_estimates
from olmo_sparsity.statistics.seeds import SAME_WINDOWS
from olmo_sparsity.tables import find_tables, model_name

KEYS = ["quantity", "selector", "context", "k"]
ENDS = ["value", "low", "high"]
CHOSEN = "its selector"  # the name of both selectors where RUN:SELECTOR names them
SAME_TOKENS = ("tokens_sha256", "tokenizer_sha256")  # keys of a manifest; one of them must agree

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Comparison:
    """Two measurements side by side."""

    labels: tuple[str, str]
    frame: pd.DataFrame  # KEYS, and ENDS with the suffixes _a, _b and _difference (b minus a); NaN where there is none
    is_paired: bool  # both have the same windows
    has_same_tokens: bool  # otherwise there are no differences in nats
    seeing: list[str]  # selectors that see the target


@dataclass(frozen=True)
class Subject:
    """A measurement that is compared."""

    tables: Path
    frames: Frames  # where a selector is named, of that one under the name CHOSEN, and of `random`
    selector: Optional[str]

    @property
    def name(self) -> str:
        """The run or model, with the selector that is named."""
        manifest = self.frames.manifest
        model = model_name(manifest)
        return f"{model}:{self.selector}" if self.selector else str(model)

    def estimates(self) -> pd.DataFrame:
        """The numbers of all windows, with the selector under the name that it has in ``frames``."""
        table = read_estimates(self.tables)
        table = table[table["group"].isna() & table["x"].isna()]
        if self.selector is not None:
            table = table[table["selector"].isna() | (table["selector"] == self.selector)]
            table = table.assign(selector=table["selector"].replace({self.selector: CHOSEN}))
        return table


def compare(first: str, second: str) -> Comparison:
    """Compare two measurements, each named as RUN or RUN:SELECTOR; a RUN may be the folder of a measurement.

    Raises:
        UserError: there is no measurement, or it lacks the selector, or only one of the two names one.
    """
    a, b = _subject(first), _subject(second)
    if (a.selector is None) != (b.selector is None):
        raise UserError("compare: name a selector for both runs, as RUN:kl, or for none")
    _warn_of_sources(a, b)
    difference = estimate(b.frames, minus=a.frames)
    if a.selector is not None:
        difference = difference[difference["selector"].isna() | (difference["selector"] == CHOSEN)]
    frame = _renamed(difference, "_difference")
    for suffix, of in (("_a", a), ("_b", b)):
        frame = frame.merge(_renamed(of.estimates(), suffix), how="left", on=KEYS)
    has_same_tokens = any(_agree(a, b, key) for key in SAME_TOKENS)
    in_nats = np.array([QUANTITIES[name].unit == "nats" for name in frame["quantity"]], dtype=bool)
    is_known = frame["value_a"].notna() & frame["value_b"].notna() & (has_same_tokens | ~in_nats)
    frame.loc[~is_known, [f"{end}_difference" for end in ENDS]] = np.nan
    sees_target = pd.concat([a.frames.selectors, b.frames.selectors])["sees_target"]
    lengths = [(of.frames.lengths.local_len, of.frames.lengths.full_len) for of in (a, b)]
    return Comparison(
        labels=(a.name, b.name) if a.name != b.name else (first, second),
        frame=frame,
        is_paired=lengths[0] == lengths[1] and all(_agree(a, b, key) for key in SAME_WINDOWS),
        has_same_tokens=has_same_tokens,
        seeing=sorted(set(sees_target.index[sees_target])),
    )


def _subject(text: str) -> Subject:
    """Read a measurement."""
    head, _, tail = text.rpartition(":")  # a path that exists is a RUN as it is, colon or not
    is_split = head != "" and not Path(text).exists() and (tail in SELECTORS or NAME.fullmatch(tail) is not None)
    tables, selector = find_tables(Path(head if is_split else text)), tail if is_split else None
    frames = read_frames(tables)
    if selector is not None:
        measured = list(frames.selectors.index)
        if selector not in measured:
            raise UserError(f"{text}: {selector} was not measured there; the selectors are {', '.join(measured)}")
        names = {selector: CHOSEN, **({"random": "random"} if "random" in measured and selector != "random" else {})}
        frames = frames.renamed(names)
    return Subject(tables, frames, selector)


def _renamed(table: pd.DataFrame, suffix: str) -> pd.DataFrame:
    return table[KEYS + ENDS].rename(columns={end: end + suffix for end in ENDS})


def _agree(a: Subject, b: Subject, key: str) -> bool:
    """True if both are one measurement, or their manifests have the same value of a key."""
    value = a.frames.manifest.get(key)
    return a.tables == b.tables or (value is not None and bool(value == b.frames.manifest.get(key)))


def _warn_of_sources(a: Subject, b: Subject) -> None:
    """Warn of a selector of the user's whose source is another one in each measurement, or not known."""
    own_a, own_b = (of.frames.manifest.get("own_selectors", {}) for of in (a, b))
    for name in own_a.keys() & own_b.keys() if a.tables != b.tables else ():
        if own_a[name]["sha256"] is None or own_a[name]["sha256"] != own_b[name]["sha256"]:
            logger.warning(f"{a.tables} and {b.tables}: the selector {name} is not known to be the same in both")
