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
class Choice:
    """What one selector chose in one window and context."""

    sees_target: bool
    num_units: int  # long-range tokens, or words, sentences or blocks of them
    ranks: dict[int, int]  # of each chosen position, or of its word, sentence or block, from 1; the highest first
    loss: dict[int, float]  # L_short,sparse(k) by k, in nats

    def visible(self, k: int) -> dict[int, int]:
        """Rank of each position that is visible at k."""
        return {position: rank for position, rank in self.ranks.items() if rank <= k}


@dataclass(frozen=True)
class Window:
    """One window; losses are in nats, texts are printable and keep their leading spaces."""

    window_id: int
    target_class: str
    place: str  # document and first token
    local_len: int
    texts: list[str]  # of the full_len tokens
    null_texts: list[str]  # of the long-range tokens of the null context
    target: str
    loss_short: float
    loss_long: float
    null_loss_long: float
    choices: dict[tuple[str, str], Choice]  # by selector and context, "real" or "null"

    @property
    def num_long_range(self) -> int:
        """M; `texts[:M]` are the long-range tokens."""
        return len(self.texts) - self.local_len

    @property
    def target_word(self) -> Word:
        """The target as a word, of which something can be seen."""
        space = " " if self.target.startswith(" ") else ""
        return Word(space, alone(self.target.removeprefix(" ") or space), ())


def read_windows(tables: Path, window_ids: Sequence[int]) -> list[Window]:
    """Windows of an influence folder, in the given order."""
    manifest = read_manifest(tables)
    rows = {row["window_id"]: row for row in read_rows(tables, "windows", window_ids=window_ids)}
    if unknown := set(window_ids) - set(rows):
        numbers = f"its {manifest['num_windows']:,} windows count from 0"
        raise UserError(f"{tables}: there is no window {min(unknown)}; {numbers}")
    selections = list(read_rows(tables, "selections", window_ids=window_ids))
    run, tokenizer = run_of_tables(tables), None
    with suppress(UserError):  # the tokenizer beside the tables counts only if they were made with it
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
    texts, null_texts = [*row["token_texts"], row["target_text"]], [f"#{token}" for token in row["null_token_ids"]]
    if tokenizer is not None:
        texts = shown_texts(tokenizer, [*row["token_ids"], row["target_id"]])
        null_texts = shown_texts(tokenizer, row["null_token_ids"])
    *texts, target = map(printable, texts)
    return Window(
        row["window_id"],
        row["target_class"],
        f"document {row['doc_id']}, from token {row['start_token']}",
        local_len,
        texts,
        [printable(text) for text in null_texts],
        target,
        row["loss_short_nats"],
        row["loss_long_nats"],
        row["null_loss_long_nats"],
        {(of["selector"], of["context"]): _choice(of) for of in selections if of["context"] in ("real", "null")},
    )


def _choice(row: dict[str, Any]) -> Choice:
    losses = dict(zip(row["k"], row["loss_sparse_nats"], strict=True))
    return Choice(row["sees_target"], len(row["scores"]), ranks_of(row), losses)


def ranks_of(row: dict[str, Any]) -> dict[int, int]:
    """Rank of each chosen position, or of its word, sentence or block, from 1; `row`: of the table `selections`."""
    ranks = np.arange(1, len(row["positions"]) + 1)
    if row.get("group_first") is not None:
        sizes = np.subtract(row["group_last"], row["group_first"]) + 1
        ranks = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    return dict(zip(np.asarray(row["positions"]).tolist(), ranks.tolist(), strict=True))


def show(
    tables: Path, window_id: int, *, console: Console, selector: Optional[str], k: Optional[int], context: str
) -> None:
    """Print one window of an influence folder; by default the first measured selector that does not see the target."""
    manifest = read_manifest(tables)
    (window,) = read_windows(tables, [window_id])
    measured = [name for name, of in window.choices if of == context]
    blind = [name for name in measured if not window.choices[name, context].sees_target and name not in CONTROLS]
    name = selector or [*blind, *measured][0]
    if name not in measured:
        known = f"the measured selectors are {', '.join(measured)}"
        raise UserError(f"--selector {name}: not measured in {tables}; {known}")
    choice = window.choices[name, context]
    few = [one for one in choice.loss if one <= FEW * choice.num_units] or [min(choice.loss)]
    if k is not None and k not in choice.loss:
        raise UserError(f"--k {k}: not measured; the measured k are {', '.join(map(str, choice.loss))}")
    title = f"Window {window_id} of {manifest['run']}: class {window.target_class}, {window.place}"
    console.print(Text(title, style="bold"))
    print_choice(window, name, k or max(few), console=console, manifest=manifest, context=context)


def print_choice(
    window: Window, selector: str, k: int, *, console: Console, manifest: dict[str, Any], context: str = "real"
) -> None:
    """Print what a selector chose: the words with the visible ones marked by rank, the losses, the gains."""
    choice, chosen = window.choices[selector, context], counted(k, manifest)
    far, long, foreign = window.texts[: window.num_long_range], window.loss_long, ""
    if context == "null":
        far, long, foreign = window.null_texts, window.null_loss_long, " of the null context"
    console.print(f"{chosen} picked by {selector}, which {SEES_TARGET[choice.sees_target]}.\n")
    console.print(f"{len(far)} long-range tokens{foreign}; the picked ones are marked [rank:text]:")
    console.print(Padding(_marked(words(far, choice.visible(k))), INDENT, expand=False))
    console.print(f"\n{window.local_len} local tokens, always visible, and the target:")
    local = Text("".join(window.texts[window.num_long_range :]).removeprefix(" "))
    local.append(window.target_word.space).append(f">>{window.target_word.text}<<", style="bold")
    console.print(Padding(local, INDENT, expand=False))
    losses = {"local tokens only": window.loss_short, "and the picked": choice.loss[k], "all tokens": long}
    console.print("\n  visible               loss, nats  target has")
    for name, loss in losses.items():
        console.print(f"  {name:<20}{loss:>12.3f}{math.exp(-loss):>12.1%}")
    gains = [window.loss_short - loss for loss in (choice.loss[k], long)]
    console.print("  sparse gain {:.3f}, long gain {:.3f} nats\n".format(*gains))


def _marked(found: list[Word]) -> Text:
    """Words in one line; consecutive words of one visible sentence or block share a mark."""
    line = Text()
    for ranks, run in groupby(found, key=lambda word: word.ranks):
        first, *others = run
        text = first.text + "".join(word.space + word.text for word in others)
        marked = (f"[{','.join(map(str, ranks))}:{text}]", "bold black on #fdbb55")
        line.append(first.space).append(*(marked if ranks else (text,)))
    return line
