"""What all figures share: looks, colours that print and that the colour-blind can tell apart, captions, files."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.bootstrap import Estimate
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.summary import MAIN_SELECTORS, summarize
from olmo_sparsity.statistics.wording import gate_words, length_words
from olmo_sparsity.tables.reading import newest_finished

from .paper import INCHES, Width, fit, folder_for, legend_below, set_width, width_in_force

# Okabe and Ito's colours, and two of Tol's; a marker of its own for each selector, for print in grey. In the order of every
# legend: those that see the target, those that do not, the controls.
LOOKS: dict[str, dict[str, Any]] = {
    "unmask-one": {"color": "#0072B2", "marker": "o"},
    "mask-one": {"color": "#56B4E9", "marker": "v"},
    "greedy": {"color": "#332288", "marker": "*"},
    "gradient": {"color": "#CC79A7", "marker": "D"},
    "lasso": {"color": "#E69F00", "marker": "P"},
    "kl": {"color": "#D55E00", "marker": "s"},
    "attention": {"color": "#882255", "marker": "h"},
    "nearest": {"color": "#009E73", "marker": "^"},
    "random": {"color": "#000000", "marker": "x"},
}
LINE_LOOKS: dict[str, dict[str, Any]] = {"real": {"linestyle": "-"}, "null": {"linestyle": ":"}}
CONTEXT_WORDS = {"real": "real context", "null": "null context (foreign long-range text)"}

plt.rcParams.update(
    {
        "figure.dpi": 110,
        "savefig.dpi": 200,
        "font.size": 9,
        "text.parse_math": False,  # a corpus may hold dollar signs
        "axes.titlesize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
    }
)


def ordered(measurement: Measurement) -> list[str]:
    """The measured selectors, in the order of ``LOOKS``."""
    return [name for name in LOOKS if name in measurement.selectors]


def main_selectors(measurement: Measurement) -> list[str]:
    """The few that are drawn where there is no room for nine; all, where none of those was measured."""
    names = ordered(measurement)
    return [name for name in names if name in MAIN_SELECTORS] or names


def legend_entry(selector: str) -> Line2D:
    """What stands for a selector in a legend."""
    return Line2D([], [], linestyle="-", markersize=4.5, label=selector, **LOOKS[selector])


def errors(estimates: list[Estimate]) -> Optional[np.ndarray]:
    """[2, estimates], how far each interval reaches below and above its mean; None where there is none (few documents)."""
    if any(e["low"] is None for e in estimates):
        return None
    bounds = np.array([[e["low"], e["mean"], e["high"]] for e in estimates], dtype=float)
    return np.abs(np.diff(bounds, axis=1)).T


def gate_reason(summary: dict[str, Any]) -> str:
    """Why the gate failed, in few words."""
    if summary["long_gain_nats"]["low"] is None:
        return "too few documents to tell"
    return "this model does not profit from the long context"


def band(axis: Axes, x: Any, found: list[Optional[Estimate]], color: str, **looks: Any) -> None:
    """A line with its intervals as a band, gaps where there are none."""
    means, lows, highs = (
        np.array([np.nan if e is None or e[name] is None else e[name] for e in found], dtype=float)
        for name in ("mean", "low", "high")
    )
    axis.plot(x, means, color=color, linewidth=1.3, markersize=3.5, **looks)
    axis.fill_between(x, lows, highs, color=color, alpha=0.16, linewidth=0)


def signed_log(axis: Axes, which: str) -> None:
    """Linear up to 1 on either side of 0, logarithmic beyond: for R(k), where luck may be worth ten times the long gain."""
    if which == "x":
        axis.set_xscale("symlog", linthresh=1)
    else:
        axis.set_yscale("symlog", linthresh=1)
    one = axis.xaxis if which == "x" else axis.yaxis
    low, high = one.get_view_interval()
    ticks = [t for t in (-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100) if low <= t <= high]
    one.set_ticks(ticks, [str(t) for t in ticks])
    one.set_ticks([], minor=True)


def say_gate_failed(axis: Axes, summary: dict[str, Any]) -> None:
    """In the place of what may not be shown, in words."""
    words = "gate failed:\n" + "\n".join(textwrap.wrap(gate_reason(summary), 24))
    axis.text(0.5, 0.5, words, ha="center", va="center", transform=axis.transAxes)
    axis.set_xticks([])
    axis.set_yticks([])


def caption_text(figure: Figure, text: str, handles: Sequence[Line2D] = (), columns: int = 6) -> None:
    """Below the figure: a legend of ``handles``, then the text. For a paper the text is left to LaTeX: ``save`` writes it into
    a file of its own."""
    if width_in_force() is not Width.screen:
        figure.set_label(text)
        if handles:
            legend_below(figure, handles)
        return
    top = -0.01
    if handles:
        figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns).set_in_layout(
            False
        )
        top -= (0.19 * -(-len(handles) // columns) + 0.1) / figure.get_figheight()
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 17))
    figure.text(0.01, top, "\n".join(lines), va="top", ha="left", fontsize=8)


def caption(
    figure: Figure, summary: dict[str, Any], words: str, handles: Sequence[Line2D] = (), columns: int = 6
) -> None:
    """Below the figure: what it shows, on how much data, under which lengths, and whether the gate passed."""
    data = f"{summary['num_windows']} windows of {summary['num_documents']} documents ({summary['source']}, {summary['split']})"
    caption_text(figure, f"{words} {data}; {length_words(summary)} {gate_words(summary)}", handles, columns)
    if summary["gate"] == "failed":
        words, width = f"VALIDITY GATE FAILED: {gate_reason(summary)}", width_in_force()
        paper = width is not Width.screen  # inside the figure there, for its size is fixed
        figure.suptitle(
            "\n".join(textwrap.wrap(words, int(INCHES[width] * 13))) if paper else words,
            y=None if paper else 1.02,
            va="top" if paper else "bottom",
            fontsize=7.5 if paper else 10,
            fontweight="bold",
            color="white",
            bbox={"facecolor": "#B00020", "edgecolor": "black", "boxstyle": "square,pad=0.4"},
        )


def save(figure: Figure, out: Path, name: str, one_column: Optional[int] = 2) -> list[Path]:
    """Writes ``name.png`` and ``name.pdf`` and closes the figure.

    For a paper it is exactly as wide as the column, ``name.txt`` holds the caption, and so do the PDF's metadata.

    Args:
        figure: what to write.
        out: its folder.
        name: of the files.
        one_column: how many panels stand side by side in one column of a paper; None: it cannot be read there and is left out.
    """
    metadata: dict[str, Any] = {"CreationDate": None}
    paths = [out / f"{name}.{kind}" for kind in ("png", "pdf")]
    width = width_in_force()
    if width is Width.one and one_column is None:
        typer.echo(f"{name}: cannot be read in one column, so it is left out; take --width two", err=True)
        plt.close(figure)
        return []
    out.mkdir(parents=True, exist_ok=True)
    if width is not Width.screen:
        fit(figure, one_column or 1)
        words = str(figure.get_label())
        metadata["Subject"] = words
        (out / f"{name}.txt").write_text(f"{words}\n", encoding="utf-8")
    for path in paths:
        tight = "tight" if width is Width.screen else None
        figure.savefig(path, bbox_inches=tight, metadata=metadata if path.suffix == ".pdf" else {})
    plt.close(figure)
    return paths


def find_tables(run: Path, tables: Optional[Path]) -> tuple[Path, Path]:
    """(influence folder, folder for its figures); without ``tables`` the run's newest measurement."""
    if tables is None:
        tables = newest_finished(run)
    return tables, run / "figures" / tables.name


WidthOption = Annotated[
    Width, typer.Option(help="screen, or a paper's columns: one (3.25 in) or two (6.75 in), into a folder paper-WIDTH.")
]
Draw = Callable[[Path, Measurement, dict[str, Any], Path], list[Path]]


def draw_all(draws: list[Draw], run: Path, tables: Optional[Path], out: Optional[Path]) -> None:
    """Draws, and prints where each picture is."""
    try:
        folder, default_out = find_tables(run, tables)
        measurement = load(folder)
        summary = summarize(measurement)
        for draw in draws:
            for path in draw(folder, measurement, summary, folder_for(out or default_out)):
                print(path)
    except UserError as error:
        typer.echo(f"analysis: error: {error}", err=True)
        raise typer.Exit(2) from None


def script(*draws: Draw) -> None:
    """The command line of a figure's script."""

    def command(
        run: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
        tables: Annotated[Optional[Path], typer.Option(help="Influence folder. Default: the run's newest.")] = None,
        out: Annotated[Optional[Path], typer.Option(help="Where to. Default: RUN/figures/NAME OF THE TABLES.")] = None,
        width: WidthOption = Width.screen,
    ) -> None:
        set_width(width)
        draw_all(list(draws), run, tables, out)

    typer.run(command)
