"""JSON objects made from the records of statistics, with the keys that users of ``--json`` and of the report rely on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Optional

from olmo_sparsity.statistics.agreement import Agreement
from olmo_sparsity.statistics.breakdowns import ClassSummary
from olmo_sparsity.statistics.comparison import Comparison, ComparisonRow
from olmo_sparsity.statistics.curve_comparison import ComparedCurves, ModelCurve
from olmo_sparsity.statistics.detection import Detection, SelectorDetection, Suite
from olmo_sparsity.statistics.effective_sparsity import EffectiveSparsity
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.measurement import Lengths
from olmo_sparsity.statistics.model_setup import ModelSetup
from olmo_sparsity.statistics.screening import ScreeningLoss
from olmo_sparsity.statistics.seed_summary import SeedSummary
from olmo_sparsity.statistics.summary import SELECTION_QUANTITIES, WINDOW_QUANTITIES, SelectionSummary, Summary
from olmo_sparsity.wording.curves import model_labels
from olmo_sparsity.wording.setup import anchor_warning, overlap_words

Json = dict[str, Any]


def estimate_json(estimate: Optional[Estimate]) -> Optional[Json]:
    """``{mean, low, high, standard_error}``, or None."""
    return None if estimate is None else asdict(estimate)


def lengths_json(lengths: Lengths) -> Json:
    """The lengths, in the order of the manifest; without what the manifest does not record.

    ``train_len`` is null where no training row is known.
    """
    record = {
        "local_len": lengths.local_len,
        "full_len": lengths.full_len,
        "train_len": lengths.train_len,
        "max_position": lengths.max_position,
        "pose_method": lengths.pose_method,
        "num_chunks": lengths.num_chunks,
        "pose_contents": lengths.pose_contents,
        "min_preceding": lengths.min_preceding,
        "num_long_range": lengths.num_long_range,
    }
    return {key: value for key, value in record.items() if value is not None or key == "train_len"}


def setup_json(setup: ModelSetup) -> Json:
    """The model (null: that of a run), the definition of visible and the anchor, with the warning about the anchor."""
    return {
        "model": setup.model and asdict(setup.model),
        "visibility": setup.visibility,
        "anchor": setup.anchor and {"id": setup.anchor.token_id, "text": setup.anchor.text},
        "anchor_warning": anchor_warning(setup) or None,
    }


def selection_json(selection: SelectionSummary) -> Json:
    """An entry of ``selections``."""
    return {
        "selector": selection.selector,
        "context": selection.context,
        "k": selection.k,
        "sees_target": selection.info.sees_target,
        "num_evaluations": selection.info.num_evaluations,
        "mean_tokens": selection.mean_tokens,
        "all_visible_share": selection.all_visible_share,
        **{name: estimate_json(selection.estimate(name)) for name in SELECTION_QUANTITIES},
        "figure4": {
            "ols_slope": estimate_json(selection.figure4.ols_slope),
            "tls_slope": estimate_json(selection.figure4.tls_slope),
            "correlation": estimate_json(selection.figure4.correlation),
        },
    }


def effective_sparsity_json(entry: EffectiveSparsity) -> Json:
    """An entry of ``effective_sparsity``; it is of the real context."""
    return {
        "selector": entry.selector,
        "context": "real",
        "fraction": entry.fraction,
        "max_k": entry.max_k,
        "smallest_k": entry.smallest_k and asdict(entry.smallest_k),
    }


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
        **{name: estimate_json(summary.of_windows(name)) for name in WINDOW_QUANTITIES},
        **lengths_json(summary.lengths),
        "source": summary.source,
        "split": summary.split,
        "run": summary.run,
        "run_id": summary.run_id,
        **setup_json(summary.setup),
        "selections": [selection_json(selection) for selection in summary.selections],
        "effective_sparsity": [effective_sparsity_json(entry) for entry in summary.effective_sparsity],
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
        "local_len": str(lengths.local_len),
        "full_len": str(lengths.full_len),
        "k_unit": summary.unit,
        "visibility": setup.visibility,
        "anchor": "" if setup.anchor is None else setup.anchor.text,
        "anchor_warning": anchor_warning(setup),
        "gate": summary.gate,
        "beyond_gate": summary.beyond_gate,
    }


def class_json(entry: ClassSummary) -> Json:
    """An entry of ``classes``."""
    return {
        "target_class": entry.target_class,
        "window_share": estimate_json(entry.window_share),
        "contrast": entry.contrast and asdict(entry.contrast),
        **summary_json(entry.summary),
    }


def agreement_json(pair: Agreement) -> Json:
    """An entry of ``agreement``."""
    return {
        "selectors": list(pair.selectors),
        "context": pair.context,
        "overlap": [
            {"k": overlap.k, "chance": overlap.chance, **(estimate_json(overlap.share) or {})}
            for overlap in pair.overlap
        ],
        "rank_correlation": estimate_json(pair.rank_correlation),
        "num_windows_left_out": pair.num_windows_left_out,
    }


def screening_json(loss: ScreeningLoss) -> Json:
    """An entry of ``screening``."""
    return {
        "selector": loss.selector,
        "context": loss.context,
        "k": loss.k,
        "num_windows": loss.num_windows,
        "recall": estimate_json(loss.recall),
        "gain_lost_nats": estimate_json(loss.gain_lost_nats),
    }


def _selector_detection_json(entry: SelectorDetection) -> Json:
    return {
        "selector": entry.selector,
        "precision_at_truth": estimate_json(entry.precision_at_truth),
        "at_k": [
            {"k": at_k.k, "precision": estimate_json(at_k.precision), "recall": estimate_json(at_k.recall)}
            for at_k in entry.at_k
        ],
        "by_distance": [
            {
                "distance_above_tokens": third.distance_above_tokens,
                "distance_to_tokens": third.distance_to_tokens,
                "num_windows": third.num_windows,
                "precision_at_truth": estimate_json(third.precision_at_truth),
            }
            for third in entry.by_distance
        ],
    }


def _suite_json(suite: Suite) -> Json:
    return {
        "suite": suite.suite,
        "num_planted": suite.num_planted,
        "local_len": suite.local_len,
        "full_len": suite.full_len,
        "num_windows": suite.num_windows,
        "num_documents": suite.num_documents,
        "chance": suite.chance,
        "mean_planted_tokens": suite.mean_planted_tokens,
        "loss_short_nats": estimate_json(suite.loss_short_nats),
        "loss_long_nats": estimate_json(suite.loss_long_nats),
        "loss_planted_nats": estimate_json(suite.loss_planted_nats),
        "long_gain_nats": estimate_json(suite.long_gain_nats),
        "planted_gain_nats": estimate_json(suite.planted_gain_nats),
        "gate": suite.gate,
        "selectors": [_selector_detection_json(entry) for entry in suite.selectors],
    }


def detection_json(detection: Detection) -> Json:
    """What ``validate --json`` prints."""
    return {
        "run": detection.run,
        "run_id": detection.run_id,
        "source": detection.source,
        "split": detection.split,
        **setup_json(detection.setup),
        "suites": [_suite_json(suite) for suite in detection.suites],
    }


def comparison_row_json(row: ComparisonRow) -> Json:
    """An entry of ``rows`` of a comparison."""
    return {
        "words": row.words,
        "quantity": row.quantity,
        "selector": row.selector,
        "k": row.k,
        "values": [estimate_json(value) for value in row.values],
        "differences": [estimate_json(difference) for difference in row.differences],
    }


def comparison_json(comparison: Comparison) -> Json:
    """What ``compare --json`` prints."""
    return {
        "subjects": [
            {
                "label": subject.label,
                "tables": str(subject.tables),
                "selector": subject.selector,
                "warning": subject.warning,
                "summary": summary_json(subject.summary),
            }
            for subject in comparison.subjects
        ],
        "pairings": [{"paired": pairing.paired, "words": pairing.words} for pairing in comparison.pairings],
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
        "gain_beyond_nats": estimate_json(model.gain_beyond_nats),
        "gain_beyond_nats_of_seeds": [seed.gain_beyond_nats for seed in model.seeds],
        "share_of_ceiling": estimate_json(model.share_of_ceiling),
        "points": [
            {
                "num_visible_tokens": point.num_visible_tokens,
                "loss_nats": estimate_json(point.loss_nats),
                "change_nats": estimate_json(point.change_nats),
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
