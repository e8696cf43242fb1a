"""One place of one document: the numbers of the data-set run, and what is shown of hostile text."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_selectors import only_here as only_here
from rich.console import Console

from olmo_sparsity import api
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import ALL_SELECTORS
from olmo_sparsity.text.corpus import make_document
from olmo_sparsity.text.places import encode_text
from olmo_sparsity.view.explanation import HEAT_STEPS, Explanation, _nats, _plain, print_explanation

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
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=list(ALL_SELECTORS), k=[1, 3])
    assert [window.selector for window in explanation.windows] == list(ALL_SELECTORS)
    shown = api.explain(model, HOSTILE * 3, at=150)
    assert [window.selector for window in shown.windows] == ["kl"]
    assert shown.windows[0].ks == [1, 2, 8]
    assert (shown.source, shown.window_row["source"]) == ("text", "text")
    twice = api.explain(model, HOSTILE * 3, at=150, selectors=["kl", "nearest", "kl"], k=[1], source="mine")
    assert [window.selector for window in twice.windows] == ["kl", "nearest"]
    assert (twice.source, twice.window_row["source"]) == ("mine", "mine")


def test_the_null_context_is_named(model: api.Model) -> None:
    tokens = encode_text(model.tokenizer, HOSTILE * 3)
    assert api.explain(model, HOSTILE * 3, at=150).null_context == "same-document"
    short = HOSTILE * 3
    short = short[tokens.begins[0] : tokens.ends[22]]
    shuffled = api.explain(model, short, at=int(tokens.begins[21]))
    assert shuffled.null_context == "shuffled"
    assert "from the null context in their place" in shuffled.finding and "foreign" not in printed(shuffled)
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
    value = explanation.to_json()
    assert (value["source"], value["run"]) == ("a.txt", "tiny")
    assert "follows a full window at 3 places; this is the first" in value["note"]
    assert "Gate not assessed: one window is no sample" in text
    excerpt, (one, two) = explanation.excerpt, explanation.gains.itertuples()
    for number in (excerpt.loss_short_nats, excerpt.loss_long_nats, two.loss_sparse_nats):
        assert f"{number:7.3f} nats" in text
    assert f"│ {one.optimism_nats:.3f}" in text.replace("-0.000", "0.000")
    assert sorted(",".join(re.findall(r"\[([12](?:,[12])?)\]", text)).split(",")) == ["1", "2"]
    assert "\x1b" not in text


def test_the_page_is_self_contained_and_escapes_the_text(
    model: api.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setenv("HOME", str(tmp_path))
    assert explanation.save_html("~/page.html", overwrite=True) == tmp_path / "page.html"
    frame = explanation._repr_html_()
    assert frame.startswith("<iframe sandbox srcdoc=") and frame.count("<") == 2


def test_json_has_the_columns_of_the_tables(model: api.Model, of_command: api.Results) -> None:
    value = api.explain(model, HOSTILE * 3, at=150, selectors=["kl", "unmask-one"], k=[2]).to_json()
    json.dumps(value, allow_nan=False)
    assert value["gate"] == "not-assessed"
    assert list(value["window"]) == list(of_command.windows)
    assert list(value["selections"][0]) == list(of_command.selections)
    assert [entry["selector"] for entry in value["gains"]] == ["kl", "unmask-one"]
    row = next(row for row in value["selections"] if (row["selector"], row["context"]) == ("kl", "real"))
    assert value["gains"][0]["loss_sparse_nats"] == row["loss_sparse_nats"][0]


def test_mistakes(model: api.Model) -> None:
    with pytest.raises(UserError, match=r"^selectors = \[\]: must name at least one selector$"):
        api.explain(model, HOSTILE * 3, at=150, selectors=[])
    with pytest.raises(UserError, match="give either --at OFFSET or --target TEXT"):
        api.explain(model, HOSTILE)
    with pytest.raises(UserError, match="give either --at OFFSET or --target TEXT"):
        api.explain(model, HOSTILE, at=1, target="x")
    with pytest.raises(UserError, match="only 2 tokens stand before it, and the full context has 20"):
        api.explain(model, HOSTILE, at=int(encode_text(model.tokenizer, HOSTILE).begins[2]))
    with pytest.raises(UserError, match=r"influence.k = \[13\]"):
        api.explain(model, HOSTILE * 3, at=150, k=[13])


def test_no_more_words_are_said_to_be_chosen_than_there_are(model: api.Model, documents: dict[str, str]) -> None:
    """k may be more than the words of a window; all of them are visible then."""
    text = max(documents.values(), key=len)
    explanation = api.explain(model, text, at=len(text) - 3, selectors=["kl"], k=[1, 12], unit="word")
    row = explanation.window_row
    assert len(row["group_first"]) < 12
    assert f" from the {len(row['group_first'])} words chosen by kl." in explanation.finding


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
    tokens = re.findall(r'<(?:span|mark) class="token [^>]*>(.*?)</(?:span|mark)>', page)[:12]
    shown_ranks = {
        position: int(rank[1]) for position, text in enumerate(tokens) if (rank := re.search("<sup>(.)</sup>", text))
    }
    assert shown_ranks == {positions[-1]: rank for rank, positions in enumerate(groups, start=1)}
    assert any(len(positions) > 1 for positions in groups)
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
        assert rows["distance_tokens"].tolist() == [20 - last for last in rows["group_last"]]
    assert (frame["group_first"] < frame["group_last"]).any()  # else first and last could be exchanged


def test_the_page_shades_each_token_by_its_score_and_says_its_distance(model: api.Model) -> None:
    """From the rows of the tables: 20 tokens, of which the last 8 are local. A token with a score below 0 speaks against."""
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=["unmask-one"], k=[1, 3])
    (row,) = (row for row in explanation.selection_rows if (row["selector"], row["context"]) == ("unmask-one", "real"))
    scores, chosen = np.array(row["scores"]), row["positions"][:3]
    assert scores.min() < 0 < scores.max() and len({abs(score) for score in scores}) == 12
    tokens = re.findall(r'<(span|mark) class="(token [^"]*)" title="([^"]*)">(.*?)</\1>', explanation.to_html())
    assert len(tokens) == 12
    for position, (tag, classes, title, text) in enumerate(tokens):
        score = scores[position]
        assert title == f"{20 - position} tokens before the target, score {score:.3g}"
        assert ("against" in classes.split()) == (score < 0)
        assert f"heat-{round(abs(score) / np.abs(scores).max() * HEAT_STEPS)}" in classes.split()
        assert (tag == "mark") == (position in chosen)
        rank = re.search(r"<sup>(\d+)</sup>", text)
        assert (rank and int(rank[1])) == (chosen.index(position) + 1 if position in chosen else None)


def test_a_score_of_0_or_none_speaks_neither_for_nor_against(model: api.Model) -> None:
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=["unmask-one"], k=[1, 3])
    (window,) = explanation.windows
    scores = [0.0, -0.5, None, 0.25, -0.0, *window.choice.scores[5:]]
    choice = dataclasses.replace(window.choice, scores=scores)
    selections = {**window.excerpt.selections, ("unmask-one", "real"): choice}
    changed = dataclasses.replace(window, excerpt=dataclasses.replace(window.excerpt, selections=selections))
    page = dataclasses.replace(explanation, windows=(changed,)).to_html()
    tokens = re.findall(r'<(?:span|mark) class="token ([^"]*)" title="[^"]*, score ([^"]*)"', page)[:5]
    assert [("against" in classes, score) for classes, score in tokens] == [
        (False, "0"), (True, "-0.5"), (False, "unknown"), (False, "0.25"), (False, "-0"),
    ]  # fmt: skip
    assert [classes.split()[0] for classes, score in tokens if score in ("0", "-0", "unknown")] == ["heat-0"] * 3


def test_the_page_of_a_target_of_white_space_names_it(model: api.Model) -> None:
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=["random"], k=[1])
    (window,) = explanation.windows
    changed = dataclasses.replace(window, excerpt=dataclasses.replace(window.excerpt, target_text="   "))
    assert "<q>\u2423</q>" in dataclasses.replace(explanation, windows=(changed,)).to_html()


@pytest.mark.usefixtures("only_here")
def test_tokens_without_a_score_are_chosen_last_and_shown_without_one(model: api.Model) -> None:
    """The selector scores two tokens, and three are chosen."""

    def two(window: api.WindowInput) -> Any:
        """Scores of two tokens."""
        scores = np.full(window.num_long_range, np.nan)
        scores[[1, 3]] = -0.25, 7.5
        return scores

    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=[two], k=[3])
    (row,) = (
        row for row in explanation.to_json()["selections"] if row["context"] == "real" and row["selector"] == "two"
    )
    num = len(row["scores"])
    assert row["scores"] == [{1: -0.25, 3: 7.5}.get(position) for position in range(num)]
    assert row["positions"] == [3, 1, num - 1]
    assert [cells[2] for cells in cells_of(explanation.to_html(), "The visible tokens")[1:]] == ["7.5", "-0.25", "-"]
    lines = [line.split() for line in printed(explanation).splitlines()]
    assert [line[2] for line in lines if len(line) > 3 and line[:1] in (["1"], ["2"], ["3"])][:3] == [
        "7.5",
        "-0.25",
        "-",
    ]


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    """JSON has neither NaN nor infinity."""
    value = {"a": [float("nan"), float("inf"), -float("inf"), 1.5, 2, None, "x"], "b": {"c": float("inf")}}
    assert _plain(value) == {"a": [None, None, None, 1.5, 2, None, "x"], "b": {"c": None}}


def test_a_seed_draws_another_null_context(model: api.Model) -> None:
    drawn = [api.explain(model, HOSTILE * 9, at=600, seed=seed).window_row["null_token_ids"] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    window = api.window_at(model, HOSTILE * 9, at=600, seed=6)
    assert window.null_contexts.tokens(np.array([0]))[0].tolist() == drawn[2]


def cells_of(page: str, caption: str) -> list[list[str]]:
    """Return the rows of the tables with this caption, their headings first; of several tables those of all."""
    found = []
    for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL):
        if f"<caption>{caption}" in table:
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL):
                cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
                found.append([cell.strip().replace("\u2212", "-") for cell in cells])
    return found


def test_each_number_of_the_page_stands_in_its_column(model: api.Model) -> None:
    """Losses and gains of each k from the rows of the tables, in nats; ranks, distances and scores of what is visible."""
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=["unmask-one"], k=[1, 3, 10])
    rows = {(row["selector"], row["context"]): row for row in explanation.selection_rows if row["draw"] == 0}
    row, random = rows["unmask-one", "real"], rows["random", "real"]
    drawn = [r for r in explanation.selection_rows if (r["selector"], r["context"]) == ("unmask-one", "resampled")]
    optimism = np.mean([np.add(r["gain_sparse_nats"], r["kl_short_to_sparse_nats"]) for r in drawn], axis=0)
    optimism[0] = explanation.window_row["single_optimism_nats"]
    gain = np.array(row["gain_sparse_nats"])
    columns = [row["loss_sparse_nats"], gain, gain - random["gain_sparse_nats"], optimism, gain - optimism]
    heading, *shown = cells_of(explanation.to_html(), "Losses and gains in nats")
    assert heading == ["k", "L_short,sparse(k)", "sparse gain", "gain over random", "optimism", "corrected gain"]
    assert [cells[0] for cells in shown] == ["1", "3", "10"]
    numbers = np.array([[float(cell) for cell in cells[1:]] for cells in shown])
    np.testing.assert_allclose(numbers, np.transpose(columns), atol=5.1e-4)
    assert len(np.unique(np.round(numbers, 3))) > 12
    in_terminal = [line.split("│")[1:-1] for line in printed(explanation).splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in cells] for cells in in_terminal] == [
        [cell.replace("-0.000", "0.000") for cell in cells] for cells in shown
    ]
    heading, *ranked = cells_of(explanation.to_html(), "The visible tokens")
    assert heading[:3] == ["rank", "distance", "score"] and len(ranked) == 10
    for rank, (position, cells) in enumerate(zip(row["positions"], ranked, strict=False), start=1):
        assert (int(cells[0]), int(cells[1])) == (rank, 20 - position)
        assert float(cells[2]) == pytest.approx(row["scores"][position], rel=5.1e-3)
    losses = re.findall(r"<dt>(L_short|L_long)</dt><dd>([\d.]+) nats", explanation.to_html())
    assert [name for name, _ in losses] == ["L_short", "L_long"]
    expected = [explanation.window_row[f"loss_{name}_nats"] for name in ("short", "long")]
    np.testing.assert_allclose([float(loss) for _, loss in losses], expected, atol=5.1e-4)


def test_random_gains_nothing_over_itself_and_only_choices_that_see_the_target_have_optimism(model: api.Model) -> None:
    """A number that a selector does not have is missing: null in JSON, NaN in the frame, a dash where people read."""
    names = ["random", "unmask-one", "nearest"]
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=names, k=[1, 3])
    rows = {row["selector"]: row for row in explanation.selection_rows if row["context"] == "real" and row["draw"] == 0}
    frame = {name: explanation.gains.query(f"selector == '{name}'") for name in names}
    for name in names:
        gain, over = (frame[name][column].to_numpy() for column in ("gain_sparse_nats", "gain_over_random_nats"))
        np.testing.assert_array_equal(gain, rows[name]["gain_sparse_nats"])
        np.testing.assert_array_equal(frame[name]["loss_sparse_nats"], rows[name]["loss_sparse_nats"])
        expected = np.subtract(rows[name]["gain_sparse_nats"], rows["random"]["gain_sparse_nats"])
        np.testing.assert_array_equal(over, np.full(2, np.nan) if name == "random" else expected)
        np.testing.assert_array_equal(np.isfinite(frame[name]["optimism_nats"]), [name == "unmask-one"] * 2)
        np.testing.assert_array_equal(np.isfinite(frame[name]["corrected_gain_nats"]), [name == "unmask-one"] * 2)
    in_json = {(one["selector"], one["k"]): one for one in explanation.to_json()["gains"]}
    assert [in_json["random", k]["gain_over_random_nats"] for k in (1, 3)] == [None, None]
    in_terminal = [line.split("│")[1:-1] for line in printed(explanation).splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in cells][3:] for cells in in_terminal[:2]] == [["-"], ["-"]]
    assert [len(cells) for cells in in_terminal] == [4, 4, 6, 6, 4, 4]
    on_page = [cells for cells in cells_of(explanation.to_html(), "Losses and gains in nats") if cells[0] != "k"]
    assert [cells[3:] for cells in on_page[:2]] == [["-"], ["-"]] and "-" not in on_page[2]


def test_a_number_that_rounds_to_0_has_no_sign() -> None:
    assert [_nats(value) for value in (None, -0.0004, 0.0, -0.0006, 1.23456)] == [
        "-",
        "0.000",
        "0.000",
        "-0.001",
        "1.235",
    ]


def test_facts_and_json_are_those_of_the_window(model: api.Model) -> None:
    explanation = api.explain(model, HOSTILE * 3, at=150, selectors=["nearest", "kl"], k=[1, 3])
    row, place = explanation.window_row, encode_text(model.tokenizer, HOSTILE * 3)
    facts = {
        "Lengths": f"local 8 + long-range 12 = full 20 tokens, from token {row['start_token']} of the document",
        "Class of the target": row["target_class"],
        "Null context": f"text from elsewhere in the same document; long gain {row['null_gain_long_nats']:.3f} nats",
    }
    assert place.begins[row["start_token"] + 20] <= 150 < place.ends[row["start_token"] + 20]
    shown = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", explanation.to_html().replace("\u2212", "-")))
    assert {name: shown[name] for name in facts} == facts
    assert facts.items() <= dict(said(explanation)).items()
    names = ("loss_short_nats", "loss_long_nats", "gain_long_nats", "target_text")
    value = explanation.to_json()
    assert [value[name] for name in names] == [row[name] for name in names]
    assert (value["local_len"], value["full_len"], value["unit"]) == (8, 20, "token")
    assert (value["offset"], value["null_context"]) == (explanation.offset, "same-document")
    setup = {"model": None, "visibility": "hidden", "positions": "kept", "anchor": None, "anchor_warning": None}
    assert setup.items() <= value.items()
    assert [(entry["selector"], entry["k"]) for entry in value["gains"]] == [
        ("nearest", 1), ("nearest", 3), ("kl", 1), ("kl", 3),
    ]  # fmt: skip
    assert (
        len({row[name] for name in ("loss_short_nats", "loss_long_nats", "gain_long_nats", "null_gain_long_nats")}) == 4
    )


def test_it_begins_with_what_the_target_gains(model: api.Model) -> None:
    """The numbers of the sentence are those of the tables; only selectors that see the target have columns of optimism."""
    explanation = api.explain(model, HOSTILE * 3, target="window", selectors=["kl", "unmask-one", "nearest"], k=[1, 3])
    row = explanation.window_row
    gains = {
        one["selector"]: one["gain_sparse_nats"][1] for one in explanation.selection_rows if one["context"] == "real"
    }
    said_first = (
        f'The prediction of "{row["target_text"].strip()}" gains {row["gain_long_nats"]:.3f} nats from all 12 long-range tokens, '
        f"{row['null_gain_long_nats']:.3f} from the null context in their place, and {gains['kl']:.3f} from the 3 tokens chosen "
        f"by kl, {gains['unmask-one']:.3f} by unmask-one (sees the target), {gains['nearest']:.3f} by nearest."
    )
    assert printed(explanation).splitlines()[1] == said_first
    page = explanation.to_html()
    after_title = re.sub(r"<[^>]*>", "", page.split("</header>")[1]).replace("\u2212", "-").strip()
    assert after_title.startswith(html.escape(said_first, quote=True).replace("&quot;", "&#34;"))
    assert explanation.to_json()["finding"] == said_first
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
    for name, sees in (("kl", "does not see"), ("unmask-one", "sees"), ("nearest", "does not see")):
        after = text.partition(f"{name}, k = 3 ")[2]
        assert after.startswith(f"It {sees} the target") and "the score of each token." in after
        assert "Framed, with their ranks: the 3 visible tokens" in after
        assert "12 long-range tokens" in after and "8 local tokens, always visible, and the target" in after
    assert f"L_short {row['loss_short_nats']:.3f} nats, with the local tokens alone" in text
    assert f"L_long {row['loss_long_nats']:.3f} nats, with all tokens; long gain" in text
    columns = [len(row) for row in cells_of(page, "Losses and gains in nats")]
    assert columns == [4] * 3 + [6] * 3 + [4] * 3
    one = api.explain(model, HOSTILE * 3, target="window", selectors=["kl"], k=[1])
    assert " from the 1 token chosen by kl." in one.finding and "the 1 visible token." in " ".join(
        one.to_html().split()
    )
    assert "Optimism" in page and "Optimism" not in api.explain(model, HOSTILE * 3, at=150).to_html()
