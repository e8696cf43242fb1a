"""Tables of an invented measurement with known gains, for tests of statistics and figures that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa

from olmo_sparsity.config import Lengths
from olmo_sparsity.files import write_manifest
from olmo_sparsity.tables import DAMPING, schemas, write_part

LENGTHS = {"local_len": 8, "full_len": 20, "train_len": 8, "max_position": 20, "num_chunks": 2, "num_long_range": 12}
M, KS = 12, [1, 2, 8]
SEES_TARGET = {
    "unmask-one": True,
    "kl": False,
    "gradient": True,
    "attention": False,
    "random": False,
    "nearest": False,
    "mask-one": True,
    "greedy": True,
    "lasso": True,
    "greedy-kl": False,
}
LENGTHS_OF_PRETRAINED = {"local_len": 8, "full_len": 20, "train_len": None, "max_position": None, "num_long_range": 12}
# Entries of the manifest of a pretrained model: one that names its model alone, and one whose other first token has a lower loss.
MODEL = {
    "name": "someone/Made-Up-2M",
    "revision": "main-commit",
    "weights_sha256": "0123456789abcdef" * 4,
    "architecture": "LlamaForCausalLM",
    "num_parameters": 2_345_678,
    "dtype": "bfloat16",
    "max_position": 2048,
    "tokenizer_sha256": "9" * 64,
}
PRETRAINED: dict[str, Any] = {"run": "someone--made-up-2m", "model": MODEL, "visibility": "hidden", "anchor": None}
ANCHOR_CHECK = {
    "chosen": "bos",
    "text": "<bos>",
    "num_windows": 64,
    "loss_short_nats": {"bos": 3.865, "none": 3.2},
    "loss_long_nats": {"bos": 3.2912, "none": 2.5493},
    "standard_error_short_nats": 0.2345,
    "standard_error_nats": 0.1234,
    "lower_with": {"short": "none", "long": "none"},
}
CONTEXTUAL: dict[str, Any] = {
    **PRETRAINED,
    "visibility": "contextual",
    "anchor": {"id": 7, "text": "<bos>"},
    "fit": {"checks": [], "anchor": ANCHOR_CHECK},
}
DRAWS, NULL_DRAWS = 2, 1  # drawn labels of each window, and under its null context
OPTIMISM = 0.1  # nats: of a selector that sees the target, at k = 1, and the same times sqrt(k) at other k
COST = 0.04  # nats: KL(p_{}, p_J) likewise
SEEING = sum(SEES_TARGET.values())
ROWS_PER_WINDOW = 2 * len(SEES_TARGET) + (DRAWS + NULL_DRAWS) * (SEEING + 1)  # of ``selections``
CLASSES = ("induction", "repeat", "function-word", "other")


def made_up_tables(
    folder: Path,
    num_documents: int = 60,
    long_gain: float = 0.5,
    seed: int = 0,
    words: Optional[list[str]] = None,
    part_sizes: Sequence[int] | None = None,
    gain_beyond: Optional[float] = None,
    gap_cost: float = 0.01,
    setup: Optional[dict[str, Any]] = None,
    selectors: Sequence[str] = tuple(SEES_TARGET),
) -> Path:
    """Write an influence folder of two equal parts, or of parts of these sizes; windows are shuffled within a part.

    Long gain: ``long_gain`` (twice in class ``repeat``, none in ``function-word``) + what the document adds + noise. Sparse
    gain: part of the long gain of the same context, the more the larger k, + optimism where the selector sees the target.
    ``words``: the texts of the first tokens of window 0, and of its target.
    Scores: whole numbers, so with ties; every seventh window of `lasso` has all equal.

    With a drawn label the sparse gain of a selector that sees the target is its optimism minus the cost of showing a set, and
    noise; of `random` it is minus that cost, and noise. Of KL(p_all, p_{}) the share
    ``kl_share`` is recovered. ``gain_beyond``: mean gain beyond training rows of 14 tokens;
    None: training rows have as many tokens as the local context, so that it is the long gain without the cost of the gap.
    The loss of the last n tokens is linear between these points, the blend of weight w has w (2 - w) of the long gain, and
    (1 - w)^2 of the divergence.
    ``gap_cost``: what the gap in front of the recent tokens costs; mean, in nats. ``setup``: entries of the manifest
    about the model (such as ``PRETRAINED``); where it names a model, no training row is known, nor what the model saw.
    ``selectors``: those that are written; their numbers and their order are the same without the others.
    """
    setup = setup or {}
    is_pretrained = "model" in setup
    row_len = 8 if gain_beyond is None else 14
    last_n = Lengths(8, 20, M, None if is_pretrained else row_len).last_n
    rng = np.random.default_rng(seed)
    added_rng = np.random.default_rng([seed, 1])  # of its own, so that the other numbers stay as they are
    newest_rng = np.random.default_rng([seed, 2])  # likewise
    gap_rng = np.random.default_rng([seed, 3])
    document = np.sort(np.r_[np.arange(num_documents), rng.integers(0, num_documents, num_documents // 2)])
    rng.shuffle(document)
    num = len(document)
    classes = rng.choice(CLASSES, num, p=[0.2, 0.2, 0.3, 0.3])
    shift = rng.normal(0, 0.2, num_documents)[document]
    factor = np.select([classes == "repeat", classes == "function-word"], [2.0, 0.0], 1.0)
    gain = {"real": long_gain * factor + shift + rng.normal(0, 0.3, num), "null": rng.normal(-0.1, 0.3, num)}
    short = 4.0 + rng.normal(0, 0.5, num)
    long = short - gain["real"]
    gap = gap_rng.normal(gap_cost, 0.02, num)
    beyond = gain["real"] - gap if gain_beyond is None else added_rng.normal(gain_beyond, 0.2, num)
    kl_short = {context: added_rng.gamma(2.0, 0.1, num) for context in ("real", "null")}
    undone = 1 - np.array(DAMPING)
    drawn_short = 3.0 + added_rng.normal(0, 0.5, (num, DRAWS))
    windows: list[dict[str, Any]] = []
    selections: list[dict[str, Any]] = []
    for w in range(num):
        doc_id = f"{document[w]:016x}"
        newest_rng.normal()  # drawn and not used, as below: all other numbers stay the same
        windows.append(
            {
                "window_id": w,
                "doc_id": doc_id,
                "weight": 1.0,
                "source": "made up",
                "split": "validation",
                "train_overlap": None if is_pretrained else w % 8 == 0,
                "start_token": 0,
                "token_ids": list(range(20)),
                "token_texts": [f" w{rng.integers(100)}" for _ in range(20)],
                "target_id": 1,
                "target_text": " end",
                "target_class": classes[w],
                "null_doc_id": f"{(document[w] + 1) % num_documents:016x}",
                "null_token_ids": list(range(12)),
                "loss_short_nats": short[w],
                "loss_long_nats": long[w],
                "gain_long_nats": gain["real"][w],
                "null_loss_long_nats": short[w] - gain["null"][w],
                "null_gain_long_nats": gain["null"][w],
                "null_target_class": added_rng.choice(CLASSES),
                "loss_short_no_gap_nats": short[w] - gap[w],
                "last_n": last_n,
                "loss_last_nats": np.interp(
                    last_n,
                    *zip(
                        *sorted({8: short[w] - gap[w], row_len: long[w] + beyond[w], 20: long[w]}.items()), strict=True
                    ),
                ),
                "gain_beyond_nats": None if is_pretrained else beyond[w],
                "kl_short_nats": kl_short["real"][w],
                "null_kl_short_nats": kl_short["null"][w],
                "loss_damped_nats": short[w] - (1 - undone**2) * gain["real"][w],
                "kl_damped_nats": undone**2 * kl_short["real"][w],
                "null_loss_damped_nats": short[w] - (1 - undone**2) * gain["null"][w],
                "null_kl_damped_nats": undone**2 * kl_short["null"][w],
                "resampled_target_ids": added_rng.integers(0, 100, DRAWS),
                "resampled_loss_short_nats": drawn_short[w],
                "resampled_loss_long_nats": drawn_short[w] + added_rng.normal(kl_short["real"][w], 0.2, DRAWS),
                "kl_short_to_long_nats": newest_rng.gamma(9.0, kl_short["real"][w] / 9),
                "entropy_short_nats": short[w] + newest_rng.normal(0.05, 0.2),
            }
        )
        added_rng.normal()
        for number, (selector, sees_target) in enumerate(SEES_TARGET.items()):
            for context in ("real", "null"):
                scores = rng.integers(0, 9, M).astype(float)
                if selector == "lasso" and w % 7 == 0:
                    scores[:] = 0
                positions = M - 1 - np.argsort(-scores[::-1], kind="stable")[: KS[-1]]
                sparse = [
                    gain[context][w] * k / 8 * (0.4 + 0.07 * number)
                    + OPTIMISM * sees_target * k**0.5
                    + rng.normal(0, 0.1)
                    for k in KS
                ]
                selections.append(
                    {
                        "window_id": w,
                        "doc_id": doc_id,
                        "selector": selector,
                        "context": context,
                        "draw": 0,
                        "sees_target": sees_target,
                        "num_evaluations": number,
                        "positions": positions,
                        "distance_tokens": 20 - positions,
                        "scores": scores,
                        "k": KS,
                        "loss_sparse_nats": short[w] - np.array(sparse),
                        "gain_sparse_nats": sparse,
                        "kl_sparse_nats": _kl_sparse(kl_short[context][w], kl_share(selector), rng=added_rng),
                    }
                )
            real = selections[-2]
            for context in ("resampled", "null-resampled") if sees_target or selector == "random" else ():
                of_context = added_rng if sees_target and context == "resampled" else newest_rng
                for draw in range(DRAWS if context == "resampled" else NULL_DRAWS):
                    cost = COST * np.sqrt(KS)
                    drawn_gain = OPTIMISM * sees_target * np.sqrt(KS) - cost + of_context.normal(0, 0.1, len(KS))
                    of_draw = {
                        "context": context,
                        "draw": draw,
                        "kl_sparse_nats": None,
                        "kl_short_to_sparse_nats": cost,
                    }
                    gains = {"loss_sparse_nats": drawn_short[w, draw] - drawn_gain, "gain_sparse_nats": drawn_gain}
                    chosen = _chosen_by(of_context) if sees_target else {}
                    selections.append({**real, **chosen, **of_draw, **gains})
            if selector in ("kl", "greedy-kl"):  # drawn and not used: all other numbers stay the same
                _kl_sparse(kl_short["real"][w], 0.4 * kl_share(selector), rng=added_rng)
                added_rng.normal(-0.05, 0.1, len(KS))
                _chosen_by(added_rng)
                selections.append(
                    {"window_id": w, "selector": ""}
                )  # left out below; so the order of the others stays, too
    if words:
        windows[0]["token_texts"][: len(words)] = words
        windows[0]["target_text"] = words[0]
    parts = np.array_split(np.arange(num), 2 if part_sizes is None else np.cumsum(part_sizes)[:-1])
    assert part_sizes is None or sum(part_sizes) == num
    for part, members in enumerate(set(chosen.tolist()) for chosen in parts):
        for table, rows in (("windows", windows), ("selections", selections)):
            of = [row for row in rows if row["window_id"] in members]
            since_3, since_4 = ([row for row in of if _is_new(row) == is_new] for is_new in (False, True))
            of = [since_3[i] for i in rng.permutation(len(since_3))]
            of += [since_4[i] for i in newest_rng.permutation(len(since_4))]
            of = [row for row in of if row.get("selector") in (None, *selectors)]
            content = pa.Table.from_pylist(of, schema=schemas(M)[table])
            write_part(folder, table, part=part, content=content, metadata={"run_id": "0"})
    manifest: dict[str, Any] = {
        "kind": "influence",
        "status": "complete",
        "run_id": "0",
        "run": "made-up",
        "source": "made up",
        "influence": {"k": KS, "selectors": list(selectors), "resampled_draws": DRAWS, "unit": "token"},
    }
    lengths: dict[str, Any] = {**LENGTHS, "train_len": row_len}
    if is_pretrained:
        lengths = {**LENGTHS_OF_PRETRAINED}
    manifest |= {"split": "validation", "num_parts": len(parts), "num_windows": num, "context": lengths, **setup}
    write_manifest(folder, manifest)
    return folder


def _is_new(row: dict[str, Any]) -> bool:
    """Return True for rows whose numbers, and whose order, come from ``newest_rng``."""
    context = row.get("context")
    return context == "null-resampled" or (context == "resampled" and row["selector"] == "random")


def kl_share(selector: str) -> np.ndarray:
    """Return the share of KL(p_all, p_{}) that a selector recovers at each k, [K]."""
    return np.asarray(np.minimum(1.0, (0.2 + 0.015 * list(SEES_TARGET).index(selector)) * np.sqrt(KS)))


def _kl_sparse(kl_short: float, share_K: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Return KL(p_all, p_{J_k}) at each k: positive, with noise."""
    return np.asarray(kl_short * (1 - share_K) * np.exp(rng.normal(0, 0.1, len(KS)) - 0.005))


def _chosen_by(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random scores of a selector, and what it chooses by them."""
    scores = rng.integers(0, 9, M).astype(float)
    positions = M - 1 - np.argsort(-scores[::-1], kind="stable")[: KS[-1]]
    return {"scores": scores, "positions": positions, "distance_tokens": 20 - positions}
