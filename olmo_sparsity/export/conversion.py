"""Conversion of tokenizers to ``transformers``."""

from __future__ import annotations

import json
from typing import Any

import transformers
from tokenizers import Tokenizer


def _bos_in_front(token: str, token_id: int) -> dict[str, Any]:
    """Return the post-processor, as JSON of a tokenizer, that puts a token in front of a text.

    ``processors.TemplateProcessing`` parses its templates, so that some tokens, such as ``a b``, cannot be named there.
    """
    first = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def to_transformers_tokenizer(tokenizer: Tokenizer, *, eos_id: int, rows_have_bos: bool, max_position: int) -> Any:
    """Return a ``transformers`` tokenizer that gives a text the IDs that it had in training.

    It adds no special token, but where ``rows_have_bos`` EOS as a BOS in front, and reads a special token that is written out in
    a text as ordinary text (``split_special_tokens``). EOS is also the padding token; padding is on the left.
    """
    eos_token = str(tokenizer.id_to_token(eos_id))
    content = json.loads(tokenizer.to_str())
    if rows_have_bos:
        content["post_processor"] = _bos_in_front(eos_token, eos_id)
    elif tokenizer.num_special_tokens_to_add(False) > 0:
        content["post_processor"] = None
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        bos_token=eos_token if rows_have_bos else None,
        eos_token=eos_token,
        pad_token=eos_token,
        padding_side="left",
        model_max_length=max_position,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
