"""Print one window in a terminal: its words, which of them a selector chose, the losses.

Colours are used where the terminal has them. Without colours, a chosen token is marked by its rank instead.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Optional

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.statistics.single.measurement import Measurement, load
from olmo_sparsity.statistics.single.model_setup import Visibility
from olmo_sparsity.statistics.single.shown_ks import few_ks
from olmo_sparsity.view.excerpts import Choice, Excerpt, read_excerpts, shown_first
from olmo_sparsity.view.safe_console import SafeConsole
from olmo_sparsity.wording.exploration import DOCUMENT_GATE_WORDS
from olmo_sparsity.wording.numbers import fixed
from olmo_sparsity.wording.setup import anchor_warning, setup_words
from olmo_sparsity.wording.tokens import token_words
from olmo_sparsity.wording.units import counted_words, entry_words, unit_words

WIDTH = 100
LONGEST_BAR = 40
SHORTEST_BAR = 4
BESIDE_BAR = 42  # columns that the name and the number of a bar take
INDENT = (0, 0, 0, 2)
IN_WORD = re.compile(r"[\w'\u2019\u2025-]")
HEAT = ("#ffe9c7", "#ffd591", "#fdbb55", "#f5a623")  # from weak to strong; black text is legible on all
SEES_TARGET = {
    True: "sees the target: part of its gain is optimism",
    False: "does not see the target",
}


@dataclass(frozen=True)
class ShownWindow:
    """One window, and the choice of one selector that is shown in it.

    Attributes:
        excerpt: the window.
        selector: name of the selector.
        sees_target: True if the selector sees the target.
        context: ``real`` or ``null``.
        k: number of visible long-range tokens, or groups of them.
        ks: the measured k.
        unit: what k counts: ``token``, ``word``, ``sentence`` or ``block:N``.
        visibility: the definition of visible; under ``contextual`` what is visible is an entry.
        local_len: number of local tokens.
        measured: the run or model, the definition of visible and the anchor, in words.
    """

    excerpt: Excerpt
    selector: str
    sees_target: bool
    context: str
    k: int
    ks: list[int]
    unit: str
    visibility: Visibility
    local_len: int
    measured: str

    @property
    def choice(self) -> Choice:
        """What the selector chose."""
        return self.excerpt.selections[self.selector, self.context]

    @property
    def gain_sparse_nats(self) -> float:
        """Sparse gain at k."""
        return self.choice.gain_sparse_nats[self.choice.ks.index(self.k)]

    @property
    def long_range_texts(self) -> list[str]:
        """Texts of the long-range tokens."""
        if self.context == "null":
            return self.excerpt.null_token_texts
        return self.excerpt.token_texts[: -self.local_len]

    @property
    def local_texts(self) -> list[str]:
        """Texts of the local tokens."""
        return self.excerpt.token_texts[-self.local_len :]

    @property
    def ranks(self) -> dict[int, int]:
        """Rank of each visible long-range position, or of its group, from 1."""
        ranked = zip(self.choice.positions, self.choice.ranks, strict=True)
        return {position: rank for position, rank in ranked if rank <= self.k}

    @property
    def visible_groups(self) -> list[list[int]]:
        """The positions of each visible token or group, the most influential first."""
        groups: dict[int, list[int]] = {}
        for position, rank in self.ranks.items():
            groups.setdefault(rank, []).append(position)
        return list(groups.values())

    @property
    def visible_words(self) -> str:
        """How much is visible, such as ``8``, ``8 entries``, or ``2 sentences of 31 tokens``."""
        if self.unit == "token":
            return str(self.k) if self.visibility == "hidden" else f"{self.k} {self.units(self.k)}"
        number = len(self.visible_groups)
        return (
            f"{number} {unit_words(self.unit, 'hidden', number)} of "
            f"{counted_words('token', self.visibility, len(self.ranks))}"
        )

    def units(self, number: int = 2) -> str:
        """Return what k counts, of this number."""
        return unit_words(self.unit, self.visibility, number)

    def score(self, position: int) -> Optional[float]:
        """Return the score of a position, or None where it has none; a selector may choose such a position last."""
        return self.choice.scores[position]

    def heat(self, position: int) -> float:
        """Return the score of a position relative to the largest of the window, from 0 to 1; 0 where it has none."""
        return max(0.0, (self.score(position) or 0.0) / self.choice.largest_score)


def show_window(
    tables: Path,
    window_id: int,
    *,
    console: Console,
    selector: Optional[str] = None,
    k: Optional[int] = None,
    context: str = "real",
) -> None:
    """Print one window.

    Args:
        tables: a finished influence folder.
        window_id: number of the window.
        console: where to print.
        selector: whose choice to show; None: the one that the report shows first.
        k: how many tokens or groups are visible; None: the largest measured number up to a
            quarter of all, or up to 8.
        context: ``real`` or ``null``.

    Raises:
        UserError: there is no such window, selector or k.
    """
    measurement = load(tables)
    window = _read_window(measurement, tables, window_id=window_id, selector=selector, k=k, context=context)
    _print_heading(window, console)
    if warning := anchor_warning(measurement.setup):
        console.print(Text(warning, style="bold"))
    print_choice(window, console)


def print_place(windows: Sequence[ShownWindow], place: str, console: Console) -> None:
    """Print one window of a document, with the choice of each selector; ``place``: what it is headed by."""
    console.print(Text(place, style="bold"))
    console.print(Text(f"{windows[0].measured}."))
    console.print(Text(DOCUMENT_GATE_WORDS, style="bold"))
    for window in windows:
        console.print()
        print_choice(window, console)


def print_choice(window: ShownWindow, console: Console) -> None:
    """Print what a selector chose in a window: the words with the chosen tokens marked, the losses, the ranking."""
    sees = SEES_TARGET[window.sees_target]
    console.print(Text(f"Selector {window.selector}, {window.context} context, k = {window.k}. It {sees}."))
    console.print()
    _print_words(window, console, coloured=console.is_terminal and not console.no_color)
    _print_losses(window, console)
    if window.ranks:
        _print_ranking(window, console)


def _read_window(
    measurement: Measurement,
    tables: Path,
    *,
    window_id: int,
    selector: Optional[str],
    k: Optional[int],
    context: str,
) -> ShownWindow:
    selector = shown_first(measurement) if selector is None else selector
    if selector not in measurement.selectors:
        measured = ", ".join(measurement.selectors)
        raise UserError(f"--selector {selector}: not measured in {tables}; the measured selectors are {measured}")
    max_k = measurement.ks[-1]
    k = few_ks(measurement.ks, measurement.num_units)[-1] if k is None else k
    if not 0 <= k <= max_k:
        raise UserError(f"--k {k}: must lie between 0 and {max_k}, the largest measured k")
    (excerpt,) = read_excerpts(tables, [window_id])
    return shown_window(measurement, excerpt, selector=selector, context=context, k=k)


def shown_window(measurement: Measurement, excerpt: Excerpt, *, selector: str, context: str, k: int) -> ShownWindow:
    """Return a window of a measurement with the choice of one selector."""
    return ShownWindow(
        excerpt,
        selector,
        measurement.selectors[selector].sees_target,
        context,
        k,
        measurement.ks,
        measurement.unit,
        measurement.setup.visibility,
        measurement.lengths.local_len,
        setup_words(measurement.manifest["run"], measurement.setup),
    )


def _print_heading(window: ShownWindow, console: Console) -> None:
    excerpt = window.excerpt
    where = f"  class {excerpt.target_class}, document {excerpt.doc_id}, from token {excerpt.start_token}"
    console.print(Text(f"Window {excerpt.window_id}", style="bold").append(where, style="not bold"))
    console.print(Text(f"{window.measured}."))
    if words := entry_words(window.visibility):
        console.print(Text(words))


def _print_words(window: ShownWindow, console: Console, *, coloured: bool) -> None:
    """Print the long-range tokens, the local tokens and the target."""
    far = window.long_range_texts
    foreign = "" if window.context == "real" else f", null context: of document {window.excerpt.null_doc_id}"
    title = (
        f"{len(far)} long-range tokens{foreign}; {window.visible_words} visible, numbered by rank, the others masked:"
    )
    console.print(Text(title, style="italic"))
    console.print(Padding(_long_range_line(window, coloured=coloured), INDENT, expand=False))
    console.print()
    console.print(Text(f"{window.local_len} local tokens, always visible, and the target:", style="italic"))
    line = Text()
    for index, text in enumerate(window.local_texts):
        space, word = _split_space(text)
        line.append(space if index else "").append(word)
    space, target = _split_space(window.excerpt.target_text)
    line.append(space).append(f">>{token_words(target or space)}<<", style="bold underline")
    console.print(Padding(line, INDENT, expand=False))
    console.print()


def _split_space(text: str) -> tuple[str, str]:
    """Split a token into a leading space, or nothing, and the rest, both printable."""
    shown = printable(text)
    return (" ", shown[1:]) if shown.startswith(" ") else ("", shown)


def _long_range_line(window: ShownWindow, *, coloured: bool) -> Text:
    """Return the long-range tokens; visible ones carry their rank, and a colour where there is one."""
    return _coloured_line(window) if coloured else _bracketed_line(window)


@dataclass
class _Word:
    """A word of the text: the tokens between two spaces or signs, what stands in front of them, and the ranks of visible ones."""

    space: str
    text: str
    ranks: list[int]


def _words_of(window: ShownWindow) -> list[_Word]:
    """Return the words of the long-range tokens; a rank stands once in each."""
    words: list[_Word] = []
    for index, text in enumerate(window.long_range_texts):
        space, part = _split_space(text)
        if not (words and _goes_on(words[-1].text, space, part)):
            words.append(_Word(space if index else "", "", []))
        rank = window.ranks.get(index)
        words[-1].text += part if rank is None else _marked(space, part)
        if rank is not None and rank not in words[-1].ranks:
            words[-1].ranks.append(rank)
    return words


def _goes_on(before: str, space: str, part: str) -> bool:
    """Return True if a token belongs to the word that the text before it ends with."""
    return not space and (part == "" or all(map(IN_WORD.match, (before[-1:], part))))


def _bracketed_line(window: ShownWindow) -> Text:
    """Return the long-range tokens; ranks stand behind the word, ``focused[1]``, or in front of the words of one group."""
    line = Text()
    for ranks, words in groupby(_words_of(window), key=lambda word: word.ranks):
        first, *others = words
        if len(ranks) == 1 and others:
            text = "".join(f"{word.space}{word.text}" for word in others)
            line.append(f"{first.space}[{ranks[0]}:{first.text}{text}]")
            continue
        for word in (first, *others):
            mark = f"[{','.join(map(str, ranks))}]" if ranks else ""
            line.append(f"{word.space}{word.text}{mark}")
    return line


def _coloured_line(window: ShownWindow) -> Text:
    """Return the long-range tokens; ranks stand behind the word, so that a word of several tokens stays one."""
    line, ranks, waiting = Text(), window.ranks, list[str]()
    for index, text in enumerate(window.long_range_texts):
        space, word = _split_space(text)
        if waiting and not _goes_on(line.plain, space, word):
            line.append(f"({','.join(waiting)})", style="bold")
            waiting.clear()
        line.append(space if index else "")
        if index in ranks:
            colour = HEAT[round(window.heat(index) * (len(HEAT) - 1))]
            line.append(_marked(space, word), style=f"bold #000000 on {colour}")
            if ranks[index] != ranks.get(index + 1):
                waiting.append(str(ranks[index]))
        else:
            line.append(word, style="dim")
    return line.append(f"({','.join(waiting)})" if waiting else "", style="bold")


def _marked(space: str, word: str) -> str:
    """Return what is marked of a token: its text, or what stands for it."""
    return token_words(word or space)


def _print_losses(window: ShownWindow, console: Console) -> None:
    """Print the three losses as bars, and the gains."""
    excerpt, is_real = window.excerpt, window.context == "real"
    short, sparse = excerpt.loss_short_nats, excerpt.loss_at(window.selector, window.context, k=window.k)
    long = excerpt.loss_long_nats if is_real else excerpt.null_loss_long_nats
    longest = max(short, long, sparse or 0.0) or 1.0  # all are 0 where the model is certain
    room = max(SHORTEST_BAR, min(LONGEST_BAR, console.width - BESIDE_BAR))
    missing = Text(f"  {f'L_short,sparse({window.k})':<26}measured at k = {', '.join(map(str, window.ks))}")
    console.print(_bar("L_short, local only", short, scale=room / longest, style="bright_black"))
    console.print(
        missing
        if sparse is None
        else _bar(f"L_short,sparse({window.k})", sparse, scale=room / longest, style="dark_orange3")
    )
    console.print(
        _bar("L_long, all tokens" if is_real else "L_long, null context", long, scale=room / longest, style="blue")
    )
    gains = "" if sparse is None else f"sparse gain {fixed(short - sparse, 3)}, "
    console.print(Text(f"  {gains}long gain {fixed(short - long, 3)} nats"))
    optimism = excerpt.optimism_at(window.selector, k=window.k)
    if optimism is not None and is_real:
        console.print(Text(f"  optimism, measured on resampled targets, {fixed(optimism, 3)} nats"))


def _bar(name: str, loss: float, *, scale: float, style: str) -> Text:
    line = Text(f"  {name:<26}{loss:7.3f} nats  ")
    return line.append("█" * round(scale * loss), style=style)


def _print_ranking(window: ShownWindow, console: Console) -> None:
    """Print the visible tokens or groups by rank, with their distances to the target and scores."""
    console.print()
    name = window.units(1)
    console.print(Text(f"  {'rank':>4}  {'distance':>11}  {'score':>9}  {name}", style="bold"))
    for row in ranking(window):
        console.print(Text(f"  {row.rank:>4}  {row.distance:>11}  {row.score:>9}  {row.text}", overflow="ellipsis"))


@dataclass(frozen=True)
class RankedRow:
    """One visible token or group: its rank, the distance of its last token to the target, its score or ``-``, and its text."""

    rank: int
    distance: int
    score: str
    text: str


def ranking(window: ShownWindow) -> list[RankedRow]:
    """Return the visible tokens or groups, the most influential first."""
    far = window.long_range_texts
    return [
        RankedRow(
            rank,
            len(far) + window.local_len - positions[-1],
            "-" if (score := window.score(positions[0])) is None else f"{score:.3g}",
            token_words("".join(far[position] for position in positions)).strip(),
        )
        for rank, positions in enumerate(window.visible_groups, start=1)
    ]


def terminal() -> Console:
    """Return a console on standard output, no wider than is easy to read; without colour where NO_COLOR is set or
    where it is not a terminal."""
    width = min(WIDTH, Console().width) if sys.stdout.isatty() else WIDTH
    return SafeConsole(width=width, soft_wrap=False)
