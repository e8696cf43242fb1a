"""Opens a pretrained model: a Hugging Face folder or hub name, a ``.gguf`` file, or one of transformers in memory.

No code of a model is run: ``trust_remote_code`` stays off. Weights are read from safetensors and GGUF, and hashed here, once.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional

import gguf
import torch
import transformers
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import sha256_text
from olmo_sparsity.model.causal_lm import SLIDING, CausalLM
from olmo_sparsity.model.convert import ROWS_HAVE_BOS
from olmo_sparsity.model.devices import has_bf16_units
from olmo_sparsity.model.model_files import ModelFiles, check_contents, download, find_files
from olmo_sparsity.text.tokenizer import settled

logger = logging.getLogger(__name__)

Precision = Literal["auto", "fp32", "bf16"]
SAMPLE_TEXT = "The river"  # shows what a tokenizer puts in front of a text
BY_LENGTH = ("dynamic", "longrope")  # scalings of rotary positions that depend on the length of the text
# Weights in a model's files that no logits of the next token depend on: masks that old versions saved, the heads of
# other tasks, layers that predict further tokens, and what sees images and hears sound.
FREE_TO_IGNORE = re.compile(
    r"\.(attn|attention)\.(masked_)?bias$"
    r"|^(score|classifier|v_head)\."
    r"|(^|\.)(mtp|visual|vision_model|vision_tower|audio_tower|multi_modal_projector)\."
)


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
    """A pretrained model that is ready to be measured."""

    model: CausalLM
    tokenizer: (
        Tokenizer  # reads special tokens that are written out in a text as ordinary text; neither truncates nor pads
    )
    record: ModelRecord  # for manifests
    bos_id: int  # with which texts begin: what the tokenizer puts in front of a text, else its BOS, else its EOS
    adds_bos: bool  # the tokenizer itself puts a token in front of a text
    eos_token: str  # the token that ends texts
    can_be_longer: bool = False  # rows may have more position IDs than the model: they are rotary, and a row is stated
    rows_have_bos: Optional[bool] = (
        None  # ``bos_id`` stood before every row of training; known of exports of runs alone
    )

    @property
    def bos_text(self) -> str:
        """The token of ``bos_id``, as the tokenizer writes it."""
        return str(self.tokenizer.id_to_token(self.bos_id))


def open_pretrained(
    settings: PretrainedConfig, *, device: torch.device, precision: Precision, longest: Optional[int] = None
) -> PretrainedModel:
    """Open the model that ``settings.model`` names, on a device, unless ``settings.device_map`` is ``auto``.

    Precision ``auto`` is bf16 on a GPU with units for it, and fp32 for the export of a run, in which the run is measured. Rotary
    positions reach as far as the ``longest`` row that will be run, if ``settings.train_len`` is stated.
    """
    name, files = str(settings.model), _files_of(settings)
    safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    is_gguf = files.weights[0].suffix == ".gguf"
    if is_gguf:
        safe["gguf_file"] = files.weights[0].name
    with quiet(), _as_user_errors(name):
        theirs = transformers.AutoTokenizer.from_pretrained(files.folder, **safe)
        config = transformers.AutoConfig.from_pretrained(files.folder, **safe)
        if getattr(config, "transformers_weights", None) is not None:  # transformers would load this file
            raise UserError(
                f"{name}: transformers_weights in its config.json names a file of weights; remove it, and name the file "
                "model.safetensors"
            )
        rows_have_bos = getattr(config, ROWS_HAVE_BOS, None)
        if rows_have_bos is not None and not isinstance(rows_have_bos, bool):
            raise UserError(f"{name}: config.json: {ROWS_HAVE_BOS} = {rows_have_bos!r}: must be true or false")
        positions = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
        rotary = _rotary_parameters(config)
        if settings.scaling is not None:
            _scale_rotary(config, settings)
        if precision == "auto":  # a GPU without units for bf16 would emulate it
            precision = "bf16" if rows_have_bos is None and device.type == "cuda" and has_bf16_units(device) else "fp32"
        kinds = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        kinds = kinds if isinstance(kinds, (list, tuple)) else [kinds]
        raw, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            files.folder,
            # Named, since a configuration file may name code on the hub instead.
            attn_implementation="sdpa" if all(getattr(kind, "_supports_sdpa", False) for kind in kinds) else "eager",
            dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            device_map=settings.device_map,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told, and refused in words that name them
            **safe,
            **({} if is_gguf else {"use_safetensors": True}),
            **({} if settings.scaling is None else {"config": config}),
        )
        _check_loaded(name, raw, loaded)
        if is_gguf:
            _check_nothing_left(files.weights[0], raw)
        raw = raw if settings.device_map else raw.to(device)
    limits: list[Any] = [
        of.get("original_max_position_embeddings") or positions for of in rotary if of.get("rope_type") in BY_LENGTH
    ]
    positions = min(limits, default=positions)
    can_be_longer = settings.train_len is not None and bool(rotary) and not limits
    is_longer = can_be_longer and positions is not None and (longest or 0) > positions
    model = CausalLM(raw, max_position=longest if is_longer else positions)
    return _assembled(
        model, theirs, name, files.weights_sha256, revision=files.revision, max_position=positions or model.max_position,
        rope_scaling=settings.scaling, can_be_longer=can_be_longer, rows_have_bos=rows_have_bos,
    )  # fmt: skip


def from_memory(raw: Any, tokenizer: Any, *, name: str) -> PretrainedModel:
    """Take a model and a tokenizer of transformers that are in memory; the model stays where it is, in its dtype."""
    model, sha256 = CausalLM(raw), hashlib.sha256()
    for key, weight in sorted(raw.state_dict().items()):
        sha256.update(key.encode() + weight.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return _assembled(model, tokenizer, name, sha256.hexdigest(), revision=None, max_position=model.max_position)


def _files_of(settings: PretrainedConfig) -> ModelFiles:
    name, path = str(settings.model), Path(os.path.expanduser(str(settings.model)))
    if not path.exists():
        settings.check_there()
        return download(name, settings.revision)
    if settings.revision is not None:
        raise UserError(
            f"pretrained.revision = {settings.revision}: {name} is here on disk; only the hub has revisions"
        )
    if path.suffix == ".gguf" and path.is_file():
        check_contents(path)
        return ModelFiles(path.parent, [path])
    if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
        return find_files(path)
    raise UserError(
        f"pretrained.model = {name}: neither a Hugging Face folder (config.json) nor a .gguf file; a run of this package is "
        "given with --run"
    )


def _assembled(
    model: CausalLM, theirs: Any, name: str, weights_sha256: str, *, revision: Optional[str], max_position: int,
    rope_scaling: Optional[str] = None, **known: Any,
) -> PretrainedModel:  # fmt: skip
    """Put a model and its tokenizer together, after a look at both."""
    for key, weight in model.raw.state_dict().items():
        if weight.is_floating_point() and bool(weight.isnan().any()):
            raise UserError(
                f"{name}: {int(weight.isnan().sum())} of the {weight.numel()} values of {key} are no numbers (NaN)"
            )
    if not theirs.is_fast:
        raise UserError(
            f"{name}: its tokenizer ({type(theirs).__name__}) cannot be run by the library tokenizers; write it as a "
            "tokenizer.json"
        )
    if theirs.eos_token is None:
        raise UserError(
            f"{name}: its tokenizer names no token that ends texts (eos_token); name it in tokenizer_config.json"
        )
    tokenizer = settled(Tokenizer.from_str(theirs.backend_tokenizer.to_str()))
    plain = theirs(SAMPLE_TEXT, add_special_tokens=False)["input_ids"]
    if not plain or len(tokenizer.encode(SAMPLE_TEXT, add_special_tokens=False).ids) != len(plain):
        raise UserError(
            f"{name}: its tokenizer is empty, or does not work without transformers; give it a tokenizer.json"
        )
    row = theirs(SAMPLE_TEXT)["input_ids"]
    begins = (begin for begin in range(len(row)) if row[begin : begin + len(plain)] == plain)
    front = row[: next(begins, max(0, len(row) - len(plain)))]  # behind a special token the text may have other tokens
    if len(front) > 1:
        tokens = " ".join(theirs.convert_ids_to_tokens(front))
        raise UserError(
            f"{name}: its tokenizer puts {len(front)} tokens in front of a text ({tokens}); at most one can be an anchor"
        )
    bos_id = next(of for of in (*front, theirs.bos_token_id, theirs.eos_token_id) if of is not None)
    ids = {*tokenizer.get_vocab(with_added_tokens=False).values(), bos_id, theirs.eos_token_id}
    ids |= {number for number, token in tokenizer.get_added_tokens_decoder().items() if not token.special}
    if max(ids) >= model.vocab_size:  # other special tokens are in no text
        raise UserError(
            f"{name}: its tokenizer has the token {tokenizer.id_to_token(max(ids))!r} of ID {max(ids)}, and the model only "
            f"{model.vocab_size} tokens; one of the two is of another model"
        )
    dtype, tokenizer_sha256 = str(model.dtype).removeprefix("torch."), sha256_text(tokenizer.to_str())
    record = ModelRecord(
        name, revision, weights_sha256, model.architecture, model.num_parameters, dtype, max_position, tokenizer_sha256,
        rope_scaling,
    )  # fmt: skip
    return PretrainedModel(model, tokenizer, record, int(bos_id), bool(front), str(theirs.eos_token), **known)


def _rotary_parameters(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of the layers without a window; layers that see no farther than one have no longer contexts."""
    text_config = config.get_text_config(decoder=True)
    parameters = getattr(text_config, "rope_parameters", None)
    if not parameters:
        return []
    nested = text_config.nested_rope_parameter_keys(parameters)
    return [parameters[key] for key in nested if key != SLIDING and parameters[key]] if nested else [parameters]


def _scale_rotary(config: Any, settings: PretrainedConfig) -> None:
    """Set the scaling of rotary positions in a configuration, before the model is built.

    ``linear`` divides the frequencies (Chen et al. 2023, arXiv 2306.15595); ``yarn`` divides those that turn less than once in a
    row of training, and sharpens the attention (Peng et al. 2023, arXiv 2309.00071).
    """
    asked, entries = f"{settings.model}: pretrained.rope_scaling = {settings.rope_scaling}", _rotary_parameters(config)
    if not entries:
        raise UserError(f"{asked}: such a model ({type(config).__name__}) has no rotary positions to scale")
    for entry in entries:
        own = entry.get("rope_type", "default")
        if own != "default":
            raise UserError(f"{asked}: its rotary positions are scaled already ({own}); leave them as they are (none)")
        entry.update(rope_type=settings.rope_scaling, factor=settings.rope_factor)
        if settings.rope_scaling == "yarn":
            positions = config.get_text_config(decoder=True).max_position_embeddings
            entry["original_max_position_embeddings"] = settings.train_len or positions


def _check_loaded(name: str, raw: Any, loaded: dict[str, Any]) -> None:
    """Check that the model has all of its weights, and the files no others, by what transformers tells of loading them."""
    shapes = [f"{key}: {list(stored)} instead of {list(needed)}" for key, stored, needed in loaded["mismatched_keys"]]
    for keys, what in (
        (loaded["missing_keys"], "are missing; its files are incomplete, or of another architecture"),
        (shapes, "have another shape; restore its config.json"),
        (
            [key for key in loaded["unexpected_keys"] if not FREE_TO_IGNORE.search(key)],
            "have no place there, and without them it is another model: restore its config.json, or, if it is meant without "
            "them, load it with transformers and save it again",
        ),
    ):
        if keys:
            raise UserError(
                f"{name}: {len(keys)} weights of {type(raw).__name__}, as its configuration describes it, such as {min(keys)}, "
                f"{what}"
            )


def _check_nothing_left(path: Path, raw: Any) -> None:
    """Check that a GGUF file holds no more values than the model took from it. transformers does not tell what it leaves."""
    own = {id(weight): weight.numel() for weight in raw.state_dict(keep_vars=True).values()}  # tied ones once
    second_copy = "output.weight" if raw.config.tie_word_embeddings else ""
    sizes = [int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors if tensor.name != second_copy]
    if sum(sizes) > sum(own.values()):
        raise UserError(
            f"{path}: {type(raw).__name__} has a place for {sum(own.values()):,} of its {sum(sizes):,} values, as transformers "
            "reads the file; without the others it is another model: give its Hugging Face version, or, if its metadata were "
            "changed, restore them"
        )


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
    except UserError:
        raise
    except torch.OutOfMemoryError:
        raise UserError(
            f"{name}: the model does not fit on the device; choose influence.precision=bf16, or pretrained.device_map=auto"
        ) from None
    except Exception as error:  # damaged files raise what their readers happen to raise; some raise Exception itself
        logger.debug("%s: not loaded", name, exc_info=True)
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = f"transformers {transformers.__version__} cannot load this model ({first_line[:200]})"
        if "trust_remote_code" in str(error):
            reason = (
                "this model needs Python code of its own, which is never run; choose one that is part of transformers"
            )
        raise UserError(f"{name}: {reason}") from None
