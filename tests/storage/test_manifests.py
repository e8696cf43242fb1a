"""Manifests are read once, and each kind has its keys with their types: what is damaged gets one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.manifests import checked, need

CHECK = {
    "chosen": "bos", "text": "<s>", "num_windows": 64, "loss_short_nats": {"bos": 3.0, "none": 3.1},
    "loss_long_nats": {"bos": 2.0, "none": 2.1}, "standard_error_short_nats": None, "standard_error_nats": 0.1,
}  # fmt: skip
WHOLE: dict[str, dict[str, Any]] = {
    "influence": {
        "run_id": "a",
        "num_parts": 1,
        "context": {"local_len": 8, "full_len": 20, "num_long_range": 12},
        "fit": {"anchor": {**CHECK, "lower_with": {"short": None, "long": "bos"}}},
    },
    "synthetic": {
        "run_id": "a",
        "num_parts": 1,
        "context": {"max_position": 20, "num_long_range": 12},
        "task": "parity",
        "scratchpad": False,
        "positions": "pose",
        "max_sparsity": 4,
        "modulus": 2,
        "background": "noise",
        "num_chunks": 2,
        "position_embedding": "rope",
        "train_lengths": [8, 20],
        "training_seed": 0,
    },
    "run": {"status": "running", "config": {}},
    "tokens": {"status": "complete"},
}
DELETED = object()


def manifest(kind: str, dotted: str = "", value: object = None) -> dict[str, Any]:
    """Return the manifest of a kind, whole or with another value of one key."""
    changed: dict[str, Any] = {"kind": kind, **WHOLE[kind]}
    *parents, key = dotted.split(".")
    inner = changed
    for name in parents:
        inner[name] = dict(inner[name])
        inner = inner[name]
    if value is DELETED:
        del inner[key]
    elif dotted:
        inner[key] = value
    return changed


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_manifest_is_returned_with_all_of_its_keys(kind: str, tmp_path: Path) -> None:
    written = {**manifest(kind), "more": 1}
    assert checked(written, where=tmp_path) is written


@pytest.mark.parametrize(
    ("kind", "dotted", "value", "line"),
    [
        ("influence", "context.full_len", "20", "key context.full_len: expected int, got str"),
        ("influence", "num_parts", 0, "key num_parts: expected int >= 1"),
        ("influence", "finished", None, "key finished: expected str, got null"),
        (
            "influence", "fit.anchor.lower_with", {"short": None, "long": "eos"},
            "key fit.anchor.lower_with[...]: invalid enum value 'eos'",
        ),
        ("influence", "fit.anchor.lower_with", {}, "key fit.anchor.lower_with: expected object of length >= 2"),
        ("influence", "fit.anchor.loss_long_nats", {"bos": 2.0}, "key fit.anchor.loss_long_nats: expected object of length >= 2"),
        ("synthetic", "task", 3, "key task: expected str, got int"),
        ("synthetic", "task", "sums", "key task: invalid enum value 'sums'"),
        ("synthetic", "positions", "nope", "key positions: invalid enum value 'nope'"),
        ("synthetic", "num_parts", 10**15, "key num_parts: expected int <= 10000000"),
        ("synthetic", "context.max_position", DELETED, "key context.max_position is missing"),
        ("synthetic", "train_lengths", [8], "key train_lengths: expected array of length 2, got 1"),
        ("synthetic", "training_seed", DELETED, "key training_seed is missing"),
        ("run", "config", {"training": {"steps": "x"}}, "key config.training.steps: expected int, got str"),
        ("run", "config", {"training": {"steps": 0}}, "training.steps = 0: must be at least 1"),
        ("tokens", "documents", -5, "key documents: expected int >= 0"),
        ("tokens", "skipped", {"empty": -1}, "key skipped[...]: expected int >= 0"),
        ("tokens", "dtype", "<f8", "key dtype: invalid enum value '<f8'"),
    ],
)  # fmt: skip
def test_a_damaged_manifest_gets_one_line(kind: str, dotted: str, value: object, line: str) -> None:
    with pytest.raises(UserError) as caught:
        checked(manifest(kind, dotted, value), where=Path("manifest.json"))
    assert str(caught.value).startswith(f"manifest.json: {line}")
    assert "\n" not in str(caught.value)


def test_a_key_without_a_value_is_missing() -> None:
    """Also one that is there with null; 0, false and what is empty are values."""
    values = {"a": 0, "b": False, "c": "", "d": [], "e": None}
    need(values, "a", "b", "c", "d", where=Path("m.json"))
    for key in ("e", "f"):
        with pytest.raises(
            UserError, match=rf"^m\.json: key {key} is missing; the file is damaged, or of another version of"
        ):
            need(values, "a", key, where=Path("m.json"))
