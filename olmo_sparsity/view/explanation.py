"""One place of one document explained: in the terminal, as JSON, and as one self-contained HTML page."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from olmo_sparsity.errors import printable
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.view import pages
from olmo_sparsity.view.as_json import setup_json
from olmo_sparsity.view.excerpts import Excerpt
from olmo_sparsity.view.one_window import SEES_TARGET, ShownWindow, print_choice, ranking
from olmo_sparsity.view.table_printing import print_sentences
from olmo_sparsity.wording.captions import gains_caption
from olmo_sparsity.wording.findings import place_finding
from olmo_sparsity.wording.gates import GATE_WORDS
from olmo_sparsity.wording.numbers import fixed
from olmo_sparsity.wording.setup import NULL_WORDS, setup_words
from olmo_sparsity.wording.tokens import token_words

HEAT_STEPS = 9  # shades of a score
FRAME_HEIGHT = 640  # of the page in a notebook, in pixels


@dataclass(frozen=True)
class Gains:
    """What one selector gains at one k, in nats; None where it is not measured.

    Attributes:
        selector: name of the selector.
        k: number of visible long-range tokens, or groups of them.
        loss_sparse_nats: L_short,sparse(k).
        gain_sparse_nats: L_short minus that.
        gain_over_random_nats: sparse gain minus that of `random`; None for `random` itself.
        optimism_nats: how much more the choice gains on its target than on another one, of a selector that sees the target.
        corrected_gain_nats: sparse gain minus optimism.
    """

    selector: str
    k: int
    loss_sparse_nats: float
    gain_sparse_nats: float
    gain_over_random_nats: Optional[float]
    optimism_nats: Optional[float]
    corrected_gain_nats: Optional[float]


@dataclass(frozen=True)
class Explanation:
    """One place of one document, and what selectors chose before it.

    Attributes:
        source: name of the document.
        offset: index in the document of the target's first character.
        run: name of the run, or of the folder of a model's results.
        setup: the model, the definition of visible and the anchor.
        note: that the target was searched for and stands at several places, in one sentence; None: it does not.
        null_context: kind of the null context, a key of ``text.null_contexts.FALLBACKS``.
        windows: the window with the choice of each selector, one a selector.
        window_row: its row of the table ``windows``.
        selection_rows: its rows of the table ``selections``.
    """

    source: str
    offset: int
    run: str
    setup: ModelSetup
    note: Optional[str]
    null_context: str
    windows: tuple[ShownWindow, ...]
    window_row: dict[str, Any]
    selection_rows: list[dict[str, Any]]

    @property
    def excerpt(self) -> Excerpt:
        """The window."""
        return self.windows[0].excerpt

    @property
    def finding(self) -> str:
        """What the target gains from all long-range tokens, from the null context, and from the chosen ones, in one sentence."""
        number = len(self.windows[0].visible_groups)  # a window may have fewer than k
        return place_finding(
            self.excerpt.target_text,
            long_nats=self.excerpt.gain_long_nats,
            null_nats=self.excerpt.null_gain_long_nats,
            null_context=self.null_context,
            num_long_range=len(self.windows[0].long_range_texts),
            chosen={
                window.selector + " (sees the target)" * window.sees_target: window.gain_sparse_nats
                for window in self.windows
            },
            visible=f"{number} {self.windows[0].units(number)}",
        )

    @property
    def unit(self) -> str:
        """What k counts."""
        return self.windows[0].unit

    @property
    def measured(self) -> str:
        """The run or model, the definition of visible and the anchor, in words."""
        return setup_words(self.run, self.setup)

    @property
    def gains(self) -> pd.DataFrame:
        """What each selector gains at each k, a row each; columns as in ``Gains``, missing where it is not measured."""
        numbers = [vars(gains) for gains in self._gains]
        measured = dict.fromkeys((field.name for field in fields(Gains) if field.name.endswith("_nats")), np.float64)
        return pd.DataFrame(numbers).astype(measured)

    @property
    def _gains(self) -> list[Gains]:
        return [gains for window in self.windows for gains in gains_of(window)]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON; ``window`` and ``selections`` have the columns of the tables."""
        shown = self.windows[0]
        return {
            "source": self.source,
            "offset": self.offset,
            "run": self.run,
            **setup_json(self.setup),
            "finding": self.finding,
            "note": self.note,
            "gate": "not-assessed",
            "null_context": self.null_context,
            "unit": shown.unit,
            "local_len": shown.local_len,
            "full_len": len(self.excerpt.token_texts),
            "target_text": self.excerpt.target_text,
            "loss_short_nats": self.excerpt.loss_short_nats,
            "loss_long_nats": self.excerpt.loss_long_nats,
            "gain_long_nats": self.excerpt.gain_long_nats,
            "gains": [vars(gains) for gains in self._gains],
            "window": _plain(self.window_row),
            "selections": _plain(self.selection_rows),
        }

    def to_html(self) -> str:
        """Return one self-contained HTML page; it loads nothing and runs no script."""
        return pages.render(
            "explain.html",
            styles=("report.css", "explain.css"),
            scripts=(),
            selectors=[window.selector for window in self.windows],
            data=self.to_json(),
            explanation=self,
            excerpt=self.excerpt,
            facts=_facts(self),
            gate=GATE_WORDS,
            gains_caption=_gains_caption(self),
            sees=SEES_TARGET,
            tokens=_tokens,
            local=lambda window: [printable(text) for text in window.local_texts],
            target=token_words(self.excerpt.target_text),
            gains_of=gains_of,
            ranking=ranking,
            nats=_nats,
        )

    def save_html(self, out: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``to_html`` into a file.

        Raises:
            UserError: the file exists, and ``overwrite`` is False or this tool did not write it.
        """
        return pages.write_page(Path(os.path.expanduser(out)), self.to_html(), overwrite=overwrite)

    def _repr_html_(self) -> str:
        return pages.frame(self.to_html(), height=FRAME_HEIGHT, runs_scripts=False)


def gains_of(window: ShownWindow) -> Iterator[Gains]:
    """Yield what a selector gains, one entry a k."""
    excerpt, choice = window.excerpt, window.choice
    random = excerpt.selections.get(("random", window.context))
    for index, k in enumerate(choice.ks):
        gain, optimism = choice.gain_sparse_nats[index], excerpt.optimism_at(window.selector, k=k)
        over = None if random is None or window.selector == "random" else gain - random.gain_sparse_nats[index]
        corrected = None if optimism is None else gain - optimism
        yield Gains(window.selector, k, choice.loss_sparse_nats[index], gain, over, optimism, corrected)


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Print the place, and for each selector the window with its influential tokens marked, the losses and the gains."""
    console.print(Text(f"{explanation.source}, character {explanation.offset}", style="bold"))
    print_sentences(explanation.finding, console)
    print_sentences(GATE_WORDS, console, style="bold")
    console.print()
    for name, words in _facts(explanation):
        print_sentences(f"{name}: {words}", console)
    for window in explanation.windows:
        console.print()
        print_choice(window, console)
        console.print()
        console.print(_gains_table(window))
    print_sentences(_gains_caption(explanation), console, style="italic")


def _gains_caption(explanation: Explanation) -> str:
    return gains_caption(
        explanation.unit,
        explanation.setup.visibility,
        optimism=any(window.sees_target for window in explanation.windows),
    )


def _gains_table(window: ShownWindow) -> Table:
    heads = [
        "k",
        "L_short,sparse(k)",
        "sparse gain",
        "over random",
        *["optimism", "corrected gain"] * window.sees_target,
    ]
    table = Table(*heads, title="nats")
    for gains in gains_of(window):
        numbers = [gains.loss_sparse_nats, gains.gain_sparse_nats, gains.gain_over_random_nats]
        numbers += [gains.optimism_nats, gains.corrected_gain_nats] * window.sees_target
        table.add_row(str(gains.k), *map(_nats, numbers))
    return table


def _facts(explanation: Explanation) -> list[tuple[str, str]]:
    """Return what was measured, as names and values."""
    excerpt, shown = explanation.excerpt, explanation.windows[0]
    num_tokens = len(excerpt.token_texts)
    lengths = f"local {shown.local_len} + long-range {num_tokens - shown.local_len} = full {num_tokens} tokens"
    null_long = f"long gain {fixed(excerpt.null_gain_long_nats, 3)} nats"
    note = [] if explanation.note is None else [("Place", explanation.note)]
    return [
        *note,
        ("Measured", explanation.measured),
        ("Lengths", f"{lengths}, from token {excerpt.start_token} of the document"),
        ("Class of the target", excerpt.target_class),
        ("Null context", f"{NULL_WORDS[explanation.null_context]}; {null_long}"),
    ]


def _nats(value: Optional[float]) -> str:
    return "-" if value is None else fixed(value, 3)


@dataclass(frozen=True)
class _Token:
    """A long-range token as the page shows it: text, classes, its rank if it is visible, and words for a pointer.

    ``ends`` is True of the last token of a visible group, behind which the rank stands.
    """

    text: str
    classes: str
    rank: Optional[int]
    title: str
    ends: bool


def _tokens(window: ShownWindow) -> list[_Token]:
    tokens, far, ranks = [], window.long_range_texts, window.ranks
    for position, text in enumerate(far):
        score = window.choice.scores[position]
        share = 0.0 if score is None else abs(score) / window.choice.largest_score
        classes = f"token heat-{round(share * HEAT_STEPS)}" + (" against" if score is not None and score < 0 else "")
        distance = len(far) + window.local_len - position
        title = f"{distance} tokens before the target, score {'unknown' if score is None else format(score, '.3g')}"
        ends = ranks.get(position) != ranks.get(position + 1)
        words = token_words(text) if position in ranks else printable(text)
        tokens.append(_Token(words, classes, ranks.get(position), title, ends))
    return tokens


def _plain(value: Any) -> Any:
    """Return a value for JSON: a number that is not finite becomes null."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
