"""The Python functions against the tables that the command wrote for the same windows, and against the definition."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import made_up_text
from transformers_models import save_with_words

from olmo_sparsity import api
from olmo_sparsity.config import Config, PretrainedConfig
from olmo_sparsity.measure.influence import measure

NATS = 1e-5  # forward passes of another size round differently
SELECTORS = ["kl", "unmask-one", "gradient", "attention", "random"]
TEXTS = [
    "the river of the garden was quiet " * 8,
    "a yellow lamp in the window and a letter to the doctor " * 6,
    "short",
]


@pytest.fixture(scope="module", params=["run", "hidden", "contextual"])
def of_command(
    request: pytest.FixtureRequest, tiny_config: Config, tiny_run: Path, corpus_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[api.Model, api.Results]:  # fmt: skip
    """A run, or a pretrained model under one of the visibilities, and what ``olmo-sparsity influence`` measured."""
    visibility = "hidden" if request.param == "run" else request.param
    settings = {"num_windows": 12, "selectors": SELECTORS, "k": [1, 2, 8], "visibility": visibility}
    config = dataclasses.replace(tiny_config, influence=dataclasses.replace(tiny_config.influence, **settings))
    if request.param == "run":
        tables = measure(config, tiny_run, out=tmp_path_factory.mktemp("of_run") / "tables")
        return api.open_model(tiny_run), api.read_results(tables)
    texts = [json.loads(line)["text"] for line in corpus_file.read_text().splitlines()]
    folder = save_with_words(tmp_path_factory.mktemp("models") / "llama", texts)
    config = dataclasses.replace(config, pretrained=PretrainedConfig(str(folder)))
    results = api.read_results(measure(config, tmp_path_factory.mktemp("runs") / "llama"))
    return api.open_model(folder, local_len=8, full_len=20, visibility=visibility), results


@pytest.fixture(scope="module")
def windows(of_command: tuple[api.Model, api.Results]) -> api.ChosenWindows:
    model, results = of_command
    rows = [
        [*ids, target] for ids, target in zip(results.windows["token_ids"], results.windows["target_id"], strict=True)
    ]
    return api.windows_from_tokens(model, rows, doc_ids=results.windows["doc_id"])


@pytest.fixture(scope="module")
def measured(of_command: tuple[api.Model, api.Results], windows: api.ChosenWindows) -> api.Results:
    return api.measure(of_command[0], windows, selectors=SELECTORS, k=[1, 2, 8])


def same(first: pd.Series, second: pd.Series) -> None:
    np.testing.assert_allclose(np.stack(first.to_list()), np.stack(second.to_list()), atol=NATS, rtol=0)


def test_a_measurement_has_the_numbers_and_the_manifest_of_the_command(
    of_command: tuple[api.Model, api.Results], windows: api.ChosenWindows, measured: api.Results
) -> None:
    """Everything but the null contexts, which are drawn from other windows here."""
    _, command = of_command
    for name in ("doc_id", "token_ids", "target_text"):
        assert list(map(list, windows.frame[name])) == list(map(list, command.windows[name]))
    assert list(measured.windows) == list(command.windows) and list(measured.selections) == list(command.selections)
    for name in ("loss_short_nats", "loss_long_nats", "kl_short_nats", "resampled_loss_short_nats", "loss_last_nats"):
        same(measured.windows[name], command.windows[name])
    own, table = (of.selections.query("context in ('real', 'resampled')") for of in (measured, command))
    for name in ("window_id", "selector", "context", "draw", "sees_target", "num_evaluations"):
        assert own[name].tolist() == table[name].tolist()
    for name in ("scores", "positions", "loss_sparse_nats", "gain_sparse_nats"):
        same(own[name], table[name])
    same(own.query("context == 'real'")["kl_sparse_nats"], table.query("context == 'real'")["kl_sparse_nats"])
    for key in ("visibility", "anchor", "model", "context", "num_parameters", "precision", "tokenizer_sha256"):
        assert measured.manifest.get(key) == command.manifest.get(key), key


def test_scores_and_losses_are_those_of_the_tables(
    of_command: tuple[api.Model, api.Results], windows: api.ChosenWindows
) -> None:
    model, command = of_command
    frame = api.scores(model, windows, selectors=SELECTORS)
    assert list(frame)[:4] == ["window_id", "selector", "position", "last_position"]
    assert (frame["distance_tokens"] == 20 - frame["position"]).all()
    assert frame["text"][3] == command.windows["token_texts"][0][3]
    for name in SELECTORS:
        own = frame[frame["selector"] == name].pivot(index="window_id", columns="position", values="score")
        rows = command.selections.query(f"selector == '{name}' and context == 'real'")
        np.testing.assert_allclose(own.to_numpy(), np.stack(rows["scores"].to_list()), atol=NATS)
    chosen = command.selections.query("selector == 'kl' and context == 'real'").sample(frac=1, random_state=0)
    lost = api.losses(model, windows, chosen.assign(positions=[row[:2] for row in chosen["positions"]]))
    np.testing.assert_allclose(lost["loss_nats"], [row[1] for row in chosen["loss_sparse_nats"]], atol=NATS)
    np.testing.assert_allclose(lost["kl_nats"], [row[1] for row in chosen["kl_sparse_nats"]], atol=NATS)
    ends = api.losses(model, windows, [[], range(12)])["loss_nats"]
    np.testing.assert_allclose(
        ends, command.windows[["loss_short_nats", "loss_long_nats"]].to_numpy().ravel(), atol=NATS
    )


@pytest.fixture(scope="module")
def run(tiny_run: Path) -> api.Model:
    return api.open_model(tiny_run)


def test_groups_have_the_tokens_of_their_positions(run: api.Model) -> None:
    texts = [f"{text} {number}" for number in range(12) for text in TEXTS]
    windows = api.windows_from_texts(run, texts, num_windows=70)  # more than a batch
    blocks = api.scores(run, windows, selectors=["nearest"], unit="block:5", max_k=3)
    first, last = (blocks[name].to_numpy().reshape(70, -1) for name in ("position", "last_position"))
    assert (first[:, 0] == 0).all() and (first[:, 1:] == last[:, :-1] + 1).all() and (last[:, -1] == 11).all()
    assert (blocks["distance_tokens"] == 20 - blocks["last_position"]).all()
    few = api.windows_from_texts(run, texts, num_windows=4)
    assert api.scores(run, few, selectors=["greedy"])["score"].max() == 8
    words = api.scores(run, few, selectors=["kl", "random"], unit="word", seed=5)
    for of, frame, name in ((windows, blocks, "nearest"), (few, words, "kl"), (few, words, "random")):
        found = frame[frame["selector"] == name].groupby("window_id")["text"].sum()
        assert all(window.startswith(text) for window, text in zip(of.frame["text"], found, strict=True))
    measured = api.measure(run, few, selectors=["random"], k=[1], seed=5, resampled_draws=0, unit="word")
    rows = measured.selections.query("context == 'real'")["scores"]
    drawn = words.query("selector == 'random'").groupby("window_id")["score"].apply(list)
    assert [row.tolist() for row in rows] == drawn.tolist()


def test_how_windows_were_chosen_is_in_the_manifest_and_the_fingerprint(tiny_run: Path, run: api.Model) -> None:
    """Drawn as the configuration says, or given; with the null contexts that they have."""

    def manifest(model: api.Model, windows: api.ChosenWindows) -> dict[str, object]:
        return api.measure(model, windows, selectors=["nearest"], k=[1], resampled_draws=0).manifest

    drawing = api.open_model(tiny_run, min_preceding=40, targets="word-start", max_windows_per_document=2, seed=3)
    drawn = api.windows_from_texts(drawing, TEXTS, num_windows=30)
    assert len(drawn) == 4 and set(drawn.frame["doc_id"].value_counts()) == {2}
    assert all(text[0].isspace() and text[1].isalpha() for text in drawn.frame["target_text"])
    tokens = drawn.windows.tokens(np.arange(4))
    shuffling = api.open_model(tiny_run, null_context="shuffled")
    found = [
        manifest(drawing, drawn),
        manifest(run, api.windows_from_tokens(run, tokens)),
        manifest(run, api.windows_from_tokens(run, tokens, seed=4)),
        manifest(run, api.windows_from_tokens(run, tokens[:3])),
        manifest(shuffling, api.windows_from_tokens(shuffling, tokens)),
        manifest(run, api.windows_from_tokens(run, tokens[:1])),
    ]
    assert len({one["run_id"] for one in found}) == len(found)
    assert manifest(run, api.windows_from_tokens(run, tokens))["run_id"] == found[1]["run_id"]
    settings = [one["influence"] for one in found]
    assert [of["null_context"] for of in settings] == [*["document"] * 4, *["shuffled"] * 2]  # one window has no other
    assert [of["windows_seed"] for of in settings] == [3, 0, 4, 0, 0, 0]
    assert (settings[0]["num_windows"], settings[0]["targets"], settings[0]["min_preceding"]) == (30, "word-start", 40)
    assert all(of["sampling"] == "given" and "targets" not in of for of in settings[1:])


def test_windows_have_the_tokens_documents_and_seeds_that_are_given(run: api.Model) -> None:
    frame = api.windows_from_texts(
        run, [f"{text} {number}" for number in range(4) for text in TEXTS], num_windows=9
    ).frame
    ids = [run.tokenizer.encode(f"{text} {number}").ids for number in range(4) for text in TEXTS]
    for row in frame.itertuples():
        window = [*row.token_ids, row.target_id]
        assert any(window == of[at : at + 21] for of in ids for at in range(len(of)))
    text = made_up_text(np.random.default_rng(3), 40)
    ((before, target),) = api.window_at(run, text, at=100).frame[["text", "target_text"]].to_numpy()
    assert text.index(before + target) + len(before) <= 100 < text.index(before + target) + len(before + target)
    named = api.windows_from_tokens(run, [[1] * 21, [2] * 21], doc_ids=["0123456789abcdef", 7])
    assert named.frame["doc_id"][0] == "0123456789abcdef" and len(named) == 2
    for make in (
        lambda seed: api.windows_from_texts(run, TEXTS, num_windows=6, seed=seed),
        lambda seed: api.windows_from_tokens(run, np.arange(12 * 21).reshape(12, 21) % 300, seed=seed),
        lambda seed: api.window_at(run, TEXTS[0] * 9, at=900, seed=seed),
    ):
        first, again, other = (make(seed).null_contexts.window_tokens(np.arange(1)).tolist() for seed in (5, 5, 6))
        assert first == again != other


def test_a_bos_in_front_of_the_anchor_is_not_doubled(of_command: tuple[api.Model, api.Results]) -> None:
    """As ``tokenizer.encode`` puts it there."""
    model, _ = of_command
    if model.record is None:
        ids, plain = [5, *model.tokenizer.encode(TEXTS[0]).ids[:20]], None
        assert api.windows_from_tokens(model, [ids]).frame["token_ids"][0].tolist() == ids[:-1]  # no anchor, no BOS
        return
    assert model.anchor is not None
    ids = model.tokenizer.encode(TEXTS[0]).ids
    plain = model.tokenizer.encode(TEXTS[0], add_special_tokens=False).ids
    assert ids == [model.anchor.id, *plain]
    lost = [api.losses(model, api.windows_from_tokens(model, [row]), [[], [1]]) for row in (ids[:22], plain[:21])]
    pd.testing.assert_frame_equal(*lost)


def test_windows_of_a_later_batch_have_numbers_of_their_own(tiny_run: Path) -> None:
    model, rng = api.open_model(tiny_run), np.random.default_rng(3)
    rows = rng.integers(2, 300, (70, 21))
    late = api.windows_from_tokens(model, rows[66:])
    sets = pd.DataFrame({"window_id": [69, 0, 67], "positions": [[1, 2], [], [5]]})
    found = api.losses(model, api.windows_from_tokens(model, rows), sets)["loss_nats"]
    alone = api.losses(model, late, sets.assign(window_id=[3, 0, 1]))["loss_nats"]
    assert found[[0, 2]].tolist() == pytest.approx(alone[[0, 2]].tolist(), abs=NATS) and found[0] != found[2]
    of_all, of_late = (api.scores(model, of) for of in (api.windows_from_tokens(model, rows), late))
    assert of_all["score"].to_numpy()[-48:] == pytest.approx(of_late["score"].to_numpy(), abs=NATS)
    assert of_all["window_id"].tolist()[-48:] == (of_late["window_id"] + 66).tolist()
