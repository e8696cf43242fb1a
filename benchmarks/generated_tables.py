"""Writes valid tables of an invented measurement of any size, quickly: ``python -m benchmarks.generated_tables DIR WINDOWS``.

With ``pretrained`` as a third word, they are of an invented pretrained model: 64 of 128 tokens, k up to 32, tokens of a
byte-level vocabulary, no training row. The expected results are known, see ``gains``. Texts and token IDs are the same in every
window. Shape letters: W windows of a part, M long-range positions, K values of k, G documents.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa

from benchmarks.results import mistakes_in_one_line
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.folders import make_folder
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import part_path, write_part
from olmo_sparsity.tables.schemas import RESAMPLED, schemas


@dataclass(frozen=True)
class Invented:
    """What is invented about the measurement as a whole.

    Attributes:
        local_len: local tokens of a window.
        full_len: tokens of a window.
        ks: the measured k.
        token_texts: texts of the tokens, repeated through every window.
        train_len: tokens of a training row; None: not known.
        manifest: further entries of the manifest.
    """

    local_len: int
    full_len: int
    ks: list[int]
    token_texts: list[str]
    train_len: Optional[int]
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def num_long_range(self) -> int:
        """M."""
        return self.full_len - self.local_len


RUN = Invented(
    16, 48, [1, 2, 4, 8], [" word"], train_len=16, manifest={"context": {"max_position": 48, "num_chunks": 2}}
)
M = RUN.num_long_range
PRETRAINED = Invented(
    64,
    128,
    [1, 2, 4, 8, 16, 32],
    # Of a byte-level vocabulary: parts of characters, markup, control characters, other scripts.
    [
        "The",
        " model",
        "\ufffd",
        "\ufffd",
        " <b>",
        "\n\n",
        " \u6f22",
        "\U0001f600",
        "$x_{1}$",
        "\t",
        " 2016",
        "'s",
        " \u0434\u0430",
    ],
    train_len=None,
    manifest={
        "context": {"max_position": 2048},
        "model": {
            "name": "invented/Pretrained-135M",
            "revision": "0123456789abcdef0123456789abcdef01234567",
            "weights_sha256": "fedcba9876543210" * 4,
            "architecture": "LlamaForCausalLM",
            "num_parameters": 134_515_008,
            "dtype": "bfloat16",
            "max_position": 2048,
            "tokenizer_sha256": "0" * 64,
        },
        "visibility": "contextual",
        "anchor": {"id": 0, "text": "<|endoftext|>"},
        "fit": {
            "checks": [],
            "anchor": {
                "chosen": "bos",
                "text": "<|endoftext|>",
                "num_windows": 64,
                "loss_short_nats": {"bos": 3.7, "none": 3.65},
                "loss_long_nats": {"bos": 3.35, "none": 3.3041},
                "standard_error_short_nats": 0.04,
                "standard_error_nats": 0.01,
                "lower_with": {"short": None, "long": "none"},
            },
        },
    },
)


@dataclass(frozen=True)
class InventedSelector:
    """A selector whose results are invented.

    Attributes:
        sees_target: whether it uses the target.
        num_evaluations: its cost in forward passes.
        share: share of the long gain that one token recovers.
        optimism: how many nats of the sparse gain at k = 1 are optimism.
    """

    sees_target: bool
    num_evaluations: int
    share: float
    optimism: float


SELECTORS = {
    "unmask-one": InventedSelector(sees_target=True, num_evaluations=M + 1, share=0.4, optimism=0.12),
    "kl": InventedSelector(sees_target=False, num_evaluations=M + 2, share=0.4, optimism=0.0),
    "gradient": InventedSelector(sees_target=True, num_evaluations=3, share=0.35, optimism=0.1),
    "attention": InventedSelector(sees_target=False, num_evaluations=1, share=0.3, optimism=0.0),
    "random": InventedSelector(sees_target=False, num_evaluations=0, share=0.05, optimism=0.0),
    "nearest": InventedSelector(sees_target=False, num_evaluations=0, share=0.1, optimism=0.0),
}
CLASSES = np.array(["induction", "repeat", "closing", "number", "continues-word", "name", "function-word", "other"])
WINDOWS_PER_PART = 4096
DRAWS = 2  # labels drawn from the short-context prediction of each window
KL_SHORT = 0.1  # nats: divergence of the short-context prediction from the full-context one
WINDOWS_PER_DOCUMENT = 1.5  # on average


def _lists(values_RK: np.ndarray) -> pa.ListArray:
    """Convert an array to Arrow lists, one for each row."""
    num_rows, length = values_RK.shape
    return pa.ListArray.from_arrays(np.arange(num_rows + 1, dtype=np.int32) * length, pa.array(values_RK.ravel()))


def _repeated(value: str, num_rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(num_rows, np.int32), [value]).cast(pa.string())


def gains(gain_long_W: np.ndarray, selector: str, *, ks: list[int], rng: np.random.Generator) -> np.ndarray:
    """Return invented sparse gains in nats, float32 [W, K].

    They are a share of the long gain that grows with k up to all of it, optimism that grows with the square root of k, and noise.
    """
    invented = SELECTORS[selector]
    k_K = np.array(ks)
    noise_WK = rng.normal(0, 0.1, (len(gain_long_W), len(k_K)))
    recovered_WK = gain_long_W[:, None] * np.minimum(1, invented.share * k_K**0.5)
    return (recovered_WK + invented.optimism * k_K**0.5 + noise_WK).astype(np.float32)


def write_tables(
    folder: Path, num_windows: int, *, windows_per_part: int = WINDOWS_PER_PART, invented: Invented = RUN
) -> None:
    """Write an influence folder of ``num_windows`` windows, with six selectors and their controls."""
    make_folder(folder)
    num_documents = max(1, round(num_windows / WINDOWS_PER_DOCUMENT))
    document_gain_G = np.random.default_rng(0).normal(0, 0.2, num_documents)
    num_parts = -(-num_windows // windows_per_part)
    for part in range(num_parts):
        window_ids_W = np.arange(part * windows_per_part, min((part + 1) * windows_per_part, num_windows))
        _write_part(folder, part, window_ids_W=window_ids_W, document_gain_G=document_gain_G, invented=invented)
    manifest = {
        "kind": "influence",
        "run": "generated",
        "run_id": "0",
        "source": "generated",
        "split": "validation",
        "num_windows": num_windows,
        "num_parts": num_parts,
        "status": "complete",
        "finished": "now",
    }
    lengths = {
        "local_len": invented.local_len,
        "full_len": invented.full_len,
        "train_len": invented.train_len,
        "num_long_range": invented.num_long_range,
        **invented.manifest["context"],
    }
    write_manifest(folder, {**manifest, **invented.manifest, "context": lengths})


@dataclass(frozen=True)
class InventedWindows:
    """What the tables of a part have in common: the measurement, documents, short losses, and long gains of each context, in
    nats."""

    invented: Invented
    window_ids_W: np.ndarray
    doc_ids_W: pa.Array
    loss_short_W: np.ndarray
    gain_long_W: dict[str, np.ndarray]


def _write_part(
    folder: Path, part: int, *, window_ids_W: np.ndarray, document_gain_G: np.ndarray, invented: Invented
) -> None:
    rng = np.random.default_rng([1, part])
    num_windows = len(window_ids_W)
    document_W = rng.integers(0, len(document_gain_G), num_windows)
    loss_short_W = (5 + rng.normal(0, 1, num_windows)).astype(np.float32)
    real_W = (0.1 + document_gain_G[document_W] + rng.normal(0, 0.4, num_windows)).astype(np.float32)
    null_W = rng.normal(-0.1, 0.4, num_windows).astype(np.float32)
    windows = InventedWindows(
        invented=invented,
        window_ids_W=window_ids_W,
        doc_ids_W=pa.array([f"{document:016x}" for document in document_W]),
        loss_short_W=loss_short_W,
        gain_long_W={"real": real_W, "null": null_W},
    )
    # The order matters: both draw from the same generator.
    window_columns = _window_columns(windows, rng)
    selection_columns = _selection_columns(windows, rng)
    for table, columns in (("selections", selection_columns), ("windows", window_columns)):
        content = pa.table(columns, schema=schemas(invented.num_long_range)[table])
        write_part(folder, table, part=part, content=content, metadata={"run_id": "0"})
        assert part_path(folder, table, part=part).is_file()


def _window_columns(windows: InventedWindows, rng: np.random.Generator) -> dict[str, Any]:
    num_windows, invented = len(windows.window_ids_W), windows.invented
    full_len, num_texts = invented.full_len, len(invented.token_texts)
    tokens_WT = np.tile(np.arange(full_len, dtype=np.int32), (num_windows, 1))
    offsets = np.arange(num_windows + 1, dtype=np.int32) * full_len
    texts = pa.DictionaryArray.from_arrays(tokens_WT.ravel() % num_texts, invented.token_texts).cast(pa.string())
    real_W, null_W = windows.gain_long_W["real"], windows.gain_long_W["null"]
    return {
        "window_id": windows.window_ids_W,
        "doc_id": windows.doc_ids_W,
        "weight": np.ones(num_windows),
        "source": _repeated("generated", num_windows),
        "split": _repeated("validation", num_windows),
        "train_overlap": pa.nulls(num_windows, pa.bool_())
        if invented.train_len is None
        else np.zeros(num_windows, bool),
        "start_token": np.zeros(num_windows, np.int64),
        "token_ids": _lists(tokens_WT),
        "token_texts": pa.ListArray.from_arrays(offsets, texts),
        "target_id": np.ones(num_windows, np.int32),
        "target_text": _repeated(" target", num_windows),
        "target_class": pa.array(CLASSES[rng.integers(0, len(CLASSES), num_windows)]),
        "null_doc_id": windows.doc_ids_W.take(pa.array(np.roll(np.arange(num_windows), 1))),
        "null_token_ids": _lists(tokens_WT[:, : invented.num_long_range]),
        "loss_short_nats": windows.loss_short_W,
        "loss_long_nats": windows.loss_short_W - real_W,
        "gain_long_nats": real_W,
        "null_loss_long_nats": windows.loss_short_W - null_W,
        "null_gain_long_nats": null_W,
        **_added_window_columns(windows),
    }


def _added_window_columns(windows: InventedWindows) -> dict[str, Any]:
    """Return the columns with the controls: drawn labels, divergences, gain beyond the training row."""
    num_windows = len(windows.window_ids_W)
    loss_short_W = windows.loss_short_W
    kl_W = np.full(num_windows, KL_SHORT, np.float32)
    no_row = windows.invented.train_len is None
    nulls_W = pa.nulls(num_windows, pa.float32())
    return {
        "null_target_class": _repeated("other", num_windows),
        "loss_short_no_gap_nats": loss_short_W,
        "loss_train_len_nats": nulls_W if no_row else loss_short_W,
        "loss_train_len_no_gap_nats": nulls_W if no_row else loss_short_W,
        "gain_beyond_nats": nulls_W if no_row else windows.gain_long_W["real"],
        "kl_short_nats": kl_W,
        "null_kl_short_nats": kl_W,
        "resampled_target_ids": _lists(np.ones((num_windows, DRAWS), np.int32)),
        "resampled_loss_short_nats": _lists(np.stack([loss_short_W] * DRAWS, axis=1)),
        "resampled_loss_long_nats": _lists(np.stack([loss_short_W + KL_SHORT] * DRAWS, axis=1)),
        "kl_short_to_long_nats": kl_W,
        "entropy_short_nats": loss_short_W,
    }


def _selection_columns(windows: InventedWindows, rng: np.random.Generator) -> dict[str, pa.Array]:
    num_windows, ks = len(windows.window_ids_W), windows.invented.ks
    num_long_range, full_len = windows.invented.num_long_range, windows.invented.full_len
    # Scores are integers, so the files stay small. The common part makes the selectors agree with one another.
    common_WM = rng.integers(0, 64, (num_windows, num_long_range), dtype=np.int16)
    choices = []
    no_gain_W = np.zeros(num_windows, np.float32)
    newest_rng = np.random.default_rng(len(windows.window_ids_W))  # of its own, so that the other rows stay as they are
    for selector, invented in SELECTORS.items():
        contexts = [("real", 0), ("null", 0)]
        has_draws = invented.sees_target or selector == "random"
        contexts += [(RESAMPLED["real"], draw) for draw in range(DRAWS if has_draws else 0)]
        contexts += [(RESAMPLED["null"], 0)] if has_draws else []
        for context, draw in contexts:
            is_new = context == RESAMPLED["null"] or (context == RESAMPLED["real"] and not invented.sees_target)
            of_context = newest_rng if is_new else rng
            scores_WM = common_WM + of_context.integers(0, 64, (num_windows, num_long_range), dtype=np.int16)
            order_WM = np.argsort(-(scores_WM * num_long_range + np.arange(num_long_range, dtype=np.int16)), axis=1)
            positions_WS = order_WM[:, : ks[-1]].astype(np.int32)
            gain_WK = gains(windows.gain_long_W.get(context, no_gain_W), selector, ks=ks, rng=of_context)
            kl_WK = np.tile(KL_SHORT / (1 + np.array(ks, np.float32)), (num_windows, 1))
            choices.append(
                {
                    "window_id": windows.window_ids_W,
                    "doc_id": windows.doc_ids_W,
                    "selector": _repeated(selector, num_windows),
                    "context": _repeated(context, num_windows),
                    "draw": np.full(num_windows, draw, np.int32),
                    "sees_target": np.full(num_windows, invented.sees_target),
                    "num_evaluations": np.full(num_windows, invented.num_evaluations, np.int32),
                    "positions": _lists(positions_WS),
                    "distance_tokens": _lists(full_len - positions_WS),
                    "scores": pa.FixedSizeListArray.from_arrays(
                        pa.array(scores_WM.ravel().astype(np.float32)), num_long_range
                    ),
                    "k": _lists(np.tile(np.array(ks, np.int32), (num_windows, 1))),
                    "loss_sparse_nats": _lists(windows.loss_short_W[:, None] - gain_WK),
                    "gain_sparse_nats": _lists(gain_WK),
                    "kl_sparse_nats": pa.nulls(num_windows, pa.list_(pa.float32()))
                    if context in RESAMPLED.values()
                    else _lists(kl_WK),
                    "kl_short_to_sparse_nats": _lists(np.zeros_like(gain_WK))
                    if context in RESAMPLED.values()
                    else pa.nulls(num_windows, pa.list_(pa.float32())),
                }
            )
    return {name: pa.concat_arrays([pa.array(columns[name]) for columns in choices]) for name in choices[0]}


@mistakes_in_one_line()
def main() -> None:
    """Write the tables that the command line asks for."""
    given = sys.argv[1:]
    if len(given) < 2 or not given[1].isdecimal() or int(given[1]) < 1 or given[2:] not in ([], ["pretrained"]):
        raise UserError("generated_tables DIR WINDOWS [pretrained]: give a new folder and a positive number of windows")
    if Path(given[0]).exists():
        raise UserError(f"{given[0]}: exists; name a new folder")
    write_tables(Path(given[0]), int(given[1]), invented=PRETRAINED if given[2:] else RUN)


if __name__ == "__main__":
    main()
