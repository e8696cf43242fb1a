"""One window: its words, what each selector chose in it, and its losses; as data, and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Optional

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.files import sha256_text
from olmo_sparsity.selectors import CONTROLS
from olmo_sparsity.statistics.quantities import FEW, counted
from olmo_sparsity.tables import read_manifest, run_of_tables
from olmo_sparsity.tables import read_windows as read_rows
from olmo_sparsity.text.tokenizer import read_tokenizer
from olmo_sparsity.text.units import shown_texts
from olmo_sparsity.view.words import Word, alone, words

INDENT = (0, 0, 0, 2)
SEES_TARGET = {True: "sees the target, so part of its gain is optimism", False: "does not see the target"}


@dataclass(frozen=True)
class Window:
    """One window; texts are printable and keep their leading spaces."""

    row: dict[str, Any]  # of the table ``windows``
    choices: dict[str, dict[str, Any]]  # by selector: its row of ``selections`` in the real context
    local_len: int
    texts: list[str]  # of the full_len tokens
    target: Word  # of which something can be seen

    @property
    def num_long_range(self) -> int:
        """M; `texts[:M]` are the long-range tokens."""
        return len(self.texts) - self.local_len

    def losses(self, selector: str, k: int) -> list[float]:
        """The losses with the local tokens alone, with k chosen ones, and with all, in nats."""
        choice = self.choices[selector]
        sparse = choice["loss_sparse_nats"][choice["k"].index(k)]
        return [self.row["loss_short_nats"], sparse, self.row["loss_long_nats"]]

    def visible(self, selector: str, k: int) -> dict[int, int]:
        """Rank of each position that is visible at k, or of its word, sentence or block, from 1."""
        return {position: rank for position, rank in ranks_of(self.choices[selector]).items() if rank <= k}


def read_windows(tables: Path, window_ids: Sequence[int]) -> list[Window]:
    """Windows of a measurement, in the given order."""
    manifest = read_manifest(tables)
    rows = {row["window_id"]: row for row in read_rows(tables, "windows", window_ids=window_ids)}
    if unknown := set(window_ids) - set(rows):
        count = manifest["num_windows"]
        raise UserError(f"{tables}: there is no window {min(unknown)}; its {count:,} windows count from 0")
    selections = list(read_rows(tables, "selections", window_ids=window_ids))
    run, tokenizer = run_of_tables(tables), None
    with suppress(UserError):  # the tokenizer of the run counts only if the tables were made with it
        found = None if run is None else read_tokenizer(run / "tokenizer.json")
        is_theirs = found is not None and sha256_text(found.to_str()) == manifest.get("tokenizer_sha256")
        tokenizer = found if is_theirs else None
    local_len = manifest["context"]["local_len"]
    return [
        window_of(rows[i], [of for of in selections if of["window_id"] == i], tokenizer=tokenizer, local_len=local_len)
        for i in window_ids
    ]


def window_of(
    row: dict[str, Any], selections: list[dict[str, Any]], *, tokenizer: Optional[Tokenizer], local_len: int
) -> Window:
    """A window from its rows of the tables; without a tokenizer characters that span tokens are not joined."""
    texts = [*row["token_texts"], row["target_text"]]
    if tokenizer is not None:
        texts = shown_texts(tokenizer, [*row["token_ids"], row["target_id"]])
    *texts, target = map(printable, texts)
    space = " " if target.startswith(" ") else ""
    shown = Word(space, alone(target.removeprefix(" ") or space), ())
    choices = {of["selector"]: of for of in selections if of["context"] == "real"}
    return Window(row, choices, local_len, texts, shown)


def ranks_of(row: dict[str, Any]) -> dict[int, int]:
    """Rank of each chosen position, or of its word, sentence or block, from 1; `row`: of the table `selections`."""
    sizes = [1] * len(row["positions"])
    if row.get("group_first") is not None:
        sizes = np.subtract(row["group_last"], row["group_first"]) + 1
    ranks = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    return dict(zip(np.asarray(row["positions"]).tolist(), ranks.tolist(), strict=True))


def show(tables: Path, window_id: int, *, console: Console, selector: Optional[str], k: Optional[int]) -> None:
    """Print one window of a measurement; by default the first measured selector that does not see the target."""
    manifest = read_manifest(tables)
    (window,) = read_windows(tables, [window_id])
    measured = window.choices
    blind = [name for name, choice in measured.items() if not choice["sees_target"] and name not in CONTROLS]
    name = selector or [*blind, *measured][0]
    if name not in measured:
        raise UserError(f"--selector {name}: not measured in {tables}; choose one of {', '.join(measured)}")
    ks, num_units = measured[name]["k"], len(measured[name]["scores"])
    if k is not None and k not in ks:
        raise UserError(f"--k {k}: not measured; the measured k are {', '.join(map(str, ks))}")
    few = [one for one in ks if one <= FEW * num_units] or [min(ks)]
    place = (
        f"class {window.row['target_class']}, document {window.row['doc_id']}, from token {window.row['start_token']}"
    )
    console.print(f"Window {window_id} of {manifest['run']}: {place}", style="bold")
    print_choice(window, name, k or max(few), console=console, manifest=manifest)


def print_choice(window: Window, selector: str, k: int, *, console: Console, manifest: dict[str, Any]) -> None:
    """Print what a selector chose: the words with the visible ones marked by rank, the losses, the gains."""
    far, local = window.texts[: window.num_long_range], window.texts[window.num_long_range :]
    sees = SEES_TARGET[window.choices[selector]["sees_target"]]
    console.print(f"{counted(k, manifest)} picked by {selector}, which {sees}.\n")
    console.print(f"{len(far)} long-range tokens; the picked ones are marked [rank:text]:")
    console.print(Padding(_marked(words(far, window.visible(selector, k))), INDENT, expand=False))
    console.print(f"\n{len(local)} local tokens, always visible, and the target:")
    text = Text("".join(local).removeprefix(" ") + window.target.space)
    console.print(Padding(text.append(f">>{window.target.text}<<", style="bold"), INDENT, expand=False))
    short, sparse, long = losses = window.losses(selector, k)
    console.print("\n  visible               loss, nats  target has")
    for name, loss in zip(("local tokens only", "and the picked", "all tokens"), losses, strict=True):
        console.print(f"  {name:<20}{loss:>12.3f}{math.exp(-loss):>12.1%}")
    console.print(f"  sparse gain {short - sparse:.3f}, long gain {short - long:.3f} nats\n")


def _marked(found: list[Word]) -> Text:
    """Words in one line; consecutive words of one visible sentence or block share a mark."""
    line = Text()
    for ranks, run in groupby(found, key=lambda word: word.ranks):
        first, *others = run
        text = first.text + "".join(word.space + word.text for word in others)
        marked = (f"[{','.join(map(str, ranks))}:{text}]", "bold black on #fdbb55")
        line.append(first.space).append(*(marked if ranks else (text,)))
    return line
