"""Sentences about what was measured: the model or run, whose mean, the definition of visible, the first token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from olmo_sparsity.statistics.measurement import Estimand, Lengths
from olmo_sparsity.statistics.model_setup import Anchor, MeasuredModel, ModelSetup, Screening, Visibility

DIGITS = 12  # of the commit on the hub, and of the weights' hash
# Who sees what under each definition.
VISIBILITY_WORDS: dict[Visibility, str] = {
    "hidden": "a hidden token is seen by no one",
    "contextual": "the long-range tokens see one another, the local tokens see only the chosen ones",
}
ESTIMAND_WORDS: dict[Estimand, str] = {
    "targets": "mean over eligible targets",
    "documents": "mean over documents",
    "given": "mean over the given windows",
}
UNKNOWN_TRAINING_TEXT = "Whether the model was trained on this text is unknown."


def estimand_words(estimand: Estimand, lengths: Lengths) -> str:
    """Return whose mean the numbers are, and which targets are eligible where ``influence.min_preceding`` says so."""
    preceding = lengths.min_preceding
    eligible = "" if preceding is None else f" (at least {preceding} tokens before each target)"
    return f"{ESTIMAND_WORDS[estimand]}{eligible}"


def subject_name(run: str, setup: ModelSetup) -> str:
    """Return the short name of the pretrained model, or the name of the run."""
    return run if setup.model is None else setup.model.short_name


def subject_names(subjects: Sequence[tuple[str, ModelSetup]]) -> list[str]:
    """Return the names of several runs or models, as (name of the run, setup); of models with one short name, as they were
    given."""
    names = [subject_name(run, setup) for run, setup in subjects]
    given = [run if setup.model is None else setup.model.name for run, setup in subjects]
    return [
        long if len({one for other, one in zip(names, given, strict=True) if other == name}) > 1 else name
        for name, long in zip(names, given, strict=True)
    ]


def subject_words(run: str, setup: ModelSetup) -> str:
    """Return which pretrained model was measured, in which form, or which run."""
    model = setup.model
    if model is None:
        return f"run {run}"
    revision = "" if model.revision is None else f", revision {model.revision[:DIGITS]}"
    return (
        f"model {model.short_name} ({model.num_parameters / 1e6:.4g}M parameters, {model.dtype}{revision}, "
        f"weights {model.weights_sha256[:DIGITS]})"
    )


def visibility_words(setup: ModelSetup) -> str:
    """Return the definition of visible, by name and in words."""
    return f"visibility {setup.visibility} ({VISIBILITY_WORDS[setup.visibility]})"


def anchor_words(anchor: Optional[Anchor]) -> str:
    """Return which first token is always visible, if any."""
    return _short_anchor(anchor) + ("" if anchor is None else " (a first token that is always visible)")


def _short_anchor(anchor: Optional[Anchor]) -> str:
    return "no anchor" if anchor is None else f'anchor "{anchor.text}"'


def definition_words(setup: ModelSetup) -> str:
    """Return the definition of visible and the anchor."""
    return f"{visibility_words(setup)}; {anchor_words(setup.anchor)}{_screening_words(setup.screening)}"


def _screening_words(screening: Optional[Screening]) -> str:
    """Return which candidates were scored, as the end of a sentence; empty where all were."""
    if screening is None:
        return ""
    return (
        f"; {' and '.join(screening.selectors)}: screened, only the best {screening.num_candidates} candidates by "
        f"{screening.ranking} were scored"
    )


def setup_words(run: str, setup: ModelSetup) -> str:
    """Return what was measured, the definition of visible and the anchor, as a sentence without its full stop."""
    words = f"{subject_words(run, setup)}; {definition_words(setup)}"
    return f"{words[0].upper()}{words[1:]}"


def short_setup_words(setup: ModelSetup) -> str:
    """Return the definition of visible, and whether there is an anchor, in a few words."""
    screened = "" if setup.screening is None else ", screened"
    return f"{setup.visibility}, {'no anchor' if setup.anchor is None else 'anchor'}{screened}"


def setup_difference_words(first: ModelSetup, second: ModelSetup) -> str:
    """Return in what the setups of two measurements differ and what follows, as the end of a sentence; empty if in nothing."""
    words = ""
    if first.model is not None and second.model is not None and first.model != second.model:
        words += f"; the models differ ({_short_model(first.model)}, {_short_model(second.model)})"
    if first.anchor != second.anchor:
        words += (
            f"; the first token differs ({_short_anchor(first.anchor)}, {_short_anchor(second.anchor)}), so every loss has "
            "another input"
        )
    if first.visibility != second.visibility:
        words += (
            f"; visibility differs ({first.visibility}, {second.visibility}): L_short and L_long are defined alike under both, "
            "but sparse gains, R(k) and D(k) are different quantities"
        )
    if first.screening != second.screening:
        words += "; candidates were not screened alike, so the same selector chooses otherwise"
    return words


def _short_model(model: MeasuredModel) -> str:
    return f"{model.short_name}, {model.dtype}, weights {model.weights_sha256[:DIGITS]}"


def anchor_warning(setup: ModelSetup) -> str:
    """Return that a mean loss is clearly lower with the other choice of the first token, or that neither choice is known to be
    better, in one sentence; empty where the chosen one is, or where one document cannot tell."""
    check = setup.anchor_check
    if check is None or check.standard_error_nats is None:
        return ""
    of_length = {
        "short": ("with the local tokens alone", check.loss_short_nats, check.standard_error_short_nats),
        "long": ("with all tokens visible", check.loss_long_nats, check.standard_error_nats),
    }
    by = f'with the anchor "{check.text}"' if check.other == "bos" else "without an anchor"
    lower, alike = [], []
    for length, choice in check.lower_with.items():
        visible, losses, error = of_length[length]
        with_it, without = (f"{losses[each]:.4f}" for each in ("bos", "none"))
        of_difference = f"standard error of the difference {error:.4f}"
        if choice == check.other:
            lower.append(
                f"the mean loss {visible} is lower {by} ({with_it} nats with it, {without} nats without it, "
                f"{check.num_windows:,} windows; {of_difference})"
            )
        alike.append(f"{with_it} and {without} nats {visible} ({of_difference})")
    if lower:
        return f"WARNING: this measurement is not of the better first token: {', and '.join(lower)}."
    if not check.is_undecided:
        return ""
    return (
        f'Whether the anchor "{check.text}" makes the better first token was not decided after {check.num_windows:,} windows: '
        f"the mean loss with it and without is {', '.join(alike)}."
    )


def short_anchor_warning(setup: ModelSetup) -> str:
    """Return ``anchor_warning`` in a few words, for where its numbers have no room; empty where there is none."""
    words = anchor_warning(setup)
    if words.startswith("WARNING"):
        return "WARNING: not of the better first token."
    return "The better first token was not decided." if words else ""
