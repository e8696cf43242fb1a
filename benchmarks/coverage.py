"""Simulates how often the intervals of D(k), and of the dependency spectrum, cover the truth: ``python -m benchmarks.coverage``.

The reaction of a window, KL(p_all, p_{}), is log-normal with a standard deviation of 1.85 of its logarithm, of which a third is
common to the windows of a document, so that the top 5% of the windows hold half of it. The share of it that k tokens leave is
logit-normal, in four kinds of text: the share does not depend on the reaction; tokens reproduce large reactions better (as of
SmolLM2), or worse; they do it better, and no reaction is larger than 32 times the mean. The kinds differ in whether few windows
decide D(k). ``--tables`` adds the windows of a measurement: its documents are drawn with replacement, and its own D(k) is the
truth.

The part ``spectrum`` simulates the simultaneous bands of the dependency spectrum: the logarithm of the k that a target needs is
normal, a third of its variance common to the windows of a document; 26% of the targets need none, and 0.06% more than 64.

The part ``growth`` simulates the share of the targets that need more chosen tokens at a longer context, a longer suffix, and the
difference of both, paired: of every ``GROWING`` pair of shares, with the same windows and documents.

Prints for each method the share of experiments whose interval holds the truth, and its median width as a multiple of that of the
percentile interval. All numbers follow from the seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product, repeat
from pathlib import Path
from typing import Any, Optional
from unittest.mock import patch

import numpy as np
from scipy.special import expit
from scipy.stats import norm
from scipy.stats import t as student_t
from tqdm import tqdm

from benchmarks.results import mistakes_in_one_line
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals import ratios
from olmo_sparsity.statistics.intervals.bands import share_bands
from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import CONFIDENCE, Estimate
from olmo_sparsity.statistics.intervals.ratios import minus, share_without, value_of
from olmo_sparsity.statistics.intervals.shares import Share, ShareDifference, paired_difference
from olmo_sparsity.statistics.single.measurement import SHORT_DIVERGENCE, SelectionKey, load

SPREAD = 1.85  # standard deviation of the logarithm of the reaction
OF_DOCUMENT = 1 / 3  # share of its variance that the windows of a document have in common
NUM_DOCUMENTS = (64, 128, 240, 300, 500, 1000)
NUM_WINDOWS = ("1", "4", "1 to 16")  # of a document
AT_ONCE = 100  # experiments in one call
NUM_RESAMPLES = 1000
# Of the logarithm of the k that a target needs, in standard deviations: those of k = 0, 1, 2, 4, ..., 64.
LIMITS = (-0.65, -0.16, 0.41, 0.98, 1.55, 2.12, 2.69, 3.26)
GROWING = ((0.05, 0.2), (0.02, 0.05), (0.2, 0.2))  # shares of targets whose choice, and whose suffix, grows
TOGETHER = 0.6  # correlation of what makes the two grow
PARTS = ("shares", "spectrum", "growth")
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Text:
    """A kind of text.

    Attributes:
        name: in tables.
        offset: log odds of the share that is left where the logarithm of the reaction has its mean.
        slope: how they change with a standard deviation of the logarithm of the reaction.
        most: largest reaction, as a multiple of the mean; infinite: none.
    """

    name: str
    offset: float
    slope: float
    most: float = np.inf

    def reaction(self, z: np.ndarray) -> np.ndarray:
        """Return the reaction whose logarithm lies ``z`` standard deviations above its mean, as a multiple of the mean."""
        return np.minimum(np.exp(SPREAD * z - SPREAD**2 / 2), self.most)

    def left(self, z: np.ndarray, noise: np.ndarray, more: float = 0.0) -> np.ndarray:
        """Return the share of the reaction that is left; ``noise``: standard normal, ``more``: added to the log odds."""
        return np.asarray(expit(self.offset + more + self.slope * z + noise))

    def true_share(self, more: float = 0.0) -> float:
        """Return D by numerical integration."""
        z, noise = np.linspace(-9, 11, 4001)[:, None], np.linspace(-6, 6, 241)
        weight = np.exp(-(z**2) / 2 - noise**2 / 2) * self.reaction(z)
        return float(1 - (weight * self.left(z, noise, more)).sum() / weight.sum())


TEXTS = (
    Text("share alone", -0.6, 0.0),
    Text("large ones better", 0.0, -0.8),
    Text("large ones worse", -1.6, 0.6),
    Text("better, bounded", 0.0, -0.8, most=32.0),
)


@dataclass(frozen=True)
class Score:
    """How a method fared."""

    coverage: float
    width: float


def score(found: Sequence[Optional[Bounds]], truth: float) -> Score:
    """Return how often intervals hold the truth, and their median width; no interval holds nothing."""
    covered = [bounds is not None and bounds[0] <= truth <= bounds[1] for bounds in found]
    return Score(
        float(np.mean(covered)), float(np.median([high - low for low, high in filter(None, found)] or [np.nan]))
    )


def bounds_of(found: Optional[Estimate]) -> Optional[Bounds]:
    """Return the interval of an estimate, or None."""
    return None if found is None else found.bounds


def documents(
    rng: np.random.Generator, num_documents: int, num_windows: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each window that a document may have, which documents [U] have it and its z of every experiment, [E, U]."""
    numbers_U = (
        rng.integers(1, 17, num_documents) if num_windows == "1 to 16" else np.full(num_documents, int(num_windows))
    )
    common = rng.standard_normal((AT_ONCE, num_documents))
    for i in range(numbers_U.max()):
        own = rng.standard_normal(common.shape)
        yield numbers_U > i, np.sqrt(OF_DOCUMENT) * common + np.sqrt(1 - OF_DOCUMENT) * own


def drawn(rng: np.random.Generator, text: Text, num_documents: int, num_windows: str) -> dict[str, np.ndarray]:
    """Return what is left and the whole reaction of two models, summed over each document, [E, U] each.

    The second model's reactions correlate with the first's, at 0.8 of their logarithms; it leaves less.
    """
    sums = {name: np.zeros((AT_ONCE, num_documents)) for name in ("left", "whole", "second left", "second whole")}
    for is_there_U, z in documents(rng, num_documents, num_windows):
        z_of_second = 0.8 * z + 0.6 * rng.standard_normal(z.shape)
        noise = rng.standard_normal(z.shape)
        for prefix, z_of, more in (("", z, 0.0), ("second ", z_of_second, -0.5)):
            whole = text.reaction(z_of) * is_there_U
            sums[f"{prefix}left"] += whole * text.left(z_of, noise, more)
            sums[f"{prefix}whole"] += whole
    return sums


def resampled_documents(
    rng: np.random.Generator, sums: Mapping[str, np.ndarray], num_documents: int
) -> dict[str, np.ndarray]:
    """Return the sums of documents that are drawn with replacement from a measurement's, [E, U]; ``sums``: [documents] each."""
    chosen = rng.integers(0, len(sums["whole"]), (AT_ONCE, num_documents))
    return {name: sum_U[chosen] for name, sum_U in sums.items()}


def linear_bounds(left: np.ndarray, whole: np.ndarray) -> dict[str, Bounds]:
    """Return the intervals of D that need no resamples: delta method on the logarithm, and Fieller's.

    Args:
        left: what is left of each document, [U].
        whole: the reaction of each document, [U].
    """
    num, a, b = len(left), left.sum(), whole.sum()
    size = student_t.ppf((1 + CONFIDENCE) / 2, num - 1)
    error = np.sqrt(((left / a - whole / b) ** 2).sum() * num / (num - 1))
    (aa, ab), (_, bb) = np.cov(left, whole) * num
    square, half, rest = b * b - size**2 * bb, a * b - size**2 * ab, a * a - size**2 * aa
    bounds = {"delta": (1 - a / b * np.exp(size * error), 1 - a / b * np.exp(-size * error))}
    if square > 0:
        root = np.sqrt(half**2 - square * rest)
        return bounds | {"Fieller": (1 - (half + root) / square, 1 - (half - root) / square)}
    return bounds | {"Fieller": (-np.inf, np.inf)}


def of_share(sums: Mapping[str, np.ndarray]) -> dict[tuple[str, str], list[Optional[Bounds]]]:
    """Return, for D of the first model and for the difference of the two, the intervals of every experiment by each method."""
    keyed = {(name, e): sums[name][e] for name in sums for e in range(AT_ONCE)}

    def heavy(totals: Mapping[Any, np.ndarray]) -> dict[Any, ratios.Value]:
        values: dict[Any, ratios.Value] = {}
        for e in range(AT_ONCE):
            first = values["D", e] = share_without(totals["left", e], totals["whole", e])
            if "second whole" in sums:
                second = share_without(totals["second left", e], totals["second whole", e])
                values["difference", e] = minus(second, first)
        return values

    def plain(totals: Mapping[Any, np.ndarray]) -> dict[Any, ratios.Value]:
        return {key: value_of(value) for key, value in heavy(totals).items()}

    found: dict[tuple[str, str], list[Optional[Bounds]]] = {}
    for method, by_key in (
        ("percentile", estimates(keyed, plain, num_resamples=NUM_RESAMPLES)),
        ("BCa", estimates(keyed, plain, num_resamples=NUM_RESAMPLES, method="bca")),
        ("bootstrap-t", estimates(keyed, heavy, num_resamples=NUM_RESAMPLES)),
    ):
        for (what, _), estimate in by_key.items():
            found.setdefault((what, method), []).append(bounds_of(estimate))
    for e in range(AT_ONCE):
        for method, bounds in linear_bounds(sums["left"][e], sums["whole"][e]).items():
            found.setdefault(("D", method), []).append(bounds)
    return found


def scores_of(
    draw: Callable[[], Any],
    intervals: Callable[[Any], Mapping[tuple[str, str], list[Optional[Bounds]]]],
    truths: Mapping[str, float],
    *,
    num_experiments: int,
) -> dict[tuple[str, str], Score]:
    """Return how each method fared with each quantity, in some experiments."""
    found: dict[tuple[str, str], list[Optional[Bounds]]] = {}
    for _ in range(num_experiments // AT_ONCE):
        for key, of_method in intervals(draw()).items():
            found.setdefault(key, []).extend(of_method)
    return {key: score(of_method, truths[key[0]]) for key, of_method in found.items()}


def line_of(name: str, scores: Mapping[tuple[str, str], Score]) -> str:
    """Return a row of a table: of each method the coverage, and the width over that of percentiles."""
    words = []
    for (what, method), of in scores.items():
        width = of.width / scores[what, "percentile"].width
        words.append(f"{what}, {method} {of.coverage:.3f} ({width:.2f})")
    return f"{name}: " + "; ".join(words)


def measured_sums(tables: Path, selector: str, k: int) -> dict[str, np.ndarray]:
    """Return what a measurement's selection leaves, and the whole reaction, summed over each document, [documents] each.

    Raises:
        UserError: it has no such selection.
    """
    measurement, key = load(tables), SelectionKey(selector, "real", k)
    if key not in measurement.divergences:
        keys = [SelectionKey(*column) for column in measurement.divergences.columns]
        known = [f"{of.selector} {of.k}" for of in keys if of.context == "real"]
        raise UserError(f"{tables}: it has no {selector} at k = {k}; choose of: {', '.join(known)}")
    units = document_units(measurement.windows["doc_id"])
    whole_W = measurement.windows[SHORT_DIVERGENCE["real"]].to_numpy(np.float64)
    left_W = measurement.divergences[key].to_numpy(np.float64)
    return {name: units.sums(measurement.weights_W * of) for name, of in (("left", left_W), ("whole", whole_W))}


def simulate_measurement(
    tables: Path, selector: str, k: int, *, num_documents: Sequence[int], num_experiments: int, seed: int
) -> None:
    """Print how the intervals of a measurement's D(k) fare when its documents are resampled, a line for each number of them."""
    rng, sums = np.random.default_rng(seed), measured_sums(tables, selector, k)
    truth = 1 - sums["left"].sum() / sums["whole"].sum()
    for n in tqdm(num_documents, desc=f"{selector}, k = {k}"):
        draw = partial(resampled_documents, rng, sums, n)
        scores = scores_of(draw, of_share, {"D": truth}, num_experiments=num_experiments)
        print(line_of(f"{selector}, D({k}) = {truth:.3f}, {n} documents", scores), flush=True)


def simulate_shares(text: Text, *, num_documents: Sequence[int], num_experiments: int, seed: int) -> None:
    """Print how the intervals of D and of a difference of two fare, a line for each number of windows and of documents."""
    first, second = text.true_share(), text.true_share(more=-0.5)
    truths = {"D": first, "difference": second - first}
    for windows in NUM_WINDOWS:
        for n in tqdm(num_documents, desc=f"{text.name}, {windows} windows"):
            draw = partial(drawn, np.random.default_rng([seed, n]), text, n, windows)
            scores = scores_of(draw, of_share, truths, num_experiments=num_experiments)
            name = f"{text.name}, D = {first:.2f}, {windows} windows a document, {n} documents"
            print(line_of(name, scores), flush=True)


def of_spectrum(rng: np.random.Generator, num_documents: int, num_windows: str) -> dict[str, tuple[int, float]]:
    """Return by method how many of the experiments hold all true shares, and the mean width of the intervals.

    The methods are simultaneous bands, and percentile intervals of each share alone.
    """
    parts = np.zeros((AT_ONCE, len(LIMITS), num_documents))
    number_U = np.zeros(num_documents)
    for is_there_U, z in documents(rng, num_documents, num_windows):
        parts += is_there_U * (z[:, None] <= np.array(LIMITS)[:, None])
        number_U += is_there_U
    bands = share_bands(dict(enumerate(parts)), number_U, num_resamples=NUM_RESAMPLES)
    sums: dict[Any, np.ndarray] = {(e, p): parts[e, p] for e in range(AT_ONCE) for p in range(len(LIMITS))}
    alone = estimates(
        {**sums, None: number_U},
        lambda totals: {key: total / totals[None] for key, total in totals.items() if key is not None},
        num_resamples=NUM_RESAMPLES,
    )
    found = {}
    of_methods = {
        "percentile": [[bounds_of(alone[e, p]) for p in range(len(LIMITS))] for e in range(AT_ONCE)],
        "band": [[bounds_of(share) for share in bands[e]] for e in range(AT_ONCE)],
    }
    for method, bounds in of_methods.items():
        bounds_EP2, truth_P = np.array(bounds, dtype=float), norm.cdf(LIMITS)
        hold_EP = (bounds_EP2[..., 0] <= truth_P) & (truth_P <= bounds_EP2[..., 1])
        found[method] = int(hold_EP.all(axis=1).sum()), float(np.diff(bounds_EP2).mean())
    return found


def simulate_spectra(*, num_documents: Sequence[int], num_experiments: int, seed: int) -> None:
    """Print how often the band of a spectrum holds all of its true shares, a line for each number of windows and documents."""
    for windows, n in product(NUM_WINDOWS, num_documents):
        rng = np.random.default_rng([seed, n])
        batches = [of_spectrum(rng, n, windows) for _ in tqdm(range(num_experiments // AT_ONCE), desc=f"spectrum, {n}")]
        covered = {method: sum(batch[method][0] for batch in batches) / num_experiments for method in batches[0]}
        width = {method: np.mean([batch[method][1] for batch in batches]) for method in batches[0]}
        words = [f"{method} {covered[method]:.3f} ({width[method] / width['percentile']:.2f})" for method in covered]
        print(f"spectrum, {windows} windows a document, {n} documents: {'; '.join(words)}", flush=True)


def of_growth(
    rng: np.random.Generator, growing: tuple[float, float], *, num_documents: int, num_windows: str
) -> dict[tuple[str, str], list[Optional[Bounds]]]:
    """Return the intervals of both shares and of their difference, of every experiment, by each method.

    The methods are percentiles, and an exact interval of each share and what follows from the two for their difference.
    """
    names = ("choice", "suffix")
    parts = {name: np.zeros((AT_ONCE, num_documents)) for name in names}
    number_U = np.zeros(num_documents)
    for is_there_U, z in documents(rng, num_documents, num_windows):
        of_names = (z, TOGETHER * z + np.sqrt(1 - TOGETHER**2) * rng.standard_normal(z.shape))
        for name, z_of, share in zip(names, of_names, growing, strict=True):
            parts[name] += is_there_U * (z_of <= norm.ppf(share))
        number_U += is_there_U
    sums: dict[Any, np.ndarray] = {(name, e): parts[name][e] for name in names for e in range(AT_ONCE)}

    def shares(totals: Mapping[Any, np.ndarray]) -> dict[Any, ratios.Value]:
        of = {key: total / totals[None] for key, total in totals.items() if key is not None}
        return {**of, **{("difference", e): of["suffix", e] - of["choice", e] for e in range(AT_ONCE)}}

    found: dict[tuple[str, str], list[Optional[Bounds]]] = {}
    for (what, _), estimate in estimates({**sums, None: number_U}, shares, num_resamples=NUM_RESAMPLES).items():
        found.setdefault((what, "percentile"), []).append(bounds_of(estimate))
    bands = share_bands({key: part_U[None] for key, part_U in sums.items()}, number_U, num_resamples=NUM_RESAMPLES)
    for e in range(AT_ONCE):
        suffix, choice = (bands[name, e][0] for name in ("suffix", "choice"))
        of_units = ShareDifference(*(Share(parts[name][e], number_U) for name in ("suffix", "choice")))
        difference = paired_difference(suffix, choice, of_units=of_units)
        for what, of in (("choice", choice), ("suffix", suffix), ("difference", difference)):
            found.setdefault((what, "exact"), []).append(bounds_of(of))
    return found


def simulate_growth(*, num_documents: Sequence[int], num_experiments: int, seed: int) -> None:
    """Print how the shares of targets whose need grows fare, a line for each pair of shares, number of windows and documents."""
    for growing, windows, n in product(GROWING, NUM_WINDOWS, num_documents):
        truths = {"choice": growing[0], "suffix": growing[1], "difference": growing[1] - growing[0]}
        rng = np.random.default_rng([seed, n])
        intervals = partial(of_growth, growing=growing, num_documents=n, num_windows=windows)
        scores = scores_of(repeat(rng).__next__, intervals, truths, num_experiments=num_experiments)
        print(line_of(f"growth of {growing}, {windows} windows a document, {n} documents", scores), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=1000, help=f"experiments in each row, in steps of {AT_ONCE}")
    parser.add_argument("--documents", type=int, nargs="+", default=NUM_DOCUMENTS)
    parser.add_argument("--tables", type=Path, help="a measurement whose documents are resampled, too")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 8], help="of the measurement")
    parser.add_argument("--selectors", nargs="+", default=["kl", "attention", "random"], help="of the measurement")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    shared = {"num_documents": arguments.documents, "num_experiments": arguments.experiments, "seed": arguments.seed}
    # The simulation is to say where there is no interval.
    with mistakes_in_one_line(), patch.object(ratios, "MIN_RATIO_DOCUMENTS", 2):
        if arguments.experiments < 1 or arguments.experiments % AT_ONCE:
            raise UserError(f"--experiments {arguments.experiments}: {AT_ONCE} run at once; give a multiple of it")
        if (fewest := min(arguments.documents)) < 2:
            raise UserError(f"--documents {fewest}: an interval takes at least 2")
        for selector, k in product(arguments.selectors, arguments.k) if arguments.tables else ():
            simulate_measurement(arguments.tables, selector, k, **shared)
        for text in TEXTS if "shares" in arguments.parts else ():
            simulate_shares(text, **shared)
        if "spectrum" in arguments.parts:
            simulate_spectra(**shared)
        if "growth" in arguments.parts:
            simulate_growth(**shared)


if __name__ == "__main__":
    main()
