"""Does sparsity predict length generalization? The gain from beyond the training row against how sparse the reaction is.

A *reaction* is how far the tokens beyond the training row move the prediction, KL(p_all, p_{}); it is *sparse* where one token
alone reproduces much of it. Targets are divided into thirds by the sparsity of one run's reaction, within cells of targets that
are alike otherwise, and the gain of another run is averaged over each third. Sparsity is measured without the label and the gain
with it, by runs with different seeds, so no noise enters both. ``docs/reproduce.md`` has the plan.

Letters of shapes: W windows; A runs whose reactions are ranked; C contexts, real and null; T thirds; U units of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from olmo_sparsity.config import MIN_DOCUMENTS, read_config_of
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import folder_name
from olmo_sparsity.selectors import SELECTORS
from olmo_sparsity.statistics.frames import CONTEXTS
from olmo_sparsity.statistics.intervals import Sums, bootstrap, document_units, with_seeds
from olmo_sparsity.statistics.quantities import COLUMNS
from olmo_sparsity.statistics.seeds import SAME_WINDOWS, TrainedModel, is_pretrained, trained_models
from olmo_sparsity.tables import lengths_of, list_finished, read_manifest, read_parts, read_table

THIRDS = ("dense", "middle", "sparse")
CONTRAST = "sparse - dense"
# The most bins of what targets of a cell have in common: equal shares of the targets, or equally wide parts of the distances.
MOST_BINS = {"reaction": 20, "distance": 4, "entropy": 5}
TARGETS_OF_CELL = 12  # on average at least; of few targets there are fewer bins, first of the last respect
LEAST_REACTION_NATS = 1e-6  # below it rounding decides what share of a reaction a token reproduces
MIN_SEEDS = 3  # of a model whose seeds an interval includes: without one of two, sparsity and gain would be of one run
GROUPS = {"dense": [0], "middle": [1], "sparse": [2], CONTRAST: [0, 2]}
WINDOW_COLUMNS = [
    *("window_id", "doc_id", "weight", "loss_short_no_gap_nats", "loss_long_nats", "null_loss_long_nats"),
    *("kl_short_nats", "null_kl_short_nats", "entropy_short_nats"),
]


class OfThird(NamedTuple):
    """A number of a third of the targets."""

    label: str
    value: Callable[[Mapping[str, np.ndarray]], np.ndarray]  # of means over the targets, [C, T, ...] -> [T, ...]
    digits: int = 4
    contexts: tuple[int, ...] = (0,)
    least: float = -np.inf
    most: float = np.inf


NUMBERS = {
    "third_sparsity": OfThird("sparsity, D(1)", lambda of: of["sparsity"][0], digits=2, most=1.0),
    "third_reaction_nats": OfThird("reaction", lambda of: of["reaction"][0], least=0.0),
    "third_gain_nats": OfThird("gain", lambda of: of["gain"][0]),
    "third_null_gain_nats": OfThird("gain, null context", lambda of: of["gain"][1], contexts=(1,)),
    "real_minus_null_nats": OfThird("gain minus that", lambda of: of["gain"][0] - of["gain"][1], contexts=(0, 1)),
    "third_ceiling_gain_nats": OfThird("gain of the ceiling", lambda of: of["ceiling"][0]),
    "third_share_of_ceiling": OfThird("share of its gain", lambda of: of["gain"][0] / of["ceiling"][0], digits=2),
}


@dataclass(frozen=True)
class Reactions:
    """One run's reactions to the tokens beyond the training row, and its gains from them."""

    doc_ids: pd.Series  # of each window, by rising window_id
    weight_W: np.ndarray
    reaction_CW: np.ndarray  # KL(p_all, p_{}), nats
    gain_CW: np.ndarray  # loss with the local tokens alone, directly behind the anchor, minus loss with all, nats
    entropy_W: np.ndarray  # of p_{}, nats
    sparsity_CW: np.ndarray  # D of the first token that the selector chooses; NaN where there is hardly a reaction
    distance_CW: np.ndarray  # of this token to the target, in tokens


@dataclass(frozen=True, eq=False)
class Model:
    """The runs of one configuration with their reactions to the same windows."""

    label: str
    reactions: tuple[Reactions, ...]  # by seed
    distances: tuple[int, int]  # the smallest and the largest of a long-range token to the target


def read_reactions(tables: Path, selector: str) -> Reactions:
    """Read the reactions of one run from a measurement; the selector was measured at k = 1."""
    windows = read_table(tables, "windows", columns=WINDOW_COLUMNS).to_pandas().set_index("window_id").sort_index()
    is_wanted = (pc.field("selector") == selector) & pc.field("context").isin(CONTEXTS)
    columns = ["window_id", "selector", "context", "kl_sparse_nats", "distance_tokens"]
    rows = pa.concat_tables(part.filter(is_wanted) for part in read_parts(tables, "selections", columns=columns))
    chosen = rows.select(["window_id", "context"]).to_pandas()
    for name in columns[3:]:
        chosen[name] = pc.list_element(rows[name], 0).to_numpy()
    of_window = chosen.pivot(index="window_id", columns="context").reindex(windows.index)
    if of_window.isna().any(axis=None):
        raise UserError(f"{tables}: some windows lack selections; measure again with --overwrite")
    reaction_CW = windows[["kl_short_nats", "null_kl_short_nats"]].to_numpy(np.float64).T
    long_CW = windows[["loss_long_nats", "null_loss_long_nats"]].to_numpy(np.float64).T
    kl_CW, distance_CW = (of_window[name][list(CONTEXTS)].to_numpy(np.float64).T for name in columns[3:])
    return Reactions(
        doc_ids=windows["doc_id"].reset_index(drop=True),
        weight_W=windows["weight"].to_numpy(np.float64),
        reaction_CW=reaction_CW,
        gain_CW=windows["loss_short_no_gap_nats"].to_numpy(np.float64) - long_CW,
        entropy_W=windows["entropy_short_nats"].to_numpy(np.float64),
        sparsity_CW=1 - kl_CW / np.where(reaction_CW >= LEAST_REACTION_NATS, reaction_CW, np.nan),
        distance_CW=distance_CW.astype(np.int64),
    )


def thirds_of(reactions: Reactions, context: int, *, distances: tuple[int, int]) -> np.ndarray:
    """The third of each target, int64 [W]: 0 dense, 1 middle, 2 sparse; -1 where it is not compared.

    Targets are ranked by sparsity within their cell, and divided by weight. A cell of fewer than three has no thirds.
    """
    sparsity_W, weight_W = reactions.sparsity_CW[context], reactions.weight_W
    kept_w = np.flatnonzero(~np.isnan(sparsity_W))
    cell_w, room = np.zeros(len(kept_w), np.int64), len(kept_w) // TARGETS_OF_CELL  # room for so many cells
    for name, most in MOST_BINS.items():
        bins = max(1, min(most, room))
        if name == "distance":
            first, last = distances
            bins = min(bins, last - first + 1)
            bin_w = (reactions.distance_CW[context, kept_w] - first) * bins // (last - first + 1)
        else:
            values_W = reactions.reaction_CW[context] if name == "reaction" else reactions.entropy_W
            order = np.argsort(values_W[kept_w], kind="stable")
            bin_w = np.empty(len(kept_w), np.int64)
            bin_w[order] = _equal_parts(weight_W[kept_w][order], bins)
        cell_w, room = cell_w * bins + bin_w, room // bins
    third_W = np.full(len(sparsity_W), -1)
    order = np.lexsort((sparsity_W[kept_w], cell_w))  # stable: equal sparsities keep the order of the windows
    bounds = np.flatnonzero(np.diff(cell_w[order], prepend=-1, append=-1))
    for begin, end in pairwise(bounds.tolist()):
        if end - begin >= len(THIRDS):
            of_cell = kept_w[order[begin:end]]
            third_W[of_cell] = _equal_parts(weight_W[of_cell], len(THIRDS))
    return third_W


def _equal_parts(weights: np.ndarray, parts: int) -> np.ndarray:
    """Return the part of each of some weighted items in their order, int64; the parts have about equal weights."""
    middles = np.cumsum(weights) - weights / 2
    return np.minimum((middles / weights.sum() * parts).astype(np.int64), parts - 1)


def gain_by_sparsity(sparsity: Model, gain: Model, ceiling: Optional[Model], *, selector: str = "kl") -> pd.DataFrame:
    """The gain of one model in thirds of the targets by the sparsity of the reactions of one model, the same or another.

    Each seed of ``sparsity`` ranks once, and numbers are means over these rankings. Gains, also of the ceiling, are means over
    the seeds that do not rank. Intervals include the seeds of models with ``MIN_SEEDS``: each is left out in every role.

    Returns:
        rows as of ``quantities.estimate``, with the columns ``model``, whose gain it is, and ``sparsity_from``.
    """
    doc_ids = sparsity.reactions[0].doc_ids
    units = document_units(doc_ids)
    third_ACW = np.array(
        [[thirds_of(run, c, distances=sparsity.distances) for c in range(len(CONTEXTS))] for run in sparsity.reactions]
    )
    everyone = {m: list(range(len(m.reactions))) for m in (sparsity, gain, ceiling) if m is not None}

    def sums(seeds: Mapping[Model, list[int]]) -> dict[str, np.ndarray]:
        """Return sums over the targets of each third, [C, T, U], over the rankings of some seeds."""
        total: dict[str, Any] = {}
        for a in seeds[sparsity]:

            def mean(model: Model, name: str, ranks: int = a) -> np.ndarray:
                others = [seed for seed in seeds[model] if model is not sparsity or seed != ranks] or seeds[model]
                return np.asarray(np.mean([getattr(model.reactions[seed], name) for seed in others], axis=0))

            run = sparsity.reactions[a]
            values_CW = {"weight": np.ones_like(run.gain_CW), "sparsity": np.nan_to_num(run.sparsity_CW)}
            values_CW |= {"gain": mean(gain, "gain_CW"), "reaction": mean(gain, "reaction_CW")}
            values_CW["ceiling"] = np.full_like(run.gain_CW, np.nan) if ceiling is None else mean(ceiling, "gain_CW")
            weight_CTW = np.where(third_ACW[a][:, None] == np.arange(len(THIRDS))[:, None], run.weight_W, 0.0)
            for name, of in values_CW.items():
                total[name] = total.get(name, 0.0) + units.sums(weight_CTW * of[:, None])
        return total

    of_all = sums(everyone)
    found = bootstrap([[of_all]], _numbers)
    if not all(np.isfinite(found[name].value).all() for name in ("third_gain_nats", "third_null_gain_nats")):
        raise UserError("too few targets to compare dense and sparse reactions; measure more with --num-windows")
    without = []
    for model, seeds in everyone.items():
        if len(seeds) >= MIN_SEEDS:
            of_others = [sums({**everyone, model: [s for s in seeds if s != seed]}) for seed in seeds]
            without.append([_numbers({name: of.sum(axis=-1) for name, of in one.items()}) for one in of_others])
    has_gain = found["third_ceiling_gain_nats"].value[:3] > 0  # a loss has no share
    found["third_share_of_ceiling"].value[~np.append(has_gain, has_gain[0] and has_gain[2])] = np.nan
    rows = []
    for name, estimates in found.items():
        of_models = [np.array([of_seed[name] for of_seed in of_seeds]) for of_seeds in without]
        parts = [((len(of_seeds) - 1) * of_seeds.var(axis=0), len(of_seeds) - 1) for of_seeds in of_models]
        estimates = with_seeds(estimates, parts, num_units=units.num, is_share=False)
        contexts, least, most = list(NUMBERS[name].contexts), NUMBERS[name].least, NUMBERS[name].most
        for (group, members), value, low, high, se in zip(GROUPS.items(), *estimates, strict=True):
            if group != CONTRAST:
                low, high = np.clip([low, high], least, most)
            num_units = np.count_nonzero(of_all["weight"][np.ix_(contexts, members)], axis=-1)
            has_interval = np.isfinite([low, high]).all() and num_units.min() >= MIN_DOCUMENTS
            interval = [low, high, se] if has_interval else [np.nan] * 3
            is_in_W = np.isin(third_ACW[0, contexts], members).any(axis=0)  # as the first run ranks
            rows.append((name, selector, group, value, *interval, is_in_W.sum(), doc_ids[is_in_W].nunique()))
    table = pd.DataFrame(rows, columns=[name for name in COLUMNS if name not in ("context", "k", "x")])
    return table.dropna(subset="value").assign(model=gain.label, sparsity_from=sparsity.label)


@np.errstate(all="ignore")
def _numbers(totals: Sums) -> dict[str, np.ndarray]:
    """Return the numbers of the thirds and sparse minus dense, [4, ...]."""
    means = {name: total / totals["weight"] for name, total in totals.items()}
    thirds = {name: number.value(means) for name, number in NUMBERS.items()}
    return {name: np.concatenate([of, of[2:] - of[:1]]) for name, of in thirds.items()}


def read_hypothesis(runs: Sequence[Path], *, selector: str = "kl") -> pd.DataFrame:
    """Compare gain and sparsity of runs; runs that differ in the seed of training alone are one model.

    Each run was measured with as many local tokens as a training row has, which of a pretrained model the user has stated. One
    model may be a ceiling, with rows as long as the full context.

    Returns:
        rows of ``gain_by_sparsity``: each model but the ceiling by its own sparsity, then by the ceiling's. ``attrs`` has the
        ``manifest`` of the first model, ``models`` (label -> number of seeds), ``ceiling`` (a label or None), ``pretrained``
        (labels), ``num_windows`` and ``num_documents``.

    Raises:
        UserError: there is no such measurement, the windows or definitions differ, or every model is a ceiling.
    """
    grouped = trained_models(runs)
    row_len, ceiling_run = _row_len(grouped)
    tables = {run: _tables_of(run, row_len=row_len, selector=selector) for model in grouped for run in model.runs}
    manifests = {run: read_manifest(folder) for run, folder in tables.items()}
    _check_measured_alike(grouped, manifests, selector=selector)
    models = {}
    for label, model in zip(_labels(grouped), grouped, strict=True):
        lengths = lengths_of(manifests[model.runs[0]])
        reactions = tuple(read_reactions(tables[run], selector) for run in model.runs)
        models[model.runs[0]] = Model(label, reactions, (lengths.local_len + 1, lengths.full_len))
    everyone = [*models.values()]
    ceiling = None if ceiling_run is None else models.pop(ceiling_run)
    compared = [(by, model) for model in models.values() for by in (model, ceiling) if by is not None]
    entries = [gain_by_sparsity(by, model, ceiling, selector=selector) for by, model in compared]
    table = pd.concat(entries, ignore_index=True).reindex(columns=[*COLUMNS, "model", "sparsity_from"])
    table["context"], table["k"] = None, table["k"].astype("Int64")
    doc_ids = everyone[0].reactions[0].doc_ids
    table.attrs = {
        "manifest": manifests[next(iter(models))],
        "models": {model.label: len(model.reactions) for model in everyone},
        "ceiling": None if ceiling is None else ceiling.label,
        "pretrained": [model.label for run, model in models.items() if is_pretrained(run)],
        "num_windows": len(doc_ids),
        "num_documents": int(doc_ids.nunique()),
    }
    return table


def _labels(models: Sequence[TrainedModel]) -> list[str]:
    """Return distinct names: of the configurations, or of the first runs where two have the same, or the paths of these."""
    firsts = [model.runs[0] for model in models]
    folders = list(map(folder_name, firsts))
    names = [
        folder if is_pretrained(run) else read_config_of(run).name for run, folder in zip(firsts, folders, strict=True)
    ]
    return next((of for of in (names, folders) if len(set(of)) == len(of)), list(map(str, firsts)))


def _row_len(models: Sequence[TrainedModel]) -> tuple[int, Optional[Path]]:
    """Return the length of the training rows of the models that are no ceiling, and the first run of the ceiling."""
    row_lens, ceilings = set(), []
    for run in (model.runs[0] for model in models):
        if not is_pretrained(run):
            context = read_config_of(run).context
            if context.row_len >= context.full_len:
                ceilings.append(run)
            else:
                row_lens.add(context.row_len)
            continue
        stated = [read_manifest(folder)["context"].get("train_len") for folder in list_finished(run)]
        if not any(stated):
            raise UserError(
                f"{run}: the training row of this model is not known; state the one that its authors name, and measure: "
                f"olmo-sparsity influence --run {run} --local-len N pretrained.train_len=N"
            )
        row_lens.add([row_len for row_len in stated if row_len][-1])
    if not row_lens:
        raise UserError(
            "every run here is a ceiling, with rows as long as the full context; name one with shorter rows"
        )
    if len(row_lens) > 1:
        lengths = " and ".join(map(str, sorted(row_lens)))
        raise UserError(f"these runs were trained on rows of {lengths} tokens; name runs of one length")
    if len(ceilings) > 1:
        raise UserError(f"{' and '.join(map(str, ceilings))} are ceilings of different configurations; name one")
    return row_lens.pop(), ceilings[0] if ceilings else None


def _tables_of(run: Path, *, row_len: int, selector: str) -> Path:
    """Return the newest measurement of a run with as many local tokens as a training row, and this selector at k = 1."""
    finished = [(folder, read_manifest(folder)) for folder in reversed(list_finished(run))]
    if selector in SELECTORS and SELECTORS[selector].sees_target:  # the manifests tell it of one's own
        raise UserError(f"hypothesis: --selector {selector} sees the target; choose one that does not, such as kl")
    for folder, manifest in finished:
        context, influence = manifest["context"], manifest["influence"]
        lengths = {context["local_len"], *([context["train_len"]] if is_pretrained(run) else [])}
        is_of_tokens = influence.get("unit", "token") == "token"
        if lengths == {row_len} and is_of_tokens and selector in influence["selectors"] and 1 in influence["k"]:
            return folder
    stated = f" pretrained.train_len={row_len}" if is_pretrained(run) else ""
    raise UserError(
        f"{run}: no measurement with as many local tokens as a training row and with {selector}; run `olmo-sparsity influence "
        f"--run {run} --local-len {row_len} --selector {selector} --selector random --k 1,2,4{stated}` first"
    )


def _check_measured_alike(models: Sequence[TrainedModel], manifests: Mapping[Path, Any], *, selector: str) -> None:
    """Check that all runs were measured on the same windows by the same definitions, and those of one model at one step."""

    def definitions(of: Any) -> dict[str, Any]:
        return {
            "windows": [of[key] for key in SAME_WINDOWS],
            "null contexts": [of["influence"].get(key) for key in ("seed", "null_context")],
            "visibility": of.get("visibility", "hidden"),
            "anchor": of.get("anchor") is None,
            "precision": of.get("precision"),
            f"source of {selector}": of.get("own_selectors", {}).get(selector, {}).get("sha256"),
        }

    def step(of: Any) -> dict[str, Any]:
        return {"training step": of.get("checkpoint", {}).get("step")}

    for model, run in ((of, run) for of in models for run in of.runs):
        for other, what in ((models[0].runs[0], definitions), (model.runs[0], step)):
            expected, found = what(manifests[other]), what(manifests[run])
            if differing := ", ".join(name for name in found if found[name] != expected[name]):
                raise UserError(
                    f"{other} and {run} were measured with different {differing}; measure both with the same options of "
                    "`olmo-sparsity influence`"
                )
