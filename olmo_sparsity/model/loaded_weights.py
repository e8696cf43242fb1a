"""Checks that a model of transformers has all the weights of its files, and no others."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import gguf

from olmo_sparsity.errors import UserError

# Weights in a model's files that no logits of the next token depend on: masks that old versions saved, the heads of
# other tasks, layers that predict further tokens, and what sees images and hears sound.
FREE_TO_IGNORE = re.compile(
    r"\.(attn|attention)\.(masked_)?bias$"
    r"|^(score|classifier|v_head)\."
    r"|(^|\.)(mtp|visual|vision_model|vision_tower|audio_tower|multi_modal_projector)\."
)


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Let all that opens a GGUF file share one reader of it.

    transformers opens the file for the tokenizer, for the configuration twice, and for the weights. Each time the vocabulary is
    read entry by entry, in Python, which takes longer than the weights.
    """
    reader = gguf.GGUFReader
    shared = functools.lru_cache(maxsize=1)(reader)
    gguf.GGUFReader = lambda path: shared(str(path))  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        gguf.GGUFReader = reader  # type: ignore[misc]


def check_loaded(name: str, raw: Any, *, loaded: dict[str, Any]) -> None:
    """Check that the model has all of its weights, and the files no others, by what transformers tells of loading them.

    Raises:
        UserError: it is not so.
    """
    kind = type(raw).__name__
    if missing := sorted(loaded["missing_keys"]):
        raise UserError(
            f"{name}: {len(missing)} of the weights that {kind} needs are missing, such as {missing[0]}; its files are "
            "incomplete, or of another architecture"
        )
    if other_shapes := sorted(loaded["mismatched_keys"]):
        weight, stored, needed = other_shapes[0]
        raise UserError(
            f"{name}: {len(other_shapes)} of its weights have another shape than its configuration gives them in {kind}, such "
            f"as {weight}: {list(stored)} instead of {list(needed)}; restore its config.json"
        )
    if unused := sorted(key for key in loaded["unexpected_keys"] if not FREE_TO_IGNORE.search(key)):
        raise UserError(
            f"{name}: {len(unused)} of its weights have no place in {kind} as its configuration describes it, such as "
            f"{unused[0]}; without them it is another model: restore its config.json, or, if it is meant without them, load "
            "it with transformers and save it again"
        )


def check_nothing_left(path: Path, raw: Any) -> None:
    """Check that a GGUF file holds no more than the model took from it. transformers does not tell what it leaves.

    Values are counted, layer by layer, because experts and tied weights have other tensors there than in the file.

    Raises:
        UserError: it does.
    """
    taken: Counter[Optional[int]] = Counter()
    stored: Counter[Optional[int]] = Counter()
    state = raw.state_dict(keep_vars=True)
    for name, size in {id(weight): (name, weight.numel()) for name, weight in state.items()}.values():  # tied ones once
        taken[_layer(name)] += size
    for tensor in gguf.GGUFReader(path).tensors:
        if not (tensor.name == "output.weight" and raw.config.tie_word_embeddings):  # a second copy
            stored[_layer(tensor.name)] += int(tensor.n_elements)
    for layer in stored:
        if stored[layer] > taken[layer]:
            where = "outside of its blocks" if layer is None else f"in blk.{layer}"
            raise UserError(
                f"{path}: {type(raw).__name__} has a place for {taken[layer]:,} of the {stored[layer]:,} values {where}, as "
                "transformers reads the file; without the others it is another model: give its Hugging Face version, or, if "
                "its metadata were changed, restore them"
            )


def _layer(name: str) -> Optional[int]:
    """Return the number of the layer that a tensor belongs to; None: to none."""
    found = re.search(r"\.(\d+)\.", name)
    return None if found is None else int(found[1])
