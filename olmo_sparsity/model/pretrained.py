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
from typing import Any, Optional

import gguf
import huggingface_hub
import torch
import transformers
from huggingface_hub import errors
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_json, sha256_file, sha256_text
from olmo_sparsity.model.causal_lm import SLIDING, CausalLM
from olmo_sparsity.model.convert import ROWS_HAVE_BOS
from olmo_sparsity.model.devices import has_bf16_units
from olmo_sparsity.text.tokenizer import settled

logger = logging.getLogger(__name__)

DOWNLOADED = "config.json generation_config.json adapter_config.json model.safetensors.index.json model-*.safetensors "
DOWNLOADED += (
    "model.safetensors tokenizer* special_tokens_map.json added_tokens.json vocab.* merges.txt spiece.model tekken.json"
)
TOKENIZERS, OTHER_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt"), ("tokenizer.model", "spiece.model")
LFS_POINTER, FIRST_BYTES = b"version https://git-lfs", {".safetensors": (8, b"{"), ".gguf": (0, b"GGUF")}
NO_FILE, NO_PICKLES = "no such folder or file", "pickles (.bin) can run code and are not loaded"
NOT_ON_HUB = {
    errors.GatedRepoError: "the hub gives this model only to accounts that accepted its terms",
    errors.RevisionNotFoundError: "the hub has no such revision of this model",
    errors.RepositoryNotFoundError: f"{NO_FILE}, and no such model on the hub",
    errors.HFValidationError: f"{NO_FILE}, and not a name on the hub",
    errors.LocalEntryNotFoundError: f"{NO_FILE}; the hub cannot be reached, and its cache does not have this model",
}
SAMPLE_TEXT = "The river"  # shows what a tokenizer puts in front of a text
BY_LENGTH = ("dynamic", "longrope")  # scalings of rotary positions that depend on the length of the text
# Weights in a model's files that no logits of the next token depend on: masks that old versions saved, the heads of
# other tasks, layers that predict further tokens, and what sees images and hears sound.
FREE_TO_IGNORE = re.compile(
    r"\.(attn|attention)\.(masked_)?bias$|^(score|classifier|v_head)\."
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
    name, (weights, revision) = str(settings.model), _find(settings)
    is_gguf = weights[0].suffix == ".gguf"
    safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    safe |= {"gguf_file": weights[0].name} if is_gguf else {}
    with quiet(), _as_user_errors(name):
        theirs = transformers.AutoTokenizer.from_pretrained(weights[0].parent, **safe)
        config = transformers.AutoConfig.from_pretrained(weights[0].parent, **safe)
        config.transformers_weights = None  # the name of another file of weights, which was not hashed
        rows_have_bos = getattr(config, ROWS_HAVE_BOS, None)
        positions: Any = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
        rotary = _rotary_parameters(config)
        scaled = [of for of in rotary if of.get("rope_type") in BY_LENGTH]
        limits = [of.get("original_max_position_embeddings") or positions for of in scaled]
        positions = min(limits, default=positions)
        can_be_longer = settings.train_len is not None and bool(rotary) and not limits
        if settings.scaling is not None:
            _scale_rotary(config, settings)
        if precision == "auto":  # exports of runs are measured as the run is; a GPU without units would emulate bf16
            precision = "bf16" if rows_have_bos is None and device.type == "cuda" and has_bf16_units(device) else "fp32"
        raw, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            weights[0].parent, config=config, dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            attn_implementation="eager",  # a configuration may name code on the hub; CausalLM chooses a faster one
            ignore_mismatched_sizes=True,  # they are told, and refused in words that name them
            output_loading_info=True, device_map=settings.device_map, use_safetensors=None if is_gguf else True, **safe,
        )  # fmt: skip
        _check_loaded(name, raw, loaded)
        if is_gguf:
            _check_nothing_left(weights[0], raw)
        raw = raw if settings.device_map else raw.to(device)
        is_longer = can_be_longer and positions is not None and (longest or 0) > positions
        model = CausalLM(raw, max_position=longest if is_longer else positions)
    return _assembled(
        model, theirs, name, sha256_file(*weights), positions or model.max_position, revision, settings.scaling,
        can_be_longer=can_be_longer, rows_have_bos=rows_have_bos,
    )  # fmt: skip


def from_memory(raw: Any, tokenizer: Any, *, name: str) -> PretrainedModel:
    """Take a model and a tokenizer of transformers that are in memory; the model stays where it is, in its dtype."""
    model, sha256 = CausalLM(raw), hashlib.sha256()
    for key, weight in sorted(raw.state_dict().items()):
        sha256.update(key.encode() + weight.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return _assembled(model, tokenizer, name, sha256.hexdigest(), model.max_position)


def _find(settings: PretrainedConfig) -> tuple[list[Path], Optional[str]]:
    """The files with the weights, sorted by name, on this machine or from the hub; there also the commit."""
    name, path = str(settings.model), Path(os.path.expanduser(str(settings.model)))
    if not path.exists():
        settings.check_there()
        return _download(name, settings.revision)
    if settings.revision is not None:
        raise UserError(f"pretrained.revision = {settings.revision}: {name} is on disk; only the hub has revisions")
    if path.suffix == ".gguf" and path.is_file():
        _check_first_bytes(path)
        return [path], None
    if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
        return _weights(path), None
    reason = "neither a Hugging Face folder (config.json) nor a .gguf file; a run of this package is given with --run"
    raise UserError(f"pretrained.model = {name}: {reason}")


def _download(name: str, revision: Optional[str]) -> tuple[list[Path], str]:
    """Download a model, or find it in the cache of ``huggingface_hub``, which alone is used without a connection."""
    said = f"pretrained.model = {name}" + (f" at revision {revision}" if revision else "")
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=DOWNLOADED.split()))
        if not (has_weights := any(folder.glob("model*.safetensors*"))):
            huggingface_hub.list_repo_files(name, revision=folder.name)  # fails where only the cache could be asked
    except Exception as error:  # also of httpx, handed on by huggingface_hub
        reasons = (reason for kind, reason in NOT_ON_HUB.items() if isinstance(error, kind))
        reason = next(reasons, f"its weights cannot be downloaded from the hub ({_first_line(error)})")
        raise UserError(f"{said}: {reason}") from None
    if not has_weights:
        raise UserError(f"{said}: no safetensors on the hub; {NO_PICKLES}; choose another revision")
    return _weights(folder), folder.name


def _weights(folder: Path) -> list[Path]:
    """The files with the weights, in a folder that holds nothing that makes another model of them."""
    if (folder / "adapter_config.json").is_file():
        reason = "an adapter of peft, which makes another model of its base; merge the two with peft, or move it away"
        raise UserError(f"{folder / 'adapter_config.json'}: {reason}")
    weights, index = [folder / "model.safetensors"], folder / "model.safetensors.index.json"
    if index.is_file() and not weights[0].is_file():
        names = set(check_type(read_json(index).get("weight_map"), dict[str, str], where=index).values())
        if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise UserError(f"{index}: it must name .safetensors files of its folder, and nothing else; restore it")
        weights = [folder / name for name in sorted(names)]
    if missing := [path.name for path in weights if not path.is_file()]:
        number = f"{len(missing)} of {len(weights)} files missing"
        raise UserError(f"{folder}: no {missing[0]} here ({number}); {NO_PICKLES}")
    tokenizers, others = ([folder / x for x in of if (folder / x).is_file()] for of in (TOKENIZERS, OTHER_TOKENIZERS))
    for path in (*weights, *tokenizers, folder / "config.json"):
        _check_first_bytes(path)
    if others and not tokenizers:
        reason = "write a tokenizer.json, as transformers does where sentencepiece is installed"
        raise UserError(f"{others[0]}: the library tokenizers does not read it; {reason}")
    return weights


def _check_first_bytes(path: Path) -> None:
    with open(path, "rb") as file:
        head = file.read(len(LFS_POINTER))
    begin, mark = FIRST_BYTES.get(path.suffix, (0, b""))
    if head == LFS_POINTER:
        raise UserError(f"{path}: a Git LFS pointer, not the file itself; fetch that with `git lfs pull`")
    if not head[begin:].startswith(mark):
        raise UserError(f"{path}: no {path.suffix[1:]} file (it begins with {head[:12]!r}); download it again")


def _assembled(
    model: CausalLM, theirs: Any, name: str, weights_sha256: str, max_position: int, revision: Optional[str] = None,
    rope_scaling: Optional[str] = None, **known: Any,
) -> PretrainedModel:  # fmt: skip
    """Put a model and its tokenizer together, after a look at the tokenizer."""
    if not theirs.is_fast:
        raise UserError(f"{name}: its tokenizer is not of the library tokenizers; write it as a tokenizer.json")
    if theirs.eos_token is None:
        raise UserError(f"{name}: its tokenizer has no token that ends texts; name eos_token in tokenizer_config.json")
    tokenizer = settled(Tokenizer.from_str(theirs.backend_tokenizer.to_str()))
    plain, row = theirs(SAMPLE_TEXT, add_special_tokens=False)["input_ids"], theirs(SAMPLE_TEXT)["input_ids"]
    if not plain or len(tokenizer.encode(SAMPLE_TEXT, add_special_tokens=False).ids) != len(plain):
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
        token = f"the token {tokenizer.id_to_token(max(ids))!r} of ID {max(ids)}"
        reason = f"and the model only {model.vocab_size} tokens; one of the two is of another model"
        raise UserError(f"{name}: its tokenizer has {token}, {reason}")
    record = ModelRecord(
        name, revision, weights_sha256, model.architecture, model.num_parameters, str(model.dtype).removeprefix("torch."),
        max_position, sha256_text(tokenizer.to_str()), rope_scaling,
    )  # fmt: skip
    return PretrainedModel(model, tokenizer, record, int(bos_id), bool(front), str(theirs.eos_token), **known)


def _rotary_parameters(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of the layers without a window; layers that see no farther than one have no longer contexts."""
    text_config = config.get_text_config(decoder=True)
    parameters: Any = getattr(text_config, "rope_parameters", None)
    nested = text_config.nested_rope_parameter_keys(parameters) if parameters else ()
    entries = [parameters[key] for key in nested if key != SLIDING] if nested else [parameters]
    return [entry for entry in entries if entry]


def _scale_rotary(config: Any, settings: PretrainedConfig) -> None:
    """Set the scaling of rotary positions: ``linear`` (arXiv 2306.15595), or ``yarn`` from the row of training (2309.00071)."""
    said, entries = f"{settings.model}: pretrained.rope_scaling = {settings.rope_scaling}", _rotary_parameters(config)
    if not entries:
        raise UserError(f"{said}: such a model ({type(config).__name__}) has no rotary positions to scale")
    for entry in entries:
        own = entry.get("rope_type", "default")
        if own != "default":
            raise UserError(f"{said}: its rotary positions are scaled already ({own}); leave them as they are (none)")
        entry.update(rope_type=settings.rope_scaling, factor=settings.rope_factor)
        if settings.rope_scaling == "yarn":
            own_positions = config.get_text_config(decoder=True).max_position_embeddings
            entry["original_max_position_embeddings"] = settings.train_len or own_positions


def _check_loaded(name: str, raw: Any, loaded: dict[str, Any]) -> None:
    """Check that the model has all of its weights, and the files no others, by what transformers tells of loading them."""
    shapes = loaded["mismatched_keys"]
    wrong = {
        "are missing": loaded["missing_keys"],
        "have another shape": [f"{key}: {list(stored)} instead of {list(own)}" for key, stored, own in shapes],
        "have no place": [key for key in loaded["unexpected_keys"] if not FREE_TO_IGNORE.search(key)],
    }
    for what, keys in wrong.items():
        if keys:
            model = f"{type(raw).__name__}, as its config.json describes it"
            raise UserError(f"{name}: {len(keys)} weights {what} in {model}, such as {min(keys)}; restore its files")


def _check_nothing_left(path: Path, raw: Any) -> None:
    """Check that a GGUF file holds no more values than the model took from it. transformers does not tell what it leaves."""
    weights = {id(weight): weight for weight in raw.state_dict(keep_vars=True).values()}  # tied ones once
    own = sum(weight.numel() for weight in weights.values())
    copied = "output.weight" if raw.config.tie_word_embeddings else ""
    stored = sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors if tensor.name != copied)
    if stored > own:
        values = f"{own:,} of its {stored:,} values"
        raise UserError(f"{path}: {type(raw).__name__} of transformers takes {values}; give its Hugging Face version")


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
        raise UserError(f"{name}: transformers {version} cannot load this model ({_first_line(error)})") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
