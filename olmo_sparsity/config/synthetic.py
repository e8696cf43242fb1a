"""The section of a configuration about synthetic tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional

from olmo_sparsity.config.keys import LARGEST_LENGTH, check_values, key, require, require_rising

QUERY_TOKENS = {"parity": 1, "variables": 2}  # at the end of a prompt, behind its length
TaskName = Literal["parity", "variables"]
Background = Literal["noise", "text"]
TaskPositions = Literal["pose", "randpos", "shifted", "coupled", "predicted"]
TaskScaling = Literal["none", "linear", "yarn"]
# Of planted tokens: in the last tokens of a prompt, as many as a row has, or before them.
Place = Literal["inside", "beyond"]


@dataclass(frozen=True)
class SyntheticConfig:
    """A synthetic task, trained and evaluated by ``olmo-sparsity synth``. The other commands do not use these keys."""

    task: TaskName = key(
        "parity",
        "parity: the parity of planted bits, or their sum modulo synthetic.modulus. variables: the value of a name, found along "
        "a chain of assignments.",
    )
    modulus: int = key(
        2,
        "parity: planted values are 0 to modulus - 1, each a token of its own, and the answer is their sum modulo this number. "
        "2: bits and their parity.",
        least=2,
        most=2**10,
    )
    background: Background = key(
        "noise",
        "parity: the tokens between the planted ones. noise: drawn uniformly from synthetic.num_noise tokens. text: consecutive "
        "tokens of a document of data.source, in which planted tokens replace others; training documents in training, held-out "
        "ones in evaluation.",
    )
    scratchpad: bool = key(
        False,
        "The response holds every step (the parity of each prefix; each assignment of the chain), not the answer alone.",
    )
    positions: TaskPositions = key(
        "pose",
        "Position IDs. pose: PoSE in training (pose.num_chunks, pose.max_position), consecutive in evaluation. randpos: RandPos "
        "(Ruoss et al. 2023), a sorted sample of the IDs below pose.max_position, in training and, as in the paper, in "
        "evaluation. shifted: consecutive, with a random shift. coupled: a response token has the ID of the token that it reads, "
        "with a random shift; evaluation gives the true IDs, which tell what was read. predicted: Predictive Position Coupling: "
        "as coupled, and the model predicts the ID of each response token; evaluation gives the IDs of the prompt only, and a "
        "wrong ID is an error.",
    )
    max_sparsity: int = key(
        4,
        "K_train: the sparsity k of a training sequence, its number of planted bits or of chained assignments, is uniform from 1 "
        "to K_train.",
        least=1,
        most=2**20,
    )
    train_lengths: list[int] = key(
        [8, 20],
        "Shortest and longest training prompt, in tokens without the query; the length is uniform between them.",
        least=1,
        most=LARGEST_LENGTH,
    )
    num_noise: int = key(
        4, "parity: number of different background tokens, if synthetic.background is noise.", least=1, most=2**20
    )
    num_names: int = key(
        64, "variables: number of names; a prompt of n assignments draws n of them.", least=1, most=2**20
    )
    locality: Optional[int] = key(
        None,
        "parity: all planted bits lie within this number of consecutive tokens (null: anywhere in the prompt).",
        least=1,
        most=2**20,
    )
    spread: int = key(1, "parity: least distance between two planted bits, in tokens.", least=1, most=2**20)
    position_loss_weight: float = key(
        1.0, "positions predicted: weight of the cross-entropy of position IDs in the objective.", least=0, most=10**6
    )
    test_lengths: list[int] = key(
        [20, 40, 60, 100],
        "Lengths of the evaluated prompts, in tokens without the query.",
        least=1,
        most=LARGEST_LENGTH,
    )
    test_sparsity: list[int] = key([2, 4], "Values of k that are evaluated.", least=1, most=2**20)
    test_row_len: Optional[int] = key(
        None,
        "parity: evaluate with all planted tokens inside a row, the last test_row_len tokens of the prompt without the query, "
        "and with all of them before it. Prompts of at most test_row_len tokens have them inside only. null: anywhere.",
        least=1,
        most=LARGEST_LENGTH,
    )
    test_rows: int = key(
        400, "Number of evaluated sequences of each length, k, and place of the planted tokens.", least=1, most=2**24
    )
    rope_scaling: TaskScaling = key(
        "none",
        "How evaluation scales the rotary positions of a model that was trained without PoSE, as transformers does. none: as "
        "they are. linear: position interpolation, all distances are divided by rope_factor. yarn: YaRN, with the longest "
        "training row as the original length. Training does not use it.",
    )
    rope_factor: Optional[float] = key(
        None,
        "The factor of rope_scaling. null: each evaluated length divided by the longest training prompt, and at least 1.",
        least=1,
        most=10**4,
    )
    test_seed: int = key(
        0, "Seed of the evaluated sequences. They do not depend on training.seed.", least=0, below=2**63
    )

    def __post_init__(self) -> None:
        check_values(self, "synthetic")
        require_rising("synthetic.test_lengths", self.test_lengths)
        require_rising("synthetic.test_sparsity", self.test_sparsity)
        lengths = list(self.train_lengths)
        require(
            len(lengths) == 2 and 0 < lengths[0] <= lengths[1],
            f"synthetic.train_lengths = {lengths}: must be two positive numbers, the shortest and the longest prompt",
        )
        require(
            self.scratchpad or self.positions not in ("coupled", "predicted"),
            f"synthetic.positions = {self.positions}: couples the tokens of a scratchpad; set synthetic.scratchpad=true",
        )
        require(
            self.task == "parity" or (self.locality is None and self.spread == 1),
            f"synthetic.locality = {self.locality}, synthetic.spread = {self.spread}: only for synthetic.task = parity",
        )
        for name in ("modulus", "background", "test_row_len"):
            value = getattr(self, name)
            require(
                self.task == "parity" or value == getattr(SyntheticConfig, name),
                f"synthetic.{name} = {value}: only for synthetic.task = parity",
            )
        require(
            self.task == "parity" or max(lengths[1], self.test_lengths[-1]) // 2 <= self.num_names,
            f"synthetic.num_names = {self.num_names}: the longest prompt assigns "
            f"{max(lengths[1], self.test_lengths[-1]) // 2} names; raise it, or shorten the prompts",
        )
        for name, length, k in (
            ("train_lengths", lengths[0], self.max_sparsity),
            ("test_lengths", self.test_lengths[0], self.test_sparsity[-1]),
        ):
            require(
                self.tokens_needed(k) <= length,
                f"synthetic.{name}: a prompt of {length} tokens has no room for k = {k}, which takes "
                f"{self.tokens_needed(k)}",
            )
        require(
            self.locality is None
            or self.tokens_needed(max(self.max_sparsity, self.test_sparsity[-1])) <= self.locality,
            f"synthetic.locality = {self.locality}: too few tokens for "
            f"k = {max(self.max_sparsity, self.test_sparsity[-1])} with synthetic.spread = {self.spread}",
        )

        require(
            self.rope_factor is None or self.rope_scaling != "none",
            f"synthetic.rope_factor = {self.rope_factor}: synthetic.rope_scaling is none; set it to linear or yarn, or leave the "
            "factor out",
        )
        self._check_row_len()

    def _check_row_len(self) -> None:
        """Check that the tokens inside and beyond the row of evaluated prompts hold the largest k."""
        if self.test_row_len is None:
            return
        needed = self.tokens_needed(self.test_sparsity[-1])
        for length in self.test_lengths:
            for place in self.places(length):
                begin, end = self.places_planted(length, place)
                require(
                    end - begin >= needed,
                    f"synthetic.test_row_len = {self.test_row_len}: of a prompt of {length} tokens {end - begin} lie {place} the "
                    f"row, too few for k = {self.test_sparsity[-1]}, which takes {needed}",
                )

    def scaling_factor(self, length: int) -> float:
        """Return the factor by which rotary positions are scaled in evaluated prompts of a length; 1: they are not."""
        if self.rope_scaling == "none":
            return 1.0
        return self.rope_factor or max(1.0, length / self.train_lengths[1])

    def places(self, length: int) -> tuple[Optional[Place], ...]:
        """Return where the planted tokens of evaluated prompts of a length lie; None: as in training, anywhere in the prompt."""
        if self.test_row_len is None:
            return (None,)
        return ("inside",) if length <= self.test_row_len else ("inside", "beyond")

    def places_planted(self, length: int, place: Optional[Place]) -> tuple[int, int]:
        """Return the first position of a prompt of ``length`` at which tokens may be planted, and the end of these."""
        row_begin = max(0, length - (self.test_row_len or length))
        return (0, row_begin) if place == "beyond" else (row_begin if place == "inside" else 0, length)

    def tokens_needed(self, k: int) -> int:
        """Return the tokens of the shortest prompt with sparsity ``k``, without the query."""
        return (k - 1) * self.spread + 1 if self.task == "parity" else 2 * k

    def row_len(self, length: int, k: int) -> int:
        """Return the tokens of a prompt of ``length`` and its response."""
        return length + QUERY_TOKENS[self.task] + (k if self.scratchpad else 1)
