"""Whose mean the numbers of one's own windows are: how they were chosen is done as it is said, and said as it was done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from olmo_sparsity import api

DRAW = ["influence.min_preceding=40", "influence.targets=word-start"]


@pytest.fixture(scope="module")
def texts(corpus_file: Path) -> list[str]:
    long = [json.loads(line)["text"] for line in corpus_file.read_text().splitlines()]
    return [text for text in long if len(text) > 250][:12]


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> api.Model:
    return api.open_model(tiny_run)


@pytest.fixture(scope="module")
def given(model: api.Model, tiny_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved measurement of some windows of a table."""
    windows = api.windows_from_table(model, api.read_results(tiny_tables).windows.head(6), seed=5)
    return measured(model, windows).save(tmp_path_factory.mktemp("given") / "windows")


def measured(model: api.Model, windows: api.ChosenWindows) -> api.Results:
    return api.measure(model, windows, selectors=["kl", "random"], k=[1], resampled_draws=0)


def test_targets_are_drawn_as_the_configuration_says(tiny_run: Path, texts: list[str]) -> None:
    model = api.open_model(tiny_run, overrides=[*DRAW, "influence.max_windows_per_document=2", "influence.seed=3"])
    windows = api.windows_from_texts(model, texts, num_windows=30)
    frame = windows.frame
    assert (frame["start_token"] + 20 >= 40).all()
    assert all(re.match(r"\s\w", text) for text in frame["target_text"])
    counts = frame["doc_id"].value_counts()
    assert max(counts) == 2
    again = api.windows_from_texts(model, texts, num_windows=30, max_per_document=2, seed=3)
    pd.testing.assert_frame_equal(again.frame, frame)
    results = measured(model, windows)
    settings = results.manifest["influence"]
    assert (settings.get("sampling", "targets"), settings["min_preceding"]) == ("targets", 40)
    assert settings["num_windows"] == 30 and results.manifest["num_windows"] == len(frame) < 30
    assert (settings["max_windows_per_document"], settings["windows_seed"]) == (2, 3)


def test_by_default_every_eligible_target_counts_alike(model: api.Model, texts: list[str]) -> None:
    results = measured(model, api.windows_from_texts(model, texts, num_windows=10, seed=2))
    settings = results.manifest["influence"]
    assert settings.get("sampling", "targets") == "targets"
    assert (settings["seed"], settings["windows_seed"], settings["num_windows"]) == (0, 2, 10)
    assert settings["resampled_draws"] == 0
    assert not {"data", "max_documents", "train_overlap"} & set(settings)  # of a corpus, which this is not


def test_windows_that_were_given_are_no_sample(tiny_run: Path, texts: list[str]) -> None:
    """Whatever the configuration says of drawing."""
    model = api.open_model(tiny_run, overrides=DRAW)
    drawn = api.windows_from_texts(model, texts, num_windows=3)
    rows = drawn.windows.tokens(np.arange(3))
    for windows in (
        api.windows_from_tokens(model, rows),
        api.windows_from_table(model, measured(model, drawn).windows),
        api.window_at(model, texts[0], at=len(texts[0]) - 1),
    ):
        results = measured(model, windows)
        settings = results.manifest["influence"]
        assert settings["sampling"] == "given"
        assert not {"num_windows", "max_windows_per_document", "targets", "min_preceding"} & set(settings)


def test_another_choice_of_null_contexts_is_another_measurement(
    model: api.Model, given: Path, tiny_tables: Path
) -> None:
    table = api.read_results(tiny_tables).windows.head(6)
    run_ids = [measured(model, api.windows_from_table(model, table, seed=seed)).manifest["run_id"] for seed in (5, 6)]
    assert run_ids[0] == api.read_results(given).manifest["run_id"] != run_ids[1]
