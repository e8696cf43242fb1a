"""Simulates how often 95% intervals hold the truth: ``python -m benchmarks.coverage [--parts mean D ...] [--tables DIR]``.

Each experiment draws documents with 1, 4, or 1 to 16 windows, whose numbers have a part in common, and makes the interval as the
package makes. The parts:

    mean      a normal gain, and R(k), a ratio of two
    D         1 - left / whole, with log-normal reactions whose logarithms have a standard deviation of 1.85, so that 5% of the
              windows hold half of the reaction; k tokens leave of large reactions less, more, or the same share
    damping   the gain of a choice minus that of the blend with the same D, interpolated in each resample
    share     a share of the targets, and the difference of two
    band      the spectrum: all shares at once
    seeds     a mean over seeds of training, which differ

``--tables`` draws the documents of a measurement with replacement, and takes its own numbers as the truth of every quantity.

Prints for each number and method the share of the experiments whose interval holds the truth and, in brackets, the median width
as a multiple of that of percentiles. The package gives no intervals of D and damping below 300 documents.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm
from tqdm import tqdm

from benchmarks.results import mistakes_in_one_line
from olmo_sparsity.config import MIN_DOCUMENTS
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics import intervals
from olmo_sparsity.statistics.frames import read_frames
from olmo_sparsity.statistics.intervals import Estimates, Ratio, Share, bootstrap, document_units, minus, share_bands
from olmo_sparsity.statistics.quantities import QUANTITIES, Selections, Totals, sums_of

SPREAD = 1.85  # standard deviation of the logarithm of the reaction
OF_DOCUMENT = 1 / 3  # share of the variance that the windows of a document have in common
NUM_DOCUMENTS = (64, 128, 300, 1000)
NUM_WINDOWS = ("1", "4", "1 to 16")  # of a document
AT_ONCE = 100  # experiments in one call
GAIN, NOISE = 0.1, 0.5  # nats: mean and standard deviation of the gain
SHARES = (0.02, 0.2)  # of targets
# Of the logarithm of the k that a target needs, in standard deviations: those of k = 0, 1, 2, 4, ..., 64.
LIMITS = (-0.65, -0.16, 0.41, 0.98, 1.55, 2.12, 2.69, 3.26)
NUM_SEEDS, OF_SEED = 5, 0.02  # standard deviation over seeds, nats
BLENDS = np.array([0.2, 0.4, 0.6, 0.8])
Found = Mapping[str, tuple[Estimates, Any]]  # "number, method" -> estimates [E] or [E, P], and the truth


@dataclass(frozen=True)
class Text:
    """A kind of text.

    Attributes:
        name: in lines.
        offset: log odds of the share that is left where the logarithm of the reaction has its mean.
        slope: how they change with a standard deviation of the logarithm of the reaction.
        most: largest reaction, as a multiple of the mean.
    """

    name: str
    offset: float
    slope: float
    most: float = np.inf

    def reaction(self, z: np.ndarray) -> np.ndarray:
        """The reaction whose logarithm lies ``z`` standard deviations above its mean, as a multiple of the mean."""
        return np.minimum(np.exp(SPREAD * z - SPREAD**2 / 2), self.most)

    def left(self, z: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The share of the reaction that is left; ``noise``: standard normal."""
        return np.asarray(expit(self.offset + self.slope * z + noise))

    def true_d(self) -> float:
        """D by numerical integration."""
        z, noise = np.linspace(-9, 11, 4001)[:, None], np.linspace(-6, 6, 241)
        weight = np.exp(-(z**2) / 2 - noise**2 / 2) * self.reaction(z)
        return float(1 - (weight * self.left(z, noise)).sum() / weight.sum())


TEXTS = (
    Text("share alone", -0.6, 0.0),
    Text("large ones better", 0.0, -0.8),
    Text("large ones worse", -1.6, 0.6),
    Text("better, bounded", 0.0, -0.8, most=32.0),
)


def documents(
    rng: np.random.Generator, num_documents: int, num_windows: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each window that a document may have, which documents [U] have it, and standard normal numbers [E, U]."""
    numbers_U = (
        rng.integers(1, 17, num_documents) if num_windows == "1 to 16" else np.full(num_documents, int(num_windows))
    )
    common = rng.standard_normal((AT_ONCE, num_documents))
    for i in range(numbers_U.max()):
        own = rng.standard_normal(common.shape)
        yield numbers_U > i, np.sqrt(OF_DOCUMENT) * common + np.sqrt(1 - OF_DOCUMENT) * own


def summed(
    windows: Iterator[tuple[np.ndarray, np.ndarray]], of_window: Callable[[np.ndarray], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Sums over the windows of each document of what a window has, [..., E, U], and ``weight``, the number of windows."""
    sums: dict[str, Any] = defaultdict(float)
    for is_there_U, z in windows:
        for name, values in of_window(z).items():
            sums[name] = sums[name] + values * is_there_U
        sums["weight"] = sums["weight"] + np.broadcast_to(is_there_U, z.shape).astype(np.float64)
    return dict(sums)


def of_mean(rng: np.random.Generator, *drawn: Any) -> Found:
    """The gain of all tokens, and the share of it that some give back."""

    def of_window(z: np.ndarray) -> dict[str, np.ndarray]:
        gain = GAIN + NOISE * z
        return {"long": gain, "sparse": 0.6 * gain + 0.1 * rng.standard_normal(z.shape)}

    found = bootstrap(
        [[summed(documents(rng, *drawn), of_window)]],
        lambda of: {"gain": of["long"] / of["weight"], "R": of["sparse"] / of["long"]},
    )
    return {"gain, percentile": (found["gain"], GAIN), "R, percentile": (found["R"], 0.6)}


def of_d(rng: np.random.Generator, *drawn: Any, text: Text) -> Found:
    """D of a kind of text."""

    def of_window(z: np.ndarray) -> dict[str, np.ndarray]:
        whole = text.reaction(z)
        return {"whole": whole, "left": whole * text.left(z, rng.standard_normal(z.shape))}

    found = bootstrap(
        [[summed(documents(rng, *drawn), of_window)]],
        lambda of: {"percentile": 1 - of["left"] / of["whole"], "bootstrap-t": Ratio(of["left"], of["whole"])},
    )
    return {f"{text.name}, D, {method}": (found[method], text.true_d()) for method in found}


def damped(rng: np.random.Generator, z: np.ndarray, text: Text) -> dict[str, np.ndarray]:
    """The reaction of windows, what a choice leaves of it and gains, and what blends leave and gain, [B, ...]."""
    whole = text.reaction(z)
    share = text.left(z, rng.standard_normal(z.shape))
    blended_B = BLENDS.reshape(-1, *(1 for _ in z.shape))
    long = 0.2 * np.minimum(whole, 8) + 0.3 * rng.standard_normal(z.shape)
    return {
        "whole": whole,
        "left": whole * share,
        "gain": long * np.sqrt(1 - share),
        "long": long,
        "blend left": whole * (1 - blended_B) ** (2 + 0.2 * np.tanh(z)),
        "blend gain": long * blended_B * (2.2 - blended_B),
    }


def over_damping(of: Mapping[str, Any]) -> np.ndarray:
    """The gain of a choice minus that of the blend with its D, between two blends."""
    at, gain = 1 - of["blend left"] / of["whole"], of["blend gain"] / of["weight"]
    recovered = 1 - of["left"] / of["whole"]
    expected = np.full_like(recovered, np.nan)
    for b in range(len(BLENDS) - 1):
        between = gain[b] + (recovered - at[b]) / (at[b + 1] - at[b]) * (gain[b + 1] - gain[b])
        expected = np.where((recovered > at[b]) | (b == 0), between, expected)
    return np.asarray(of["gain"] / of["weight"] - expected)


def true_over_damping(text: Text) -> float:
    """The gain over damping of four million windows."""
    rng = np.random.default_rng(0)
    sums: dict[str, Any] = defaultdict(float)
    for _ in range(20):
        z = rng.standard_normal(200_000)
        for name, values in {**damped(rng, z, text), "weight": np.ones_like(z)}.items():
            sums[name] = sums[name] + values.sum(axis=-1, keepdims=True)
    return float(over_damping(sums)[0])


def of_damping(rng: np.random.Generator, *drawn: Any, text: Text, truth: float) -> Found:
    """The gain over damping."""
    sums = summed(documents(rng, *drawn), lambda z: damped(rng, z, text))
    found = bootstrap([[sums]], lambda of: {"gain": over_damping(of)})["gain"]
    return {f"{text.name}, gain over damping, percentile": (found, truth)}


def of_share(rng: np.random.Generator, *drawn: Any) -> Found:
    """A rare share, a less rare one whose targets are often the same, and their difference."""

    def of_window(z: np.ndarray) -> dict[str, np.ndarray]:
        other = 0.6 * z + 0.8 * rng.standard_normal(z.shape)
        return {f"{share}": of <= norm.ppf(share) for share, of in zip(SHARES, (z, other), strict=True)}

    sums = summed(documents(rng, *drawn), of_window)
    rare, usual = (f"{share}" for share in SHARES)

    def formula(of: Mapping[str, np.ndarray]) -> dict[str, intervals.Value]:
        exact = {name: Share(of[name], of["weight"]) for name in (rare, usual)}
        plain = {name: of[name] / of["weight"] for name in exact}
        return {
            **{f"{name}, percentile": value for name, value in plain.items()},
            "difference, percentile": plain[usual] - plain[rare],
            **{f"{name}, exact": value for name, value in exact.items()},
            "difference, exact": minus(exact[usual], exact[rare]),
        }

    truths = {rare: SHARES[0], usual: SHARES[1], "difference": SHARES[1] - SHARES[0]}
    found = bootstrap([[sums]], formula)
    return {name: (estimates, truths[name.split(", ")[0]]) for name, estimates in found.items()}


def of_band(rng: np.random.Generator, *drawn: Any) -> Found:
    """All shares of a spectrum."""
    limits_P = np.array(LIMITS)[:, None, None]
    sums = summed(documents(rng, *drawn), lambda z: {"part": z <= limits_P})
    part_EPU, weight_U = np.moveaxis(sums["part"], 0, 1), sums["weight"][0]
    alone = bootstrap([[{"part": part_EPU, "weight": weight_U}]], lambda of: {"share": of["part"] / of["weight"]})
    truth = norm.cdf(LIMITS)
    return {
        "spectrum, percentile": (alone["share"], truth),
        "spectrum, band": (share_bands(part_EPU, weight_U), truth),
    }


def of_seeds(rng: np.random.Generator, *drawn: Any) -> Found:
    """A gain, of which each seed has its own mean, and each window of each seed some noise."""
    shifts = OF_SEED * rng.standard_normal((NUM_SEEDS, AT_ONCE, 1))

    def of_window(z: np.ndarray) -> dict[str, np.ndarray]:
        noise = 0.1 * rng.standard_normal((NUM_SEEDS, *z.shape))
        return {"gain": GAIN + shifts + NOISE * z + noise}

    sums = summed(documents(rng, *drawn), of_window)
    seeds = [{"gain": gain, "weight": sums["weight"]} for gain in sums["gain"]]
    found = {
        method: bootstrap([of], lambda sums: {"gain": sums["gain"] / sums["weight"]})["gain"]
        for method, of in (("percentile", [{**seeds[0], "gain": sums["gain"].mean(axis=0)}]), ("t", seeds))
    }
    return {f"{NUM_SEEDS} seeds, gain, {method}": (estimates, GAIN) for method, estimates in found.items()}


def experiments(parts: list[str]) -> Iterator[Callable[..., Found]]:
    """Yield the simulations of some parts."""
    plain = {"mean": of_mean, "share": of_share, "band": of_band, "seeds": of_seeds}
    for part in parts:
        if part in plain:
            yield plain[part]
            continue
        for text in TEXTS:
            if part == "D":
                yield lambda *drawn, text=text: of_d(*drawn, text=text)
            else:
                truth = true_over_damping(text)
                yield lambda *drawn, text=text, truth=truth: of_damping(*drawn, text=text, truth=truth)


PARTS = ("mean", "D", "damping", "share", "band", "seeds")


def holds(estimates: Estimates, truth: Any) -> tuple[np.ndarray, np.ndarray]:
    """Whether the interval of each experiment holds the truth, all of it, [E], and its width; no interval holds nothing."""
    is_in, width = (estimates.low <= truth) & (truth <= estimates.high), estimates.high - estimates.low
    return is_in.reshape(len(is_in), -1).all(axis=1), width.reshape(len(width), -1).mean(axis=1)


def simulate(of: Callable[..., Found], *, num_documents: int, num_windows: str, num: int, seed: int) -> None:
    """Print a line for one simulation."""
    rng = np.random.default_rng([seed, num_documents])
    scores: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for _ in tqdm(range(num // AT_ONCE), leave=False):
        for name, (estimates, truth) in of(rng, num_documents, num_windows).items():
            scores[name].append(holds(estimates, truth))
    covered, widths = (
        {name: np.concatenate([of[i] for of in all_of]) for name, all_of in scores.items()} for i in (0, 1)
    )
    words = []
    for name in scores:
        plain = np.nanmedian(widths[f"{name.rpartition(', ')[0]}, percentile"])
        words.append(f"{name} {covered[name].mean():.3f} ({np.nanmedian(widths[name]) / plain:.2f})")
    print(f"{num_documents} documents, {num_windows} windows each: {'; '.join(words)}", flush=True)


def simulate_tables(tables: Path, *, num_documents: int, num: int, seed: int) -> None:
    """Print for each quantity of a measurement how often its intervals hold its own value, of documents drawn from it."""
    frames, rng = read_frames(tables), np.random.default_rng([seed, num_documents])
    sums, selections = sums_of(frames, document_units(frames.windows["doc_id"])), Selections(frames)

    def formula(of: intervals.Sums) -> dict[str, intervals.Value]:
        return {name: quantity.value(Totals(of, selections)) for name, quantity in QUANTITIES.items()}

    truths = {name: estimates.value for name, estimates in bootstrap([[sums]], formula).items()}
    covered: dict[str, list[np.ndarray]] = defaultdict(list)
    for _ in tqdm(range(num), desc=str(tables), leave=False):
        chosen = rng.integers(0, len(sums["weight"]), num_documents)
        for name, found in bootstrap([[{name: of[..., chosen] for name, of in sums.items()}]], formula).items():
            covered[name].append((found.low <= truths[name] + 1e-12) & (truths[name] - 1e-12 <= found.high))
    for name, of in covered.items():
        of_numbers = np.mean(of, axis=0)[np.isfinite(truths[name])]
        if of_numbers.size:
            ends = (
                f"{of_numbers.min():.3f} to {of_numbers.max():.3f}" if of_numbers.size > 1 else f"{of_numbers[0]:.3f}"
            )
            print(f"{num_documents} documents of {tables.name}: {name} {ends}", flush=True)


def main() -> None:
    """Run the simulations that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=1000, help=f"of each line, in steps of {AT_ONCE}")
    parser.add_argument("--documents", type=int, nargs="+", default=NUM_DOCUMENTS)
    parser.add_argument("--windows", nargs="+", default=NUM_WINDOWS, choices=NUM_WINDOWS, help="of each document")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--tables", type=Path, help="a measurement whose documents are drawn, too")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with mistakes_in_one_line():
        if asked.experiments < 1 or asked.experiments % AT_ONCE:
            raise UserError(f"--experiments {asked.experiments}: {AT_ONCE} run at once; give a multiple of it")
        if (fewest := min(asked.documents)) < MIN_DOCUMENTS:
            raise UserError(f"--documents {fewest}: an interval takes at least {MIN_DOCUMENTS}")
        for of, windows, n in product(list(experiments(asked.parts)), asked.windows, asked.documents):
            simulate(of, num_documents=n, num_windows=windows, num=asked.experiments, seed=asked.seed)
        for n in asked.documents if asked.tables else ():
            simulate_tables(asked.tables, num_documents=n, num=asked.experiments, seed=asked.seed)


if __name__ == "__main__":
    main()
