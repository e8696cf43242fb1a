"""The sections of a configuration that say what is measured on a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional

from olmo_sparsity.config.keys import key, require

SELECTORS = ("unmask-one", "kl", "gradient", "attention", "random", "nearest", "mask-one", "greedy", "lasso")
CHEAP_SELECTORS = SELECTORS[:6]  # the others cost several times as much as these together


def _check_selectors(dotted: str, selectors: list[str]) -> None:
    unknown = [name for name in selectors if name not in SELECTORS]
    require(not unknown, f"{dotted}: no selector is named {unknown}; there are {', '.join(SELECTORS)}")
    require(
        len(selectors) > 0 and len(set(selectors)) == len(selectors),
        f"{dotted} = {list(selectors)}: must name at least one selector, each once",
    )


@dataclass(frozen=True)
class InfluenceConfig:
    """What is measured, on which windows."""

    num_windows: int = key(2000, "Windows to measure (fewer where the text holds fewer; the output says so).")
    max_windows_per_document: int = key(4, "At most this many windows of one document.")
    k: list[int] = key([1, 2, 4, 8], "Numbers of influential tokens to unmask.")
    selectors: list[str] = key(list(CHEAP_SELECTORS), f"Of {', '.join(SELECTORS)}.")
    lasso_masks: int = key(64, "Random visible sets that `lasso` fits in each window.")
    targets: Literal["any", "word-start"] = key("any", "Which tokens may be targets: any, or the first of a word.")
    seed: int = key(0, "Seed of the windows, of their null contexts and of `random`.")
    path: Literal["compact", "plain", "masked"] = key(
        "compact",
        "compact: only the visible tokens are run, and nothing twice. plain: the same by OLMo's own forward pass. masked: all "
        "tokens, under a mask; the definition. The same losses to 1e-5 nats, each slower than the one before.",
    )
    precision: Literal["fp32", "bf16"] = key(
        "fp32", "Of every loss. bf16 is faster where the machine computes in it, and off by what `make bench` shows."
    )
    screen: Optional[int] = key(
        None,
        "unmask-one and kl: rank the candidates cheaply, unmask singly only so many of the best (null: all). Every run then "
        "reports the recall of the exact choice on a sample of its windows.",
    )
    screen_by: Literal["gradient", "unmask-one"] = key(
        "gradient", "The cheap ranking: to first order, or every candidate in screen_precision."
    )
    screen_precision: Literal["auto", "bf16", "fp32"] = key(
        "auto", "Of the cheap ranking. auto: bf16 where the device computes in it, else fp32."
    )
    screen_sample: float = key(
        0.05, "Share of the windows in which nothing is screened as well, to measure the recall."
    )
    data: Optional[str] = key(None, "Text to measure (as data.source); null: the run's validation documents.")
    max_documents: Optional[int] = key(
        None, "Documents of `influence.data` to read at most (null: all; of c4, 20 for each window)."
    )
    save_candidates: bool = key(False, "Also write the loss of every single-token unmasking.")
    windows_per_part: int = key(256, "Windows in one part file: what an interruption can lose.")
    batch_tokens: Optional[int] = key(
        None, "Tokens of one forward pass (null: on a GPU as many as its memory holds, on a CPU as its cache does)."
    )

    def __post_init__(self) -> None:
        for name in ("num_windows", "max_windows_per_document", "windows_per_part", "lasso_masks"):
            require(getattr(self, name) > 0, f"influence.{name} = {getattr(self, name)}: must be positive")
        for name in ("batch_tokens", "screen"):
            value = getattr(self, name)
            require(value is None or value > 0, f"influence.{name} = {value}: must be positive, or null")
        require(
            0 < self.screen_sample <= 1,
            f"influence.screen_sample = {self.screen_sample}: must be above 0, since the recall is measured in every run, "
            "and at most 1",
        )
        require(self.seed >= 0, f"influence.seed = {self.seed}: must not be negative")
        require(
            self.max_documents is None or self.max_documents > 0,
            f"influence.max_documents = {self.max_documents}: must be positive, or null",
        )
        require(
            len(self.k) > 0 and all(k > 0 for k in self.k) and list(self.k) == sorted(set(self.k)),
            f"influence.k = {list(self.k)}: must be positive numbers, rising, each once",
        )
        _check_selectors("influence.selectors", self.selectors)


@dataclass(frozen=True)
class ContextCurveConfig:
    """`olmo-sparsity context-curve`: the loss against the number of visible recent tokens; windows as for influence."""

    max_visible: Optional[int] = key(None, "The longest visible context, in tokens (null: twice context.full_len).")

    def __post_init__(self) -> None:
        require(
            self.max_visible is None or self.max_visible > 0,
            f"context_curve.max_visible = {self.max_visible}: must be positive, or null",
        )


@dataclass(frozen=True)
class ValidationConfig:
    """`olmo-sparsity validate`: do the selectors find what is known to have been planted."""

    num_windows: int = key(300, "Windows of each suite and number of planted tokens.")
    k: list[int] = key([1, 2, 4, 8], "Numbers of found tokens at which precision and recall are taken.")
    selectors: list[str] = key(list(SELECTORS), f"Of {', '.join(SELECTORS)}.")
    needle_copies: list[int] = key([1, 2], "Copies of the needle among the long-range tokens.")
    solver_steps: int = key(1500, "Training steps of the model that solves the planted-correlation sequences.")
    seed: int = key(0, "Seed of all that is planted.")

    def __post_init__(self) -> None:
        for name in ("num_windows", "solver_steps"):
            require(getattr(self, name) > 0, f"validation.{name} = {getattr(self, name)}: must be positive")
        require(self.seed >= 0, f"validation.seed = {self.seed}: must not be negative")
        for name in ("k", "needle_copies"):
            values = getattr(self, name)
            require(
                len(values) > 0 and all(v > 0 for v in values) and list(values) == sorted(set(values)),
                f"validation.{name} = {list(values)}: must be positive numbers, rising, each once",
            )
        _check_selectors("validation.selectors", self.selectors)
