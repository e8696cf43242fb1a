"""The context curve's numbers. Reads tables; imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.bootstrap import document_sums, document_units, estimates
from olmo_sparsity.tables.reading import list_rows, read_manifest, read_parts


def context_curve(folder: Path) -> dict[str, Any]:
    """Mean loss against the number of visible recent tokens, the same targets everywhere.

    Returns:
        The lengths of the experiment, ``num_windows``, ``num_documents``, and ``points``, for each number of visible tokens
        ``loss_nats`` and ``change_nats``, the loss minus that at ``train_len`` visible tokens, paired; each
        ``{mean, low, high}``.

    Raises:
        UserError: the table is missing, unfinished or of another schema.
    """
    facts = read_manifest(folder, "context-curve")
    lengths = [int(n) for n in facts["num_visible_tokens"]]
    reference = facts["context"]["train_len"]
    doc_ids, losses = [], []
    for part in read_parts(folder, "curve", columns=["doc_id", "loss_nats"]):
        doc_ids.append(part["doc_id"].to_pandas())
        losses.append(list_rows(part["loss_nats"]))
    losses_WN = np.concatenate(losses)
    units, num_units = document_units(pd.concat(doc_ids, ignore_index=True))
    sums: dict[Any, np.ndarray] = {"windows": document_sums(np.ones(len(units)), units, num_units)}
    for i, n in enumerate(lengths):
        sums[n] = document_sums(losses_WN[:, i], units, num_units)

    def quantities(total: Any) -> dict[Any, np.ndarray]:
        means = {n: total[n] / total["windows"] for n in lengths}
        return {**means, **{("change", n): means[n] - means[reference] for n in lengths}}

    found = estimates(sums, quantities)
    keys = ("run", "source", "split", "num_windows", "num_documents", "windows_sha256", "tokens_sha256")
    return {
        **{key: facts[key] for key in keys},
        **facts["context"],
        "points": [
            {"num_visible_tokens": n, "loss_nats": found[n], "change_nats": found["change", n]} for n in lengths
        ],
    }
