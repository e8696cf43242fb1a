"""Rotary positions scaled for longer contexts than those of training, as transformers has them.

``linear`` divides the frequencies (Chen et al. 2023, arXiv 2306.15595); ``yarn`` divides those that turn less than once in a row
of training, and sharpens the attention (Peng et al. 2023, arXiv 2309.00071); ``dynamic`` (dynamic NTK) raises the base with the
length of the text, once it is longer than a row.
"""

from __future__ import annotations

import copy
from typing import Any, Optional

import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.olmo import OLMoWithPositions

SLIDING = "sliding_attention"  # layers that see no farther than their window have no longer contexts
BY_LENGTH = ("dynamic", "longrope")  # scalings that depend on the length of the text


def rope_parameters(config: Any) -> Optional[dict[str, Any]]:
    """Return the rotary parameters of a model's configuration; None: it has no rotary positions."""
    return getattr(config.get_text_config(decoder=True), "rope_parameters", None) or None


def scale(config: Any, *, name: str, method: str, factor: float, row_len: Optional[int]) -> None:
    """Set the scaling of rotary positions in a model's configuration, before the model is built.

    Args:
        config: of transformers; it is changed.
        name: of the model, for messages.
        method: ``linear``, ``dynamic`` or ``yarn``.
        factor: by which the context grows.
        row_len: tokens of a row of training; None: as many as the configuration has positions.

    Raises:
        UserError: the model has no rotary positions, or its own are scaled already.
    """
    text_config, parameters = config.get_text_config(decoder=True), rope_parameters(config)
    asked = f"pretrained.rope_scaling = {method}"
    if parameters is None:
        raise UserError(f"{name}: {asked}: such a model ({type(config).__name__}) has no rotary positions to scale")
    nested = text_config.nested_rope_parameter_keys(parameters)
    entries = [parameters[key] for key in nested if key != SLIDING and parameters[key]] if nested else [parameters]
    for entry in entries:
        own = entry.get("rope_type", "default")
        if own != "default":
            raise UserError(
                f"{name}: {asked}: its rotary positions are scaled already ({own}); leave them as they are (none)"
            )
        entry.update(rope_type=method, factor=factor)
        if method == "yarn":
            entry["original_max_position_embeddings"] = row_len or text_config.max_position_embeddings
    if method == "dynamic" and row_len is not None:
        text_config.max_position_embeddings = row_len  # from which the base grows


def check_scaled(model: Any, *, name: str, method: str) -> None:
    """Check that a model that was built from a scaled configuration has scaled positions.

    Raises:
        UserError: its code takes no notice of the scaling.
    """
    kinds = [kind for _, _, kind in _rotary_tables(model)]
    if method not in kinds:
        raise UserError(
            f"{name}: pretrained.rope_scaling = {method}: transformers does not scale the positions of such a model "
            f"({type(model).__name__})"
        )


def with_scaled_rotation(model: OLMoWithPositions, *, method: str, factor: float, row_len: int) -> OLMoWithPositions:
    """Return a copy of an OLMo whose rotary positions are scaled.

    Args:
        model: the model; its positions are rotary.
        method: ``linear`` or ``yarn``.
        factor: by which the context grows.
        row_len: tokens of a row of training, which ``yarn`` asks for.
    """
    parameters = {"rope_type": method, "rope_theta": float(model.config.rope_theta), "factor": factor}
    if method == "yarn":
        parameters["original_max_position_embeddings"] = row_len
    config = PreTrainedConfig(
        hidden_size=model.config.d_model,
        num_attention_heads=model.config.n_heads,
        max_position_embeddings=row_len,
        rope_parameters=parameters,
    )
    frequencies_e, sharpness = ROPE_INIT_FUNCTIONS[method](config, model.device)
    ids_P = torch.arange(model.max_position, device=model.device, dtype=torch.float)
    angles_PE = torch.outer(ids_P, frequencies_e).repeat(1, 2)
    scaled = copy.deepcopy(model)
    scaled._sin, scaled._cos = sharpness * angles_PE.sin(), sharpness * angles_PE.cos()
    return scaled


class LengthDependentFrequencies:
    """The rotary frequencies of a model that depend on the length of the text (dynamic NTK, LongRoPE).

    Under dynamic NTK transformers sets them anew where a forward pass is longer than all before it, and keeps them for shorter
    ones, so that its results depend on what was run before. Here they are a function of the last position ID of each pass, or of
    the length of the text that a pass begins. LongRoPE has other frequencies for texts that are longer than a row of training.
    """

    def __init__(self, model: Any):
        """Take over the frequencies of a model; most have none that depend on the length."""
        self._tables = [table for table in _rotary_tables(model) if table[-1] in BY_LENGTH]
        for module, layer, _ in self._tables:  # so that transformers leaves them alone
            module.rope_type = "default" if layer is None else {**module.rope_type, layer: "default"}

    @property
    def is_used(self) -> bool:
        """Whether the model has any."""
        return bool(self._tables)

    @torch.no_grad()
    def set_for(self, positions_BT: torch.Tensor, *, text_len: Optional[int]) -> None:
        """Set the frequencies for rows, whose last position IDs are alike; ``text_len``: for texts at least so long."""
        if not self._tables:
            return
        length = max(int(positions_BT.max()) + 1, text_len or 0)
        for module, layer, kind in self._tables:
            options = {} if layer is None else {"layer_type": layer}
            frequencies_e, _ = ROPE_INIT_FUNCTIONS[kind](module.config, None, seq_len=length, **options)
            getattr(module, "inv_freq" if layer is None else f"{layer}_inv_freq").copy_(frequencies_e)


def _rotary_tables(model: Any) -> list[tuple[Any, Optional[str], str]]:
    """Return (module, kind of layer or None for all, kind of scaling) of each table of rotary frequencies of a model."""
    found: list[tuple[Any, Optional[str], str]] = []
    for module in model.modules():
        config = getattr(module, "config", None)
        parameters = rope_parameters(config) if hasattr(config, "get_text_config") else None
        if parameters is None or not hasattr(module, "rope_type"):
            continue
        if isinstance(module.rope_type, dict):
            found += [(module, layer, parameters[layer]["rope_type"]) for layer in module.rope_type]
        elif hasattr(module, "inv_freq"):
            found.append((module, None, parameters.get("rope_type", "default")))
    return found
