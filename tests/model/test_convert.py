"""Runs as models of transformers: against OLMo, without OLMo, and what is refused."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import PLAIN, build, converted

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.model.checkpoint import read_model
from olmo_sparsity.model.convert import to_transformers
from olmo_sparsity.model.olmo import load_model

# A process in which `import olmo` fails measures a run.
WITHOUT_OLMO = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("olmo", "olmo_data"):
            raise ModuleNotFoundError(name)

if __name__ == "__main__":
    sys.meta_path.insert(0, Refuses())
    from olmo_sparsity.cli.app import main
    main()
"""


@torch.no_grad()
def test_a_checkpoint_is_opened_as_the_model_that_was_trained(tiny_run: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(tiny_run / "checkpoints" / "latest", tmp_path / "step12"))
    ours, theirs = load_model(checkpoint, torch.device("cpu")), to_transformers(*read_model(checkpoint))
    tokens = torch.arange(1, 19)[None]
    expected = ours(tokens, torch.arange(18)[None])[..., : ours.vocab_size]
    torch.testing.assert_close(theirs(tokens).logits, expected, atol=1e-5, rtol=0)
    info = read_json(checkpoint / "train.json")
    info["sha256"]["model.pt"] = info["sha256"]["optim.pt"]
    write_json(checkpoint / "train.json", info)
    with pytest.raises(UserError, match=r"model\.pt: missing, cut short or changed"):
        read_model(checkpoint)


@pytest.mark.parametrize("positions", ["none", "absolute"])
def test_positions_that_are_not_rotary_are_refused_in_one_line(positions: str) -> None:
    with pytest.raises(UserError, match=r"^model\.position_embedding: transformers has no model [^\n]*synth eval`$"):
        converted(build(dataclasses.replace(PLAIN, position_embedding=positions)))  # type: ignore[arg-type]


def test_a_run_is_measured_where_olmo_is_not_installed(tiny_run: Path, tmp_path: Path) -> None:
    run, script = shutil.copytree(tiny_run, tmp_path / "run", symlinks=True), tmp_path / "without_olmo.py"
    script.write_text(WITHOUT_OLMO)
    options = ["--selector", "kl", "--k", "1", "influence.num_windows=4", "influence.resampled_draws=0"]
    ended = subprocess.run(
        [sys.executable, script, "influence", "--run", run, "--out", tmp_path / "tables", *options],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("tables/windows/*.parquet"))) == 1
