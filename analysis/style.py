"""What all figures share: looks, colours that print and that the colour-blind can tell apart, captions, files."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import typer
from matplotlib.figure import Figure

from olmo_sparsity.statistics import Measurement, gate_words, length_words, load, summarize
from olmo_sparsity.tables import UserError, list_influence

# Okabe and Ito's colours; a marker and a line style of its own for each selector, for print in grey.
LOOKS: dict[str, dict[str, Any]] = {
    "unmask-one": {"color": "#0072B2", "marker": "o"},
    "kl": {"color": "#D55E00", "marker": "s"},
    "random": {"color": "#000000", "marker": "x"},
    "nearest": {"color": "#009E73", "marker": "^"},
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


def number(estimate: Optional[dict[str, Any]], digits: int = 2) -> str:
    """``0.41 [0.36, 0.47]``, or a dash where there is none."""
    if estimate is None:
        return "-"
    if estimate["low"] is None:
        return f"{estimate['mean']:.{digits}f}"
    return f"{estimate['mean']:.{digits}f} [{estimate['low']:.{digits}f}, {estimate['high']:.{digits}f}]"


def gate_reason(summary: dict[str, Any]) -> str:
    """Why the gate failed, in few words."""
    if summary["long_gain_nats"]["low"] is None:
        return "too few documents to tell"
    return "this model does not profit from the long context"


def caption(figure: Figure, summary: dict[str, Any], words: str) -> None:
    """Below the figure: what it shows, on how much data, under which lengths, and whether the gate passed."""
    data = f"{summary['num_windows']} windows of {summary['num_documents']} documents ({summary['source']}, {summary['split']})"
    text = f"{words} {data}; {length_words(summary)} {gate_words(summary)}"
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 17))
    figure.text(0.01, -0.01, "\n".join(lines), va="top", ha="left", fontsize=8)
    if summary["gate"] == "failed":
        figure.suptitle(
            f"VALIDITY GATE FAILED: {gate_reason(summary)}",
            fontsize=10,
            fontweight="bold",
            color="white",
            bbox={"facecolor": "#B00020", "edgecolor": "black", "boxstyle": "square,pad=0.4"},
        )


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Writes ``name.png`` and ``name.pdf`` and closes the figure."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.{kind}" for kind in ("png", "pdf")]
    for path in paths:
        metadata: dict[str, Any] = {"CreationDate": None} if path.suffix == ".pdf" else {}
        figure.savefig(path, bbox_inches="tight", metadata=metadata)
    plt.close(figure)
    return paths


def find_tables(run: Path, tables: Optional[Path]) -> tuple[Path, Path]:
    """(influence folder, folder for its figures); without ``tables`` the run's newest measurement."""
    if tables is None:
        finished = list_influence(run)
        if not finished:
            raise UserError(f"{run}: nothing has been measured in this run; run `olmo-sparsity influence` first")
        tables = finished[-1]
    return tables, run / "figures" / tables.name


Draw = Callable[[Path, Measurement, dict[str, Any], Path], list[Path]]


def draw_all(draws: list[Draw], run: Path, tables: Optional[Path], out: Optional[Path]) -> None:
    """Draws, and prints where each picture is."""
    try:
        folder, default_out = find_tables(run, tables)
        measurement = load(folder)
        summary = summarize(measurement)
        for draw in draws:
            for path in draw(folder, measurement, summary, out or default_out):
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
    ) -> None:
        draw_all(list(draws), run, tables, out)

    typer.run(command)
