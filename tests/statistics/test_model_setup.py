"""What a measurement was taken of, as its manifest records it, and the sentences about it."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, Optional

import pytest
from made_up import ANCHOR_CHECK, CONTEXTUAL, MODEL, PRETRAINED, made_up_tables
from planted_gains import made_up, mean

from olmo_sparsity.records.measured import Anchor, ModelRecord
from olmo_sparsity.statistics.single.measurement import OF_ROW, Lengths, load
from olmo_sparsity.statistics.single.model_setup import ModelSetup, subject_name, subject_names
from olmo_sparsity.statistics.single.summary import SELECTION_QUANTITIES, Summary, summarize
from olmo_sparsity.view.as_json import setup_json, summary_json
from olmo_sparsity.wording.comparison import setup_differences
from olmo_sparsity.wording.gates import (
    SELECTION_ONLY,
    beyond_gate_words,
    gates_not_passed,
    gates_words,
)
from olmo_sparsity.wording.setup import (
    UNKNOWN_TRAINING_TEXT,
    VISIBILITY_WORDS,
    anchor_warning,
    length_words,
    measured_words,
    overlap_words,
    setup_words,
    short_anchor_warning,
    subject_words,
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return summarize(load(made_up_tables(tmp_path_factory.mktemp("pretrained") / "tables", setup=CONTEXTUAL)))


def checked(chosen: str, **changes: Any) -> ModelSetup:
    """Return the setup of a measurement with or without the anchor, whose check of the first token found this."""
    manifest: dict[str, Any] = copy.deepcopy(CONTEXTUAL)
    manifest["anchor"] = CONTEXTUAL["anchor"] if chosen == "bos" else None
    manifest["fit"]["anchor"] = {**ANCHOR_CHECK, "chosen": chosen, **changes}
    return ModelSetup.from_manifest(manifest)


def test_a_manifest_without_a_setup_is_of_a_run_with_hidden_tokens_and_no_anchor() -> None:
    setup = ModelSetup.from_manifest({"run": "demo"})
    assert setup == ModelSetup(model=None, visibility="hidden", anchor=None, anchor_check=None)
    shown = {"model": None, "visibility": "hidden", "anchor": None, "anchor_warning": None}
    assert setup_json(setup) == {**shown, "precision": None}


def test_the_setup_of_a_pretrained_model_is_read_to_its_place(pretrained: Summary) -> None:
    setup = pretrained.setup
    assert setup.model == ModelRecord(**MODEL)
    assert (setup.visibility, setup.anchor) == ("contextual", Anchor(7, "<bos>"))
    assert setup.anchor_check is not None and setup.anchor_check.loss_long_nats == {"bos": 3.2912, "none": 2.5493}
    shown = setup_json(setup)
    assert shown["model"]["weights_sha256"] == MODEL["weights_sha256"]
    assert (shown["visibility"], shown["anchor"]) == ("contextual", {"id": 7, "text": "<bos>"})


def test_a_model_is_named_with_its_form_its_definition_and_its_anchor(pretrained: Summary) -> None:
    words = measured_words(pretrained)
    named = "Model someone/Made-Up-2M (2.346M parameters, bfloat16, revision main-commit, weights 0123456789ab)"
    assert words.startswith(f"{named}; visibility contextual ({VISIBILITY_WORDS['contextual']}); ")
    assert words.endswith('anchor "<bos>" (a first token that is always visible)')
    assert "the local tokens see only the chosen ones" in words and "seen by no one" not in words
    of_run = measured_words(summarize(made_up(60, 0.5)))
    assert of_run == "Run r; visibility hidden (a hidden token is seen by no one); no anchor"


def setup_of(path: str) -> ModelSetup:
    return ModelSetup.from_manifest({**PRETRAINED, "model": {**MODEL, "name": path, "revision": None}})


def test_a_model_given_by_its_path_is_named_by_the_end_of_it() -> None:
    """The manifest keeps the path. Two models with one name are named as they were given, and so can be told apart."""
    for path, name in (
        ("/models/a/SmolLM2-135M", "SmolLM2-135M"),
        ("data/SmolLM2.Q4_1.gguf", "SmolLM2.Q4_1.gguf"),
        ("runs/demo/checkpoints/step400", "demo-step400"),
        ("runs/demo/checkpoints/latest", "demo-latest"),
        ("demo/step400", "demo-step400"),
        ("checkpoints/latest", "checkpoints-latest"),
        ("latest", "latest"),
        (".", "."),
    ):
        setup = setup_of(path)
        assert setup.model is not None and setup_json(setup)["model"]["name"] == path
        assert subject_name("r", setup) == name
        assert subject_words("r", setup).startswith(f"model {name} (")
    hub = ModelSetup.from_manifest(PRETRAINED)
    assert subject_name("r", hub) == "someone/Made-Up-2M"
    alike = [("r", setup_of("a/model")), ("r", setup_of("b/model")), ("r", setup_of("b/model")), ("r", setup_of("c"))]
    assert subject_names([*alike, ("run", hub)]) == ["a/model", "b/model", "b/model", "c", "someone/Made-Up-2M"]
    assert subject_names(alike[1:]) == ["model", "model", "c"]
    run = ModelSetup.from_manifest({"run": "c"})
    assert subject_names([("c", run), ("r", setup_of("x/c"))]) == ["c", "x/c"]


SHORT = "the mean loss with the local tokens alone is lower"
LONG = "the mean loss with all tokens visible is lower"


@pytest.mark.parametrize(
    ("chosen", "short", "long", "said"),
    [
        ("bos", "none", "none", (SHORT, LONG)),
        ("bos", "none", None, (SHORT,)),
        ("bos", "none", "bos", (SHORT,)),
        ("bos", None, "none", (LONG,)),
        ("none", "bos", None, (SHORT,)),
        ("none", "bos", "bos", (SHORT, LONG)),
        ("bos", "bos", "bos", ()),
        ("bos", "bos", None, ()),
        ("none", None, "none", ()),
        ("bos", None, None, ()),
    ],
)
def test_the_anchor_is_warned_about_where_a_mean_is_lower_with_the_other_choice(
    chosen: str, short: Optional[str], long: Optional[str], said: tuple[str, ...]
) -> None:
    setup = checked(chosen, lower_with={"short": short, "long": long})
    words = anchor_warning(setup)
    by = "without an anchor" if chosen == "bos" else 'with the anchor "<bos>"'
    of = {
        SHORT: f"{SHORT} {by} (3.8650 nats with it, 3.2000 nats without it, 64 windows; standard error of the difference 0.2345)",
        LONG: f"{LONG} {by} (3.2912 nats with it, 2.5493 nats without it, 64 windows; standard error of the difference 0.1234)",
    }
    expected = (
        "WARNING: this measurement is not of the better first token: " + ", and ".join(of[one] for one in said) + "."
    )
    assert words == (expected if said else "")
    assert short_anchor_warning(setup) == ("WARNING: not of the better first token." if said else "")
    assert setup_json(setup)["anchor_warning"] == (words or None)


def test_without_a_check_there_is_no_warning() -> None:
    assert anchor_warning(ModelSetup.from_manifest({**CONTEXTUAL, "fit": None})) == ""
    assert anchor_warning(ModelSetup.from_manifest({**CONTEXTUAL, "fit": {"checks": [], "anchor": None}})) == ""


def test_a_pretrained_model_has_no_training_row(pretrained: Summary, tmp_path: Path) -> None:
    """Neither loss, gain, gate nor sentence says anything about one; the first gate is as ever."""
    assert pretrained.lengths == Lengths(local_len=8, full_len=20, num_long_range=12)
    assert (pretrained.gate, pretrained.beyond_gate) == ("passed", "not-applicable")
    assert pretrained.loss_train_len_nats is None and pretrained.gain_beyond_nats is None
    shown = summary_json(pretrained)
    assert [shown[key] for key in (*OF_ROW, "train_len")] == [None, None, None]
    assert shown["beyond_gate"] == "not-applicable"
    words = beyond_gate_words(pretrained)
    assert words.startswith("The gate beyond the training row does not apply: no training row of this model is known")
    assert "about selection: how little of the long context gives back the long gain" in words
    assert words.endswith("it shows nothing about length generalization.")
    assert length_words(pretrained.lengths) == (
        "local 8 + long-range 12 = full 20 tokens; no training row of this model is known."
    )
    said = gates_words(pretrained)
    assert "FAILED" not in said and SELECTION_ONLY not in said and gates_not_passed(pretrained) == []
    weak = summarize(load(made_up_tables(tmp_path / "weak", setup=PRETRAINED, long_gain=-0.5)))
    assert (weak.gate, weak.beyond_gate) == ("failed", "not-applicable")
    assert [words.split(":")[0] for words in gates_not_passed(weak)] == ["GATE FAILED"]


def test_the_other_numbers_of_a_pretrained_model_are_those_of_a_run(pretrained: Summary, tmp_path: Path) -> None:
    of_run = summarize(load(made_up_tables(tmp_path / "run")))
    assert pretrained.long_gain_nats == of_run.long_gain_nats
    for entry, expected in zip(pretrained.selections, of_run.selections, strict=True):
        assert (entry.key, entry.info) == (expected.key, expected.info)
        for name in SELECTION_QUANTITIES:
            assert (entry.estimate(name) is None) == (expected.estimate(name) is None)
            assert entry.estimate(name) is None or mean(entry.estimate(name)) == mean(expected.estimate(name))


def test_what_the_model_was_trained_on_is_unknown(pretrained: Summary) -> None:
    assert pretrained.overlap_percent is None and overlap_words(pretrained) == UNKNOWN_TRAINING_TEXT
    assert summary_json(pretrained)["overlap_words"] == UNKNOWN_TRAINING_TEXT
    of_run = dataclasses.replace(summarize(made_up(60, 0.5)), overlap_percent=None)
    assert overlap_words(of_run) == summary_json(of_run)["overlap_words"] == ""


def test_scaled_positions_are_named_wherever_the_setup_is() -> None:
    assert ModelSetup.from_manifest(PRETRAINED).label == "hidden, no anchor"
    scaled = ModelSetup.from_manifest({**PRETRAINED, "model": {**MODEL, "rope_scaling": "yarn:4"}})
    assert "revision main-commit, RoPE scaling yarn:4, weights" in setup_words("r", scaled)
    assert subject_name("r", scaled) == "someone/Made-Up-2M yarn:4"
    (words,) = setup_differences(ModelSetup.from_manifest(PRETRAINED), scaled)
    assert "the models differ (someone/Made-Up-2M, bfloat16, " in words and "Made-Up-2M yarn:4, bfloat16" in words


def test_in_what_setups_differ() -> None:
    hidden, contextual = ModelSetup.from_manifest(PRETRAINED), ModelSetup.from_manifest(CONTEXTUAL)
    assert setup_differences(hidden, hidden) == setup_differences(contextual, contextual) == []
    words = "; ".join(setup_differences(hidden, contextual))
    assert "visibility differs (hidden, contextual)" in words and "R(k) and D(k) are different quantities" in words
    assert 'the first token differs (no anchor, anchor "<bos>")' in words and "models differ" not in words
    same_anchor = dataclasses.replace(contextual, visibility="hidden")
    assert "first token" not in "; ".join(setup_differences(same_anchor, contextual))
    assert hidden.model is not None
    other = dataclasses.replace(hidden, model=dataclasses.replace(hidden.model, dtype="float32"))
    (words,) = setup_differences(hidden, other)
    assert words.startswith("the models differ (") and "bfloat16" in words and "float32" in words
    assert "visibility" not in words
    exact, rounded = (ModelSetup.from_manifest({"precision": name}) for name in ("fp32", "bf16"))
    assert setup_differences(exact, exact) == setup_differences(rounded, rounded) == []
    (words,) = setup_differences(rounded, exact)
    assert words.startswith("precision differs (bf16, fp32): ") and "fewer targets count as within them" in words
