"""Opens a pretrained model: a Hugging Face folder or hub name, or a ``.gguf`` file.

No code of a model is run: ``trust_remote_code`` stays off. Weights are read from safetensors and GGUF.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional

import torch
import transformers
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import sha256_text
from olmo_sparsity.model import rope_scaling
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.devices import has_bf16_units
from olmo_sparsity.model.loaded_weights import check_loaded, check_nothing_left, gguf_read_once
from olmo_sparsity.model.model_files import ModelFiles, check_exported, download, find_files

logger = logging.getLogger(__name__)

Precision = Literal["auto", "fp32", "bf16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SAMPLE_TEXT = "The river"  # shows what a tokenizer puts in front of a text
# Key of the config.json of a run's export: whether a BOS stood before every row of training. transformers keeps it.
ROWS_HAVE_BOS = "rows_have_bos"


@dataclass(frozen=True)
class ModelRecord:
    """A pretrained model: the entry ``model`` of manifests."""

    name: str  # its folder, file or hub repository, as it was given
    revision: Optional[str]  # commit on the hub; None for files of this machine
    weights_sha256: str  # of the files with the weights, one after another in the order of their names
    architecture: str  # the name of its class
    num_parameters: int
    dtype: str  # of the weights in memory, such as bfloat16
    max_position: int  # its number of position IDs, as its configuration says
    tokenizer_sha256: str  # of the tokenizer's JSON text
    rope_scaling: Optional[str] = None  # how its rotary positions are scaled here, such as yarn:4


@dataclass(frozen=True)
class PretrainedModel:
    """A pretrained model, with its own tokenizer.

    Attributes:
        model: ready to be measured.
        tokenizer: encodes special tokens that are written out in a text as ordinary text; neither truncates nor pads.
        record: for manifests.
        bos_id: the token with which the model's texts begin: what the tokenizer puts in front of a text, else its BOS, else the
            token that ends texts.
        adds_bos: the tokenizer itself puts a token in front of a text.
        eos_token: the token that ends texts.
        can_be_longer: rows may have more position IDs than the model was made for: its positions are rotary, and a row is stated.
        rows_have_bos: of an export of a run of this package, whether ``bos_id`` stood before every row of its training; None: it
            is not known.
    """

    model: CausalLM
    tokenizer: Tokenizer
    record: ModelRecord
    bos_id: int
    adds_bos: bool
    eos_token: str
    can_be_longer: bool = False
    rows_have_bos: Optional[bool] = None

    @property
    def bos_text(self) -> str:
        """The token of ``bos_id``, as the tokenizer writes it."""
        return str(self.tokenizer.id_to_token(self.bos_id))


@dataclass(frozen=True)
class _OwnTokenizer:
    tokenizer: Tokenizer
    bos_id: int
    adds_bos: bool
    eos_token: str


def open_pretrained(
    settings: PretrainedConfig, *, device: torch.device, precision: Precision, longest: Optional[int] = None
) -> PretrainedModel:
    """Open the model that ``settings.model`` names.

    Args:
        settings: which model, and how it may be loaded.
        device: where it goes, unless ``settings.device_map`` is ``auto``.
        precision: of its weights. ``auto``: bf16 on a GPU with units for it; of an export of a run fp32, in which the run is
            measured.
        longest: position IDs of the longest row that will be run; None: the model's own. Where they are more, and
            ``settings.train_len`` is stated, those of a model with rotary positions are extended.

    Raises:
        UserError: there is no such model, or it cannot be loaded safely.
    """
    assert settings.model is not None
    name, path = settings.model, Path(os.path.expanduser(settings.model))
    if path.exists() and settings.revision is not None:
        raise UserError(
            f"pretrained.revision = {settings.revision}: {name} is here on disk; only the hub has revisions"
        )
    if path.suffix == ".gguf" and path.is_file():
        files = ModelFiles(path.parent, [path], revision=None)
        return _open_with_transformers(
            files, settings, device=device, precision=precision, longest=longest, gguf=path.name
        )
    if (path / "config.json").is_file():
        check_exported(path)
        files = find_files(path)
        return _open_with_transformers(files, settings, device=device, precision=precision, longest=longest)
    if path.exists():
        raise UserError(
            f"pretrained.model = {name}: neither a Hugging Face folder (config.json) nor a .gguf file; a run of this package is "
            "given with --run"
        )
    settings.check_there()
    files = download(name, settings.revision)
    return _open_with_transformers(files, settings, device=device, precision=precision, longest=longest)


def _open_with_transformers(
    files: ModelFiles,
    settings: PretrainedConfig,
    *,
    device: torch.device,
    precision: Precision,
    longest: Optional[int] = None,
    gguf: Optional[str] = None,
) -> PretrainedModel:
    name = str(settings.model)
    safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if gguf is not None:
        safe["gguf_file"] = gguf
    with quiet(), _as_user_errors(name), gguf_read_once():
        own = _open_tokenizer(files.folder, name=name, safe=safe)
        config = transformers.AutoConfig.from_pretrained(files.folder, **safe)
        if getattr(config, "transformers_weights", None) is not None:  # transformers would load this file
            raise UserError(
                f"{name}: transformers_weights in its config.json names a file of weights; remove it, and name the file "
                "model.safetensors"
            )
        rows_have_bos = _rows_have_bos(config, name)
        dtype = _dtype(precision, device, rows_have_bos=rows_have_bos)
        own_max_position = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
        if settings.rope_factor is not None:
            rope_scaling.scale(
                config,
                name=name,
                method=settings.rope_scaling,
                factor=settings.rope_factor,
                row_len=settings.train_len,
            )
        raw = _load(files, settings, config=config, device=device, dtype=dtype, safe=safe)
        if settings.rope_factor is not None:
            rope_scaling.check_scaled(raw, name=name, method=settings.rope_scaling)
    original = rope_scaling.original_positions(config)
    own_max_position = own_max_position if original is None else original
    can_be_longer = (
        settings.train_len is not None and original is None and rope_scaling.rope_parameters(config) is not None
    )
    is_longer = can_be_longer and own_max_position is not None and (longest or 0) > own_max_position
    model = CausalLM(raw, max_position=longest if is_longer else own_max_position)
    _check_same_vocabulary(name, own.tokenizer, vocab_size=model.vocab_size)
    record = ModelRecord(
        name=name,
        revision=files.revision,
        weights_sha256=files.weights_sha256,
        architecture=model.architecture,
        num_parameters=model.num_parameters,
        dtype=str(model.dtype).removeprefix("torch."),
        max_position=own_max_position or model.max_position,
        tokenizer_sha256=sha256_text(own.tokenizer.to_str()),
        rope_scaling=settings.scaling,
    )
    return PretrainedModel(
        model,
        own.tokenizer,
        record,
        own.bos_id,
        own.adds_bos,
        own.eos_token,
        can_be_longer=can_be_longer,
        rows_have_bos=rows_have_bos,
    )


def from_memory(raw: Any, tokenizer: Any, *, name: str) -> PretrainedModel:
    """Take a model and a tokenizer of transformers that are in memory; the model stays where it is, in its dtype.

    Raises:
        UserError: the tokenizer is not one that the library ``tokenizers`` can run, or the model takes no position IDs.
    """
    own, model = _own_tokenizer(tokenizer, name=name), CausalLM(raw)
    _check_same_vocabulary(name, own.tokenizer, vocab_size=model.vocab_size)
    sha256 = hashlib.sha256()
    for key, weight in sorted(raw.state_dict().items()):
        sha256.update(key.encode() + weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    record = ModelRecord(
        name=name,
        revision=None,
        weights_sha256=sha256.hexdigest(),
        architecture=model.architecture,
        num_parameters=model.num_parameters,
        dtype=str(model.dtype).removeprefix("torch."),
        max_position=model.max_position,
        tokenizer_sha256=sha256_text(own.tokenizer.to_str()),
    )
    return PretrainedModel(model, own.tokenizer, record, own.bos_id, own.adds_bos, own.eos_token)


def _dtype(precision: Precision, device: torch.device, *, rows_have_bos: Optional[bool]) -> torch.dtype:
    """Return the dtype of the weights; ``rows_have_bos`` is known of the models of runs alone."""
    if precision == "auto":
        # A GPU without units for bf16 would emulate it.
        is_bf16 = rows_have_bos is None and device.type == "cuda" and has_bf16_units(device)
        precision = "bf16" if is_bf16 else "fp32"
    return DTYPES[precision]


def _rows_have_bos(config: Any, name: str) -> Optional[bool]:
    """Return what the configuration of a run's export says; None: it is not known, as of models from elsewhere.

    Raises:
        UserError: it says neither true nor false.
    """
    value = getattr(config, ROWS_HAVE_BOS, None)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{name}: config.json: {ROWS_HAVE_BOS} = {value!r}: must be true or false")
    return value


def _load(
    files: ModelFiles,
    settings: PretrainedConfig,
    *,
    config: Any,
    device: torch.device,
    dtype: torch.dtype,
    safe: dict[str, Any],
) -> Any:
    """Return the model of transformers, on its device, with weights of the dtype.

    Raises:
        UserError: weights are missing, and transformers would draw them at random; or some have no place in the model.
    """
    architecture = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    fused = all(getattr(kind, "_supports_sdpa", False) for kind in _as_tuple(architecture))
    spread = settings.device_map == "auto"
    options: dict[str, Any] = {} if "gguf_file" in safe else {"use_safetensors": True}
    if settings.scaling is not None:
        options["config"] = config
    raw, loaded = transformers.AutoModelForCausalLM.from_pretrained(
        files.folder,
        # Named, since a configuration file may name code on the hub instead.
        attn_implementation="sdpa" if fused else "eager",
        dtype=dtype,
        device_map="auto" if spread else None,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are told, and refused in words that name them
        **safe,
        **options,
    )
    check_loaded(str(settings.model), raw, loaded=loaded)
    if "gguf_file" in safe:
        check_nothing_left(files.weights[0], raw)
    return raw if spread else raw.to(device)


def _check_same_vocabulary(name: str, tokenizer: Tokenizer, *, vocab_size: int) -> None:
    # Entries that were added beside the vocabulary may have no logits: special tokens that no text contains.
    if tokenizer.get_vocab_size(with_added_tokens=False) > vocab_size:
        raise UserError(f"{name}: its tokenizer has more entries than the model; one of the two is of another model")


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _open_tokenizer(folder: Path, *, name: str, safe: dict[str, Any]) -> _OwnTokenizer:
    """Open the tokenizer of a model, and measure what it puts in front of a text.

    Raises:
        UserError: there is none that the library ``tokenizers`` can run, or it has no token that ends texts.
    """
    return _own_tokenizer(transformers.AutoTokenizer.from_pretrained(folder, **safe), name=name)


def _own_tokenizer(theirs: Any, *, name: str) -> _OwnTokenizer:
    """Return the tokenizer of a model without what truncates, pads or reads special tokens; see ``_open_tokenizer``."""
    if not theirs.is_fast:
        raise UserError(
            f"{name}: its tokenizer ({type(theirs).__name__}) cannot be run by the library tokenizers; write it as a "
            "tokenizer.json"
        )
    if theirs.eos_token is None:
        raise UserError(
            f"{name}: its tokenizer names no token that ends texts (eos_token); name it in tokenizer_config.json"
        )
    with_specials = theirs(SAMPLE_TEXT)["input_ids"]
    plain = theirs(SAMPLE_TEXT, add_special_tokens=False)["input_ids"]
    adds_bos = with_specials[:1] != plain[:1]
    bos_id = with_specials[0] if adds_bos else theirs.bos_token_id
    tokenizer = _plain_text_only(Tokenizer.from_str(theirs.backend_tokenizer.to_str()))
    if not plain or len(tokenizer.encode(SAMPLE_TEXT, add_special_tokens=False).ids) != len(plain):
        raise UserError(
            f"{name}: its tokenizer is empty, or does not work without transformers; give it a tokenizer.json"
        )
    return _OwnTokenizer(
        tokenizer,
        bos_id=int(theirs.eos_token_id if bos_id is None else bos_id),
        adds_bos=adds_bos,
        eos_token=str(theirs.eos_token),
    )


def _plain_text_only(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.encode_special_tokens = True  # otherwise a text could end its own document
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers: its messages and bars by its own switches; those of other libraries go to standard error."""
    verbosity, shows_bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shows_bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def _as_user_errors(name: str) -> Iterator[None]:
    """Turn an error of transformers about a model's files into one line."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError(
            f"{name}: the model does not fit on the device; choose influence.precision=bf16, or pretrained.device_map=auto"
        ) from None
    except UserError:
        raise
    except Exception as error:  # damaged files raise what their readers happen to raise; some raise Exception itself
        logger.debug("%s: not loaded", name, exc_info=True)
        text = str(error)
        if "trust_remote_code" in text:
            raise UserError(
                f"{name}: this model needs Python code of its own, which is never run; choose one whose architecture is part "
                "of transformers"
            ) from None
        first_line = (text.strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name}: transformers {transformers.__version__} cannot load this model ({first_line[:200]})"
        ) from None
