"""Explores a whole document: every token that follows a full window is a target."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa

from olmo_sparsity.api.arguments import argument, typed
from olmo_sparsity.api.chosen_windows import ChosenWindows, window_at, windows_of_document
from olmo_sparsity.api.measuring import measured_tables, prepared_tables, run_id_of_windows
from olmo_sparsity.api.opening import Model, settings_of_text
from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.measure.measurement import begin_pretrained, is_measured, measure_parts
from olmo_sparsity.records.own_selectors import BUILT_IN_ALONE, OwnSelector
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.tables.reading import read_manifest, read_table
from olmo_sparsity.text.places import encode_text
from olmo_sparsity.view.excerpts import excerpt_of_rows
from olmo_sparsity.view.exploration import Exploration, record_of
from olmo_sparsity.view.one_window import ShownWindow
from olmo_sparsity.wording.setup import setup_words

# What is measured where no selector is named. None of them sees the target, and those for a model from elsewhere take few passes.
OF_RUN, OF_MODEL = ("kl", "attention"), ("attention", "nearest")
ID_DIGITS = 8  # of the fingerprint, in the name of a folder


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
    """Measure the window before every token of a text. The first ``full_len`` tokens follow no full window, and are no targets.

    Args:
        model: the model; its lengths are those of the windows.
        text: one document.
        selectors: names of those whose choices to measure; `random` is measured beside them. None: `kl` and `attention` of a run,
            `attention` and `nearest` of another model.
        k: numbers of visible tokens, or groups of them, rising. None: those of the model's configuration, as far as they leave
            some long-range tokens out.
        seed: of the draws; None: that of the configuration.
        source: name of the text.
        unit: what is unmasked and counted: ``token``, ``word``, ``sentence`` or ``block:N``; None: that of the configuration.
        folder: where the tables go, in a folder of their own for each text and each way to measure it. What is there is not
            measured again, so that an interrupted exploration continues. None: nothing is written.

    Returns:
        An exploration, which notebooks show; ``to_html`` and ``save_html`` write it. Losses are in nats.

    Raises:
        UserError: no token of the text follows a full window, or a selector or k is not possible.
    """
    lengths = model.lengths
    settings = _settings(model, selectors, k=k, seed=seed, unit=unit)
    encoded = encode_text(model.tokenizer, text)
    if len(encoded) <= lengths.full_len:
        raise UserError(
            f"{source}: {len(encoded):,} tokens, and a window takes {lengths.full_len} and the target behind them; explore a "
            "longer text, or a shorter context (--full-len)"
        )
    windows = windows_of_document(model, encoded, seed=settings.seed, source=source)
    tables, manifest = _measured(model, windows, settings=settings, folder=folder)
    setup = ModelSetup.from_manifest(manifest)
    null_contexts = windows.null_contexts
    begin = int(windows.windows.store.begins_G[0])
    return Exploration(
        source=source,
        run=manifest["run"],
        setup=setup,
        null_context=null_contexts.kind,
        record=record_of(
            tables["windows"],
            tables["selections"],
            encoded=encoded,
            null_places_WM=null_contexts.places(np.arange(len(windows))) - begin,
            local_len=lengths.local_len,
            unit=settings.unit,
            setup=setup,
            selectors=settings.selectors,
        ),
    )


def explore_place(
    model: Model,
    text: str,
    *,
    at: int,
    selectors: Optional[Sequence[Any]] = None,
    k: Optional[Sequence[int]] = None,
    seed: Optional[int] = None,
    source: str = "text",
) -> list[ShownWindow]:
    """Measure the one window before the token that holds a character; arguments as in ``explore``.

    Returns:
        The window with the choice of each selector at the largest k.
    """
    settings = _settings(model, selectors, k=k, seed=seed, unit=None)
    windows = window_at(model, text, at=at, seed=settings.seed, source=source)
    tables, manifest = measured_tables(model, windows, settings=settings)
    setup = ModelSetup.from_manifest(manifest)
    (row,) = tables["windows"].to_pylist()
    excerpt = excerpt_of_rows(row, tables["selections"].to_pylist(), tokenizer=model.tokenizer)
    return [
        ShownWindow(
            excerpt,
            name,
            SELECTORS[name].sees_target,
            "real",
            settings.k[-1],
            settings.k,
            settings.unit,
            setup.visibility,
            model.lengths.local_len,
            setup_words(manifest["run"], setup),
        )
        for name in settings.selectors
    ]


def _settings(
    model: Model,
    selectors: Optional[Sequence[Any]],
    *,
    k: Optional[Sequence[int]],
    seed: Optional[int],
    unit: Optional[str],
) -> InfluenceConfig:
    """Return how a document is measured; labels are drawn where a selector sees the target."""
    if selectors is None:
        selectors = OF_RUN if model.opened.record is None else OF_MODEL
    _check_names(selectors)
    sees_target = any(name in SELECTORS and SELECTORS[name].sees_target for name in selectors)
    draws = model.config.influence.resampled_draws if sees_target else 0
    return settings_of_text(model, selectors, k=k, seed=seed, unit=unit, resampled_draws=draws)


def _check_names(selectors: Sequence[Any]) -> None:
    """Check that selectors are names.

    Raises:
        UserError: one is a selector of one's own, or something else.
    """
    for number, given in enumerate(selectors):
        where = f"selectors[{number}]"
        if isinstance(given, OwnSelector) or callable(given):
            shown = getattr(given, "name", None) or getattr(given, "__name__", type(given).__name__)
        elif (name := argument(given, str, name=where)) in SELECTORS and SELECTORS[name].own is not None:
            shown = name
        else:
            continue
        raise UserError(f"{where} = {printable(str(shown))}: {BUILT_IN_ALONE}")


def _measured(
    model: Model, windows: ChosenWindows, *, settings: InfluenceConfig, folder: Optional[str | Path]
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Return the tables of windows and their manifest; in a folder what is missing is measured, and the rest is read."""
    if folder is None:
        return measured_tables(model, windows, settings=settings)
    folder = Path(os.path.expanduser(folder))
    run_id = run_id_of_windows(model, windows, settings=settings)
    tables = folder / f"{_name_of(windows.source)}-{run_id[:ID_DIGITS]}"
    if not is_measured(tables, "influence", run_id=run_id):
        prepared, manifest = prepared_tables(model, windows, settings=settings)
        run = Path(model.opened.folder)
        if model.opened.record is not None and folder.resolve().is_relative_to(run.resolve()):
            begin_pretrained(model.config, run, record=model.opened.record, tokenizer=model.opened.tokenizer)
        measure_parts(
            tables,
            manifest,
            part_size=prepared.part_size,
            measure_part=prepared.measure_part,
            tokens_per_window=prepared.tokens_per_window,
            activity="explore",
        )
    return {name: read_table(tables, name) for name in ("windows", "selections")}, read_manifest(tables)


def _name_of(source: str) -> str:
    """Return a source as the beginning of a folder's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", Path(source).stem).strip("-")[:40] or "text"
