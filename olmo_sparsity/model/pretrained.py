"""Opens a pretrained model: a Hugging Face folder or hub name, a ``.gguf`` file, or one of transformers in memory."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import torch
import transformers
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import sha256_file, sha256_text
from olmo_sparsity.model.causal_lm import CausalLM, position_limit, rotary_parameters
from olmo_sparsity.model.convert import ROWS_HAVE_BOS
from olmo_sparsity.model.devices import has_bf16_units
from olmo_sparsity.model.weights import check_loaded, check_nothing_left, check_stored, find_weights, first_line
from olmo_sparsity.text.tokenizer import parse_tokenizer

logger = logging.getLogger(__name__)

SAMPLE_TEXT = "The river"  # shows what a tokenizer puts in front of a text


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
    tokenizer: Tokenizer  # reads special tokens in a text as ordinary text; neither truncates nor pads
    record: ModelRecord
    bos_id: int  # with which texts begin: what the tokenizer puts in front of a text, else its BOS, else its EOS
    adds_bos: bool  # the tokenizer itself puts a token in front of a text
    eos_token: str  # the token that ends texts
    can_be_longer: bool = False  # rows may have more position IDs than the model: they are rotary, and a row is stated
    rows_have_bos: Optional[bool] = None  # ``bos_id`` stood before every row of training; known of exports of runs

    @property
    def bos_text(self) -> str:
        """The token of ``bos_id``, as the tokenizer writes it."""
        return str(self.tokenizer.id_to_token(self.bos_id))


def open_pretrained(
    settings: PretrainedConfig, *, device: torch.device, precision: str, longest: Optional[int] = None
) -> PretrainedModel:
    """Open the model that ``settings.model`` names, on a device, unless ``settings.device_map`` is ``auto``.

    Rotary positions reach as far as the ``longest`` row that will be run, if ``settings.train_len`` is stated.
    """
    name, (paths, revision) = str(settings.model), find_weights(settings)
    folder, gguf = paths[0].parent, paths[0].name if paths[0].suffix == ".gguf" else None
    safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "gguf_file": gguf}
    with quiet(), _as_user_errors(name):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **safe)
        config = transformers.AutoConfig.from_pretrained(folder, **safe)
        if gguf is None:
            check_stored(paths, is_quantized=bool(getattr(config, "quantization_config", None)))
        config.transformers_weights = None  # the name of another file of weights, which was not hashed
        rows_have_bos = getattr(config, ROWS_HAVE_BOS, None)
        positions, depends_on_length = position_limit(config)
        can_be_longer = settings.train_len is not None and bool(rotary_parameters(config)) and not depends_on_length
        if settings.rope_scaling is not None:
            _scale_rotary(config, settings)
        if precision == "auto":  # exports of runs are measured as the run is; a GPU without units would emulate bf16
            precision = "bf16" if rows_have_bos is None and device.type == "cuda" and has_bf16_units(device) else "fp32"
        raw, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            attn_implementation="eager",  # a configuration may name code on the hub; CausalLM chooses a faster one
            ignore_mismatched_sizes=True,  # they are told, and refused in words that name them
            output_loading_info=True, device_map=settings.device_map, use_safetensors=None if gguf else True, **safe,
        )  # fmt: skip
        check_loaded(name, raw, loaded)
        if gguf is not None:
            check_nothing_left(paths[0], raw)
        raw = raw if settings.device_map else raw.to(device)
        is_longer = can_be_longer and positions is not None and (longest or 0) > positions
        model = CausalLM(raw, max_position=longest if is_longer else positions)
    found = _assembled(model, tokenizer, name, sha256_file(*paths))
    return dataclasses.replace(
        found, can_be_longer=can_be_longer, rows_have_bos=rows_have_bos, record=dataclasses.replace(
            found.record, revision=revision, max_position=positions or model.max_position, rope_scaling=settings.rope_scaling,
        ),
    )  # fmt: skip


def from_memory(raw: Any, tokenizer: Any, *, name: str) -> PretrainedModel:
    """Take a model and a tokenizer of transformers that are in memory; the model stays where it is, in its dtype."""
    model, sha256 = CausalLM(raw), hashlib.sha256()
    for key, weight in sorted(raw.state_dict().items()):
        sha256.update(key.encode() + weight.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return _assembled(model, tokenizer, name, sha256.hexdigest())


def _assembled(model: CausalLM, theirs: Any, name: str, weights_sha256: str) -> PretrainedModel:
    """Put a model and its tokenizer together, after a look at the tokenizer."""
    if not theirs.is_fast:
        raise UserError(f"{name}: its tokenizer is not of the library tokenizers; write it as a tokenizer.json")
    if theirs.eos_token is None:
        raise UserError(f"{name}: its tokenizer has no token that ends texts; name eos_token in tokenizer_config.json")
    tokenizer = parse_tokenizer(theirs.backend_tokenizer.to_str(), name=name)
    if getattr(theirs.backend_tokenizer.model, "dropout", None):  # it would give other tokens each time
        theirs = copy.deepcopy(theirs)
        theirs.backend_tokenizer.model.dropout = None
    plain, row = theirs(SAMPLE_TEXT, add_special_tokens=False)["input_ids"], theirs(SAMPLE_TEXT)["input_ids"]
    if not plain or tokenizer.encode(SAMPLE_TEXT, add_special_tokens=False).ids != plain:
        raise UserError(f"{name}: its tokenizer is empty, or needs transformers; give it a tokenizer.json")
    begins = (begin for begin in range(len(row)) if row[begin : begin + len(plain)] == plain)
    front = row[: next(begins, max(0, len(row) - len(plain)))]  # behind a special token the text may have other tokens
    if len(front) > 1:
        tokens = " ".join(theirs.convert_ids_to_tokens(front))
        raise UserError(f"{name}: its tokenizer puts {len(front)} tokens in front of a text ({tokens}), not one")
    bos_id = next(of for of in (*front, theirs.bos_token_id, theirs.eos_token_id) if of is not None)
    ids = {*tokenizer.get_vocab(with_added_tokens=False).values(), bos_id, theirs.eos_token_id}
    ids |= {number for number, token in tokenizer.get_added_tokens_decoder().items() if not token.special}
    if max(ids) >= model.vocab_size:  # other special tokens are in no text
        token, number = f"the token {tokenizer.id_to_token(max(ids))!r} of ID {max(ids)}", model.vocab_size
        raise UserError(f"{name}: its tokenizer has {token}, and the model only {number} tokens; restore its files")
    record = ModelRecord(
        name, None, weights_sha256, model.architecture, model.num_parameters, str(model.dtype).removeprefix("torch."),
        model.max_position, sha256_text(tokenizer.to_str()),
    )  # fmt: skip
    return PretrainedModel(model, tokenizer, record, int(bos_id), bool(front), str(theirs.eos_token))


def _scale_rotary(config: Any, settings: PretrainedConfig) -> None:
    """Set the scaling of rotary positions: ``linear`` (arXiv 2306.15595), or ``yarn`` from the row of training (2309.00071)."""
    said, entries = f"{settings.model}: pretrained.rope_scaling = {settings.rope_scaling}", rotary_parameters(config)
    method, _, factor = str(settings.rope_scaling).partition(":")
    if not entries:
        raise UserError(f"{said}: such a model ({type(config).__name__}) has no rotary positions to scale")
    for entry in entries:
        if (own := entry.get("rope_type", "default")) != "default":
            raise UserError(f"{said}: its rotary positions are scaled already ({own}); leave them as they are (null)")
        entry.update(rope_type=method, factor=float(factor))
        if method == "yarn":
            own_positions = config.get_text_config(decoder=True).max_position_embeddings
            entry["original_max_position_embeddings"] = settings.train_len or own_positions


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers and, on standard error, the libraries that it calls."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _as_user_errors(name: str) -> Iterator[None]:
    """Turn an error of transformers about a model's files into one line."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # damaged files raise what their readers happen to raise; some raise Exception itself
        logger.debug("%s: not loaded", name, exc_info=True)
        version = transformers.__version__
        raise UserError(f"{name}: transformers {version} cannot load this model ({first_line(error)})") from None
