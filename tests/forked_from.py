"""What the process that commands are forked from has imported and done; ``started_commands`` starts it."""

from __future__ import annotations

import gc

import torch.distributed.launcher.api  # noqa: F401
from typer.testing import CliRunner

import olmo_sparsity.measure.influence
import olmo_sparsity.model.pretrained
import olmo_sparsity.train.loop
import olmo_sparsity.train.parallel  # noqa: F401
from olmo_sparsity.cli.app import app

CliRunner().invoke(app, ["config"])  # what the first command sets up
gc.collect()
gc.freeze()  # what is here is shared by all
