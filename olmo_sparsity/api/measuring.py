"""Measures windows: the tables of ``influence`` as DataFrames, scores of candidates, losses of any visible sets."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pyarrow as pa

from olmo_sparsity.api.arguments import converted, typed
from olmo_sparsity.api.opening import Ks, Model, settings_of
from olmo_sparsity.api.results import Results
from olmo_sparsity.api.windows import SPLIT, ChosenWindows
from olmo_sparsity.config import InfluenceConfig, fingerprint, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.evaluate import Measurement
from olmo_sparsity.measure.influence import influence_run_id, manifest_of, part_size, tokens_per_window
from olmo_sparsity.measure.parts import begin_pretrained, begun, is_complete, missing
from olmo_sparsity.measure.scores import Scores
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.selectors import SELECTORS, sources_of
from olmo_sparsity.tables import RESAMPLED, read_manifest, read_parts

OF_DRAW = ("num_windows", "max_windows_per_document", "targets", "min_preceding")  # keys of ``influence``
BATCH = 64  # windows


@typed
def measure(
    model: Model, windows: ChosenWindows, *, selectors: Optional[Sequence[Any]] = None, k: Optional[Ks] = None,
    seed: Optional[int] = None, resampled_draws: Optional[int] = None, unit: Optional[str] = None,
) -> Results:  # fmt: skip
    """Measure windows as ``olmo-sparsity influence`` does. What is None is as the model's configuration says.

    ``selectors`` are names, FILE.py:NAME, functions of ``Scores`` and ``Selector`` objects; ``k`` is a rising list, ``all`` or
    ``geometric``; ``unit`` is ``token``, ``word``, ``sentence`` or ``block:N``; ``seed`` is that of all draws but the windows'.
    """
    config = settings_of(model, selectors=selectors, k=k, seed=seed, resampled_draws=resampled_draws, unit=unit)
    tables, manifest = measured_tables(model, windows, config.with_measured_k().influence)
    return Results(tables["windows"].to_pandas(), tables["selections"].to_pandas(), manifest)


def measured_tables(
    model: Model,
    windows: ChosenWindows,
    settings: InfluenceConfig,
    folder: Optional[Path] = None,
    reduced: Callable[[pa.Table], pa.Table] = lambda part: part,
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """The tables of windows and their manifest; in a folder that is named they are kept, and only missing parts are measured.

    ``reduced`` makes of each part of a table what is returned of it, so that the whole tables are never in memory.
    """
    settings = dataclasses.replace(settings, null_context=windows.null_contexts.kind)
    store, source = windows.windows.store, windows.windows.store.sources[0]
    entry = {key: value for key, value in to_dict(settings).items() if key not in OF_DRAW}
    entry |= {key: getattr(windows.drawn, key) for key in OF_DRAW} if windows.drawn else {"sampling": "given"}
    entry["windows_seed"] = windows.null_contexts.seed
    run_id = fingerprint(influence_run_id(settings, model, store), windows.windows.sha256, entry)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(source).stem).strip("-")[:40] or "text"
    sources = sources_of(settings.selectors)
    with tempfile.TemporaryDirectory() as temporary:
        tables = (folder or Path(temporary)) / f"{name}-{run_id[:8]}"
        if not is_complete(tables, begun(tables, run_id=run_id, sources=sources)):
            measurement, fit = _measurement(model, windows, settings), model.fit(windows.windows)
            measurement.try_selectors()
            manifest = manifest_of(model, measurement, source=source, run_id=run_id, fit=fit) | {"influence": entry}
            if model.record is not None and tables.resolve().is_relative_to(model.folder.resolve()):
                begin_pretrained(model.config, model.folder, record=model.record, tokenizer=model.tokenizer)
            size, tokens = part_size(settings, model.lengths), tokens_per_window(settings, model.lengths)
            left = missing(tables, manifest, part_size=size, tokens_per_window=tokens, activity="measure")
            with closing(left):
                for window_ids, write in left:
                    write(measurement.tables_of(window_ids))
        read = {name: pa.concat_tables(map(reduced, read_parts(tables, name))) for name in ("windows", "selections")}
        return read, read_manifest(tables)


@typed
def scores(
    model: Model, windows: ChosenWindows, *, selectors: Sequence[Any] = ("kl",), max_k: int = 8,
    seed: Optional[int] = None, unit: Optional[str] = None,
) -> pd.DataFrame:  # fmt: skip
    """The score of every candidate; the highest are the most influential. ``greedy`` and its like take ``max_k`` of them.

    A row for each window, selector and candidate: ``window_id``, ``selector``, ``position`` and ``last_position`` of its tokens,
    ``distance_tokens`` from the last one to the target, ``text`` and ``score``.
    """
    settings = settings_of(model, selectors=selectors, k=[max_k], seed=seed, resampled_draws=0, unit=unit).influence
    frames = []
    for of_batch in _scores(model, windows, settings):
        first_I, end_I = np.array(of_batch.spans).T
        places = {
            "position": first_I,
            "last_position": end_I - 1,
            "distance_tokens": model.lengths.full_len - end_I + 1,
        }
        columns: dict[str, Any] = {name: np.tile(values, of_batch.num_windows) for name, values in places.items()}
        columns["text"] = ["".join(texts[first:end]) for texts in of_batch.texts for first, end in of_batch.spans]
        for name in settings.selectors:
            one = SELECTORS[name]
            scores_WI = one.function(of_batch.for_label(0 if one.sees_target else None)).astype(np.float32)
            ids = {"window_id": np.repeat(of_batch.window_ids_W, len(first_I)), "selector": name}
            frames.append(pd.DataFrame({**ids, **columns, "score": scores_WI.ravel()}))
    return pd.concat(frames, ignore_index=True)


@typed
def losses(model: Model, windows: ChosenWindows, visible: Any) -> pd.DataFrame:
    """The loss of the target when the model sees the local tokens and a set of long-range positions, for any sets.

    ``visible`` are sets, each of which is measured in every window; or a DataFrame with a set in one window in each row, in the
    columns ``window_id`` and ``positions``, such as rows of ``Results.selections`` of the real context. A row for each window and
    set has ``window_id``, ``positions``, ``loss_nats``, and ``kl_nats``, which is KL(p_all, p_S).
    """
    num_windows, num_far = len(windows), model.lengths.num_long_range
    if not isinstance(visible, pd.DataFrame):
        sets = converted(visible, list[list[int]], "visible")
        visible = pd.DataFrame(
            {"window_id": np.repeat(np.arange(num_windows), len(sets)), "positions": sets * num_windows}
        )
    if "context" in visible and not visible["context"].isin(["real", RESAMPLED["real"]]).all():
        raise UserError(
            "visible.context: sets are measured in the windows' own text; leave out rows of the null context"
        )
    window_R = np.array(converted(visible.get("window_id"), list[int], "visible.window_id"), dtype=np.int64)
    sets = converted(visible.get("positions"), list[list[int]], "visible.positions")
    if not {*window_R} <= {*range(num_windows)} or not {j for one in sets for j in one} <= {*range(num_far)}:
        raise UserError(f"visible: windows are 0 to {num_windows - 1}, long-range positions 0 to {num_far - 1}")
    loss_R, kl_R = np.empty((2, len(sets)), dtype=np.float32)
    settings = settings_of(model, selectors=["random"], k=[1], resampled_draws=0, unit="token").influence
    for of_batch in _scores(model, windows, settings):
        rows_r = np.flatnonzero(np.isin(window_R, of_batch.window_ids_W))
        shown_rM = np.zeros((len(rows_r), num_far), dtype=bool)
        for shown_M, row in zip(shown_rM, rows_r, strict=True):
            shown_M[sets[row]] = True
        found = of_batch.read(window_R[rows_r] - of_batch.window_ids_W[0], shown_rM)
        loss_R[rows_r], kl_R[rows_r] = found.losses[:, 0], found.kl
    return pd.DataFrame({"window_id": window_R, "positions": sets, "loss_nats": loss_R, "kl_nats": kl_R})


def _measurement(model: Model, windows: ChosenWindows, settings: InfluenceConfig) -> Measurement:
    made, lengths, tokenizer = windows.null_contexts, model.lengths, model.tokenizer
    if (made.windows.full_len, made.num_long_range) != (lengths.full_len, lengths.num_long_range):
        raise UserError("windows: made for other lengths than the model's; make them with this model")
    if windows.tokenizer is not tokenizer and windows.tokenizer.to_str() != tokenizer.to_str():
        raise UserError("windows: made with another tokenizer than the model's; make them with this model")
    return Measurement(model.engine(settings), made, settings, lengths, tokenizer, SPLIT)


def _scores(model: Model, windows: ChosenWindows, settings: InfluenceConfig) -> Iterator[Scores]:
    """What selectors read of the windows in their own text, batch by batch."""
    measurement = _measurement(model, windows, settings)
    model.fit(windows.windows)
    for window_ids_W in batches(len(windows), 1 if settings.unit in ("word", "sentence") else BATCH):
        yield measurement.scores(window_ids_W)["real"]


def batches(num_windows: int, size: int, what: str = "windows") -> Iterator[np.ndarray]:
    """The numbers of windows in batches, int64, with a bar."""
    with progress_bar(what, " windows", total=num_windows, leave=False, delay=1) as bar:
        for begin in range(0, num_windows, size):
            yield np.arange(begin, min(begin + size, num_windows))
            bar.update(min(size, num_windows - begin))
