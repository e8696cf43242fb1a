"""The commands that ``benchmarks/faults.py`` disturbs, with tiny inputs, and what they must have written in the end.

A command writes into ``{out}`` alone, and reads ``{base}``.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import torch

WORDS = (
    "river stone cloud garden window paper lamp bridge forest silver morning winter quiet yellow the a of and to in was"
)
TINY_YAML = """
name: tiny
data: {{source: {base}/words.jsonl, tokenizer: "bpe:320", cache_dir: {base}/data, validation_percent: 30}}
context: {{local_len: 8, full_len: 20}}
model: {{d_model: 32, n_heads: 2, n_layers: 2, mlp_ratio: 4}}
training: {{steps: 20, batch_rows: 16, warmup_steps: 2, checkpoint_every: 4, eval_every: 10, eval_rows: 32, log_every: 1,
           compile: never, precision: fp32, threads: 1}}
influence: {{num_windows: 60, windows_per_part: 10, k: [1, 2, 8], batch_tokens: 700}}
"""
PARITY_YAML = """
name: parity
context: {local_len: 2, full_len: 24, train_len: 8}
model: {d_model: 16, n_heads: 2, n_layers: 1, mlp_ratio: 2}
training: {steps: 20, batch_rows: 8, warmup_steps: 2, checkpoint_every: 4, eval_every: 10, eval_rows: 8, log_every: 1,
           compile: never, precision: fp32, threads: 1}
synthetic: {max_sparsity: 3, train_lengths: [4, 8], test_lengths: [6, 12], test_sparsity: [1, 3], test_rows: 400}
"""
MEASURE = "--config {base}/tiny.yaml --run {base}/run"
SYNTH = "--config {base}/parity.yaml"
# What the others read, made once, undisturbed.
BASE = (
    "train --config {base}/tiny.yaml --run {base}/run",
    f"influence {MEASURE} --out {{base}}/tables --selector kl --selector random",
    f"influence {MEASURE} --out {{base}}/share0 --shard 0/2",
    f"influence {MEASURE} --out {{base}}/share1 --shard 1/2",
    f"synth train parity {SYNTH} --run {{base}}/parity",
    "export hf {base}/run {base}/hf",
)
COMMANDS = {
    "prepare": "prepare --config {base}/tiny.yaml data.cache_dir={out}/data",
    "train": "train --config {base}/tiny.yaml --run {out}/run",
    "influence": f"influence {MEASURE} --out {{out}}/tables",
    "merge": "merge {base}/share0 {base}/share1 --out {out}/merged",
    "synth train": f"synth train parity {SYNTH} --run {{out}}/parity",
    "synth eval": f"synth eval parity {SYNTH} --run {{base}}/parity --out {{out}}/answers",
    "figures": "figures --tables {base}/tables --out {out}/figures",
    "report": "report --tables {base}/tables --out {out}/report.html --overwrite",
    "export hf": "export hf {base}/run {out}/hf --overwrite",
    "influence of a model": "influence --model {base}/hf --data {base}/words.jsonl data.cache_dir={out}/data --run {out}/model "
    "--local-len 8 --full-len 20 --num-windows 40 --k 2 --selector kl influence.windows_per_part=10",
    "explore": "explore --run {base}/run --text {base}/one.txt --selector kl --k 2 --out {out}/explore.html --overwrite",
}
# Keys of what depends on the clock, or on which process wrote it; the checksum of a manifest is of these, too.
CHANGING = (
    "tokens_per_second",
    "seconds",
    "finished",
    "speed",
    "run_id",
    "starts",  # a resumed run has several
    "time",  # of a request
)
ENDS = {".png": b"IEND\xaeB`\x82", ".pdf": b"%%EOF\n", ".html": b"</html>", ".parquet": b"PAR1"}


def write_inputs(base: Path) -> None:
    """Write invented documents and the two configurations."""
    rng, words = random.Random(0), WORDS.split()
    lines = [json.dumps({"text": " ".join(rng.choices(words, k=rng.randint(10, 60)))}) for _ in range(400)]
    (base / "words.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (base / "one.txt").write_text(" ".join(rng.choices(words, k=200)), encoding="utf-8")
    (base / "tiny.yaml").write_text(TINY_YAML.format(base=base), encoding="utf-8")
    (base / "parity.yaml").write_text(PARITY_YAML, encoding="utf-8")


def is_partial(path: Path) -> bool:
    """Return True for a temporary file, or one in a temporary folder."""
    return any(part.endswith((".partial", ".lock")) for part in path.parts)


def files(out: Path) -> list[Path]:
    """Return every file below a folder, temporary ones included, relative to it."""
    return sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file() or path.is_symlink())


def contents(out: Path) -> dict[str, Any]:
    """Return what a finished command wrote, by path, so that two results can be compared with ``==``; torn files raise."""
    # A session is a file a process, and each that continues has its own.
    names = [name for name in files(out) if not is_partial(name) and name.parent.name != "sessions"]
    return {str(name): _content(out / name) for name in names}


def torn(out: Path) -> list[str]:
    """Return the files that have their name and are not whole."""
    found = []
    for name in files(out):
        try:
            if not is_partial(name):
                _content(out / name)
        except Exception as error:  # any reader may fail in any way
            found.append(f"{name}: torn ({type(error).__name__})")
    return found


def _content(path: Path) -> Any:
    """Return the content of a file without what depends on the clock. Raise any error if it is torn."""
    if path.is_symlink():
        return str(path.readlink())
    content = path.read_bytes()
    if not content and path.suffix != ".bin":
        raise ValueError("empty")
    if path.name == "estimates.parquet":  # its key has the time at which the measurement was finished
        return pd.read_parquet(path).to_csv()
    if path.suffix == ".json":
        return _without_clock(json.loads(content))
    if path.suffix == ".jsonl":
        # The last line may be cut: whoever resumes drops it.
        return [_without_clock(json.loads(line)) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    if path.suffix == ".pt":
        torch.load(path, weights_only=True)  # raises where it is torn
        return content
    if not content.rstrip(b"\n").endswith(ENDS.get(path.suffix, b"").rstrip(b"\n")):
        raise ValueError("no end")
    if path.suffix == ".pdf":
        return re.sub(rb"/CreationDate \([^)]*\)", b"", content)
    return content


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clock(item) for key, item in value.items() if key not in CHANGING}
    return [_without_clock(item) for item in value] if isinstance(value, list) else value
