"""Opens a checkpoint folder in OLMo's layout, one of a run of this package or one that OLMo's own trainer wrote.

Both hold ``config.yaml`` and ``model.pt``. One of this package has the hashes of its files beside them, and its tokenizer in the
folder of the run, whose configuration tells whether a BOS stood before its rows. One of OLMo's names its tokenizer, which comes
with the package ``ai2-olmo``.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import olmo_data
import torch
import yaml
from olmo.exceptions import OLMoError
from omegaconf.errors import OmegaConfBaseException

from olmo_sparsity.config.files import load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import build_loaded_model, check_checkpoint_of_run, load_model, read_model_config
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.storage.folders import manifest_of_kind
from olmo_sparsity.storage.manifests import read_config_of, tokenizer_of_run

logger = logging.getLogger(__name__)

# What OLMoWithPositions and its step-by-step layers compute; OLMo's configuration class has the same defaults.
COMPUTED: dict[str, tuple[Any, ...]] = {
    "rope": (True,),
    "rope_full_precision": (True, None),
    "block_type": ("sequential", None),
    "block_group_size": (1, None),
    "norm_after": (False, None),
    "alibi": (False, None),
    "clip_qkv": (None,),
    "multi_query_attention": (False, None),
    "embedding_layer_norm": (False, None),
    "scale_logits": (False, None),
    "include_bias": (False,),
}


@dataclass(frozen=True)
class OpenedCheckpoint:
    """The model of a checkpoint, in fp32.

    Attributes:
        model: the model.
        tokenizer_text: the text of its ``tokenizer.json``.
        rows_have_bos: whether a BOS stood before every row of its training; None: not known.
    """

    model: OLMoWithPositions
    tokenizer_text: str
    rows_have_bos: Optional[bool]


def is_checkpoint(folder: Path) -> bool:
    """Return True if a folder has the layout of an OLMo checkpoint."""
    return (folder / "config.yaml").is_file() and (folder / "model.pt").is_file()


def open_checkpoint(folder: Path, device: torch.device, *, max_position: Optional[int] = None) -> OpenedCheckpoint:
    """Load the model and the tokenizer of a checkpoint.

    Files of this package's checkpoints are compared with their hashes, and where the checkpoint lies in its run, it and the
    tokenizer with the manifest of the run. Those of OLMo's have no hashes; there the names and shapes of the weights are
    compared with the configuration.

    Args:
        folder: of the checkpoint.
        device: where the model goes.
        max_position: position IDs lie below this, of rotary positions; None: below that of training.

    Raises:
        UserError: a file is damaged, of another run, holds more than tensors, or describes a model that is not computed here;
            the manifest of the run is not usable.
    """
    run = _run_of(folder)
    manifest = manifest_of_kind(run, "run") if run is not None and (run / "manifest.json").is_file() else None
    if run is not None and manifest is not None:
        check_checkpoint_of_run(folder.resolve(), manifest)
        tokenizer_text = tokenizer_of_run(run, manifest).read_text(encoding="utf-8")
        model = load_model(folder, device, max_position=max_position)
        return OpenedCheckpoint(model, tokenizer_text, read_config_of(run).context.bos)
    load = load_model if (folder / "train.json").is_file() else _load_foreign
    model = load(folder, device, max_position=max_position)
    return OpenedCheckpoint(model, _tokenizer_text(folder, run), _rows_have_bos(run))


def _load_foreign(folder: Path, device: torch.device, *, max_position: Optional[int] = None) -> OLMoWithPositions:
    raw = read_model_config(folder)
    if max_position is not None:
        raw["max_sequence_length"] = max_position
    for key, computed in COMPUTED.items():
        if raw.get(key) not in computed:
            raise UserError(
                f"{folder / 'config.yaml'}: model.{key} = {raw.get(key)}: such an OLMo is not computed here; give its Hugging "
                "Face version instead"
            )
    if raw.get("n_kv_heads") not in (None, raw.get("n_heads")):
        raise UserError(
            f"{folder / 'config.yaml'}: model.n_kv_heads = {raw['n_kv_heads']}: an OLMo whose heads share keys is not computed "
            "here; give its Hugging Face version instead"
        )
    try:
        return build_loaded_model(folder, raw | {"init_device": "cpu", "flash_attention": False}, device=device)
    except (
        RuntimeError,
        OmegaConfBaseException,
        OLMoError,
        AttributeError,
        TypeError,
        ValueError,
        ArithmeticError,
    ) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{folder}: its weights and its config.yaml do not belong together ({lines[-1].strip()[:160]})"
        ) from None


def _run_of(folder: Path) -> Optional[Path]:
    """Return the folder of the run whose checkpoint this is; None: it is no run's of this package, or lies elsewhere."""
    run = folder.resolve().parent.parent
    return run if (folder / "train.json").is_file() and (run / "tokenizer.json").is_file() else None


def _rows_have_bos(run: Optional[Path]) -> Optional[bool]:
    """Return whether a run was trained with a BOS before its rows; None: its configuration cannot be read."""
    if run is None or not (run / "config.yaml").is_file():
        return None
    try:
        return load_config(run / "config.yaml").context.bos
    except UserError as error:  # the weights can be measured without it
        logger.warning(f"{error}; so it is not known whether rows began with a BOS: influence.anchor says so")
        return None


def _tokenizer_text(folder: Path, run: Optional[Path]) -> str:
    """Return the text of the tokenizer: the run's, or the one that ``config.yaml`` names.

    Raises:
        UserError: there is none.
    """
    if run is not None:
        return (run / "tokenizer.json").read_text(encoding="utf-8")
    content = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    section = content.get("tokenizer")
    identifier = str(section.get("identifier") if isinstance(section, dict) else None)
    # Older checkpoints name the tokenizer as on the hub; ai2-olmo brings it under a similar name.
    name = identifier if identifier.endswith(".json") else f"tokenizers/{identifier.replace('/', '_')}.json"
    if re.fullmatch(r"tokenizers/[\w.-]+\.json", name):
        with olmo_data.get_data_path(name) as path:
            if path.is_file():
                return path.read_text(encoding="utf-8")
    raise UserError(
        f"{folder}: no tokenizer: neither tokenizer.json in the folder of its run, nor one of ai2-olmo in config.yaml "
        f"(tokenizer.identifier = {identifier})"
    )
