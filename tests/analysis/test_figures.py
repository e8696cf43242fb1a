"""Every figure shows the numbers of its source: they are read back from what was drawn."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.testing.compare import compare_images
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from unlike_tables import copied_with_rows, made_up_tables

from analysis import (
    classes,
    figure4,
    figure5,
    first_picture,
    gains,
    hypothesis,
    recovered,
    spectrum,
    synthetic,
    training,
)
from analysis.__main__ import main as draw_one
from analysis.drawing import NothingToDraw, draw_run, lay_out
from olmo_sparsity.config import Config, ContextConfig, PoseConfig, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import write_manifest
from olmo_sparsity.statistics.frames import read_frames
from olmo_sparsity.statistics.hypothesis import THIRDS, read_hypothesis
from olmo_sparsity.statistics.quantities import QUANTITIES, pick, read_estimates
from olmo_sparsity.view.window import read_windows

GUARD = Path(__file__).parents[1] / "guard" / "data"
SEEDS = [GUARD / "runs" / f"seed{seed}" for seed in range(3)]
CONTEXTUAL = GUARD / "tables" / "contextual"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents, a gain beyond training rows of 14 tokens; k of 1, 2 and 8 of 12."""
    folder = tmp_path_factory.mktemp("run") / "run" / "influence" / "made-up"
    return made_up_tables(folder, num_documents=400)


@pytest.fixture(scope="module")
def frame(tables: Path) -> pd.DataFrame:
    return read_estimates(tables)


def rows_of(frame: pd.DataFrame, quantity: str, **of: Any) -> pd.DataFrame:
    rows = frame[(frame["quantity"] == quantity) & frame["group"].isna()]
    for name, value in of.items():
        rows = rows[rows[name] == value]
    return rows


def labelled(axis: Axes) -> dict[str, np.ndarray]:
    """The points of each line that has a label."""
    lines = {str(line.get_label()): np.asarray(line.get_xydata()) for line in axis.lines}
    return {label: points for label, points in lines.items() if not label.startswith("_")}


def test_first_picture_shows_the_share_of_the_gain_at_few_tokens(frame: pd.DataFrame) -> None:
    axis, _ = first_picture.figure(frame).axes
    lines = labelled(axis)
    assert len(lines) == 3
    for label, points in lines.items():
        name = next(name for name in ("kl", "attention", "random") if name in label)
        rows = rows_of(frame, "recovered_fraction", selector=name, context="real").set_index("k")["value"]
        np.testing.assert_allclose(points, [[0, 0], [1, 100 * rows[1]], [2, 100 * rows[2]]])
    value = pick(frame, "recovered_fraction", selector="kl", context="real", k=1)
    assert value is not None
    assert any(f"1 token, {100 * value['value']:.0f}%" in text.get_text() for text in axis.texts)
    assert any(set(line.get_ydata()) == {100} and line.get_linestyle() == "--" for line in axis.lines)
    assert not axis.get_legend()


def test_first_picture_shows_the_gain_over_the_training_row(frame: pd.DataFrame) -> None:
    _, axis = first_picture.figure(frame).axes
    rows = rows_of(frame, "gain_over_row_nats").query("x >= 7")
    np.testing.assert_allclose(np.asarray(axis.lines[0].get_xydata()), rows[["x", "value"]].to_numpy())
    (shade,) = [patch for patch in axis.patches if isinstance(patch, Rectangle)]
    assert shade.get_x() + shade.get_width() == 14


def test_first_picture_without_a_gain_or_a_row_or_documents(tmp_path: Path, frame: pd.DataFrame) -> None:
    none = read_estimates(made_up_tables(tmp_path / "none", num_documents=100, long_gain=-0.5))
    few = read_estimates(made_up_tables(tmp_path / "few", num_documents=10))
    for other, words in ((none, "no clear gain\nto give back"), (few, "too few documents")):
        axis, beyond = first_picture.figure(other).axes
        assert words in [text.get_text() for text in axis.texts] and not labelled(axis)
        assert beyond.lines
        for module in (recovered, spectrum):
            with pytest.raises(NothingToDraw):
                module.figure(other)
    (said,) = classes.figure(none).axes[2].texts
    assert (said.get_text(), said.get_position()) == ("no clear gain", (0.5, 0.5))
    manifest = frame.attrs["manifest"]
    unknown = frame.copy()
    unknown.attrs = {**frame.attrs, "manifest": {**manifest, "context": {**manifest["context"], "train_len": None}}}
    _, axis = first_picture.figure(unknown).axes
    assert not axis.patches and "local tokens" in axis.get_ylabel()
    assert "training rows unknown" in [text.get_text() for text in axis.texts]
    assert np.asarray(axis.lines[0].get_xdata())[0] == 8  # the local tokens


def test_recovered_is_r_against_d_with_the_line_of_blends(frame: pd.DataFrame) -> None:
    (axis,) = recovered.figure(frame).axes
    lines = labelled(axis)
    for name in ("kl", "attention", "random"):
        d, r = (
            rows_of(frame, quantity, selector=name, context="real").sort_values("k")["value"].to_numpy()
            for quantity in ("prediction_recovered", "recovered_fraction")
        )
        np.testing.assert_allclose(lines[name], np.c_[d, r][np.argsort(d, kind="stable")])
    gain = pick(frame, "long_gain_nats")
    assert gain is not None
    blended = (rows_of(frame, f"damped_{of}", context="real")["value"] for of in ("recovered", "gain_nats"))
    blends = np.c_[next(blended), next(blended) / gain["value"]]
    damped = next(points for label, points in lines.items() if "nothing chosen" in label)
    np.testing.assert_allclose(damped[[0, -1]], [[0, 0], [1, 1]])
    np.testing.assert_allclose(damped[1:-1], blends[np.argsort(blends[:, 0])])


def assert_rows(axis: Axes, frame: pd.DataFrame, quantity: str, **of: Any) -> None:
    """Each line with a label is that of a selector."""
    for name, points in labelled(axis).items():
        rows = rows_of(frame, quantity, selector=name, **of)
        np.testing.assert_allclose(points, rows[["k", "value"]].astype(float).to_numpy())


def test_gains_has_a_panel_for_every_quantity_that_names_it(frame: pd.DataFrame) -> None:
    named = {name: of for name, of in QUANTITIES.items() if "figure:gains" in of.show}
    axes = gains.figure(frame).axes
    assert [axis.get_title(loc="left") for axis in axes] == [of.label for of in named.values()]
    for axis, quantity in zip(axes, named, strict=True):
        assert_rows(axis, frame, quantity, context="real")


def test_spectrum_is_the_shares_of_the_text_and_of_the_null_context(frame: pd.DataFrame) -> None:
    for axis, context in zip(spectrum.figure(frame).axes, ("real", "null"), strict=True):
        assert set(labelled(axis)) == {"kl", "nearest", "random"}
        assert_rows(axis, frame, "spectrum_share", context=context, x=0.05)


def test_classes_are_ordered_by_their_gain(frame: pd.DataFrame) -> None:
    gain, over_random, fraction = classes.figure(frame).axes
    names = [label.get_text().partition(" (")[0] for label in gain.get_yticklabels()]
    of_groups = frame[frame["group"].notna()].set_index("group")
    own = of_groups[of_groups["quantity"] == "long_gain_nats"]["value"]
    assert names == own.sort_values().index.tolist() and len(names) == 3
    np.testing.assert_allclose(gain.lines[0].get_xdata(), own[names])
    chosen = of_groups[(of_groups["selector"] == "kl") & (of_groups["context"] == "real") & (of_groups["k"] == 1)]
    for axis, quantity in ((over_random, "gain_over_random_nats"), (fraction, "recovered_fraction")):
        values = chosen[chosen["quantity"] == quantity]["value"]
        drawn = {names[int(y)]: x for x, y in np.asarray(axis.lines[0].get_xydata())}
        assert drawn == pytest.approx(values.to_dict())
    seeing = frame.copy()
    seeing.attrs = {**frame.attrs, "selectors": [of for of in frame.attrs["selectors"] if of["sees_target"]]}
    assert "picked by unmask-one, which sees the target" in classes.figure(seeing).get_supxlabel()
    assert set(labelled(gains.figure(seeing).axes[0])) == {"unmask-one"}


def test_figure4_has_every_window_and_their_means(tables: Path) -> None:
    frames = read_frames(tables)
    figure = figure4.figure(tables, "attention")
    axes = [axis for axis in figure.axes if axis.get_xlabel() == "sparse gain, nats"]
    assert [axis.get_title(loc="left").split(":")[0] for axis in axes] == ["1 token", "2 tokens"]
    long_W = frames.windows["gain_long_nats"].to_numpy(float)
    weight_W = frames.windows["weight"].to_numpy()
    for axis, row in zip(axes, frames.rows("attention", "real"), strict=False):
        sparse_W = frames.gain[row].astype(float)
        low, high = axis.get_xlim()
        assert axis.get_ylim() == (low, high)
        points = [np.asarray(line.get_xydata()).tolist() for line in axis.lines]
        assert [[low, low], [high, high]] in points  # where both gains are equal
        inside = (np.minimum(sparse_W, long_W) >= low) & (np.maximum(sparse_W, long_W) <= high)
        assert inside.mean() > 0.97
        assert np.ma.getdata(axis.collections[0].get_array()).sum() == pytest.approx(weight_W[inside].sum())
        means = next(line for line in axis.lines if line.get_gid() == "means")
        np.testing.assert_allclose(
            np.asarray(means.get_xydata()), [np.average([sparse_W, long_W], axis=1, weights=weight_W)]
        )
    assert "kl" in figure4.figure(tables).get_supxlabel()
    with pytest.raises(UserError, match=r"selector nobody was not measured; choose one of .*attention"):
        figure4.figure(tables, "nobody")


def test_figure5_shows_the_likely_window_and_what_was_picked(tables: Path, tmp_path: Path) -> None:
    windows = read_frames(tables).windows.assign(loss_long_nats=lambda of: of["loss_long_nats"] - 2.5)
    likely, short = np.exp(-windows["loss_long_nats"]), np.exp(-windows["loss_short_nats"])
    best = max((w for w in range(len(windows)) if likely.iloc[w] >= 0.5), key=lambda w: (likely - short).iloc[w])
    assert figure5.chosen_window(windows) == (best, "of windows that reach 50% the one with the largest rise")
    unlikely = read_frames(tables).windows
    rise = np.exp(-unlikely["loss_long_nats"]) - np.exp(-unlikely["loss_short_nats"])
    assert rise.max() < 0.5
    window_id, rule = figure5.chosen_window(unlikely)
    assert window_id == int(rise.argmax()) and rule.startswith("of all windows")
    figure = figure5.figure(tables)
    text, bars = figure.axes
    (window,) = read_windows(tables, [window_id])
    losses = np.array(window.losses("kl", 2))
    np.testing.assert_allclose([bar.get_width() for bar in bars.patches], np.exp(-losses))  # type: ignore[attr-defined]
    tokens = {int(str(of.get_gid()).split()[1]): of for of in text.texts if str(of.get_gid()).startswith("token")}
    assert [tokens[at].get_text() for at in range(21)] == [*window.texts, window.target.space + window.target.text]
    bold = {at for at, of in tokens.items() if of.get_fontweight() == "bold"}
    assert bold == set(window.visible("kl", 2)) | {20}
    assert len([patch for patch in text.patches if to_hex(patch.get_facecolor()) == figure5.PICKED]) == 2
    assert f"Window {window_id}: of all windows" in figure.get_supxlabel()
    odd = figure5.figure(made_up_tables(tmp_path / "odd", num_documents=1, long_gain=-2, texts=["\u4e2d"]))
    assert odd.axes[0].texts[0].get_text() == "\u25a1"
    assert "below 1% with all 20 tokens" in [of.get_text() for of in odd.axes[1].texts]


def test_figure5_breaks_a_long_window_into_lines_that_fill_its_panel(tmp_path: Path) -> None:
    figure = figure5.figure(made_up_tables(tmp_path / "long", num_documents=1, texts=[f" token{i}" for i in range(20)]))
    assert_readable(figure)
    axis = figure.axes[0]
    boxes = np.array([of.get_window_extent().extents for of in axis.texts if str(of.get_gid()).startswith("token")])
    low, high = np.unique(boxes[:, 1].round())
    (left, bottom), (right, top) = boxes[:, :2].min(axis=0) - axis.bbox.min, axis.bbox.max - boxes[:, 2:].max(axis=0)
    assert (boxes[:, 3] - boxes[:, 1]).min() < high - low
    assert min(left, right, bottom, top) >= 0 and max(bottom, top) < high - low
    assert axis.patches[-1].get_y() == pytest.approx(-1.42)  # type: ignore[attr-defined]  # the target's, in the second line


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "trained"
    folder.mkdir()
    config = Config(context=ContextConfig(local_len=8, full_len=24), pose=PoseConfig(max_position=32))
    write_manifest(folder, {"kind": "run", "status": "complete", "config": to_dict(config)})
    evaluated = {"validation_loss_nats": 2.5, "loss_within_train_len_nats": 2.4, "loss_beyond_train_len_nats": 2.6}
    lines = [
        {"step": step, "tokens": 100 * step, "loss_nats": 5 - 0.1 * step}
        | (evaluated | {"loss_by_position_nats": [4.0, 3.0, 2.0 + step / 100]} if step % 10 == 0 else {})
        for step in range(1, 31)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"step": 31, "tok')  # killed while it wrote a line
    return folder


def test_training_shows_what_the_run_logged(run: Path) -> None:
    over_time, by_position = training.figure([run]).axes
    lines = labelled(over_time)
    np.testing.assert_allclose(lines["loss_nats"], [[100 * step, 5 - 0.1 * step] for step in range(1, 31)])
    np.testing.assert_allclose(lines["loss_beyond_train_len_nats"], [[1000, 2.6], [2000, 2.6], [3000, 2.6]])
    np.testing.assert_allclose(labelled(by_position)["loss_by_position_nats"], [[1, 4], [2, 3], [3, 2.3]])
    other = shutil.copytree(run, run.with_name("other"))
    over_time, by_position = training.figure([run, other]).axes
    assert len(over_time.lines) == len(by_position.lines) == 2
    again = shutil.copytree(run, run.parent / "again" / run.name)
    assert len(training.figure([run, again]).axes[0].lines) == 2
    for damaged in ("{}\n", "[\n", '{"step": 1, "tokens": "many", "loss_nats": 2}\n'):
        (run / "metrics.jsonl").write_text(damaged)
        with pytest.raises(UserError, match=r"metrics\.jsonl: not the metrics of a run"):
            training.figure([run])
    (run / "metrics.jsonl").unlink()
    with pytest.raises(NothingToDraw, match=r"metrics\.jsonl: no such file"):
        training.figure([run])


def test_hypothesis_shows_the_thirds() -> None:
    frame = read_hypothesis(SEEDS)
    (axis,) = hypothesis.figure(SEEDS).axes
    lines = labelled(axis)
    (model,) = frame["model"].unique()
    for label, quantity in ((model, "third_gain_nats"), ("null context", "third_null_gain_nats")):
        values = frame[frame["quantity"] == quantity].set_index("group")["value"][list(THIRDS)]
        np.testing.assert_allclose(lines[label], np.c_[range(3), values])


SAME = {"task": "parity", "modulus": 2, "background": "noise", "train_lengths": [4, 8], "learned": (2, 2)}
SPARSITIES = {f"parity, {most}": {"max_sparsity": most, "scratchpad": False} for most in (4, 2)}
METHODS = {
    "parity, PoSE, scratchpad": {"max_sparsity": 3, "scratchpad": True},
    "parity, RandPos, scratchpad": {"max_sparsity": 3, "scratchpad": True},
    "parity, PoSE": {"max_sparsity": 3, "scratchpad": False, "learned": (1, 2)},
}
LABELS = ["PoSE\nscratchpad", "RandPos\nscratchpad", "PoSE\n(1 of 2 learned)"]
TRAINED_ON = {"trained on k up to 2": "parity, 2", "trained on k up to 4": "parity, 4"}


def accuracies(models: dict[str, dict[str, Any]], place: Optional[str] = None) -> pd.DataFrame:
    """A frame as of ``read_synthetic``, whose accuracies all differ."""
    rows = []
    for (m, model), k, x in product(enumerate(models), (1, 3), (4.0, 8.0, 16.0)):
        value = 1 - m / 10 - k / 100 - x / 1000
        rows.append(("accuracy", model, k, x, place, value, value - 0.04, value + 0.02))
        rows.append(("accuracy_tokens", model, k, x, place, 1.0, 1.0, 1.0))
    frame = pd.DataFrame(rows, columns=["quantity", "model", "k", "x", "group", "value", "low", "high"])
    frame.attrs["settings"] = {model: {**SAME, **of} for model, of in models.items()}
    return frame


def chance_of(picture: Figure) -> set[float]:
    lines = [line for axis in picture.axes for line in axis.lines if line.get_gid() == "chance"]
    return {np.asarray(line.get_ydata()).item(0) for line in lines}


@pytest.mark.parametrize(
    ("models", "panels", "lines", "file", "labels"),
    [
        (SPARSITIES, TRAINED_ON, [1, 3], "", ["k = 1", "k = 3"]),
        (METHODS, {"k = 1": 1, "k = 3": 3}, list(METHODS), "-scratchpad", LABELS),
    ],
)
def test_synthetic_has_a_panel_for_each_training_or_each_k(
    models: dict[str, Any], panels: dict[str, Any], lines: list[Any], file: str, labels: list[str]
) -> None:
    frame = accuracies(models)
    ((name, picture),) = synthetic.pictures(frame).items()
    assert name == f"synthetic-parity{file}"
    assert [axis.get_title(loc="left") for axis in picture.axes] == list(panels)
    by_panel, by_line = ("model", "k") if models is SPARSITIES else ("k", "model")
    for axis, panel in zip(picture.axes, panels.values(), strict=True):
        rows = frame[(frame["quantity"] == "accuracy") & (frame[by_panel] == panel)]
        drawn = [np.asarray(line.get_xydata()) for line in axis.lines if line.get_gid() != "chance"]
        for points, line in zip(drawn, lines, strict=True):
            np.testing.assert_allclose(points, rows[rows[by_line] == line][["x", "value"]].to_numpy())
    assert [text.get_text() for text in picture.axes[-1].texts] == labels
    assert_readable(picture)
    assert chance_of(picture) == {0.5}
    with_steps = {name: of for name, of in METHODS.items() if of["scratchpad"]}
    assert chance_of(*synthetic.pictures(accuracies(with_steps)).values()) == set()  # a response of several tokens
    with pytest.raises(NothingToDraw, match="synth summary"):
        synthetic.pictures(accuracies(models, place="beyond"))


def test_synthetic_draws_each_task_apart() -> None:
    tasks = {
        "noise": {},
        "text": {"background": "text"},
        "short": {"train_lengths": [4, 6]},
        "shorter": {"train_lengths": [2, 6]},
    }
    settings = {name: {"max_sparsity": 3, "scratchpad": False, **of} for name, of in tasks.items()}
    drawn = synthetic.pictures(accuracies(settings))
    assert list(drawn) == [f"synthetic-parity{end}" for end in ("", "-text", "-other", "-other-other")]
    for picture, value in zip(drawn.values(), (1.0, 0.9, 0.8, 0.7), strict=True):
        assert np.asarray(picture.axes[0].lines[0].get_ydata()).max() == pytest.approx(value, abs=0.02)
    of_sum = {"sum": {"max_sparsity": 3, "scratchpad": False, "modulus": 4}}
    (picture,) = synthetic.pictures(accuracies(of_sum)).values()
    assert picture.get_suptitle().startswith("Sum modulo 4") and chance_of(picture) == {0.25}
    three = accuracies({f"parity, {most}": {"max_sparsity": most, "scratchpad": False} for most in (2, 3, 4)})
    (picture,) = synthetic.pictures(three[(three["model"] != "parity, 3") | (three["k"] == 1)]).values()
    assert [len(axis.texts) for axis in picture.axes] == [0, 1, 2]  # where the lines are not those of the last panel


def assert_readable(figure: Figure) -> None:
    """No text leaves the picture, and no label lies over another text."""
    lay_out(figure, 100)
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * 100
    axes = [which for axis in figure.axes for which in (axis.xaxis, axis.yaxis)]
    ticks = {label for axis in axes for label in axis.get_ticklabels(which="both")}
    written = [
        text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text() and text not in ticks
    ]
    assert all(text.get_fontsize() >= 5.5 for text in written)
    for text in written:
        box = text.get_window_extent()
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text.get_text()
    for one, other in combinations([text for text in written if text.get_gid() == "label"], 2):
        both = one.get_window_extent(), other.get_window_extent()
        assert not Bbox.intersection(*both), (one.get_text(), other.get_text())


def test_every_figure_is_readable(tables: Path, frame: pd.DataFrame, run: Path, tmp_path: Path) -> None:
    for module in (first_picture, recovered, spectrum, classes, gains):
        assert_readable(figure := module.figure(frame))
        assert "of 400 documents" in figure.get_supxlabel()
        assert bool(figure.get_suptitle()) == (module is not first_picture)  # whose panels have their own
    for panel in ("few", "beyond"):
        assert_readable(figure := first_picture.figure(frame, panel))
        assert not figure.get_supxlabel()
    assert_readable(training.figure([run]))
    assert_readable(hypothesis.figure(SEEDS))
    for name in ("runs/seed0/influence/measured", "tables/contextual", "tables/words"):
        copy = shutil.copytree(GUARD / name, tmp_path / "copies" / name / "influence" / "copy")
        for module in (figure4, figure5):
            assert_readable(module.figure(copy))
        assert_readable(first_picture.figure(read_estimates(copy)))


def copied(tables: Path, run: Path) -> Path:
    """Tables of the guard beside a run, since their estimates are kept where they are."""
    return Path(shutil.copytree(tables, run.with_name(tables.name)))


PICTURES: dict[str, Callable[[Path, pd.DataFrame, Path], Figure]] = {
    "first-picture": lambda _tables, frame, _run: first_picture.figure(frame),
    "first-picture-no-gain": lambda _tables, _frame, run: first_picture.figure(read_estimates(copied(CONTEXTUAL, run))),
    "recovered": lambda _tables, frame, _run: recovered.figure(frame),
    "spectrum": lambda _tables, frame, _run: spectrum.figure(frame),
    "classes": lambda _tables, frame, _run: classes.figure(frame),
    "gains": lambda _tables, frame, _run: gains.figure(frame),
    "figure4": lambda tables, _frame, _run: figure4.figure(tables),
    "figure5": lambda tables, _frame, _run: figure5.figure(tables),
    "figure5-likely": lambda _tables, _frame, run: figure5.figure(copied(SEEDS[0] / "influence" / "measured", run)),
    "figure5-letters": lambda _tables, _frame, run: figure5.figure(
        made_up_tables(run.with_name("letters"), num_documents=1, texts=[" a", *"bcdefghijkl"])
    ),
    "training": lambda _tables, _frame, run: training.figure([run]),
    "training-of-two": lambda _tables, _frame, run: training.figure(
        [run, shutil.copytree(run, run.with_name("other"))]
    ),
    "hypothesis": lambda _tables, _frame, run: hypothesis.figure(
        [*SEEDS, copied_with_rows(SEEDS[0], run.with_name("ceiling"))]
    ),
    "synthetic-figure1": lambda *_: synthetic.pictures(accuracies(SPARSITIES))["synthetic-parity"],
    "synthetic-figure2": lambda *_: synthetic.pictures(accuracies(METHODS))["synthetic-parity-scratchpad"],
}


@pytest.mark.needs("matplotlib 3.11.2")
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_before(name: str, tables: Path, frame: pd.DataFrame, run: Path, tmp_path: Path) -> None:
    """Where one has changed, the new one is in the folder that is named: look at it, and put it into ``pictures/``."""
    figure = PICTURES[name](tables, frame, run)
    lay_out(figure, 60)
    figure.savefig(new := tmp_path / f"{name}.png", dpi=60)
    before = Path(__file__).parent / "pictures" / new.name
    assert before.exists() and compare_images(str(before), str(new), tol=0.2) is None, new


DEFAULT = ["first_picture", "figure4", "figure5"]


def test_the_default_figures_and_all(tables: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is named as it is and has both files; they are not rendered, which takes seconds."""
    monkeypatch.setattr(Figure, "savefig", lambda _, file, **options: file.write(b"picture"))
    names = {
        path.stem for path in draw_run(shutil.copytree(tables, run / "influence" / "moved"), tmp_path / "all", True)
    }
    assert names == {*DEFAULT, "recovered", "spectrum", "classes", "gains", "training"}
    drawn = draw_run(tables, tmp_path / "few", False)
    assert [path.name for path in drawn] == [f"{name}.{ending}" for name in DEFAULT for ending in ("png", "pdf")]
    few = made_up_tables(tmp_path / "of-few", num_documents=10)  # of no class, but of all targets
    assert "gains" in {path.stem for path in draw_run(few, tmp_path / "some", True)}


MISTAKES = {
    "nothing": "nothing: no such figure; choose one of classes, figure4",
    "spectrum --selector kl": "--selector kl: spectrum is not a figure of one selector",
    "figure5 --tables all --selector nobody": "selector nobody was not measured; choose one of ",
    "spectrum --run a --run b": "--run b: spectrum is a figure of one measurement",
    "training --tables t": "--tables t: training is a figure of runs; name them with --run",
    "spectrum --run nowhere": "nowhere: no such folder",
    "spectrum --tables nowhere": "nowhere: there are no influence tables here",
    "figure4 --wrong": "unrecognized arguments: --wrong",
    "training --run odd": "odd/metrics.jsonl: Is a directory",
    "recovered --run few": "recovered: the long context gives no clear gain",
    "spectrum --tables all --out file/figures": "file/figures: cannot make this folder (Not a directory)",
}


def test_one_figure_by_its_name_and_mistakes_in_one_line(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up_tables(tmp_path / "few" / "influence" / "few", num_documents=10)
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("odd/metrics.jsonl").mkdir(parents=True)
    Path("all").symlink_to(tables)
    for line, said in MISTAKES.items():
        monkeypatch.setattr(sys, "argv", ["analysis", *line.split()])
        with pytest.raises(SystemExit) as ended:
            draw_one()
        out, err = capsys.readouterr()
        assert (ended.value.code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"analysis: error: {said}")
    line = f"spectrum --tables {tables} --out out"
    monkeypatch.setattr(sys, "argv", ["analysis", *line.split()])
    draw_one()
    assert capsys.readouterr().out.splitlines() == ["out/spectrum.png", "out/spectrum.pdf"]
    assert sorted(path.name for path in Path("out").iterdir()) == ["spectrum.pdf", "spectrum.png"]
