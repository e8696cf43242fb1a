"""Which keys of a configuration a trained model depends on, and in which of them two configurations differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

TRAINED_SECTIONS = ("data", "context", "pose", "model", "training", "synthetic")
MEASURED_SECTIONS = ("influence",)  # no training depends on them
# Keys, as (section, key), that may differ from those of a run: when its training resumes, and when it is measured.
FREE_TO_TRAIN = frozenset(
    {
        ("data", "cache_dir"),
        ("data", "processes"),
        ("training", "parallel"),
        ("training", "micro_batch_rows"),
        ("training", "log_every"),
        ("training", "checkpoint_every"),
        ("training", "keep_checkpoints"),
        ("training", "keep_every"),
        ("training", "trackers"),
        ("synthetic", "test_lengths"),
        ("synthetic", "test_sparsity"),
        ("synthetic", "test_row_len"),
        ("synthetic", "test_rows"),
        ("synthetic", "test_seed"),
        ("synthetic", "rope_scaling"),
        ("synthetic", "rope_factor"),
    }
)
FREE_TO_MEASURE = FREE_TO_TRAIN | {
    ("data", "on_error"),
    ("data", "text_field"),
    ("data", "token_dtype"),
    ("training", "device"),
    ("training", "threads"),
}

LENGTHS = ("context.local_len", "context.full_len")


class DifferentKey(NamedTuple):
    """A key in which two configurations differ.

    Attributes:
        dotted: its name, such as ``training.steps``.
        first: its value in the first configuration.
        second: its value in the second.
    """

    dotted: str
    first: Any
    second: Any


def different_keys(
    first: dict[str, Any], second: dict[str, Any], *, free: frozenset[tuple[str, str]]
) -> Iterator[DifferentKey]:
    """Yield the keys that a trained model depends on and in which two configurations differ.

    Args:
        first: a configuration as a manifest holds it (``to_dict``).
        second: another.
        free: (section, key) pairs that may differ.
    """
    for section in TRAINED_SECTIONS:
        of_first, of_second = (config.get(section, {}) for config in (first, second))
        for key in sorted(of_first.keys() | of_second.keys()):
            values = of_first.get(key), of_second.get(key)
            if values[0] != values[1] and (section, key) not in free:
                yield DifferentKey(f"{section}.{key}", *values)
