"""A learned choice: what a planted model of worth teaches, what the own fold does not, and shares by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers_models
from test_set_worth import M, problem_of, true_kl

from benchmarks import learned_choice
from benchmarks.learned_choice import CHOICES, RANKINGS, learned_sets, sample_window, shares
from olmo_sparsity.records.selectors import SELECTORS, rank

K = 3


def planted(num: int = 60, num_sets: int = 12) -> tuple[list[dict[str, np.ndarray]], list[str], np.ndarray]:
    """Return windows in which the worth of a set is the sum of what each token is worth: twice a feature, less another."""
    generator = np.random.default_rng(0)
    windows, best = [], []
    for _ in range(num):
        features_MF = generator.normal(size=(20, 5)) * [1, 10, 0.1, 3, 1]
        worth_M = 2 * features_MF[:, 0] - 5 * features_MF[:, 2]
        sets_NK = np.array([generator.permutation(20)[:K] for _ in range(num_sets)])
        noise_N = 0.1 * generator.normal(size=num_sets)
        windows.append(
            {
                "features_MF": features_MF,
                "sets_NK": sets_NK,
                "kl_short": np.array([7.0]),
                "kl_N": 7.0 - worth_M[sets_NK].sum(axis=1) - noise_N,
            }
        )
        best.append(rank(worth_M)[:K])
    return windows, [f"doc{w // 2}" for w in range(num)], np.array(best)


def test_what_sets_are_worth_teaches_which_tokens_are_worth_most() -> None:
    windows, docs, best = planted()
    found = learned_sets(windows, docs, k=K)
    assert np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), best.tolist(), strict=True)]) > 0.95
    assert found.shape == (60, K)


def test_a_document_is_not_learned_from_where_it_is_chosen_in() -> None:
    windows, docs, _ = planted(num=20)
    before = learned_sets(windows, docs, k=K)
    for of in windows[:2]:  # both of the first document
        of["kl_N"] = 1e3 * np.random.default_rng(1).normal(size=len(of["kl_N"]))
    after = learned_sets(windows, docs, k=K)
    assert np.array_equal(before[:2], after[:2])
    assert not np.array_equal(before[2:], after[2:])


def test_shares_are_ratios_of_sums_and_differences_are_from_attention() -> None:
    short = np.array([2.0, 6.0, 4.0])
    kl_of = {"attention": np.array([1.0, 3.0, 2.0]), "learned": np.array([0.5, 1.5, 4.0])}
    found = shares(short, kl_of, ["a", "b", "c"])
    assert found["D", "attention"].mean == pytest.approx(6 / 12) and found["D", "learned"].mean == pytest.approx(6 / 12)
    kl_of["learned"][2] = 1.0
    assert shares(short, kl_of, ["a", "b", "c"])["difference", "learned"].mean == pytest.approx(9 / 12 - 6 / 12)


def test_a_window_gives_features_of_every_token_and_what_sets_leave() -> None:
    problem = problem_of()
    sampled = sample_window(problem, k=K, number=4, num_sets=6)
    raw = problem.evaluator.model.raw.config  # type: ignore[attr-defined]
    heads, layers = raw.num_attention_heads, raw.num_hidden_layers
    assert sampled["features_MF"].shape == (
        M,
        4 * heads * layers + raw.num_key_value_heads * layers + layers + len(RANKINGS),
    )
    tokens_1T = torch.cat([torch.tensor([[3]]), problem.tokens_1T], dim=1)
    plain = transformers_models.build_raw("llama")
    plain.set_attn_implementation("eager")
    attention = plain(tokens_1T, output_attentions=True).attentions
    of_last = torch.stack([of_layer[0, :, -1, 1 : 1 + M] for of_layer in attention]).flatten(0, 1)
    assert pytest.approx(of_last.detach().numpy(), abs=1e-5) == sampled["features_MF"][:, : heads * layers].T
    assert sampled["kl_short"][0] == pytest.approx(true_kl(problem, []), abs=1e-5)
    for groups, kl in zip(sampled["sets_NK"].tolist(), sampled["kl_N"].tolist(), strict=True):
        assert len(set(groups)) == K and kl == pytest.approx(true_kl(problem, groups), abs=1e-5)
    assert len({tuple(sorted(groups)) for groups in sampled["sets_NK"].tolist()}) > 3
    singles = sorted(range(M), key=lambda j: (true_kl(problem, [j]), -j))
    assert sampled["kl of kl"][0] == pytest.approx(true_kl(problem, singles[:K]), abs=1e-5)
    assert {f"kl of {name}" for name in (*CHOICES, *RANKINGS)} <= set(sampled)
    assert set(CHOICES) <= set(SELECTORS)


@pytest.mark.parametrize("number", [7, 4])
def test_the_number_of_windows_is_that_of_those_that_the_text_has(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that which was asked for; fewer than there are folds end in one line."""
    (tmp_path / "windows").mkdir()
    windows, _, _ = planted(num=number)
    found = iter(windows)

    def sampled(*given: Any, **named: Any) -> dict[str, np.ndarray]:
        kl = {f"kl of {name}": np.array([3.0]) for name in (*CHOICES, *RANKINGS)}
        return {**next(found), **kl}

    of_documents = [(f"doc{w}", None) for w in range(number)]
    monkeypatch.setattr(learned_choice, "open_problems", lambda *given, **named: (None, lambda: iter(of_documents)))
    monkeypatch.setattr(learned_choice, "sample_window", sampled)
    monkeypatch.setattr(learned_choice, "scores_of", lambda *given, **named: None)
    monkeypatch.setattr(learned_choice, "_divergences", lambda scores, sets: np.array([2.0]))
    asked = ["learned_choice", "--run", "runs/demo", "--num-windows", "9", "--k", "3", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", asked)
    if number < learned_choice.NUM_FOLDS:
        with pytest.raises(SystemExit):
            learned_choice.main()
        assert "--num-windows 9: 4 windows of as many documents were found" in capsys.readouterr().err
        return
    learned_choice.main()
    assert "7 windows" in capsys.readouterr().out
    assert json.loads((tmp_path / "learned_choice.json").read_text())["num_windows"] == 7
