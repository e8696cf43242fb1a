"""Explores a whole document: every token that follows a full window is a target; in Python a table, in a browser a page."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from olmo_sparsity.api.arguments import typed
from olmo_sparsity.api.measuring import BATCH, batches, measured_tables
from olmo_sparsity.api.opening import Ks, Model, settings_of
from olmo_sparsity.api.windows import ChosenWindows, window_at, windows_of_text
from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.statistics.quantities import counted, units_of
from olmo_sparsity.text.places import encode_text
from olmo_sparsity.text.tokenizer import token_texts
from olmo_sparsity.view import explore as view
from olmo_sparsity.view import pages
from olmo_sparsity.view.console import null_context
from olmo_sparsity.view.window import SEES_TARGET, window_of

# Selectors where none is named. They do not see the target, and those for a pretrained model are cheap.
OF_RUN, OF_PRETRAINED = ("kl", "attention"), ("attention", "nearest")
NUM_LIKELY = 5  # tokens that are shown of each prediction


@dataclass(frozen=True)
class Exploration:
    """A document and the numbers of each of its targets. A notebook shows it as its page."""

    source: str
    manifest: dict[str, Any] = field(repr=False)
    data: dict[str, Any] = field(repr=False)  # the JSON of the page; `explored` makes it

    @property
    def targets(self) -> pd.DataFrame:
        """A row for each target: its place, losses and reaction in nats, and by selector the smallest sufficient k."""
        data, first = self.data, self.data["first"]
        frame = pd.DataFrame({"offset": data["offsets"][first:], "text": data["texts"][first:]})
        frame = frame.assign(**{name: np.array(data[name], dtype=float) for name in view.OF_TARGETS})
        frame.index = pd.RangeIndex(first, len(data["texts"]), name="token")
        for one in data["selectors"]:
            kl_WK = np.column_stack([frame["kl_short_nats"], np.array(one["kl"], dtype=float)])
            is_enough = kl_WK <= data["tolerance"]
            k = np.array([0, *data["ks"]], dtype=float)[is_enough.argmax(axis=1)]
            frame[f"sufficient_k_{one['name']}"] = np.where(is_enough.any(axis=1), k, np.inf)
        return frame

    @property
    def found(self) -> str:
        """How many targets the long context moves, and how many tokens half of these need, in two sentences."""
        name, ks = self.data["selectors"][0]["name"], self.data["ks"]
        needed = self.targets[f"sufficient_k_{name}"]
        moved, tolerance = needed[needed > 0], f"{self.data['tolerance']:g} nats"
        found = f"The long context moves {len(moved):,} of {len(needed):,} predictions of {self.source} by more than {tolerance}."
        if moved.empty:
            return found
        half = moved.quantile(0.5, interpolation="lower")
        bound = "at most" if np.isfinite(half) else "more than"
        return f"{found} Half of these need {bound} {counted(int(min(half, ks[-1])), self.manifest)} picked by {name}."

    def to_html(self) -> str:
        """One self-contained page, which loads nothing and sends nothing."""
        data, manifest = self.data, self.manifest
        return pages.render(
            "explore", source=self.source, manifest=manifest, data=data, found=self.found, one_document=view.ONE_DOCUMENT,
            sees=SEES_TARGET, many=units_of(manifest), far=data["full_len"] - data["local_len"], null=null_context(manifest),
        )  # fmt: skip

    def save_html(self, page: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page, and return its path."""
        return pages.write_page(Path(os.path.expanduser(page)), self.to_html(), overwrite=overwrite)

    def _repr_html_(self) -> str:
        page, style = escape(self.to_html(), quote=True), "width: 100%; height: 900px; border: 0"
        return f'<iframe sandbox="allow-scripts" srcdoc="{page}" style="{style}"></iframe>'


@typed
def explore(
    model: Model,
    text: str,
    *,
    selectors: Optional[Sequence[Any]] = None,
    k: Optional[Ks] = None,
    seed: Optional[int] = None,
    source: str = "text",
    unit: Optional[str] = None,
    folder: Any = None,
) -> Exploration:
    """Measure the window in front of every token of a text that follows a full window; ``source`` is its name.

    ``selectors``, ``k``, ``seed`` and ``unit`` are as in ``measure``; `random` is always measured. By default a run is measured
    with `kl` and `attention`, a pretrained model with `attention` and `nearest`. ``folder`` keeps the tables, so that nothing is
    measured twice and an interrupted exploration continues.
    """
    view.check_length(text, source)
    settings, full_len = _settings(model, selectors=selectors, k=k, seed=seed, unit=unit), model.lengths.full_len
    encoded = encode_text(model.tokenizer, text)
    if len(encoded) <= full_len:
        raise UserError(
            f"{source}: {len(encoded):,} tokens, and a window takes {full_len} and the target; give a longer text or a shorter "
            "context (--full-len)"
        )
    windows = windows_of_text(model, encoded, np.arange(full_len, len(encoded)), settings.seed, source)
    kept = None if folder is None else Path(os.path.expanduser(folder))
    tables, manifest = measured_tables(model, windows, settings, kept, reduced=view.of_page)
    likely = _likely_tokens(model, windows, tables["selections"], settings)
    data = view.explored(tables, manifest, likely, encoded=encoded, selectors=_shown(settings))
    return Exploration(source, manifest, data)


def explore_place(model: Model, text: str, *, at: int, **settings: Any) -> dict[str, Any]:
    """Measure the one window in front of the token that holds a character; the arguments of `view.explore.print_place`."""
    chosen = _settings(model, **settings)
    windows = window_at(model, text, at=at, seed=chosen.seed)
    tables, manifest = measured_tables(model, windows, chosen)
    likely = _likely_tokens(model, windows, view.of_page(tables["selections"]), chosen)
    (row,), selections = tables["windows"].to_pylist(), tables["selections"].to_pylist()
    window = window_of(row, selections, tokenizer=model.tokenizer, local_len=model.lengths.local_len)
    return {"window": window, "manifest": manifest, "likely": likely, "selectors": _shown(chosen)}


def _settings(model: Model, *, selectors: Optional[Sequence[Any]], k: Any = None, **given: Any) -> InfluenceConfig:
    if selectors is None:
        selectors = OF_RUN if model.record is None else OF_PRETRAINED
    config = settings_of(model, selectors=[*selectors, view.CONTROL], k=k, resampled_draws=0, **given)
    if k is not None or isinstance(config.influence.k, str):
        return config.with_measured_k().influence
    few = [size for size in config.influence.ks if size < config.num_groups]
    return dataclasses.replace(config.influence, k=few or [1])


def _shown(settings: InfluenceConfig) -> list[str]:
    """The selectors without the control, unless it is all there is."""
    return [name for name in settings.selectors if name != view.CONTROL] or [view.CONTROL]


def _likely_tokens(
    model: Model, windows: ChosenWindows, selections: pa.Table, settings: InfluenceConfig
) -> view.Likely:
    """The five most likely next tokens of each window: with local tokens only, with all, and with each selector's J_k."""
    engine, num_far = model.engine(settings), model.lengths.num_long_range
    chosen = [view.of_selector(selections, name) for name in _shown(settings)]
    sets = list(itertools.product(range(len(chosen)), enumerate(settings.ks)))
    tokens_WAN = np.empty((len(windows), 2 + len(sets), NUM_LIKELY), dtype=np.int32)
    shares_WAN = np.empty(tokens_WAN.shape, dtype=np.float32)
    for window_ids_W in batches(len(windows), BATCH, "predictions"):
        shown_WAM = np.zeros((len(window_ids_W), 2 + len(sets), num_far), dtype=bool)
        shown_WAM[:, 1] = True
        rows = [of.slice(window_ids_W[0], len(window_ids_W)).to_pylist() for of in chosen]
        for place, (number, (i, k)) in enumerate(sets, start=2):
            for window, row in enumerate(rows[number]):
                size = k if settings.unit == "token" else row["num_tokens"][i]
                shown_WAM[window, place, row["positions"][:size]] = True
        tokens_WT = torch.from_numpy(windows.windows.tokens(window_ids_W)[:, :-1].copy()).to(model.model.device)
        windows_R = np.repeat(np.arange(len(tokens_WT)), 2 + len(sets))
        for rows_r, log_p_rV in engine.log_probs(tokens_WT, windows_R, shown_WAM.reshape(-1, num_far)):
            window_r, place_r = np.divmod(rows_r.cpu().numpy(), 2 + len(sets))
            best = log_p_rV.topk(NUM_LIKELY, dim=-1)
            tokens_WAN[window_ids_W[window_r], place_r] = best.indices.cpu().numpy()
            shares_WAN[window_ids_W[window_r], place_r] = best.values.exp().float().cpu().numpy()
    targets_W = windows.windows.tokens(np.arange(len(windows)))[:, -1]
    distinct, places = np.unique(np.append(tokens_WAN, targets_W), return_inverse=True)
    texts = [printable(text) for text in token_texts(model.tokenizer, distinct.tolist())]
    return view.Likely(
        texts, places[: tokens_WAN.size].reshape(tokens_WAN.shape), shares_WAN, places[tokens_WAN.size :]
    )
