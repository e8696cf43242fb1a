"""The two tables of windows: choices, their losses, optimism and damping, against the definition."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from defined import FULL, LOCAL, M, kl, log_probs
from scored import TOKENIZER, llama, measurement
from transformers_models import BOS, build

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.evaluate import Measurement, damped, draw_labels
from olmo_sparsity.progress import listening
from olmo_sparsity.selectors import SELECTORS, rank
from olmo_sparsity.selectors.own import names_of

ALL = np.arange(6)
CLOSE = 2e-5


def rows(measured: Measurement, window_ids_W: np.ndarray = ALL) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    tables = measured.tables_of(window_ids_W)
    return tables["windows"].to_pylist(), tables["selections"].to_pylist()


def far_of(window: dict[str, Any], context: str) -> list[int]:
    """The long-range tokens of a window under a context."""
    return window["null_token_ids"] if context.startswith("null") else window["token_ids"][:M]


class Defined:
    """Predictions by definition, each computed once."""

    def __init__(self, measured: Measurement) -> None:
        engine = measured.engine
        self._options = {"visibility": engine.visibility, "anchor_id": engine.anchor_id}
        self._log_probs = functools.cache(self._run)

    def _run(self, far: tuple[int, ...], local: tuple[int, ...], visible: frozenset[int]) -> torch.Tensor:
        gates = torch.tensor([[j in visible for j in range(M)]])
        return log_probs(llama().raw, torch.tensor([[*far, *local]]), gates, **self._options)[0]

    def log_probs(self, window: dict[str, Any], context: str, visible: Any) -> torch.Tensor:
        return self._log_probs(tuple(far_of(window, context)), tuple(window["token_ids"][M:]), frozenset(visible))

    def loss(self, window: dict[str, Any], context: str, visible: Any, label: int) -> float:
        return -float(self.log_probs(window, context, visible)[label])

    def kl(self, window: dict[str, Any], context: str, p: Any, q: Any) -> float:
        """KL(p_P, p_Q) of two visible sets."""
        return float(kl(self.log_probs(window, context, p), self.log_probs(window, context, q)))


@pytest.mark.parametrize(
    ("visibility", "unit", "anchor_id"),
    [
        ("hidden", "token", BOS),
        ("contextual", "token", None),
        ("hidden", "word", None),
        ("contextual", "sentence", BOS),
        ("hidden", "block:5", BOS),
    ],
)
def test_choices_are_nested_and_have_the_losses_of_the_definition(visibility: Any, unit: str, anchor_id: Any) -> None:
    measured = measurement(
        visibility=visibility, unit=unit, anchor_id=anchor_id, selectors=["unmask-one", "kl", "nearest", "random"]
    )
    windows, selections = rows(measured)
    defined, of_window = Defined(measured), {window["window_id"]: window for window in windows}
    for row in selections:
        window, context = of_window[row["window_id"]], row["context"]
        label = window["resampled_target_ids"][row["draw"]] if "resampled" in context else window["target_id"]
        group_first = window.get("null_group_first" if context.startswith("null") else "group_first", list(range(M)))
        groups = [set(range(*ends)) for ends in zip(group_first, [*group_first[1:], M], strict=True)]
        order = rank(np.array([row["scores"]], dtype=float))[0][: max(row["k"])]
        assert [min(groups[i]) for i in order] == row.get("group_first", row["positions"])
        assert row["positions"] == [position for i in order for position in sorted(groups[i])]
        assert row["distance_tokens"] == [FULL - position for position in row["positions"]]
        assert (len(groups) == M) == (unit == "token")
        for place, k in enumerate(row["k"]):
            shown = set().union(*(groups[i] for i in order[:k]))
            assert shown == set(
                row["positions"][: row.get("num_tokens", row["k"])[place]]
            )  # so J_1, J_2, ... are nested
            loss = defined.loss(window, context, shown, label)
            assert row["loss_sparse_nats"][place] == pytest.approx(loss, abs=CLOSE)
            gain = defined.loss(window, context, (), label) - loss
            assert row["gain_sparse_nats"][place] == pytest.approx(gain, abs=2 * CLOSE)
            if "resampled" in context:
                from_short = defined.kl(window, context, (), shown)
                assert row["kl_short_to_sparse_nats"][place] == pytest.approx(from_short, abs=CLOSE)
                assert row["kl_sparse_nats"] is None
            else:
                assert row["kl_sparse_nats"][place] == pytest.approx(
                    defined.kl(window, context, range(M), shown), abs=CLOSE
                )
                assert row["kl_short_to_sparse_nats"] is None


def test_losses_of_windows_are_those_of_the_definition() -> None:
    measured = measurement(anchor_id=BOS, train_len=12, resampled_draws=2)
    for window in rows(measured)[0]:
        defined = Defined(measured)
        loss = functools.partial(defined.loss, window, label=window["target_id"])
        short, long, null = loss("real", ()), loss("real", range(M)), loss("null", range(M))
        last = [
            -float(
                log_probs(llama().raw, torch.tensor([window["token_ids"][-n:]]), torch.ones(1, 0), anchor_id=BOS)[
                    0, window["target_id"]
                ]
            )
            for n in window["last_n"]
        ]
        assert {LOCAL, 12, FULL} <= set(window["last_n"])
        expected = {
            "loss_short_nats": short,
            "loss_long_nats": long,
            "gain_long_nats": short - long,
            "null_loss_long_nats": null,
            "null_gain_long_nats": short - null,
            "loss_short_no_gap_nats": last[window["last_n"].index(LOCAL)],
            "gain_beyond_nats": last[window["last_n"].index(12)] - long,
            "loss_last_nats": last,
            "kl_short_nats": defined.kl(window, "real", range(M), ()),
            "null_kl_short_nats": defined.kl(window, "null", range(M), ()),
            "kl_short_to_long_nats": defined.kl(window, "real", (), range(M)),
            "resampled_loss_short_nats": [loss("real", (), label=label) for label in window["resampled_target_ids"]],
            "resampled_loss_long_nats": [
                loss("real", range(M), label=label) for label in window["resampled_target_ids"]
            ],
        }
        for name, value in expected.items():
            assert window[name] == pytest.approx(value, abs=2 * CLOSE), name
        log_p_V = defined.log_probs(window, "real", ())
        assert window["entropy_short_nats"] == pytest.approx(float(-(log_p_V.exp() * log_p_V).sum()), abs=CLOSE)
        assert window["loss_last_nats"][-1] == window["loss_long_nats"]
        assert (
            TOKENIZER.decode(window["token_ids"]) == "".join(window["token_texts"]) and window["train_overlap"] is None
        )


def test_a_row_of_training_that_is_not_known_has_no_gain_beyond_it() -> None:
    assert {window["gain_beyond_nats"] for window in rows(measurement())[0]} == {None}


def test_who_chooses_for_drawn_labels() -> None:
    """Selectors that see the target choose again; random, whose optimism must be 0, keeps its choice."""
    windows, selections = rows(measurement(selectors=["kl", "unmask-one", "random"], resampled_draws=3))
    assert [len(window["resampled_target_ids"]) for window in windows] == [3] * 6
    of = {(row["window_id"], row["selector"], row["context"], row["draw"]): row for row in selections}
    assert len(of) == len(selections)
    counts = {key: sum(key == (name, context) for _, name, context, _ in of) for key in {(n, c) for _, n, c, _ in of}}
    assert counts == {
        **{(name, context): 6 for name in ("kl", "unmask-one", "random") for context in ("real", "null")},
        **{
            (name, context): 6 * draws
            for name in ("unmask-one", "random")
            for context, draws in (("resampled", 3), ("null-resampled", 1))
        },
    }
    for window in range(6):
        assert of[window, "random", "resampled", 2]["positions"] == of[window, "random", "real", 0]["positions"]
        assert of[window, "random", "null-resampled", 0]["positions"] == of[window, "random", "null", 0]["positions"]
    again = [
        of[window, "unmask-one", "resampled", 0]["scores"] != of[window, "unmask-one", "real", 0]["scores"]
        for window in range(6)
    ]
    assert all(again)
    assert [row["window_id"] for row in selections] == sorted(row["window_id"] for row in selections)


def test_optimism_is_above_0_for_those_that_see_the_label_and_0_for_random() -> None:
    """The gain on the label that the choice was made for, minus its mean over labels of the short prediction, -KL(p_{}, p_J)."""
    measured = measurement(selectors=["unmask-one", "random"], k=[1], resampled_draws=40, num_windows=12)
    _, selections = rows(measured, np.arange(12))
    optimism = {
        name: np.array(
            [
                row["gain_sparse_nats"][0] + row["kl_short_to_sparse_nats"][0]
                for row in selections
                if (row["selector"], row["context"]) == (name, "resampled")
            ]
        )
        for name in ("unmask-one", "random")
    }
    error = {name: of.std() / len(of) ** 0.5 for name, of in optimism.items()}
    assert abs(optimism["random"].mean()) < 4 * error["random"]
    assert optimism["unmask-one"].mean() > 10 * error["unmask-one"]


def test_damping_blends_both_predictions() -> None:
    generator = torch.Generator().manual_seed(0)
    long_WV, short_WV = (torch.randn(4, 50, generator=generator).mul(3).log_softmax(dim=-1) for _ in range(2))
    targets_W1 = torch.tensor([[0], [7], [49], [3]])
    losses_WB, kl_WB = damped(long_WV, short_WV, targets_W1)
    for place, w in enumerate(tenth / 10 for tenth in range(1, 10)):
        product_WV = short_WV.double().exp() ** (1 - w) * long_WV.double().exp() ** w
        log_q_WV = (product_WV / product_WV.sum(dim=-1, keepdim=True)).log()
        assert losses_WB[:, place] == pytest.approx(-log_q_WV.gather(1, targets_W1)[:, 0].numpy(), abs=1e-5)
        assert kl_WB[:, place] == pytest.approx(kl(long_WV, log_q_WV), abs=1e-5)
    window = rows(measurement())[0][0]
    for prefix in ("", "null_"):  # from the short context towards the long one
        assert (np.diff(window[f"{prefix}kl_damped_nats"]) < 0).all() and len(window[f"{prefix}loss_damped_nats"]) == 9


def test_labels_are_drawn_from_the_prediction() -> None:
    log_p_V = torch.tensor([0.5, 0.25, 0.2, 0.05]).log()
    labels_W1 = draw_labels(log_p_V.expand(4000, -1), np.arange(4000), seed=0, num_draws=1)
    shares = np.bincount(labels_W1[:, 0], minlength=4) / 4000
    assert shares == pytest.approx([0.5, 0.25, 0.2, 0.05], abs=0.03)


def test_draws_are_functions_of_the_seed_and_the_window_alone() -> None:
    log_p_WV = torch.full((5, 100), 0.01).log()
    labels = functools.partial(draw_labels, log_p_WV[:3])
    first = labels(np.array([4, 8, 15]), seed=2, num_draws=3)
    assert labels(np.array([15, 4, 8]), seed=2, num_draws=2).tolist() == first[[2, 0, 1], :2].tolist()
    assert (labels(np.array([4, 8, 15]), seed=3, num_draws=3) != first).any() and len(first.unique()) == 9
    of_seeds = [rows(measurement(seed=seed, num_windows=4), np.arange(4)) for seed in (0, 1, 0)]
    assert of_seeds[0] == of_seeds[2] and of_seeds[0] != of_seeds[1]
    assert len({(window["doc_id"], window["start_token"]) for window in of_seeds[0][0]}) == 4


@pytest.mark.parametrize(
    ("visibility", "unit"),
    [("hidden", "token"), ("contextual", "token"), ("hidden", "word"), ("contextual", "block:4")],
)
def test_batch_size_and_the_order_of_parts_change_nothing(visibility: Any, unit: str) -> None:
    settings: dict[str, Any] = {
        "visibility": visibility,
        "unit": unit,
        "selectors": ["kl", "mask-one", "attention", "random"],
    }
    whole = rows(measurement(**settings, num_windows=4), np.arange(4))
    measured = measurement(**settings, num_windows=4, batch_tokens=90)
    parts = {first: rows(measured, np.arange(first, first + 2)) for first in (2, 0)}
    for table in (0, 1):
        for ours, theirs in zip([*parts[0][table], *parts[2][table]], whole[table], strict=True):
            for name, value in theirs.items():
                if isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float)):
                    assert ours[name] == pytest.approx(value, abs=CLOSE), name
                else:
                    assert ours[name] == value, name


def test_sets_that_are_known_are_not_run_again() -> None:
    """J_1 of any selector is among the single tokens where one has asked for them; equal sets run once."""
    ran: dict[tuple[str, ...], int] = {}
    found = {}
    for names in (["kl"], ["kl", "nearest"], ["nearest"], ["nearest", "streaming-llm"]):
        measured, counts = measurement(selectors=names, k=[1], visibility="contextual", resampled_draws=0), []
        with listening(counts.append):
            _, selections = rows(measured)
        ran[tuple(names)] = sum(counts)
        found[tuple(names)] = [row["loss_sparse_nats"] for row in selections if row["selector"] == "nearest"]
    assert ran["kl",] == ran["kl", "nearest"]
    assert found["kl", "nearest"] == [pytest.approx(losses, abs=CLOSE) for losses in found["nearest",]]
    same = measurement(selectors=["nearest"], k=[M], resampled_draws=0)
    everything = rows(same)
    for window, row in zip(everything[0], (row for row in everything[1] if row["context"] == "real"), strict=True):
        assert (row["loss_sparse_nats"], row["kl_sparse_nats"]) == ([window["loss_long_nats"]], [0.0])


def test_tables_have_the_columns_of_their_schemas() -> None:
    tables = measurement(unit="word", resampled_draws=0).tables_of(ALL)
    assert tables["windows"]["group_first"].type == pa.list_(pa.int32()) and len(tables["windows"]) == 6
    assert set(tables["selections"]["context"].to_pylist()) == {"real", "null"}
    assert tables["selections"]["num_evaluations"].to_pylist()[0] == len(tables["windows"]["group_first"][0]) + 2


def failing(scores: Any) -> Any:
    raise ValueError("nothing to\nsay")


def test_selectors_that_fail_are_tried_before_anything_long() -> None:
    """On one window: what a model cannot give, and what a user's function does wrong. Others do not run."""
    refused = measurement(build("gemma-2"), visibility="contextual", selectors=["kl", "h2o"])
    with pytest.raises(UserError, match=r"leave out the selectors that need them$"):
        refused.try_selectors()
    with pytest.raises(UserError, match=r"ValueError: nothing to say, in the selector failing$"):
        measurement(selectors=names_of([failing])).try_selectors()
    ran: list[int] = []
    with listening(ran.append):
        measurement(selectors=["kl", "greedy"]).try_selectors()
    assert ran == []
    measurement(visibility="contextual", selectors=["h2o", "quest", "attention"]).try_selectors()


def test_every_selector_of_the_package_makes_rows() -> None:
    """One window of all of them, without and with drawn labels; scores are numbers, and not all alike."""
    names = [name for name, one in SELECTORS.items() if one.source is None]
    _, selections = rows(
        measurement(visibility="contextual", anchor_id=BOS, selectors=names, k=[1, 3]), np.array([1, 2])
    )
    for name in names:
        of = [row for row in selections if row["selector"] == name]
        contexts = {row["context"] for row in of}
        drawn = SELECTORS[name].sees_target or name == "random"
        assert len({score for row in of for score in row["scores"]}) > 1, name
        assert contexts == {"real", "null", *(("resampled", "null-resampled") if drawn else ())}, name
        for row in of:
            assert len(row["scores"]) == M, name
            assert row["sees_target"] == SELECTORS[name].sees_target
