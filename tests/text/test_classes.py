# ruff: noqa: RUF001  (curly quotation marks are meant)

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from olmo_sparsity.text.classes import CLASSES, target_class


def class_of(long_range: Sequence[str], local: Sequence[str], target: str) -> str:
    """Return the class of a hand-written window. Equal texts get equal token IDs."""
    texts = [*long_range, *local]
    ids = {text: i for i, text in enumerate([*texts, target])}
    return target_class(
        [ids[text] for text in texts], texts, target_id=ids[target], target_text=target, num_long_range=len(long_range)
    )


def local_class(local: Sequence[str], target: str) -> str:
    """Return the class of a target after local tokens, with nothing to repeat in the long range."""
    return class_of([" zzz"] * 3, local, target)


# Local tokens and the target, with nothing to repeat in the long range.
AFTER_LOCAL = {
    "closing": [
        ([' (', 'a', ' man'], ')'), ([' a', ' man'], '),'), ([' ex', '.'], ' ]'), ([' man'], '}'), ([' man'], '»'),
        ([' “', 'go'], '”'), ([' “', 'go'], '.”'), ([' (', 'go'], '?)'), ([' (', 'go'], '…)'), ([' ``', 'go'], "''"),
        ([' "', 'go'], '"'), ([' "', ' go'], ' "'), ([' "', 'go'], '."'), ([' "go", he said, "', 'stop'], '"'),
        ([' ‘', 'go'], '’'), ([' ‘', 'I', '’m', ' here'], '’'), ([' go', '.'], '’'), ([' go'], '.’'),
    ],
    "other": [
        ([' smile'], ' :)'), ([' a'], ' ('), ([' a'], ' “'), ([' click'], ' "'), ([' "', 'go', '"', ' and'], ' "'),
        ([' dogs'], "'"), ([' dogs'], '’'), ([' the'], ' ’'), ([' ‘', 'go', '’', ' the', ' dogs'], '’'),
        ([' café'], '’'), ([" '", 'go', '.'], "'"), ([], '’'), ([' about'], ' 10+12'), ([' cost'], ' $'),
        ([' the'], '-'), ([' the'], ' 19th'), ([' 19'], 'th'), ([' -́'], 's'), ([' ́'], '́'), ([' pull'], ' ing'),
        ([' pull'], '\ning'), ([' long-'], 'ter'), ([" '"], 'ing'), ([' caf�'], 's'), ([' pull'], '�'),
        ([' pull'], ''), ([' 7'], 'ing'), ([' to'], ' london'),
        ([' went', '?', ' "', ' '], 'London'), ([' went', '.)', ' '], ' London'), ([' went', ':', ' '], ' London'),
        ([' went', '\n'], 'London'), ([' went', '\n', ' '], ' London'), ([' went'], '\nLondon'), ([' and'], " I'm"),
        ([' and'], ' I’ll'), ([' man'], ' then,'), ([' man'], ' mountain'), ([' man'], ''), ([' man'], ' '),
        ([' man'], '�'), ([' man'], ','), ([' I'], '’'),
    ],
    "continues-word": [
        ([' don'], "'t"), ([' don'], '’t'), ([' ‘', 'don'], '’t'), ([' pull'], 'ing'), ([' Mc'], 'Donald'),
        ([' prote'], 'in'), ([' é'], 'té'), ([' Моск'], 'ва'), ([' don', "'"], 't'), ([' I', "'"], 'm'), ([' pull', ''], 'ing'),
        ([' café'], 's'), ([' café’'], 's'), ([' cafe'], '́s'), ([' हि'], 'न्दी'),
    ],
    "number": [
        ([' in'], ' 2011'), ([' 20'], '24'), ([' covid'], '19'), ([' cost'], ' $5'), ([' about'], ' 1,000.50'),
        ([' at'], ' 12:30'), ([' at'], ' 5%'), ([' about'], ' 3/4'), ([' about'], ' 10-12'), ([' at'], ' ٣'),
    ],
    "name": [
        ([' to'], ' London'), ([' to'], ' Lond'), ([' the'], ' NASA'), ([' in'], ' Élan'), ([' the', ' ('], 'NASA'),
        ([' the', ' Anglo', '-'], 'Saxon'), ([' in'], ' May'), ([' and'], ' II'),
    ],
    "function-word": [
        ([' went', '!'], ' The'), ([' and'], ' I'), ([' man'], ' the'), ([' man', ' ('], 'the'),
        ([' man', '.'], ' You'), ([' built', '-'], 'in'), ([' man'], ' cannot'),
    ],
}  # fmt: skip
# Long-range tokens, local tokens and the target.
AFTER_BOTH = {
    "induction": [
        ([' a', ' rapid', ' trans', 'it'], [' the', ' rapid'], ' trans'),
        ([' rapid', ' trans'], [' rapid'], ' trans'), ([' rapid', ' trans'], [' trans', ' rapid'], ' trans'),
        ([' of', ' the'], [' made', ' of'], ' the'), ([' end', '.'], [' the', ' end'], '.'),
        ([' go', ' go'], [' go'], ' go'),
    ],
    "other": [
        ([' rapid', ' trans'], [' rapid', ' trans', ' rapid'], ' trans'),
        ([' a', ' rapid'], [' trans', ' rapid'], ' trans'),
        ([' rapid', ' trans'], [' rapid', ' trans', ' and', ' rapid'], ' trans'),
        ([' go', ' go'], [' go', ' go'], ' go'), ([], [' rapid', ' trans', ' rapid'], ' trans'),
        ([' bike', ' was'], [' bike', ' of'], ' bike'), (['.', ' Bike'], [' under'], '.'),
        (['\n', ' Bike'], [' under'], '\n'), ([' $', ' Bike'], [' under'], ' $'), (['�', ' Bike'], [' under'], '�'),
        ([' bike', ' was'], [' the'], ' bikes'),
    ],
    "repeat": [
        ([' rapid', ' a', ' trans'], [' rapid'], ' trans'), ([' trans', ' rapid'], [' rapid'], ' trans'),
        ([' rapid', ' trans'], [], ' trans'), ([' bike', ' was'], [' the', ' man', "'s"], ' bike'),
        (['ow', ' a'], [' b'], 'ow'), (['in', ' a'], [' prote'], 'in'), ([' s', ' a'], [' big'], ' s'),
        ([' Lee', ' met'], [' with', ' Ann'], ' Lee'), (['19', ' the'], [' in', ' '], '19'),
    ],
    "function-word": [
        ([' the', ' bike'], [' under'], ' the'), ([' The', ' bike'], ['.', ' '], ' The'),
    ],
    "continues-word": [
        (['ing', ' a'], [' pull'], 'ing'), (['’s', ' a'], [' man'], '’s'),
    ],
}  # fmt: skip


@pytest.mark.parametrize("expected", CLASSES)
def test_classes_of_hand_written_windows(expected: str) -> None:
    assert [case for case in AFTER_LOCAL.get(expected, []) if local_class(*case) != expected] == []
    assert [case for case in AFTER_BOTH.get(expected, []) if class_of(*case) != expected] == []


@pytest.mark.parametrize("ending", "s es d ed ing 's 't 're 've 'll 'd 'm n't ’s ’ll n’t S ING".split())  # noqa: SIM905
def test_endings_of_words_are_no_repetitions(ending: str) -> None:
    assert class_of([ending, " a"], [" b"], ending) == "continues-word"
    assert class_of([f"x{ending}", " a"], [" b"], f"x{ending}") == "repeat"


def test_marks_before_a_name_and_ends_of_sentences() -> None:
    """White space, quotation marks and brackets hide no end of a sentence, and end none themselves."""
    for mark in " \t\u00a0\"'`“”‘’«»()[]{}":
        assert local_class([" went", ".", mark], "London") == "other"
        assert local_class([" went", mark], "London") != "other"
    for end in ".!?:\n\r\u2028\u2029":
        assert local_class([" went", end], " London") == "other"
    for other in ",;-%…":
        assert local_class([" went", other], " London") == "name"


def test_the_first_matching_class_wins() -> None:
    """A target that fits two classes gets the earlier one."""
    assert class_of([" (", ")"], [" ("], ")") == "induction"  # and closing
    assert class_of([" in", " London", " in"], [" near"], " London") == "repeat"  # and name
    assert class_of([" in", " London", " in"], [" from", " in"], " London") == "induction"  # and repeat
    assert class_of([" 7)", " a"], [" of"], " 7)") == "repeat"
    assert class_of([")", " a"], [" of"], ")") == "closing"  # punctuation is no repeat
    assert local_class([" and"], " It") == "name"  # and function-word


def test_the_documentation_defines_every_class() -> None:
    page = (Path(__file__).parents[2] / "docs" / "method.md").read_text(encoding="utf-8")
    assert [name for name in CLASSES if f"| `{name}` | " not in page] == []
