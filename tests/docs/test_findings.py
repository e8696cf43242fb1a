"""What the README says was found: each number is one of the results, and its interval shows what the words say."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from shown_commands import ROOT

from olmo_sparsity.statistics.quantities import FEW

NUMBER = r"-?\d+(?:\.\d+)?"
INTERVAL = rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]"
EQUAL = 0.05  # the plan of the causal twin: accuracies are equal where the whole interval of their difference lies within this


def words_of(name: str) -> str:
    """Return the text of a page with single spaces."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


README = words_of("README.md")


class Found(NamedTuple):
    """A number with its 95% interval, as texts, so that no digit is lost; ``low`` and ``high`` are empty without one."""

    mean: str
    low: str = ""
    high: str = ""

    @property
    def direction(self) -> int:
        """1 where the interval lies above 0, -1 where it lies below, 0 where it holds 0."""
        return int(float(self.low) > 0) - int(float(self.high) < 0)

    def rounded_as(self, other: Found) -> Found:
        """Return the number with as many decimals as another one."""
        texts = zip(self, other, strict=True)
        return Found(*(f"{float(own):.{len(of.partition('.')[2])}f}" if of else "" for own, of in texts))

    @property
    def negative(self) -> Found:
        """The number as a loss in place of a gain."""
        return Found(*(str(-float(text)) for text in (self.mean, self.high, self.low)))


def found_in(text: str) -> Found:
    match = re.match(rf"{INTERVAL}|({NUMBER})", text)
    assert match, text
    return Found(*match.groups()[:3]) if match[1] else Found(match[4])


def tables_of(page: str, heading: str) -> list[list[list[str]]]:
    """Return the tables below a heading of a page in docs/, each as its rows of cells, the header first."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    _, found, section = text.partition(f"# {heading}\n")
    assert found, (page, heading)
    blocks = re.findall(r"(?:^\|.*\n)+", re.split(r"^#+ ", section, flags=re.MULTILINE)[0], re.MULTILINE)
    tables = [[[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()] for block in blocks]
    return [[header, *rows] for header, _, *rows in tables]


def cell(page: str, heading: str, row: str, column: str) -> str:
    """Return a cell of the first table with such a row and column; both are given by how they begin.

    Args:
        page: a page in docs/.
        heading: below which the table stands.
        row: the row's first cell.
        column: the column's name; ``A > B``: the first column B behind a column A, as for the k of several quantities.
    """
    first, _, then = column.rpartition(" > ")
    for header, *rows in tables_of(page, heading):
        starts = [index for index, name in enumerate(header) if name.startswith(first)] if first else [0]
        for index in range(starts[0] + bool(first), len(header)) if starts else ():
            if header[index].startswith(then):
                for cells in rows:
                    if cells[0].startswith(row):
                        return cells[index]
                break
    raise AssertionError((page, heading, row, column))


def prose(page: str, before: str) -> Found:
    """Return the number behind some words of a page."""
    match = re.search(re.escape(before) + rf" ({INTERVAL})", words_of(f"docs/{page}"))
    assert match, (page, before)
    return found_in(match[1])


def said(before: str) -> Found:
    """Return the number behind some words of the README."""
    match = re.search(re.escape(before) + rf" ({INTERVAL}|{NUMBER})", README)
    assert match, before
    return found_in(match[1])


DEMO, SELECTION, FRESH = "Selectors that do not see the target", "What selection does", "A fresh draw"
CURVES, SMOLLM2, GEMMA = "Does the model generalize in length?", "A pretrained model", "Gemma 3 270M"
ENTRIES, LONGER = "How many entries a target of SmolLM2 needs", "Beyond SmolLM2's positions"
PLANNED, SHARE = "1. sparse minus dense", "2. share of the ceiling's gain"


def table(heading: str, row: str, column: str, page: str = "results.md") -> Found:
    return found_in(cell(page, heading, row, column))


# The words of the README in front of a number, the number of the results, and what the words say: 1 a gain, -1 a loss, 0 neither.
CLAIMS: dict[str, tuple[Found, int]] = {
    "long-range tokens are worth": (table(SELECTION, "all 12 tokens", "sparse gain > k = 2"), 1),
    "which does not see the target, recovers": (table(DEMO, "`kl`", "R(1)"), 1),
    "of that, a random one": (table(DEMO, "`random`", "R(1)"), 1),
    "Over random, it gains": (table(DEMO, "`kl`", "gain over random, real minus null"), 1),
    "the choice adds": (table(DEMO, "`kl`", "gain over damping, k = 1"), 0),
    "With four tokens it adds": (table(DEMO, "`kl`", "gain over damping > k = 4"), -1),
    "Over its row the demo gains": (prose("results.md", "With the last 12 the gain over the row is"), 1),
    "nats with 12 tokens and": (prose("results.md", "without it 0.066 [0.058, 0.075] are left. -"), 1),
    "on 60,000 fresh targets": (table(FRESH, "built-in", "from 8 to 12"), 1),
    "on 60,000 fresh targets 0.0109 [0.0090, 0.0127] and": (table(FRESH, "built-in", "from 8 to 16"), 1),
    "*sparse* ones gain": (table("The result", "sparse minus dense", "gain, nats", "hypothesis.md"), 1),
    "That is": (table("The result", PLANNED, "value", "hypothesis.md"), 1),
    "to 0.32 (sparse), by": (table("The result", SHARE, "value", "hypothesis.md"), 1),
    "chosen by `unmask-one` gains 0.281 nats.": (table(SELECTION, "`unmask-one`", "optimism, k = 1"), 1),
    "The corrected gain is": (table(SELECTION, "`unmask-one`", "corrected gain, k = 1"), 1),
    "the long context is worth": (table(SMOLLM2, "long gain", "nats"), 1),
    "chosen by `attention`, gain": (table(SMOLLM2, "`contextual`, `attention`", "gain over random > k = 8"), 1),
    "nats over eight random ones, and recover": (table(SMOLLM2, "`contextual`, `attention`", "R(8)"), 1),
    "in place of 128, a share of": (table(ENTRIES, "need more with 4,096 tokens", "chosen by `attention`"), 1),
    "Without its BOS Gemma 3 270M gains": (table(GEMMA, "without", "long gain, nats"), 1),
    "nats, with it": (table(GEMMA, "with BOS", "long gain, nats"), 1),
    "positions](docs/results.md#beyond-smollm2s-positions) SmolLM2 loses": (
        table(LONGER, "none", "16,384 minus 8,192").negative,
        -1,
    ),
}


@pytest.mark.parametrize("words", CLAIMS)
def test_a_number_is_that_of_the_results_and_its_interval_shows_what_the_words_say(words: str) -> None:
    measured, sign = CLAIMS[words]
    stated = said(words)
    lost = "loses" in words
    assert measured.direction == sign
    assert (measured.negative if lost else measured).rounded_as(stated) == stated


def test_every_interval_of_what_was_found_is_one_of_these_claims() -> None:
    findings = README.partition("## What it finds")[2]
    shown = {Found(*groups) for groups in re.findall(INTERVAL, findings)}
    assert shown == {said(words) for words in CLAIMS}


def test_the_summary_that_is_quoted_has_the_numbers_of_the_results() -> None:
    quoted = " ".join(README.partition("```text")[2].partition("```")[0].split())
    gate, beyond = re.findall(rf"gain {INTERVAL} nats", quoted)
    assert f"without it {gate[0]} [{gate[1]}, {gate[2]}] are left" in words_of("docs/results.md")
    assert CLAIMS["nats with 12 tokens and"][0].rounded_as(Found(*beyond)) == Found(*beyond)
    share = Found(*(f"{float(text):.0%}".strip("%") for text in table(DEMO, "`kl`", "R(1)")))
    assert f"{share.mean}% [{share.low}, {share.high}] of the gain" in quoted
    assert f"Random: {float(table(DEMO, '`random`', 'R(1)').mean):.0%}" in quoted
    spectrum = "How many tokens a target needs"
    assert f"{cell('results.md', spectrum, '`kl`', '2')} of them" in quoted
    others = [
        cell("results.md", spectrum, row, k).partition(" ")[0] for row, k in (("`random`", "2"), ("`kl`", "k = 0"))
    ]
    assert "Random: {}, none: {}.".format(*others) in quoted
    for column in ("gain over damping, k = 1", "gain over random, real minus null"):
        assert cell("results.md", DEMO, "`kl`", column) in quoted


# --- sentences without an interval of their own


def test_one_chosen_token_gains_more_than_a_random_one_and_optimism_is_most_of_what_the_target_shows() -> None:
    assert float(table(DEMO, "`kl`", "R(1)").low) > float(table(DEMO, "`random`", "R(1)").high)
    assert table(DEMO, "`kl`", "gain over random, k = 1").direction == 1
    sparse = table(SELECTION, "`unmask-one`", "sparse gain, k = 1")
    assert f"One token chosen by `unmask-one` gains {sparse.mean} nats." in README
    optimism = table(SELECTION, "`unmask-one`", "optimism, k = 1")
    assert "shows little" in README and float(optimism.low) > 0.8 * float(sparse.mean)


def test_a_choice_by_the_target_is_not_shown_to_find_more() -> None:
    """One token chosen by `kl`, which does not see the target, gains more than its corrected gain."""
    assert "that a choice by the target finds more than one without it" in README.partition("**Not found**")[2]
    corrected = table(SELECTION, "`unmask-one`", "corrected gain, k = 1")
    gain = float(table(DEMO, "`kl`", "R(1)").mean) * float(
        table(SELECTION, "all 12 tokens", "sparse gain > k = 2").mean
    )
    assert float(corrected.high) < gain


def test_length_generalization() -> None:
    assert "up to 1.5 times its training row of 8 tokens" in README
    curve = {model: table(CURVES, model, "gain from 8 to 16") for model in ("PoSE", "ceiling")}
    assert "From 8 to 16 a model trained on rows of 16 gains four times as much" in README
    assert round(float(curve["ceiling"].mean) / float(curve["PoSE"].mean)) == 4
    with_pose, without = table(CURVES, "PoSE", "16"), table(CURVES, "no PoSE", "8")
    assert float(with_pose.mean) > float(without.mean)
    assert f"with it the loss is {with_pose.mean} nats with 16 tokens, without it {without.mean} with 8" in README
    assert "On C4 it gains from 8 to 12 tokens, too; from 8 to 16 no gain is shown" in README
    assert table(FRESH, "C4", "from 8 to 12").direction == 1
    assert table(FRESH, "C4", "from 8 to 16").direction == 0
    assert "that 16 tokens, twice its row, are worth more to the demo than 12" in README.partition("**Not found**")[2]
    assert table(FRESH, "built-in", "from 12 to 16").direction == -1


def test_sparsity_and_its_limits() -> None:
    rise = re.search(rf"the gain rises from ({NUMBER}) \(dense\) to ({NUMBER}) \(sparse\)", README)
    shares = {
        row: found_in(cell("hypothesis.md", "The result", row, "share of the ceiling's")) for row in ("dense", "sparse")
    }
    assert rise and rise.groups() == (shares["dense"].mean, shares["sparse"].mean)
    assert (shares["dense"].direction, shares["sparse"].direction) == (-1, 1)
    assert "on C4 neither planned number (here 0.017 and 0.69) is shown to be above 0" in README
    on_c4 = re.search(
        rf"neither number is shown to be above 0: {INTERVAL} nats and {INTERVAL}", words_of("docs/hypothesis.md")
    )
    assert on_c4
    for number in (Found(*on_c4.groups()[:3]), Found(*on_c4.groups()[3:])):
        assert number.direction == 0
    assert "tell what is sparse, no excess over foreign text is shown" in README
    assert (
        prose("hypothesis.md", "foreign text has 80% of the difference (0.0209 of 0.0260); the excess,").direction == 0
    )


def test_other_sizes() -> None:
    """The share rises at each size, and the excess over foreign text is shown at the demo's alone."""
    assert (
        "In smaller and larger models (0.34M and 2.4M parameters, three seeds) the share rises, too, and no excess"
        in README
    )
    for size, excess in (("0.34M", 0), ("0.85M", 1), ("2.4M", 0)):
        assert found_in(cell("hypothesis.md", "Other sizes", size, PLANNED)).direction == excess
        assert found_in(cell("hypothesis.md", "Other sizes", size, "2. share, sparse minus dense")).direction == 1
    of_demo = cell("hypothesis.md", "Other sizes", "0.85M", PLANNED)
    assert of_demo in cell("hypothesis.md", "The result", PLANNED, "value")


def test_planted_sparsity() -> None:
    assert "a PoSE model adds up to 4 values beyond its row as well as inside" in README
    assert "without PoSE (two seeds) it fails at 4 beyond the row, not inside it" in README
    differences: dict[tuple[str, str], str] = {}
    model = ""
    (_, *rows), *_ = tables_of("hypothesis.md", "The result of the twin")
    for cells in rows:
        model = cells[0] or model
        differences[model, cells[1]] = cells[-1]
    for k in ("1", "2", "4"):
        difference = found_in(differences["PoSE", k])
        assert -EQUAL < float(difference.low) <= float(difference.high) < EQUAL
    assert float(found_in(differences["without PoSE", "4"]).high) < -EQUAL


def test_entries_are_more_than_random_ones_and_a_first_token_is_more_than_none() -> None:
    assert table(SMOLLM2, "`contextual`, `attention`", "gain over random > k = 8").direction == 1
    without, with_bos = table(GEMMA, "without", "long gain, nats"), table(GEMMA, "with BOS", "long gain, nats")
    assert float(without.low) > float(with_bos.high)


def test_how_many_entries_are_enough() -> None:
    assert "(for Gemma [8 of 64 cache entries are]" in README and FEW * 64 >= 8
    assert float(table(ENTRIES, "Gemma, 128, `greedy-patching`", "8").low) > 0.9
    for row in ("SmolLM2, 512, `greedy-patching`", "SmolLM2, 512, `attention`"):
        assert float(table(ENTRIES, row, "32").high) < 0.9


def test_rules_without_a_model_are_better_or_worse_where_their_gains_are() -> None:
    bullet = words_of("docs/selectors.md").partition("**Rules without a model**")[2].partition(" - **")[0]
    assert (
        "beat random entries: `rarest` is at 128 tokens with 4 and with 32, `sentence-start` at 512 with 64. " in bullet
    )
    worse = bullet.partition(" with 64. ")[2]
    assert (
        "worse at 2 to 8 of 448 entries, `same-token` also at 1; `bm25` also at 8 and 16 of 64 and at 128 of 960."
        in worse
    )
    size = "SmolLM2, 64 of {} tokens"
    worse_at = {(size.format("512"), rule, k) for rule in ("bm25", "same-token") for k in ("4", "8")}
    worse_at |= {
        (size.format("128"), "bm25", "8"),
        (size.format("128"), "bm25", "16"),
    }
    better_at = {(size.format("128"), "rarest", k) for k in ("4", "32")}
    shown = {**dict.fromkeys(worse_at, -1), **dict.fromkeys(better_at, 1)}
    for heading in (*map(size.format, ("128", "512", "1,024")), "Gemma 3, 64 of 128 tokens"):
        for rule in ("bm25", "same-token", "rarest", "sentence-start"):
            for k in ("4", "8", "16", "32"):
                gain = found_in(cell("selectors-measured.md", heading, f"`{rule}`", f"k = {k}"))
                assert gain.direction == shown.get((heading, rule, k), 0), (heading, rule, k)


def test_few_tokens_are_not_enough_for_nine_of_ten_targets_of_the_demo() -> None:
    spectrum = "How many tokens a target needs"
    assert (
        "that few tokens (at most a quarter) are enough for 90% of the targets" in README.partition("**Not found**")[2]
    )
    two, four = (cell("results.md", spectrum, "`kl`", k) for k in ("2", "4"))
    assert int(two.partition("[")[2].partition(",")[0]) < 90 < int(four.partition("[")[2].partition(",")[0])
    assert 2 <= FEW * 12 < 4
