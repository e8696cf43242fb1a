"""Windows -> records: which long-range tokens are influential, and how much loss comes back when they are unmasked.

A measurement is a folder of part files, each of a fixed range of windows; a part appears whole or not at all, and a
rerun does the missing ones. Legend: W windows of a part, T tokens of a window, M long-range tokens, S set size.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from olmo_sparsity import checkpoint as checkpoints
from olmo_sparsity import tables
from olmo_sparsity.config import Config, DataConfig, InfluenceConfig, UserError, fingerprint, to_dict
from olmo_sparsity.losses import Evaluator, log_probs, target_losses
from olmo_sparsity.manifest import empty_folder, environment, holds, make_folder, read_json, write_json
from olmo_sparsity.model import pick_device
from olmo_sparsity.selectors import CONTEXTS, SELECTORS, Scored, rank
from olmo_sparsity.tokens import open_store, prepare, read_tokenizer, token_texts, word_start_table
from olmo_sparsity.windows import Windows, sample_windows

C4_DOCUMENTS_A_WINDOW = 20  # enough that most windows come from documents of their own, however long they must be


@dataclass(frozen=True)
class Measured:
    """One context of W windows: losses in nats, and the selections of every selector."""

    loss_long: np.ndarray  # [W]
    loss_single: Optional[np.ndarray]  # [W, M]
    scores: dict[str, np.ndarray]  # [W, M]
    positions: dict[str, np.ndarray]  # [W, max k], most influential first
    loss_sparse: dict[str, np.ndarray]  # [W, number of k]


def measure_context(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    targets_W: torch.Tensor,
    loss_short_W: torch.Tensor,
    log_p_short_WV: torch.Tensor,
    settings: InfluenceConfig,
    window_ids: np.ndarray,
    context: str,
) -> Measured:
    """L_long, the single-token unmaskings, and for every selector its ranking and L_short,sparse at every k."""
    num_windows, full_len = tokens_WT.shape
    num_long_range = full_len - evaluator.local_len
    device = tokens_WT.device
    chosen = {name: SELECTORS[name] for name in settings.selectors}
    everything = torch.arange(num_long_range, device=device)
    log_p_long = torch.cat(
        [
            log_probs(evaluator, rows, everything.expand(len(rows), -1))
            for rows in tokens_WT.split(max(1, evaluator.batch_tokens // full_len))
        ]
    )
    loss_long = -log_p_long.gather(1, targets_W[:, None])[:, 0]
    loss_single = kl_single = kl_short = None
    if settings.save_candidates or any(selector.needs_singles for selector in chosen.values()):
        singles = everything.view(1, -1, 1).expand(num_windows, -1, -1)
        with_kl = any(selector.needs_kl for selector in chosen.values())
        loss_single, kl_single = target_losses(
            evaluator, tokens_WT, targets_W, singles, log_p_long if with_kl else None
        )
        if with_kl:
            kl_short = (log_p_long.exp() * (log_p_long - log_p_short_WV)).sum(dim=1)
    scored = Scored(
        window_ids=window_ids,
        num_long_range=num_long_range,
        context=context,
        seed=settings.seed,
        loss_short=loss_short_W.cpu().numpy(),
        loss_single=None if loss_single is None else loss_single.cpu().numpy(),
        kl_short=None if kl_short is None else kl_short.cpu().numpy(),
        kl_single=None if kl_single is None else kl_single.cpu().numpy(),
    )
    scores, positions, loss_sparse = {}, {}, {}
    for name, selector in chosen.items():
        scores[name] = selector.score(scored)
        ranked = rank(scores[name])
        positions[name] = ranked[:, : max(settings.k)]
        on_device = torch.from_numpy(positions[name].copy()).to(device)
        per_k = [target_losses(evaluator, tokens_WT, targets_W, on_device[:, None, :k])[0][:, 0] for k in settings.k]
        loss_sparse[name] = torch.stack(per_k, dim=1).cpu().numpy()
    return Measured(loss_long.cpu().numpy(), scored.loss_single, scores, positions, loss_sparse)


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
    rows_at_once = max(1, evaluator.batch_tokens // windows.full_len)
    log_p_short = torch.cat(
        [
            log_probs(evaluator, part, empty)
            for part, empty in zip(tokens_WT.split(rows_at_once), nothing.split(rows_at_once), strict=True)
        ]
    )
    loss_short = -log_p_short.gather(1, targets_W[:, None])[:, 0]
    measured = {
        context: measure_context(evaluator, tokens, targets_W, loss_short, log_p_short, settings, chosen, context)
        for context, tokens in zip(CONTEXTS, (tokens_WT, null_WT), strict=True)
    }
    return loss_short.cpu().numpy(), measured


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
    doc_ids = [f"{int(i):016x}" for i in store.doc_ids[document]]
    null_document = np.searchsorted(store.offsets, windows.null_start[chosen], side="right") - 1
    real, null = measured["real"], measured["null"]
    columns: dict[str, dict[str, Any]] = {}
    columns["windows"] = {
        "window_id": chosen,
        "doc_id": doc_ids,
        "source": [store.sources[int(i)] for i in store.source_index[document]],
        "split": [split] * len(chosen),
        "start_token": windows.start[chosen] - store.offsets[document],
        "token_ids": list(tokens[:, :-1]),
        "token_texts": [token_texts(tokenizer, row[:-1]) for row in tokens],
        "target_id": tokens[:, -1],
        "target_text": token_texts(tokenizer, tokens[:, -1]),
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
                        "num_evaluations": SELECTORS[name].num_evaluations(num_long_range),
                        "positions": positions,
                        "distance_tokens": full_len - positions,
                        "scores": one.scores[name][w][positions],
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
) -> Path:
    """Measures a trained run's model; returns the folder of its tables.

    Finished, it is left as it is; interrupted, the missing parts are measured.

    Args:
        config: what to measure (``config.influence``), under which lengths.
        run: folder of the trained run.
        out: folder of the tables; None: one named after what is measured, inside the run.
        overwrite: delete finished tables and measure again.
        say: where one-line remarks go.

    Raises:
        UserError: the text, the run or the folder is not usable.
    """
    settings, context = config.influence, config.context
    config.check_k()
    latest = checkpoints.latest_checkpoint(run / "checkpoints")
    if latest is None:
        raise UserError(
            f"{run}: there is no checkpoint in this run; train it first with `olmo-sparsity train --run {run}`"
        )
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    model = checkpoints.load_model(latest, device)
    facts_of_model = read_json(latest / "train.json")  # which load_model has verified
    run_manifest = read_json(run / "manifest.json")
    tokenizer = read_tokenizer(run / "tokenizer.json")

    trained_on = Path(run_manifest["token_store"])
    if not (trained_on / "manifest.json").is_file():
        say(f"{trained_on}: the run's token files are gone, so the text is prepared again")
        trained_on = prepare(DataConfig(**{**run_manifest["config"]["data"], "cache_dir": config.data.cache_dir}))
    training_store = open_store(trained_on, "train")
    if training_store.tokens_sha256 != run_manifest["tokens_sha256"]:
        raise UserError(
            f"{run}: data.source = {config.data.source} is not the text any more that this run was trained on, so what "
            "is held out cannot be told; restore it, or train again"
        )
    if settings.data is None:
        source, split = config.data.source, "validation"
        store, excluded = open_store(trained_on, split), None
    else:
        source, split = settings.data, "held-out"
        limit = settings.max_documents
        if limit is None and source == "c4":
            limit = C4_DOCUMENTS_A_WINDOW * settings.num_windows
        text = dataclasses.replace(config.data, source=source, max_documents=limit, max_tokens=None)
        store = open_store(prepare(text, tokenizer_file=run / "tokenizer.json"), "measured")
        excluded = np.asarray(training_store.doc_ids)
    key = fingerprint(
        to_dict(settings), to_dict(context), facts_of_model["sha256"]["model.pt"], store.tokens_sha256, store.split
    )
    folder = out if out is not None else run / "influence" / default_name(settings, source, split, key)
    begun = holds(folder, "influence")
    if begun and not overwrite:
        there = read_json(folder / "manifest.json")
        if there.get("run_id") != key:
            raise UserError(
                f"{folder}: these tables were measured with other settings, another model or other text; choose another "
                "folder with --out DIR, or replace them with --overwrite"
            )
        if there.get("status") == "complete":
            say(f"{folder}: already measured ({there['num_windows']} windows); nothing to do")
            return folder

    windows = sample_windows(
        store,
        context.full_len,
        settings.num_windows,
        settings.max_windows_per_document,
        settings.seed,
        excluded,
        word_start_table(tokenizer) if settings.targets == "word-start" else None,
    )
    if begun and overwrite:  # only now that the new measurement is known to be possible
        say(f"deleting {folder}, as --overwrite asks")
        empty_folder(folder)
    num_documents = len(np.unique(store.doc_ids[windows.document]))
    if len(windows) < settings.num_windows:
        say(
            f"the text holds {len(windows)} windows of {num_documents} documents, not the {settings.num_windows} asked "
            "for; influence.max_windows_per_document allows more of each"
        )
    part_size = settings.windows_per_part
    num_parts = -(-len(windows) // part_size)
    manifest: dict[str, Any] = {
        "kind": "influence",
        "status": "running",
        "run_id": key,
        "run": run.name,
        "source": source,
        "split": split,
        "influence": to_dict(settings),
        "context": {
            "local_len": context.local_len,
            "full_len": context.full_len,
            "train_len": context.row_len,
            "max_position": config.max_position,
            "num_chunks": config.pose.num_chunks,
            "num_long_range": context.num_long_range,
        },
        "num_windows": len(windows),
        "num_documents": num_documents,
        "num_parts": num_parts,
        "pose": to_dict(config.pose),
        "num_parameters": run_manifest["num_parameters"],
        "checkpoint": {"step": facts_of_model["step"], "model_sha256": facts_of_model["sha256"]["model.pt"]},
        "tokens_sha256": store.tokens_sha256,
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "precision": "fp32",
        "environment": environment(),
    }
    make_folder(folder)
    if not begun or overwrite:
        write_json(folder / "manifest.json", manifest)

    evaluator = Evaluator(model, context.local_len, settings.path, settings.batch_tokens)
    schemas = tables.schemas(context.num_long_range)
    facts = {"run_id": key, **{name: str(value) for name, value in manifest["context"].items()}}
    say(
        f"{folder}: {len(windows)} windows of {num_documents} documents, {', '.join(settings.selectors)}, k = {list(settings.k)}"
    )
    missing = [part for part in range(num_parts) if not tables.part_path(folder, "windows", part).is_file()]
    with tqdm(total=len(windows), desc="influence", unit=" windows", disable=None) as bar:
        bar.update(len(windows) - sum(min(part_size, len(windows) - part * part_size) for part in missing))
        for part in missing:
            chosen = np.arange(part * part_size, min((part + 1) * part_size, len(windows)))
            loss_short, measured = measure_windows(evaluator, windows, chosen, settings, device)
            columns = part_columns(windows, chosen, loss_short, measured, settings, tokenizer, split, context.local_len)
            for table in reversed(tables.TABLES):  # windows last: its part says that the others are there
                if table in columns:
                    tables.write_part(folder, table, part, columns[table], schemas[table], facts)
            bar.update(len(chosen))
    manifest["status"] = "complete"
    manifest["finished"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_json(folder / "manifest.json", manifest)
    return folder
