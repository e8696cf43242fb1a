"""Whether sparsity predicts length generalization: the gain from beyond the training row against how sparse the reaction is.

Targets are divided into thirds by the sparsity of one run's reaction, within cells of targets that are alike in other respects,
and the gain of another run is averaged over each third. Sparsity is measured without the label and the gain with it, by runs with
different seeds, so that no noise enters both. ``docs/hypothesis.md`` has the plan.

Letters of shapes: W windows; C contexts, real and null; T thirds, dense, middle, sparse; U bootstrap units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional

import numpy as np

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.records.measured import NullContext
from olmo_sparsity.records.selectors import SELECTORS, names_where
from olmo_sparsity.statistics.intervals.bootstrap import Units, document_units, estimates, of_some
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.seeds import VariancePart, bounded, with_seed_variance
from olmo_sparsity.statistics.several.reactions import Reactions, read_reactions
from olmo_sparsity.statistics.several.same_targets import definitions, source_of
from olmo_sparsity.statistics.several.trained_models import TrainedModel, is_pretrained, trained_models
from olmo_sparsity.statistics.single.measurement import CONTEXTS, SAME_WINDOWS, Lengths, unit_of
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.storage.folders import distinct_names, folder_name
from olmo_sparsity.storage.manifests import read_config_of
from olmo_sparsity.tables.reading import list_finished, read_manifest, run_of_tables

THIRDS = ("dense", "middle", "sparse")
# The most bins of what targets are matched on: equal shares of the targets, or equally wide parts of the distances.
MOST_BINS = {"reaction": 20, "distance": 4, "entropy": 5}
TARGETS_OF_CELL = 12  # on average at least; of few targets there are fewer bins, first of the last respect
RANGES = {"reaction": (0.0, math.inf), "sparsity": (-math.inf, 1.0)}  # of means over a third: divergences, and D
MIN_SEEDS = 3  # of a model whose seeds an interval includes: without one of two, sparsity and gain would be of one run
LEAST_OF_CELL = len(THIRDS)  # targets; a cell of fewer has no thirds

Matched = Literal["reaction", "distance", "entropy"]


@dataclass(frozen=True)
class Analysis:
    """One way to compare sparse and dense reactions.

    Attributes:
        name: in tables.
        selector: whose first token tells how sparse a reaction is; it does not see the target.
        matched: what the targets of a cell have in common; ``reaction``: the size of the ranked reaction.
    """

    name: str
    selector: str = "kl"
    matched: tuple[Matched, ...] = ("reaction", "distance", "entropy")


MAIN = Analysis("as planned")


class _Sum(NamedTuple):
    """Key of a sum over the targets of a third; ``weight``, ``gain``, ``reaction``, ``ceiling`` or ``sparsity``."""

    name: str
    context: str
    third: str


class _Number(NamedTuple):
    """Key of an estimate: a number of one third, or a contrast of thirds (third "")."""

    name: str
    context: str
    third: str = ""


@dataclass(frozen=True)
class ThirdOfTargets:
    """The targets whose reactions are dense, middling or sparse.

    Attributes:
        third: one of ``THIRDS``.
        sparsity: mean sparsity of their reactions.
        reaction_nats: mean size of the reactions of the runs whose gain it is; a calibrated model would gain about as much.
        gain_nats: mean gain from beyond the training row.
        null_gain_nats: the same of the thirds of the reactions to foreign text, with that text.
        ceiling_gain_nats: the ceiling's mean gain from the same tokens; None without a ceiling.
        share_of_ceiling: ``gain_nats`` over ``ceiling_gain_nats``; None where the ceiling's mean is not above 0, too.
    """

    third: str
    sparsity: Optional[Estimate]
    reaction_nats: Estimate
    gain_nats: Estimate
    null_gain_nats: Estimate
    ceiling_gain_nats: Optional[Estimate]
    share_of_ceiling: Optional[Estimate]


@dataclass(frozen=True)
class Contrasts:
    """Sparse minus dense.

    Attributes:
        gain_nats: of the gain.
        null_gain_nats: of the gain under foreign text.
        real_minus_null_nats: the first minus the second: the first planned number.
        ceiling_gain_nats: of the ceiling's gain; None without a ceiling.
        share_of_ceiling: of the share: the second planned number; None where one of the two thirds has none.
    """

    gain_nats: Estimate
    null_gain_nats: Estimate
    real_minus_null_nats: Estimate
    ceiling_gain_nats: Optional[Estimate]
    share_of_ceiling: Optional[Estimate]


@dataclass(frozen=True)
class SparsityAndGain:
    """The gain of one model by the sparsity of the reactions of one model, the same one or another.

    Attributes:
        analysis: how targets are compared.
        sparsity_from: name of the model whose reactions are sparse or dense.
        gain_of: name of the model whose gain it is.
        is_same_run: True where sparsity and a gain, that of the model or the ceiling's, are of one run, for want of another
            seed, so that its noise enters both.
        num_targets: targets in the comparison, under the real context.
        thirds: dense, middle, sparse.
        contrasts: sparse minus dense.
    """

    analysis: Analysis
    sparsity_from: str
    gain_of: str
    is_same_run: bool
    num_targets: int
    thirds: tuple[ThirdOfTargets, ...]
    contrasts: Contrasts


@dataclass(frozen=True)
class Model:
    """The runs of one configuration with their reactions.

    Attributes:
        label: its name.
        runs: by seed.
        reactions: of each run, to the same windows.
        lengths: of the measurement.
    """

    label: str
    runs: tuple[Path, ...]
    reactions: tuple[Reactions, ...]
    lengths: Lengths


@dataclass(frozen=True)
class Hypothesis:
    """What the runs say about the hypothesis.

    Attributes:
        setup: of the first model's measurement; who sees what, the anchor and the candidates are the same for all models.
        row_len, full_len: tokens of a training row, which are the local tokens here, and of the full context.
        num_windows, num_documents: that were measured.
        models: their labels and numbers of seeds, the ceiling last.
        pretrained: the labels of those that are pretrained models, whose row the user has stated; they have no seeds.
        ceiling: the ceiling's label; None: there is none.
        main: for each model but the ceiling, by the sparsity of its own reactions in other seeds, then by that of the ceiling's.
        null_context: what the null context is.
    """

    setup: ModelSetup
    row_len: int
    full_len: int
    num_windows: int
    num_documents: int
    models: dict[str, int]
    pretrained: tuple[str, ...]
    ceiling: Optional[str]
    main: tuple[SparsityAndGain, ...]
    null_context: NullContext


def thirds_of(
    reactions: Reactions,
    analysis: Analysis,
    *,
    context: int,
    distances: tuple[int, int],
) -> np.ndarray:
    """Return the third of each target, int64 [W]: 0 dense, 1 middle, 2 sparse; -1 where it is not compared.

    Targets are ranked by sparsity within their cell, and divided by weight.

    Args:
        reactions: of one run.
        analysis: which sparsity, and what the targets of a cell have in common.
        context: index of the context.
        distances: the smallest and the largest distance of a long-range token to the target.
    """
    choice = reactions.choices[analysis.selector]
    sparsity_W = choice.best_CW[context]
    weights_W = reactions.windows["weight"].to_numpy(np.float64)
    kept_w = np.flatnonzero(~np.isnan(sparsity_W))
    cell_w = np.zeros(len(kept_w), np.int64)
    room = len(kept_w) // TARGETS_OF_CELL  # cells
    for name in analysis.matched:
        bins = max(1, min(MOST_BINS[name], room))
        if name == "distance":
            first, last = distances
            bins = min(bins, last - first + 1)
            bin_w = (choice.distance_CW[context, kept_w] - first) * bins // (last - first + 1)
        else:
            values_W = reactions.reaction_CW[context] if name == "reaction" else reactions.entropy_W
            bin_w = _equal_parts(values_W[kept_w], weights_W[kept_w], parts=bins)
        cell_w, room = cell_w * bins + bin_w, room // bins
    thirds_W = np.full(len(sparsity_W), -1)
    order = np.lexsort((sparsity_W[kept_w], cell_w))  # stable: equal sparsities are ordered by the number of the window
    sorted_cells = cell_w[order]
    bounds = np.flatnonzero(np.r_[True, sorted_cells[1:] != sorted_cells[:-1], True])
    for begin, end in pairwise(bounds.tolist()):
        if end - begin >= LEAST_OF_CELL:
            of_cell = kept_w[order[begin:end]]
            thirds_W[of_cell] = _parts_in_order(weights_W[of_cell], parts=len(THIRDS))
    return thirds_W


def _parts_in_order(weights: np.ndarray, *, parts: int) -> np.ndarray:
    """Return the part of each of some weighted items in their order, int64; the parts have about equal weights."""
    middles = np.cumsum(weights) - weights / 2
    return np.minimum((middles / weights.sum() * parts).astype(np.int64), parts - 1)


def _equal_parts(values: np.ndarray, weights: np.ndarray, *, parts: int) -> np.ndarray:
    """Return the part of each value, int64, 0 for the lowest; the parts have about equal weights."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values), np.int64)
    found[order] = _parts_in_order(weights[order], parts=parts)
    return found


@dataclass(frozen=True)
class _Comparison:
    """One analysis of three models.

    Attributes:
        sparsity, gain, ceiling: the models.
        analysis: which sparsity.
        units: of the documents.
        third_ACW: the third of each target by each run A of ``sparsity``, int64 [A, C, W].
    """

    sparsity: Model
    gain: Model
    ceiling: Optional[Model]
    analysis: Analysis
    units: Units
    third_ACW: np.ndarray

    @property
    def models(self) -> list[Model]:
        """The models in it, each once."""
        models: list[Model] = []
        for model in (self.sparsity, self.gain, self.ceiling):
            if model is not None and not any(model is other for other in models):
                models.append(model)
        return models

    def sums(self, left_out: Optional[tuple[Model, int]] = None) -> dict[_Sum, np.ndarray]:
        """Return the sums of each unit over the ranking runs, float64 [U]; a gain is the mean over the other runs.

        Args:
            left_out: a model and the number of its seed that is left out, in every role.
        """
        sums: dict[_Sum, np.ndarray] = {}
        weights_W = self.sparsity.reactions[0].windows["weight"].to_numpy(np.float64)
        for a in _seeds(self.sparsity, left_out):
            others = _other_runs(self.gain, self.sparsity, a, left_out=left_out)
            gain_CW = np.mean([reactions.gain_CW for reactions in others], axis=0)
            reaction_CW = np.mean([reactions.reaction_CW for reactions in others], axis=0)
            ceiling_CW = None
            if self.ceiling is not None:
                others = _other_runs(self.ceiling, self.sparsity, a, left_out=left_out)
                ceiling_CW = np.mean([reactions.gain_CW for reactions in others], axis=0)
            sparsity_CW = self.sparsity.reactions[a].choices[self.analysis.selector].best_CW
            for (c, context), (t, third) in product(enumerate(CONTEXTS), enumerate(THIRDS)):
                of_third_W = np.where(self.third_ACW[a, c] == t, weights_W, 0.0)
                values = {"weight": np.float64(1), "gain": gain_CW[c], "reaction": reaction_CW[c]}
                values["sparsity"] = np.nan_to_num(sparsity_CW[c])
                if ceiling_CW is not None:
                    values["ceiling"] = ceiling_CW[c]
                for name, values_W in values.items():
                    key = _Sum(name, context, third)
                    sums[key] = sums.get(key, 0.0) + self.units.sums(of_third_W * values_W)
        return sums

    @property
    def is_same_run(self) -> bool:
        """True if the only run of a model gives both sparsity and a gain, its own or the ceiling's."""
        return len(self.sparsity.runs) == 1 and any(model is self.sparsity for model in (self.gain, self.ceiling))

    def numbers(self) -> dict[_Number, Optional[Estimate]]:
        """Return all numbers, with intervals over documents and, of models with ``MIN_SEEDS``, over seeds.

        A number has no interval where the targets of one of its thirds are of fewer documents than intervals need.
        """
        sums = self.sums()
        over_documents = estimates(sums, _numbers)
        parts = []
        for model in self.models:
            num_seeds = len(model.runs)
            if num_seeds < MIN_SEEDS:
                continue
            without = [self.sums((model, seed)) for seed in range(num_seeds)]
            values_SQ = [[float(value) for value in _numbers(_totals(sums_of)).values()] for sums_of in without]
            parts.append(VariancePart((num_seeds - 1) * np.var(values_SQ, axis=0), num_seeds - 1))
        numbers = with_seed_variance(over_documents, parts, num_units=self.units.num_units)
        for number, estimate in numbers.items():
            if estimate is not None and number.third and number.name in RANGES:
                numbers[number] = bounded(estimate, least=RANGES[number.name][0], most=RANGES[number.name][1])

        def fewest_U(of: _Number) -> np.ndarray:
            contexts, thirds = of.context.split(" minus "), (of.third,) if of.third else (THIRDS[0], THIRDS[-1])
            return min((sums[_Sum("weight", *key)] for key in product(contexts, thirds)), key=np.count_nonzero)

        return {key: of_some(number, fewest_U(key)) for key, number in numbers.items()}


def _seeds(model: Model, left_out: Optional[tuple[Model, int]]) -> list[int]:
    gone = left_out[1] if left_out is not None and left_out[0] is model else None
    return [seed for seed in range(len(model.runs)) if seed != gone]


def _other_runs(
    model: Model, sparsity: Model, a: int, *, left_out: Optional[tuple[Model, int]] = None
) -> list[Reactions]:
    """Return a model's runs other than the run ``a`` of the sparsity; that run where there is no other."""
    seeds = _seeds(model, left_out)
    others = [seed for seed in seeds if model is not sparsity or seed != a] or seeds
    return [model.reactions[seed] for seed in others]


def _totals(sums: Mapping[_Sum, np.ndarray]) -> dict[_Sum, np.ndarray]:
    return {key: np.asarray(sum_U.sum()) for key, sum_U in sums.items()}


def _numbers(totals: Mapping[_Sum, np.ndarray]) -> dict[_Number, np.ndarray]:
    """Return means of the thirds, and sparse minus dense."""
    values: dict[_Number, np.ndarray] = {}
    names = [
        name for name in ("gain", "reaction", "ceiling", "sparsity") if _Sum(name, CONTEXTS[0], THIRDS[0]) in totals
    ]
    for context, name in product(CONTEXTS, names):
        for third in THIRDS:
            values[_Number(name, context, third)] = (
                totals[_Sum(name, context, third)] / totals[_Sum("weight", context, third)]
            )
    if "ceiling" in names:
        for third in THIRDS:
            values[_Number("share", "real", third)] = (
                values[_Number("gain", "real", third)] / values[_Number("ceiling", "real", third)]
            )
    for number in [number for number in values if number.third == THIRDS[-1]]:
        name, context, _ = number
        values[_Number(name, context)] = values[number] - values[_Number(name, context, THIRDS[0])]
    values[_Number("gain", "real minus null")] = values[_Number("gain", "real")] - values[_Number("gain", "null")]
    return values


def sparsity_and_gain(
    sparsity: Model, gain: Model, ceiling: Optional[Model], analysis: Analysis = MAIN
) -> SparsityAndGain:
    """Return the gain of one model by the sparsity of the reactions of one model, the same one or another.

    Args:
        sparsity: whose reactions are ranked. Each of its seeds ranks once; the numbers are means over them.
        gain: whose gain is averaged: over its seeds, without the one that ranks.
        ceiling: whose gain from the same tokens stands beside, likewise; None: none.
        analysis: how targets are compared.
    """
    units = document_units(sparsity.reactions[0].windows["doc_id"])
    lengths = sparsity.lengths
    distances = (lengths.local_len + 1, lengths.full_len)

    third_ACW = np.stack(
        [
            [thirds_of(reactions, analysis, context=c, distances=distances) for c in range(len(CONTEXTS))]
            for reactions in sparsity.reactions
        ]
    )
    compared = _Comparison(sparsity, gain, ceiling, analysis, units, third_ACW)
    numbers = compared.numbers()

    def defined(name: str, context: str, third: str = "") -> Estimate:
        estimate = numbers[_Number(name, context, third)]
        if estimate is None:
            raise UserError("too few targets to compare dense and sparse reactions; measure more with --num-windows")
        return estimate

    def share(third: str) -> Optional[Estimate]:
        of_ceiling = numbers.get(_Number("ceiling", "real", third))
        has_gain = of_ceiling is not None and of_ceiling.mean > 0  # of a loss, a share of the gain is none
        return numbers.get(_Number("share", "real", third)) if has_gain else None

    has_shares = all(share(third) is not None for third in (THIRDS[0], THIRDS[-1]))
    return SparsityAndGain(
        analysis=analysis,
        sparsity_from=sparsity.label,
        gain_of=gain.label,
        is_same_run=compared.is_same_run,
        num_targets=int((third_ACW[0, 0] >= 0).sum()),
        thirds=tuple(
            ThirdOfTargets(
                third,
                numbers.get(_Number("sparsity", "real", third)),
                defined("reaction", "real", third),
                defined("gain", "real", third),
                defined("gain", "null", third),
                numbers.get(_Number("ceiling", "real", third)),
                share(third),
            )
            for third in THIRDS
        ),
        contrasts=Contrasts(
            defined("gain", "real"),
            defined("gain", "null"),
            defined("gain", "real minus null"),
            numbers.get(_Number("ceiling", "real")),
            numbers.get(_Number("share", "real")) if has_shares else None,
        ),
    )


def hypothesis_of(tables: Path) -> Optional[Hypothesis]:
    """Return the comparison within one measurement; None without reactions, or too few, to what lies beyond a training row.

    Args:
        tables: a finished influence folder, in a run folder.
    """
    run = run_of_tables(tables)
    if run is None or not (run / "manifest.json").is_file():
        return None
    context = read_manifest(tables)["context"]
    row_len = context.get("train_len") if is_pretrained(run) else read_config_of(run).context.row_len
    if row_len is None or row_len >= context["full_len"] or not _has_reactions(tables, run, row_len, MAIN.selector):
        return None
    try:
        found = read_hypothesis([run], folders={run: tables})
    except UserError:  # too few targets: the report has all the rest
        return None
    return replace(found, row_len=row_len)  # that of this measurement; a newer one of the model may state another


def read_hypothesis(
    runs: Sequence[Path],
    *,
    selector: str = "kl",
    folders: Optional[Mapping[Path, Path]] = None,
) -> Hypothesis:
    """Read the reactions of runs, and compare gain and sparsity.

    Runs of a configuration with several seeds are one model; one model may be a ceiling, whose rows are as long as the full
    context.

    Args:
        runs: trained runs, or pretrained models whose row is stated, each measured by ``olmo-sparsity influence`` with as many
            local tokens as a training row has.
        selector: whose first token tells how sparse a reaction is.
        folders: the influence folder of each run; by default the newest that has the reactions.

    Raises:
        UserError: there is no such measurement, the windows differ, or there is no model that is no ceiling.
    """
    grouped = trained_models(runs)
    row_len, ceiling_run = _row_len(grouped)
    _check_is_blind(selector)
    if folders is None:
        folders = {run: _tables_of(run, row_len=row_len, selector=selector) for model in grouped for run in model.runs}
    _check_is_blind(selector)  # what one of one's own sees is known from its tables
    _check_measured_alike(grouped, folders, selector=selector)
    names = _names(grouped)
    models = [
        Model(
            name,
            model.runs,
            tuple(read_reactions(folders[run], [selector]) for run in model.runs),
            Lengths.from_manifest(read_manifest(folders[model.runs[0]])),
        )
        for name, model in zip(names, grouped, strict=True)
    ]
    ceiling = next((model for model in models if model.runs[0] == ceiling_run), None)
    others = [model for model in models if model is not ceiling]
    main = Analysis(MAIN.name, selector)

    def compared(model: Model) -> list[SparsityAndGain]:
        of_own = sparsity_and_gain(model, model, ceiling, main)
        return [of_own] if ceiling is None else [of_own, sparsity_and_gain(ceiling, model, ceiling, main)]

    windows = others[0].reactions[0].windows
    manifest = read_manifest(folders[others[0].runs[0]])
    return Hypothesis(
        setup=ModelSetup.from_manifest(manifest),
        row_len=row_len,
        full_len=others[0].lengths.full_len,
        num_windows=len(windows),
        num_documents=int(windows["doc_id"].nunique()),
        models={model.label: len(model.runs) for model in [*others, *([] if ceiling is None else [ceiling])]},
        pretrained=tuple(model.label for model in models if is_pretrained(model.runs[0])),
        ceiling=None if ceiling is None else ceiling.label,
        main=tuple(entry for model in others for entry in compared(model)),
        null_context=manifest["influence"].get("null_context", "document"),
    )


def _check_is_blind(name: str) -> None:
    """Check that a selector, if it is known yet, does not see the target.

    Raises:
        UserError: it does.
    """
    if name in SELECTORS and SELECTORS[name].sees_target:
        blind = ", ".join(names_where(lambda entry: not entry.sees_target))
        raise UserError(f"hypothesis: --selector {name} sees the target; choose one of {blind}")


def _names(models: Sequence[TrainedModel]) -> list[str]:
    """Return distinct names: of the configurations, or of the first runs where two have the same, or the paths of these.

    A pretrained model has that of the folder of its results.
    """
    firsts = [model.runs[0] for model in models]
    of_configs = [folder_name(run) if is_pretrained(run) else read_config_of(run).name for run in firsts]
    return of_configs if len(set(of_configs)) == len(of_configs) else distinct_names(firsts)


def _selectors(folder: Path) -> list[str]:
    """Return the selectors that a folder has."""
    selectors: list[str] = read_manifest(folder)["influence"]["selectors"]
    return selectors


def _check_measured_alike(models: Sequence[TrainedModel], folders: Mapping[Path, Path], *, selector: str) -> None:
    """Check that all folders are of the same windows, foreign text and definitions, and those of one model of one training step.

    Raises:
        UserError: they are not.
    """
    manifests = {run: read_manifest(folder) for run, folder in folders.items()}

    def check(what: str, values: Mapping[Path, object]) -> None:
        (first, of_first), *others = values.items()
        for run, value in others:
            if value != of_first:
                raise UserError(
                    f"{first} was measured with {what} {of_first}, {run} with {value}; measure both with the same options of "
                    "`olmo-sparsity influence`"
                )

    def text_of(manifest: dict[str, Any]) -> list[Any]:
        foreign = [manifest["influence"].get(key) for key in ("seed", "null_context")]
        return [*(manifest[key] for key in SAME_WINDOWS), *foreign]

    first, *others = manifests
    for run in others:
        if text_of(manifests[run]) != text_of(manifests[first]):
            raise UserError(
                f"{first} and {run} were measured on different windows or foreign text; measure both with the same options of "
                "`olmo-sparsity influence`"
            )
    setups = {run: ModelSetup.from_manifest(manifest) for run, manifest in manifests.items()}
    for what in definitions(setups[first], selector):
        check(what, {run: definitions(setup, selector)[what] for run, setup in setups.items()})
    check(f"the source of {selector} with hash", {run: source_of(one, selector) for run, one in manifests.items()})
    for model in models:
        check("training step", {run: manifests[run].get("checkpoint", {}).get("step") for run in model.runs})


def _row_len(models: Sequence[TrainedModel]) -> tuple[int, Optional[Path]]:
    """Return the length of the training rows of the models that are no ceiling, and the first run of the ceiling.

    Raises:
        UserError: no row of a pretrained model is stated, the rows differ, every model is a ceiling, or there are two ceilings.
    """
    stated = [_stated_row_len(model.runs[0]) for model in models if is_pretrained(model.runs[0])]
    contexts = {
        model.runs[0]: read_config_of(model.runs[0]).context for model in models if not is_pretrained(model.runs[0])
    }
    ceilings = [run for run, context in contexts.items() if context.row_len >= context.full_len]
    row_lens = sorted({*stated, *(context.row_len for run, context in contexts.items() if run not in ceilings)})
    if not row_lens:
        raise UserError(
            "every run here is a ceiling, whose rows are as long as the full context; name one with shorter rows"
        )
    if len(row_lens) > 1:
        raise UserError(
            f"these runs were trained on rows of {' and '.join(map(str, row_lens))} tokens; name runs of one length"
        )
    if len(ceilings) > 1:
        raise UserError(f"{' and '.join(map(str, ceilings))} are ceilings of different configurations; name one")
    return row_lens[0], ceilings[0] if ceilings else None


def _stated_row_len(run: Path) -> int:
    """Return the training row that the newest measurement of a pretrained model states.

    Raises:
        UserError: none does.
    """
    for folder in reversed(list_finished(run)):
        row_len: Optional[int] = read_manifest(folder)["context"].get("train_len")
        if row_len is not None:
            return row_len
    raise UserError(
        f"{run}: no training row of this model is known, so nothing is known to lie beyond it; state the one that its authors "
        f"name, and measure it: olmo-sparsity influence --run {run} --local-len N pretrained.train_len=N"
    )


def _has_reactions(folder: Path, run: Path, row_len: int, selector: str) -> bool:
    """Return whether a measurement has the reactions to single tokens beyond a row, chosen by a selector."""
    manifest = read_manifest(folder)
    context = manifest["context"]
    is_of_row = context["local_len"] == row_len and unit_of(manifest) == "token"
    if is_pretrained(run):
        is_of_row = is_of_row and context.get("train_len") == row_len
    return is_of_row and selector in _selectors(folder) and 1 in manifest["influence"]["k"]


def _tables_of(run: Path, *, row_len: int, selector: str) -> Path:
    """Return the newest influence folder of a run with as many local tokens as a training row, and this selector.

    Of a pretrained model it must state the row.

    Raises:
        UserError: there is none.
    """
    for folder in reversed(list_finished(run)):
        if _has_reactions(folder, run, row_len, selector):
            return folder
    stated = f" pretrained.train_len={row_len}" if is_pretrained(run) else ""
    if selector not in SELECTORS:
        selector = f"FILE.py:{printable(selector)}"  # nothing here was measured with it
    raise UserError(
        f"{run}: no measurement with as many local tokens as a training row has; run `olmo-sparsity influence --run {run} "
        f"--local-len {row_len} --selector {selector} --selector random --k 1,2,4{stated}` first"
    )
