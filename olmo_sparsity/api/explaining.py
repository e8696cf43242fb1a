"""Explains one place of one document: which earlier tokens matter for the token that stands there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from olmo_sparsity.api.arguments import typed
from olmo_sparsity.api.chosen_windows import find_place, window_before
from olmo_sparsity.api.measuring import measured_tables
from olmo_sparsity.api.opening import Model, settings_of_text
from olmo_sparsity.config.measuring import check_one_set
from olmo_sparsity.records.own_selectors import names_of
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.text.places import EncodedText, TargetPlace, several_places_words
from olmo_sparsity.view.excerpts import excerpt_of_rows
from olmo_sparsity.view.explanation import Explanation
from olmo_sparsity.view.one_window import ShownWindow
from olmo_sparsity.wording.setup import setup_words


@typed
def explain(
    model: Model,
    text: str,
    *,
    at: Optional[int] = None,
    target: Optional[str] = None,
    selectors: Sequence[Any] = ("kl",),
    k: Optional[Sequence[int]] = None,
    seed: Optional[int] = None,
    source: str = "text",
    unit: Optional[str] = None,
) -> Explanation:
    """Measure the one window before a place of a text, with the numbers that ``measure`` gives for ``window_at`` alone.

    Among many windows it has the same losses, scores and choices, except of selectors that read how often tokens occur: here in
    this text alone. What is drawn by the seed and the number of the window, which is 0 here, is another draw there: `random`, the
    visible sets of `lasso`, and resampled targets with the optimism.

    The null context is text from elsewhere in the document where it fits beside the window; otherwise the long-range tokens in
    random order. Resampled targets give the optimism of selectors that see the target. Candidates are never screened.

    Args:
        model: the model; its lengths are those of the window.
        text: one document.
        at: index of a character; the token that holds it is the target.
        target: what the target begins, in place of ``at``: the first token that begins this text and follows a full window.
        selectors: whose choices to explain, as those of ``measure``; `random` is measured beside them.
        k: numbers of visible tokens, or groups of them, rising; the largest is shown. None: those of the model's configuration,
            as far as they leave some long-range tokens out.
        seed: of `random`, of the null context and of the resampled targets; None: that of the configuration.
        source: name of the text.
        unit: what is unmasked and counted: ``token``, ``word``, ``sentence`` or ``block:N``; None: that of the configuration.

    Returns:
        An explanation, which notebooks show; ``to_html``, ``save_html`` and ``to_json`` write it. Losses are in nats.

    Raises:
        UserError: there is no such place, or a selector or k is not possible.
    """
    found = find_place(model, text, at=at, target=target)
    return explain_found(model, found, target=target, selectors=selectors, k=k, seed=seed, source=source, unit=unit)


def explain_found(
    model: Model,
    found: tuple[EncodedText, TargetPlace],
    *,
    target: Optional[str],
    selectors: Sequence[Any],
    k: Optional[Sequence[int]] = None,
    seed: Optional[int] = None,
    source: str = "text",
    unit: Optional[str] = None,
) -> Explanation:
    """As ``explain``, of a text that is encoded, and a place that was found in it (``target``: by this piece of text)."""
    encoded, place = found
    selectors = names_of(selectors)
    check_one_set(selectors, "explain")
    draws = model.config.influence.resampled_draws
    settings = settings_of_text(model, selectors, k=k, seed=seed, unit=unit, resampled_draws=draws)
    windows = window_before(model, encoded, place=place, seed=settings.seed, source=source)
    tables, manifest = measured_tables(model, windows, settings=settings)
    setup = ModelSetup.from_manifest(manifest)
    measured = setup_words(manifest["run"], setup)
    (window_row,) = tables["windows"].to_pylist()
    selection_rows = tables["selections"].to_pylist()
    excerpt = excerpt_of_rows(window_row, selection_rows, tokenizer=model.tokenizer)
    ks = settings.k
    return Explanation(
        source=source,
        offset=encoded.begin_of(place.token),
        run=manifest["run"],
        setup=setup,
        note=None if target is None else several_places_words(encoded, place, target),
        null_context=windows.null_contexts.kinds[0],
        windows=tuple(
            ShownWindow(
                excerpt,
                name,
                SELECTORS[name].sees_target,
                "real",
                ks[-1],
                ks,
                settings.unit,
                setup.visibility,
                model.lengths.local_len,
                measured,
            )
            for name in dict.fromkeys(selectors)
        ),
        window_row=window_row,
        selection_rows=selection_rows,
    )
