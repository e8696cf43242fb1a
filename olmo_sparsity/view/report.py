"""One measurement as one HTML page, which runs no script: answers, first picture, five windows, two tables, controls."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from olmo_sparsity.config import MIN_DOCUMENTS
from olmo_sparsity.selectors import meaning_of
from olmo_sparsity.statistics.enough import few
from olmo_sparsity.statistics.frames import five_windows
from olmo_sparsity.statistics.quantities import (
    QUANTITIES,
    counted,
    first_blind,
    gate,
    pick,
    read_estimates,
    shown_ks,
    side_of_zero,
    units_of,
)
from olmo_sparsity.text.classes import CLASSES
from olmo_sparsity.view import pages
from olmo_sparsity.view.tables import every_table, recovered_table, seeing_line, shown_selectors, spectrum_table
from olmo_sparsity.view.text import answers, caution, first_token_line, measured_line, number
from olmo_sparsity.view.window import read_windows
from olmo_sparsity.view.words import CUT, near_visible, words

LATEST = 40  # words of the local text that are shown
MARKS = {"above": "passed", "below": "failed"}  # all others are open
CHECKS = (
    ("Foreign text", "excess_over_random_nats",
     "With {}, the gain over random tokens is {} nats larger here than on another document's text."),
    ("Damping", "gain_over_damping_nats",
     "With {}, the gain is {} nats larger than from blending the predictions without and with all tokens."),
)  # fmt: skip


def write_report(tables: Path, page: Path, *, overwrite: bool = False) -> Path:
    """Write the page of a finished influence folder, and return its path."""
    pages.check_free(page, overwrite)
    frame = read_estimates(tables)
    manifest, many = frame.attrs["manifest"], units_of(frame.attrs["manifest"])
    selector, (enough, found) = first_blind(frame) or shown_selectors(frame)[0], few(frame)
    k = enough if enough and found == "above" else shown_ks(frame)[0]
    picked = f"{counted(k, manifest)} picked by {selector}"
    cards = list(_cards(tables, selector, k, picked))
    drawing, first_picture = analysis("drawing"), analysis("first_picture")
    text = pages.render(
        "report.html",
        styles=("report.css",),
        own_style=f":root {{ {drawing.CSS} }}",
        run=manifest["run"],
        lines=[measured_line(manifest, frame), first_token_line(manifest)],
        many=many,
        answers=answers(frame),
        pictures=[Markup(drawing.svg(first_picture.figure(frame, panel))) for panel in ("few", "beyond")],
        caption=first_picture.caption(frame),
        cards=cards,
        k=k,
        picked=picked,
        tables=[recovered_table(frame), spectrum_table(frame)],
        selectors={name: meaning_of(name, manifest) for name in shown_selectors(frame)},
        checks=list(_checks(frame, selector, k, picked, seeing_line(frame, enough))),
        caution="" if gate(frame) == "above" else caution(frame, enough),
        numbers=dict(_numbers(frame, selector, k)),
        definitions={of.header: of.definition for of in QUANTITIES.values() if of.definition},
        classes=CLASSES,
        setup=json.dumps(manifest, indent=2),
    )
    return pages.write_page(page, text, overwrite=overwrite)


def analysis(name: str) -> Any:
    """A module of ``analysis``, which loads matplotlib: a part of an installed package, beside the package in a checkout."""
    inside = importlib.util.find_spec("olmo_sparsity.analysis") is not None
    return importlib.import_module(f"{'olmo_sparsity.analysis' if inside else 'analysis'}.{name}")


def _cards(tables: Path, selector: str, k: int, picked: str) -> Iterator[dict[str, Any]]:
    """Five windows: the place among all, words, and by what is visible the target's probability in percent and loss in nats."""
    places = five_windows(tables, selector, k)
    for place, window in zip(places, read_windows(tables, list(places.values())), strict=True):
        choice, num_far = window.choices[selector, "real"], window.num_long_range
        far, local = words(window.texts[:num_far], choice.visible(k)), words(window.texts[num_far:], {})
        losses = {
            f"the last {window.local_len} tokens alone": window.loss_short,
            f"and {picked}": choice.loss[k],
            f"all {len(window.texts)} tokens": window.loss_long,
        }
        yield {
            "place": place,
            "window": window,
            "far": near_visible(far),
            "local": [CUT] * (len(local) > LATEST) + local[-LATEST:],
            "visible": [(name, 100 * math.exp(-loss), loss) for name, loss in losses.items()],
        }


def _checks(frame: pd.DataFrame, selector: str, k: int, picked: str, seeing: str) -> Iterator[tuple[str, str, str]]:
    """Each control: its name, whether the numbers passed it, and by how much."""
    is_blind = selector == first_blind(frame)
    counts = is_blind and gate(frame) == "above"  # else there is no gain, or luck in it
    for name, quantity, claim in CHECKS:
        row = pick(frame, quantity, selector=selector, context="real", k=k)
        state = MARKS.get(side_of_zero(row), "open") if counts else "open"
        yield name, state, "Not measured." if row is None else claim.format(picked, number(row))
    claim = f"{selector} picks {'without seeing' if is_blind else 'by'} the target."
    yield "Optimism", "passed" if is_blind else "open", f"{claim} {seeing}"
    documents, overlap = frame["n_documents"].max(), pick(frame, "train_overlap_share")
    shared = "" if overlap is None else f" Windows that share text with training: {overlap['value']:.1%}."
    state = "passed" if documents >= MIN_DOCUMENTS else "failed"
    yield "Documents", state, f"{documents:,} documents; intervals need {MIN_DOCUMENTS}.{shared}"


def _numbers(frame: pd.DataFrame, selector: str, k: int) -> Iterator[tuple[str, pd.DataFrame]]:
    """All numbers of reports, a table for each set of keys; of classes those of one choice."""
    shown = {name for name, of in QUANTITIES.items() if "report" in of.show} | {"spectrum_share", "window_share"}
    is_other = (frame["selector"] != selector) | (frame["context"] != "real") | (frame["k"] != k)
    rows = frame[frame["quantity"].isin(shown) & ~(frame["group"].notna() & frame["selector"].notna() & is_other)]
    for table in every_table(rows):
        keys = [name for name in table.columns if name not in ("quantity", "value")]
        table["quantity"] = [QUANTITIES[name].header if name in QUANTITIES else "share" for name in table["quantity"]]
        if {"k", "x"} <= set(keys):  # the spectrum, a column for each k
            keys.remove("k")
            table["quantity"] = "k = " + table["k"]
        if keys:  # in the order of the frame, which pivot does not keep
            spread = table.pivot(index=keys, columns="quantity", values="value").fillna("-").reset_index()
            table = table[keys].drop_duplicates().merge(spread)[[*keys, *table["quantity"].unique()]]
        yield " ".join(keys), table
