"""A measurement as one self-contained HTML page.

Its charts are those of ``analysis``; its windows are rows of the tables. It runs no script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from olmo_sparsity import __version__
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.progress import stages
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.several.hypothesis import hypothesis_of
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.model_setup import subject_name
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.tables.reading import figures_folder, read_manifest, run_of_tables
from olmo_sparsity.text.target_classes import CLASSES
from olmo_sparsity.view import pages
from olmo_sparsity.view.figure_scripts import figure_script
from olmo_sparsity.view.hypothesis import thirds_table
from olmo_sparsity.view.one_window import SEES_TARGET
from olmo_sparsity.view.report_answer import answer
from olmo_sparsity.view.report_data import NUM_WINDOWS, SEED, Report, read_report, shown_tables, tokens_of
from olmo_sparsity.view.table_formats import in_tex
from olmo_sparsity.wording.captions import contrast_words
from olmo_sparsity.wording.gates import EITHER_WAY
from olmo_sparsity.wording.hypothesis import hypothesis_sentences, null_name
from olmo_sparsity.wording.numbers import fixed
from olmo_sparsity.wording.setup import NULL_WORDS, VISIBILITY_WORDS, anchor_words, overlap_words
from olmo_sparsity.wording.spectrum import spectrum_sentences
from olmo_sparsity.wording.tokens import token_words
from olmo_sparsity.wording.units import unit_definition, units_of

STYLES = ("report.css",)


def render(report: Report) -> str:
    """Return the page, with the figures that are drawn of the measurement."""
    measured = report.measured
    summary, found = measured.summary, hypothesis_of(measured.tables)
    figures, tables = figure_script("on_page").of_report(measured, report.selector), shown_tables(measured)
    if found is not None:
        figures |= figure_script("on_page").of_hypothesis(found)
        tables["hypothesis"] = thirds_table(found.main[0], null_name(found))
    return pages.render(
        "report.html",
        styles=STYLES,
        scripts=(),
        data=None,
        report=report,
        tokens_of=tokens_of,
        printable=printable,
        token_words=token_words,
        fixed=fixed,
        sees=SEES_TARGET,
        meaning=SELECTORS[report.selector].meaning.format(unit=units_of(summary, 1), units=units_of(summary)),
        class_words={
            name: CLASSES.get(name, "") for name in sorted(measured.measurement.windows["target_class"].unique())
        },
        figures=figures,
        tables=tables,
        summary=summary,
        answer=answer(summary, report.selector),
        hypothesis_words=[] if found is None else list(hypothesis_sentences(found)),
        spectrum_words=spectrum_sentences(measured.spectra, summary),
        contrasts=[words for words in map(contrast_words, measured.classes) if words],
        facts=_facts(measured),
        citation=_citation(summary),
        null_words=NULL_WORDS[summary.null_context],
        is_null_foreign=summary.null_context == "document",
        either_way=EITHER_WAY,
        units=units_of(summary),
        unit_definition=unit_definition(summary.unit, summary.setup.visibility),
        subject=subject_name(summary.run, summary.setup),
        definitions=list(VISIBILITY_WORDS.items()),
        anchor=anchor_words(summary.setup.anchor),
    )


def default_out(tables: Path, run: Optional[Path] = None) -> Path:
    """Return the default path of the page: beside the figures of the tables' run.

    Raises:
        UserError: there are no tables, or they are not in a run folder, and no run is given.
    """
    run = run or run_of_tables(tables)
    if run is None:
        read_manifest(tables)
        raise UserError(f"{tables}: these tables are not in a run folder; name the HTML file with --out FILE")
    return figures_folder(run, tables) / "report.html"


def write_report(
    tables: Path, out: Path, *, overwrite: bool = False, num_windows: int = NUM_WINDOWS, seed: int = SEED
) -> Path:
    """Write the page of a measurement.

    Args:
        tables: a finished influence folder.
        out: the HTML file.
        overwrite: replace a page that this tool wrote.
        num_windows: windows to show, at least 1; all, if there are no more.
        seed: of the random sample, if there are more.

    Returns:
        ``out``.

    Raises:
        UserError: the tables are not usable, or the file must not be replaced.
    """
    pages.check_free(out, overwrite)
    with stages("reading the tables", "drawing the charts") as begin_next:
        report = read_report(Measured.read(tables), num_windows=num_windows, seed=seed)
        begin_next()
        page = render(report)
    pages.write_page(out, page, overwrite=overwrite)
    return out


def _citation(summary: Summary) -> str:
    """Return what to cite, as BibTeX: this measurement, and the paper whose experiment it is."""
    subject = in_tex(subject_name(summary.run, summary.setup))
    return "\n".join(
        (
            "@software{olmo-sparsity,",
            "  title = {olmo-sparsity: how few of the earlier tokens does a language model need?},",
            "  author = {{olmo-sparsity contributors}},",
            f"  version = {{{__version__}}},",
            f"  note = {{Measurement {in_tex(summary.run_id)} of {subject}}},",
            "}",
            "@inproceedings{golowich2025sparsity,",
            "  title = {The Role of Sparsity for Length Generalization in {LLMs}},",
            "  author = {Golowich, Noah and Jelassi, Samy and Brandfonbrener, David and Kakade, Sham M. and Malach, Eran},",
            "  booktitle = {International Conference on Machine Learning},",
            "  year = {2025},",
            "  note = {arXiv:2502.16792},",
            "}",
        )
    )


def _facts(measured: Measured) -> list[tuple[str, str]]:
    """Return what was measured and by which version, as names and values for the end of the page.

    What the notes of the answer say (model, text, windows, lengths) is not said again.
    """
    summary, manifest = measured.summary, measured.measurement.manifest
    facts = [("run", summary.run)]
    if not overlap_words(summary):
        facts.append(("overlap with training", "not known"))
    if "num_parameters" in manifest and summary.setup.model is None:
        model = f"{manifest['num_parameters'] / 1e6:.3g}M parameters, {manifest['checkpoint']['step']:,} steps"
        facts.append(("model", model))
    if "influence" in manifest:
        facts.append(_seed_fact(manifest["influence"]))
    environment = manifest.get("environment", {})
    if environment.get("commit"):
        version = f"olmo-sparsity {environment['olmo_sparsity']}, commit {environment['commit'][:12]}"
        facts.append(("measured by", version))
    facts.append(("tables", summary.run_id))
    facts.append(("page made by", f"olmo-sparsity {__version__}"))
    return facts


def _seed_fact(settings: dict[str, Any]) -> tuple[str, str]:
    """Return the seed by which windows were drawn; of windows that were given, that of their null contexts."""
    name = "seed of the null contexts" if settings.get("sampling") == "given" else "seed of the windows"
    return name, str(settings.get("windows_seed", settings["seed"]))
