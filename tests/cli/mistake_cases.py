"""The mistakes that users make, one row each: the command, what its line must say, and the input.

The commands run in a folder with ``words.jsonl`` (400 documents), ``tiny.yaml``, the trained run ``runs/tiny``, its tables in
``tables`` and its prepared text in ``data``. Add a row for a mistake that was not met before.
"""

from __future__ import annotations

import os
from pathlib import Path

from mistakes import Case, file

LONG = "x" * 300
DIGITS = "9" * 5000
TRAIN = "train --config tiny.yaml --run new training.steps=1"
PREPARE = "prepare --config tiny.yaml data.cache_dir=new"
INFLUENCE = "influence --config tiny.yaml --run runs/tiny --k 2"
EXPLAIN = "explain --run runs/tiny --text document.txt"


def document() -> None:
    Path("document.txt").write_text("river stone cloud garden window paper lamp bridge forest " * 20)


ARGUMENTS = [
    Case("nope", "error: no such command 'nope'; see olmo-sparsity --help"),
    Case("tra", "no such command 'tra'"),
    Case("--nope", "error: no such option: --nope"),
    Case("train --nope", "error: train: no such option: --nope"),
    Case("train --steps 5", "train: no such option: --steps"),
    Case("train --overwrite=1", "option '--overwrite' does not take a value"),
    Case("export x", "export: no such command 'x'"),
    Case("export hf", "export hf: missing argument 'RUN'; see olmo-sparsity export hf --help"),
    Case("export hf runs/tiny", "export hf: missing argument 'DIR'"),
    Case("export hf a b c", "export hf: got unexpected extra argument"),
    Case("influence --k", "option '--k' requires an argument"),
    Case("influence --selector x", "influence: invalid value for '--selector': 'x' is not one of 'unmask-one'"),
    Case("influence --selector '[bold]x'", "'[bold]x' is not one of 'unmask-one'"),
    Case("influence --precision fp64", "invalid value for '--precision': 'fp64' is not one of 'auto', 'fp32', 'bf16'"),
    Case("influence --path x", "invalid value for '--path'"),
    Case("influence --visibility x", "invalid value for '--visibility': 'x' is not one of 'hidden', 'contextual'"),
    Case("influence --anchor x", "invalid value for '--anchor'"),
    Case("figures --width x", "invalid value for '--width': 'x' is not one of 'screen', 'one', 'two'"),
    Case("show tables 1 --context x", "invalid value for '--context': 'x' is not one of 'real', 'null'"),
    Case("show tables 1 --selector x", "invalid value for '--selector'"),
    Case("show", "show: missing argument '[RUN] WINDOW'"),
    Case("show tables", "show tables: give a run and the number of a window"),
    Case("show 1", "show 1: give a run and the number of a window"),
    Case("show tables 1 2", "show tables 1 2: give a run and the number of a window"),
    Case("merge", "merge: missing argument 'DIR...'"),
    Case("merge tables", "merge: give either --check, or --out DIR"),
    Case("merge tables --check --out new", "merge: give either --check, or --out DIR"),
    Case("explain", "explain: missing option '--text'"),
    Case("explain --text words.jsonl", "explain: give one place, either --at OFFSET or --target TEXT"),
    Case(
        "explain --text words.jsonl --at 1 --target x", "explain: give one place, either --at OFFSET or --target TEXT"
    ),
    Case("summary extra", "'extra': an override is written key=value"),
    Case("summary --run a --run b --tables x", "summary: with several runs there is no --tables"),
    Case("compare", "compare: name two runs or more"),
    Case("compare tables", "compare: name two runs or more"),
    Case("compare tables:nope tables", "nope"),
    Case("compare --revision x", "compare: --revision x is that of one --model; 0 are given"),
    Case("prepare --out x", "prepare: no such option: --out"),
    Case("train --model x", "train: x is a model from elsewhere"),
    Case("influence --revision x", "pretrained.revision = x: there is no pretrained.model"),
    Case("influence --shard x", "--shard x: must be I/N"),
    Case("influence --shard 2/2", "--shard 2/2: must be I/N"),
    Case("influence --shard 0/0", "--shard 0/0: must be I/N"),
    Case("influence --shard 0/2 --overwrite", "--overwrite: with 2 processes"),
    Case("'\x1b[31mred'", "no such command '\\x1b[31mred'"),
    Case("train --$'\x1b[31mred'", "no such option"),
    Case("show '\x1b[31mred' x", "show \ufffd[31mred x: give a run"),
    Case("train '\x1b[31mred=1'", "there is no key '\\x1b[31mred' here"),
    Case("summary --tables $'a\nb'", "there are no influence tables here"),
]

PATHS = [
    Case(f"summary --tables {LONG}", f"{LONG}: the name is too long; choose a shorter one"),
    Case(f"summary --run {LONG}", "the name is too long"),
    Case(f"show {LONG} 1", "the name is too long"),
    Case(f"compare {LONG} tables", "the name is too long"),
    Case(f"merge {LONG} --check", "the name is too long"),
    Case(f"merge tables --out {LONG}", "the name is too long"),
    Case(f"figures --run runs/tiny --tables {LONG}", "the name is too long"),
    Case(f"report --tables tables --out {LONG}", "the name is too long"),
    Case(f"export hf {LONG} new", "the name is too long"),
    Case(f"export hf runs/tiny {LONG}", "the name is too long"),
    Case(f"train --config tiny.yaml --run {LONG}", "the name is too long"),
    Case(f"explain --text {LONG} --at 5 --run runs/tiny", "the name is too long"),
    Case(f"config --config {LONG}", "cannot read this configuration (File name too long)"),
    Case(f"prepare --config tiny.yaml data.cache_dir={LONG}", "the name is too long"),
    Case(f"{PREPARE} data.tokenizer={LONG}", "the name is too long"),
    Case(f"{PREPARE} data.source={LONG}.jsonl", "no such file, folder or glob"),
    Case("summary --tables no", "no: there are no influence tables here"),
    Case("summary --tables words.jsonl", "words.jsonl: this is a file, where a influence folder was expected"),
    Case("summary --tables words.jsonl/x", "there are no influence tables here"),
    Case("config --config no.yaml", "no.yaml: cannot read this configuration (No such file or directory)"),
    Case("config --config runs", "runs: cannot read this configuration (Is a directory)"),
    Case("explain --text no --at 5 --run runs/tiny", "no: no such file"),
    Case("explain --text runs --at 5 --run runs/tiny", "runs: no such file"),
    Case("report --tables tables --out tables", "tables: this is a folder; --out names the HTML file to write"),
    Case("report --tables tables --out words.jsonl", "words.jsonl: the file exists; --overwrite replaces it"),
    Case("report --tables tables --out words.jsonl/x", "words.jsonl: cannot make this folder (File exists)"),
    Case("report --tables tables --out /proc/x.html", "/proc/x.html: no such file or folder"),
    Case("export hf no new", "no"),
    Case("export hf runs/tiny words.jsonl", "words.jsonl"),
    Case("export hf runs/tiny tables", "tables: this is no hf folder"),
    Case("merge no --check", "no: no such folder"),
    Case("influence --model no.gguf", "no.gguf"),
    Case("influence --model x.gguf", "x.gguf", file("x.gguf", "abc")),
    Case("influence --model words.jsonl", "words.jsonl"),
    Case("influence --model empty", "empty", lambda: os.mkdir("empty")),
    Case(f"{INFLUENCE} --data no.jsonl", "no.jsonl: no such file, folder or glob"),
    Case("summary --tables no\udcff", "no\ufffd: this name is not UTF-8"),
    Case("train --config tiny.yaml --run no\udcff", "no\ufffd: this name is not UTF-8"),
    Case("config name=no\udcff", "name=no\ufffd: this name is not UTF-8"),
]
