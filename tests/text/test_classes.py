# ruff: noqa: RUF001  (curly quotation marks are meant)

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_sparsity.text.classes import CLASSES, FUNCTION_WORDS, INFLECTIONS, target_class


def class_of(
    long_range: Sequence[str], local: Sequence[str], target: str, *, multiplier: int = 1, offset: int = 0
) -> str:
    """Return the class of a hand-written window. Equal texts get equal token IDs."""
    texts = [*long_range, *local]
    ids = {text: i * multiplier + offset for i, text in enumerate(dict.fromkeys([*texts, target]))}
    return target_class(
        [ids[text] for text in texts],
        texts,
        target_id=ids[target],
        target_text=target,
        num_long_range=len(long_range),
    )


def local_class(local: Sequence[str], target: str) -> str:
    """Return the class of a target after local tokens, with nothing to repeat in the long range."""
    return class_of([" zzz"] * 3, local, target)


@pytest.mark.parametrize(
    ("long_range", "local", "target", "expected"),
    [
        ([" a", " rapid", " trans", "it"], [" the", " rapid"], " trans", "induction"),
        ([" rapid", " trans"], [" rapid"], " trans", "induction"),  # the whole long range, one local token
        ([" rapid", " trans"], [" trans", " rapid"], " trans", "induction"),  # the target alone may be local
        ([" of", " the"], [" made", " of"], " the", "induction"),  # function words and punctuation, too
        ([" end", "."], [" the", " end"], ".", "induction"),
        ([" rapid", " trans"], [" rapid", " trans", " rapid"], " trans", "other"),  # also in the local tokens
        ([" a", " rapid"], [" trans", " rapid"], " trans", "other"),  # across the border
        ([" rapid", " trans"], [" rapid", " trans", " and", " rapid"], " trans", "other"),
        ([" rapid", " a", " trans"], [" rapid"], " trans", "repeat"),  # both are long-range, but not side by side
        ([" trans", " rapid"], [" rapid"], " trans", "repeat"),  # the wrong way round
        ([" go", " go"], [" go"], " go", "induction"),
        ([" go", " go"], [" go", " go"], " go", "other"),
        ([" rapid", " trans"], [], " trans", "repeat"),  # nothing local that could be completed
        ([], [" rapid", " trans", " rapid"], " trans", "other"),
    ],
)
def test_induction(long_range: list[str], local: list[str], target: str, expected: str) -> None:
    assert class_of(long_range, local, target) == expected


@pytest.mark.parametrize(
    ("long_range", "local", "target", "expected"),
    [
        ([" bike", " was"], [" the", " man", "'s"], " bike", "repeat"),
        ([" bike", " was"], [" bike", " of"], " bike", "other"),  # local as well
        ([" the", " bike"], [" under"], " the", "function-word"),
        ([" The", " bike"], [".", " "], " The", "function-word"),
        ([".", " Bike"], [" under"], ".", "other"),
        (["\n", " Bike"], [" under"], "\n", "other"),
        ([" $", " Bike"], [" under"], " $", "other"),
        (["\ufffd", " Bike"], [" under"], "\ufffd", "other"),  # part of an unknown character
        (["ing", " a"], [" pull"], "ing", "continues-word"),  # inflections recur everywhere
        (["’s", " a"], [" man"], "’s", "continues-word"),
        (["ow", " a"], [" b"], "ow", "repeat"),
        (["in", " a"], [" prote"], "in", "repeat"),  # part of a word, no function word
        ([" s", " a"], [" big"], " s", "repeat"),  # begins a word, no inflection
        ([" Lee", " met"], [" with", " Ann"], " Lee", "repeat"),  # before name
        (["19", " the"], [" in", " "], "19", "repeat"),  # before number
        ([" bike", " was"], [" the"], " bikes", "other"),  # another token
    ],
)
def test_repeat(long_range: list[str], local: list[str], target: str, expected: str) -> None:
    assert class_of(long_range, local, target) == expected


@pytest.mark.parametrize("ending", "s es d ed ing 's 't 're 've 'll 'd 'm n't ’s ’ll n’t S ING".split())  # noqa: SIM905
def test_endings_of_words_are_no_repetitions(ending: str) -> None:
    assert class_of([ending, " a"], [" b"], ending) == "continues-word"
    assert class_of([f"x{ending}", " a"], [" b"], f"x{ending}") == "repeat"


@pytest.mark.parametrize(
    ("local", "target", "expected"),
    [
        ([" (", "a", " man"], ")", "closing"),
        ([" a", " man"], "),", "closing"),  # opened before the window
        ([" ex", "."], " ]", "closing"),
        ([" man"], "}", "closing"),
        ([" man"], "»", "closing"),
        ([" “", "go"], "”", "closing"),
        ([" “", "go"], ".”", "closing"),
        ([" (", "go"], "?)", "closing"),
        ([" (", "go"], "…)", "closing"),
        ([" ``", "go"], "''", "closing"),
        ([" smile"], " :)", "other"),
        ([" a"], " (", "other"),
        ([" a"], " “", "other"),
        # straight: odd and even
        ([' "', "go"], '"', "closing"),
        ([' "', " go"], ' "', "closing"),
        ([' "', "go"], '."', "closing"),
        ([' "go", he said, "', "stop"], '"', "closing"),
        ([" click"], ' "', "other"),
        ([' "', "go", '"', " and"], ' "', "other"),
        # apostrophes
        ([" don"], "'t", "continues-word"),
        ([" don"], "’t", "continues-word"),
        ([" ‘", "don"], "’t", "continues-word"),
        ([" dogs"], "'", "other"),
        ([" dogs"], "’", "other"),
        ([" the"], " ’", "other"),
        ([" ‘", "go"], "’", "closing"),
        ([" ‘", "go", "’", " the", " dogs"], "’", "other"),
        ([" ‘", "I", "’m", " here"], "’", "closing"),  # the apostrophe closed nothing
        ([" go", "."], "’", "closing"),
        ([" cafe\u0301"], "’", "other"),
        ([" go"], ".’", "closing"),
        ([" '", "go", "."], "'", "other"),
        ([], "’", "other"),
    ],
)
def test_closing(local: list[str], target: str, expected: str) -> None:
    assert local_class(local, target) == expected


@pytest.mark.parametrize(
    ("local", "target", "expected"),
    [
        ([" in"], " 2011", "number"),
        ([" 20"], "24", "number"),
        ([" covid"], "19", "number"),  # the token, not the word
        ([" cost"], " $5", "number"),
        ([" about"], " 1,000.50", "number"),
        ([" at"], " 12:30", "number"),
        ([" at"], " 5%", "number"),
        ([" about"], " 3/4", "number"),
        ([" about"], " 10-12", "number"),
        ([" about"], " 10+12", "other"),
        ([" at"], " ٣", "number"),  # digits of any script
        ([" cost"], " $", "other"),
        ([" the"], "-", "other"),
        ([" the"], " 19th", "other"),
        ([" 19"], "th", "other"),
    ],
)
def test_number(local: list[str], target: str, expected: str) -> None:
    assert local_class(local, target) == expected


@pytest.mark.parametrize(
    ("local", "target", "expected"),
    [
        ([" pull"], "ing", "continues-word"),
        ([" Mc"], "Donald", "continues-word"),  # before name
        ([" prote"], "in", "continues-word"),  # before function word
        ([" é"], "té", "continues-word"),
        ([" Моск"], "ва", "continues-word"),
        ([" don", "'"], "t", "continues-word"),
        ([" pull", ""], "ing", "continues-word"),  # an empty text between
        # combining marks: accents of a letter that is written as two characters, vowel signs
        ([" cafe\u0301"], "s", "continues-word"),
        ([" cafe\u0301’"], "s", "continues-word"),
        ([" cafe"], "\u0301s", "continues-word"),
        ([" \u0939\u093f"], "\u0928\u094d\u0926\u0940", "continues-word"),
        ([" -\u0301"], "s", "other"),
        ([" \u0301"], "\u0301", "other"),
        ([" pull"], " ing", "other"),
        ([" pull"], "\ning", "other"),
        ([" long-"], "ter", "other"),
        ([" '"], "ing", "other"),
        ([" caf\ufffd"], "s", "other"),
        ([" pull"], "\ufffd", "other"),
        ([" pull"], "", "other"),
        ([" 7"], "ing", "other"),
    ],
)
def test_continues_word(local: list[str], target: str, expected: str) -> None:
    assert local_class(local, target) == expected


@pytest.mark.parametrize(
    ("local", "target", "expected"),
    [
        ([" to"], " London", "name"),
        ([" to"], " Lond", "name"),
        ([" the"], " NASA", "name"),
        ([" in"], " Élan", "name"),
        ([" the", " ("], "NASA", "name"),
        ([" the", " Anglo", "-"], "Saxon", "name"),
        ([" in"], " May", "name"),  # before function word
        ([" to"], " london", "other"),
        ([" went", "."], " London", "other"),
        ([" went", "?", ' "', " "], "London", "other"),
        ([" went", ".)", " "], " London", "other"),
        ([" went", ":", " "], " London", "other"),
        ([" went", "\n"], "London", "other"),
        ([" went", "\n", " "], " London", "other"),
        ([" went"], "\nLondon", "other"),  # the line break is the target's own
        ([" went", "!"], " The", "function-word"),
        ([" and"], " I", "function-word"),
        ([" and"], " I'm", "other"),
        ([" and"], " I’ll", "other"),
        ([" and"], " II", "name"),
    ],
)
def test_name(local: list[str], target: str, expected: str) -> None:
    assert local_class(local, target) == expected


def test_marks_before_a_name_and_ends_of_sentences() -> None:
    """White space, quotation marks and brackets hide no end of a sentence, and end none themselves."""
    for mark in " \t\u00a0\"'`“”‘’«»()[]{}":
        assert local_class([" went", ".", mark], "London") == "other"
        assert local_class([" went", mark], "London") != "other"
    for end in ".!?:\n\r\u2028\u2029":
        assert local_class([" went", end], " London") == "other"
    for other in ",;-%…":
        assert local_class([" went", other], " London") == "name"


def test_name_with_nothing_before_it() -> None:
    assert class_of([], [], " London") == "other"
    assert class_of([""], ["", " "], "London") == "other"
    assert class_of([""], [""], "ing") == "other"


@pytest.mark.parametrize(
    ("local", "target", "expected"),
    [
        ([" man"], " the", "function-word"),
        ([" man", " ("], "the", "function-word"),
        ([" man", "."], " You", "function-word"),
        ([" built", "-"], "in", "function-word"),
        ([" man"], " cannot", "function-word"),
        ([" man"], " then,", "other"),
        ([" man"], " mountain", "other"),
        ([" man"], "", "other"),
        ([" man"], " ", "other"),
        ([" man"], "\ufffd", "other"),
        ([" man"], ",", "other"),
    ],
)
def test_function_word_and_other(local: list[str], target: str, expected: str) -> None:
    assert local_class(local, target) == expected


def test_the_first_matching_class_wins() -> None:
    """A target that fits two classes gets the earlier one."""
    assert class_of([" (", ")"], [" ("], ")") == "induction"  # and closing
    assert class_of([" in", " London", " in"], [" near"], " London") == "repeat"  # and name
    assert class_of([" in", " London", " in"], [" from", " in"], " London") == "induction"  # and repeat
    assert class_of([" 7)", " a"], [" of"], " 7)") == "repeat"
    assert class_of([")", " a"], [" of"], ")") == "closing"  # punctuation is no repeat
    assert local_class([" Mc"], "Donald") == "continues-word"  # and name
    assert local_class([" and"], " It") == "name"  # and function-word
    assert list(CLASSES) == [
        "induction",
        "repeat",
        "closing",
        "number",
        "continues-word",
        "name",
        "function-word",
        "other",
    ]


def test_lists_are_lower_case_and_definitions_are_sentences() -> None:
    assert all(word == word.lower().strip() for word in FUNCTION_WORDS | INFLECTIONS)
    assert not FUNCTION_WORDS & INFLECTIONS
    assert all(text.endswith(".") and text.count(". ") <= 1 for text in CLASSES.values())


def test_only_the_standard_library_is_imported() -> None:
    code = (
        "import sys, olmo_sparsity.text.classes; print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "\n", " the", "The", "ing", " I", "'s", "’", "‘", '"', ' "', ")", ".", ":", "7", "\ufffd"]
    ),
    st.text(max_size=4),
)


@given(
    st.lists(TEXTS, max_size=12), st.lists(TEXTS, max_size=12), TEXTS, st.sampled_from([-7, -1, 3]), st.integers(-9, 9)
)
def test_every_window_has_a_class_that_does_not_depend_on_the_ids(
    long_range: list[str], local: list[str], target: str, multiplier: int, offset: int
) -> None:
    name = class_of(long_range, local, target)
    assert name in CLASSES
    assert class_of(long_range, local, target, multiplier=multiplier, offset=offset) == name


def test_the_documentation_gives_the_definitions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "method.md").read_text(encoding="utf-8")
    for name, definition in CLASSES.items():
        assert f"| `{name}` | {definition} |" in page
