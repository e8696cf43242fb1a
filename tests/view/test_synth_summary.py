"""``olmo-sparsity synth summary`` and its figure on made-up answers: numbers are those found, words follow the intervals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from drawn_figures import assert_bars, words_on
from made_up_answers import LENGTH, Accuracies, made_up_answers
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from typer.testing import CliRunner

from analysis import inside_and_beyond as figure_of_twin
from olmo_sparsity.cli.app import app
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.inside_and_beyond import Twin, read_inside_and_beyond
from olmo_sparsity.tables.reading import newest_finished

# By k; training has k up to 2.
HOLDS: Accuracies = {1: (1.0, 1.0), 2: (1.0, 1.0), 4: (0.5, 0.5)}
FAILS: Accuracies = {1: (1.0, 1.0), 2: (1.0, 0.5), 4: (0.5, 0.25)}
NAMES = {
    (2, 6): "PoSE, trained to 6 tokens",
    (1, 12): "ceiling, trained to 12 tokens",
    (1, 6): "without PoSE, trained to 6 tokens",
}
UNLEARNED: Accuracies = {1: (1.0, 0.95), 2: (0.5, 0.5), 4: (0.25, 0.25)}


def made(folder: Path, pose: Accuracies) -> list[Path]:
    runs = [made_up_answers(folder / f"pose{seed}", pose, seed=seed) for seed in (0, 1)]
    runs += [
        made_up_answers(folder / f"ceiling{seed}", HOLDS, seed=seed, num_chunks=1, longest=LENGTH) for seed in (0, 1)
    ]
    return [*runs, made_up_answers(folder / "no-pose", UNLEARNED, num_chunks=1)]


def printed(runs: list[Path], *options: str) -> str:
    named = [word for run in runs for word in ("--run", str(run))]
    result = CliRunner().invoke(app, ["synth", "summary", *named, *options])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def read(runs: list[Path]) -> Twin:
    return read_inside_and_beyond(newest_finished(run, "synthetic") for run in runs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made(tmp_path_factory.mktemp("twin"), FAILS)


def test_printed_numbers_are_those_that_were_found(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    twin, output = read(runs), printed(runs)
    lines = output.splitlines()
    for cell in twin.cells:
        name = NAMES[cell.setting.num_chunks, cell.setting.train_lengths[1]]
        row = rf"│ {name}\s+│ {LENGTH}\s+│ {cell.k}\s+│ {len(cell.learned)} of {len(cell.seeds)} .*"
        (line,) = [line for line in lines if re.search(row, line)]
        shares = [f"{cell.inside.mean:.3f}", f"{cell.beyond.mean:.3f}"]
        assert re.findall(r"\d\.\d{3}(?= \[)", line)[1:3] == shares  # behind the accuracy in one row
    values = json.loads(printed(runs, "--json"))
    assert [cell["difference"] and cell["difference"]["mean"] for cell in values["cells"]] == [
        cell.difference and cell.difference.mean for cell in twin.cells
    ]
    assert values["minus_reference"][1]["beyond"]["mean"] == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("pose", "said", "not_said"),
    [
        (
            HOLDS,
            ["k = 2: equal to within 0.05", "minus k = 2: lower by more than 0.05", "This is as predicted."],
            ["against"],
        ),
        (FAILS, ["k = 2: lower by more than 0.05", "This is against the prediction."], ["as predicted"]),
        (
            UNLEARNED,
            ["k = 2: too few seeds have learned it", "neither shown nor refuted"],
            ["as predicted", "against the"],
        ),
    ],
    ids=["holds", "fails", "unlearned"],
)
def test_the_words_follow_the_intervals(tmp_path: Path, pose: Accuracies, said: list[str], not_said: list[str]) -> None:
    output = " ".join(printed(made(tmp_path, pose)).split())
    (sentence,) = re.findall(r"^PoSE, trained to 6 tokens: .*?(?= ceiling, trained)", output)
    for words in said:
        assert words in sentence
    for words in not_said:
        assert words not in sentence
    # Of the others no prediction is made.
    assert len(re.findall("predict", output)) == 1


def test_it_is_said_how_many_seeds_were_evaluated_whether_they_have_learned_or_not(tmp_path: Path) -> None:
    output = " ".join(printed(made(tmp_path, UNLEARNED)).split())
    assert (
        "Models: PoSE, trained to 6 tokens (2 seeds), ceiling, trained to 12 tokens (2 seeds), without PoSE, trained to 6 tokens "
        "(1 seed); brackets"
    ) in output


def dots_of(axis: Axes, num_cells: int) -> list[list[list[float]]]:
    """Return the heights of the dots of each place and number of planted values, in the order in which they were drawn."""
    dots = [
        [float(y) for _, y in points.get_offsets()] for points in axis.collections if isinstance(points, PathCollection)
    ]
    return [dots[:num_cells], dots[num_cells:]]


def test_each_panel_shows_the_accuracies_of_its_title(runs: list[Path]) -> None:
    twin = read(runs)
    drawn = figure_of_twin.draw_inside_and_beyond(twin)
    assert [axis.get_title() for axis in drawn.figure.axes] == list(NAMES.values())
    for number, axis in enumerate(drawn.figure.axes):
        cells = twin.cells[3 * number : 3 * number + 3]
        inside, beyond = (list(container.lines[0].get_ydata()) for container in axis.containers)  # type: ignore[union-attr]
        assert inside == [cell.inside.mean for cell in cells]
        assert beyond == [cell.beyond.mean for cell in cells]
        for place, container, dots in zip(
            ("inside", "beyond"), axis.containers, dots_of(axis, len(cells)), strict=True
        ):
            assert_bars(container, [getattr(cell, place) for cell in cells])
            assert dots == [list(getattr(cell, f"{place}_of_seeds")) for cell in cells]
        assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2", "4"]
        (chance,) = [line for line in axis.lines if line.get_linestyle() == ":"]
        assert set(chance.get_ydata()) == {0.25}  # type: ignore[arg-type]
        (grey,) = axis.patches
        assert (grey.get_x(), grey.get_width()) == (-0.5, 2)  # k = 1 and 2 of training
    assert "Grey: numbers of values that training had." in words_on(drawn.figure)
    looks = {line.get_label(): line.get_color() for line in drawn.figure.legends[0].legend_handles}
    colours = [container.lines[0].get_color() for container in drawn.figure.axes[0].containers]  # type: ignore[union-attr]
    assert [looks["values inside the row"], looks["values beyond the row"]] == colours and len(set(colours)) == 2
    plt.close("all")


def test_runs_that_were_not_evaluated_so_are_one_line(tmp_path: Path, runs: list[Path]) -> None:
    for run, message in (
        (tmp_path / "nothing", "no such folder; name another, or run `olmo-sparsity synth eval` first"),
        (
            made_up_answers(tmp_path / "anywhere", HOLDS, seed=5, test_row_len=None),
            "evaluate with synthetic.test_row_len=N",
        ),
    ):
        result = CliRunner().invoke(app, ["synth", "summary", "--run", str(runs[0]), "--run", str(run)])
        assert isinstance(result.exception, UserError) and "\n" not in str(result.exception)
        assert message in str(result.exception)
