"""Rankings for screening, by brute force: blocks, a proxy, first order; proxies that cannot rank."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers_models
from scored_windows import make_scores
from tiny_models import NORMED, build
from tiny_pretrained import save_llama
from tiny_windows import FULL, LOCAL, M, windows
from tokenizers import Tokenizer, models

from olmo_sparsity import api
from olmo_sparsity.api import opening
from olmo_sparsity.config import SCREEN_RANKINGS, Config, InfluenceConfig, PretrainedConfig
from olmo_sparsity.config.measuring import parse_screen
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import influence_run_id, measure
from olmo_sparsity.measure.selection import screening
from olmo_sparsity.measure.selection.hierarchy import block_sizes, num_blocks, order_by_blocks
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.screening import ScreeningSettings, in_vocabulary, open_ranking_model
from olmo_sparsity.measure.setup.opened_model import open_model
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import gate_gradients, log_probs, short_log_probs, target_losses
from olmo_sparsity.measure.visible.visibility import Visibility
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.measure.work import num_evaluations
from olmo_sparsity.model import pretrained
from olmo_sparsity.model.attribution import Attribution
from olmo_sparsity.records.selectors import SELECTORS, rank
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table


def test_sizes_of_blocks_leave_about_as_many_on_every_level_as_are_to_be_found() -> None:
    assert block_sizes(64, 64) == block_sizes(10, 64) == []
    assert block_sizes(65, 64) == [4]
    assert block_sizes(1984, 64) == [64, 16, 4]
    assert block_sizes(8128, 64) == [256, 64, 16, 4]
    assert num_blocks(1984, 64) == 31 + 64 + 64
    assert num_blocks(64, 64) == 0


def by_brute_force(values: dict[tuple[int, ...], float], num: int, *, num_found: int, sizes: list[int]) -> list[int]:
    """Return the candidates in the order of a beam search over blocks, written down without arrays."""
    kept, discarded = list(range(num)), []
    for size in sizes:
        blocks = sorted({j // size for j in kept})
        members = {b: tuple(j for j in range(num) if j // size == b) for b in blocks}
        best = sorted(blocks, key=lambda b: (values[members[b]], -b))
        quarter = -(-num_found // 4)
        order = [sorted(members[b], reverse=True) for b in best]
        kept = [j for block in order[:quarter] for j in block]
        discarded = [j for block in order[quarter:] for j in block] + discarded
    return kept + discarded


@pytest.mark.parametrize(("num", "num_found"), [(70, 4), (64, 4), (23, 5), (9, 8), (70, 1), (100, 5)])
def test_the_order_by_blocks_is_that_of_a_search_by_brute_force(num: int, num_found: int) -> None:
    sizes = block_sizes(num, num_found)
    rng, values, asked = np.random.default_rng(1), {}, []
    for size in sizes:
        for first in range(0, num, size):  # few values, so that some are equal
            for end in (num, num - 3):  # the second window has three candidates fewer
                values.setdefault(tuple(range(first, min(first + size, end))), float(rng.integers(0, 6)))

    def evaluate(rows: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        asked.append(sum(len(windows_R) for windows_R, _ in rows))
        return [np.array([values[tuple(row)] + 100 * w for w, row in zip(*of_size, strict=True)]) for of_size in rows]

    order_WM = order_by_blocks(evaluate, [num, num - 3], num_found=num_found, sizes=sizes)  # type: ignore[arg-type]
    assert rank(-order_WM)[0].tolist() == by_brute_force(values, num, num_found=num_found, sizes=sizes)
    assert (order_WM[1, -3:] == np.inf).all() and np.isfinite(order_WM[1, :-3]).all()
    assert len(asked) == len(sizes)
    assert asked[0] <= 2 * -(-num // sizes[0])
    assert max(asked) <= 2 * (num_found + 3)


@pytest.mark.parametrize("ranking", SCREEN_RANKINGS)
def test_a_screen_that_leaves_nothing_out_is_exact(ranking: str) -> None:
    model = build(NORMED).eval()
    exact, screened = make_scores(model), make_scores(model, screening=ScreeningSettings(M, ranking=ranking))
    assert screened.loss_single_WI == pytest.approx(exact.loss_single_WI, abs=1e-6)
    assert screened.kl_single_WI == pytest.approx(exact.kl_single_WI, abs=1e-6)


def screened_scores(
    evaluator: Evaluator,
    *,
    ranking: str,
    num_candidates: int,
    ranker: Evaluator | None = None,
    target: int | None = None,
) -> WindowScores:
    tokens_WT, targets_W = windows(3)
    if target is not None:
        targets_W[1] = target
    predictions = Predictions(
        evaluator,
        WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(3), context="real", seed=0),
        log_p_short_WV=short_log_probs(evaluator, tokens_WT),
        with_kl=True,
    )
    settings = ScreeningSettings(num_candidates, ranking=ranking, ranker=ranker)
    return WindowScores(predictions, max_k=4, screening=settings)


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
@pytest.mark.parametrize("other_ranks", [False, True])
def test_a_hierarchy_unmasks_blocks_then_the_tokens_of_the_best(visibility: Visibility, other_ranks: bool) -> None:
    """16 candidates, 5 to be found: 4 blocks of 4, of which 2 are kept, the best whole and one token of the other."""
    evaluator, ranker = (
        Evaluator(build(NORMED, seed).eval(), LOCAL, visibility=visibility, anchor_id=9) for seed in (0, 1)
    )
    scores = screened_scores(evaluator, ranking="hierarchy", num_candidates=5, ranker=ranker if other_ranks else None)
    ranks = ranker if other_ranks else evaluator
    tokens_WT, targets_W = windows(3)
    log_p_WV = log_probs(evaluator, tokens_WT, visible_WS=torch.arange(M).expand(3, -1))
    blocks_WNS = torch.arange(M).view(4, 4).expand(3, -1, -1)
    masked = dataclasses.replace(ranks, path="masked")
    values = target_losses(masked, tokens_WT, targets_W=targets_W, visible_WNS=blocks_WNS, reference_WV=log_p_WV)
    for value_WN, single_WM in zip(values, (scores.loss_single_WI, scores.kl_single_WI), strict=True):
        assert value_WN is not None
        for w in range(3):
            first, second = value_WN[w].argsort()[:2].tolist()
            expected = {*range(4 * first, 4 * first + 4), 4 * second + 3}
            assert set(np.flatnonzero(np.isfinite(single_WM[w]))) == expected


def test_a_proxy_ranks_by_its_loss_and_by_its_divergence_from_the_measured_prediction() -> None:
    evaluator, proxy = (Evaluator(build(NORMED, seed).eval(), LOCAL, anchor_id=9) for seed in (0, 1))
    scores = screened_scores(evaluator, ranking="proxy", num_candidates=5, ranker=proxy)
    tokens_WT, targets_W = windows(3)
    log_p_WV = log_probs(evaluator, tokens_WT, visible_WS=torch.arange(M).expand(3, -1))
    singles_WNS = torch.arange(M)[:, None].expand(3, -1, -1)
    masked = dataclasses.replace(proxy, path="masked")
    losses_WN, kl_WN = target_losses(
        masked, tokens_WT, targets_W=targets_W, visible_WNS=singles_WNS, reference_WV=log_p_WV
    )
    assert kl_WN is not None
    for w in range(3):
        by_loss, by_kl = (set(values_WN[w].argsort()[:5].tolist()) for values_WN in (losses_WN, kl_WN))
        assert by_loss != by_kl
        assert set(np.flatnonzero(np.isfinite(scores.loss_single_WI[w]))) == by_loss
        assert set(np.flatnonzero(np.isfinite(scores.kl_single_WI[w]))) == by_kl


@pytest.mark.parametrize("ranking", SCREEN_RANKINGS)
def test_a_proxy_with_other_padding_behind_its_vocabulary_ranks(ranking: str) -> None:
    """The proxy is the model itself with 40 entries more, or fewer, that next to no probability falls on."""
    raw = transformers_models.build_raw("llama")
    model = transformers_models.TransformersModel(raw)
    evaluator = Evaluator(model, LOCAL, anchor_id=3)
    alone = screened_scores(evaluator, ranking=ranking, num_candidates=5)
    padded = transformers_models.build_raw(
        "llama", vocab_size=transformers_models.VOCAB + 40, tie_word_embeddings=False
    )
    weights = raw.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.cat([weights[name], torch.zeros(40, weights[name].shape[1])])
    padded.load_state_dict(weights)
    padded.lm_head.weight.data[-40:] = 0.0
    larger = Evaluator(transformers_models.TransformersModel(padded), LOCAL, anchor_id=3)
    ranked = screened_scores(evaluator, ranking=ranking, num_candidates=5, ranker=larger)
    same = np.isfinite(ranked.loss_single_WI) == np.isfinite(alone.loss_single_WI)
    assert same.mean() > 0.8  # 40 logits of 0 take a little of the probability
    assert np.isfinite(ranked.kl_single_WI).sum(axis=1).tolist() == [5, 5, 5]
    labels_WA = torch.tensor([[1, 5], [2, 6], [3, 7]])  # drawn ones, whose divergences are the model's alone
    drawn = dataclasses.replace(ranked, predictions=dataclasses.replace(ranked.predictions, drawn_labels_WA=labels_WA))
    of_label = drawn.of_label(2)
    assert np.isfinite(of_label.loss_single_WI).sum(axis=1).tolist() == [5, 5, 5]
    (known,) = of_label.known_singles
    assert known.kl_from_short_WI is not None and np.isfinite(known.kl_from_short_WI).sum() == 15
    back = screened_scores(larger, ranking=ranking, num_candidates=5, ranker=evaluator)
    assert np.isfinite(back.kl_single_WI).sum(axis=1).tolist() == [5, 5, 5]
    padding = transformers_models.VOCAB + 39  # a label that the ranker does not have
    beyond = screened_scores(larger, ranking=ranking, num_candidates=5, ranker=evaluator, target=padding)
    assert np.isfinite(beyond.loss_single_WI).sum(axis=1).tolist() == [5, 5, 5]


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
@pytest.mark.parametrize("name", ["greedy", "greedy-kl"])
def test_forward_selection_takes_only_candidates_that_screening_leaves(name: str, visibility: Visibility) -> None:
    evaluator = Evaluator(build(NORMED).eval(), LOCAL, visibility=visibility, anchor_id=9)
    scores = screened_scores(evaluator, ranking="patching", num_candidates=6)
    found_WI = SELECTORS[name].score(scores)
    singles_WI = scores.loss_single_WI if name == "greedy" else scores.kl_single_WI
    assert (
        np.isfinite(found_WI) == np.isfinite(singles_WI)
    ).all()  # unmask-one and kl are screened by the same ranking
    tokens_WT, targets_W = windows(3)
    log_p_WV = log_probs(evaluator, tokens_WT, visible_WS=torch.arange(M).expand(3, -1))
    masked = dataclasses.replace(evaluator, path="masked")
    for w, candidates in enumerate(np.flatnonzero(np.isfinite(of_window)).tolist() for of_window in found_WI):
        assert len(candidates) == 6
        taken: list[int] = []
        for _ in range(4):
            left = [j for j in candidates if j not in taken]
            losses_1N, kl_1N = target_losses(
                masked, tokens_WT[[w]], targets_W=targets_W[[w]], reference_WV=log_p_WV[[w]],
                visible_WNS=torch.tensor([[sorted([*taken, j]) for j in left]]),
            )  # fmt: skip
            assert kl_1N is not None
            taken.append(left[int((losses_1N if name == "greedy" else kl_1N)[0].argmin())])
        assert rank(found_WI)[w, :4].tolist() == taken


def test_log_probabilities_over_another_vocabulary() -> None:
    log_p = torch.tensor([[0.25, 0.75]]).log()
    assert torch.equal(in_vocabulary(log_p, 2), log_p)
    more = in_vocabulary(log_p, 4)
    assert torch.equal(more[:, :2], log_p)
    assert more.exp()[0, 2:].tolist() == [0, 0]
    assert torch.equal((more.exp() * more)[:, 2:], torch.zeros(1, 2))  # not NaN
    assert torch.equal(in_vocabulary(log_p, 1), log_p[:, :1])


def test_what_rankings_cost() -> None:
    def cost(ranking: str) -> int:
        settings = InfluenceConfig(screen=64, screen_by=ranking)  # type: ignore[arg-type]
        return num_evaluations("unmask-one", 1984, settings=settings)

    assert {ranking: cost(ranking) - 65 for ranking in SCREEN_RANKINGS} == {
        "gradient": 3, "patching": 3, "attention": 3, "hierarchy": 31 + 64 + 64, "proxy": 1985,
    }  # fmt: skip


def test_the_option() -> None:
    assert parse_screen("64") == {"screen": 64}
    assert parse_screen("hierarchy:64") == {"screen": 64, "screen_by": "hierarchy"}
    for wrong in ("", "0", "-3", "64:gradient", "magic:64", "gradient:", ":64", "1e3", "9" * 12):
        with pytest.raises(UserError, match=f"--screen {wrong}: must be a number .* hierarchy:64; the rankings are"):
            parse_screen(wrong)


@pytest.fixture(scope="module")
def config(corpus_file: Path, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A tiny Llama, to be measured with another that has the same tokenizer as its proxy."""
    texts = [json.loads(line)["text"] for line in corpus_file.open()]
    models = tmp_path_factory.mktemp("models")
    save_llama(models / "model", texts)
    save_llama(models / "proxy", texts, seed=1)
    save_llama(models / "foreign", texts[:3])
    save_llama(models / "short", texts, max_position=FULL - 6)
    settings = dataclasses.replace(
        tiny_config.influence,
        num_windows=8,
        k=[1, 4],
        selectors=["unmask-one", "kl"],
        resampled_draws=0,
        screen=5,
        screen_by="proxy",
        screen_sample=1.0,
        screen_proxy=str(models / "proxy"),
    )
    return dataclasses.replace(tiny_config, pretrained=PretrainedConfig(str(models / "model")), influence=settings)


def with_settings(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))  # type: ignore[arg-type]


def test_from_python_a_proxy_is_opened_once(config: Config, corpus_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [
        f"influence.screen_proxy={config.influence.screen_proxy}",
        "influence.screen_by=proxy",
        "influence.screen=5",
    ]
    model = api.open_model(str(config.pretrained.model), local_len=LOCAL, full_len=FULL, overrides=overrides)
    texts = [json.loads(line)["text"] for line in corpus_file.open()][:40]
    opened: list[object] = []
    monkeypatch.setattr(
        opening,
        "open_ranking_model",
        lambda *args, **named: opened.append(open_ranking_model(*args, **named)) or opened[-1],
    )
    for seed in (1, 2):
        windows = api.windows_from_texts(model, texts, num_windows=4, seed=seed)
        measured = api.measure(model, windows, selectors=["kl"], k=[1])
        assert measured.manifest["screen_proxy"]["name"] == config.influence.screen_proxy
    assert len(opened) == 1


def test_a_proxy_ranks_and_the_model_decides(config: Config, tmp_path: Path) -> None:
    folder = measure(config, tmp_path / "run", out=tmp_path / "screened")
    exact = measure(with_settings(config, screen=None), tmp_path / "run", out=tmp_path / "exact")
    of_proxy = dataclasses.replace(config, pretrained=PretrainedConfig(config.influence.screen_proxy))
    ranked = measure(with_settings(of_proxy, screen=None), tmp_path / "proxy", out=tmp_path / "ranked")
    keys = ["window_id", "selector", "context"]
    rows = [read_table(one, "selections").to_pandas().set_index(keys) for one in (folder, exact, ranked)]
    for key, row in rows[0].iterrows():
        known = np.isfinite(row["scores"])
        assert known.sum() == 5
        assert row["scores"][known] == pytest.approx(rows[1].loc[key]["scores"][known], abs=1e-5)
        if key[1] == "unmask-one":
            assert set(np.flatnonzero(known)) == set(rank(rows[2].loc[key]["scores"][None])[0, :5])
    recall = np.stack(read_table(folder, "screening").to_pandas()["recall"])
    assert 0 < recall.mean() < 1
    manifest = read_json(folder / "manifest.json")
    assert manifest["screen_proxy"]["name"] == config.influence.screen_proxy
    assert manifest["screen_proxy"]["weights_sha256"] != manifest["model"]["weights_sha256"]
    assert "screen_proxy" not in read_json(exact / "manifest.json")


def test_a_ranking_that_is_not_named_is_recorded_and_what_named_it_is_found_again(
    config: Config, tmp_path: Path
) -> None:
    automatic, named = (with_settings(config, screen_proxy=None, screen_by=by) for by in ("auto", "gradient"))
    folder = measure(automatic, tmp_path / "run")
    manifest = (folder / "manifest.json").read_bytes()
    assert read_json(folder / "manifest.json")["influence"]["screen_by"] == "gradient"
    assert measure(named, tmp_path / "run") == folder and (folder / "manifest.json").read_bytes() == manifest


def test_machines_that_rank_in_other_precisions_do_not_share_a_folder(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_model(config, tmp_path / "run")
    by_device, found = with_settings(config, screen_proxy=None, screen_by="gradient"), {}
    for has_units, precision in ((False, "fp32"), (True, "bf16")):
        monkeypatch.setattr(screening, "has_bf16_units", lambda _, has_units=has_units: has_units)
        ranking = open_ranking_model(by_device.influence, opened)
        assert ranking is not None and ranking.precision == precision
        folder = measure(by_device, tmp_path / "run")
        assert read_json(folder / "manifest.json")["screen_precision"] == precision
        found[precision] = (influence_run_id(by_device.influence, opened, ranking=ranking), folder)
        exact = with_settings(by_device, screen=None).influence
        without = influence_run_id(exact, opened, ranking=open_ranking_model(exact, opened))
        assert without == found.setdefault("exact", without)
    assert found["fp32"][0] != found["bf16"][0] and found["fp32"][1] != found["bf16"][1]


def test_a_model_on_several_devices_ranks_in_the_precision_of_its_losses(config: Config, tmp_path: Path) -> None:
    """It cannot be copied into another."""
    spread = dataclasses.replace(config, pretrained=dataclasses.replace(config.pretrained, device_map="auto"))
    opened = dataclasses.replace(open_model(spread, tmp_path / "run"), precision="bf16")
    settings = dataclasses.replace(config.influence, screen_proxy=None, screen_by="gradient")
    ranking = open_ranking_model(settings, opened)
    assert ranking is not None and ranking.precision == "bf16"
    with pytest.raises(UserError, match=r"screen_precision = fp32: a model under pretrained\.device_map"):
        open_ranking_model(dataclasses.replace(settings, screen_precision="fp32"), opened)


@pytest.mark.parametrize(
    ("proxy", "message"),
    [
        ("foreign", "its tokenizer is not that of the measured model, where token"),
        ("short", "it has 16 positions, and the windows take 21"),
        ("nowhere", "no such folder or file"),
        (None, "without influence.screen_proxy the model itself ranks, in fp32, which is the precision of the losses"),
    ],
)
def test_what_cannot_be_a_proxy(config: Config, proxy: str | None, message: str, tmp_path: Path) -> None:
    named = None if proxy is None else str(Path(str(config.influence.screen_proxy)).with_name(proxy))
    with pytest.raises(UserError, match=message):
        measure(with_settings(config, screen_proxy=named, screen_precision="fp32"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_each_ranking_of_one_pass_has_its_own_estimate() -> None:
    """That of ``gate_gradients`` by its name, whose definitions are tested elsewhere; no two of them order all windows alike."""
    scores = make_scores(build(NORMED).eval())
    labels = scores.labels_W
    orders = {}
    for ranking in ("gradient", "patching", "attention"):
        found = scores.ranking_values(ScreeningSettings(3, ranking=ranking), "loss")
        expected = gate_gradients(
            scores.evaluator,
            scores.windows.tokens_WT,
            loss_function=lambda rows, logits_wV: F.cross_entropy(logits_wV, labels[rows], reduction="sum"),
            attribution=ranking,
        )
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)
        orders[ranking] = np.argsort(found, axis=1).tolist()
    assert len({str(order) for order in orders.values()}) == 3


@pytest.mark.parametrize("ranking", ["gradient", "patching", "attention"])
@pytest.mark.parametrize("label", [0, 1])
def test_a_proxy_ranks_by_its_own_gradients(ranking: Attribution, label: int) -> None:
    """By the loss of the label, and by the divergence from what the measured model predicts; not by the measured model's."""
    scores, proxy = make_scores(build(NORMED).eval()), Evaluator(build(NORMED, 1).eval(), LOCAL)
    drawn_labels_WA = (scores.labels_W[:, None] * 3 + 5) % 31
    predictions = dataclasses.replace(scores.predictions, drawn_labels_WA=drawn_labels_WA)
    of_label = dataclasses.replace(scores, predictions=predictions).of_label(label)
    labels = predictions.labels_WA[:, label]
    screening = ScreeningSettings(3, ranking=ranking, ranker=proxy)
    for criterion, of_loss in (("loss", labels), ("kl", of_label.reference_WV.exp())):
        of_each = [
            gate_gradients(
                evaluator,
                scores.windows.tokens_WT,
                loss_function=lambda rows, logits_wV, of=of_loss: F.cross_entropy(logits_wV, of[rows], reduction="sum"),
                attribution=ranking,
            ).numpy()
            for evaluator in (proxy, scores.evaluator)
        ]
        found = of_label.ranking_values(screening, criterion)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, of_each[0], rtol=1e-4, atol=1e-6)
        assert np.abs(of_each[0] - of_each[1]).max() > 1e-3
        alone = of_label.ranking_values(ScreeningSettings(3, ranking=ranking), criterion)  # type: ignore[arg-type]
        np.testing.assert_allclose(alone, of_each[1], rtol=1e-4, atol=1e-6)


def test_a_seed_draws_another_sample_of_windows(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    """By the numbers of the windows."""
    sampled = []
    for number, seed in enumerate((0, 0, 1)):
        settings = dataclasses.replace(
            tiny_config.influence, num_windows=40, selectors=["unmask-one"], k=[1, 2], screen=5, screen_sample=0.5, seed=seed,
            resampled_draws=0,
        )  # fmt: skip
        config = dataclasses.replace(tiny_config, influence=settings)
        tables = measure(config, tiny_run, out=tmp_path / str(number))
        sampled.append(set(read_table(tables, "screening")["window_id"].to_pylist()))
    assert sampled[0] == sampled[1] != sampled[2]
    assert all(10 < len(sample) < 30 for sample in sampled)


def opened_as(**fields: Any) -> Any:
    """What screening reads of a measured model: 6 of 22 tokens, an anchor in front, in fp32 on the CPU, on one device."""
    given = {
        "device": torch.device("cpu"), "precision": "fp32", "is_spread": False, "anchor_id": 9, "num_anchors": 1,
        "lengths": SimpleNamespace(full_len=FULL, local_len=LOCAL), "model": build(NORMED).eval(),
        "tokenizer": Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a")),
    }  # fmt: skip
    return SimpleNamespace(**(given | fields))


def screen_settings(**keys: Any) -> InfluenceConfig:
    return InfluenceConfig(**({"screen": 8, "screen_by": "gradient"} | keys))


@pytest.mark.parametrize(
    ("keys", "fields", "units", "expected"),
    [
        ({}, {}, False, "fp32"),
        ({}, {}, True, "bf16"),
        ({}, {"precision": "bf16"}, False, "fp32"),
        ({"screen_precision": "bf16"}, {}, False, "bf16"),
        ({"screen_precision": "fp32"}, {"precision": "bf16"}, True, "fp32"),
        ({}, {"is_spread": True}, True, "fp32"),
        ({}, {"is_spread": True, "precision": "bf16"}, False, "bf16"),
        ({"screen_precision": "fp32"}, {"is_spread": True}, True, "fp32"),
        ({"screen_precision": "bf16", "screen_proxy": "p"}, {"is_spread": True}, False, "bf16"),
        ({"screen_proxy": "p"}, {"is_spread": True, "precision": "bf16"}, False, "fp32"),
        ({"screen_by": "proxy", "screen_precision": "bf16"}, {}, False, "bf16"),
    ],
)
def test_the_precision_of_the_ranking(
    keys: dict[str, Any], fields: dict[str, Any], units: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asked for; else bf16 where there are units for it. A model on several devices has its own, unless a proxy ranks."""
    monkeypatch.setattr(screening, "has_bf16_units", lambda device: units)
    opened, named = opened_as(**fields), screen_settings(**keys)
    proxies: list[tuple[PretrainedConfig, dict[str, Any]]] = []

    def opens(settings: PretrainedConfig, **options: Any) -> Any:
        proxies.append((settings, options))
        return SimpleNamespace(tokenizer=opened.tokenizer, record=SimpleNamespace(max_position=FULL + 1))

    monkeypatch.setattr(pretrained, "open_pretrained", opens)
    for allow_pickle in (False, True):
        ranking = open_ranking_model(named, opened, allow_pickle=allow_pickle)
        assert ranking is not None and ranking.precision == expected
        if named.screen_proxy is None:
            assert ranking.proxy is None and not proxies
        else:
            of_proxy, options = proxies.pop()
            assert ranking.proxy is not None
            assert (of_proxy.model, of_proxy.allow_pickle) == ("p", allow_pickle)
            assert options == {"device": opened.device, "precision": expected}
    assert open_ranking_model(dataclasses.replace(named, screen=None), opened) is None


@pytest.mark.parametrize(("own", "asked"), [("fp32", "fp32"), ("bf16", "bf16")])
def test_a_model_that_ranks_itself_in_its_own_precision_saves_nothing(own: str, asked: str) -> None:
    settings = screen_settings(screen_by="proxy", screen_precision=asked)
    with pytest.raises(UserError, match=f"the model itself ranks, in {own}, which is the precision of the losses"):
        open_ranking_model(settings, opened_as(precision=own))
    with pytest.raises(
        UserError, match=r"screen_precision = bf16: a model under pretrained\.device_map .* losses, fp32"
    ):
        open_ranking_model(screen_settings(screen_precision="bf16"), opened_as(is_spread=True))


def vocabulary(words: dict[str, int], added: tuple[str, ...] = ()) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.add_tokens(list(added))
    return tokenizer


@pytest.mark.parametrize(
    ("own", "of_proxy", "found"),
    [
        (vocabulary({"a": 0, "b": 1, "c": 2}), vocabulary({"a": 0, "b": 1, "c": 2, "d": 3}), None),
        (vocabulary({"a": 0, "b": 1, "c": 2}), vocabulary({"a": 0, "b": 1}, ("c",)), None),  # it may be an added token there
        (vocabulary({"a": 0, "b": 1}, ("c", "d")), vocabulary({"a": 0, "b": 1}), None),  # and need not be one
        (vocabulary({"a": 0, "c": 2, "b": 1}), vocabulary({"a": 0, "b": 2, "c": 1}), "token 1 is 'b'; the proxy has it at 2"),
        (vocabulary({"a": 0, "c": 2, "b": 1}), vocabulary({"a": 0, "c": 1}), "token 1 is 'b'; the proxy has no such token"),
    ],
)  # fmt: skip
def test_every_token_has_the_same_id_in_the_proxy(own: Tokenizer, of_proxy: Tokenizer, found: str | None) -> None:
    if found is None:
        screening._check_tokenizer("here", of_proxy, tokenizer=own)
        return
    with pytest.raises(UserError, match=f"^here: its tokenizer is not that of the measured model, where {found};"):
        screening._check_tokenizer("here", of_proxy, tokenizer=own)


@pytest.mark.parametrize("num_anchors", [0, 1])
def test_a_proxy_has_a_position_for_every_token_of_a_window(num_anchors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opened_as(num_anchors=num_anchors)
    for more in (-1, 0):
        record = SimpleNamespace(max_position=FULL + num_anchors + more)
        of_proxy = SimpleNamespace(tokenizer=opened.tokenizer, record=record)
        monkeypatch.setattr(pretrained, "open_pretrained", lambda *_, of_proxy=of_proxy, **__: of_proxy)
        settings = screen_settings(screen_proxy="p")
        if more == 0:
            assert open_ranking_model(settings, opened) is not None
        else:
            with pytest.raises(
                UserError, match=f"{FULL + num_anchors - 1} positions, and the windows take {FULL + num_anchors}"
            ):
                open_ranking_model(settings, opened)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_proxy_is_checked_like_the_model(precision: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first windows, at the lengths and with the anchor of the measurement; the model itself was checked already."""
    checked: list[tuple[Any, torch.Tensor, dict[str, Any]]] = []
    monkeypatch.setattr(
        screening, "check_fit", lambda model, tokens, **options: checked.append((model, tokens, options))
    )
    opened, model = opened_as(), build(NORMED).eval()
    rows_WT = np.random.default_rng(0).integers(1, 30, (6, FULL + 1))

    class Drawn:
        def __init__(self, num: int) -> None:
            self.num = num

        def __len__(self) -> int:
            return self.num

        def tokens(self, numbers: np.ndarray) -> np.ndarray:
            return rows_WT[numbers]

    for num, expected in ((6, 4), (3, 3)):
        drawn: Any = Drawn(num)
        ranking = screening.RankingModel(precision, SimpleNamespace(model=model))  # type: ignore[arg-type]
        screening.check_proxy(screen_settings(screen_proxy="p"), opened, ranking=ranking, windows=drawn)
        of_model, tokens, options = checked.pop()
        assert of_model is model and tokens.tolist() == rows_WT[:expected].tolist()
        name = "influence.screen_proxy = p"
        assert options == {"name": name, "local_len": LOCAL, "dtype": dtype, "anchor_id": 9}
    screening.check_proxy(screen_settings(), opened, ranking=screening.RankingModel(precision), windows=drawn)
    assert not checked


def test_what_ranks_is_run_as_the_model_is() -> None:
    """Another model ranks on the compact path. The model itself, where its precision is that of the losses, needs no other."""
    opened, other = opened_as(), build(NORMED, 1).eval()
    settings = screen_settings(screen_by="hierarchy", path="masked", visibility="contextual", batch_tokens=77)

    def made(ranking: Any) -> Any:
        return screening.make_screening(settings, opened, ranking=ranking)

    own = made(screening.RankingModel("fp32"))
    assert (own.num_candidates, own.ranking, own.ranker) == (8, "hierarchy", None)
    lower = made(screening.RankingModel("bf16"))
    of_proxy = made(screening.RankingModel("fp32", SimpleNamespace(model=other)))  # type: ignore[arg-type]
    low_proxy = made(screening.RankingModel("bf16", SimpleNamespace(model=other)))  # type: ignore[arg-type]
    for found, path, dtype in (
        (lower, "masked", torch.bfloat16),
        (of_proxy, "compact", torch.float32),
        (low_proxy, "compact", torch.bfloat16),
    ):
        ranker = found.ranker
        assert (found.num_candidates, found.ranking) == (8, "hierarchy")
        assert (ranker.path, ranker.visibility, ranker.local_len, ranker.anchor_id) == (path, "contextual", LOCAL, 9)
        assert ranker.batch_tokens == 77 and next(ranker.model.parameters()).dtype == dtype
    assert of_proxy.ranker.model is other
    assert made(None) is None
    without = dataclasses.replace(settings, screen=None)
    assert screening.make_screening(without, opened, ranking=screening.RankingModel("bf16")) is None


def test_labels_beyond_the_vocabulary_become_its_last_entry() -> None:
    labels = torch.tensor([[0, 4], [5, 6], [7, 13]])
    assert screening.labels_in_vocabulary(labels, 6).tolist() == [[0, 4], [5, 5], [5, 5]]
