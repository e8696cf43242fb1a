"""Measures chosen windows: scores, losses under given visible sets, and whole measurements.

Positions are those of the tables: 0 is the oldest token of the window, and the long-range tokens are 0 .. M-1, with
M = ``full_len`` - ``local_len``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

import numpy as np
import pandas as pd
import pyarrow as pa

from olmo_sparsity.api.arguments import column, typed
from olmo_sparsity.api.chosen_windows import SPLIT, ChosenWindows
from olmo_sparsity.api.opening import Model, num_groups_of, with_settings
from olmo_sparsity.api.results import Results
from olmo_sparsity.config import InfluenceConfig, fingerprint, to_dict
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.measure.evaluate import Measurement
from olmo_sparsity.measure.influence import influence_run_id, manifest_of, part_size
from olmo_sparsity.measure.scores import Scores
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.selectors import SELECTORS
from olmo_sparsity.selectors.own import names_of
from olmo_sparsity.tables import RESAMPLED

# Keys of ``influence`` that say how windows are drawn, and those that say from which corpus.
OF_DRAW = ("num_windows", "max_windows_per_document", "targets", "min_preceding")
OF_CORPUS = ("data", "max_documents")
DEFAULT_MAX_K = 8  # of `scores`
OF_OWN_TOKENS = ("real", RESAMPLED["real"])  # contexts of choices among the window's own tokens

VisibleSets = Union[Sequence[Sequence[int]], pd.DataFrame]


@typed
def measure(
    model: Model,
    windows: ChosenWindows,
    *,
    selectors: Optional[Sequence[Any]] = None,
    k: Optional[Sequence[int]] = None,
    seed: Optional[int] = None,
    resampled_draws: Optional[int] = None,
    unit: Optional[str] = None,
) -> Results:
    """Measure windows as ``olmo-sparsity influence`` does: L_short, L_long, and of every selector J_k and its losses, under the
    real and the null context and on resampled targets.

    Args:
        model: the model.
        windows: the windows.
        selectors: names of selectors, functions of one window, and ``Selector`` objects (``olmo_sparsity.api.Selector``); None:
            those of the model's configuration.
        k: numbers of influential tokens, or groups of them, rising; None: those of the configuration.
        seed: of `random`, of the lasso's visible sets and of the resampled targets; None: that of the configuration.
        resampled_draws: resampled targets of each window; None: those of the configuration.
        unit: what is unmasked and counted: ``token``, ``word``, ``sentence`` or ``block:N``; None: that of the configuration.

    Returns:
        The tables ``windows`` and ``selections`` as DataFrames; losses, gains and divergences are in nats.

    Raises:
        UserError: a selector is unknown, known from tables alone, or fails, or k is larger than the number of long-range tokens.
    """
    settings = _settings(
        model, windows, selectors=selectors, k=k, seed=seed, resampled_draws=resampled_draws, unit=unit
    )
    tables, manifest = measured_tables(model, windows, settings=settings)
    return Results(tables["windows"].to_pandas(), tables["selections"].to_pandas(), manifest)


def measured_tables(
    model: Model, windows: ChosenWindows, *, settings: InfluenceConfig
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Measure windows, and return their tables and the manifest that ``influence`` would write."""
    measurement, manifest = prepared_tables(model, windows, settings=settings)
    size = part_size(measurement.settings, model.lengths)
    parts = [measurement.tables_of(window_ids_W) for window_ids_W in _batches(windows, size)]
    return {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}, manifest


def prepared_tables(
    model: Model, windows: ChosenWindows, *, settings: InfluenceConfig
) -> tuple[Measurement, dict[str, Any]]:
    """Return the measurement of windows, ready to run, and the manifest that ``influence`` would write."""
    settings = dataclasses.replace(settings, null_context=windows.null_contexts.kind)
    run_id, fit = run_id_of_windows(model, windows, settings=settings), model.fit(windows.windows)
    measurement = _measured(model, windows, settings)
    manifest = manifest_of(model.opened, measurement, source=windows.source, run_id=run_id, fit=fit)
    return measurement, {**manifest, "influence": _influence_entry(settings, windows)}


def run_id_of_windows(model: Model, windows: ChosenWindows, *, settings: InfluenceConfig) -> str:
    """Return the fingerprint of the measurement of windows, which needs no pass of the model."""
    settings = dataclasses.replace(settings, null_context=windows.null_contexts.kind)
    run_id = influence_run_id(settings, model.opened, windows.windows.store)
    return fingerprint(run_id, windows.windows.sha256, _influence_entry(settings, windows))


def _influence_entry(settings: InfluenceConfig, windows: ChosenWindows) -> dict[str, Any]:
    """Return the settings for the manifest, with how the windows were chosen; without those that were not used.

    ``sampling`` is ``given`` of windows that were not drawn.
    """
    used = {key: value for key, value in to_dict(settings).items() if key not in (*OF_DRAW, *OF_CORPUS)}
    drawn = windows.drawn
    draw = {"sampling": "given"} if drawn is None else {key: getattr(drawn, key) for key in OF_DRAW}
    return {**used, **draw, "windows_seed": windows.seed}


@typed
def scores(
    model: Model,
    windows: ChosenWindows,
    *,
    selectors: Sequence[Any] = ("kl",),
    max_k: Optional[int] = None,
    seed: Optional[int] = None,
    unit: Optional[str] = None,
) -> pd.DataFrame:
    """Return the score of every long-range token, or of every group of them; the highest are the most influential.

    Args:
        model: the model.
        windows: the windows.
        selectors: as those of ``measure``.
        max_k: how many tokens, or groups, ``greedy`` and ``greedy-kl`` take; others do not depend on it. None: 8, or
            all where there are fewer.
        seed: of `random` and of the lasso's visible sets; None: that of the configuration.
        unit: what is scored: ``token``, ``word``, ``sentence`` or ``block:N``; None: that of the model's configuration.

    Returns:
        One row for each window, selector and long-range position; columns ``window_id``, ``selector``, ``position``,
        ``distance_tokens`` (to the target), ``token_text`` and ``score``. Of other units one row for each group, with the columns
        ``group``, its number, ``group_first`` and ``group_last``, its positions, and ``group_text`` in place of ``position`` and
        ``token_text``; the distance is that of its last token.

    Raises:
        UserError: a selector is unknown, or ``max_k`` is larger than the number of long-range tokens.
    """
    if max_k is None:
        max_k = min(DEFAULT_MAX_K, num_groups_of(model, unit))
    settings = _settings(model, windows, selectors=selectors, k=[max_k], seed=seed, unit=unit, resampled_draws=0)
    model.fit(windows.windows)
    frames = []
    for of_windows in _scores_of(model, windows, settings):
        for name in settings.selectors:
            selector = SELECTORS[name]
            scores_WI = selector.score(of_windows.of_label(0 if selector.sees_target else None))
            described = _described(windows, of_windows, settings.unit)
            described.insert(1, "selector", name)
            frames.append(described.assign(score=scores_WI.ravel().astype(np.float32)))
    return pd.concat(frames, ignore_index=True)


def _measured(model: Model, windows: ChosenWindows, settings: InfluenceConfig) -> Measurement:
    return Measurement(model.engine, windows.null_contexts, settings, model.lengths, model.tokenizer, SPLIT)


def _scores_of(model: Model, windows: ChosenWindows, settings: InfluenceConfig) -> Iterator[Scores]:
    """Yield what the model says of the windows in their own text, batch by batch."""
    measured = _measured(model, windows, settings)
    for window_ids_W in _batches(windows, 1 if settings.unit in ("word", "sentence") else settings.windows_per_part):
        yield measured.scores(window_ids_W)["real"]


def _described(windows: ChosenWindows, scores: Scores, unit: str) -> pd.DataFrame:
    """Return one row for each candidate: which tokens it has, and how far away they are."""
    window_ids, spans = scores.window_ids_W.tolist(), scores.spans
    first, last = (np.tile([of[end] for of in spans], len(window_ids)) for end in (0, 1))
    last = last - 1
    texts = ["".join(windows.texts[window][begin:end]) for window in window_ids for begin, end in spans]
    columns: dict[str, Any] = {"distance_tokens": windows.windows.full_len - last}
    if unit == "token":
        columns = {"position": first, **columns, "token_text": texts}
    else:
        groups = np.tile(np.arange(len(spans)), len(window_ids))
        columns = {"group": groups, "group_first": first, "group_last": last, **columns, "group_text": texts}
    return pd.DataFrame({"window_id": np.repeat(window_ids, len(spans)), **columns})


@typed
def losses(model: Model, windows: ChosenWindows, visible: VisibleSets) -> pd.DataFrame:
    """Return loss(S), the loss of the target when the model sees the local tokens and S, for given visible sets S.

    Args:
        model: the model.
        windows: the windows.
        visible: sets of long-range positions, each of which is measured in every window; or a DataFrame with the columns
            ``window_id`` and ``positions``, such as some rows of a table ``selections``, each of which is one set in one window.
            If it has a column ``context``, its rows must be of choices among the window's own tokens: ``real`` or ``resampled``.

    Returns:
        One row for each window and set; columns ``window_id``, ``positions``, ``loss_nats`` and ``kl_nats``, the divergence
        KL(p_all, p_S) of the prediction from that with all tokens visible.

    Raises:
        UserError: there is no such window, a set holds a position twice or one that is no long-range position, or a row is of
            the null context.
    """
    _check_windows(model, windows)
    window_R, sets = _visible_rows(windows, visible)
    model.fit(windows.windows)
    loss_R, kl_R = np.empty((2, len(sets)), dtype=np.float32)
    settings = with_settings(model, unit="token", resampled_draws=0)
    for scores in _scores_of(model, windows, settings):
        window_ids = scores.window_ids_W
        rows_r = np.flatnonzero((window_R >= window_ids[0]) & (window_R <= window_ids[-1]))
        shown = np.zeros((len(rows_r), scores.num_candidates), dtype=bool)
        for place, row in enumerate(rows_r.tolist()):
            shown[place, sets[row]] = True
        found = scores.read(window_R[rows_r] - window_ids[0], shown)
        loss_R[rows_r], kl_R[rows_r] = found.losses[:, 0], found.kl
    return pd.DataFrame({"window_id": window_R, "positions": sets, "loss_nats": loss_R, "kl_nats": kl_R})


def _settings(model: Model, windows: ChosenWindows, **changes: Any) -> InfluenceConfig:
    """Return how the model is measured, with other settings of ``influence`` where they are not None.

    Args:
        model: the model.
        windows: the windows, which must be of its lengths.
        changes: new values by name.
    """
    _check_windows(model, windows)
    changes = {name: value for name, value in changes.items() if value is not None}
    changes["selectors"] = names_of(changes.get("selectors", model.config.influence.selectors))
    changes |= {name: list(changes[name]) for name in ("selectors", "k") if name in changes}
    return with_settings(model, **changes)


def _check_windows(model: Model, windows: ChosenWindows) -> None:
    made, asked = windows.windows.full_len, model.lengths.full_len
    if (made, windows.null_contexts.num_long_range) != (asked, model.lengths.num_long_range):
        raise UserError(
            f"windows: made for full_len {made} with {windows.null_contexts.num_long_range} long-range tokens, and the model has "
            f"full_len {asked} with {model.lengths.num_long_range}; make them with this model"
        )
    if windows.tokenizer_sha256 != model.opened.tokenizer_sha256:
        raise UserError("windows: made with another tokenizer than that of the model; make them with this model")


def _batches(windows: ChosenWindows, size: int) -> Iterator[np.ndarray]:
    """Yield the numbers of the windows in batches, int64, and show the progress where there are several."""
    batches = [np.arange(begin, min(begin + size, len(windows))) for begin in range(0, len(windows), size)]
    if len(batches) == 1:
        yield batches[0]
        return
    with progress_bar("windows", " windows", total=len(windows)) as bar:
        for window_ids_W in batches:
            yield window_ids_W
            bar.update(len(window_ids_W))


def _check_own_tokens(contexts: pd.Series) -> None:
    """Check that sets were chosen among the windows' own tokens, which alone are measured.

    Raises:
        UserError: one was chosen in the null context.
    """
    foreign = contexts[~contexts.isin(OF_OWN_TOKENS)]
    if len(foreign):
        raise UserError(
            f"visible.context = {printable(str(foreign.iloc[0]))}: sets are measured in the windows' own text; leave out rows "
            f"whose context is not {' or '.join(OF_OWN_TOKENS)}"
        )


def _visible_rows(windows: ChosenWindows, visible: VisibleSets) -> tuple[np.ndarray, list[list[int]]]:
    """Return the window (int64) and the positions of each visible set."""
    num_windows, num_long_range = len(windows), windows.null_contexts.num_long_range
    if isinstance(visible, pd.DataFrame):
        windows_of_sets = column(visible, list[int], name="window_id", of="visible")
        sets = column(visible, list[list[int]], name="positions", of="visible")
        if "context" in visible:
            _check_own_tokens(visible["context"])
    else:
        windows_of_sets = np.repeat(np.arange(num_windows), len(visible)).tolist()
        sets = [list(positions) for positions in visible] * num_windows
    for window, positions in zip(windows_of_sets, sets, strict=True):
        if not 0 <= window < num_windows:
            raise UserError(f"visible: there is no window {window}; they are numbered 0 to {num_windows - 1}")
        if len(set(positions)) < len(positions) or not all(0 <= j < num_long_range for j in positions):
            raise UserError(
                f"visible: {positions} must hold long-range positions, 0 to {num_long_range - 1}, each at most once"
            )
    return np.array(windows_of_sets, dtype=np.int64), sets
