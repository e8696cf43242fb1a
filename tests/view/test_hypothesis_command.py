"""``olmo-sparsity hypothesis`` on tables: its numbers are those of the tables, its words follow them, mistakes are one line."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_figures import assert_bars
from known_selectors import only_here as only_here
from made_up import MODEL, PRETRAINED
from made_up_runs import FULL, made_up_measurement, made_up_run, state_row
from matplotlib.figure import Figure
from typer.testing import CliRunner

from analysis import hypothesis as figure_of_hypothesis
from olmo_sparsity.cli.app import app
from olmo_sparsity.config import ModelConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.several.hypothesis import (
    THIRDS,
    Hypothesis,
    _stated_row_len,
    _tables_of,
    hypothesis_of,
    read_hypothesis,
)
from olmo_sparsity.statistics.several.reactions import read_reactions
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import part_path, write_part
from olmo_sparsity.tables.reading import newest_finished, read_table
from olmo_sparsity.view.report import write_report
from olmo_sparsity.wording.hypothesis import hypothesis_sentences

NUM_DOCUMENTS = 160  # enough for intervals of each third


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three seeds of a model, and one of a ceiling, on the same windows."""
    folder = tmp_path_factory.mktemp("hypothesis")
    made = [made_up_run(folder / f"pose-seed{seed}", seed=seed) for seed in range(3)]
    made.append(made_up_run(folder / "ceiling", row_len=FULL))
    for number, run in enumerate(made):
        made_up_measurement(run, 0.4 + 0.02 * number, num_documents=NUM_DOCUMENTS)
    return made


@pytest.fixture(scope="module")
def found(runs: list[Path]) -> Hypothesis:
    return read_hypothesis(runs)


def run_options(runs: list[Path]) -> list[str]:
    return [word for run in runs for word in ("--run", str(run))]


def test_reactions_are_those_of_the_tables(runs: list[Path]) -> None:
    folder = newest_finished(runs[0])
    read = read_reactions(folder, ["kl"])
    windows = {row["window_id"]: row for row in read_table(folder, "windows").to_pylist()}
    chosen = {
        (row["window_id"], row["context"]): row
        for row in read_table(folder, "selections").to_pylist()
        if row["selector"] == "kl"
    }
    assert len(windows) == len(read.windows) == 240
    for w, window_id in enumerate(read.windows["window_id"]):
        window = windows[window_id]
        assert read.windows["doc_id"][w] == window["doc_id"] and read.entropy_W[w] == window["entropy_short_nats"]
        for c, (context, prefix) in enumerate({"real": "", "null": "null_"}.items()):
            row, reaction = chosen[window_id, context], window[f"{prefix}kl_short_nats"]
            gain = window["loss_short_no_gap_nats"] - window[f"{prefix}loss_long_nats"]
            assert read.reaction_CW[c, w] == reaction and read.gain_CW[c, w] == pytest.approx(gain, abs=1e-12)
            assert read.choices["kl"].best_CW[c, w] == pytest.approx(1 - row["kl_sparse_nats"][0] / reaction, abs=1e-12)
            assert read.choices["kl"].distance_CW[c, w] == row["distance_tokens"][0]


def test_models_and_their_roles(found: Hypothesis) -> None:
    assert list(found.models.items()) == [("pose-seed0", 3), ("ceiling", 1)] and found.ceiling == "ceiling"
    assert [(entry.sparsity_from, entry.gain_of) for entry in found.main] == [
        ("pose-seed0", "pose-seed0"),
        ("ceiling", "pose-seed0"),
    ]
    assert (found.row_len, found.num_windows, found.num_documents) == (8, 240, 160)


def test_shares_are_ratios_of_the_gains(found: Hypothesis) -> None:
    for entry in found.main:
        for third in entry.thirds:
            assert third.ceiling_gain_nats is not None and third.share_of_ceiling is not None
            assert third.share_of_ceiling.mean == pytest.approx(third.gain_nats.mean / third.ceiling_gain_nats.mean)


def test_printed_numbers_are_those_that_were_found(
    runs: list[Path], found: Hypothesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    result = CliRunner().invoke(app, ["hypothesis", *run_options(runs)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("pose-seed0: ")
    for entry in found.main:
        for third in entry.thirds:
            columns = (third.reaction_nats, third.gain_nats, third.null_gain_nats)
            shown = [f"{column.mean:.4f}" for column in columns]
            cells = [re.findall(r"-?\d+\.\d{4}(?= \[)", line)[:3] for line in lines if f" {third.third} " in line]
            assert shown in cells
    as_json = CliRunner().invoke(app, ["hypothesis", *run_options(runs), "--json"])
    values = json.loads(as_json.output)
    assert values["main"][1]["thirds"][2]["share_of_ceiling"]["mean"] == found.main[1].thirds[2].share_of_ceiling.mean  # type: ignore[union-attr]


def test_each_line_of_the_figure_is_what_its_label_says(found: Hypothesis) -> None:
    figure: Figure = figure_of_hypothesis.draw_hypothesis(found).figure
    left, right = figure.axes
    own, of_ceiling = found.main
    labels = {
        container.get_label(): list(container.lines[0].get_ydata())  # type: ignore[union-attr]
        for container in left.containers
    }
    assert labels == {
        "pose-seed0": [third.gain_nats.mean for third in own.thirds],
        "foreign text": [third.null_gain_nats.mean for third in own.thirds],
        "ceiling": [third.ceiling_gain_nats.mean for third in own.thirds if third.ceiling_gain_nats is not None],
    }
    names = {"pose-seed0": "gain_nats", "foreign text": "null_gain_nats", "ceiling": "ceiling_gain_nats"}
    for container in left.containers:
        assert_bars(container, [getattr(third, names[str(container.get_label())]) for third in own.thirds])
    (shares,) = right.containers
    assert_bars(shares, [third.share_of_ceiling for third in of_ceiling.thirds if third.share_of_ceiling is not None])
    assert list(shares.lines[0].get_ydata()) == [  # type: ignore[union-attr]
        third.share_of_ceiling.mean for third in of_ceiling.thirds if third.share_of_ceiling is not None
    ]
    for axis in figure.axes:
        assert [label.get_text() for label in axis.get_xticklabels()] == list(THIRDS)
    assert np.isfinite(left.get_ylim()).all()


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (1, {"visibility": "contextual"}, "{} was measured with visibility hidden, {} with contextual; measure both"),
        (3, {"visibility": "contextual"}, "{} was measured with visibility hidden, {} with contextual; "),
        (3, {"precision": "bf16"}, "{} was measured with precision None, {} with bf16; "),
        (3, {"anchor": {"id": 7, "text": "<bos>"}}, "{} was measured with anchor none, {} with bos; "),
        (1, {"checkpoint": {"step": 50, "model_sha256": "0"}}, "{} was measured with training step 100, {} with 50; "),
    ],
)  # fmt: skip
def test_measurements_that_were_taken_in_other_ways_are_not_compared(
    number: int, changes: dict[str, Any], message: str, runs: list[Path], tmp_path: Path
) -> None:
    named = list(runs)
    named[number] = shutil.copytree(runs[number], tmp_path / "other")
    folder = newest_finished(named[number])
    manifest = read_json(folder / "manifest.json")
    influence = {**manifest["influence"], **changes.get("influence", {})}
    write_manifest(folder, {**manifest, **changes, "influence": influence})
    with pytest.raises(UserError, match=re.escape(message.format(named[0], named[number]))):
        read_hypothesis(named)


def test_a_ceiling_of_another_training_step_is_compared(runs: list[Path], found: Hypothesis, tmp_path: Path) -> None:
    ceiling = shutil.copytree(runs[3], tmp_path / "ceiling")
    folder = newest_finished(ceiling)
    manifest = read_json(folder / "manifest.json")
    write_manifest(folder, {**manifest, "checkpoint": {"step": 50, "model_sha256": "0"}})
    assert read_hypothesis([*runs[:3], ceiling]).main == found.main


def test_models_whose_folders_have_one_name_are_told_apart_by_their_paths(runs: list[Path], tmp_path: Path) -> None:
    """Their configurations have one name, too; the share of the ceiling's gain is still said."""
    first = shutil.copytree(runs[0], tmp_path / "pose" / "seed1")
    ceiling = shutil.copytree(runs[3], tmp_path / "ceiling" / "seed1")
    found = read_hypothesis([first, ceiling])
    assert list(found.models) == [str(first), str(ceiling)] and found.ceiling == str(ceiling)
    sentences = list(hypothesis_sentences(found))
    assert any("share of the ceiling's gain is" in sentence for sentence in sentences)


def test_the_definition_of_visible_is_named(runs: list[Path], tmp_path: Path) -> None:
    assert "visibility hidden (" in printed(runs[:1]) and "; no anchor. Models: " in printed(runs[:1])
    run = shutil.copytree(runs[0], tmp_path / "contextual")
    folder = newest_finished(run)
    manifest = read_json(folder / "manifest.json")
    write_manifest(folder, {**manifest, "visibility": "contextual"})
    words = printed([run])
    assert "visibility contextual (" in words


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("shuffled", ("the null context", "null context", "null")),
        ("document", ("foreign text", "foreign text", "foreign")),
    ],
)
def test_the_null_context_is_named_by_what_was_measured(
    kind: str,
    names: tuple[str, str, str],
    runs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    run = shutil.copytree(runs[0], tmp_path / "run")
    folder = newest_finished(run)
    manifest = read_json(folder / "manifest.json")
    influence = {**manifest["influence"], "null_context": kind}
    write_manifest(folder, {**manifest, "influence": influence})
    said = " ".join(CliRunner().invoke(app, ["hypothesis", "--run", str(run)]).output.split())
    sentence, column, short = names
    assert f" nats more than under {sentence} (real " in said and re.search(rf"\(real [^)]*, {short} [^)]*\)", said)
    assert f"gain, {column}, nats" in said and f"as much. {column}: thirds of" in said
    assert ("foreign" in said) == (short == "foreign")
    found = read_hypothesis([run])
    figure = figure_of_hypothesis.draw_hypothesis(found).figure
    assert column in [container.get_label() for container in figure.axes[0].containers]
    page = write_report(folder, tmp_path / "page.html", num_windows=1).read_text()
    assert f"gain, {column}, nats" in page and f"more than under {sentence} (real" in page


def test_without_a_ceiling_there_is_no_share(runs: list[Path]) -> None:
    found = read_hypothesis(runs[:2])
    assert found.ceiling is None and len(found.main) == 1
    assert found.main[0].contrasts.share_of_ceiling is None
    assert "Without a ceiling there is no share" in printed(runs[:2])
    assert len(figure_of_hypothesis.draw_hypothesis(found).figure.axes) == 1


def test_one_run_is_said_to_be_one(runs: list[Path]) -> None:
    assert "Sparsity and gain are of one run" in printed(runs[:1])
    assert "Sparsity and gain are of one run" not in printed(runs[:2])
    assert "Sparsity and the ceiling's gain are of one run" in printed(runs)
    assert "ceiling's gain are of one run" not in printed(runs[:3])


def pretrained(run: Path) -> Path:
    """Write the folder of a pretrained model with a measurement whose numbers are those of a run; no row is stated."""
    run.mkdir(parents=True)
    write_manifest(run, {"kind": "pretrained", "status": "complete", "model": MODEL})
    folder = made_up_measurement(run, 0.4, num_documents=NUM_DOCUMENTS)
    manifest = read_json(folder / "manifest.json")
    context = {name: manifest["context"][name] for name in ("local_len", "full_len", "num_long_range")}
    of_run = ("pose", "checkpoint")
    manifest = {name: value for name, value in manifest.items() if name not in of_run}
    write_manifest(folder, {**manifest, **PRETRAINED, "context": {**context, "train_len": None}})
    return run


def test_a_pretrained_model_whose_row_is_stated(runs: list[Path], tmp_path: Path) -> None:
    """Its numbers are those of a run with the same tables."""
    model = pretrained(tmp_path / "model")
    with pytest.raises(
        UserError, match=r"^[^\n]*model: no training row of this model is known[^\n]*pretrained.train_len=N[^\n]*$"
    ):
        read_hypothesis([model])
    state_row(newest_finished(model), 8)
    found, of_run = read_hypothesis([model]), read_hypothesis(runs[:1])
    assert found.main[0].thirds == of_run.main[0].thirds and found.main[0].contrasts == of_run.main[0].contrasts
    assert (found.row_len, found.models, found.pretrained) == (8, {"model": 1}, ("model",))
    words = printed([model])
    assert "as many as a training row has (stated for model)" in words
    assert "of one pretrained model, which has no further seeds" in words
    both = read_hypothesis([runs[0], model])
    assert both.models == {
        "demo": 1,
        "model": 1,
    }  # configurations are all named so, and their runs otherwise only if need be
    older = newest_finished(model)
    newer = Path(shutil.copytree(older, model / "influence" / "newer"))
    write_manifest(newer, {**read_json(newer / "manifest.json"), "finished": "newer"})
    state_row(newer, 12)
    of_older = hypothesis_of(older)
    assert of_older is not None and (of_older.row_len, of_older.main) == (8, found.main)
    assert hypothesis_of(newer) is None
    shutil.rmtree(newer)
    state_row(newest_finished(model), 12)
    with pytest.raises(UserError, match="rows of 8 and 12 tokens"):
        read_hypothesis([runs[0], model])
    with pytest.raises(
        UserError, match=r"--local-len 12 --selector kl --selector random --k 1,2,4 pretrained\.train_len=12"
    ):
        read_hypothesis([model])


def test_the_newest_measurement_with_reactions_to_single_tokens_is_read(tmp_path: Path) -> None:
    """Beside it are newer ones of other lengths, selectors, units and k; and of a pretrained model, of other rows."""
    model, run = pretrained(tmp_path / "model"), made_up_run(tmp_path / "run")
    template = newest_finished(model)
    manifest = {**read_json(template / "manifest.json"), "run": "run"}
    for number, (section, changes) in enumerate(
        [("influence", {}), ("influence", {"seed": 3}), ("influence", {"k": [2, 8]}), ("influence", {"unit": "word"}),
         ("influence", {"selectors": ["random"]}), ("context", {"local_len": 6})]
    ):  # fmt: skip
        folder = run / "influence" / f"{number}"
        shutil.copytree(template, folder)
        write_manifest(folder, {**manifest, "finished": f"{number}", section: {**manifest[section], **changes}})
    assert _tables_of(run, row_len=8, selector="kl") == run / "influence" / "1"
    for name, row_len, stated in (("a", 12, 12), ("b", 8, 8), ("c", None, 8), ("d", 12, 12)):
        shutil.copytree(template, model / "influence" / name)
        context = {**manifest["context"], "train_len": row_len}
        write_manifest(model / "influence" / name, {**manifest, "finished": name, "context": context})
        assert _stated_row_len(model) == stated
    assert _tables_of(model, row_len=8, selector="kl") == model / "influence" / "b"


def printed(runs: list[Path]) -> str:
    result = CliRunner().invoke(app, ["hypothesis", *run_options(runs)])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_a_selector_of_ones_own_takes_part_by_its_name_in_the_tables(
    runs: list[Path], tmp_path: Path, only_here: None
) -> None:
    """Its tables hold what ``random`` chose in the made-up ones, so it tells what that does."""
    own = shutil.copytree(runs[0], tmp_path / "own")
    folder = newest_finished(own)
    manifest = read_json(folder / "manifest.json")
    selectors = ["mine" if name == "random" else name for name in manifest["influence"]["selectors"]]
    entry = {
        "file": "mine.py", "sha256": "0", "needs": [], "sees_target": False, "meaning": "mine.",
        "look": dataclasses.asdict(SELECTORS["kl"].look),
    }  # fmt: skip
    write_manifest(
        folder,
        {**manifest, "influence": {**manifest["influence"], "selectors": selectors}, "own_selectors": {"mine": entry}},
    )
    for part in (0, 1):
        table = pq.read_table(part_path(folder, "selections", part=part))
        at = table.schema.get_field_index("selector")
        names = pa.array(
            ["mine" if name == "random" else name for name in table["selector"].to_pylist()], table.schema.types[at]
        )
        content = table.set_column(at, table.schema.field(at), names).replace_schema_metadata(None)
        write_part(folder, "selections", part=part, content=content, metadata={"run_id": "0"})

    def contrasts(run: Path, name: str) -> Any:
        result = CliRunner().invoke(app, ["hypothesis", "--run", str(run), "--selector", name, "--json"])
        assert result.exit_code == 0, result.exception
        return json.loads(result.output)["main"][0]["contrasts"]

    assert contrasts(own, "mine") == contrasts(runs[0], "random") != contrasts(runs[0], "kl")
    changed = shutil.copytree(runs[1], tmp_path / "changed")
    shutil.rmtree(newest_finished(changed))
    of_changed = Path(shutil.copytree(folder, changed / "influence" / "made-up"))
    assert len(read_hypothesis([own, changed], selector="mine").main) == 1
    write_manifest(
        of_changed, {**read_json(folder / "manifest.json"), "own_selectors": {"mine": entry | {"sha256": "1"}}}
    )
    message = re.escape(f"{own} was measured with the source of mine with hash 0, {changed} with 1; measure both")
    with pytest.raises(UserError, match=message):
        read_hypothesis([own, changed], selector="mine")
    write_manifest(
        folder, {**read_json(folder / "manifest.json"), "own_selectors": {"mine": entry | {"sees_target": True}}}
    )
    del SELECTORS["mine"]
    with pytest.raises(UserError, match="--selector mine sees the target; choose one of kl, "):
        read_hypothesis([own], selector="mine")
    with pytest.raises(UserError, match=r"--selector FILE\.py:other --selector random"):
        read_hypothesis(runs[:1], selector="other")


def test_mistakes(runs: list[Path], tmp_path: Path) -> None:
    def message(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["hypothesis", *arguments])
        assert isinstance(result.exception, UserError), result.output
        return str(result.exception)

    first = str(runs[0])
    assert "unmask-one sees the target" in message("--run", first, "--selector", "unmask-one")
    assert "every run here is a ceiling" in message("--run", str(runs[3]))
    bare = made_up_run(tmp_path / "bare")
    assert f"{bare}: no measurement with as many local tokens" in message("--run", str(bare))
    other = made_up_run(tmp_path / "other", seed=7)
    made_up_measurement(other, 0.4, windows_sha256="others")
    said = message("--run", first, "--run", str(other))
    assert said.startswith(f"{first} and {other} were measured on different windows or foreign text; measure both")
    seeded = made_up_run(tmp_path / "seeded", seed=8)
    made_up_measurement(seeded, 0.4, seed=5)
    assert "different windows or foreign text" in message("--run", first, "--run", str(seeded))
    shuffled = made_up_run(tmp_path / "shuffled", seed=9)
    made_up_measurement(shuffled, 0.4, null_context="shuffled")
    assert "different windows or foreign text" in message("--run", first, "--run", str(shuffled))
    longer = made_up_run(tmp_path / "longer", row_len=12)
    assert "rows of 8 and 12 tokens" in message("--run", first, "--run", str(longer))
    ceilings = [str(made_up_run(tmp_path / f"top{d}", row_len=FULL, model=ModelConfig(d_model=d))) for d in (64, 256)]
    said = message("--run", first, "--run", ceilings[0], "--run", ceilings[1])
    assert said == f"{' and '.join(ceilings)} are ceilings of different configurations; name one"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no training run here" in message("--run", str(empty))


def test_the_report_tests_the_reactions_of_its_own_measurement(runs: list[Path], tmp_path: Path) -> None:
    older = newest_finished(runs[0])
    alone = read_hypothesis(runs[:1])
    write_report(older, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    gain = alone.main[0].contrasts.gain_nats.mean
    assert f"real {gain:.4f}".replace("-", "\N{MINUS SIGN}") in page and 'id="hypothesis-title"' in page
    assert hypothesis_of(newest_finished(runs[-1])) is None  # a ceiling has nothing beyond its row
    again = Path(shutil.copytree(runs[0], tmp_path / "again"))
    newer = Path(shutil.copytree(newest_finished(runs[1]), again / "influence" / "newer"))
    write_manifest(newer, {**read_json(newer / "manifest.json"), "finished": "newer"})
    of_older, of_newer = (hypothesis_of(folder) for folder in (again / "influence" / "made-up", newer))
    assert of_older is not None and of_older.main == alone.main
    assert of_newer is not None and of_newer.main[0].contrasts != alone.main[0].contrasts
