"""The style, the captions and the files of all figures: what draws one imports this, so that all are drawn alike."""

from __future__ import annotations

import io
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from olmo_sparsity.errors import printable, printable_lines
from olmo_sparsity.statistics.single.model_setup import subject_name
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.storage.files import check_replaceable, remove_leftovers, write_bytes, write_text
from olmo_sparsity.storage.folders import make_folder
from olmo_sparsity.wording.gates import gate_in_words, gates_not_passed, gates_words
from olmo_sparsity.wording.setup import (
    anchor_warning,
    data_words,
    length_words,
    measured_words,
    short_anchor_warning,
)
from olmo_sparsity.wording.units import k_counts_words, units_words

from .medium import is_for_page, legend_below

CHARS_AN_INCH = 17
BOLD_CHARS_AN_INCH = 9.5  # above a figure
CAPTION_LINES = 2  # below a figure; the whole text is in the metadata and in a file beside it
# What is in the metadata of a picture of ours. In a PNG it is a chunk: four bytes of length, its kind, and its content.
DRAWN = {
    ".png": re.compile(
        rb"tEXtSoftware\0Matplotlib .*?(?P<length>.{4})(?P<kind>tEXt|iTXt)(?P<chunk>Description\0(\0{4})?)", re.DOTALL
    ),
    ".pdf": re.compile(rb"/Producer \(Matplotlib [^)]*\)\s/Subject "),
}
HEADING = re.compile(r'\{\n  "\w+":|.+\n')  # the first key of a JSON object, or the columns of a CSV file
SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")
FAILED_COLOUR = "#B00020"
GATE_FAILED_BOX = {"facecolor": FAILED_COLOUR, "edgecolor": "black", "boxstyle": "square,pad=0.4"}

if "MPLBACKEND" not in os.environ:  # notebooks name the one that shows figures
    matplotlib.use("Agg")
plt.rcParams.update(
    {
        "figure.dpi": 110,
        "savefig.dpi": 200,
        "font.size": 9,
        "text.parse_math": False,  # the text may hold dollar signs
        "axes.titlesize": 9.5,
        "axes.titley": 1.0,  # where they are; else each draw looks for ticks above the panel, which takes a tenth of its time
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.fonttype": "none",
    }
)


def caption_text(
    figure: Figure, text: str, *, last: str = "", handles: Sequence[Line2D] = (), columns: int = 6
) -> None:
    """Write a legend below a figure, and of a text as many of its first sentences as two lines hold.

    The whole text becomes the figure's label, which ``save`` writes into a file.

    Args:
        figure: the figure.
        text: the caption, its most important sentences first.
        last: what the two lines end with in any case.
        handles: entries of the legend.
        columns: columns of the legend.
    """
    figure.set_label(text)
    for handle in handles:  # before the legend is measured
        handle.set_label(printable_lines(str(handle.get_label())))
    if is_for_page():
        if handles:
            legend_below(figure, handles)
        return
    top = -0.01
    if handles:
        legend = figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns)
        legend.set_in_layout(False)
        top -= (0.19 * -(-len(handles) // columns) + 0.1) / figure.get_figheight()
    lines = _first_lines(text, int(figure.get_figwidth() * CHARS_AN_INCH), last=last)
    figure.text(0.01, top, "\n".join(lines), va="top", ha="left", fontsize=8)


def _first_lines(text: str, width: int, *, last: str) -> list[str]:
    """Return the first sentences of a text that, with ``last`` behind them, fit into ``CAPTION_LINES`` lines."""
    sentences = SENTENCE_END.split(text)
    for number in range(len(sentences), -1, -1):
        lines = textwrap.wrap(" ".join([*sentences[:number], last]).strip(), width, break_on_hyphens=False)
        if lines and len(lines) <= CAPTION_LINES:
            return lines
    return textwrap.wrap(last or sentences[0], width, max_lines=CAPTION_LINES, placeholder=" ...")


def _measured_in_short(summary: Summary) -> str:
    """Return what was measured and which gates passed, in one line; the label of the figure says it in full.

    A narrow figure cuts its end off, so what may mislead comes first.
    """
    lengths = length_words(summary.lengths).split(";")[0]
    gates = "both gates passed"
    if not (summary.gate_passed and summary.beyond_gate_passed):
        of_long, beyond = gate_in_words(summary.gate), gate_in_words(summary.beyond_gate)
        gates = f"validity gate {of_long}, gate beyond the training row {beyond}"
    subject = f"{subject_name(summary.run, summary.setup)} ({summary.setup.label})"
    warning = short_anchor_warning(summary.setup)
    unit = f"; {counts}" if (counts := k_counts_words(summary)) else ""
    return f"{warning} Data: {subject}; {gates}{unit}; {data_words(summary)}; {lengths}.".lstrip()


def measured_in_full(summary: Summary) -> str:
    """Return of which model, how much data and which lengths the numbers are, the gates, and a warning of the first token."""
    data = f"{measured_words(summary)}. {data_words(summary)}; {length_words(summary.lengths)} {gates_words(summary)}"
    return f"{data} {anchor_warning(summary.setup)}".rstrip()


def caption(figure: Figure, summary: Summary, *, words: str, handles: Sequence[Line2D] = (), columns: int = 6) -> None:
    """Write below a figure what it shows, what k counts, of which model, from how much data, at which lengths, and the gates.

    Gates that failed are written above it as well. The picture has two lines; ``save`` writes the whole text beside it.

    Args:
        figure: the figure.
        summary: what was measured.
        words: what the figure shows, its most important sentences first.
        handles: entries of the legend.
        columns: columns of the legend.
    """
    if is_for_page():  # the page says the rest
        caption_text(figure, words, handles=handles)
        if failed := gates_not_passed(summary):
            write_above(figure, failed)
        return
    sentences = (words, units_words(summary), measured_in_full(summary))
    text = " ".join(filter(None, map(str.strip, sentences)))
    caption_text(figure, text, last=_measured_in_short(summary), handles=handles, columns=columns)
    if failed := gates_not_passed(summary):
        write_above(figure, failed)


def lines_of_gates_not_passed(named: Iterable[tuple[str, Summary]]) -> list[str]:
    """Return which gates did not pass, a line for each of several measurements, by its name."""
    return [
        f"{name}: {', '.join(of_one)}"
        for name, summary in named
        if (of_one := [sentence.partition(":")[0] for sentence in gates_not_passed(summary)])
    ]


def write_above(figure: Figure, sentences: Sequence[str]) -> None:
    """Write what nobody may miss above a figure, a line each, such as gates that failed."""
    chars = int(figure.get_figwidth() * BOLD_CHARS_AN_INCH)  # of a wider line the file would be mostly white
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, chars)]
    words = "\n".join(sentences if is_for_page() else lines)
    figure.suptitle(words, y=1.02, va="bottom", fontsize=10, fontweight="bold", color="white", bbox=GATE_FAILED_BOX)


@dataclass(frozen=True)
class Drawn:
    """A figure that was drawn, with its whole caption as its label.

    Attributes:
        figure: the figure.
        name: name of its files.
        finding: what it shows, in a sentence with its main numbers, for those who do not see it.
        numbers: ending and text of a further file, with the numbers of the figure.
        page_inches: width of the frame of a panel on an HTML page.
    """

    figure: Figure
    name: str
    finding: str
    numbers: Optional[tuple[str, str]] = None
    page_inches: float = 2.5


def save(drawn: Drawn, out: Path) -> list[Path]:
    """Write ``NAME.png`` and ``NAME.pdf`` and close the figure. The whole caption goes into ``NAME.txt`` and into their metadata.

    Their title in the metadata is the finding.

    Returns:
        The paths of the pictures.

    Raises:
        UserError: a file that this tool did not write has one of the names.
    """
    figure, name = drawn.figure, drawn.name
    make_printable(figure)
    words, title = printable_lines(str(figure.get_label())), printable(drawn.finding)
    metadata: dict[str, dict[str, Any]] = {
        ".png": {"Description": words, "Title": title},
        ".pdf": {"CreationDate": None, "Subject": words, "Title": title},
    }
    texts = {out / f"{name}.txt": f"{words}\n"}
    if drawn.numbers is not None:
        texts[out / f"{name}{drawn.numbers[0]}"] = drawn.numbers[1]
    paths = [out / f"{name}{ending}" for ending in metadata]
    _check_own(paths, texts)
    make_folder(out)
    remove_leftovers(out)
    box = _laid_out(figure)
    pictures = {}
    for path in paths:
        picture = io.BytesIO()  # a disk that is full would leave an empty file without an error
        figure.savefig(
            picture,
            format=path.suffix[1:],
            bbox_inches=box,
            metadata=metadata[path.suffix],
        )
        pictures[path] = picture.getvalue()
    plt.close(figure)
    (out / f"{name}.txt").unlink(missing_ok=True)  # so that after a kill none lies beside a picture with other words
    for path, content in pictures.items():
        write_bytes(path, content)
    for path, text in texts.items():
        write_text(path, text)
    return paths


def make_printable(figure: Figure) -> None:
    """Make the texts of a figure safe to show: names may hold anything, and matplotlib's warnings repeat what it cannot draw."""
    for artist in _texts_in(figure):
        artist.set_text(printable_lines(artist.get_text()))


def _texts_in(artist: Artist) -> Iterator[Text]:
    """Yield the texts of a figure, but for labels of ticks, which are written anew at each draw."""
    for child in artist.get_children():
        if isinstance(child, Text):
            yield child
        elif isinstance(child, Axis):
            yield child.label
        else:
            yield from _texts_in(child)


def _check_own(pictures: Sequence[Path], texts: dict[Path, str]) -> None:
    """Check that the files which will be replaced are those of an earlier figure of the same name.

    Pictures have a caption in their metadata. A caption is that in the PNG beside it, so one that was edited is kept. Numbers
    have the heading of the new ones.

    Raises:
        UserError: another file has one of the names.
    """
    for path in pictures:
        check_replaceable(path, DRAWN[path.suffix].search, what="figure")
    for path, text in texts.items():
        if path.suffix == ".txt":
            known = {text.encode(), _caption_in(path.with_name(f"{path.stem}.png"))}
            check_replaceable(path, known.__contains__, what="caption of this figure")
        elif heading := HEADING.match(text):
            known_heading = re.compile(re.escape(heading[0].encode()))
            check_replaceable(path, known_heading.match, what="table of this figure")


def _caption_in(picture: Path) -> Optional[bytes]:
    """Return what ``name.txt`` holds beside a PNG; None: there is no picture with a caption."""
    content = picture.read_bytes() if picture.is_file() else b""
    drawn = DRAWN[".png"].search(content)
    if drawn is None:
        return None
    start, end = drawn.span("chunk")
    length = int.from_bytes(drawn["length"], "big") - (end - start)
    words = content[end : end + length].decode("utf-8" if drawn["kind"] == b"iTXt" else "latin-1", errors="replace")
    return f"{words}\n".encode()


def _laid_out(figure: Figure) -> Bbox:
    """Compute the layout of a figure for all its files, and return the box around what it draws, in inches.

    Matplotlib would compute the layout twice for every file, which takes longer than drawing it.
    """
    figure.set_dpi(plt.rcParams["savefig.dpi"])
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    figure.set_layout_engine(None)  # "none" leaves a placeholder, for which savefig draws everything once more
    return figure.get_tightbbox().padded(plt.rcParams["savefig.pad_inches"])
