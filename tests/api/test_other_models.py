"""A pretrained model from Python: the numbers of the command, under both definitions of visible and with an anchor."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_pretrained import save_llama

from olmo_sparsity import api
from olmo_sparsity.config import Config, PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import measure

NATS = 1e-5
SELECTORS = ["kl", "unmask-one", "gradient", "attention", "random"]


@pytest.fixture(scope="module")
def texts(corpus_file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in corpus_file.read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama", texts)


@pytest.fixture(scope="module", params=["hidden", "contextual"])
def of_command(
    request: pytest.FixtureRequest, tiny_config: Config, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> api.Results:
    influence = dataclasses.replace(
        tiny_config.influence, num_windows=10, selectors=SELECTORS, visibility=request.param
    )
    config = dataclasses.replace(tiny_config, pretrained=PretrainedConfig(str(folder)), influence=influence)
    return api.read_results(measure(config, tmp_path_factory.mktemp("runs") / "llama"))


@pytest.fixture(scope="module")
def model(of_command: api.Results, folder: Path) -> api.Model:
    return api.open_model(folder, local_len=8, full_len=20, visibility=of_command.manifest["visibility"])


def test_a_measurement_has_the_numbers_and_the_manifest_of_the_command(
    model: api.Model, of_command: api.Results
) -> None:
    windows = api.windows_from_table(model, of_command.windows)
    measured = api.measure(model, windows, selectors=SELECTORS, k=[1, 2, 8])
    for name in ("loss_short_nats", "loss_long_nats", "kl_short_nats"):
        np.testing.assert_allclose(measured.windows[name], of_command.windows[name], atol=NATS)
    assert measured.windows["gain_beyond_nats"].isna().all()
    own, table = (results.selections.query("context == 'real'") for results in (measured, of_command))
    for name in ("scores", "loss_sparse_nats", "kl_sparse_nats"):
        np.testing.assert_allclose(np.stack(own[name].to_list()), np.stack(table[name].to_list()), atol=NATS)
    for key in ("visibility", "anchor", "model", "context", "num_parameters", "precision"):
        assert measured.manifest[key] == of_command.manifest[key], key
    assert measured.manifest["anchor"]["text"] == "<s>"
    assert {check["name"] for check in measured.manifest["fit"]["checks"]} == {
        check["name"] for check in of_command.manifest["fit"]["checks"]
    }
    frame = measured.summary().set_index("quantity")
    assert frame.loc["loss_long_nats", "value"] == pytest.approx(measured.windows["loss_long_nats"].mean(), abs=NATS)
    frame = api.losses(model, windows, [[], range(12)])
    expected = of_command.windows[["loss_short_nats", "loss_long_nats"]].to_numpy().ravel()
    np.testing.assert_allclose(frame["loss_nats"], expected, atol=NATS)


def test_the_anchor_can_be_left_out(model: api.Model, folder: Path, texts: list[str]) -> None:
    """The loss of transformers' own forward pass over the window alone, and with a BOS in front."""
    without = api.open_model(folder, local_len=8, full_len=20, anchor="none")
    assert "no anchor" in repr(without) and "anchor '<s>'" in repr(model)
    text = max(texts, key=len)
    window = api.window_at(without, text, at=len(text) - 1)
    tokens_1T = torch.from_numpy(window.windows.tokens(np.array([0])))
    from transformers import LlamaForCausalLM

    llama = LlamaForCausalLM.from_pretrained(folder).eval()
    bos = torch.tensor([[without.tokenizer.token_to_id("<s>")]])
    with torch.inference_mode():
        alone = llama(tokens_1T[:, :-1]).logits[0, -1].log_softmax(-1)[tokens_1T[0, -1]]
        with_bos = llama(torch.cat([bos, tokens_1T[:, :-1]], dim=1)).logits[0, -1].log_softmax(-1)[tokens_1T[0, -1]]
    assert api.losses(without, window, [range(12)])["loss_nats"][0] == pytest.approx(-alone.item(), abs=NATS)
    assert api.losses(model, window, [range(12)])["loss_nats"][0] == pytest.approx(-with_bos.item(), abs=NATS)
    assert abs(alone.item() - with_bos.item()) > 100 * NATS


def test_the_first_tokens_are_compared_again_where_there_are_more_windows(
    of_command: api.Results, folder: Path
) -> None:
    """One window, of which no standard error is known, does not decide for all later ones; what was checked is kept."""
    used, fresh = (
        api.open_model(folder, local_len=8, full_len=20, visibility=of_command.manifest["visibility"]) for _ in range(2)
    )
    one, all_windows = (api.windows_from_table(used, of_command.windows.iloc[:number]) for number in (1, 10))
    api.losses(used, one, [[]])
    first = used.fit(one.windows)["fit"]
    assert first["anchor"]["num_windows"] == 1 and set(first["anchor"]["lower_with"].values()) == {None}
    found = api.measure(used, all_windows, selectors=["kl"], k=[1]).manifest["fit"]
    assert found["anchor"] == fresh.fit(all_windows.windows)["fit"]["anchor"]
    assert found["anchor"]["num_windows"] == 10
    assert found["checks"] == first["checks"]
    assert used.fit(one.windows)["fit"] == found


def test_windows_of_another_tokenizer_are_refused(model: api.Model, tiny_run: Path, tiny_tables: Path) -> None:
    run = api.open_model(tiny_run)
    table = api.read_results(tiny_tables).windows
    with pytest.raises(UserError, match="another tokenizer than that of the model"):
        api.measure(model, api.windows_from_table(run, table))
    with pytest.raises(UserError, match="the tokens of row 0 are not those of this model's tokenizer"):
        api.windows_from_table(model, table)


def test_mistakes(folder: Path) -> None:
    with pytest.raises(UserError, match="full_len = 65"):
        api.open_model(folder, local_len=8, full_len=65)
    with pytest.raises(UserError, match="visibility"):
        api.open_model(folder, visibility="seen")
    with pytest.raises(UserError, match="nowhere"):
        api.open_model(folder / "nowhere")
