"""Runs as models of transformers: every kind has an equal one, what has none is refused, and OLMo need not be installed."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import PLAIN, VOCAB, build, converted, rows

from olmo_sparsity.errors import UserError

# A process in which `import olmo` fails measures a run, and waits for no library of some selectors or of figures.
WITHOUT_OLMO = """
import sys
sys.modules["olmo"] = sys.modules["olmo_data"] = None
import olmo_sparsity.api, olmo_sparsity.measure.influence
from olmo_sparsity.cli.app import main
assert not {"sklearn", "matplotlib"} & set(sys.modules)
main()
"""


@pytest.mark.parametrize("tying", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(("norm", "normed_queries"), product(["default", "rms"], [False, True]))
@torch.no_grad()
def test_every_model_has_an_equivalent(norm: Any, normed_queries: bool, tying: bool) -> None:
    kind = dataclasses.replace(PLAIN, layer_norm_type=norm, attention_layer_norm=normed_queries, weight_tying=tying)
    model = build(kind).eval()
    theirs = converted(model)
    name = "Olmoe" if normed_queries else {"rms": "Llama", "default": "Olmo"}[norm]
    assert type(theirs).__name__ == f"{name}ForCausalLM"
    tokens, gaps = rows(6, 20)
    in_order = torch.arange(20).expand(6, -1)
    ours, apart = model(tokens, in_order)[..., :VOCAB], model(tokens, gaps)[..., :VOCAB]
    assert (ours - apart).abs().max() > 1e-2 and ours.std() > 0.3  # otherwise the positions would not be tested
    torch.testing.assert_close(theirs(input_ids=tokens).logits, ours, atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs(input_ids=tokens, position_ids=gaps).logits, apart, atol=1e-5, rtol=0)


@pytest.mark.parametrize("positions", ["none", "absolute"])
def test_positions_that_are_not_rotary_are_refused_in_one_line(positions: Any) -> None:
    with pytest.raises(UserError, match=r"^model\.position_embedding: transformers has no model [^\n]*synth eval`$"):
        converted(build(dataclasses.replace(PLAIN, position_embedding=positions)))


def test_a_run_is_measured_where_olmo_is_not_installed(tiny_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run", symlinks=True)
    options = ["--selector", "kl", "--k", "1", "influence.num_windows=4", "influence.resampled_draws=0"]
    command = [sys.executable, "-c", WITHOUT_OLMO, "influence", "--run", run, "--out", tmp_path / "tables", *options]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("tables/windows/*.parquet"))) == 1
