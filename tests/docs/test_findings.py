"""What the README says was found: each number is one of the results, and its interval shows what the words say."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

import pytest
from planted_gains import made_up
from shown_commands import ROOT

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.shown_ks import FEW
from olmo_sparsity.statistics.single.summary import Summary, beyond_gate_of, summarize
from olmo_sparsity.wording.evidence import verdict_words

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

    def estimate(self) -> Estimate:
        return Estimate(*map(float, self))


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


def table(heading: str, row: str, column: str) -> Found:
    return found_in(cell("results.md", heading, row, column))


Place = tuple[str, str, str, str]  # page, heading, row, column
DEMO, SELECTION, FRESH = "Selectors that do not see the target", "What selection does", "A fresh draw"
CURVES, SMOLLM2, GEMMA = "Does the model generalize in length?", "A pretrained model", "Gemma 3 270M"
ENTRIES, LONGER = "How many entries a target of SmolLM2 needs", "Beyond SmolLM2's positions"
PLANNED, SHARE = "1. sparse minus dense", "2. share of the ceiling's gain"


# The words of the README in front of a number, where the number is from, and the sign of what the words say: 1 a gain, -1 a loss.
CLAIMS: dict[str, tuple[Place, int]] = {
    "long-range tokens are worth": (("results.md", SELECTION, "all 12 tokens", "sparse gain > k = 8"), 1),
    "which does not see the target, recovers": (("results.md", DEMO, "`kl`", "R(1)"), 1),
    "of that, a random one": (("results.md", DEMO, "`random`", "R(1)"), 1),
    "From 8 to 12 tokens the demo gains": (("results.md", FRESH, "built-in", "from 8 to 12"), 1),
    "from 12 to 16 it loses": (("results.md", FRESH, "built-in", "from 12 to 16"), -1),
    "those with a sparse one gain": (("hypothesis.md", "The result", "sparse minus dense", "gain, nats"), 1),
    "That is": (("hypothesis.md", "The result", PLANNED, "value"), 1),
    "to 0.32 (sparse), by": (("hypothesis.md", "The result", SHARE, "value"), 1),
    "chosen by `unmask-one` gains 0.282 nats.": (("results.md", SELECTION, "`unmask-one`", "optimism, k = 1"), 1),
    "The corrected gain is": (("results.md", SELECTION, "`unmask-one`", "corrected gain, k = 1"), 1),
    "the long context is worth": (("results.md", SMOLLM2, "long gain", "nats"), 1),
    "chosen by `attention`, recover": (("results.md", SMOLLM2, "`contextual`, `attention`", "R(8)"), 1),
    "eight random ones": (("results.md", SMOLLM2, "`contextual`, `random`", "R(8)"), 1),
    "their entries have read, recover": (("results.md", SMOLLM2, "`hidden`, `attention`", "R(8)"), 1),
    "Without its BOS Gemma 3 270M gains": (("results.md", GEMMA, "without", "long gain, nats"), 1),
    "nats, with it": (("results.md", GEMMA, "with BOS", "long gain, nats"), 1),
    "in place of 128, a share of": (("results.md", ENTRIES, "need more with 4,096 tokens", "`attention`"), 1),
    "from 8,192 to 16,384 tokens it loses": (("results.md", LONGER, "none", "16,384 minus 8,192"), 1),
}


@pytest.mark.parametrize("words", CLAIMS)
def test_a_number_is_that_of_the_results_and_its_interval_shows_what_the_words_say(words: str) -> None:
    place, sign = CLAIMS[words]
    measured = found_in(cell(*place))
    stated = said(words)
    assert measured.direction == sign
    gain_or_loss = measured if sign == 1 else measured.negative
    assert gain_or_loss.rounded_as(stated) == stated


def test_every_interval_of_what_was_found_is_one_of_these_claims() -> None:
    findings = README.partition("## What it finds")[2]
    shown = {Found(*groups) for groups in re.findall(INTERVAL, findings)}
    assert shown == {said(words) for words in CLAIMS}


def test_the_verdict_is_the_sentence_of_the_package_for_the_numbers_of_the_results() -> None:
    """The numbers of the results are planted into a made-up measurement; the package writes its sentence anew."""
    kl = {
        "recovered_fraction": table(DEMO, "`kl`", "R(1)").estimate(),
        "gain_over_random_nats": table(DEMO, "`kl`", "gain over random, k = 1").estimate(),
        "excess_gain_nats": table(DEMO, "`kl`", "real minus null, k = 1").estimate(),
    }
    gain = table(SELECTION, "all 12 tokens", "sparse gain > k = 8").estimate()
    beyond = prose("results.md", "without it 0.066 [0.057, 0.074] are left. -").estimate()
    summary = with_numbers(summarize(made_up(200, long_gain=0.5)), gain=gain, beyond=beyond, kl=kl)
    quoted = re.findall(r"^> (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert " ".join(quoted) == verdict_words(summary)
    lost = with_numbers(summary, gain=gain, beyond=Estimate(-0.01, -0.02, 0.0), kl=kl)
    assert " ".join(quoted) != verdict_words(lost)


def with_numbers(summary: Summary, *, gain: Estimate, beyond: Estimate, kl: dict[str, Estimate]) -> Summary:
    """Return a summary of the demo's lengths with these gains, and these numbers of `kl` at k = 1."""
    lengths = dataclasses.replace(summary.lengths, train_len=8)
    entries = tuple(
        dataclasses.replace(entry, **kl) if (entry.selector, entry.context, entry.k) == ("kl", "real", 1) else entry
        for entry in summary.selections
    )
    return dataclasses.replace(
        summary,
        lengths=lengths,
        gate="passed" if gain.is_above_zero else "failed",
        long_gain_nats=gain,
        gain_beyond_nats=beyond,
        beyond_gate=beyond_gate_of(beyond, lengths),
        selections=entries,
    )


# --- sentences without an interval of their own


def test_one_chosen_token_gains_more_than_a_random_one_and_optimism_is_most_of_what_the_target_shows() -> None:
    assert float(table(DEMO, "`kl`", "R(1)").low) > float(table(DEMO, "`random`", "R(1)").high)
    assert table(DEMO, "`kl`", "gain over random, k = 1").direction == 1
    sparse = table(SELECTION, "`unmask-one`", "sparse gain, k = 1")
    assert f"One token chosen by `unmask-one` gains {sparse.mean} nats." in README
    optimism = table(SELECTION, "`unmask-one`", "optimism, k = 1")
    assert "shows little" in README and float(optimism.low) > 0.8 * float(sparse.mean)


def test_a_choice_by_the_target_is_not_shown_to_find_more() -> None:
    """As many random tokens gain as much as its corrected gain, or more."""
    assert "that a choice by the target finds more than one without it" in README.partition("**Not found**")[2]
    corrected = table(SELECTION, "`unmask-one`", "corrected gain > k = 8")
    assert float(corrected.high) < float(table(SELECTION, "`random`", "sparse gain > k = 8").mean)


def test_length_generalization() -> None:
    assert "up to 1.5 times its training row of 8 tokens" in README
    curve = {model: table(CURVES, model, "gain from 8 to 16") for model in ("PoSE", "ceiling")}
    assert "From 8 to 16 a model trained on rows of 16 gains four times as much" in README
    assert round(float(curve["ceiling"].mean) / float(curve["PoSE"].mean)) == 4
    with_pose, without = table(CURVES, "PoSE", "16"), table(CURVES, "no PoSE", "8")
    assert float(with_pose.mean) > float(without.mean)
    assert f"with it the loss is {with_pose.mean} nats with 16 tokens, without it {without.mean} with 8" in README
    assert (
        "On C4, text of another kind, the demo gains from 8 to 12 tokens, too; from 8 to 16 no gain is shown" in README
    )
    assert table(FRESH, "C4", "from 8 to 12").direction == 1
    assert table(FRESH, "C4", "from 8 to 16").direction == 0
    assert "a gain of the demo beyond 1.5 times its row" in README.partition("**Not found**")[2]


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
    rows = ("chosen by `attention`", "`nearest`", "`attention`, null context", "`nearest`, null context")
    chosen, nearest, *foreign = (f"{float(table(ENTRIES, row, '16').mean):.0%}" for row in rows)
    assert f"16 chosen entries are enough for {chosen} of the targets" in README
    assert f"16 of the nearest for {nearest}; under foreign text for {' and '.join(foreign)}." in README
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


def test_the_caption_and_what_it_shows_of_few() -> None:
    spectrum = "How many tokens a target needs"
    caption = re.search(
        r"Within 0\.05 nats (\d+% \[\d+, \d+\]) of the targets need none\. For 80%, (\d) tokens are enough if the selector `kl`",
        README,
    )
    assert caption and f"- {caption[1]} of the targets need no long-range token" in words_of("docs/results.md")
    assert caption[2] == table(spectrum, "`kl`", "80%").mean
    assert "against 8 of the nearest" in README and table(spectrum, "`nearest`", "80%").mean == "8"
    assert (
        "that few tokens (at most a quarter) are enough for 90% of the targets" in README.partition("**Not found**")[2]
    )
    assert FEW == 0.25 and int(table(spectrum, "`kl`", "90%").mean) > FEW * 12
