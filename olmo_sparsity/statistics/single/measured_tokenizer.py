"""The tokenizer that a measurement was made with, found beside its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import sha256_text
from olmo_sparsity.storage.manifests import read_manifest_of
from olmo_sparsity.tables.reading import run_of_tables
from olmo_sparsity.text.units import shown_texts
from olmo_sparsity.text.vocabulary import read_tokenizer


def tokenizer_of(tables: Path) -> Optional[Tokenizer]:
    """Return the tokenizer of an influence folder, that of the run or model in which it lies.

    None: the folder lies elsewhere, its manifest has no hash of a tokenizer, or the one beside it has another.
    """
    run, expected = run_of_tables(tables), read_manifest_of(tables).get("tokenizer_sha256")
    if run is None or expected is None:
        return None
    try:
        tokenizer = read_tokenizer(run / "tokenizer.json")
    except UserError:
        return None
    return tokenizer if sha256_text(tokenizer.to_str()) == expected else None


def window_texts(row: dict[str, Any], tokenizer: Optional[Tokenizer]) -> list[str]:
    """Return the texts that are shown for the tokens of a window and, last, its target.

    Args:
        row: its row of ``windows``.
        tokenizer: joins characters that span tokens; None: the texts of the table, each of a token decoded on its own.
    """
    if tokenizer is None:
        return [*row["token_texts"], row["target_text"]]
    return shown_texts(tokenizer, [*row["token_ids"], row["target_id"]])
