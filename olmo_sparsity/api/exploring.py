"""Explores a whole document: every token that follows a full window is a target."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import torch

from olmo_sparsity.api.arguments import typed
from olmo_sparsity.api.chosen_windows import ChosenWindows, window_at, windows_of_document
from olmo_sparsity.api.exploration import Exploration
from olmo_sparsity.api.measuring import measured_tables, prepared_tables, run_id_of_windows
from olmo_sparsity.api.opening import Model, settings_of_text
from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.files import write_bytes
from olmo_sparsity.measure.influence import part_size, tokens_per_window
from olmo_sparsity.measure.parts import begin_pretrained, is_measured, measure_parts
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.selectors import sources_of
from olmo_sparsity.selectors.own import names_of
from olmo_sparsity.tables import read_manifest, read_table
from olmo_sparsity.text.places import encode_text
from olmo_sparsity.text.tokenizer import token_texts
from olmo_sparsity.view.explore import CONTROL, Likely, explored
from olmo_sparsity.view.window import window_of

# What is measured where no selector is named. None of them sees the target, and those for a model from elsewhere are cheap.
OF_RUN, OF_MODEL = ("kl", "attention"), ("attention", "nearest")
ID_DIGITS = 8  # of the fingerprint, in the name of a folder
NUM_LIKELY = 5  # tokens that are shown of each prediction


@typed
def explore(
    model: Model,
    text: str,
    *,
    selectors: Optional[Sequence[Any]] = None,
    k: Optional[Sequence[int]] = None,
    seed: Optional[int] = None,
    source: str = "text",
    unit: Optional[str] = None,
    folder: Optional[str | Path] = None,
) -> Exploration:
    """Measure the window before every token of a text. The first `full_len` tokens follow no full window, and are no targets.

    Args:
        model: the model; its lengths are those of the windows.
        text: one document.
        selectors: as those of `measure`; `random` is measured as well. None: `kl` and `attention` for a run, `attention`
            and `nearest` for another model.
        k: numbers of visible tokens, or of words, sentences or blocks, rising. None: those of the model's configuration below
            the number of all.
        seed: of the draws; None: that of the configuration.
        source: name of the text.
        unit: `token`, `word`, `sentence` or `block:N`; None: that of the configuration.
        folder: where the tables go, in a folder for each text and each way to measure it, so that nothing is measured twice and
            an interrupted exploration continues. None: nothing is written.

    Raises:
        UserError: no token follows a full window, or a selector or k is not possible.
    """
    lengths, settings = model.lengths, _settings(model, selectors, k=k, seed=seed, unit=unit)
    encoded = encode_text(model.tokenizer, text)
    if len(encoded) <= lengths.full_len:
        raise UserError(
            f"{source}: {len(encoded):,} tokens, and a window takes {lengths.full_len} and the target behind them; explore a "
            "longer text, or a shorter context (--full-len)"
        )
    windows = windows_of_document(model, encoded, seed=settings.seed, source=source)
    tables, manifest, likely = _measured(model, windows, settings=settings, folder=folder)
    data = explored(tables, manifest, likely, encoded=encoded, selectors=_named(settings))
    return Exploration(source, manifest, data)


@typed
def explore_place(
    model: Model,
    text: str,
    *,
    at: int,
    selectors: Optional[Sequence[Any]] = None,
    k: Optional[Sequence[int]] = None,
    seed: Optional[int] = None,
    source: str = "text",
) -> dict[str, Any]:
    """Measure the one window before the token that holds a character; returns the arguments of `view.explore.print_place`."""
    settings = _settings(model, selectors, k=k, seed=seed, unit=None)
    windows = window_at(model, text, at=at, seed=settings.seed, source=source)
    tables, manifest = measured_tables(model, windows, settings=settings)
    likely = likely_tokens(model, windows, tables["selections"], settings=settings)
    (row,), selections = tables["windows"].to_pylist(), tables["selections"].to_pylist()
    window = window_of(row, selections, tokenizer=model.tokenizer, local_len=model.lengths.local_len)
    return {"window": window, "manifest": manifest, "likely": likely, "selectors": _named(settings)}


def likely_tokens(model: Model, windows: ChosenWindows, selections: pa.Table, *, settings: InfluenceConfig) -> Likely:
    """The five most likely next tokens of each window, with local tokens only, all tokens, and each selector's J_k."""
    num_windows, num_far = len(windows), model.lengths.num_long_range
    rows_WT = windows.windows.tokens(np.arange(num_windows))
    everything = list(range(num_far))
    sets_AW: list[list[list[int]]] = [[[] for _ in rows_WT], [everything for _ in rows_WT]]
    chosen = selections.to_pandas().query("context == 'real'").sort_values("window_id").groupby("selector")
    for name in _named(settings):
        rows = chosen.get_group(name).to_dict("records")
        for i, k in enumerate(settings.k):
            sizes = [row["num_tokens"][i] if settings.unit != "token" else k for row in rows]
            sets_AW.append([row["positions"][:size].tolist() for row, size in zip(rows, sizes, strict=True)])
    tokens_WT = torch.from_numpy(rows_WT[:, :-1].copy()).to(model.device)
    w_R, a_R = (of.ravel() for of in np.meshgrid(np.arange(num_windows), np.arange(len(sets_AW)), indexing="ij"))
    shown_RM = np.zeros((len(w_R), num_far), dtype=bool)
    for row, (w, a) in enumerate(zip(w_R.tolist(), a_R.tolist(), strict=True)):
        shown_RM[row, sets_AW[a][w]] = True
    found_WAN = np.zeros((num_windows, len(sets_AW), NUM_LIKELY), dtype=np.int64)
    shares_WAN = np.zeros(found_WAN.shape, dtype=np.float32)
    rows = (torch.from_numpy(of).to(model.device) for of in (w_R, shown_RM))
    with progress_bar("predictions", " rows", total=len(w_R)) as bar:
        for rows_r, log_p_rV in model.engine.log_probs(tokens_WT, *rows):
            places, best = rows_r.cpu().numpy(), log_p_rV.topk(NUM_LIKELY, dim=-1)
            found_WAN[w_R[places], a_R[places]] = best.indices.cpu().numpy()
            shares_WAN[w_R[places], a_R[places]] = best.values.exp().float().cpu().numpy()
            bar.update(len(places))
    distinct, places_R = np.unique(np.concatenate([found_WAN.ravel(), rows_WT[:, -1]]), return_inverse=True)
    texts = [printable(text) for text in token_texts(model.tokenizer, distinct.tolist())]
    tokens_WAN = places_R[: found_WAN.size].reshape(found_WAN.shape)
    return Likely(texts, tokens_WAN, shares_WAN, places_R[found_WAN.size :])


def _named(settings: InfluenceConfig) -> list[str]:
    """The selectors that are shown: the control only where it is all there is."""
    return [name for name in settings.selectors if name != CONTROL] or [CONTROL]


def _settings(
    model: Model,
    selectors: Optional[Sequence[Any]],
    *,
    k: Optional[Sequence[int]],
    seed: Optional[int],
    unit: Optional[str],
) -> InfluenceConfig:
    if selectors is None:
        selectors = OF_RUN if model.opened.record is None else OF_MODEL
    return settings_of_text(model, names_of(selectors), k=k, seed=seed, unit=unit, resampled_draws=0)


def _measured(
    model: Model, windows: ChosenWindows, *, settings: InfluenceConfig, folder: Optional[str | Path]
) -> tuple[dict[str, pa.Table], dict[str, Any], Likely]:
    """Tables, manifest and predictions; in a folder what is missing is measured, and the rest is read."""
    if folder is None:
        found, manifest = measured_tables(model, windows, settings=settings)
        return found, manifest, likely_tokens(model, windows, found["selections"], settings=settings)
    folder = Path(os.path.expanduser(folder))
    run_id = run_id_of_windows(model, windows, settings=settings)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(windows.source).stem).strip("-")[:40] or "text"
    tables = folder / f"{name}-{run_id[:ID_DIGITS]}"
    if not is_measured(tables, "influence", run_id=run_id, sources=sources_of(settings.selectors)):
        measurement, manifest = prepared_tables(model, windows, settings=settings)
        run = Path(model.opened.folder)
        if model.opened.record is not None and folder.resolve().is_relative_to(run.resolve()):
            begin_pretrained(model.config, run, record=model.opened.record, tokenizer=model.opened.tokenizer)
        measure_parts(
            tables,
            manifest,
            part_size=part_size(settings, model.lengths),
            measure_part=measurement.tables_of,
            tokens_per_window=tokens_per_window(settings, model.lengths),
            activity="explore",
        )
    read = {table: read_table(tables, table) for table in ("windows", "selections")}
    return read, read_manifest(tables), _kept_likely(tables / "likely.npz", model, windows, read, settings=settings)


def _kept_likely(
    path: Path, model: Model, windows: ChosenWindows, tables: dict[str, pa.Table], *, settings: InfluenceConfig
) -> Likely:
    """The predictions that are kept with the tables; they are made if they are missing or cannot be read."""
    try:
        with np.load(path) as kept:
            return Likely(kept["texts"].tolist(), kept["tokens"], kept["shares"], kept["targets"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        likely = likely_tokens(model, windows, tables["selections"], settings=settings)
        file = io.BytesIO()
        np.savez_compressed(file, **{**likely._asdict(), "texts": np.array(likely.texts)})
        write_bytes(path, file.getvalue())
        return likely
