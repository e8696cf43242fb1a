"""The commands ``prepare``, ``train``, ``export hf`` and ``config``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Optional

import typer

from olmo_sparsity.cli.messages import print_line
from olmo_sparsity.cli.options import ConfigOption, Overrides, OverwriteOption, RunOption, resolve
from olmo_sparsity.cli.steps import interruptible
from olmo_sparsity.config import config_folder, to_yaml
from olmo_sparsity.errors import UserError

logger = logging.getLogger(__name__)


def prepare(config: ConfigOption = None, run: RunOption = None, overrides: Overrides = None) -> None:
    """Tokenize the text: write token files in OLMo's format, and the tokenizer."""
    from olmo_sparsity.text.prepare import describe
    from olmo_sparsity.text.prepare import prepare as prepare_tokens

    loaded, *_ = resolve(config, run, overrides=overrides)
    with interruptible():
        folder = prepare_tokens(loaded.data)
    for line in describe(folder):
        logger.info(line)
    print_line(folder)


def train(
    config: ConfigOption = None,
    run: RunOption = None,
    overwrite: OverwriteOption = False,
    model: Annotated[Optional[str], typer.Option("--model", hidden=True)] = None,
    overrides: Overrides = None,
) -> None:
    """Train the model, or resume its training. Prepares the text first if it is not prepared yet."""
    loaded, folder, _ = resolve(config, run, overrides=overrides, model=model)
    if loaded.pretrained.model is not None:
        raise UserError(
            f"train: {loaded.pretrained.model} is a pretrained model, which is measured and never trained; leave --model "
            "and pretrained.model out"
        )
    from olmo_sparsity.train.loop import train as train_model

    with interruptible():
        train_model(loaded, folder, overwrite=overwrite)


def export_hf(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a trained run; its newest checkpoint is exported.")
    ],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write: new or empty.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in this folder.")] = False,
) -> None:
    """Write model and tokenizer as a Hugging Face folder, which transformers loads without code of this package."""
    from olmo_sparsity.export import export_hf as write_hf

    exported = write_hf(run, out, overwrite=overwrite)
    logger.info(
        f"{exported.architecture}, {exported.num_parameters / 1e6:.2f}M parameters; loaded with transformers, its logits "
        f"differ from those of the run by at most {exported.largest_logit_difference:.2g}"
    )
    print_line(out)


def show_config(config: ConfigOption = None, run: RunOption = None, overrides: Overrides = None) -> None:
    """Print the configuration that the other commands would use, with an explanation of every key."""
    loaded, *_ = resolve(config, run, overrides=overrides)
    folder = config_folder()
    shipped = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))
    print(f"# Configurations in this package: {', '.join(shipped)}")
    print(to_yaml(loaded, explain=True), end="")
