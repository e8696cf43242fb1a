"""Which model ``open_model`` opens, how it is measured, and what is refused, in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers_models import build_raw, byte_tokenizer, save

from olmo_sparsity import api
from olmo_sparsity.errors import UserError

LENGTHS: dict[str, Any] = {"local_len": 8, "full_len": 20, "device": "cpu"}
TEXTS = [
    "The ship lay still in the dark, and no wind came. " * 2,
    "We ate bread, and the old dog slept by the fire. " * 2,
]
TEXT, ROW = "the river of the garden was quiet " * 8, list(range(1, 22))


def test_a_run_is_measured_as_its_configuration_and_the_arguments_say(tiny_run: Path) -> None:
    model = api.open_model(tiny_run, local_len=7, overrides=["influence.seed=3"])
    assert (model.lengths.local_len, model.lengths.full_len, model.config.influence.seed) == (7, 20, 3)
    assert repr(model).startswith("Model('tiny', 0.0331M parameters, fp32 on cpu, local_len 7, full_len 20, hidden, no")


@pytest.mark.parametrize("kind", ["llama", "gpt-2"])
def test_a_model_in_memory_gives_what_its_folder_gives(kind: str, tmp_path: Path) -> None:
    raw = save(tmp_path / "model", kind)
    found = []
    for given in ((raw, byte_tokenizer()), tmp_path / "model"):
        model = api.open_model(given, **LENGTHS)
        windows = api.windows_from_texts(model, TEXTS, num_windows=6)
        found.append(api.measure(model, windows, selectors=["kl", "attention"], k=[1, 2], resampled_draws=0))
    for name in ("loss_short_nats", "loss_long_nats"):
        np.testing.assert_allclose(found[0].windows[name], found[1].windows[name], atol=1e-5)
    losses = [np.stack(results.selections["loss_sparse_nats"].to_list()) for results in found]
    np.testing.assert_allclose(*losses, atol=1e-5)
    records = [results.manifest["model"] for results in found]
    for key in ("architecture", "num_parameters", "max_position"):
        assert records[0][key] == records[1][key]
    assert records[0]["name"] == type(raw).__name__ and not Path("runs").exists()  # nothing is written


def test_a_tokenizer_that_is_opened_twice_is_the_same(model: api.Model, tiny_run: Path) -> None:
    windows = api.windows_from_texts(api.open_model(tiny_run), [TEXT], num_windows=1)
    assert len(api.losses(model, windows, [[]])) == 1


def test_a_model_in_memory_stays_as_it_is_and_is_known_by_its_weights() -> None:
    raw = build_raw("llama").to(torch.bfloat16)
    raw.name_or_path = "org/small"
    model = api.open_model((raw, byte_tokenizer(adds_bos=True)), **LENGTHS)
    assert repr(model).startswith("Model('org/small', ")
    assert model.model.raw is raw and raw.dtype == torch.bfloat16 and model.precision == "bf16"
    again, other = (
        api.open_model((build_raw("llama", **of), byte_tokenizer()), **LENGTHS) for of in ({}, {"hidden_size": 16})
    )
    changed = build_raw("llama")
    with torch.no_grad():
        changed.lm_head.weight[0, 0] += 1
    of_changed = api.open_model((changed, byte_tokenizer()), **LENGTHS)
    assert len({of.weights_sha256 for of in (model, again, other, of_changed)}) == 4


def test_the_anchor_stands_in_front_or_is_left_out(tmp_path: Path) -> None:
    """Against the loss of transformers' own forward pass."""
    raw, found = save(tmp_path), []
    for anchor in ("bos", "none"):
        model = api.open_model(tmp_path, **LENGTHS, anchor=anchor)
        assert repr(model).startswith(f"Model({str(tmp_path)!r}, ")
        assert repr(model).endswith(", anchor '<s>')" if anchor == "bos" else ", no anchor)")
        window = api.window_at(model, TEXTS[0], at=len(TEXTS[0]) - 2)
        *tokens, target = window.windows.tokens(np.array([0]))[0].tolist()
        row = [model.tokenizer.token_to_id("<s>"), *tokens] if anchor == "bos" else tokens
        found.append(-float(raw(torch.tensor([row])).logits[0, -1].detach().log_softmax(-1)[target]))
        assert api.losses(model, window, [range(12)])["loss_nats"][0] == pytest.approx(found[-1], abs=1e-4)
    assert abs(found[0] - found[1]) > 0.01


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> api.Model:
    return api.open_model(tiny_run)


@pytest.fixture(scope="module")
def windows(model: api.Model) -> api.ChosenWindows:
    return api.windows_from_texts(model, [TEXT], num_windows=3)


Call = Callable[[api.Model, api.ChosenWindows, Path], Any]
REFUSED: list[tuple[Call, str]] = [
    (lambda m, w, run: api.open_model(5), "model = 5: must be a path, a name, or (model, tokenizer)"),
    (lambda m, w, run: api.open_model("runs/demo"), "model = runs/demo: no such folder or file, seen from "),
    (lambda m, w, run: api.open_model("one/two/three"), "one/two/three: no such folder or file"),
    (lambda m, w, run: api.open_model(run, full_len=21), "influence.full_len = 21: the run is trained with 20 positions"),
    (lambda m, w, run: api.open_model(run, full_len="x"), "full_len"),
    (lambda m, w, run: api.open_model(run, lenght=3), "lenght"),
    (lambda m, w, run: api.open_model(run, revision="main"), "revision"),
    (lambda m, w, run: api.open_model(run, overrides="a=1"), "overrides: expected list, got str"),
    (lambda m, w, run: api.open_model(run, overrides=["model.n_layers=9"]), "leave it out, or restore it in config.yaml"),
    (lambda m, w, run: api.open_model((build_raw("mamba"), byte_tokenizer()), **LENGTHS), "takes no position IDs"),
    (
        lambda m, w, run: api.open_model((build_raw("llama"), byte_tokenizer()), **LENGTHS | {"full_len": 65}),
        "full_len = 65: the model was trained on 64 positions",
    ),
    (lambda m, w, run: api.scores(m, w, selectors=[peeking]), "UndeclaredTargetError: losses and the target are for"),
    (lambda m, w, run: api.explore(m, "a" * 250_001), "text: 250,001 characters, and a page holds 250,000"),
    (lambda m, w, run: api.windows_from_texts(m, TEXT), "texts: expected list, got str"),
    (lambda m, w, run: api.windows_from_texts(m, [TEXT, b"x"]), "texts[1]: expected str, got bytes"),
    (lambda m, w, run: api.windows_from_texts(m, [TEXT, "a\ud800"]), "texts: 'utf-8' codec can't encode character"),
    (lambda m, w, run: api.windows_from_texts(m, ["", ""]), "texts: there is no text with a token in it"),
    (lambda m, w, run: api.windows_from_texts(m, ["short"]), "0 of its 1 documents hold a window"),
    (lambda m, w, run: api.windows_from_texts(m, [TEXT], num_windows=2.5), "num_windows: expected int, got float"),
    (lambda m, w, run: api.windows_from_texts(m, [TEXT], num_windows=0), "num_windows"),
    (lambda m, w, run: api.windows_from_texts(m, [TEXT], seed=-1), "seed"),
    (lambda m, w, run: api.window_at(m, TEXT, at=True), "at: expected int, got bool"),
    (lambda m, w, run: api.window_at(m, TEXT, at=1000), "the text has 272 characters"),
    (lambda m, w, run: api.window_at(m, TEXT + "\ud83d", at=200), "text: 'utf-8' codec can't encode character"),
    (lambda m, w, run: api.windows_from_tokens(m, None), "token_ids: expected list, got None"),
    (lambda m, w, run: api.windows_from_tokens(m, []), "token_ids: there are no windows"),
    (lambda m, w, run: api.windows_from_tokens(m, np.arange(21)), "token_ids[0]: expected list, got int"),
    (lambda m, w, run: api.windows_from_tokens(m, [ROW, ["5", *ROW[1:]]]), "token_ids[1][0]: expected int, got str"),
    (lambda m, w, run: api.windows_from_tokens(m, np.array([ROW]) + 0.5), "token_ids[0][0]: expected int, got float"),
    (lambda m, w, run: api.windows_from_tokens(m, np.ones((1, 21), dtype=bool)), "token_ids[0][0]: expected int, got bool"),
    (lambda m, w, run: api.windows_from_tokens(m, [ROW[1:]]), "token_ids[0]: must hold full_len = 20 tokens and the target"),
    (lambda m, w, run: api.windows_from_tokens(m, [ROW, [*ROW[1:], 320]]), "token_ids[1]: must hold full_len = 20 tokens"),
    (lambda m, w, run: api.windows_from_tokens(m, [[-1, *ROW[1:]]]), "each from 0 to 319; it has 21"),
    (lambda m, w, run: api.windows_from_tokens(m, [[10**30, *ROW[1:]]]), "each from 0 to 319"),
    (lambda m, w, run: api.windows_from_tokens(m, [ROW], doc_ids=5), "doc_ids: expected list | None, got int"),
    (lambda m, w, run: api.windows_from_tokens(m, [ROW, ROW], doc_ids=["a"]), "doc_ids: must name the document of each of the 2"),
    (lambda m, w, run: api.windows_from_tokens(m, [ROW, ROW], doc_ids=["a", pd.NA]), "doc_ids: must name the document of each"),
    (lambda m, w, run: api.measure("runs/tiny", w), "model: expected OpenedModel, got str"),
    (lambda m, w, run: api.measure(m, w.frame), "windows: expected ChosenWindows, got DataFrame"),
    (lambda m, w, run: api.measure(m, w, selectors="kl"), "selectors: expected list | None, got str"),
    (lambda m, w, run: api.measure(m, w, selectors=["best"]), "no selector is named"),
    (lambda m, w, run: api.measure(m, w, selectors=[]), "selector"),
    (lambda m, w, run: api.measure(m, w, selectors=[5]), "'5': name a selector by a letter"),
    (lambda m, w, run: api.measure(m, w, k=[1.5]), "k[0]: expected int, got float"),
    (lambda m, w, run: api.measure(m, w, k=[13]), "influence.k = [13]"),
    (lambda m, w, run: api.measure(m, w, k="every"), "k: invalid"),
    (lambda m, w, run: api.measure(api.open_model(run, full_len=16), w), "windows: made for other lengths than the model's"),
    (lambda m, w, run: api.measure(api.open_model(run, local_len=5), w), "windows: made for other lengths than the model's"),
    (lambda m, w, run: api.scores(api.open_model((build_raw("llama"), byte_tokenizer()), **LENGTHS), w), "another tokenizer"),
    (lambda m, w, run: api.losses(m, w, [[0.9]]), "visible[0][0]: expected int, got float"),
    (lambda m, w, run: api.losses(m, w, [[12]]), "visible: windows are 0 to 2, long-range positions 0 to 11"),
    (lambda m, w, run: api.losses(m, w, [[-1]]), "visible: windows are 0 to 2, long-range positions 0 to 11"),
    (lambda m, w, run: api.losses(m, w, frame(window_id=[3], positions=[[1]])), "visible: windows are 0 to 2"),
    (lambda m, w, run: api.losses(m, w, frame(window_id=[0.5], positions=[[1]])), "visible.window_id[0]: expected int"),
    (lambda m, w, run: api.losses(m, w, frame(window=[0])), "visible.window_id: expected list, got None"),
    (lambda m, w, run: api.losses(m, w, frame(window_id=[0], positions=[[1]], context=["null"])), "visible.context: sets are"),
    (lambda m, w, run: api.explore(m, "Q" * 20), "text: 20 tokens, and a window takes 20"),
    (lambda m, w, run: api.explore(m, TEXT, k=[13]), "influence.k"),
    (lambda m, w, run: api.read_results(run.parent), "run `olmo-sparsity influence` first"),
]  # fmt: skip


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


def peeking(s: Any) -> Any:
    return s.loss_single


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[f"{number}" for number in range(len(REFUSED))])
def test_mistakes_are_one_line(
    call: Call, said: str, model: api.Model, windows: api.ChosenWindows, tiny_run: Path
) -> None:
    with pytest.raises(UserError) as error:
        call(model, windows, tiny_run)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_model_that_does_not_fit_is_refused_when_it_is_measured() -> None:
    model = api.open_model((build_raw("falcon with ALiBi"), byte_tokenizer()), **LENGTHS)
    for measured in (api.measure, api.scores):
        with pytest.raises(UserError, match=r"^FalconForCausalLM cannot be measured: "):
            measured(model, api.windows_from_texts(model, TEXTS, num_windows=3), selectors=["kl"])


def test_numbers_and_columns_of_other_libraries_are_taken(model: api.Model, windows: api.ChosenWindows) -> None:
    expected = api.windows_from_tokens(model, [ROW, ROW[::-1]]).windows.sha256
    for rows in (
        np.array([ROW, ROW[::-1]], dtype=np.uint16),
        [np.array(ROW), np.array(ROW[::-1])],
        torch.tensor([ROW, ROW[::-1]]),
        pd.Series([ROW, np.array(ROW[::-1])]),
        (range(1, 22), range(21, 0, -1)),
    ):
        assert api.windows_from_tokens(model, rows).windows.sha256 == expected  # type: ignore[arg-type]
    given = api.scores(model, windows, selectors=np.array(["kl"]), max_k=np.int32(2), seed=np.uint8(1))  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(given, api.scores(model, windows, selectors=["kl"], max_k=2, seed=1))
