"""What the snapshots of figures and pages are drawn from: a few folders of invented tables, made once a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up import CONTEXTUAL, made_up_tables
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from varied_tables import vary

from benchmarks.generated_tables import PRETRAINED, write_tables

BF16 = {"precision": "bf16"}


class TextExtension(SingleFileSnapshotExtension):
    """A text file for each snapshot, so that a change of it is read as a change of text."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def text_snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """A snapshot in a file of its own."""
    return snapshot.use_extension(TextExtension)


@pytest.fixture(scope="session")
def varied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tables by name.

    ``own``: of a run whose rows are longer than the local context; both gates pass. ``failed``: both fail, few documents.
    ``row``: rows as long as the local context. ``stranger``: of a pretrained model with an anchor, in bf16, with too
    few documents for intervals. ``words``: k counts words. ``long``: many long-range tokens, and k up to all of them.
    """
    folder = tmp_path_factory.mktemp("varied")

    def made(name: str, manifest: dict[str, Any] | None = None, *, unit: str = "token", **options: Any) -> Path:
        return vary(made_up_tables(folder / name, **options), unit=unit, **{"run": f"of-{name}", **(manifest or {})})

    write_tables(folder / "long", 330, invented=replace(PRETRAINED, ks=[1, 2, 4, 8, 16, 32, 64]))
    return {
        "own": made(
            "own", num_documents=320, gain_beyond=0.2, seed=11,
            selectors=["kl", "attention", "greedy-kl", "unmask-one", "lasso", "random", "nearest"],
        ),
        "failed": made(
            "failed", num_documents=64, long_gain=0.0, gain_beyond=0.0, seed=12, gap_cost=0.05,
            selectors=["unmask-one", "gradient", "kl", "random"],
        ),
        "row": made("row", num_documents=70, seed=13, long_gain=0.19, selectors=["attention", "random", "mask-one"]),
        "stranger": made(
            "stranger", BF16, num_documents=40, seed=14, setup=CONTEXTUAL,
            selectors=["unmask-one", "kl", "random"],
        ),
        "words": made("words", num_documents=66, seed=15, unit="word", gain_beyond=0.2, selectors=["kl", "unmask-one", "random"]),
        "long": folder / "long",
    }  # fmt: skip
