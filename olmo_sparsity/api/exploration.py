"""A document explored: a table of its targets in Python, a page in a browser or a notebook."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.quantities import counted, units_of
from olmo_sparsity.view import pages
from olmo_sparsity.view.explore import OF_TARGETS, ONE_DOCUMENT
from olmo_sparsity.view.window import SEES_TARGET

FRAME_HEIGHT = 900  # pixels, in a notebook


@dataclass(frozen=True)
class Exploration:
    """A document and what was measured of each of its targets. A notebook shows it as its page."""

    source: str
    manifest: dict[str, Any]
    data: dict[str, Any]  # what the page holds as JSON; `explored` makes it

    @property
    def targets(self) -> pd.DataFrame:
        """A row for each target: its place, losses and reaction in nats, and by selector the smallest sufficient k."""
        data, first = self.data, self.data["first"]
        frame = pd.DataFrame({name: np.array(data[name], dtype=float) for name in OF_TARGETS})
        for place, name in enumerate(("offsets", "texts")):
            frame.insert(place, name[:-1], data[name][first:])
        frame.index = pd.RangeIndex(first, len(data["texts"]), name="token")
        for one in data["selectors"]:
            kl_WK = np.column_stack([frame["kl_short_nats"], np.array(one["kl"], dtype=float)])
            is_enough = kl_WK <= data["tolerance"]
            k = np.array([0, *data["ks"]], dtype=float)[is_enough.argmax(axis=1)]
            frame[f"sufficient_k_{one['name']}"] = np.where(is_enough.any(axis=1), k, np.inf)
        return frame

    @property
    def found(self) -> str:
        """How many targets the long context moves, and how many tokens half of these need, in two sentences."""
        targets, name, ks = self.targets, self.data["selectors"][0]["name"], self.data["ks"]
        needed = targets[f"sufficient_k_{name}"]
        moved = needed[needed > 0]
        of = f"{len(moved):,} of {len(needed):,} predictions of {self.source} by more than {self.data['tolerance']:g} nats."
        if moved.empty:
            return f"The long context moves {of}"
        k = next((k for k in ks if (moved <= k).mean() >= 0.5), None)
        enough = counted(ks[-1] if k is None else k, self.manifest)
        half = f"Half of these need {'at most' if k else 'more than'} {enough} picked by {name}."
        return f"The long context moves {of} {half}"

    def to_html(self) -> str:
        """One self-contained page, which loads nothing and sends nothing."""
        return pages.render(
            "explore.html",
            styles=("explore.css",),
            scripts=("explore.js",),
            source=self.source,
            manifest=self.manifest,
            data=self.data,
            found=self.found,
            one_document=ONE_DOCUMENT,
            sees=SEES_TARGET,
            many=units_of(self.manifest),
            far=self.data["full_len"] - self.data["local_len"],
        )

    def save_html(self, page: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page, and return its path."""
        return pages.write_page(Path(os.path.expanduser(page)), self.to_html(), overwrite=overwrite)

    def __repr__(self) -> str:
        names = ", ".join(one["name"] for one in self.data["selectors"])
        return f"Exploration({len(self.data['loss_short_nats']):,} targets of {self.source}, selectors {names})"

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 0"
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.to_html(), quote=True)}" style="{style}"></iframe>'
        )
