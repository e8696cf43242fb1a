"""Windows -> records: which long-range tokens are influential, and how much loss comes back when they are unmasked.

Legend: W windows of a part, T tokens of a window, M long-range tokens, S set size.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, cast

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity import tables
from olmo_sparsity.classes import target_class
from olmo_sparsity.config import Config, InfluenceConfig, fingerprint, to_dict
from olmo_sparsity.held_out import context_facts, open_held_out
from olmo_sparsity.losses import Evaluator, log_probs, make_evaluator
from olmo_sparsity.model import device_name, supports_bf16
from olmo_sparsity.parts import WHOLE, Share, is_measured, measure_parts
from olmo_sparsity.selectors import CONTEXTS, SCREENED, SELECTORS, Scored, rank
from olmo_sparsity.tables import schemas
from olmo_sparsity.tokens import token_texts
from olmo_sparsity.windows import Windows


@dataclass(frozen=True)
class Measured:
    """One context of W windows: losses in nats, and the selections of every selector."""

    loss_long: np.ndarray  # [W]
    loss_single: Optional[np.ndarray]  # [W, M]
    scores: dict[str, np.ndarray]  # [W, M]
    positions: dict[str, np.ndarray]  # [W, max k], most influential first
    loss_sparse: dict[str, np.ndarray]  # [W, number of k]


def _distinct_losses(scored: Scored, positions: dict[str, np.ndarray], k: int) -> dict[str, np.ndarray]:
    """loss(J_k) of every selector, fp32 [W] each; a set that several selectors chose is evaluated once, one of a single
    position not again where the selectors have asked for it."""
    num_windows = len(scored.window_ids)
    sets = np.concatenate([np.sort(chosen[:, :k], axis=1) for chosen in positions.values()])
    rows = np.column_stack([np.tile(np.arange(num_windows), len(positions)), sets])
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    losses = np.full(len(distinct), np.nan, dtype=np.float32)
    if k == 1:
        losses = scored.known_singles()[distinct[:, 0], distinct[:, 1]]
    unknown = np.isnan(losses)
    losses[unknown] = scored.losses_of_rows(distinct[unknown, 0], distinct[unknown, 1:])
    return dict(zip(positions, losses[which.reshape(len(positions), num_windows)], strict=True))


def measure_context(scored: Scored, settings: InfluenceConfig) -> Measured:
    """L_long, and for every selector its scores, its ranking and L_short,sparse at every k."""
    scores = {name: SELECTORS[name].score(scored) for name in settings.selectors}
    positions = {name: rank(values)[:, : max(settings.k)] for name, values in scores.items()}
    of_k = [_distinct_losses(scored, positions, k) for k in settings.k]
    loss_sparse = {name: np.stack([losses[name] for losses in of_k], axis=1) for name in positions}
    loss_single = scored.loss_single if settings.save_candidates else None
    return Measured(scored.loss_long, loss_single, scores, positions, loss_sparse)


@dataclass(frozen=True)
class Screening:
    """What screening lost in a sample of V of the windows, under one context."""

    windows: np.ndarray  # int64 [V], indices into the W windows
    recall: dict[str, np.ndarray]  # of each screened selector, [V, number of k]: share of the exact J_k that was chosen
    gain_lost: dict[str, np.ndarray]  # nats, [V, number of k]: L_short,sparse of what was chosen minus of the exact J_k


def check_screening(scored: Scored, measured: Measured, settings: InfluenceConfig) -> Screening:
    """Measures a random sample of the windows again, with nothing screened."""
    drawn = np.array([np.random.default_rng([settings.seed, 5, int(i)]).random() for i in scored.window_ids])
    sample = np.flatnonzero(drawn < settings.screen_sample)
    screened = [name for name in SCREENED if name in settings.selectors]
    recall = {name: np.empty((0, len(settings.k)), dtype=np.float32) for name in screened}
    gain_lost = dict(recall)
    if len(sample):
        exact = measure_context(scored.subset(sample), dataclasses.replace(settings, selectors=screened))
        for name in screened:
            chosen = measured.positions[name][sample]
            found = (chosen[:, :, None] == exact.positions[name][:, None, :]).cumsum(axis=1).cumsum(axis=2)
            recall[name] = np.stack([found[:, k - 1, k - 1] / k for k in settings.k], axis=1)
            gain_lost[name] = measured.loss_sparse[name][sample] - exact.loss_sparse[name]
    return Screening(sample, recall, gain_lost)


def measure_windows(
    evaluator: Evaluator,
    screener: Optional[Evaluator],
    windows: Windows,
    chosen: np.ndarray,
    settings: InfluenceConfig,
    device: torch.device,
) -> tuple[np.ndarray, dict[str, Measured], dict[str, Screening]]:
    """(L_short [W], {context: Measured}, {context: Screening}, empty where nothing is screened) of the windows numbered
    ``chosen``; the null context changes only the long-range tokens, so that L_short is the same in both."""
    num_long_range = windows.full_len - evaluator.local_len
    rows = torch.from_numpy(windows.tokens(chosen)).to(device)
    tokens_WT, targets_W = rows[:, :-1].contiguous(), rows[:, -1].contiguous()
    null_WT = tokens_WT.clone()
    null_WT[:, :num_long_range] = torch.from_numpy(windows.null_tokens(chosen, num_long_range)).to(device)
    nothing = torch.zeros(len(chosen), 0, dtype=torch.int64, device=device)
    log_p_short = log_probs(evaluator, tokens_WT, nothing)
    contexts = {
        context: Scored(
            evaluator=evaluator,
            tokens_WT=tokens,
            targets_W=targets_W,
            log_p_short_WV=log_p_short,
            window_ids=chosen,
            context=context,
            seed=settings.seed,
            max_k=max(settings.k),
            lasso_masks=settings.lasso_masks,
            with_kl="kl" in settings.selectors,
            screen=settings.screen,
            screen_by=settings.screen_by,
            screener=screener,
        )
        for context, tokens in zip(CONTEXTS, (tokens_WT, null_WT), strict=True)
    }
    measured = {name: measure_context(one, settings) for name, one in contexts.items()}
    screening = {}
    if settings.screen is not None:
        screening = {name: check_screening(one, measured[name], settings) for name, one in contexts.items()}
    return contexts["real"].loss_short, measured, screening


def num_evaluations(name: str, num_long_range: int, settings: InfluenceConfig) -> int:
    """What a selector's scores cost in each window, in forward passes over one row."""
    cost = SELECTORS[name].num_evaluations
    rest = (max(settings.k), settings.lasso_masks)
    if settings.screen is None or name not in SCREENED:
        return cost(num_long_range, *rest)
    ranking = SELECTORS["gradient"].num_evaluations if settings.screen_by == "gradient" else cost
    return cost(settings.screen, *rest) + ranking(num_long_range, *rest)


def _scores_column(scores_WM: np.ndarray) -> list[Any]:
    """Missing is null, not NaN."""
    if not np.isnan(scores_WM).any():
        return list(scores_WM)
    return [[None if np.isnan(score) else score for score in row] for row in scores_WM.tolist()]


def part_columns(
    windows: Windows,
    chosen: np.ndarray,
    loss_short: np.ndarray,
    measured: dict[str, Measured],
    screening: dict[str, Screening],
    settings: InfluenceConfig,
    tokenizer: Tokenizer,
    split: str,
    local_len: int,
) -> dict[str, dict[str, Any]]:
    """The columns of every table for one part."""
    store, full_len = windows.store, windows.full_len
    num_long_range = full_len - local_len
    tokens = windows.tokens(chosen)
    document = windows.document[chosen]
    doc_ids = windows.doc_ids(chosen)
    null_document = store.document_of(windows.null_start[chosen])
    real, null = measured["real"], measured["null"]
    texts = [token_texts(tokenizer, row) for row in tokens]
    columns: dict[str, dict[str, Any]] = {}
    columns["windows"] = {
        "window_id": chosen,
        "doc_id": doc_ids,
        "source": store.source_of(document),
        "split": [split] * len(chosen),
        "start_token": windows.start[chosen] - store.begins[document],
        "token_ids": list(tokens[:, :-1]),
        "token_texts": [row[:-1] for row in texts],
        "target_id": tokens[:, -1],
        "target_text": [row[-1] for row in texts],
        "target_class": [
            target_class(row[:-1].tolist(), words[:-1], int(row[-1]), words[-1], num_long_range)
            for row, words in zip(tokens, texts, strict=True)
        ],
        "null_doc_id": [f"{int(i):016x}" for i in store.doc_ids[null_document]],
        "null_token_ids": list(windows.null_tokens(chosen, num_long_range)),
        "loss_short_nats": loss_short,
        "loss_long_nats": real.loss_long,
        "gain_long_nats": loss_short - real.loss_long,
        "null_loss_long_nats": null.loss_long,
        "null_gain_long_nats": loss_short - null.loss_long,
    }
    rows: list[dict[str, Any]] = []
    scores = {(n, c): _scores_column(measured[c].scores[n]) for n in settings.selectors for c in CONTEXTS}
    for w, window_id in enumerate(chosen.tolist()):
        for name in settings.selectors:
            for context in CONTEXTS:
                one = measured[context]
                positions = one.positions[name][w]
                rows.append(
                    {
                        "window_id": window_id,
                        "doc_id": doc_ids[w],
                        "selector": name,
                        "context": context,
                        "sees_target": SELECTORS[name].sees_target,
                        "num_evaluations": num_evaluations(name, num_long_range, settings),
                        "positions": positions,
                        "distance_tokens": full_len - positions,
                        "scores": scores[name, context][w],
                        "k": settings.k,
                        "loss_sparse_nats": one.loss_sparse[name][w],
                        "gain_sparse_nats": loss_short[w] - one.loss_sparse[name][w],
                    }
                )
    columns["selections"] = {key: [row[key] for row in rows] for key in rows[0]}
    if settings.save_candidates:
        singles = [_scores_column(cast(np.ndarray, measured[context].loss_single)) for context in CONTEXTS]
        columns["candidates"] = {
            "window_id": np.repeat(chosen, len(CONTEXTS)),
            "context": list(CONTEXTS) * len(chosen),
            "loss_single_nats": [row for rows in zip(*singles, strict=True) for row in rows],
        }
    if settings.screen is not None:
        rows = [
            {
                "window_id": chosen[w],
                "doc_id": doc_ids[w],
                "selector": name,
                "context": context,
                "k": settings.k,
                "recall": one.recall[name][i],
                "gain_lost_nats": one.gain_lost[name][i],
            }
            for context, one in screening.items()
            for name in one.recall
            for i, w in enumerate(one.windows.tolist())
        ]
        names = schemas(num_long_range)["screening"].names
        columns["screening"] = {name: [row[name] for row in rows] for name in names}
    return columns


def default_name(settings: InfluenceConfig, source: str, split: str, key: str) -> str:
    """A folder name that says what was measured, with a hash of all of it."""
    text = re.sub(r"[^A-Za-z0-9]+", "-", Path(source).name).strip("-")[:40] or "text"
    ks = "-".join(str(k) for k in settings.k)
    return f"{text}-{split}-n{settings.num_windows}-k{ks}-seed{settings.seed}-{key[:6]}"


def measure(
    config: Config,
    run: Path,
    out: Optional[Path] = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda line: None,
    share: Share = WHOLE,
) -> Path:
    """Measures a trained run's model; returns the folder of its tables.

    Finished, it is left as it is; interrupted, the missing parts are measured.

    Args:
        config: what to measure (``config.influence``), under which lengths.
        run: folder of the trained run.
        out: folder of the tables; None: one named after what is measured, inside the run.
        overwrite: delete finished tables and measure again.
        say: where one-line remarks go.
        share: which of the parts are measured here.

    Raises:
        UserError: the text, the run or the folder is not usable.
    """
    settings, context = config.influence, config.context
    config.check_k()
    held_out = open_held_out(config, run, say)
    store, split = held_out.store, held_out.split
    model_sha256 = held_out.facts["sha256"]["model.pt"]
    key = fingerprint(
        tables.SCHEMA_VERSION, to_dict(settings), to_dict(context), model_sha256, store.tokens_sha256, store.split
    )
    folder = out if out is not None else run / "influence" / default_name(settings, held_out.source, split, key)
    if is_measured(folder, "influence", key, overwrite, say):
        return folder

    windows = held_out.windows(config, context.full_len)
    num_documents = windows.num_documents
    if len(windows) < settings.num_windows:
        say(
            f"the text holds {len(windows)} windows of {num_documents} documents, not the {settings.num_windows} asked "
            "for; influence.max_windows_per_document allows more of each"
        )
    manifest: dict[str, Any] = {
        "kind": "influence",
        "run_id": key,
        "run": run.name,
        "source": held_out.source,
        "split": split,
        "influence": to_dict(settings),
        "context": context_facts(config),
        "num_windows": len(windows),
        "num_documents": num_documents,
        "pose": to_dict(config.pose),
        "num_parameters": held_out.manifest["num_parameters"],
        "checkpoint": {"step": held_out.facts["step"], "model_sha256": model_sha256},
        "tokens_sha256": store.tokens_sha256,
        "windows_sha256": windows.sha256,
        "device": device_name(held_out.device),
        "precision": settings.precision,
    }
    lengths = (context.full_len, context.local_len)
    evaluator = make_evaluator(held_out.model, settings, *lengths, settings.precision)
    screener = None
    if settings.screen is not None:
        low = (
            supports_bf16(held_out.device)
            if settings.screen_precision == "auto"
            else settings.screen_precision == "bf16"
        )
        precision = "bf16" if low else "fp32"
        if precision != settings.precision:
            screener = make_evaluator(held_out.model, settings, *lengths, precision)
    say(
        f"{folder}: {len(windows)} windows of {num_documents} documents, {', '.join(settings.selectors)}, k = {list(settings.k)}"
    )

    def measure_part(chosen: np.ndarray) -> dict[str, dict[str, Any]]:
        numbers = measure_windows(evaluator, screener, windows, chosen, settings, held_out.device)
        return part_columns(windows, chosen, *numbers, settings, held_out.tokenizer, split, context.local_len)

    measure_parts(folder, manifest, settings.windows_per_part, measure_part, overwrite, say, share)
    return folder
