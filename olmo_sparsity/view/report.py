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

from olmo_sparsity.selectors import meaning_of
from olmo_sparsity.statistics.enough import few
from olmo_sparsity.statistics.frames import five_windows
from olmo_sparsity.statistics.quantities import (
    QUANTITIES,
    counted,
    first_blind,
    gate,
    read_estimates,
    shown_ks,
    units_of,
)
from olmo_sparsity.text.classes import CLASSES
from olmo_sparsity.view import pages, summary
from olmo_sparsity.view.console import null_context
from olmo_sparsity.view.window import read_windows
from olmo_sparsity.view.words import CUT, near_visible, words

LATEST = 40  # words of the local text that are shown


def write_report(tables: Path, page: Path, *, overwrite: bool = False) -> Path:
    """Write the page of a finished measurement, and return its path."""
    pages.check_free(page, overwrite)
    frame = read_estimates(tables)
    manifest, shown = frame.attrs["manifest"], summary.shown_selectors(frame)
    selector, (enough, found) = first_blind(frame) or shown[0], few(frame)
    k = enough if enough and found == "above" else shown_ks(frame)[0]
    picked = f"{counted(k, manifest)} picked by {selector}"
    drawing, first_picture = analysis("drawing"), analysis("first_picture")
    text = pages.render(
        "report", own_style=f":root {{ {drawing.CSS} }}", run=manifest["run"], many=units_of(manifest),
        lines=[summary.measured_line(manifest, frame), summary.first_token_line(manifest)],
        answers=summary.answers(frame), caption=first_picture.caption(frame),
        pictures=[Markup(drawing.svg(first_picture.figure(frame, panel))) for panel in ("few", "beyond")],
        k=k, picked=picked, cards=list(_cards(tables, selector, k, picked)),
        tables=[summary.recovered_table(frame), summary.spectrum_table(frame)],
        selectors={name: meaning_of(name, manifest) for name in shown},
        null=null_context(manifest), checks=summary.controls(frame, selector, k),
        caution="" if gate(frame) == "above" else summary.caution(frame, enough),
        definitions={of.header: of.definition for of in QUANTITIES.values() if of.definition},
        classes=CLASSES, numbers=dict(_numbers(frame, selector, k)), setup=json.dumps(manifest, indent=2),
    )  # fmt: skip
    return pages.write_page(page, text, overwrite=overwrite)


def analysis(name: str) -> Any:
    """A module of ``analysis``, which loads matplotlib: a part of an installed package, beside the package in a checkout."""
    inside = importlib.util.find_spec("olmo_sparsity.analysis") is not None
    return importlib.import_module(f"{'olmo_sparsity.analysis' if inside else 'analysis'}.{name}")


def _cards(tables: Path, selector: str, k: int, picked: str) -> Iterator[dict[str, Any]]:
    """Five windows: the place among all, words, and by what is visible the target's probability in percent and loss in nats."""
    places = five_windows(tables, selector, k)
    for place, window in zip(places, read_windows(tables, list(places.values())), strict=True):
        num_far, visible = window.num_long_range, window.visible(selector, k)
        local = words(window.texts[num_far:], {})
        shown = (f"the last {window.local_len} tokens alone", f"and {picked}", f"all {len(window.texts)} tokens")
        losses = zip(shown, window.losses(selector, k), strict=True)
        yield {
            "place": place,
            "window": window,
            "far": near_visible(words(window.texts[:num_far], visible)),
            "local": [CUT] * (len(local) > LATEST) + local[-LATEST:],
            "visible": [(name, 100 * math.exp(-loss), loss) for name, loss in losses],
        }


def _numbers(frame: pd.DataFrame, selector: str, k: int) -> Iterator[tuple[str, pd.DataFrame]]:
    """All numbers of reports, a table for each set of keys; of classes those of one choice."""
    shown = {name for name, of in QUANTITIES.items() if "report" in of.show} | {"spectrum_share", "window_share"}
    is_other = (frame["selector"] != selector) | (frame["context"] != "real") | (frame["k"] != k)
    rows = frame[frame["quantity"].isin(shown) & ~(frame["group"].notna() & frame["selector"].notna() & is_other)]
    for table in summary.every_table(rows):
        keys = [name for name in table.columns if name not in ("quantity", "value")]
        table["quantity"] = [QUANTITIES[name].header if name in QUANTITIES else "share" for name in table["quantity"]]
        if "k" in keys and "x" in keys:  # the spectrum, a column for each k
            keys.remove("k")
            table["quantity"] = "k = " + table["k"]
        if keys:  # in the order of the frame, which pivot does not keep
            spread = table.pivot(index=keys, columns="quantity", values="value").fillna("-").reset_index()
            table = table[keys].drop_duplicates().merge(spread)[[*keys, *table["quantity"].unique()]]
        yield " ".join(keys), table
