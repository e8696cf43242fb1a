"""A whole document: the numbers of ``measure`` place by place, those of the definition, and what is left out and continued."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Messages, made_up_text
from known_selectors import only_here as only_here

from olmo_sparsity import api
from olmo_sparsity.api import exploring
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.records.own_selectors import declare_recorded, names_of, own_entries
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.text.places import encode_text
from olmo_sparsity.view.exploration import Exploration

EXACT = 1e-6  # nats
ROUNDING = 2**-21  # nats; the spacing of fp32 between 4 and 8, where the losses are
LOCAL, FULL = 8, 20
KS = [1, 2, 4, 8]
TEXT = made_up_text(np.random.default_rng(11), 30) + " na\u00efve \U0001f30a\n</script><b>\u202e "


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> api.Model:
    return api.open_model(tiny_run)


@pytest.fixture(scope="module")
def explored(model: api.Model) -> Exploration:
    return api.explore(model, TEXT, selectors=["kl", "unmask-one"], k=KS, source="a.txt")


def test_the_texts_are_the_document_and_every_token_behind_a_full_window_is_a_target(
    model: api.Model, explored: Exploration
) -> None:
    record, encoded = explored.record, encode_text(model.tokenizer, TEXT)
    assert "".join(encoded.pieces) == TEXT
    assert "".join(record.texts) == printable(TEXT)
    assert "" in record.texts  # of a character of several tokens
    assert (record.first_target, record.local_len, record.full_len) == (FULL, LOCAL, FULL)
    assert record.num_targets == len(encoded) - FULL
    assert record.ks == KS
    assert [(one.name, one.sees_target) for one in record.selectors] == [
        ("kl", False),
        ("unmask-one", True),
        ("random", False),
    ]


@pytest.mark.parametrize("target", [0, 1, 17, 30, -1])
def test_the_numbers_are_those_of_the_window_alone(model: api.Model, explored: Exploration, target: int) -> None:
    record = explored.record
    token = range(record.first_target, len(record.texts))[target]
    window = api.window_at(model, TEXT, at=record.offsets[token])
    measured = api.measure(model, window, selectors=["kl", "unmask-one"], k=KS)
    real, row = record.contexts["real"], measured.windows.iloc[0]
    assert record.loss_short_nats[target] == pytest.approx(row["loss_short_nats"], abs=EXACT)
    assert real.loss_long_nats[target] == pytest.approx(row["loss_long_nats"], abs=EXACT)
    assert real.kl_short_nats[target] == pytest.approx(row["kl_short_nats"], abs=EXACT)
    for of in measured.selections.to_dict("records"):
        if of["context"] != "real":
            continue
        choices = real.choices[of["selector"]]
        found, expected = (
            [FULL - far for far in chosen] for chosen in (choices.distances[target], of["distance_tokens"])
        )
        # Candidates that are alike change places by rounding, which depends on the machine and on the size of a pass.
        assert len(set(found)) == len(found) == len(expected)
        assert [of["scores"][j] for j in found] == pytest.approx([of["scores"][j] for j in expected], abs=ROUNDING)
        same = [n for n, k in enumerate(KS) if set(found[:k]) == set(expected[:k])]
        assert len(same) >= 2
        for values, theirs in (
            (choices.loss_sparse_nats[target], of["loss_sparse_nats"]),
            (choices.kl_sparse_nats[target], of["kl_sparse_nats"]),
        ):
            assert [values[n] for n in same] == pytest.approx([theirs[n] for n in same], abs=EXACT)


def test_a_document_is_its_own_null_context_in_another_order(model: api.Model, explored: Exploration) -> None:
    assert explored.null_context == "shuffled"
    encoded = encode_text(model.tokenizer, TEXT)
    record = api.explore(model, TEXT[: encoded.ends[FULL + 1]], k=[1]).record
    assert record.num_targets == 2
    for target, order in enumerate(record.null_orders):
        assert order is not None and sorted(order) == list(range(FULL - LOCAL)) != order
        assert record.null_begins[target] == target


def test_what_is_measured_is_kept_and_an_interrupted_exploration_continues(
    model: api.Model, explored: Exploration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    from olmo_sparsity.measure import measurement

    written: list[int] = []
    write = measurement.write_part

    def stop_after_one(folder: Path, table: str, *, part: int, **rest: object) -> None:
        if part == 1:
            raise KeyboardInterrupt
        write(folder, table, part=part, **rest)  # type: ignore[arg-type]

    settings = {"selectors": ["kl", "unmask-one"], "k": KS, "source": "a.txt", "folder": tmp_path}
    monkeypatch.setattr(measurement, "write_part", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        api.explore(model, TEXT, **settings)  # type: ignore[arg-type]
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("a-")
    first = folder / "windows" / "part-00000.parquet"
    before = first.stat().st_mtime_ns
    monkeypatch.setattr(
        measurement,
        "write_part",
        lambda folder, table, *, part, **rest: (written.append(part), write(folder, table, part=part, **rest)),
    )
    continued = api.explore(model, TEXT, **settings)  # type: ignore[arg-type]
    assert written and 0 not in written and first.stat().st_mtime_ns == before
    assert continued.record == explored.record
    written.clear()
    assert api.explore(model, TEXT, **settings).record == explored.record and not written  # type: ignore[arg-type]
    assert "already measured" in messages[-1]
    api.explore(model, TEXT, **{**settings, "k": [1]})  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("only_here")
def test_a_selector_of_ones_own_is_refused_by_its_name_too(model: api.Model) -> None:
    """Whether its function was given before, or tables alone name it."""
    said = r"^selectors\[0\] = mine: explore takes built-in selectors only; influence takes those of your own$"
    names_of([api.Selector(len, name="mine")])
    with pytest.raises(UserError, match=said):
        api.explore(model, TEXT, selectors=["mine"])
    entries = own_entries(["mine"])
    del SELECTORS["mine"]
    declare_recorded(entries, where="x")
    with pytest.raises(UserError, match=said):
        api.explore(model, TEXT, selectors=["mine"])


def test_words_are_ranked_as_groups(model: api.Model) -> None:
    record = api.explore(model, TEXT, unit="word", k=[1, 2]).record
    assert record.unit == ("word", "words")
    choices = record.contexts["real"].choices["kl"]
    assert choices.ranks is not None
    for distances, ranks in zip(choices.distances, choices.ranks, strict=True):
        assert len(distances) == len(ranks) and set(ranks) <= {1, 2} and ranks == sorted(ranks)
    assert any(len(ranks) > 2 for ranks in choices.ranks)


def test_mistakes_are_one_line(model: api.Model) -> None:
    with pytest.raises(UserError, match=r"a.txt: \d+ tokens, and a window takes 20 and the target behind them"):
        api.explore(model, "the river", source="a.txt")
    pieces = encode_text(model.tokenizer, TEXT).pieces
    window, with_target = ("".join(pieces[:number]) for number in (FULL, FULL + 1))
    with pytest.raises(UserError, match=r"^text: 20 tokens, and a window takes 20 and the target behind them"):
        api.explore(model, window)
    assert api.explore(model, with_target, selectors=["nearest"], k=[1]).record.num_targets == 1
    with pytest.raises(UserError, match=r"^selectors = \[\]: must name at least one selector$"):
        api.explore(model, TEXT, selectors=[])
    with pytest.raises(UserError, match="selector"):
        api.explore(model, TEXT, selectors=["no"])
    for given, shown in ((lambda window: 1, "<lambda>"), (api.Selector(len, name="mine"), "mine")):
        with pytest.raises(UserError) as refused:
            api.explore(model, TEXT, selectors=["kl", given])
        assert str(refused.value) == (
            f"selectors[1] = {shown}: explore takes built-in selectors only; influence takes those of your own"
        )
    with pytest.raises(UserError, match=r"^selectors\[0\] = 5: must be text$"):
        api.explore(model, TEXT, selectors=[5])
    with pytest.raises(UserError, match=r"influence\.k"):
        api.explore(model, TEXT, k=[13])


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a.txt", "a"),
        ("notes/my letter (2).txt", "my-letter-2"),
        ("...", "text"),
        ("\u6cb3", "text"),
        ("x" * 50, "x" * 40),
        ("-a-", "a"),
    ],
)
def test_the_folder_of_tables_begins_with_the_name_of_the_text(source: str, name: str) -> None:
    assert exploring._name_of(source) == name
