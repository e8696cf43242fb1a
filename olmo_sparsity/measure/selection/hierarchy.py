"""Ranks many candidates by unmasking blocks of them together, then smaller blocks within the best.

With M candidates, of which N are to be found, every level evaluates about N blocks: the first level's blocks are as small as N of
them allow, each next level's a quarter as large, within the blocks that hold N of those. So log(M / N) levels do the work
of M evaluations. A candidate that helps only where its neighbours are hidden is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

BRANCHES = 4  # blocks of one level within a block of the level above

# Rows of one size: (window of each row, int64 [R]; its candidates, int64 [R, S]), by size -> the value of each row, by size.
Rows = tuple[np.ndarray, np.ndarray]
Evaluate = Callable[[Sequence[Rows]], Sequence[np.ndarray]]


def block_sizes(num_candidates: int, num_found: int) -> list[int]:
    """Return the sizes of the blocks of every level, the largest first; none where all candidates are to be found."""
    sizes, size = [], 1
    while size * num_found < num_candidates:
        size *= BRANCHES
        sizes.append(size)
    return sizes[::-1]


def num_blocks(num_candidates: int, num_found: int) -> int:
    """Return about how many blocks are evaluated on all levels."""
    sizes = block_sizes(num_candidates, num_found)
    first = [-(-num_candidates // size) for size in sizes[:1]]
    return sum(first) + sum(BRANCHES * -(-num_found // BRANCHES) for _ in sizes[1:])


def order_by_blocks(
    evaluate: Evaluate, num_candidates_W: Sequence[int], *, num_found: int, sizes: Sequence[int]
) -> np.ndarray:
    """Return where each candidate stands in the ranking, lower first, equal within a block; fp64 [W, M], inf behind the last.

    Of equal blocks the nearer comes first, as of candidates (``olmo_sparsity.records.selectors.rank``).

    Args:
        evaluate: returns a value for candidates that are unmasked together; lower is better.
        num_candidates_W: candidates of each window, 0 .. M-1.
        num_found: N; each level keeps its best N / BRANCHES blocks, whose parts make the N blocks of the next.
        sizes: candidates of a block on each level, falling; each a multiple of the next.
    """
    num_windows, most = len(num_candidates_W), max(num_candidates_W)
    order_WM = np.full((num_windows, most), np.inf)
    kept_W = [np.arange(num) for num in num_candidates_W]
    for w, num in enumerate(num_candidates_W):
        order_WM[w, :num] = 0.0
    for level, size in enumerate(sizes):
        blocks = [
            (w, np.arange(first, min(first + size, num_candidates_W[w])))
            for w in range(num_windows)
            for first in np.unique(kept_W[w] // size) * size
        ]
        values = _values_of_blocks(evaluate, blocks)
        of_window: list[list[tuple[float, np.ndarray]]] = [[] for _ in range(num_windows)]
        for (w, block), value in zip(blocks, values, strict=True):
            of_window[w].append((value, block))
        for w, found in enumerate(of_window):
            found.sort(key=lambda entry: (entry[0], -entry[1][0]))
            kept = [block for _, block in found[: -(-num_found // BRANCHES)]]
            for place, (_, block) in enumerate(found):  # what an earlier level discarded stays behind
                order_WM[w, block] = (len(sizes) - level) * most + place
            kept_W[w] = np.concatenate(kept) if kept else kept_W[w]
    return order_WM


def _values_of_blocks(evaluate: Evaluate, blocks: Sequence[tuple[int, np.ndarray]]) -> list[float]:
    """Return the value of each block; those of one size are evaluated together."""
    places: dict[int, list[int]] = {}
    for place, (_, block) in enumerate(blocks):
        places.setdefault(len(block), []).append(place)
    rows = [
        (np.array([blocks[place][0] for place in of_size]), np.stack([blocks[place][1] for place in of_size]))
        for of_size in places.values()
    ]
    values = np.empty(len(blocks))
    for of_size, found in zip(places.values(), evaluate(rows), strict=True):
        values[of_size] = found
    return values.tolist()
