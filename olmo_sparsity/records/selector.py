"""What a selector is: one way to choose long-range tokens, and what its score may ask about windows.

Commands read the names of selectors before they print --help, so numpy is imported by the functions that compute with it.

Shape letters: W windows, M long-range positions, I groups of the window with the most, N random visible sets, R rows, S groups of
a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Optional, Protocol

from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.window_input import WindowInput

if TYPE_CHECKING:
    import numpy as np

ScoreOfWindow = Callable[[WindowInput], Any]  # -> a score for each long-range token, float [M]


class ScoredWindows(Protocol):
    """What a score may ask about W windows under one context, in nats; computed when first asked for."""

    @property
    def max_k(self) -> int: ...  # the largest k that will be asked for
    @property
    def windows(self) -> Any: ...  # a WindowBatch
    @property
    def groups(self) -> Any: ...  # their TokenGroups
    @property
    def predictions(self) -> Any: ...  # the Predictions about them, with attention and random visible sets
    @property
    def loss_short_W(self) -> np.ndarray: ...  # loss({})
    @property
    def loss_long_W(self) -> np.ndarray: ...  # loss(all)
    @property
    def loss_single_WI(self) -> np.ndarray: ...  # loss({j})
    @property
    def loss_all_but_one_WI(self) -> np.ndarray: ...  # loss(all but j)
    @property
    def lasso_loss_WN(self) -> np.ndarray: ...  # loss of the random visible sets
    @property
    def kl_short_W(self) -> np.ndarray: ...  # KL(p_all, p_{})
    @property
    def kl_single_WI(self) -> np.ndarray: ...  # KL(p_all, p_{j})
    @property
    def gradient_WI(self) -> np.ndarray: ...  # minus the derivative of the loss by gates on the tokens of j, at gate 0

    def patching_beside(self, groups_WS: np.ndarray) -> np.ndarray:
        """Return how unmasking each group beside others, int64 [W, S], changes KL(p_all, p), by attribution patching."""
        ...

    def inputs(self, needs: Iterable[str], *, with_label: bool = False) -> Iterable[WindowInput]:
        """Return what is needed of each window; ``with_label``: the label of the losses, too, as ``target``."""
        ...

    def evaluate_groups(
        self, sets: Sequence[tuple[np.ndarray, np.ndarray]], *, with_kl: bool
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (loss(S), KL(p_all, p_S)) of visible sets S: (int64 [R], windows; int64 [R, S], the groups of each set)."""
        ...


class CostSettings(Protocol):
    """The keys of ``influence`` that the cost of scores depends on."""

    @property
    def k(self) -> list[int]: ...
    @property
    def lasso_masks(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def visibility(self) -> str: ...


@dataclass(frozen=True)
class ScoringSize:
    """What the cost of a selector's scores depends on, in each window."""

    num_candidates: int
    max_k: int
    lasso_masks: int


@dataclass(frozen=True)
class Look:
    """How a selector is drawn. No two selectors have one marker, so that they differ in print without colours, too.

    Attributes:
        color: in figures, of the palettes of Okabe and Ito and of Tol, which the colour-blind can tell apart.
        marker: in figures, as Matplotlib names it.
        on_light: colour on a light page: the hue of the figures, darker where needed to stand out from the background.
        on_dark: colour on a dark page.
    """

    color: str
    marker: str
    on_light: str
    on_dark: str


@dataclass(frozen=True)
class OwnSource:
    """Where a selector of one's own comes from.

    Attributes:
        file: its name, without the folder.
        sha256: of the file, or of the source of a function that was given from Python; None: it was typed in.
    """

    file: str
    sha256: Optional[str]


@dataclass(frozen=True)
class Selector:
    """One way to choose long-range tokens.

    Attributes:
        name: in the configuration, in the tables and on the command line.
        score: returns a score for each group, float [W, I]; NaN where a window has no more.
        sees_target: whether the scores depend on which token the target is, so that part of the gain is optimism.
        meaning: of the score, in words, with ``{unit}`` and ``{units}`` for what is scored.
        definition: of the score of position j, for the documentation, in Markdown.
        look: how it is drawn.
        num_evaluations: the cost per window, in forward passes over one row.
        cost: the same as a formula, for the documentation.
        num_tokens: about how many tokens the model runs for the scores of a window, beyond the passes of L_short, of L_long and
            of single unmaskings, which are shared.
        singles: the number about unmaskings of single groups that the score is made of. One pass evaluates both numbers for all
            selectors. None: the score is made of something else.
        steps: the number that each step of a forward selection lowers. None: it is none.
        needs_attention: whether the attention of the last token under full context is asked for.
        needs: what the score reads of each window (``NEEDS`` of ``olmo_sparsity.records.window_input``).
        needs_entries: whether it chooses entries of a key-value cache, which there are under ``contextual`` visibility only.
        by_divergence: whether it chooses by the divergence from the full-context prediction.
        is_control: whether it shows what a choice without knowledge gains.
        is_main: whether it is shown where there is no room for all.
        on_request: measured only where it is named, since it costs several times as much as the others.
        by_name_only: not among those that ``all`` stands for: rules, choices of cache entries, and selectors of one's own.
        own: where a selector of one's own comes from; None: it is the package's.
    """

    name: str
    score: Callable[[ScoredWindows], np.ndarray]
    sees_target: bool
    meaning: str
    definition: str
    look: Look
    num_evaluations: Callable[[ScoringSize], int]
    cost: str
    num_tokens: Callable[[CostSettings, MeasuredLengths], int] = lambda settings, lengths: 0
    singles: Optional[Literal["loss", "kl"]] = None
    steps: Optional[Literal["loss", "kl"]] = None
    needs_attention: bool = False
    needs: frozenset[str] = frozenset()
    needs_entries: bool = False
    by_divergence: bool = False
    is_control: bool = False
    is_main: bool = False
    on_request: bool = False
    by_name_only: bool = False
    own: Optional[OwnSource] = None


def rank(scores_WI: np.ndarray) -> np.ndarray:
    """Return the groups of each window by falling score, int64 [W, I]; any number of dimensions may precede the groups.

    Of equal scores the nearer group (the larger) comes first. NaN comes last.
    """
    import numpy as np

    num_groups = scores_WI.shape[-1]
    return num_groups - 1 - np.argsort(-scores_WI[..., ::-1], axis=-1, kind="stable")


def by_window(function: ScoreOfWindow, needs: Iterable[str]) -> Callable[[ScoredWindows], np.ndarray]:
    """Return a selector's score that asks a function about one window after the other; a group's score is the sum of its tokens'.

    Args:
        function: returns a score for each long-range token, float [M]; NaN: none.
        needs: what it reads of a window.
    """
    wanted = tuple(needs)

    def score(cache: ScoredWindows) -> np.ndarray:
        import numpy as np

        scores_WM = np.stack([function(window) for window in cache.inputs(wanted)])
        return cache.groups.sums(scores_WM.astype(np.float64))

    return score


def of_window(
    name: str,
    function: ScoreOfWindow,
    needs: tuple[str, ...],
    *,
    meaning: str,
    definition: str,
    look: Look,
    num_passes: int = 0,
    needs_entries: bool = False,
) -> Selector:
    """Return a selector that asks a function about one window after the other (``by_window``), and is measured by name only.

    Args:
        name: of the selector.
        function: returns a score for each long-range token, float [M].
        needs: what it reads of a window.
        meaning: as of ``Selector``, like the rest.
        definition: of the score.
        look: how it is drawn.
        num_passes: of the model over the window, which all such selectors share.
        needs_entries: whether it chooses entries of a key-value cache.
    """
    return Selector(
        name=name,
        score=by_window(function, needs),
        sees_target=False,
        meaning=meaning,
        definition=definition,
        look=look,
        num_evaluations=lambda size: num_passes,
        cost=str(num_passes),
        needs=frozenset(needs),
        needs_entries=needs_entries,
        by_name_only=True,
    )
