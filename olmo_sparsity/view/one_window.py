"""One window in a terminal: the words, which of them a selector chose, the losses. Imports no torch.

In colour where there is colour. What colour tells is marked without it, too: a chosen token carries its rank.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.measurement import load
from olmo_sparsity.view.excerpts import loss_at, printable, read_excerpts, shown_first

WIDTH = 100
BAR = 40
INDENT = (0, 0, 0, 2)
HEAT = ("#ffe9c7", "#ffd591", "#fdbb55", "#f5a623")  # weak to strong, black on them is read
SEES = {
    True: "sees the target: much of its gain is luck, as the null context shows",
    False: "does not see the target",
}


def _words(texts: list[str], ranks: dict[int, int], heat: dict[int, float], masked: bool, coloured: bool) -> Text:
    """Tokens in order; those in ``ranks`` (position -> rank) stand out, the others are hidden from the model if ``masked``."""
    line = Text()
    for index, text in enumerate(texts):
        shown = printable(text)
        space, word = (" ", shown[1:]) if shown.startswith(" ") else ("", shown)
        line.append(space if index else "")
        if index not in ranks:
            line.append(word, style="dim" if masked and coloured else "")
            continue
        if coloured:
            style = f"bold #000000 on {HEAT[round(heat[index] * (len(HEAT) - 1))]}"
            line.append(f"{word or '␣'}", style=style)
            line.append(f"{ranks[index]}", style="bold reverse")
        else:
            line.append(f"[{ranks[index]}:{word or '␣'}]")
    return line


def _bar(name: str, loss: Optional[float], longest: float, style: str, missing: str) -> Text:
    line = Text(f"  {name:<26}")
    if loss is None:
        return line.append(missing)
    line.append(f"{loss:7.3f} nats  ")
    return line.append("█" * round(BAR * loss / longest), style=style)


def show_window(
    tables: Path, window_id: int, selector: Optional[str], k: Optional[int], context: str, console: Console
) -> None:
    """Prints one window.

    Args:
        tables: a finished influence folder.
        window_id: which window.
        selector: whose choice; None: the one that the report shows first.
        k: how many tokens it unmasks; None: the largest measured number.
        context: ``real`` or ``null``.
        console: where to.

    Raises:
        UserError: no such window, selector or k.
    """
    measurement = load(tables)
    selector = shown_first(measurement) if selector is None else selector
    if selector not in measurement.selectors:
        raise UserError(
            f"--selector {selector}: not measured in {tables}; there are {', '.join(measurement.selectors)}"
        )
    max_k = measurement.ks[-1]
    k = max_k if k is None else k
    if not 0 <= k <= max_k:
        raise UserError(f"--k {k}: must lie between 0 and {max_k}, the largest measured k")
    (window,) = read_excerpts(tables, [window_id])
    chosen = window["selections"][selector, context]
    local_len = int(measurement.facts["context"]["local_len"])
    far = window["token_texts"][:-local_len] if context == "real" else window["null_token_texts"]
    local = window["token_texts"][-local_len:]
    ranks = {position: rank + 1 for rank, position in enumerate(chosen["positions"][:k])}
    largest = max((abs(score) for score in chosen["scores"] if score is not None), default=0.0) or 1.0
    heat = {position: max(0.0, chosen["scores"][position] / largest) for position in ranks}
    coloured = console.is_terminal and not console.no_color

    short, sparse = window["loss_short_nats"], loss_at(chosen, window["loss_short_nats"], k)
    long = window["loss_long_nats" if context == "real" else "null_loss_long_nats"]
    foreign = "" if context == "real" else f", foreign: of document {window['null_doc_id']}"
    console.print(
        Text(f"Window {window_id}", style="bold").append(
            f"  class {window['target_class']}, document {window['doc_id']}, from token {window['start_token']}",
            style="not bold",
        )
    )
    console.print(
        Text(
            f"Selector {selector}, {context} context, k = {k}. It {SEES[measurement.selectors[selector]['sees_target']]}."
        )
    )
    console.print()
    console.print(
        Text(
            f"{len(far)} long-range tokens{foreign}; {k} visible, numbered by rank, the others masked:", style="italic"
        )
    )
    console.print(Padding(_words(far, ranks, heat, True, coloured), INDENT, expand=False))
    console.print()
    console.print(Text(f"{local_len} local tokens, always visible, and the target:", style="italic"))
    line = _words(local, {}, {}, False, coloured)
    target = printable(window["target_text"])
    line.append(" " if target.startswith(" ") else "")
    line.append(f">>{target.removeprefix(' ') or '␣'}<<", style="bold underline")
    console.print(Padding(line, INDENT, expand=False))
    console.print()
    measured = f"measured at k = {', '.join(map(str, measurement.ks))}"
    longest = max(short, long, sparse or 0.0)
    console.print(_bar("L_short, local only", short, longest, "bright_black", ""))
    console.print(_bar(f"L_short,sparse({k})", sparse, longest, "dark_orange3", measured))
    console.print(
        _bar("L_long, all tokens" if context == "real" else "L_long, foreign tokens", long, longest, "blue", "")
    )
    gains = "" if sparse is None else f"sparse gain {short - sparse:.3f}, "
    console.print(Text(f"  {gains}long gain {short - long:.3f} nats"))
    if not ranks:
        return
    console.print()
    console.print(Text(f"  {'rank':>4}  {'tokens back':>11}  {'score':>9}  token", style="bold"))
    for position, rank in ranks.items():
        back = len(far) + local_len - position
        console.print(
            Text(
                f"  {rank:>4}  {back:>11}  {chosen['scores'][position]:>9.3g}  {printable(far[position]).strip() or '␣'}"
            )
        )


def terminal() -> Console:
    """Standard output: as wide as words are read well, without colour where NO_COLOR is set or it is no terminal."""
    width = None if not sys.stdout.isatty() else min(WIDTH, Console().width)
    return Console(width=width or WIDTH, highlight=False, soft_wrap=False)
