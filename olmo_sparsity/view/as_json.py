"""JSON objects made from the records of statistics, with the keys that users of ``--json`` and of the report rely on."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from olmo_sparsity.statistics.several.comparison import Comparison, ComparisonRow
from olmo_sparsity.statistics.several.curve_comparison import ComparedCurves, ModelCurve
from olmo_sparsity.statistics.several.seed_summary import SeedSummary
from olmo_sparsity.statistics.single.breakdowns import ClassSummary
from olmo_sparsity.statistics.single.measurement import Lengths
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.spectrum import REACHED, Spectra, Spectrum
from olmo_sparsity.statistics.single.summary import WINDOW_QUANTITIES, SelectionSummary, Summary
from olmo_sparsity.tables.schemas import SCHEMA_VERSION
from olmo_sparsity.wording.comparison import compared_words, optimism_warning, pairings_words
from olmo_sparsity.wording.curves import model_labels
from olmo_sparsity.wording.setup import anchor_warning, overlap_words

Json = dict[str, Any]


def record_json(record: Any, *, without: tuple[str, ...] = (), spread: tuple[str, ...] = ()) -> Json:
    """Return the fields of a record by name, and of those in it likewise.

    Args:
        record: a frozen dataclass.
        without: fields that are left out.
        spread: fields whose own fields take their place; of None, none do.
    """
    found: Json = {}
    for name, value in ((field.name, getattr(record, field.name)) for field in fields(record)):
        if name in spread:
            found |= {} if value is None else record_json(value)
        elif name not in without:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return record_json(value)
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def lengths_json(lengths: Lengths) -> Json:
    """The lengths, in the order of the manifest; without what the manifest does not record.

    ``train_len`` is null where no training row is known.
    """
    record = {**record_json(lengths, without=("num_long_range",)), "num_long_range": lengths.num_long_range}
    return {key: value for key, value in record.items() if value is not None or key == "train_len"}


def setup_json(setup: ModelSetup) -> Json:
    """The model (null: that of a run), the definition of visible, precision, and the anchor with its warning."""
    return {
        "model": _plain(setup.model),
        "visibility": setup.visibility,
        "precision": setup.precision,
        "anchor": setup.anchor and {"id": setup.anchor.id, "text": setup.anchor.text},
        "anchor_warning": anchor_warning(setup) or None,
    }


def selection_json(selection: SelectionSummary) -> Json:
    """An entry of ``selections``."""
    return record_json(selection, spread=("info",))


def summary_json(summary: Summary) -> Json:
    """A summary, as a part of ``summary --json``, of ``compare --json`` and of the report."""
    return {
        "gate": summary.gate,
        "beyond_gate": summary.beyond_gate,
        "is_fragile": summary.is_fragile,
        "estimand": summary.estimand,
        "null_context": summary.null_context,
        "unit": summary.unit,
        "num_windows": summary.num_windows,
        "num_documents": summary.num_documents,
        "overlap_percent": summary.overlap_percent,
        "overlap_words": overlap_words(summary),
        **{name: _plain(summary.of_windows(name)) for name in WINDOW_QUANTITIES},
        "tables_version": SCHEMA_VERSION,
        **lengths_json(summary.lengths),
        "source": summary.source,
        "split": summary.split,
        "run": summary.run,
        "run_id": summary.run_id,
        **setup_json(summary.setup),
        "selections": [selection_json(selection) for selection in summary.selections],
    }


def definition_columns(summary: Summary) -> dict[str, str]:
    """What the numbers are of, and both gates, as columns of a CSV. What is missing is empty.

    The names are the keys of ``summary_json``, but for ``k_unit``: a CSV has the unit of a number under ``unit``.
    """
    setup, lengths = summary.setup, summary.lengths
    return {
        "run": summary.run,
        "model": "" if setup.model is None else setup.model.name,
        "revision": (setup.model and setup.model.revision) or "",
        "rope_scaling": (setup.model and setup.model.rope_scaling) or "",
        "local_len": str(lengths.local_len),
        "full_len": str(lengths.full_len),
        "train_len": str(lengths.train_len or ""),
        "train_len_is_stated": "true" if lengths.train_len_is_stated else "",
        "null_context": summary.null_context,
        "k_unit": summary.unit,
        "visibility": setup.visibility,
        "precision": setup.precision or "",
        "anchor": "" if setup.anchor is None else setup.anchor.text,
        "anchor_warning": anchor_warning(setup),
        "gate": summary.gate,
        "beyond_gate": summary.beyond_gate,
    }


def spectra_json(spectra: Spectra) -> Json:
    """The dependency spectra, an entry of ``curves`` for each; where intervals are there, a null k is more than ``max_k``."""
    return {
        "row_k": spectra.row_k,
        "max_k": spectra.max_k,
        "is_rounded": spectra.is_rounded,
        "curves": [_curve_json(spectrum) for spectrum in spectra.by_curve.values()],
        "beyond_row": [
            {"context": context, "tolerance_nats": tolerance, "share": _plain(share)}
            for context, tolerance in {(curve.context, curve.tolerance_nats): None for curve in spectra.by_curve}
            if (share := spectra.beyond_row(context, tolerance=tolerance)) is not None
        ],
    }


def _curve_json(spectrum: Spectrum) -> Json:
    return {
        **spectrum.curve._asdict(),
        "ks": list(spectrum.ks),
        "shares": _plain(spectrum.shares),
        "reaching": [{"share": share, **record_json(spectrum.reaching(share))} for share in REACHED],
    }


def class_json(entry: ClassSummary) -> Json:
    """An entry of ``classes``."""
    return {**record_json(entry, without=("summary",)), **summary_json(entry.summary)}


def comparison_row_json(row: ComparisonRow) -> Json:
    """An entry of ``rows`` of a comparison."""
    return record_json(row, without=("is_main", "includes_optimism")) | {"words": compared_words(row)}


def comparison_json(comparison: Comparison) -> Json:
    """What ``compare --json`` prints."""
    return {
        "subjects": [
            {
                **record_json(subject, without=("summary",)),
                "tables": str(subject.tables),
                "warning": optimism_warning(subject),
                "summary": summary_json(subject.summary),
            }
            for subject in comparison.subjects
        ],
        "pairings": [
            {"paired": pairing.paired, "words": words}
            for pairing, words in zip(comparison.pairings, pairings_words(comparison), strict=True)
        ],
        "rows": [comparison_row_json(row) for row in comparison.rows],
    }


def _model_curve_json(model: ModelCurve, label: str) -> Json:
    return {
        "label": label,
        "runs": [seed.run for seed in model.seeds],
        "seeds": [seed.seed for seed in model.seeds],
        **setup_json(model.curve.setup),
        **lengths_json(model.curve.lengths),
        "is_ceiling": model.is_ceiling,
        "gain_beyond_nats": _plain(model.gain_beyond_nats),
        "gain_beyond_nats_of_seeds": [seed.gain_beyond_nats for seed in model.seeds],
        "share_of_ceiling": _plain(model.share_of_ceiling),
        "points": [
            {
                "num_visible_tokens": point.num_visible_tokens,
                "loss_nats": _plain(point.loss_nats),
                "change_nats": _plain(point.change_nats),
                "loss_nats_of_seeds": [seed.losses_nats[i] for seed in model.seeds],
            }
            for i, point in enumerate(model.curve.points)
        ],
    }


def compared_curves_json(compared: ComparedCurves) -> Json:
    """What the figure of context curves writes beside its pictures."""
    first = compared.models[0].curve
    return {
        "reference_len": compared.reference_len,
        "row_len": compared.row_len,
        "full_len": compared.full_len,
        "num_windows": first.num_windows,
        "num_documents": first.num_documents,
        "source": first.source,
        "split": first.split,
        "shares_are_fragile": compared.shares_are_fragile,
        "models": [
            _model_curve_json(model, label)
            for model, label in zip(compared.models, model_labels(compared), strict=True)
        ],
    }


def seed_summary_json(numbers: SeedSummary) -> Json:
    """What ``summary --json`` prints of several seeds."""
    return {
        "runs": [str(run) for run in numbers.model.runs],
        "seeds": list(numbers.model.seeds),
        "tables": [str(tables) for tables in numbers.tables],
        "mean": summary_json(numbers.mean),
        "of_seeds": [summary_json(summary) for summary in numbers.of_seeds],
    }
