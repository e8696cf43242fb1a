"""The peers of long windows: each is its definition by brute force, and fidelity is what hand-written cases say."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import transformers_models
from matplotlib.figure import Figure
from sklearn.linear_model import Lasso
from sklearn.preprocessing import StandardScaler

from benchmarks import attribot, long_peers, long_problems
from benchmarks import context_cite as cite_module
from benchmarks.context_cite import context_cite, logits_of_losses, random_masks
from benchmarks.long_fidelity import chosen, quality, rank_correlation, recall, screened, tokens_of_candidates
from benchmarks.long_methods import (
    CAPTUM,
    EXACT,
    METHODS,
    Models,
    Outcome,
    alternating,
    run_captum,
    run_method,
    upper_half_left_out,
)
from benchmarks.long_problems import VISIBILITY, Problem, long_windows, parts_of
from benchmarks.long_report import MEASURES, draw, draw_recall, summarize
from benchmarks.peers import plain_losses
from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import divergence, log_probs
from olmo_sparsity.measure.visible.window_batch import TokenGroups, single_tokens
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.model.pretrained import open_pretrained
from olmo_sparsity.model.transformers_model import TransformersModel
from olmo_sparsity.progress import listening
from olmo_sparsity.storage.files import write_json
from olmo_sparsity.text.corpus import make_document

LOCAL, ANCHOR, TARGET = 6, 5, 7
SIZES = [2, 3, 1, 4, 2, 2]  # tokens of each sentence
SENTENCES = TokenGroups(np.repeat(np.arange(len(SIZES)), SIZES)[None])
M = sum(SIZES)
Rows = list[dict[str, Any]]
QUANTITY = pytest.mark.parametrize("quantity", ["tokens", "sentences"])
ANCHORED = pytest.mark.parametrize("anchor_id", [None, ANCHOR], ids=["no anchor", "anchor"])


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    return transformers_models.build("llama", num_hidden_layers=3)


def problem_of(model: CausalModel, quantity: str, anchor_id: Optional[int] = ANCHOR, batch_tokens: int = 60) -> Problem:
    tokens_1T = torch.randint(10, 200, (1, M + LOCAL), generator=torch.Generator().manual_seed(1))
    visibility = VISIBILITY[quantity]
    evaluator = Evaluator(model, LOCAL, batch_tokens=batch_tokens, visibility=visibility, anchor_id=anchor_id)
    groups = single_tokens(1, M) if quantity == "tokens" else SENTENCES
    return Problem(evaluator, tokens_1T, TARGET, quantity=quantity, groups=groups)


def true_log_p(problem: Problem, groups: list[int]) -> torch.Tensor:
    """Return log-probabilities with some groups visible, [V], by the path that is the definition."""
    evaluator = dataclasses.replace(problem.evaluator, path="masked")
    positions = [j for j in range(M) if problem.groups.groups_WM[0, j] in groups]
    return log_probs(evaluator, problem.tokens_1T, visible_WS=torch.tensor([positions], dtype=torch.int64))[0]


def true_loss(problem: Problem, groups: list[int]) -> float:
    return -float(true_log_p(problem, groups)[TARGET])


def costs(problem: Problem, among: list[int]) -> np.ndarray:
    """Return what leaving out each of some groups costs in a context of only these; NaN for the others."""
    scores_I = np.full(problem.num_groups, np.nan)
    for i in among:
        scores_I[i] = true_loss(problem, [other for other in among if other != i]) - true_loss(problem, among)
    return scores_I


def highest(scores_I: np.ndarray, number: int) -> list[int]:
    return sorted(np.argsort(-scores_I)[:number].tolist())


def context_of(problem: Problem) -> attribot.Context:
    return attribot.context_of(
        problem.tokens_1T,
        groups_M=problem.groups.groups_WM[0],
        anchor_id=problem.evaluator.anchor_id,
        target=TARGET,
    )


@ANCHORED
def test_attribots_cache_is_leave_one_out(model: TransformersModel, anchor_id: Optional[int]) -> None:
    problem, ran = problem_of(model, "sentences", anchor_id), []
    with listening(ran.append):
        scores_I = attribot.leave_one_out(attribot.Runner(model), context_of(problem))
    assert scores_I == pytest.approx(costs(problem, list(range(len(SIZES)))), abs=2e-5)
    assert np.abs(scores_I).max() > 0.02
    behind = [M + LOCAL - end for end in np.cumsum(SIZES).tolist()]
    assert ran == [problem.evaluator.window_len(M + LOCAL), *behind]


@pytest.mark.parametrize("keep", [1, 2])
def test_attribots_hierarchy_leaves_out_of_the_paragraphs_that_cost_most(model: TransformersModel, keep: int) -> None:
    problem, everything = problem_of(model, "sentences"), list(range(len(SIZES)))
    paragraphs = [[0, 1], [2], [3, 4, 5]]
    found_I = attribot.hierarchical(
        attribot.Runner(model), context_of(problem), paragraphs=[np.array(of) for of in paragraphs], keep=keep
    )
    of_paragraphs = [true_loss(problem, [i for i in everything if i not in of]) for of in paragraphs]
    kept = sorted(i for best in highest(np.array(of_paragraphs), keep) for i in paragraphs[best])
    assert found_I == pytest.approx(costs(problem, kept), abs=2e-5, nan_ok=True)
    assert 0 < len(kept) < len(everything)


def test_a_proxy_is_the_lower_half_of_the_layers_and_prunes(model: TransformersModel) -> None:
    problem = problem_of(model, "sentences")
    proxy, share = upper_half_left_out(model)
    assert share == 2 / 3
    raw, tokens_1T = model.raw, problem.tokens_1T
    with torch.no_grad():
        states = raw(tokens_1T, output_hidden_states=True).hidden_states
        expected_1V = raw.lm_head(raw.model.norm(states[2][:, -1]))
        found_1V = proxy.last_logits(tokens_1T, torch.arange(M + LOCAL)[None])
    assert (found_1V - expected_1V).abs().max() < 1e-5
    assert len(raw.model.layers) == 3 and raw.config.num_hidden_layers == 3
    of_proxy = problem_of(proxy, "sentences")
    kept = highest(costs(of_proxy, list(range(len(SIZES)))), 3)
    found_I = attribot.pruning(attribot.Runner(model), context_of(problem), proxy=attribot.Runner(proxy, share), keep=3)
    assert found_I == pytest.approx(costs(problem, kept), abs=2e-5, nan_ok=True)


@QUANTITY
def test_context_cite_is_a_lasso_of_the_logits(model: TransformersModel, quantity: str) -> None:
    problem = problem_of(model, quantity)
    visible_NI = random_masks(24, problem.num_groups)
    assert (visible_NI[:8] == random_masks(8, problem.num_groups)).all() and 0.35 < visible_NI.mean() < 0.65
    logits = []
    for visible_I in visible_NI:
        probability = math.exp(-true_loss(problem, np.flatnonzero(visible_I).tolist()))
        logits.append(math.log(probability / (1 - probability)))
    assert logits_of_losses(-np.log([0.5, 0.9])) == pytest.approx([0.0, math.log(9)])
    scaler, lasso = StandardScaler(), Lasso(alpha=0.01)
    lasso.fit(scaler.fit_transform(visible_NI.astype(float)), logits)
    assert context_cite(problem, 24) == pytest.approx(lasso.coef_ / scaler.scale_, abs=1e-3)
    assert np.abs(lasso.coef_).max() > 0.02


def test_a_method_pays_for_its_pass_over_the_window_whatever_ran_before(model: TransformersModel) -> None:
    problem, methods = problem_of(model, "tokens"), METHODS["tokens"]
    before_local = problem.evaluator.window_len(M + LOCAL) - LOCAL
    for before in ([], [EXACT], [EXACT, "patching"]):
        for name in before:
            run_method(methods[name], problem, Models(None, 1.0))
        assert run_method(methods["attention"], problem, Models(None, 1.0)).tokens == before_local + LOCAL
        assert run_method(methods["patching"], problem, Models(None, 1.0)).tokens == before_local + 3 * LOCAL


class OnDevice(torch.Tensor):
    """As a tensor of a GPU, it is no array before it is copied."""

    def numpy(self, **_: Any) -> Any:
        raise TypeError("Use Tensor.cpu() to copy the tensor to host memory first.")

    def cpu(self, **_: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_context_cite_runs_on_a_gpu(model: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(model, "tokens")
    expected = context_cite(problem, 8)
    losses = cite_module.mask_losses
    monkeypatch.setattr(
        cite_module, "mask_losses", lambda *given, **named: losses(*given, **named).as_subclass(OnDevice)
    )
    assert context_cite(problem, 8).tolist() == expected.tolist()


@QUANTITY
@ANCHORED
def test_captum_asks_for_the_exact_quantity(model: TransformersModel, quantity: str, anchor_id: Optional[int]) -> None:
    problem = problem_of(model, quantity, anchor_id)
    visible_RM = torch.from_numpy(np.random.default_rng(0).random((5, M)) < 0.4)
    single = dataclasses.replace(problem, groups=single_tokens(1, M))
    found_R = plain_losses(problem.evaluator, problem.tokens_1T, target=TARGET, visible_RM=visible_RM)
    expected = [true_loss(single, visible_M.nonzero()[:, 0].tolist()) for visible_M in visible_RM]
    assert found_R.tolist() == pytest.approx(expected, abs=2e-5)


@QUANTITY
@pytest.mark.parametrize(("anchor_id", "batch_tokens"), [(None, 20), (ANCHOR, 20), (ANCHOR, 60)])
def test_ours_is_exact_and_so_is_captum(
    model: TransformersModel, quantity: str, anchor_id: Optional[int], batch_tokens: int
) -> None:
    problem = problem_of(model, quantity, anchor_id, batch_tokens)
    everything = list(range(problem.num_groups))
    exact_I = run_method(METHODS[quantity][EXACT], problem, Models(None, 1.0)).scores_I
    if quantity == "tokens":
        expected = [-true_loss(problem, [j]) for j in everything]
    else:
        expected = [true_loss(problem, [other for other in everything if other != i]) for i in everything]
    assert exact_I == pytest.approx(expected, abs=2e-5)
    if quantity == "tokens":
        estimated = run_method(METHODS[quantity]["gradient"], problem, Models(None, 1.0))
        assert estimated.tokens == problem.evaluator.window_len(M) + 3 * LOCAL
    pytest.importorskip("captum")
    outcome = run_captum(problem)
    nothing = true_loss(problem, []) if quantity == "tokens" else -true_loss(problem, everything)
    assert outcome.scores_I == pytest.approx(exact_I + nothing, abs=2e-5)
    assert outcome.tokens == (problem.num_groups + 1) * problem.evaluator.window_len(M + LOCAL)


def test_two_rankings_take_turns() -> None:
    merged_I = alternating([np.array([9.0, 8.0, 1.0, 7.0, 2.0]), np.array([0.3, 0.1, 0.5, 0.2, 0.4])])
    assert np.argsort(-merged_I).tolist() == [0, 2, 1, 4, 3]


def test_fidelity_of_hand_written_scores() -> None:
    exact_I = np.array([5.0, 4.0, 3.0, 3.0, 0.0])
    assert chosen(exact_I, 3) == [0, 1, 3]  # of equal ones the nearer
    assert chosen(np.array([np.nan, 1.0, np.nan, 2.0, np.nan]), 3) == [3, 1]
    assert recall(np.array([9.0, np.nan, 8.0, 7.0, 6.0]), exact_I, 3) == pytest.approx(2 / 3)
    assert rank_correlation(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 4.0, 3.0])) == pytest.approx(0.8)
    assert rank_correlation(np.array([1.0, np.nan]), np.array([1.0, 2.0])) is None
    assert rank_correlation(np.array([1.0, 1.0]), np.array([1.0, 2.0])) is None


@QUANTITY
def test_quality_and_cost_of_chosen_groups(model: TransformersModel, quantity: str) -> None:
    problem = problem_of(model, quantity)
    log_p_V = true_log_p(problem, list(range(problem.num_groups)))
    for groups in ([], [4, 1]):
        found = quality(problem, groups)
        assert found.loss == pytest.approx(true_loss(problem, groups), abs=2e-5)
        assert found.kl == pytest.approx(float(divergence(log_p_V, true_log_p(problem, groups))), abs=2e-5)
    behind = {"tokens": 2 * LOCAL, "sentences": (M + LOCAL - sum(SIZES[:2])) + (M + LOCAL - sum(SIZES[:5]))}[quantity]
    assert tokens_of_candidates(problem, [4, 1]) == behind
    scores_I, exact_I = -np.arange(problem.num_groups, dtype=float), np.arange(problem.num_groups) ** 2.0
    scores_I[[4, 1]] = 10, 9
    ranking, exact = Outcome(scores_I, [3.0, 1.0, 2.0], 100.0), Outcome(exact_I, [50.0], 1000.0)
    for shares_prefix, prefix in ((True, 0), (False, 1 + M)):
        found_outcome = screened(problem, ranking, exact=exact, number=2, shares_prefix=shares_prefix)
        assert np.isfinite(found_outcome.scores_I).nonzero()[0].tolist() == [1, 4]
        assert found_outcome.scores_I[[1, 4]].tolist() == [1.0, 16.0]
        assert found_outcome.tokens == 100 + behind + prefix
        assert found_outcome.seconds == [pytest.approx(2.0 + (behind + prefix) * 50 / 1000)]


def test_the_summary_takes_medians_of_costs_and_a_ratio_of_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"quantity": "tokens", "size": 8, "method": EXACT, "groups": 4, "num_timed": None, "rank_correlation": 1.0}
    row |= {"gain_lost_nats": 0.0, "gain_nats": 1.0, "largest_difference_nats": None}
    rows = [
        {
            **row,
            "window": w,
            "seconds": cost,
            "tokens": 10 * cost,
            "recall": value,
            "kl_nats": value,
            "kl_short_nats": short,
        }
        for w, (cost, value, short) in enumerate(((1.0, 1.0, 2.0), (2.0, 0.0, 10.0), (9.0, 0.5, 3.0)))
    ]
    rows += [{**rows[0], "method": "attention", "seconds": 0.5, "tokens": 4.0, "rank_correlation": None}]
    exact, attention = summarize(rows)
    assert (exact["seconds"], exact["tokens"], exact["windows"], exact["recall"]) == (2.0, 20.0, 3, 0.5)
    assert exact["prediction_recovered"] == pytest.approx(1 - 1.5 / 15)
    assert attention["times_exact_seconds"] == 2.0 and attention["times_exact_tokens"] == 2.5  # on the window of both
    free = summarize([*rows[:3], {**rows[3], "seconds": 0.0}, {**rows[3], "method": "elsewhere", "window": 7}])
    assert free[1]["times_exact_seconds"] is None and free[2]["times_exact_tokens"] is None
    assert attention["times_plain_seconds"] is None and attention["rank_correlation"] is None
    plain = [{**row, "size": 9, "method": CAPTUM} for row in rows[:1]]
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "close", figures.append)
    draw_recall([*rows, *plain], tmp_path / "recall")
    drawn = [
        {line.get_label(): line.get_xydata().tolist() for line in axes.lines if line.get_marker() != "None"}
        for axes in figures[-1].axes
    ]
    assert drawn == [{EXACT: [[20.0, 0.5]], "attention": [[4.0, 1.0]]}, {CAPTUM: [[10.0, 1.0]]}]
    assert [axes.get_title() for axes in figures[-1].axes] == ["8 tokens, 3 windows", "9 tokens, 1 window"]
    assert [line.get_xdata()[0] for line in figures[-1].axes[1].lines[-1:]] == [10 / 300]
    draw([rows[0], {**rows[1], "rank_correlation": None}], "tokens", tmp_path / "peers")  # known of one window of two
    named = [axes.get_legend_handles_labels()[1] for axes in figures[-1].axes]
    assert named == [[] if measure == "rank_correlation" else [EXACT] for measure in MEASURES]
    monkeypatch.undo()
    plt.close("all")


def test_a_stopped_comparison_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A cat sat. It saw a dog, and ran. Where to? Nobody knows! " * 20, encoding="utf-8")
    transformers_models.save(tmp_path / "model", max_position_embeddings=128)
    opened = open_pretrained(PretrainedConfig(str(tmp_path / "model")), device=torch.device("cpu"), precision="fp32")
    monkeypatch.setattr(long_peers, "LOCAL_LEN", 8)
    kept_names = {"tokens": [EXACT, "attention", "patching"], "sentences": [EXACT, "contextual", "AttriBoT, proxy"]}
    for quantity, names in kept_names.items():
        monkeypatch.setitem(METHODS, quantity, {name: METHODS[quantity][name] for name in names})
    asked: list[str] = []
    original = long_peers.run_method
    monkeypatch.setattr(
        long_peers, "run_method", lambda method, *given: asked.append(given[0].quantity) or original(method, *given)
    )

    def run(sizes: list[int], windows: list[int], without: Sequence[str] = ("tokens:captum, batched",)) -> Rows:
        left_out = long_peers.left_out([*without, "sentences:captum, batched"])
        return long_peers.run(opened, [text], tmp_path / "out", sizes=sizes, windows=windows, seed=0, without=left_out)

    def names_of(rows: Rows) -> list[object]:
        return [row["method"] for row in rows if row["quantity"] == "tokens"]

    long_peers.check_setting(tmp_path / "out", {"seed": 0}, writes=False)
    assert not (tmp_path / "out").exists()
    long_peers.check_setting(tmp_path / "out", {"seed": 0})
    first = run([80], [1])
    assert len(asked) == 6
    again = run([80, 90], [1, 1])
    assert len(asked) == 12 and again[: len(first)] == first
    fewer = run([80, 70], [1, 1], without=["tokens:captum, batched", "tokens:attention"])
    assert fewer[: len(first)] == first, "what is known counts"
    assert [row for row in fewer if row["size"] == 70 and str(row["method"]).startswith("attention")] == []
    assert len(asked) == 17
    assert {*kept_names["tokens"], "attention, best 32", "attention, best 64", "patching, best 32"} <= set(
        names_of(first)
    )
    of_exact = next(row for row in first if row["method"] == EXACT)
    assert of_exact["recall"] == 1.0 and of_exact["gain_lost_nats"] == 0.0
    for entry in ("tokens", "words:attention", "tokens:contextual", f"tokens:{EXACT}"):
        with pytest.raises(UserError, match=f"--without {entry}: choose tokens or sentences"):
            long_peers.left_out([entry])
    with pytest.raises(UserError, match="seed = 0, where 1 is asked for"):
        long_peers.check_setting(tmp_path / "out", {"seed": 1})
    text.write_text(text.read_text(encoding="utf-8").replace("cat", "dog"), encoding="utf-8")
    with pytest.raises(UserError, match=r"tokens-80-0\.json: these results are not of this text"):
        run([80], [1])
    assert len(asked) == 17
    with pytest.raises(UserError, match="no document has 8000 characters"):
        next(long_windows([text], 1000, tokenizer=opened.tokenizer, seed=0))


def test_the_text_is_named_as_elsewhere_and_checked_before_anything_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``builtin``, ``c4``, a file, a folder or a glob; what is unusable ends with one line, and leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    transformers_models.save(tmp_path / "model", max_position_embeddings=128)
    text = "A cat sat. It saw a dog, and ran. Where to? Nobody knows! " * 20
    for name in ("texts/b.txt", "texts/a.txt", "short.txt", "tokens.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("too short" if name == "short.txt" else text, encoding="utf-8")
    files = [Path("texts/a.txt"), Path("texts/b.txt")]
    assert parts_of(["texts", "c4", "builtin", "texts/*.txt", "short.txt"]) == [
        *files, "c4", "builtin", *files, Path("short.txt"),
    ]  # fmt: skip
    monkeypatch.setattr(long_problems, "read_documents", lambda data: iter([make_document(text, data.source)] * 3))
    opened = open_pretrained(PretrainedConfig("model"), device=torch.device("cpu"), precision="fp32")
    for part, number in (("builtin", 3), ("c4", 2), (files[0], 1)):
        monkeypatch.setattr(long_problems, "C4_DOCUMENTS", 2)
        assert len(list(long_windows([part], 80, tokenizer=opened.tokenizer, seed=0))) == number

    def check(*data: str) -> int:
        options = ["--model", "model", "--sizes", "80", "--windows", "1", "--out", "out", "--check", "--data", *data]
        monkeypatch.setattr(sys, "argv", ["long_peers", *options])
        try:
            long_peers.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    capsys.readouterr()
    assert (check("texts"), check("builtin")) == (0, 0)
    assert capsys.readouterr() == ("", "")
    for data, words in (
        ("gone", "gone: no such file"),
        ("tokens.npy", "token files"),
        ("short.txt", "no document has 640"),
    ):
        assert check(data) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(long_peers, "check_setting", lambda *given, **named: None)
    (tmp_path / "out").mkdir()
    write_json(tmp_path / "out" / "tokens-80-0.json", {"methods": {}, "sets": {}})
    assert check("texts") == 2 and "do not tell of which; choose another" in capsys.readouterr().err
