"""The schemas of all tables, with the meaning of every table and column.

The meanings are kept here, beside the types, so that documentation can be generated from them. They are not written into the
files. Conventions: a missing value is null, never 0; units are part of the names (``*_nats``, ``*_tokens``); positions count
from 0 at the first token of the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import pyarrow as pa

from olmo_sparsity.records.kinds import KINDS

SCHEMA_VERSION = "6"
RESAMPLED = {
    "real": "resampled",
    "null": "null-resampled",
}  # contexts of choices for a drawn token, by that of their tokens


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        one_per_position: lists of length M, one entry for each long-range position; of groups one for each of them.
        only_of_groups: is there where ``influence.unit`` is not token.
        only_of_places: is there where ``synthetic.test_row_len`` is given.
        least: the smallest number that it may hold.
        is_position: its numbers are long-range positions, 0 to M - 1.
        as_many_as: the column whose lists have as many entries, row by row.
        same_in_all_rows: every row of the folder holds the same list.
    """

    name: str
    type: pa.DataType
    meaning: str
    one_per_position: bool = False
    only_of_groups: bool = False
    only_of_places: bool = False
    least: Optional[int] = None
    is_position: bool = False
    as_many_as: Optional[str] = None
    same_in_all_rows: bool = False


ROW_MEANINGS = {
    "windows": "one window",
    "selections": "one window, selector, context and draw",
    "answers": "one sequence of a synthetic task",
}

_INT32S, _FLOATS, _STRINGS = pa.list_(pa.int32()), pa.list_(pa.float32()), pa.list_(pa.string())
_WINDOW_ID = Column("window_id", pa.int64(), "Number of the window, from 0.", least=0)
_DOC_ID = Column("doc_id", pa.string(), "Hash of the text of the window's document, 16 hexadecimal digits.")
_WEIGHT = Column(
    "weight",
    pa.float64(),
    "Weight of the window in every mean over windows; 1 of windows that were given.",
    least=0,
)
_SELECTOR = Column("selector", pa.string(), "Name of the selector.")
_CONTEXT = Column("context", pa.string(), "`real`, or `null`: other long-range tokens (`influence.null_context`).")
_TEXTS = Column("token_texts", _STRINGS, "Text of each token of the window.")
_TARGET_TEXT = Column("target_text", pa.string(), "Text of the target token.")
_LOSS_SHORT = Column(
    "loss_short_nats",
    pa.float32(),
    "L_short: loss with only the local tokens (and the anchor, if there is one) visible.",
)
_LOSS_SHORT_NO_GAP = Column(
    "loss_short_no_gap_nats",
    pa.float32(),
    "Loss with the local tokens directly behind the anchor, where a row of training begins (position IDs from 1 on; "
    "without an anchor from 0 on). In L_short they keep their positions at the end of the window, behind a gap.",
)
_LOSS_LONG = Column("loss_long_nats", pa.float32(), "L_long: loss with all tokens visible.")
_K = Column(
    "k",
    _INT32S,
    "Numbers of unmasked tokens, or groups of them (`influence.unit`).",
    least=1,
    same_in_all_rows=True,
)
_LENGTH = Column("length_tokens", pa.int32(), "Tokens of the prompt, without the query.", least=0)
_SPARSITY = Column("sparsity", pa.int32(), "k: planted bits, or assignments that the response depends on.", least=0)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "windows": (
        _WINDOW_ID,
        _DOC_ID,
        _WEIGHT,
        Column("source", pa.string(), "Source of the document: a file name, or the name of a data set."),
        Column(
            "split",
            pa.string(),
            "`validation`; `held-out` for text given by `influence.data`; `measured` for the text of a pretrained model, "
            "which it may have been trained on.",
        ),
        Column(
            "train_overlap",
            pa.bool_(),
            "True if the window with its target holds 13 consecutive tokens that the training text holds, too; null if that was "
            "not looked for (`influence.train_overlap`, or windows too short to hold so many), or the training text is unknown.",
        ),
        Column("start_token", pa.int64(), "Index of the window's first token in its document.", least=0),
        Column(
            "token_ids",
            _INT32S,
            "Token IDs of the window, full_len of them; the first M are the long-range ones.",
            least=0,
            as_many_as="token_texts",
        ),
        _TEXTS,
        Column("target_id", pa.int32(), "Token ID of the target, the token after the window.", least=0),
        _TARGET_TEXT,
        Column("target_class", pa.string(), "Kind of dependency of the target, one of `target_classes.CLASSES`."),
        Column(
            "null_doc_id",
            pa.string(),
            "Document that the null context is taken from: another one, or the window's own.",
        ),
        Column("null_token_ids", _INT32S, "Long-range token IDs of the null context, M of them.", least=0),
        Column(
            "group_first",
            _INT32S,
            "First position of each group of long-range tokens; it ends where the next one begins, the last one at M.",
            only_of_groups=True,
            is_position=True,
        ),
        Column(
            "null_group_first",
            _INT32S,
            "The same for the tokens of the null context.",
            only_of_groups=True,
            is_position=True,
        ),
        _LOSS_SHORT,
        _LOSS_SHORT_NO_GAP,
        _LOSS_LONG,
        Column("gain_long_nats", pa.float32(), "Long gain: loss_short_nats - loss_long_nats."),
        Column("null_loss_long_nats", pa.float32(), "L_long under the null context."),
        Column("null_gain_long_nats", pa.float32(), "Long gain under the null context."),
        Column(
            "null_target_class",
            pa.string(),
            "The class that the same rule gives with the long-range tokens of the null context.",
        ),
        Column(
            "last_n",
            _INT32S,
            "Numbers of latest tokens: powers of two and 3 times these from full_len / 16 on, local_len, train_len and full_len.",
            least=1,
            same_in_all_rows=True,
        ),
        Column(
            "loss_last_nats",
            _FLOATS,
            "Loss with the last n tokens alone, directly behind the anchor, as a row of training begins, for each n of last_n.",
            as_many_as="last_n",
        ),
        Column(
            "gain_beyond_nats",
            pa.float32(),
            "Gain beyond the training row: loss_last_nats at train_len - loss_long_nats; null where no training row is known.",
        ),
        Column(
            "kl_short_nats",
            pa.float32(),
            "KL(p_all, p_{}): divergence of the prediction with only the local tokens visible from the full-context one.",
        ),
        Column("null_kl_short_nats", pa.float32(), "KL(p_all, p_{}) under the null context."),
        Column(
            "loss_damped_nats",
            _FLOATS,
            "Loss of the blends p_{}^(1-w) p_all^w, normalized, for w = 0.1, 0.2, ..., 0.9: a weaker reaction, without a choice.",
        ),
        Column("kl_damped_nats", _FLOATS, "KL(p_all, blend) for each w.", as_many_as="loss_damped_nats"),
        Column(
            "null_loss_damped_nats", _FLOATS, "loss_damped_nats under the null context.", as_many_as="loss_damped_nats"
        ),
        Column("null_kl_damped_nats", _FLOATS, "kl_damped_nats under the null context.", as_many_as="loss_damped_nats"),
        Column(
            "resampled_target_ids",
            _INT32S,
            "Token IDs drawn from p_{} in place of the target, `influence.resampled_draws` of them.",
            least=0,
        ),
        Column("resampled_loss_short_nats", _FLOATS, "L_short of each drawn token.", as_many_as="resampled_target_ids"),
        Column(
            "resampled_loss_long_nats", _FLOATS, "L_long of each drawn token.", as_many_as="resampled_loss_short_nats"
        ),
        Column(
            "kl_short_to_long_nats",
            pa.float32(),
            "KL(p_{}, p_all): what showing all tokens costs on a token drawn from p_{}.",
        ),
        Column(
            "entropy_short_nats",
            pa.float32(),
            "Entropy of p_{}; its mean is that of loss_short_nats if p_{} is calibrated.",
        ),
    ),
    "selections": (
        _WINDOW_ID,
        _DOC_ID,
        _SELECTOR,
        Column(
            "context",
            pa.string(),
            "`real`; `null`; `resampled`: real context, with a drawn token as the target, for selectors that see the target, and "
            "for `random`, whose choice stays the same; `null-resampled`: the same under the null context, for the first drawn "
            "token.",
        ),
        Column("draw", pa.int32(), "Index of the drawn token in `resampled_target_ids`; 0 in other contexts.", least=0),
        Column("sees_target", pa.bool_(), "True if the selector uses the target token."),
        Column("num_evaluations", pa.int32(), "Cost of the scores, in forward passes over one row.", least=0),
        Column(
            "positions",
            _INT32S,
            "Selected positions, the most influential first; J_k is the first k of them. Of groups: the positions of one group "
            "after those of the other, and J_k is the first `num_tokens` of them.",
            is_position=True,
        ),
        Column(
            "distance_tokens",
            _INT32S,
            "Distance of each selected position to the target.",
            least=1,
            as_many_as="positions",
        ),
        Column(
            "group_first",
            _INT32S,
            "First position of each selected group, the most influential first.",
            only_of_groups=True,
            is_position=True,
        ),
        Column(
            "group_last",
            _INT32S,
            "Last position of each selected group.",
            only_of_groups=True,
            is_position=True,
            as_many_as="group_first",
        ),
        Column(
            "scores",
            _FLOATS,
            "Score of every long-range position, or of every group, in order.",
            True,
        ),
        _K,
        Column(
            "num_tokens",
            _INT32S,
            "Number of tokens of J_k, for each k; a window with fewer than k groups shows all of them.",
            only_of_groups=True,
            least=0,
            as_many_as="k",
        ),
        Column(
            "loss_sparse_nats",
            _FLOATS,
            "L_short,sparse(k): loss with the local tokens and J_k visible, for each k.",
            as_many_as="k",
        ),
        Column(
            "gain_sparse_nats",
            _FLOATS,
            "Sparse gain: loss_short_nats (of a drawn token: resampled_loss_short_nats) - loss_sparse_nats, for each k.",
            as_many_as="k",
        ),
        Column(
            "kl_sparse_nats",
            _FLOATS,
            "KL(p_all, p_{J_k}) for each k, with p_all of the row's context; null with a drawn token.",
            as_many_as="k",
        ),
        Column(
            "kl_short_to_sparse_nats",
            _FLOATS,
            "KL(p_{}, p_{J_k}) for each k, what showing J_k costs on a token drawn from p_{}; null in contexts without a drawn "
            "token.",
            as_many_as="k",
        ),
    ),
    "answers": (
        _WINDOW_ID,
        _LENGTH,
        _SPARSITY,
        Column(
            "place",
            pa.string(),
            "Where the planted tokens lie: `inside` the last `synthetic.test_row_len` tokens of the prompt, or `beyond` them. "
            "The column is there where this key is given.",
            only_of_places=True,
        ),
        Column("response_ids", _INT32S, "Token IDs that the model generated."),
        Column("true_ids", _INT32S, "Token IDs of the true response."),
        Column("response_positions", _INT32S, "Position IDs of the response: predicted, or given."),
        Column("true_positions", _INT32S, "True position IDs of the response."),
        Column("tokens_right", pa.bool_(), "True if every token of the response is right."),
        Column("positions_right", pa.bool_(), "True if every position ID of the response is; null if they are given."),
        Column("right", pa.bool_(), "True if every token is right and, where it is predicted, every position ID."),
    ),
}


def schemas(num_long_range: int, unit: str = "token", *, has_places: bool = False) -> dict[str, pa.Schema]:
    """Return the Arrow schema of every table.

    Args:
        num_long_range: M.
        unit: of groups (``influence.unit``).
        has_places: whether ``synthetic.test_row_len`` is given.
    """
    has_groups = unit != "token"

    def arrow_type(column: Column) -> pa.DataType:
        is_fixed = column.one_per_position and not has_groups  # windows have different numbers of groups
        return pa.list_(column.type.value_type, num_long_range) if is_fixed else column.type

    return {
        table: pa.schema(
            [
                (column.name, arrow_type(column))
                for column in columns
                if (has_groups or not column.only_of_groups) and (has_places or not column.only_of_places)
            ]
        )
        for table, columns in COLUMNS.items()
    }


def schemas_of(manifest: dict[str, Any]) -> dict[str, pa.Schema]:
    """Return the Arrow schema of every table of the folder of a manifest."""
    settings = manifest.get("influence", {})
    return schemas(
        manifest["context"]["num_long_range"],
        settings.get("unit", "token"),
        has_places=manifest.get("test_row_len") is not None,
    )


def tables_of(manifest: dict[str, Any]) -> list[str]:
    """Return the tables that the folder of a manifest has when it is complete, in the order of its kind."""
    return list(KINDS[manifest["kind"]].tables)
