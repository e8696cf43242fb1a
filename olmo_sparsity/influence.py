"""Windows -> records: which long-range tokens are influential, and how much loss comes back when they are unmasked.

Legend: W windows of a part, T tokens of a window, M long-range tokens, S set size.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity import tables
from olmo_sparsity.classes import target_class
from olmo_sparsity.config import Config, InfluenceConfig, fingerprint, to_dict
from olmo_sparsity.held_out import context_facts, open_held_out
from olmo_sparsity.losses import Evaluator, log_probs
from olmo_sparsity.model import device_name
from olmo_sparsity.parts import WHOLE, Share, is_measured, measure_parts
from olmo_sparsity.selectors import CONTEXTS, SELECTORS, Scored, rank
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


def measure_context(scored: Scored, settings: InfluenceConfig) -> Measured:
    """L_long, and for every selector its scores, its ranking and L_short,sparse at every k."""
    scores, positions, loss_sparse = {}, {}, {}
    for name in settings.selectors:
        scores[name] = SELECTORS[name].score(scored)
        positions[name] = rank(scores[name])[:, : max(settings.k)]
        on_device = torch.from_numpy(positions[name].copy()).to(scored.tokens_WT.device)
        loss_sparse[name] = np.concatenate([scored.losses(on_device[:, None, :k]) for k in settings.k], axis=1)
    loss_single = scored.loss_single if settings.save_candidates else None
    return Measured(scored.loss_long, loss_single, scores, positions, loss_sparse)


def measure_windows(
    evaluator: Evaluator, windows: Windows, chosen: np.ndarray, settings: InfluenceConfig, device: torch.device
) -> tuple[np.ndarray, dict[str, Measured]]:
    """(L_short [W], {context: Measured}) of the windows numbered ``chosen``; the null context changes only the
    long-range tokens, so that L_short is the same in both."""
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
        )
        for context, tokens in zip(CONTEXTS, (tokens_WT, null_WT), strict=True)
    }
    return contexts["real"].loss_short, {name: measure_context(one, settings) for name, one in contexts.items()}


def part_columns(
    windows: Windows,
    chosen: np.ndarray,
    loss_short: np.ndarray,
    measured: dict[str, Measured],
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
    null_document = np.searchsorted(store.offsets, windows.null_start[chosen], side="right") - 1
    real, null = measured["real"], measured["null"]
    texts = [token_texts(tokenizer, row) for row in tokens]
    columns: dict[str, dict[str, Any]] = {}
    columns["windows"] = {
        "window_id": chosen,
        "doc_id": doc_ids,
        "source": [store.sources[int(i)] for i in store.source_index[document]],
        "split": [split] * len(chosen),
        "start_token": windows.start[chosen] - store.offsets[document],
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
                        "num_evaluations": SELECTORS[name].num_evaluations(
                            num_long_range, max(settings.k), settings.lasso_masks
                        ),
                        "positions": positions,
                        "distance_tokens": full_len - positions,
                        "scores": one.scores[name][w],
                        "k": settings.k,
                        "loss_sparse_nats": one.loss_sparse[name][w],
                        "gain_sparse_nats": loss_short[w] - one.loss_sparse[name][w],
                    }
                )
    columns["selections"] = {key: [row[key] for row in rows] for key in rows[0]}
    if settings.save_candidates:
        columns["candidates"] = {
            "window_id": np.repeat(chosen, len(CONTEXTS)),
            "context": list(CONTEXTS) * len(chosen),
            "loss_single_nats": [measured[c].loss_single[w] for w in range(len(chosen)) for c in CONTEXTS],  # type: ignore[index]
        }
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
        "precision": "fp32",
    }
    evaluator = Evaluator(held_out.model, context.local_len, settings.path, settings.batch_tokens)
    say(
        f"{folder}: {len(windows)} windows of {num_documents} documents, {', '.join(settings.selectors)}, k = {list(settings.k)}"
    )

    def measure_part(chosen: np.ndarray) -> dict[str, dict[str, Any]]:
        loss_short, measured = measure_windows(evaluator, windows, chosen, settings, held_out.device)
        return part_columns(
            windows, chosen, loss_short, measured, settings, held_out.tokenizer, split, context.local_len
        )

    measure_parts(folder, manifest, settings.windows_per_part, measure_part, overwrite, say, share)
    return folder
