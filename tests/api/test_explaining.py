"""One place of one document: the numbers of the data-set run, and what is shown of hostile text."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from olmo_sparsity import api
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.text.corpus import make_document
from olmo_sparsity.text.places import encode_text
from olmo_sparsity.view.explanation import Explanation, print_explanation

NATS = 1e-5  # forward passes of another size round differently
HOSTILE = (
    'the river of the garden </script><script>alert(1)</script> "quoted" [red]markup[/red] & \x1b[31m in the window '
)


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> api.Model:
    return api.open_model(tiny_run)


@pytest.fixture(scope="module")
def documents(corpus_file: Path) -> dict[str, str]:
    """The texts of the corpus by their IDs."""
    texts = [json.loads(line)["text"] for line in corpus_file.read_text().splitlines()]
    return {f"{make_document(text, '').doc_id:016x}": text for text in texts}


@pytest.fixture(scope="module")
def of_command(tiny_tables: Path) -> api.Results:
    return api.read_results(tiny_tables)


def explained(model: api.Model, documents: dict[str, str], window: Any, **options: Any) -> Explanation:
    """Explain the place of a window of a table."""
    text = documents[window.doc_id]
    encoded = encode_text(model.tokenizer, text)
    offset = encoded.begin_of(window.start_token + len(window.token_ids))
    return api.explain(model, text, at=offset, **options)


@pytest.mark.parametrize("number", [0, 7, 31])
def test_the_numbers_are_those_of_the_data_set_run(
    model: api.Model, documents: dict[str, str], of_command: api.Results, number: int
) -> None:
    """Losses, scores and selections. What is drawn at random depends on the number of the window, which is 0 here."""
    window = next(row for row in of_command.windows.itertuples() if row.window_id == number)
    names = [name for name in of_command.selections["selector"].unique() if name != "random"]
    explanation = explained(model, documents, window, selectors=names, k=[1, 2, 8])
    excerpt = explanation.excerpt
    assert excerpt.doc_id == window.doc_id
    assert excerpt.start_token == window.start_token
    assert (excerpt.target_text, excerpt.target_class) == (window.target_text, window.target_class)
    assert excerpt.token_texts == list(window.token_texts)
    for name in ("loss_short_nats", "loss_long_nats", "gain_long_nats"):
        assert getattr(excerpt, name) == pytest.approx(getattr(window, name), abs=NATS)
    for name in names:
        table = of_command.selections.query(f"window_id == {number} and selector == '{name}' and context == 'real'")
        (row,) = table.itertuples()
        choice = excerpt.selections[name, "real"]
        np.testing.assert_allclose(choice.scores, row.scores, atol=NATS)
        # Tokens whose scores are that close have no order: a pass of another size sums in another one.
        scores = np.asarray(row.scores)
        ranked = np.sort(scores)[::-1]
        np.testing.assert_allclose(scores[choice.positions], ranked[: len(choice.positions)], atol=2 * NATS)
        for i, k in enumerate((1, 2, 8)):
            if set(choice.positions[:k]) == set(row.positions[:k]):
                assert choice.loss_sparse_nats[i] == pytest.approx(row.loss_sparse_nats[i], abs=NATS)
            else:
                assert ranked[k - 1] - ranked[k] < 2 * NATS
    if number == 0:
        _check_controls(explanation, of_command, of_single=float(window.single_optimism_nats))


def _check_controls(explanation: Explanation, of_command: api.Results, *, of_single: float) -> None:
    rows = of_command.selections.query("window_id == 0")
    random = rows.query("selector == 'random' and context == 'real'")["gain_sparse_nats"].iloc[0]
    for window in explanation.windows:
        row = rows.query(f"selector == '{window.selector}' and context == 'real'").iloc[0]
        real, chosen = row["gain_sparse_nats"], window.choice.positions
        drawn = rows.query(f"selector == '{window.selector}' and context == 'resampled' and sees_target")
        parts = [
            np.stack(drawn[name].to_list()) for name in ("gain_sparse_nats", "kl_short_to_sparse_nats") if len(drawn)
        ]
        optimism = np.mean(np.add(*parts), axis=0) if parts else None
        for i, gains in enumerate(explanation.gains.query("selector == @window.selector").itertuples()):
            if set(chosen[: gains.k]) != set(row["positions"][: gains.k]):
                continue  # scores so close that they have no order, which the caller has checked
            assert gains.gain_sparse_nats == pytest.approx(real[i], abs=NATS)
            assert gains.gain_over_random_nats == pytest.approx(real[i] - random[i], abs=2 * NATS)
            if optimism is None:
                assert math.isnan(gains.optimism_nats) and math.isnan(gains.corrected_gain_nats)
            else:
                expected = of_single if (window.selector, gains.k) == ("unmask-one", 1) else optimism[i]
                assert gains.optimism_nats == pytest.approx(expected, abs=2 * NATS)
                assert gains.corrected_gain_nats == pytest.approx(real[i] - expected, abs=3 * NATS)


def test_the_seed_is_that_of_the_configuration(tiny_run: Path) -> None:
    seeded = api.open_model(tiny_run, overrides=["influence.seed=7"])
    drawn, named, other = (
        api.explain(seeded, HOSTILE * 3, at=150, **seed).gains for seed in ({}, {"seed": 7}, {"seed": 0})
    )
    assert drawn.equals(named) and not drawn.equals(other)


def test_every_selector_explains(model: api.Model) -> None:
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=list(SELECTORS), k=[1, 3])
    assert [window.selector for window in explanation.windows] == list(SELECTORS)
    shown = api.explain(model, HOSTILE * 3, at=150)
    assert [window.selector for window in shown.windows] == ["kl"]
    assert shown.windows[0].ks == [1, 2, 8]


def test_the_null_context_is_named(model: api.Model) -> None:
    tokens = encode_text(model.tokenizer, HOSTILE * 3)
    assert api.explain(model, HOSTILE * 3, at=150).null_context == "same-document"
    short = HOSTILE * 3
    short = short[tokens.begins[0] : tokens.ends[22]]
    shuffled = api.explain(model, short, at=int(tokens.begins[21]))
    assert shuffled.null_context == "shuffled"
    assert dict(said(shuffled))["Null context"].startswith("the same tokens in random order; long gain ")


def said(explanation: Explanation) -> list[tuple[str, str]]:
    """Return the lines of the form "name: words" that the terminal shows."""
    return [tuple(line.split(": ", 1)) for line in printed(explanation).splitlines() if ": " in line]  # type: ignore[misc]


def printed(explanation: Explanation) -> str:
    out = io.StringIO()
    print_explanation(explanation, Console(file=out, width=300))
    return out.getvalue()


def test_the_terminal_shows_place_marks_losses_and_gate(model: api.Model) -> None:
    explanation = api.explain(model, HOSTILE * 3, target="window", selectors=["unmask-one"], k=[1, 2], source="a.txt")
    text = printed(explanation)
    assert text.startswith(f"a.txt, character {HOSTILE.index('window')}\n")
    assert "follows a full window at 3 places; this is the first" in text
    assert "Gate not assessed: one window is no sample" in text
    excerpt, (one, two) = explanation.excerpt, explanation.gains.itertuples()
    for number in (excerpt.loss_short_nats, excerpt.loss_long_nats, two.loss_sparse_nats):
        assert f"{number:7.3f} nats" in text
    assert f"│ {one.optimism_nats:.3f}" in text.replace("-0.000", "0.000")
    assert len(re.findall(r"\[[12]:", text)) == 2
    assert "\x1b" not in text


def test_the_page_is_self_contained_and_escapes_the_text(model: api.Model, tmp_path: Path) -> None:
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=["kl", "gradient"], source="<a>.txt")
    page = explanation.save_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(re.findall("<script", page)) == 1  # the data
    assert "alert(1)</script>" not in page
    assert not re.findall(r'(?:src|href)="', page)
    assert "<a>.txt" not in page and "&lt;a&gt;.txt" in page
    assert "\x1b" not in page
    assert page.count("<mark") == 2 * 8
    assert "Gate not assessed" in page
    data = json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[0])
    assert data == json.loads(json.dumps(explanation.to_json()))
    with pytest.raises(UserError, match="the file exists"):
        explanation.save_html(tmp_path / "page.html")
    explanation.save_html(tmp_path / "page.html", overwrite=True)
    frame = explanation._repr_html_()
    assert frame.startswith("<iframe sandbox srcdoc=") and frame.count("<") == 2


def test_json_has_the_columns_of_the_tables(model: api.Model, of_command: api.Results) -> None:
    value = api.explain(model, HOSTILE * 3, at=150, selectors=["kl", "unmask-one"], k=[2]).to_json()
    json.dumps(value, allow_nan=False)
    assert value["gate"] == "not assessed"
    assert list(value["window"]) == list(of_command.windows)
    assert list(value["selections"][0]) == list(of_command.selections)
    assert [entry["selector"] for entry in value["gains"]] == ["kl", "unmask-one"]
    row = next(row for row in value["selections"] if (row["selector"], row["context"]) == ("kl", "real"))
    assert value["gains"][0]["loss_sparse_nats"] == row["loss_sparse_nats"][0]


def test_mistakes(model: api.Model) -> None:
    with pytest.raises(UserError, match="give either --at OFFSET or --target TEXT"):
        api.explain(model, HOSTILE)
    with pytest.raises(UserError, match="give either --at OFFSET or --target TEXT"):
        api.explain(model, HOSTILE, at=1, target="x")
    with pytest.raises(UserError, match="only 2 tokens stand before it, and the full context has 20"):
        api.explain(model, HOSTILE, at=int(encode_text(model.tokenizer, HOSTILE).begins[2]))
    with pytest.raises(UserError, match=r"influence.k = \[13\]"):
        api.explain(model, HOSTILE * 3, at=150, k=[13])


def test_words_are_explained_and_counted(model: api.Model, documents: dict[str, str], tmp_path: Path) -> None:
    text = max(documents.values(), key=len)
    explanation = api.explain(model, text, at=len(text) - 3, selectors=["kl", "unmask-one"], k=[1, 2], unit="word")
    (shown, _), excerpt = explanation.windows, explanation.excerpt
    groups = shown.visible_groups
    assert len(groups) == 2
    for positions in groups:
        assert positions == list(range(positions[0], positions[-1] + 1))
        word = "".join(excerpt.token_texts[j] for j in positions)
        assert positions[0] == 0 or word.startswith(" ")
        assert " " not in word.strip()
        assert len({shown.score(j) for j in positions}) == 1  # each token has the score of its word
    out = io.StringIO()
    print_explanation(explanation, Console(file=out, width=100, highlight=False))
    number = sum(len(positions) for positions in groups)
    assert f"2 words of {number} tokens visible, numbered by rank" in out.getvalue()
    assert "as many random words" in " ".join(out.getvalue().split())
    page = explanation.to_html()
    assert "Which earlier words matter for" in page
    assert page.count("<sup>") == 2 * 2  # a rank behind each word of each selector
    assert explanation.to_json()["unit"] == "word"


def test_scores_of_words_are_one_a_word(model: api.Model, documents: dict[str, str]) -> None:
    windows = api.windows_from_texts(model, list(documents.values())[:40], num_windows=3)
    frame = api.scores(model, windows, selectors=["kl", "nearest"], unit="word")
    for _, rows in frame.groupby(["window_id", "selector"]):
        assert rows["group"].tolist() == list(range(len(rows)))
        assert rows["group_first"].tolist()[1:] == [last + 1 for last in rows["group_last"].tolist()[:-1]]
        assert (rows["group_first"].iloc[0], rows["group_last"].iloc[-1]) == (0, 11)
        texts = windows.texts[int(rows["window_id"].iloc[0])]
        assert "".join(rows["group_text"]) == "".join(texts[:12])
