"""Rotary positions scaled for longer contexts than those of training, as transformers has them.

``linear`` divides the frequencies (Chen et al. 2023, arXiv 2306.15595); ``yarn`` divides those that turn less than once in a row
of training, and sharpens the attention (Peng et al. 2023, arXiv 2309.00071).
"""

from __future__ import annotations

from typing import Any, Optional

from olmo_sparsity.errors import UserError

SLIDING = "sliding_attention"  # layers that see no farther than their window have no longer contexts
BY_LENGTH = ("dynamic", "longrope")  # scalings that depend on the length of texts beyond the original positions


def rope_parameters(config: Any) -> Optional[dict[str, Any]]:
    """Return the rotary parameters of a model's configuration; None: it has no rotary positions."""
    return getattr(config.get_text_config(decoder=True), "rope_parameters", None) or None


def scale(config: Any, *, name: str, method: str, factor: float, row_len: Optional[int]) -> None:
    """Set the scaling of rotary positions in a model's configuration, before the model is built.

    Args:
        config: of transformers; it is changed.
        name: of the model, for messages.
        method: ``linear`` or ``yarn``.
        factor: by which the context grows.
        row_len: tokens of a row of training; None: as many as the configuration has positions.

    Raises:
        UserError: the model has no rotary positions, or its own are scaled already.
    """
    text_config, parameters = config.get_text_config(decoder=True), rope_parameters(config)
    asked = f"pretrained.rope_scaling = {method}"
    if parameters is None:
        raise UserError(f"{name}: {asked}: such a model ({type(config).__name__}) has no rotary positions to scale")
    for entry in _entries(text_config, parameters):
        own = entry.get("rope_type", "default")
        if own != "default":
            raise UserError(
                f"{name}: {asked}: its rotary positions are scaled already ({own}); leave them as they are (none)"
            )
        entry.update(rope_type=method, factor=factor)
        if method == "yarn":
            entry["original_max_position_embeddings"] = row_len or text_config.max_position_embeddings


def _entries(text_config: Any, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rotary parameters of the layers without a window."""
    nested = text_config.nested_rope_parameter_keys(parameters)
    return [parameters[key] for key in nested if key != SLIDING and parameters[key]] if nested else [parameters]


def original_positions(config: Any) -> Optional[int]:
    """Return the positions beyond which a model's own frequencies would depend on the length of the text; None: none."""
    text_config, parameters = config.get_text_config(decoder=True), rope_parameters(config)
    if parameters is None:
        return None
    positions = [
        entry.get("original_max_position_embeddings") or text_config.max_position_embeddings
        for entry in _entries(text_config, parameters)
        if entry.get("rope_type") in BY_LENGTH
    ]
    return min(positions, default=None)


def check_scaled(model: Any, *, name: str, method: str) -> None:
    """Check that a model that was built from a scaled configuration has scaled positions.

    Raises:
        UserError: its code takes no notice of the scaling.
    """
    if method not in _scalings(model):
        raise UserError(
            f"{name}: pretrained.rope_scaling = {method}: transformers does not scale the positions of such a model "
            f"({type(model).__name__})"
        )


def _scalings(model: Any) -> list[str]:
    """Return the kinds of scaling of the tables of rotary frequencies of a model."""
    found: list[str] = []
    for module in model.modules():
        config = getattr(module, "config", None)
        parameters = rope_parameters(config) if hasattr(config, "get_text_config") else None
        if parameters is None or not hasattr(module, "rope_type"):
            continue
        if isinstance(module.rope_type, dict):
            found += [parameters[layer]["rope_type"] for layer in module.rope_type]
        elif hasattr(module, "inv_freq"):
            found.append(parameters.get("rope_type", "default"))
    return found
