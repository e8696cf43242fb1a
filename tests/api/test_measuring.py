"""The Python functions against the tables that the command wrote for the same windows, and against the definition."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Messages

from olmo_sparsity import api
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_manifest
from olmo_sparsity.statistics.quantities import pick, read_estimates
from olmo_sparsity.text.sources import hash64

NATS = 1e-5  # forward passes of another size round differently
TEXTS = [
    "the river of the garden was quiet " * 8,
    "a yellow lamp in the window and a letter to the doctor " * 6,
    "short",
]


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> api.Model:
    return api.open_model(tiny_run)


@pytest.fixture(scope="module")
def of_command(tiny_tables: Path) -> api.Results:
    """The first windows of what ``olmo-sparsity influence`` measured."""
    results = api.read_results(tiny_tables)
    selections = results.selections.query("window_id < 20").reset_index(drop=True)
    return api.Results(results.windows.query("window_id < 20"), selections, results.manifest)


@pytest.fixture(scope="module")
def windows(model: api.Model, of_command: api.Results) -> api.ChosenWindows:
    return api.windows_from_table(model, of_command.windows)


@pytest.fixture(scope="module")
def measured(model: api.Model, windows: api.ChosenWindows) -> api.Results:
    return api.measure(model, windows)


def same(first: pd.Series, second: pd.Series) -> None:
    np.testing.assert_allclose(np.stack(first.to_list()), np.stack(second.to_list()), atol=NATS, rtol=0)


def test_windows_of_a_table_have_its_text_and_documents(of_command: api.Results, windows: api.ChosenWindows) -> None:
    for name in ("window_id", "doc_id", "target_id", "target_text"):
        assert windows.frame[name].tolist() == of_command.windows[name].tolist()
    for name in ("token_ids", "token_texts"):
        assert [list(row) for row in windows.frame[name]] == [list(row) for row in of_command.windows[name]]
    assert set(windows.frame["null_context"]) == {"document"}


def test_a_measurement_has_the_numbers_of_the_command(of_command: api.Results, measured: api.Results) -> None:
    """Everything but the null contexts, which are drawn from other windows here."""
    columns = ["loss_short_nats", "loss_long_nats", "gain_long_nats", "gain_beyond_nats", "kl_short_nats"]
    for name in [
        *columns,
        "kl_short_to_long_nats",
        "entropy_short_nats",
        "resampled_loss_short_nats",
    ]:
        same(measured.windows[name], of_command.windows[name])
    assert list(measured.windows) == list(of_command.windows)
    own = measured.selections.query("context in ('real', 'resampled')")
    table = of_command.selections.query("context in ('real', 'resampled')")
    assert list(own) == list(table)
    for name in ("window_id", "selector", "context", "draw", "sees_target", "num_evaluations"):
        assert own[name].tolist() == table[name].tolist()
    for name in ("loss_sparse_nats", "gain_sparse_nats", "scores"):
        same(own[name], table[name])
    assert [list(row) for row in own["positions"]] == [list(row) for row in table["positions"]]


def test_batches_of_windows_have_the_same_numbers(
    model: api.Model, tiny_run: Path, windows: api.ChosenWindows, measured: api.Results
) -> None:
    few = api.open_model(tiny_run, overrides=["influence.windows_per_part=7"])
    again = api.measure(few, windows)
    for name in ("loss_short_nats", "loss_long_nats", "null_loss_long_nats"):
        same(again.windows[name], measured.windows[name])
    same(again.selections["scores"], measured.selections["scores"])
    sets = [[1], [], [4, 2]]
    pd.testing.assert_frame_equal(
        api.losses(few, windows, sets), api.losses(model, windows, sets), check_exact=False, atol=NATS, rtol=0
    )
    pd.testing.assert_frame_equal(
        api.scores(few, windows), api.scores(model, windows), check_exact=False, atol=NATS, rtol=0
    )


def test_scores_are_those_of_the_table(model: api.Model, windows: api.ChosenWindows, of_command: api.Results) -> None:
    names = ["kl", "gradient", "random", "attention"]
    frame = api.scores(model, windows, selectors=names)
    for name in names:
        own = frame[frame["selector"] == name].pivot(index="window_id", columns="position", values="score")
        rows = of_command.selections.query(f"selector == '{name}' and context == 'real'")
        np.testing.assert_allclose(own.to_numpy(), np.stack(rows["scores"].to_list()), atol=NATS)
    one = frame[(frame["window_id"] == 3) & (frame["position"] == 5)]
    assert one["distance_tokens"].unique().tolist() == [15]
    assert one["token_text"].unique().tolist() == [windows.texts[3][5]]


def test_frames_have_their_columns_and_rows_in_order(model: api.Model, windows: api.ChosenWindows) -> None:
    """Selectors in the order given; for each, windows rise, and in a window positions or groups."""
    frame = api.scores(model, windows, selectors=["random", "nearest"])
    assert list(frame) == ["window_id", "selector", "position", "distance_tokens", "token_text", "score"]
    expected = [(window, name, j) for name in ("random", "nearest") for window in range(20) for j in range(12)]
    assert list(zip(frame["window_id"], frame["selector"], frame["position"], strict=True)) == expected
    assert (frame["distance_tokens"] == 20 - frame["position"]).all()
    assert frame["token_text"].tolist() == [windows.texts[window][j] for window, _, j in expected]
    blocks = api.scores(model, windows, selectors=["nearest"], unit="block:5", max_k=3)
    assert list(blocks) == [
        "window_id", "selector", "group", "group_first", "group_last", "distance_tokens", "group_text", "score",
    ]  # fmt: skip
    assert blocks["group"].tolist() == [0, 1, 2] * 20
    spans = list(zip(blocks["group_first"], blocks["group_last"], strict=True))[:3]
    assert sum(last - first + 1 for first, last in spans) == 12 and spans[0][0] == 0 and spans[2][1] == 11
    assert blocks["distance_tokens"].tolist()[:3] == [20 - last for _, last in spans]
    assert blocks["group_text"].tolist()[:3] == ["".join(windows.texts[0][first : last + 1]) for first, last in spans]
    lost = api.losses(model, windows, pd.DataFrame({"window_id": [3, 0, 3], "positions": [[4, 2], [], [1]]}))
    assert list(lost) == ["window_id", "positions", "loss_nats", "kl_nats"]
    assert lost["window_id"].tolist() == [3, 0, 3] and lost["positions"].tolist() == [[4, 2], [], [1]]
    of_all = api.losses(model, windows, [[4, 2], [], [1]])
    assert of_all["window_id"].tolist() == np.repeat(np.arange(20), 3).tolist()
    np.testing.assert_allclose(
        lost[["loss_nats", "kl_nats"]], of_all[["loss_nats", "kl_nats"]].iloc[[9, 1, 11]], atol=NATS, rtol=0
    )


def test_other_windows_and_another_kind_of_null_context_are_another_measurement(
    tiny_run: Path, model: api.Model, of_command: api.Results
) -> None:
    """The manifest has the kind that the windows have, where they have one, whatever the configuration asks for."""

    def manifest(opened: api.Model, rows: slice, **named: object) -> dict[str, object]:
        windows = api.windows_from_table(opened, of_command.windows.iloc[rows])
        return api.measure(opened, windows, selectors=["nearest"], k=[1], resampled_draws=0, **named).manifest  # type: ignore[arg-type]

    shuffling = api.open_model(tiny_run, overrides=["influence.null_context=shuffled"])
    found = [
        manifest(model, slice(0, 3)),
        manifest(model, slice(3, 6)),
        manifest(shuffling, slice(0, 3)),
        manifest(model, slice(0, 3), seed=4),
    ]
    assert len({one["run_id"] for one in found}) == 4
    assert manifest(model, slice(0, 3))["run_id"] == found[0]["run_id"]
    kinds = [one["influence"]["null_context"] for one in found]  # type: ignore[index]
    assert kinds == ["document", "document", "shuffled", "document"]
    alone = api.windows_from_table(model, of_command.windows.iloc[:1])
    measured = api.measure(model, alone, selectors=["nearest"], k=[1], resampled_draws=0)
    assert set(alone.frame["null_context"]) == {measured.manifest["influence"]["null_context"]} == {"shuffled"}
    assert model.config.influence.null_context == "document"


def test_another_seed_draws_other_random_scores(model: api.Model, windows: api.ChosenWindows) -> None:
    """Those of a measurement with this seed, in each of its windows."""
    frame = api.scores(model, windows, selectors=["random"], seed=5)
    own = frame.pivot(index="window_id", columns="position", values="score").to_numpy()
    measured = api.measure(model, windows, selectors=["random"], k=[1], seed=5, resampled_draws=0).selections
    np.testing.assert_allclose(own, np.stack(measured.query("context == 'real'")["scores"].to_list()), atol=NATS)
    assert not np.allclose(own, np.reshape(api.scores(model, windows, selectors=["random"])["score"], own.shape))


def loss_by_definition(model: api.Model, tokens: Sequence[int], visible: Sequence[int]) -> float:
    """Run the visible tokens alone, at their position IDs."""
    positions = [*sorted(visible), *range(12, 20)]
    seen = torch.tensor([[tokens[i] for i in positions]])
    logits = model.engine.model.logits(seen, torch.tensor([positions]))
    return float(torch.nn.functional.cross_entropy(logits.float(), torch.tensor([tokens[-1]])))


@torch.inference_mode()
def test_losses_of_given_sets(model: api.Model, windows: api.ChosenWindows) -> None:
    sets = [[], [3], [11, 2], range(12), [7]]
    frame = api.losses(model, windows, sets)
    assert frame["window_id"].tolist() == [w for w in range(20) for _ in sets]
    assert frame["positions"].tolist() == [list(positions) for positions in sets] * 20
    tokens = windows.windows.tokens(np.arange(20))
    for row in frame.itertuples():
        expected = loss_by_definition(model, tokens[row.window_id].tolist(), row.positions)
        assert row.loss_nats == pytest.approx(expected, abs=NATS)
        assert row.kl_nats == pytest.approx(0, abs=NATS) if len(row.positions) == 12 else row.kl_nats > 0


def test_losses_of_selections_are_those_of_the_table(
    model: api.Model, windows: api.ChosenWindows, of_command: api.Results
) -> None:
    chosen = of_command.selections.query("selector == 'kl' and context == 'real'").sample(frac=1, random_state=0)
    pairs = pd.DataFrame({"window_id": chosen["window_id"], "positions": [row[:2] for row in chosen["positions"]]})
    frame = api.losses(model, windows, pairs)
    assert chosen["k"].iloc[0].tolist() == [1, 2, 8]
    np.testing.assert_allclose(frame["loss_nats"], [row[1] for row in chosen["loss_sparse_nats"]], atol=NATS)
    np.testing.assert_allclose(frame["kl_nats"], [row[1] for row in chosen["kl_sparse_nats"]], atol=NATS)


def test_windows_of_texts(model: api.Model) -> None:
    """Each text is a document with the ID that it has in a corpus; tokens are those of its encoding."""
    windows = api.windows_from_texts(model, TEXTS, num_windows=30)
    frame = windows.frame
    assert len(windows) == 30
    assert set(frame["doc_id"]) == {f"{hash64(text.encode(), b'doc_id'):016x}" for text in TEXTS[:2]}
    for row in frame.itertuples():
        (text,) = (text for text in TEXTS if f"{hash64(text.encode(), b'doc_id'):016x}" == row.doc_id)
        ids = model.tokenizer.encode(text).ids
        expected = ids[row.start_token : row.start_token + 21]
        assert [*row.token_ids, row.target_id] == expected
    alone = api.windows_from_texts(model, TEXTS[:1], num_windows=5)
    assert set(alone.frame["null_context"]) == {"shuffled"}


def test_windows_are_named_by_their_source(model: api.Model, of_command: api.Results) -> None:
    """Where none is given, by what they are made of; null contexts are each window's own."""
    row = [[1] * 21, [2] * 21]
    for make, name in (
        (lambda **given: api.windows_from_texts(model, TEXTS, num_windows=2, **given), "texts"),
        (lambda **given: api.windows_from_tokens(model, row, **given), "tokens"),
        (lambda **given: api.window_at(model, TEXTS[0], at=150, **given), "text"),
    ):
        for given, expected in (({}, name), ({"source": "mine"}, "mine")):
            made = make(**given)
            assert (made.source, set(made.frame["source"])) == (expected, {expected})
    of_table = api.windows_from_table(model, of_command.windows.head(2))
    assert (of_table.source, set(of_table.frame["source"])) == ("table", {"table"})
    mixed = api.windows_from_texts(model, [TEXTS[0] * 3, TEXTS[1][:70]], num_windows=9)
    alone = api.windows_from_texts(model, TEXTS[:1], num_windows=9)
    assert (set(mixed.frame["null_context"]), set(alone.frame["null_context"])) == ({"document"}, {"shuffled"})
    named = api.windows_from_tokens(model, row, doc_ids=[7, "0123456789abcdef"])
    assert named.frame["doc_id"].tolist() == [f"{hash64(b'7', b'doc_id'):016x}", "0123456789abcdef"]


def test_a_saved_measurement_is_read_by_everything_else(measured: api.Results, tmp_path: Path) -> None:
    folder = measured.save(tmp_path / "saved")
    again = api.read_results(folder)
    pd.testing.assert_frame_equal(again.windows, measured.windows)
    pd.testing.assert_frame_equal(again.selections, measured.selections)
    frame = again.summary()
    pd.testing.assert_frame_equal(frame, measured.summary())
    of_folder = read_estimates(folder)
    pd.testing.assert_frame_equal(frame, of_folder[of_folder["group"].isna()].reset_index(drop=True))
    gain = pick(frame, "gain_sparse_nats", selector="kl", context="real", k=2)
    rows = measured.selections.query("selector == 'kl' and context == 'real'")
    mean = np.average([row[1] for row in rows["gain_sparse_nats"]], weights=measured.windows["weight"])
    assert gain is not None and gain["value"] == pytest.approx(mean)
    assert not (frame["quantity"] == "recovered_fraction").any()  # 20 windows are too few for the gate
    (folder / "windows" / "part-00000.parquet").rename(tmp_path / "kept.parquet")  # no longer whole, so written again
    assert measured.save(folder) == folder
    pd.testing.assert_frame_equal(api.read_results(folder).windows, measured.windows)
    with pytest.raises(UserError, match="other settings"):
        api.Results(measured.windows, measured.selections, {**measured.manifest, "run_id": "x"}).save(folder)


def test_nothing_but_a_measurement_is_written_over(measured: api.Results, tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "draft.md").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="papers: this folder exists and is no influence folder"):
            measured.save(folder, overwrite=overwrite)
        with pytest.raises(UserError, match=r"draft\.md: this is a file"):
            measured.save(folder / "draft.md", overwrite=overwrite)
    assert [path.name for path in folder.iterdir()] == ["draft.md"]


def test_a_folder_may_lie_in_the_home_folder(
    measured: api.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a model may."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert measured.save("~/mine") == tmp_path / "mine"
    pd.testing.assert_frame_equal(api.read_results("~/mine").windows, measured.windows)
    assert len(api.figure4("~/mine").axes) == 3


def test_an_unfinished_folder_gets_the_parts_that_it_lacks(tiny_tables: Path, tmp_path: Path) -> None:
    """They hold as many windows as those that it has."""
    folder = Path(shutil.copytree(tiny_tables, tmp_path / "begun"))
    write_manifest(folder, {**read_json(folder / "manifest.json"), "status": "running"})
    (folder / "windows" / "part-00001.parquet").unlink()
    results = api.read_results(tiny_tables)
    again = api.read_results(results.save(folder))
    pd.testing.assert_frame_equal(again.windows, results.windows)
    pd.testing.assert_frame_equal(again.selections, results.selections)


def test_figure4_of_results_and_of_a_folder(measured: api.Results, tiny_tables: Path) -> None:
    figure = api.figure4(measured, selector="unmask-one")
    assert len(api.figure4(tiny_tables).axes) == len(figure.axes) == 3  # k = 1 and 2 of 12 tokens, not 8; the colours
    with pytest.raises(UserError, match="lasso"):
        api.figure4(measured, selector="lasso")


def test_what_notebooks_show_is_escaped(measured: api.Results, windows: api.ChosenWindows) -> None:
    hostile = api.ChosenWindows(windows.null_contexts, "x", [["<script>"] * 21 for _ in range(20)], "")
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()
    gain = pick(measured.summary(), "loss_short_nats")
    assert gain is not None and f"<td>{gain['value']:.4f}</td>" in measured._repr_html_()
    number = windows.frame["doc_id"].nunique()
    assert repr(windows) == f"ChosenWindows(20 of 20 tokens, {number} documents)"
    assert windows._repr_html_().count("<tr") == 1 + 5 + 1 + 5  # heading, the first, dots, the last
    assert repr(measured) == f"Results(20 windows, selectors {', '.join(measured.selections['selector'].unique())})"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1] * 20], r"token_ids\[0\]: 20 tokens, where full_len = 20"),
        ([[1] * 21, [1] * 20 + [320]], r"token_ids\[1\]: token IDs must lie between 0 and 319"),
        ([[1] * 21, [1] * 21, [-1] + [1] * 20], r"token_ids\[2\]: token IDs must lie between 0 and 319"),
        ([], "there are no windows"),
    ],
)
def test_mistakes_of_tokens(model: api.Model, rows: list[list[int]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        api.windows_from_tokens(model, rows)


def test_mistakes_of_arrays_and_documents(model: api.Model) -> None:
    for array in (np.array(5), np.arange(21), np.zeros((1, 1, 21), dtype=np.int64)):
        said = re.escape(f"token_ids: an array of shape {array.shape}: must have a row of tokens for each window")
        with pytest.raises(UserError, match=f"^{said}$"):
            api.windows_from_tokens(model, array)
    for missing in (None, np.nan, pd.NA, pd.NaT):
        with pytest.raises(
            UserError, match=r"^doc_ids\[1\]: is missing; name the document of each window, or leave doc_ids out"
        ):
            api.windows_from_tokens(model, [[1] * 21, [2] * 21], doc_ids=["a", missing])


def test_windows_that_share_text_are_told_unless_their_documents_are_named(
    tiny_run: Path, model: api.Model, messages: Messages
) -> None:
    """Sliding windows of one text would be one another's null context."""
    tokens = np.arange(40) + 5
    sliding = np.lib.stride_tricks.sliding_window_view(tokens, 21)
    apart = np.stack([tokens[:21], tokens[9:30] + 100, tokens[:21]])  # the same row twice is one document
    named = api.windows_from_tokens(model, sliding, doc_ids=["a"] * len(sliding))
    assert set(named.frame["null_context"]) == {"shuffled"}
    api.windows_from_tokens(model, apart)
    api.windows_from_tokens(model, tokens[None, :21])
    api.windows_from_tokens(model, np.stack([tokens[:21], tokens[9:30]]))  # they share 12
    api.windows_from_tokens(api.open_model(tiny_run, overrides=["influence.null_context=shuffled"]), sliding)
    assert not [line for line in messages if "doc_ids" in line]
    api.windows_from_tokens(model, np.stack([tokens[:21], tokens[8:29]]))
    assert messages[-1].startswith("token_ids: some rows share 13 tokens in a row; if they are of one document, name")


def test_scores_of_few_groups_take_all(model: api.Model, windows: api.ChosenWindows) -> None:
    """Where nothing is said of how many, 8, or all that there are."""
    blocks = {"unit": "block:4", "selectors": ["greedy-kl"]}
    pd.testing.assert_frame_equal(api.scores(model, windows, **blocks), api.scores(model, windows, **blocks, max_k=3))  # type: ignore[arg-type]
    tokens = api.scores(model, windows, selectors=["greedy-kl"])
    pd.testing.assert_frame_equal(tokens, api.scores(model, windows, selectors=["greedy-kl"], max_k=8))
    with pytest.raises(UserError, match=r"influence\.k"):
        api.scores(model, windows, max_k=0)


def test_sets_of_the_null_context_are_refused(
    model: api.Model, windows: api.ChosenWindows, measured: api.Results
) -> None:
    """Their positions are those of other tokens than the window's."""
    chosen = measured.selections.query("selector == 'unmask-one' and window_id < 2")
    for context, rows in chosen.groupby("context"):
        if context in ("real", "resampled"):
            assert len(api.losses(model, windows, rows)) == len(rows)
            continue
        with pytest.raises(
            UserError, match=rf"^visible\.context = {context}: sets are measured in the windows' own text; leave"
        ):
            api.losses(model, windows, chosen[chosen["context"].isin(["real", context])])
    assert {"real", "null", "resampled"} <= set(chosen["context"])


def test_results_of_some_rows_of_selections_are_refused(measured: api.Results) -> None:
    """A selector may be left out; rows of one may not."""

    def of(selections: pd.DataFrame) -> api.Results:
        return dataclasses.replace(measured, selections=selections)

    rows = measured.selections
    for query in (
        "context == 'real'",
        "context == 'null'",
        "window_id < 9",
        "selector == 'none'",
        "context == 'resampled'",
        "context != 'resampled' or window_id < 9",
        "context != 'resampled' or draw < 1 or window_id < 9",
    ):
        for summed in (api.Results.summary, api.Results.spectrum):
            with pytest.raises(
                UserError, match=r"^selections: must hold each selector in every window, under the real and the null"
            ):
                summed(of(rows.query(query)))
    alone = of(rows.query("selector in ('kl', 'random')")).summary()
    whole = measured.summary().query("selector in ('kl', 'random')")
    pd.testing.assert_frame_equal(alone.dropna(subset="selector").reset_index(drop=True), whole.reset_index(drop=True))


def test_other_mistakes(model: api.Model, tiny_run: Path, windows: api.ChosenWindows) -> None:
    shorter = api.open_model(tiny_run, full_len=16)
    with pytest.raises(
        UserError, match="made for full_len 20 with 12 long-range tokens, and the model has full_len 16"
    ):
        api.scores(shorter, windows)
    with pytest.raises(
        UserError, match="made for full_len 20 with 12 long-range tokens, and the model has full_len 20 with 15"
    ):
        api.losses(api.open_model(tiny_run, local_len=5), windows, [[1]])
    with pytest.raises(UserError, match=r"influence.k = \[13\]"):
        api.scores(model, windows, max_k=13)
    with pytest.raises(UserError, match="no selector is named"):
        api.scores(model, windows, selectors=["best"])
    with pytest.raises(UserError, match="positions, 0 to 11"):
        api.losses(model, windows, [[12]])
    with pytest.raises(UserError, match="each at most once"):
        api.losses(model, windows, [[1, 1]])
    with pytest.raises(
        UserError, match=r"^visible: \[-1\] must hold long-range positions, 0 to 11, each at most once$"
    ):
        api.losses(model, windows, [[-1]])
    for number in (20, -1):
        with pytest.raises(UserError, match=f"^visible: there is no window {number}; they are numbered 0 to 19$"):
            api.losses(model, windows, pd.DataFrame({"window_id": [number], "positions": [[1]]}))
    with pytest.raises(UserError, match=r"must be a list; a single text is written \[texts\]"):
        api.windows_from_texts(model, "one text")
    for name in ("num_windows", "max_per_document"):
        with pytest.raises(UserError, match=f"{name} = 0: must be at least 1"):
            api.windows_from_texts(model, TEXTS, **{name: 0})
    for made in (
        lambda: api.windows_from_texts(model, TEXTS, seed=-1),
        lambda: api.windows_from_tokens(model, [[1] * 21], seed=-1),
        lambda: api.window_at(model, TEXTS[0], at=1, seed=-1),
    ):
        with pytest.raises(UserError, match="seed = -1: must be at least 0"):
            made()
    with pytest.raises(UserError, match=r"revision = main: .* is a trained run, which has none"):
        api.open_model(tiny_run, revision="main")
    like_paths = ("runs/demo", "./llama", "../a", "/a", "one/two/three", "~/nowhere", Path("org/name"))
    for name in (*like_paths, *(f"m.{ending}" for ending in ("gguf", "safetensors", "bin", "pt", "yaml"))):
        said = re.escape(
            f"model = {name}: there is no such folder or file, seen from {Path.cwd()} (it looks like a path"
        )
        with pytest.raises(UserError, match=said):
            api.open_model(name)
    with pytest.raises(UserError, match="0 of its 1 documents hold a window"):
        api.windows_from_texts(model, TEXTS[2:])
    for texts in ([], [""], ["", ""]):
        with pytest.raises(UserError, match="texts: there is no text with a token in it"):
            api.windows_from_texts(model, texts)
    for names in ([], ["a"], ["a", "b", "c"]):
        with pytest.raises(UserError, match=f"doc_ids: {len(names)} of them for 2 windows"):
            api.windows_from_tokens(model, [[1] * 21] * 2, doc_ids=names)
    with pytest.raises(UserError, match=r"influence.full_len = 21: the run is trained with 20 positions"):
        api.open_model(tiny_run, full_len=21)


def test_the_spectrum_is_that_of_the_tables_with_a_row_a_target(measured: api.Results, tmp_path: Path) -> None:
    """In memory and from the folder."""
    frame = measured.spectrum()
    read = api.read_results(measured.save(tmp_path / "tables"))
    pd.testing.assert_frame_equal(frame, read.spectrum())
    selectors_measured = list(measured.selections["selector"].unique())
    assert len(frame) == 20 * len(selectors_measured) * 2 * 4 and sorted(frame["selector"].unique()) == sorted(
        selectors_measured
    )
    row = measured.selections.query("window_id == 3 and selector == 'kl' and context == 'real'").iloc[0]
    short = measured.windows.query("window_id == 3")["kl_short_nats"].item()
    for tolerance in frame["tolerance_nats"].unique():
        enough = [k for k, kl in zip([0, *row["k"]], [short, *row["kl_sparse_nats"]], strict=True) if kl <= tolerance]
        found = frame.query(
            "window_id == 3 and selector == 'kl' and context == 'real' and tolerance_nats == @tolerance"
        )
        assert found["k"].item() == (enough[0] if enough else np.inf)


def test_a_measurement_saved_over_itself_says_what_happens(
    measured: api.Results, tmp_path: Path, messages: Messages
) -> None:
    """What is there already is left, and said; changed values are refused, in the folder that they were read from, too."""
    folder = measured.save(tmp_path / "tables")
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    read = api.read_results(folder)
    messages.clear()
    assert read.save(folder) == measured.save(folder) == folder
    assert list(messages) == [f"{folder}: it holds these tables already; nothing is written"] * 2
    read.windows.loc[0, "loss_short_nats"] = 9.0
    for results in (read, api.Results(read.windows, read.selections, read.manifest)):
        with pytest.raises(
            UserError, match=r"this measurement is there, with other values in windows; .*overwrite=True"
        ):
            results.save(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
    read.save(folder, overwrite=True)
    assert api.read_results(folder).windows["loss_short_nats"][0] == 9.0


def test_a_seed_draws_other_windows_and_other_null_contexts(model: api.Model) -> None:
    """Of given tokens only the null contexts are drawn."""
    texts = [f"{text} {number}" for number in range(6) for text in TEXTS[:2]]
    for make in (
        lambda seed: api.windows_from_texts(model, texts, num_windows=6, seed=seed),
        lambda seed: api.windows_from_tokens(model, np.arange(12 * 21).reshape(12, 21) % 300, seed=seed),
        lambda seed: api.window_at(model, TEXTS[0] * 9, at=900, seed=seed),
    ):
        first, same, other = (make(seed) for seed in (5, 5, 6))
        rows = np.arange(len(first.windows))
        drawn = [found.null_contexts.tokens(rows).tolist() for found in (first, same, other)]
        assert drawn[0] == drawn[1] != drawn[2]
        if first.drawn is not None:
            starts = [found.windows.start_W.tolist() for found in (first, same, other)]
            assert starts[0] == starts[1] != starts[2]


def test_what_is_returned_about_the_fit_is_a_copy(model: api.Model, windows: api.ChosenWindows) -> None:
    """So that a manifest stays as it is, whatever is measured later."""
    returned = model.fit(windows.windows)
    returned["changed"] = True
    assert "changed" not in model.fit(windows.windows)
