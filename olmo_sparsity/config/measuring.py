"""The sections of a configuration about measurements of a trained model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Optional

from olmo_sparsity.config.keys import LARGEST_LENGTH, check_values, key, require, require_rising
from olmo_sparsity.config.lengths import NullContext, Visibility
from olmo_sparsity.config.units import check_unit
from olmo_sparsity.selectors import SELECTORS, is_own


def powers_up_to(number: int) -> list[int]:
    """Return the powers of two below a number, and the number."""
    return [*(2**i for i in range(number.bit_length()) if 2**i < number), number]


@dataclass(frozen=True)
class InfluenceConfig:
    """The main measurement: which windows, which selectors, how it is computed."""

    num_windows: int = key(
        2000,
        "Number of windows to measure. If the text holds fewer, the output says so.",
        least=1,
        most=10**9,
    )
    max_windows_per_document: int = key(16, "Largest number of windows of one document.", least=1, most=10**9)
    unit: str = key(
        "token",
        "What is unmasked, ranked and counted: groups of consecutive long-range tokens. token: each token. word, sentence: those "
        "of the text. block:N: N tokens each, such as block:16. A window with fewer than k groups shows all of them.",
    )
    k: list[int] = key(
        [1, 2, 4, 8],
        "Numbers of influential tokens (or other units; under contextual visibility entries) to unmask.",
        least=1,
        most=LARGEST_LENGTH,
    )
    k_grid: Optional[Literal["all", "geometric"]] = key(
        None,
        "In place of k, a grid up to M, the number of long-range tokens (or of blocks). all: every k from 1 to M. geometric: 1, "
        "2, 4, ... and M. The manifest records the k that it stands for. null: k.",
    )
    selectors: list[str] = key(
        ["unmask-one", "kl", "gradient", "attention", "random", "nearest"],
        "Selectors to measure; `olmo-sparsity influence --help` lists them.",
    )
    lasso_masks: int = key(
        64, "Number of random visible sets that `lasso` is fitted to in each window.", least=1, most=10**6
    )
    resampled_draws: int = key(
        2,
        "Number of labels to draw from the short-context prediction of each window. Selectors that see the target choose again "
        "for each label, which measures their optimism. 0: none.",
        least=0,
        most=1000,
    )
    null_context: NullContext = key(
        "document",
        "What takes the place of the long-range tokens in the null context. document: text from another document of the same "
        "source, or of any source if it has no other. shuffled: the same tokens in random order; also of text that is a single "
        "document.",
    )
    targets: Literal["any", "word-start"] = key(
        "any", "Which tokens may be targets. any: all tokens. word-start: only the first token of a word."
    )
    seed: int = key(
        0,
        "Seed of the windows, of their null contexts and of the selector `random`.",
        least=0,
        below=2**63,
    )
    local_len: Optional[int] = key(
        None,
        "Number of local tokens to measure with, for every command that measures. null: context.local_len.",
        least=1,
        most=LARGEST_LENGTH,
    )
    full_len: Optional[int] = key(
        None,
        "Length of the full context to measure with, at most the positions that the model was trained on (for a pretrained model "
        "see also pretrained.train_len). null: context.full_len.",
        least=2,
        most=LARGEST_LENGTH,
    )
    min_preceding: Optional[int] = key(
        None,
        "Number of tokens that a target must have before it in its document, at least the length of the full context. The window "
        "holds the last of these tokens. Measurements of several lengths with the same number have the same targets and foreign "
        "text. null: the length of the full context.",
        least=2,
        most=LARGEST_LENGTH,
    )
    visibility: Visibility = key(
        "hidden",
        "What hiding a token means. hidden: no token sees a hidden one; a visible one stands alone, in front of gaps. "
        "contextual: the long-range tokens see one another as always, and only the local tokens and the target do not see the "
        "hidden ones, as if entries of a key-value cache were evicted. k then counts entries, each the keys and values of one "
        "token, which has read all tokens before it. So k entries may carry more than k tokens.",
    )
    anchor: Literal["auto", "bos", "none"] = key(
        "auto",
        "A first token in front of the window that every token sees, always. bos: the token with which the model's texts begin, "
        "or if there is none the one that ends them. none: no such token. auto: bos for runs trained with one (context.bos), "
        "and their exports; for other pretrained models if the tokenizer adds one, or under contextual; "
        "otherwise none.",
    )
    path: Literal["compact", "plain", "masked"] = key(
        "compact",
        "How losses are computed. compact: run only the visible tokens, and share what several visible sets have in common. "
        "plain: the same without sharing, by the model's own forward pass. masked: run all tokens under an attention mask, which "
        "is the definition. In fp32 all give the same losses within 1e-5 nats; each is slower than the one before.",
    )
    precision: Literal["auto", "fp32", "bf16"] = key(
        "auto",
        "Precision of all losses. auto: fp32, but bf16 for a pretrained model from elsewhere on a GPU with units for bf16. bf16 "
        "is faster on such devices and less exact; `make bench` shows by how much.",
    )
    data: Optional[str] = key(
        None,
        "Text to measure, in the form of data.source. null: the validation documents of the run.",
    )
    max_documents: Optional[int] = key(
        None,
        "Largest number of documents of `influence.data` to read (null: all; of c4, 20 for each window).",
        least=1,
        most=10**12,
    )
    train_overlap: bool = key(
        True,
        "Find out which windows hold 13 consecutive tokens of the training text. This reads all of the training text once, 10 to "
        "20 million tokens a second. false: the column train_overlap is null.",
    )
    windows_per_part: int = key(
        256,
        "Largest number of windows in one part file; fewer where they take more than about half a million tokens of work. An "
        "interruption loses at most one part.",
        least=1,
        most=10**6,
    )
    batch_tokens: Optional[int] = key(
        None,
        "Number of tokens in one forward pass. null: as many as fit into the memory of a GPU, or into the cache of a CPU.",
        least=1,
        most=10**9,
    )

    def __post_init__(self) -> None:
        check_values(self, "influence")
        check_unit(self.unit)
        require_rising("influence.k", self.k)
        self._check_selectors()
        choosing = [name for name in self.selectors if SELECTORS[name].needs_entries]
        require(
            not choosing or self.visibility == "contextual",
            f"influence.selectors: {', '.join(choosing)}: chooses entries of a key-value cache, which there are only under "
            "influence.visibility = contextual (--visibility contextual)",
        )

    def _check_selectors(self) -> None:
        unknown = [name for name in self.selectors if name not in SELECTORS]
        own = [name for name in unknown if is_own(name)]
        require(
            not own,
            f"influence.selectors: {', '.join(own)}: a file is run only where --selector names it",
        )
        require(not unknown, f"influence.selectors: no selector is named {unknown}; there are {', '.join(SELECTORS)}")
        require(
            len(self.selectors) > 0 and len(set(self.selectors)) == len(self.selectors),
            f"influence.selectors = {list(self.selectors)}: must name at least one selector, each once",
        )

    def with_grid_of(self, num_groups: int) -> InfluenceConfig:
        """Return the section with the values of k that ``k_grid`` stands for, and no grid.

        Args:
            num_groups: the largest k: the number of long-range tokens, or of blocks of them.
        """
        if self.k_grid is None:
            return self
        ks = list(range(1, num_groups + 1)) if self.k_grid == "all" else powers_up_to(num_groups)
        return replace(self, k=ks, k_grid=None)
