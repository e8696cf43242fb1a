"""Policies of key-value caches as selectors: which entries would they keep?

The papers choose by head and layer. A selector named as its paper's policy chooses one set for all of them: a score is the mean
over layers and heads. Its variant ``-heads`` chooses as many entries in each head of keys of each layer: a score is the mean over
the heads of queries that share these keys. All scores come from one pass over the window under full context, in which no entry
has been evicted yet.

Shape letters: W windows, T tokens of a window, M long-range positions, I groups, H heads of keys, E width of a head, P pages,
S kept entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selector import Look, ScoredWindows, Selector, of_window, rank
from olmo_sparsity.records.window_input import WindowInput

if TYPE_CHECKING:
    import numpy as np

NUM_SINKS = 4  # of StreamingLLM
POOLED = 5  # neighbours that SnapKV averages over, as its code does
PAGE = 16  # tokens of a page of Quest
BITS, TABLES = 10, 150  # of MagicPIG: random projections in a hash, and hashes
RANDOM_ENTRIES = 23  # purpose of a random generator; a change would change the tables
BY_HEAD = "-heads"  # ends the name of the variant that chooses by head

ScoreOfHeads = Callable[[WindowInput], "np.ndarray"]  # -> float [layers, heads of queries or of keys, M]


def for_queries(of_keys: np.ndarray, of_queries: np.ndarray) -> np.ndarray:
    """Return what each head of keys has for each head of queries that shares it, [layers, heads of queries, ...]."""
    return of_keys.repeat(of_queries.shape[1] // of_keys.shape[1], axis=1)


def _h2o(window: WindowInput) -> np.ndarray:
    """Return the accumulated attention: the sum over all queries of the window.

    Source: H2O (Zhang et al. 2023, arXiv 2306.14048), Section 3 and Algorithm 1, at the end of the prompt.
    """
    return window.accumulated_attention


def _snapkv(window: WindowInput) -> np.ndarray:
    """Return the attention of the last 32 local queries, averaged over 5 neighbours among the long-range tokens.

    Source: SnapKV (Li et al. 2024, arXiv 2404.14469), Section 4, with the window, the kernel and the average pooling of its code.
    Beyond the first and the last long-range token the pooling sees zeros.
    """
    import numpy as np

    padded = np.pad(window.observed_attention.astype(np.float64), [(0, 0), (0, 0), (POOLED // 2, POOLED // 2)])
    return np.lib.stride_tricks.sliding_window_view(padded, POOLED, axis=-1).mean(axis=-1)


def _streaming_llm(cache: ScoredWindows) -> np.ndarray:
    """Return the order of sinks and recent: the groups of the first 4 tokens, the anchor included, then the nearest.

    Source: StreamingLLM (Xiao et al. 2023, arXiv 2309.17453), Section 3.2.
    """
    import numpy as np

    groups = cache.groups
    order_I = np.arange(groups.num_groups, dtype=np.float64)
    positions_WT = np.stack([window.positions for window in cache.inputs(("positions",))])
    is_sink_WI = np.take_along_axis(positions_WT, groups.first_WI, axis=1) < NUM_SINKS
    of_sinks_WI = 2 * groups.num_groups_W[:, None] - order_I
    scores_WI: np.ndarray = groups.with_missing(np.where(is_sink_WI, of_sinks_WI, order_I))
    return scores_WI


def _vatp(window: WindowInput) -> np.ndarray:
    """Return the accumulated attention times the L1 norm of the values, head by head.

    Source: VATP (Guo et al. 2024, arXiv 2406.12335), on the scores of H2O. The paper keeps the first tokens besides; here only
    the anchor is always kept.
    """
    import numpy as np

    norms = np.abs(window.values).sum(axis=-1)
    return window.accumulated_attention * for_queries(norms, window.accumulated_attention)


def _key_norm(window: WindowInput) -> np.ndarray:
    """Return minus the L2 norm of the keys: low norms go with high attention.

    Source: Devoto et al. 2024 (arXiv 2406.11430), Section 3.
    """
    import numpy as np

    return -np.linalg.norm(window.keys, axis=-1)


def _quest(window: WindowInput) -> np.ndarray:
    """Return the query-aware bound of the page of 16 tokens that each token is in.

    The bound of a page is the sum over e of max(q_e max_e, q_e min_e), with the largest and smallest entries of its keys and the
    query of the last token: no score of the page is larger. Pages begin at the first long-range token.

    Source: Quest (Tang et al. 2024, arXiv 2406.10774), Section 3.3 and Algorithm 1.
    """
    import numpy as np

    begins_P = np.arange(0, window.num_long_range, PAGE)
    largest = np.maximum.reduceat(window.keys, begins_P, axis=2)
    smallest = np.minimum.reduceat(window.keys, begins_P, axis=2)
    largest, smallest = (for_queries(bound, window.queries) for bound in (largest, smallest))
    queries = window.queries[:, :, None]
    bounds = np.maximum(queries * largest, queries * smallest).sum(axis=-1)
    return bounds.repeat(PAGE, axis=-1)[..., : window.num_long_range]


def _magicpig(window: WindowInput) -> np.ndarray:
    """Return the probability that MagicPIG samples each entry, over its random projections.

    It samples entries that share the hashes of at least 2 of 150 tables with the query of the last token. A hash is the signs of
    10 random projections; one sign is shared with probability 1 - angle / pi, the angle being that of the query and the key minus
    the mean key, here of the long-range tokens.

    Source: MagicPIG (Chen et al. 2024, arXiv 2410.16179), Section 4, with the number of projections and tables of its code.
    """
    import numpy as np

    keys = window.keys.astype(np.float64)
    keys -= keys.mean(axis=2, keepdims=True)
    keys = for_queries(keys, window.queries)
    queries = window.queries.astype(np.float64)
    lengths = np.linalg.norm(keys, axis=-1) * np.linalg.norm(queries, axis=-1)[..., None]
    products = np.einsum("lhme,lhe->lhm", keys, queries)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    hit = (1 - np.arccos(cosines.clip(-1, 1)) / np.pi) ** BITS
    none, one = (1 - hit) ** TABLES, TABLES * hit * (1 - hit) ** (TABLES - 1)
    return 1 - none - one


def best_entries(scores: np.ndarray, number: int, *, num_key_heads: int) -> np.ndarray:
    """Return the entries that each head of keys keeps, the best first; int64 [layers, H, number].

    Args:
        scores: of each layer and head, of queries or of keys, float [layers, heads, M].
        number: of entries; M at most are kept.
        num_key_heads: H. The score of a head of keys is the mean over the heads of queries that share it.
    """
    num_layers, _, num_long_range = scores.shape
    of_keys = scores.reshape(num_layers, num_key_heads, -1, num_long_range).mean(axis=2)
    return rank(of_keys)[..., :number]


def _num_key_heads(window: WindowInput) -> int:
    """Return H, the number of heads of keys of each layer.

    Raises:
        UserError: some layers have more than others.
    """
    numbers = sorted({int(number) for number in window.key_heads})
    if len(numbers) > 1:
        raise UserError(
            f"the layers of this model have {numbers[0]} to {numbers[-1]} heads of keys, and choices by head take as many in "
            f"each layer; leave out the selectors whose names end in {BY_HEAD}"
        )
    return numbers[0]


def share_of_heads(entries_WLHS: np.ndarray, num_long_range: int) -> np.ndarray:
    """Return the share of the heads of all layers that keep each entry, float64 [W, M]."""
    import numpy as np

    num_windows, num_heads = len(entries_WLHS), entries_WLHS.shape[1] * entries_WLHS.shape[2]
    entries_WN = entries_WLHS.reshape(num_windows, -1)
    counts_WM = np.zeros((num_windows, num_long_range))
    np.add.at(counts_WM, (np.arange(num_windows)[:, None], entries_WN), 1)
    return counts_WM / num_heads


def _choosing_by_head(
    name: str,
    entries: Callable[[ScoredWindows], np.ndarray],
    needs: Sequence[str],
    *,
    meaning: str,
    definition: str,
    look: Look,
    is_control: bool = False,
) -> Selector:
    """Return a selector that chooses the entries of each head.

    Args:
        name: without its end.
        entries: as ``entries_by_head`` of ``Selector``.
        needs: what it reads of a window, besides the number of heads.
        meaning: as of ``Selector``, like the rest.
        definition: of the score.
        look: how it is drawn.
        is_control: whether it shows what a choice without knowledge gains.
    """
    return Selector(
        name=f"{name}{BY_HEAD}",
        score=lambda cache: share_of_heads(entries(cache), cache.predictions.num_long_range),
        sees_target=False,
        meaning=meaning,
        definition=definition,
        look=look,
        num_evaluations=lambda size: 1,  # the pass that tells how many heads there are, and their scores
        cost="1",
        needs=frozenset((*needs, "key_heads")),
        needs_entries=True,
        entries_by_head=entries,
        is_control=is_control,
        by_name_only=True,
    )


def _policy(
    name: str,
    function: ScoreOfHeads,
    needs: Sequence[str],
    *,
    meaning: str,
    definition: str,
    source: str,
    look: Look,
    look_by_head: Look,
) -> tuple[Selector, Selector]:
    """Return a policy that chooses one set for all heads, and its variant that chooses by head.

    Args:
        name: of the first.
        function: returns the scores of each layer and head.
        needs: what it reads of a window.
        meaning: of the score, as of ``Selector``.
        definition: of the score of position j.
        source: the paper.
        look: of the first.
        look_by_head: of the variant.
    """

    def mean_of_heads(window: WindowInput) -> np.ndarray:
        return function(window).mean(axis=(0, 1))

    def entries(cache: ScoredWindows) -> np.ndarray:
        import numpy as np

        return np.stack(
            [
                best_entries(function(window), cache.max_k, num_key_heads=_num_key_heads(window))
                for window in cache.inputs((*needs, "key_heads"))
            ]
        )

    one_set = of_window(
        name,
        mean_of_heads,
        tuple(needs),
        meaning=f"{meaning}, mean over heads and layers",
        definition=f"{definition} ({source})",
        look=look,
        num_passes=1,
        needs_entries=True,
    )
    variant = _choosing_by_head(
        name,
        entries,
        needs,
        meaning=f"share of the heads that keep this {{unit}}, each by this score of its own: {meaning}",
        definition=f"`{name}` by head: the share of the heads of keys that keep j, each by its own score",
        look=look_by_head,
    )
    return one_set, variant


def _random_entries(cache: ScoredWindows) -> np.ndarray:
    """Return random entries of each head, a function of seed, window and context alone; int64 [W, layers, H, S]."""
    import numpy as np

    entries = []
    for generator, window in zip(cache.windows.generators(RANDOM_ENTRIES), cache.inputs(("key_heads",)), strict=True):
        num_layers, num_heads = len(window.key_heads), _num_key_heads(window)
        scores = generator.random((num_layers, num_heads, window.num_long_range))
        entries.append(best_entries(scores, cache.max_k, num_key_heads=num_heads))
    return np.stack(entries)


POLICIES: tuple[Selector, ...] = (
    *_policy(
        "h2o",
        _h2o,
        ("accumulated_attention",),
        meaning="attention that all tokens pay to this {unit}, summed",
        definition="H2O: attention of all tokens of the window to j, summed",
        source="Zhang et al. 2023, arXiv 2306.14048",
        look=Look("#661100", "X", on_light="#661100", on_dark="#e08a75"),
        look_by_head=Look("#8A3A22", "$h$", on_light="#8a3a22", on_dark="#f0ab98"),
    ),
    *_policy(
        "snapkv",
        _snapkv,
        ("observed_attention",),
        meaning="attention of the last local tokens to this {unit} and its neighbours",
        definition="SnapKV: attention of the last 32 local tokens to j, averaged over 5 neighbours",
        source="Li et al. 2024, arXiv 2404.14469",
        look=Look("#4477AA", "d", on_light="#3a6898", on_dark="#8db6e0"),
        look_by_head=Look("#2A5A8A", "$s$", on_light="#245080", on_dark="#a9c9ea"),
    ),
    Selector(
        name="streaming-llm",
        score=_streaming_llm,
        sees_target=False,
        meaning="sinks and recent: the first tokens, then the nearest {units}",
        definition="StreamingLLM: the first 4 tokens, the anchor included, then the nearest (Xiao et al. 2023, arXiv 2309.17453)",
        look=Look("#228833", "1", on_light="#1f7a2e", on_dark="#6fd183"),
        num_evaluations=lambda size: 0,  # positions are known without the model
        cost="0",
        needs=frozenset({"positions"}),
        needs_entries=True,
        by_name_only=True,
    ),
    *_policy(
        "vatp",
        _vatp,
        ("accumulated_attention", "values"),
        meaning="attention that all tokens pay to this {unit}, times the norm of its values",
        definition="VATP: that of H2O times the L1 norm of the values of j",
        source="Guo et al. 2024, arXiv 2406.12335",
        look=Look("#AA3377", "2", on_light="#aa3378", on_dark="#e58fc0"),
        look_by_head=Look("#7F2058", "$v$", on_light="#7f2058", on_dark="#f0b4d5"),
    ),
    *_policy(
        "key-norm",
        _key_norm,
        ("keys",),
        meaning="minus the norm of the keys of this {unit}",
        definition="minus the L2 norm of the keys of j",
        source="Devoto et al. 2024, arXiv 2406.11430",
        look=Look("#BB5500", "3", on_light="#a34a00", on_dark="#f0a060"),
        look_by_head=Look("#8F4400", "$k$", on_light="#7d3b00", on_dark="#f5bd8a"),
    ),
    *_policy(
        "quest",
        _quest,
        ("queries", "keys"),
        meaning="upper bound of the scores that the last token gives to the page of this {unit}",
        definition="Quest: upper bound of the scores that the last token gives to the keys of the page of 16 tokens that j is in",
        source="Tang et al. 2024, arXiv 2406.10774",
        look=Look("#6644BB", "4", on_light="#5c3dab", on_dark="#b6a0f0"),
        look_by_head=Look("#46309A", "$q$", on_light="#402c85", on_dark="#cbbcf7"),
    ),
    *_policy(
        "magicpig",
        _magicpig,
        ("queries", "keys"),
        meaning="probability that random projections put this {unit} beside the last token",
        definition="MagicPIG: probability that j shares a hash of 10 random projections with the last token in 2 of 150 tables",
        source="Chen et al. 2024, arXiv 2410.16179",
        look=Look("#AA7744", "$p$", on_light="#8a5c30", on_dark="#dcb183"),
        look_by_head=Look("#7A5230", "$m$", on_light="#6e4827", on_dark="#ecccaa"),
    ),
    _choosing_by_head(
        "random",
        _random_entries,
        (),
        meaning="control of choices by head: share of the heads that keep this {unit}, each at random",
        definition="`random` by head: the share of the heads of keys that keep j, each at random",
        look=Look("#555555", "$r$", on_light="#555555", on_dark="#b0b0b0"),
        is_control=True,
    ),
)
