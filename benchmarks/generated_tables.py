"""Valid tables of a measurement that never was, of any size, quickly: ``python -m benchmarks.generated_tables DIR WINDOWS``.

The numbers are planted: see ``gains``. Texts and token numbers are the same in every window.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from olmo_sparsity.storage.files import write_json
from olmo_sparsity.storage.folders import make_folder
from olmo_sparsity.tables.parts import part_path, write_part
from olmo_sparsity.tables.schemas import schemas

LOCAL_LEN, FULL_LEN = 16, 48
M = FULL_LEN - LOCAL_LEN
KS = [1, 2, 4, 8]
# Name -> (sees the target, evaluations, share of the long gain that one token gives back, luck in nats at k = 1).
SELECTORS = {
    "unmask-one": (True, M + 1, 0.4, 0.12),
    "kl": (False, M + 2, 0.4, 0.0),
    "gradient": (True, 3, 0.35, 0.1),
    "attention": (False, 1, 0.3, 0.0),
    "random": (False, 0, 0.05, 0.0),
    "nearest": (False, 0, 0.1, 0.0),
}
CLASSES = np.array(["induction", "repeat", "closing", "number", "continues-word", "name", "function-word", "other"])
CONTEXT = {
    "local_len": LOCAL_LEN,
    "full_len": FULL_LEN,
    "train_len": LOCAL_LEN,
    "num_long_range": M,
    "max_position": FULL_LEN,
    "num_chunks": 2,
}
WINDOWS_PER_PART = 4096
WINDOWS_PER_DOCUMENT = 1.5  # on average


def _lists(values_NK: np.ndarray) -> pa.ListArray:
    """Arrow lists, one a row."""
    num, length = values_NK.shape
    return pa.ListArray.from_arrays(np.arange(num + 1, dtype=np.int32) * length, pa.array(values_NK.ravel()))


def _same(value: str, num: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.zeros(num, np.int32), [value]).cast(pa.string())


def gains(long_gain: np.ndarray, selector: str, rng: np.random.Generator) -> np.ndarray:
    """Sparse gain in nats, float32 [windows, ks]: a share of the long gain that grows with k to all of it, luck that grows
    with the root of k, and noise."""
    _, _, share, luck = SELECTORS[selector]
    k = np.array(KS)
    noise = rng.normal(0, 0.1, (len(long_gain), len(k)))
    return (long_gain[:, None] * np.minimum(1, share * k**0.5) + luck * k**0.5 + noise).astype(np.float32)


def write_tables(folder: Path, num_windows: int, windows_per_part: int = WINDOWS_PER_PART) -> None:
    """Writes an influence folder of ``num_windows`` windows, with six selectors in two contexts."""
    make_folder(folder)
    num_documents = max(1, round(num_windows / WINDOWS_PER_DOCUMENT))
    of_document = np.random.default_rng(0).normal(0, 0.2, num_documents)
    num_parts = -(-num_windows // windows_per_part)
    for part in range(num_parts):
        window_ids = np.arange(part * windows_per_part, min((part + 1) * windows_per_part, num_windows))
        _write_part(folder, part, window_ids, of_document, np.random.default_rng([1, part]))
    facts = {"kind": "influence", "run": "generated", "run_id": "0", "source": "generated", "split": "validation"}
    lengths = {"num_windows": num_windows, "num_parts": num_parts, "context": CONTEXT}
    write_json(folder / "manifest.json", {**facts, **lengths, "status": "complete", "finished": "now"})


def _write_part(
    folder: Path, part: int, window_ids: np.ndarray, of_document: np.ndarray, rng: np.random.Generator
) -> None:
    num = len(window_ids)
    document = rng.integers(0, len(of_document), num)
    doc_ids = pa.array([f"{d:016x}" for d in document])
    short = (5 + rng.normal(0, 1, num)).astype(np.float32)
    long_gain = {
        "real": (0.1 + of_document[document] + rng.normal(0, 0.4, num)).astype(np.float32),
        "null": rng.normal(-0.1, 0.4, num).astype(np.float32),
    }
    tokens = np.tile(np.arange(FULL_LEN, dtype=np.int32), (num, 1))
    words = pa.DictionaryArray.from_arrays(np.zeros(num * FULL_LEN, np.int32), [" word"]).cast(pa.string())
    windows = {
        "window_id": window_ids,
        "doc_id": doc_ids,
        "source": _same("generated", num),
        "split": _same("validation", num),
        "start_token": np.zeros(num, np.int64),
        "token_ids": _lists(tokens),
        "token_texts": pa.ListArray.from_arrays(np.arange(num + 1, dtype=np.int32) * FULL_LEN, words),
        "target_id": np.ones(num, np.int32),
        "target_text": _same(" target", num),
        "target_class": pa.array(CLASSES[rng.integers(0, len(CLASSES), num)]),
        "null_doc_id": doc_ids.take(pa.array(np.roll(np.arange(num), 1))),
        "null_token_ids": _lists(tokens[:, :M]),
        "loss_short_nats": short,
        "loss_long_nats": short - long_gain["real"],
        "gain_long_nats": long_gain["real"],
        "null_loss_long_nats": short - long_gain["null"],
        "null_gain_long_nats": long_gain["null"],
    }
    # Whole numbers as scores, so that the files stay small. What selectors share makes them agree.
    common = rng.integers(0, 64, (num, M), dtype=np.int16)
    chosen = []
    for selector, (sees_target, cost, _, _) in SELECTORS.items():
        for context in ("real", "null"):
            scores = common + rng.integers(0, 64, (num, M), dtype=np.int16)
            positions = np.argsort(-(scores * M + np.arange(M, dtype=np.int16)), axis=1)[:, : KS[-1]].astype(np.int32)
            sparse = gains(long_gain[context], selector, rng)
            chosen.append(
                {
                    "window_id": window_ids,
                    "doc_id": doc_ids,
                    "selector": _same(selector, num),
                    "context": _same(context, num),
                    "sees_target": np.full(num, sees_target),
                    "num_evaluations": np.full(num, cost, np.int32),
                    "positions": _lists(positions),
                    "distance_tokens": _lists(FULL_LEN - positions),
                    "scores": pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel().astype(np.float32)), M),
                    "k": _lists(np.tile(np.array(KS, np.int32), (num, 1))),
                    "loss_sparse_nats": _lists(short[:, None] - sparse),
                    "gain_sparse_nats": _lists(sparse),
                }
            )
    selections = {name: pa.concat_arrays([pa.array(one[name]) for one in chosen]) for name in chosen[0]}
    for table, columns in (("selections", selections), ("windows", windows)):
        content = pa.table(columns, schema=schemas(M)[table])
        write_part(folder, table, part=part, content=content, metadata={"run_id": "0"})
        assert part_path(folder, table, part=part).is_file()


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]), int(sys.argv[2]))
