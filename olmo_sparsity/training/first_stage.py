"""The weights that a run starts from where ``training.start_from`` names an earlier run, its first stage."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.config.trained import different_keys
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import check_checkpoint_of_run, read_weights, trained_checkpoint, verify_checkpoint
from olmo_sparsity.storage.folders import folder_name, is_folder_of_kind
from olmo_sparsity.storage.manifests import read_config_of, read_manifest_of

logger = logging.getLogger(__name__)

DRAWN_KEYS = frozenset({("model", "init_std")})  # they only say how weights are drawn


@dataclass(frozen=True)
class FirstStage:
    """A trained run whose last weights another run starts from.

    Attributes:
        checkpoint: the folder of its newest checkpoint.
        record: what the manifest of the run that starts from it says.
        manifest: its own.
        config: what it was trained with.
    """

    checkpoint: Path
    record: dict[str, Any]
    manifest: dict[str, Any]
    config: Config

    def weights(self, model: torch.nn.Module, *, tokenizer_sha256: str) -> dict[str, torch.Tensor]:
        """Return the weights, which have the shapes of those of ``model``.

        Args:
            model: the new model.
            tokenizer_sha256: of its tokenizer.

        Raises:
            UserError: the tokenizer is another, or a weight has another shape.
        """
        if self.manifest["tokenizer_sha256"] != tokenizer_sha256:
            raise UserError(
                f"training.start_from = {self.record['run']}: it was trained with another tokenizer; give the new run the "
                "tokenizer of that one (data.tokenizer)"
            )
        weights = read_weights(self.checkpoint)
        for name, own in model.state_dict().items():
            if name not in weights or weights[name].shape != own.shape:
                found = "is missing" if name not in weights else f"has the shape {list(weights[name].shape)}"
                raise UserError(
                    f"training.start_from = {self.record['run']}: its weight {name} {found}, and that of the new run has "
                    f"{list(own.shape)}; vocabulary and learned positions must be the same"
                )
        return weights

    def warn_of_same_rows(self, config: Config, *, tokens_sha256: str) -> None:
        """Log a warning if a run with this configuration, on text with this hash, draws the rows of this stage again.

        Where contents are not contiguous, rows depend on their chunks, too.
        """
        drawn, own = (
            (
                of.training.seed,
                of.training.batch_rows,
                of.context.row_len,
                of.pose.contents,
                of.synthetic.train_lengths,  # the hash of a synthetic task does not have these two
                of.synthetic.max_sparsity,
            )
            for of in (self.config, config)
        )
        is_same_text = self.manifest.get("tokens_sha256") == tokens_sha256
        if drawn == own and is_same_text and config.pose.contents == "contiguous":
            logger.warning(
                f"training.start_from = {self.record['run']}: this run draws the rows of its first stage again, in the same "
                f"order; with another training.seed than {config.training.seed} it draws others"
            )


def open_first_stage(config: Config, folder: Path) -> FirstStage:
    """Open the run that ``training.start_from`` names.

    Args:
        config: the experiment.
        folder: of the run that starts from it.

    Raises:
        UserError: it is no trained run, or the same run, it is damaged, its model is another, or its rows are
            longer.
    """
    run = Path(config.training.start_from or "")
    where = f"training.start_from = {run}"
    if not is_folder_of_kind(run, "run"):
        raise UserError(f"{where}: no such run; name the folder of a trained run")
    if run.resolve() == folder.resolve():  # --overwrite would delete its weights
        raise UserError(f"{where}: this is the folder of the new run; choose another one for that with --run DIR")
    checkpoint = trained_checkpoint(run, where=where)
    manifest = read_manifest_of(run, "tokenizer_sha256")
    for key in different_keys(manifest["config"], to_dict(config), free=DRAWN_KEYS):
        if key.dotted.startswith("model."):
            raise UserError(
                f"{where}: it was trained with {key.dotted} = {key.first!r}, not {key.second!r}; its weights do not fit"
            )
    of_first = read_config_of(run)
    row_len, own_row_len = of_first.context.row_len, config.context.row_len
    if row_len > own_row_len and "synthetic_task" not in manifest:  # a row of a synthetic task is as long as its prompt
        raise UserError(
            f"{where}: it was trained on rows of {row_len} tokens, longer than {own_row_len} here, so a gain beyond "
            f"{own_row_len} tokens would be none beyond what the model has seen; set context.train_len to {row_len} or more, or "
            "name a run with shorter rows"
        )
    info = check_checkpoint_of_run(checkpoint, manifest)
    verify_checkpoint(checkpoint)
    if manifest["status"] != "complete" or manifest.get("steps") != info.step:
        logger.warning(
            f"{where}: its training is not finished, or its last checkpoint is gone; this run starts from {checkpoint.name}"
        )
    named = {"run": folder_name(run), "folder": str(run.resolve())}
    return FirstStage(checkpoint, {**named, "run_id": info.run_id, **info.record}, manifest, of_first)
