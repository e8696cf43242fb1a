"""What the page of a whole document shows, where every token behind a full window is a target; and one place in the terminal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.selectors import SELECTORS
from olmo_sparsity.statistics.quantities import counted
from olmo_sparsity.statistics.spectrum import TOLERANCE, TOLERANCES
from olmo_sparsity.tables import list_rows
from olmo_sparsity.text.places import EncodedText
from olmo_sparsity.view.window import Window, print_choice, ranks_of
from olmo_sparsity.view.words import alone

DIGITS = 5  # of nats and shares on the page
MAX_CHARACTERS = 250_000  # of a page: some 60,000 tokens in 40 MB
CONTROL = "random"  # is measured with the selectors, and is none of those to choose from
OF_TARGETS = ("loss_short_nats", "loss_long_nats", "kl_short_nats", "null_kl_short_nats")
OF_SELECTIONS = "selector k positions num_tokens group_first group_last loss_sparse_nats kl_sparse_nats"
ONE_DOCUMENT = "One document is no sample: olmo-sparsity influence tells whether the long context helps on average."


class Likely(NamedTuple):
    """The most likely next tokens of W windows under A visible sets: local tokens only, all, then J_k by selector and k."""

    texts: list[str]  # printable, one a distinct token
    tokens: np.ndarray  # int [W, A, N], indices into `texts`, the most likely first
    shares: np.ndarray  # float [W, A, N], probabilities
    targets: np.ndarray  # int [W], indices into `texts`


def check_length(text: str, source: str) -> None:
    """Check that a page can hold a document."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(
            f"{source}: {len(text):,} characters, and a page holds {MAX_CHARACTERS:,}; write a part of it into another file, "
            "or print one place with --at"
        )


def of_page(part: pa.Table) -> pa.Table:
    """The rows and columns of a part of a table that a page shows."""
    own = part.filter(pc.field("context") == "real") if "context" in part.column_names else part
    return own.select([name for name in ("window_id", *OF_TARGETS, *OF_SELECTIONS.split()) if name in own.column_names])


def of_selector(selections: pa.Table, name: str) -> pa.Table:
    """The rows of one selector, a window each."""
    return selections.filter(pc.field("selector") == name).sort_by("window_id")


def explored(
    tables: dict[str, pa.Table], manifest: dict[str, Any], likely: Likely, *, encoded: EncodedText, selectors: list[str]
) -> dict[str, Any]:
    """What the page shows of a document whose every target is one window, in the order of the text."""
    windows = tables["windows"].sort_by("window_id")
    of = {name: of_selector(tables["selections"], name) for name in (*selectors, CONTROL)}
    first, unit = len(encoded) - len(windows), manifest["influence"]["unit"]
    return {
        "texts": [text if text.isspace() else alone(text) for text in map(printable, encoded.pieces)],
        "offsets": [encoded.begin_of(token) for token in range(len(encoded))],
        "first": first, "local_len": manifest["context"]["local_len"], "full_len": manifest["context"]["full_len"],
        "units": [counted(number, manifest).removeprefix(f"{number} ") for number in (1, 2)],
        "ks": of[selectors[0]]["k"][0].as_py(),
        "tolerances": list(TOLERANCES), "tolerance": TOLERANCE,
        **{name: _rounded(windows[name].to_numpy(zero_copy_only=False)) for name in OF_TARGETS},
        "random_loss": _rounded(list_rows(of[CONTROL]["loss_sparse_nats"])),
        "selectors": [
            {
                "name": name, "definition": SELECTORS[name].meaning, "sees_target": SELECTORS[name].sees_target,
                "positions": of[name]["positions"].to_pylist(),
                "ranks": None if unit == "token" else [[*ranks_of(row).values()] for row in of[name].to_pylist()],
                "loss": _rounded(list_rows(of[name]["loss_sparse_nats"])),
                "kl": _rounded(list_rows(of[name]["kl_sparse_nats"])),
            }
            for name in selectors
        ],
        "likely": {
            "texts": [alone(text) for text in likely.texts], "tokens": likely.tokens.tolist(),
            "shares": _rounded(likely.shares), "targets": likely.targets.tolist(),
        },
    }  # fmt: skip


def _rounded(values: np.ndarray) -> list[Any]:
    rounded = np.round(np.asarray(values, dtype=np.float64), DIGITS).astype(object)
    rounded[~np.isfinite(values)] = None
    return rounded.tolist()


def print_place(
    window: Window, manifest: dict[str, Any], likely: Likely, selectors: list[str], *, title: str, console: Console
) -> None:
    """Print the one window of a place, with what each selector chose and the most likely next tokens."""
    console.print(title, style="bold")
    for number, name in enumerate(selectors):
        ks = window.choices[name]["k"]
        print_choice(window, name, ks[-1], console=console, manifest=manifest)
        views = {"local tokens only": 0, f"with {ks[-1]} by {name}": 1 + (number + 1) * len(ks), "all tokens": 1}
        table = Table(*(f"  {view}" for view in views), box=None, pad_edge=False)
        for rank in range(likely.tokens.shape[2]):
            cells = [(likely.texts[likely.tokens[0, a, rank]], likely.shares[0, a, rank]) for a in views.values()]
            table.add_row(*(f"  {share:6.1%} {alone(text.removeprefix(' ') or text)}" for text, share in cells))
        console.print("The most likely next tokens:", table, "", sep="\n")
    console.print(ONE_DOCUMENT)
