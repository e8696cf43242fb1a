"""What the README says was found: each number of SmolLM2 is one of the results, those of the demo are those of the tutorial."""

from __future__ import annotations

import re

import pytest
from shown_commands import ROOT

from olmo_sparsity.statistics.quantities import FEW

NUMBER = r"-?\d+(?:\.\d+)?"
INTERVAL = re.compile(rf"({NUMBER})%? \[({NUMBER}), ({NUMBER})\]")
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of all rows of the tables of a text."""
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line.startswith("|")]


def found(row: str, place: int) -> tuple[float, float, float]:
    """Return a number of the results with its interval: the row by its first cell, and which cell of it."""
    cells = next(cells for cells in rows_of(RESULTS) if cells[0] == row)
    match = INTERVAL.match(cells[place])
    assert match, (row, cells[place])
    return float(match[1]), float(match[2]), float(match[3])


QUESTIONS = {cells[0]: cells[1:] for cells in rows_of(README.partition("## What we found")[2])[2:]}
HELPS, BEYOND, MEAN, MOST = QUESTIONS


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_says_what_its_interval_shows(question: str) -> None:
    for answer in QUESTIONS[question]:
        if question in (HELPS, BEYOND):
            assert float(INTERVAL.findall(answer)[0][1]) > 0 and answer.startswith(
                "no: " if "loses" in answer else "yes"
            ), answer
        elif question == MEAN:
            (_, low, _), random = INTERVAL.findall(answer)[0], re.findall(r"(\d+)%", answer)[-1]
            assert float(low) > float(random), answer
        else:
            k, many, share = re.findall(r"(\d+) of (\d+) are enough for (\d+)%", answer)[0]
            assert int(k) <= FEW * int(many) and int(share) < 90 and answer.startswith("not shown"), answer


def test_the_numbers_of_smollm2_are_those_of_the_results() -> None:
    (gain,) = re.findall(r"Its long gain is (\S+ \[\S+ \S+\]) nats", " ".join(RESULTS.split()))
    assert gain in QUESTIONS[HELPS][1]
    assert "{:.3f} [{:.3f}, {:.3f}]".format(*found("none", 2)) in QUESTIONS[BEYOND][1]
    shares = [100 * number for number in found("`contextual`, `attention`", 2)]
    assert "{:.0f}% [{:.0f}, {:.0f}]".format(*shares) in QUESTIONS[MEAN][1]
    assert f"random ones {100 * found('`contextual`, `random`', 2)[0]:.0f}%" in QUESTIONS[MEAN][1]
    enough = next(cells for cells in rows_of(RESULTS) if cells[0] == "`attention`" and cells[3].startswith("0.65"))
    assert float(enough[4].partition(" ")[0]) == 0.86 and "16 of 64 are enough for 86%" in QUESTIONS[MOST][1]


def test_the_numbers_of_the_demo_are_those_of_the_summary_in_the_tutorial() -> None:
    tutorial = (ROOT / "docs" / "get-started.md").read_text(encoding="utf-8")
    quoted = tutorial.partition("```text")[2].partition("```")[0]
    for question in (HELPS, BEYOND, MEAN, MOST):
        for number in INTERVAL.findall(QUESTIONS[question][0]):
            assert number in INTERVAL.findall(quoted), (question, number)
    (random,) = re.findall(r"random one (\d+%)", QUESTIONS[MEAN][0])
    assert f"Random: {random}," in quoted
