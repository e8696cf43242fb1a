"""What sets are worth: choices by brute force, their costs by count, shares by hand, and a run that goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers_models
from attention_outputs import OutputsOfAttention

from benchmarks import set_worth
from benchmarks.long_methods import Models, upper_half_left_out
from benchmarks.long_problems import Problem
from benchmarks.set_choices import (
    ATTRIBOT,
    ChoicesOfWindow,
    captum_tokens,
    divergences,
    estimates_beside,
    estimates_without,
    forward_selection,
    left_out_one_by_one,
    scores_of,
)
from benchmarks.set_worth import Row, sentence, table, worths
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import divergence, log_probs
from olmo_sparsity.measure.visible.window_batch import single_tokens
from olmo_sparsity.model.transformers_model import TransformersModel
from olmo_sparsity.records.selectors import SELECTORS, rank
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.wording.numbers import interval

LOCAL, M, ANCHOR, TARGET = 5, 14, 3, 7
PASS = 1 + M + LOCAL


def problem_of(num_layers: int = 2) -> Problem:
    model = transformers_models.build("llama", num_hidden_layers=num_layers)
    tokens_1T = torch.randint(10, 200, (1, M + LOCAL), generator=torch.Generator().manual_seed(1))
    evaluator = Evaluator(model, LOCAL, batch_tokens=200, visibility="contextual", anchor_id=ANCHOR)
    return Problem(evaluator, tokens_1T, TARGET, quantity="tokens", groups=single_tokens(1, M))


def true_kl(problem: Problem, groups: list[int]) -> float:
    """Return KL(p_all, p_S) by the path that is the definition."""
    masked = dataclasses.replace(problem.evaluator, path="masked")
    log_p, log_q = (
        log_probs(masked, problem.tokens_1T, visible_WS=torch.tensor([sorted(of)], dtype=torch.int64))
        for of in (range(M), groups)
    )
    return float(divergence(log_p, log_q))


def by_brute_force(problem: Problem, candidates: list[int], *, k: int, block: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < k:
        left = sorted((j for j in candidates if j not in taken), key=lambda j: (true_kl(problem, [*taken, j]), -j))
        taken += left[: min(block, k - len(taken))]
    return taken


def kl_of_singles(scores: WindowScores) -> np.ndarray:
    return divergences(scores, [[j] for j in range(M)])


@pytest.mark.parametrize("block", [1, 2, 3])
def test_forward_selection_is_that_of_the_definition(block: int) -> None:
    problem, candidates = problem_of(), [13, 2, 5, 8, 0, 11, 9]
    scores = scores_of(problem, max_k=4, number=0)
    found = forward_selection(scores, candidates, kl_of_singles(scores), k=4, block=block)
    assert found == by_brute_force(problem, candidates, k=4, block=block)


def test_forward_selection_of_one_a_step_among_all_is_greedy_kl() -> None:
    scores = scores_of(problem_of(), max_k=4, number=0)
    found = forward_selection(scores, list(range(M)), kl_of_singles(scores), k=4, block=1)
    assert found == rank(SELECTORS["greedy-kl"].score(scores))[0, :4].tolist()


def test_leaving_out_one_by_one_is_that_of_the_definition() -> None:
    problem, candidates = problem_of(), [1, 4, 6, 12]
    found_I = left_out_one_by_one(scores_of(problem, max_k=4, number=0), candidates)
    assert np.flatnonzero(np.isfinite(found_I)).tolist() == candidates
    expected = [true_kl(problem, [i for i in candidates if i != j]) for j in candidates]
    assert found_I[candidates] == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected) > 1e-3


@pytest.mark.parametrize("is_hidden", [True, False], ids=["hidden", "unmasked"])
def test_estimates_beside_visible_tokens_are_derivatives_along_what_a_token_moves(is_hidden: bool) -> None:
    """In a model of one layer nothing moves before the attention output: how a token moves it can be read."""
    problem, visible = problem_of(1), [1, 4, 6, 12]
    raw = problem.evaluator.model.raw.double()  # type: ignore[attr-defined]
    scores = scores_of(problem, max_k=4, number=0)
    found_I = estimates_without(problem, scores, visible) if is_hidden else -estimates_beside(scores, visible)
    asked = [j for j in range(M) if (j in visible) == is_hidden]
    assert np.flatnonzero(np.isfinite(found_I)).tolist() == asked

    def predicted(groups: list[int]) -> torch.Tensor:
        positions = [0, *(1 + j for j in sorted(groups)), *range(1 + M, PASS)]
        tokens_1T = torch.cat([torch.tensor([[ANCHOR]]), problem.tokens_1T], dim=1)[:, positions]
        return raw(tokens_1T, position_ids=torch.tensor([positions])).logits[0, -1].double().log_softmax(-1)

    attention = OutputsOfAttention(
        raw.model.layers[0].self_attn.o_proj, predicted, log_p_all_V=problem.log_p_long_1V[0]
    )
    expected = [attention.slope(visible, [i for i in visible if i != j] if is_hidden else [*visible, j]) for j in asked]
    assert found_I[asked] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert np.ptp(expected) > 1e-4


def test_choices_and_what_they_cost() -> None:
    problem = problem_of()
    assert isinstance(problem.evaluator.model, TransformersModel)
    models = Models(*upper_half_left_out(problem.evaluator.model))
    of_window = ChoicesOfWindow(problem, models, ks=[2, 4], number=3)
    with pytest.raises(UserError, match="--without attribot: no choice has this name; choose of: random; nearest; "):
        next(of_window.all({"attribot"}))
    found = {(k, name): choice for k, name, choice in of_window.all({"ContextCite, 256 masks", "snapkv"})}
    of_all = ChoicesOfWindow(problem, models, ks=[2], number=3).all(
        {"AttriBoT", "ContextCite", "patching", "attention"}
    )
    assert {name for _, name, _ in of_all if name.startswith(("A", "C", "p", "at"))} == set()
    assert all(len(set(choice.groups)) == k for (k, _), choice in found.items())
    assert not any(name.startswith(("snapkv", "ContextCite, 256")) for _, name in found)
    tokens = {name: choice.tokens for (k, name), choice in found.items() if k == 4}
    of_steps = lambda *sizes: sum(sizes) * LOCAL  # noqa: E731
    expected = {
        "random": 0,
        "attention": PASS,
        "h2o": PASS,
        "patching": PASS + of_steps(3),
        "kl": PASS + of_steps(M),
        "attention, best 6, kl": PASS + of_steps(6),
        "patching, best 8, kl": PASS + of_steps(3, 8),
        "attention, best 8, leave-one-out": PASS + of_steps(8),
        "attention, best 8, leave-one-out to first order": PASS + of_steps(3),
        "attention, best 6, greedy-kl by 2": PASS + of_steps(6, 4),
        "attention, best 8, greedy-kl by 1": PASS + of_steps(8, 7, 6, 5),
        "kl, best 8, greedy-kl by 1": PASS + of_steps(M, 7, 6, 5),  # the first step is what ranks
        "greedy-kl": PASS + of_steps(M, M - 1, M - 2, M - 3),
        "patching, 2 rounds": PASS + of_steps(3, 3),
        "attention, then patching, 2 rounds": PASS + of_steps(3, 3),
        "greedy-patching": PASS + of_steps(3, 3, 3),
        "ContextCite, 32 masks": 1 + M + of_steps(32),
    }
    assert {name: tokens[name] for name in expected} == expected
    assert all(tokens[name] > 0 for name in ATTRIBOT)
    assert captum_tokens(problem) == (M + 1) * PASS
    singles = sorted(range(M), key=lambda j: (true_kl(problem, [j]), -j))
    assert found[4, "kl"].groups == singles[:4]
    by_attention = rank(SELECTORS["attention"].score(of_window.scores))[0].tolist()
    assert found[2, "attention"].groups == by_attention[:2]
    assert found[4, "attention, best 6, kl"].groups == [j for j in singles if j in by_attention[:6]][:4]
    six = by_attention[:6]
    without = sorted(six, key=lambda j: (-true_kl(problem, [i for i in six if i != j]), -j))
    assert found[4, "attention, best 6, leave-one-out"].groups == without[:4]
    singly = ChoicesOfWindow(problem, models, ks=[4], number=3).all({"kl", "greedy-kl", *ATTRIBOT})
    few = {name: choice for _, name, choice in singly}
    assert "kl" not in few  # its scores are found of the best of a ranking alone
    same = [name for name in few if name.endswith((", kl", "greedy-kl by 1")) and not name.startswith("kl")]
    assert len(same) > 5 and all(few[name] == found[4, name] for name in same if (4, name) in found)
    assert found[2, "attention, then patching, 2 rounds"].groups[0] == by_attention[0]
    first = rank(-scores_of(problem, max_k=4, number=3).estimates("kl", attribution="patching"))[0].tolist()
    assert found[4, "patching, 2 rounds"].groups[:2] == first[:2] and found[4, "patching"].groups == first[:4]


def row_of(doc: str, short: list[float], **choices: list[float]) -> Row:
    of_k = {name.replace("_", "-"): value for name, value in choices.items()}
    return {"doc": doc, "loss_short": short[0], "kl_short": short[1], "captum_tokens": 80, "choices": {"2": of_k}}


def test_shares_are_of_the_set_with_the_least_divergence() -> None:
    rows = [  # of each choice: loss, KL, tokens, recall
        row_of("a", [3.0, 1.0], attention=[2.5, 0.4, 10, 0.5], greedy_kl=[2.8, 0.2, 60, 0.5]),
        row_of("b", [2.0, 0.5], attention=[1.0, 0.1, 10, 1.0], greedy_kl=[0.5, 0.3, 40, 0.0]),
    ]
    attention, greedy = worths(rows, 2)
    assert (attention.name, attention.tokens, attention.cost, attention.recall) == ("attention", 10, 1 / 8, 0.75)
    assert attention.prediction.mean == pytest.approx((0.6 + 0.4) / (0.8 + 0.4))
    assert attention.gain.mean == pytest.approx((0.5 + 1.0) / (0.2 + 1.0))
    assert greedy.prediction.mean == pytest.approx((0.8 + 0.2) / 1.2)
    assert greedy.gain.mean == pytest.approx((0.2 + 1.5) / 1.2)
    for row in rows:  # `kl` was left out of one or more windows
        row["choices"]["2"]["greedy-kl"][3] = None
    assert [worth.recall for worth in worths(rows, 2)] == [0.75, None]
    assert attention.prediction.bounds is None  # of two documents there is no interval
    words = sentence([attention, greedy], 2, num_windows=2, times=8)
    assert words == (
        "2 windows, k = 2: of no choice is D(2) shown to be 0.95 of the best set's; within 1/8 of these tokens attention has the "
        "highest D(2), 0.83 of the best set's, and 1.25 of its gain."
    )
    for low, is_shown in ((0.96, True), (0.94, False), (None, False)):
        better = dataclasses.replace(greedy, prediction=Estimate(0.97, low, None if low is None else 0.99))
        words = sentence([attention, better], 2, num_windows=2, times=8)
        expected = (
            "shown to be 0.95 of the best set's is greedy-kl, at 1/1.6 of captum's tokens, with 1.42 of its gain;"
        )
        assert (expected in words) == is_shown


def test_a_choice_is_compared_with_another_window_by_window() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for number, (one, other) in enumerate(rng.uniform(0.1, 0.9, (60, 2))):
        other = one if number < 3 else other  # the same set
        rows.append(row_of(str(number), [2.0, 1.0], attention=[1.0, one, 10, 0], greedy_kl=[1.0, other, 90, 0]))
    kl_W2 = np.array([[row["choices"]["2"][name][1] for name in ("attention", "greedy-kl")] for row in rows])
    attention, greedy = worths(rows, 2, against="greedy-kl")
    assert greedy.beside is None and attention.beside is not None
    beside = attention.beside
    assert (beside.num_nearer, beside.num_equal, beside.num_windows) == ((kl_W2[:, 0] < kl_W2[:, 1]).sum(), 3, 60)
    assert beside.difference.mean == pytest.approx(np.diff(1 - kl_W2).sum() * -1 / (1 - kl_W2.min(axis=1)).sum())
    assert beside.difference.bounds is not None
    cells = [column._cells for column in table([attention, greedy], 2, against="greedy-kl").columns[-2:]]
    assert cells == [[interval(beside.difference), ""], [f"{beside.num_nearer} of 60 (3 equal)", ""]]
    with pytest.raises(
        UserError, match="--against kl: not among the choices of every window; choose of: attention; greedy-kl"
    ):
        worths(rows, 2, against="kl")


def test_intervals_are_by_document() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.uniform(0.1, 1.0, (60, 2))
    rows = [
        row_of(str(number), [2.0, 1.0], attention=[1.0, one, 10, 0], best=[1.0, one / 2, 90, 0])
        for number, (one, _) in enumerate(numbers)
    ]
    once, twice = worths(rows, 2)[0].prediction, worths(rows + rows, 2)[0].prediction
    assert once.bounds is not None and once.bounds == pytest.approx(twice.bounds)
    assert once.bounds[0] < once.mean < once.bounds[1] and once.mean == pytest.approx(twice.mean)


def test_a_run_goes_on_where_it_stopped(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "worth"
    arguments = ["set_worth", "--run", str(tiny_run), "--num-windows", "3", "--k", "2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    set_worth.main()
    first = capsys.readouterr().out
    assert first.startswith("3 windows, k = 2: ") and "attention, best 3, kl" in first
    assert (out / "set_worth.png").stat().st_size > 10_000
    (out / "windows" / "00001.json").unlink()
    monkeypatch.setattr("sys.argv", [*arguments, "--against", "patch"])
    with pytest.raises(SystemExit) as error:
        set_worth.main()
    assert error.value.code == 2 and "--against patch: not among" in capsys.readouterr().err
    assert not (out / "windows" / "00001.json").exists()
    monkeypatch.setattr("sys.argv", arguments)
    measured: list[int] = []
    measure = set_worth.measure_window
    monkeypatch.setattr(
        set_worth, "measure_window", lambda *args, **named: measured.append(named["number"]) or measure(*args, **named)
    )
    set_worth.main()
    assert measured == [1] and capsys.readouterr().out == first
    for path in (out / "windows").iterdir():
        path.unlink()
    for shard, numbers in (("1/2", [1]), ("0/2", [0, 2])):
        measured.clear()
        monkeypatch.setattr("sys.argv", [*arguments, "--shard", shard])
        set_worth.main()
        assert measured == numbers
    assert capsys.readouterr().out.endswith(first)
    monkeypatch.setattr("sys.argv", [*arguments, "--k", "1"])
    with pytest.raises(SystemExit) as error:
        set_worth.main()
    assert error.value.code == 2 and "another setting; choose another folder" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*arguments[:-2], "--k", "99", "--out", str(tmp_path / "other")])
    with pytest.raises(SystemExit) as error:
        set_worth.main()
    assert error.value.code == 2 and "influence.k = [99]: there are only M = " in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*arguments, "--num-windows", "0", "--k", "2", "5"])
    with pytest.raises(SystemExit) as error:
        set_worth.main()
    assert error.value.code == 2 and f"--k 5: {out} holds --k 2; choose of these" in capsys.readouterr().err
