"""Export of a trained run to a folder that ``transformers`` loads without code of this package.

The folder is loaded and compared with the run's model before it gets its name.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from olmo_sparsity.config.files import read_config_of
from olmo_sparsity.errors import UserError
from olmo_sparsity.export.conversion import to_transformers_tokenizer
from olmo_sparsity.export.model_card import ExportedModel, model_card
from olmo_sparsity.files import (
    environment,
    exclusive_lock,
    make_folder,
    manifest_of_kind,
    partial_path,
    read_manifest_of,
    remove_leftovers,
    sha256_file,
    tokenizer_of_run,
    write_json,
)
from olmo_sparsity.model.checkpoint import (
    CheckpointInfo,
    check_checkpoint_of_run,
    latest_checkpoint,
    load_model,
)
from olmo_sparsity.model.convert import to_transformers
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.text.vocabulary import read_tokenizer

logger = logging.getLogger(__name__)

# The largest difference of logits in fp32 that is allowed. Kernels that add in another order stay below; another model
# does not.
MAX_DIFFERENCE = 1e-4
CHECKED_ROWS, CHECKED_TOKENS = 4, 128


def export_hf(run: Path, folder: Path, *, overwrite: bool = False) -> ExportedModel:
    """Write the model of a run's newest checkpoint, its tokenizer and a model card as a Hugging Face folder.

    Args:
        run: folder of the run.
        folder: where to write; new or empty.
        overwrite: replace an earlier export in this folder.

    Raises:
        UserError: there is no such run, the folder holds something else, or transformers computes something else than the
            model of the run.
    """
    checkpoint = latest_checkpoint(run / "checkpoints") if manifest_of_kind(run, "run") else None
    if checkpoint is None:
        raise UserError(f"{run}: there is no trained model here; train it first with `olmo-sparsity train --run {run}`")
    manifest = read_manifest_of(run, "tokenizer_sha256")
    if "synthetic_task" in manifest:
        raise UserError(f"{run}: this run was trained on a synthetic task, not on text; choose another")
    info = check_checkpoint_of_run(checkpoint, manifest)
    folder = folder.resolve()
    _check_free(folder, overwrite=overwrite)
    partial = partial_path(folder)
    with exclusive_lock(folder.with_name(f".{folder.name}.lock")), _no_progress_bars():
        remove_leftovers(folder.parent, name=folder.name, seconds=0)
        try:
            exported = _write(run, checkpoint, info=info, manifest=manifest, folder=folder, partial=partial)
            _check_free(folder, overwrite=overwrite)  # again: another process may have exported in the meantime
            _rename_into_place(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    if manifest["status"] != "complete":
        logger.info(f"{run}: its training is not finished; this is {checkpoint.name}")
    elif manifest.get("steps") != info.step:
        logger.warning(
            f"{run}: its last checkpoint, of step {manifest.get('steps')}, is gone; this is {checkpoint.name}"
        )
    return exported


def _write(
    run: Path, checkpoint: Path, *, info: CheckpointInfo, manifest: dict[str, Any], folder: Path, partial: Path
) -> ExportedModel:
    """Write and check all files in the folder ``partial``; ``folder`` is the name that it will get."""
    model = load_model(checkpoint, torch.device("cpu"))
    tokenizer = read_tokenizer(tokenizer_of_run(run, manifest))
    eos_id, max_position = model.config.eos_token_id, model.config.max_sequence_length
    config = read_config_of(run)
    loss_nats = manifest.get("validation_loss_nats") if info.step == manifest.get("steps") else None
    rows_have_bos = config.context.bos
    make_folder(partial)
    config_of_olmo, weights = dataclasses.asdict(model.config), model.state_dict()
    to_transformers(config_of_olmo, weights, rows_have_bos=rows_have_bos).save_pretrained(partial)
    to_transformers_tokenizer(
        tokenizer, eos_id=eos_id, rows_have_bos=rows_have_bos, max_position=max_position
    ).save_pretrained(partial)
    for weights in partial.glob("*.safetensors"):
        shutil.copymode(partial / "config.json", weights)  # safetensors lets nobody else read its files
    exported = _load_and_compare(partial, model, tokenizer=tokenizer, rows_have_bos=rows_have_bos, folder=folder)
    eos_token = str(tokenizer.id_to_token(eos_id))
    card = model_card(exported, config, info=info, loss_nats=loss_nats, eos_token=eos_token)
    (partial / "README.md").write_text(card, encoding="utf-8")
    write_json(partial / "manifest.json", _manifest(exported, info, name=config.name, partial=partial))
    return exported


def _manifest(exported: ExportedModel, info: CheckpointInfo, *, name: str, partial: Path) -> dict[str, Any]:
    return {
        "kind": "hf",
        "status": "complete",
        "name": name,
        "step": info.step,
        "checkpoint_sha256": info.sha256,
        "architecture": exported.architecture,
        "num_parameters": exported.num_parameters,
        "largest_logit_difference": exported.largest_logit_difference,
        "files": {path.name: sha256_file(path) for path in sorted(partial.iterdir())},
        "transformers": transformers.__version__,
        "environment": environment(),
    }


def _load_and_compare(
    partial: Path, model: OLMoWithPositions, *, tokenizer: Tokenizer, rows_have_bos: bool, folder: Path
) -> ExportedModel:
    """Load the written files as a user would, and compare model and tokenizer with those of the run.

    Raises:
        UserError: they differ.
    """
    loaded = transformers.AutoModelForCausalLM.from_pretrained(partial, local_files_only=True, dtype=torch.float32)
    difference, num_logits = _largest_difference(model, loaded.eval())
    if not difference <= MAX_DIFFERENCE:  # also where it is not a number
        raise UserError(
            f"nothing was exported: transformers {transformers.__version__} computes another model from the written files "
            f"(logits differ by {difference:.3g}; at most {MAX_DIFFERENCE} is allowed)"
        )
    _compare_tokenizers(partial, model, tokenizer=tokenizer, rows_have_bos=rows_have_bos)
    return ExportedModel(
        folder=folder,
        architecture=type(loaded).__name__,
        num_parameters=sum(parameter.numel() for parameter in loaded.parameters()),
        largest_logit_difference=difference,
        num_logits_compared=num_logits,
    )


def _largest_difference(model: OLMoWithPositions, loaded: Any) -> tuple[float, int]:
    """Compare logits on rows of random tokens, at position IDs 0 .. T-1 and at IDs with gaps.

    Returns:
        (the largest absolute difference, the number of logits compared).
    """
    max_position, vocab_size = model.config.max_sequence_length, model.config.vocab_size
    length = min(CHECKED_TOKENS, (max_position + 1) // 2)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(vocab_size, (CHECKED_ROWS, length), generator=generator)
    in_order_BT = torch.arange(length).expand(CHECKED_ROWS, -1)
    gaps_BT = torch.rand(CHECKED_ROWS, max_position, generator=generator).argsort(dim=1)[:, :length].sort(dim=1).values
    with torch.no_grad():
        pairs_BTV = [
            (model(tokens_BT, in_order_BT), loaded(input_ids=tokens_BT).logits),
            (model(tokens_BT, gaps_BT), loaded(input_ids=tokens_BT, position_ids=gaps_BT).logits),
        ]
    differences = torch.stack([(ours[..., :vocab_size] - theirs).abs().max() for ours, theirs in pairs_BTV])
    return float(differences.max()), sum(
        theirs.numel() for _, theirs in pairs_BTV
    )  # unlike Python's, torch's max keeps NaN


def _compare_tokenizers(partial: Path, model: OLMoWithPositions, *, tokenizer: Tokenizer, rows_have_bos: bool) -> None:
    """Compare the tokenizers on random tokens, special tokens, and spaces, and in what stands in front of a text.

    Raises:
        UserError: they differ.
    """
    vocab_size, eos_id = model.config.vocab_size, model.config.eos_token_id
    loaded = transformers.AutoTokenizer.from_pretrained(partial, local_files_only=True)
    sampled = torch.randint(vocab_size, (1000,), generator=torch.Generator().manual_seed(1)).tolist()
    eos_token = str(tokenizer.id_to_token(eos_id))
    text = f"{tokenizer.decode(sampled, skip_special_tokens=False)} It's  {eos_token} 12.5 naïve\n\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    row, bos_id = ([eos_id, *ids], eos_id) if rows_have_bos else (ids, None)
    expected = (row, tokenizer.decode(ids, skip_special_tokens=False), eos_id, bos_id)
    found = (loaded(text, verbose=False)["input_ids"], loaded.decode(ids), loaded.eos_token_id, loaded.bos_token_id)
    if found != expected:
        raise UserError(
            f"nothing was exported: transformers {transformers.__version__} makes another tokenizer from the written files"
        )


def _check_free(folder: Path, *, overwrite: bool) -> None:
    """Check that the folder is new, empty, or an earlier export that may be replaced.

    Raises:
        UserError: it is not.
    """
    if not manifest_of_kind(folder, "hf"):
        return
    if not overwrite:
        raise UserError(
            f"{folder}: this folder already holds an exported model; replace it with --overwrite, or choose another folder"
        )
    exported = {"manifest.json", *read_manifest_of(folder).get("files", {})}
    others = sorted(path.name for path in folder.iterdir() if path.name not in exported)
    if others:
        raise UserError(
            f"{folder}: it also holds {', '.join(others[:3])}, which was not exported, so --overwrite does not delete it; "
            "choose another folder"
        )


def _rename_into_place(partial: Path, folder: Path) -> None:
    replaced = partial_path(folder)
    try:
        if (folder / "manifest.json").is_file():
            os.replace(folder, replaced)
        os.replace(partial, folder)
    except OSError as error:
        if replaced.exists():
            os.replace(replaced, folder)
        raise UserError(f"{folder}: cannot put the exported folder there ({error.strerror})") from None
    if replaced.exists():
        shutil.rmtree(replaced)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()
