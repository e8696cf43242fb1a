"""The mistakes that users make, one row each: the command, what its line must say, and the input.

The commands run in a folder with ``words.jsonl`` (400 documents), ``tiny.yaml``, the trained run ``runs/tiny``, its tables in
``tables`` and its prepared text in ``data``. Add a row for a mistake that was not met before.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from mistakes import Case, file

LONG = "x" * 300
DIGITS = "9" * 5000
TRAIN = "train --config tiny.yaml --run new training.steps=1"
PREPARE = "prepare --config tiny.yaml data.cache_dir=new"
INFLUENCE = "influence --config tiny.yaml --run runs/tiny --k 2"
EXPLORE = "explore --run runs/tiny --text document.txt"


def document() -> None:
    Path("document.txt").write_text("river stone cloud garden window paper lamp bridge forest " * 20)


ARGUMENTS = [
    Case("nope", "error: no such command 'nope'; see olmo-sparsity --help"),
    Case("tra", "no such command 'tra'"),
    Case("sumary", "error: no such command 'sumary'. Did you mean 'summary'? See olmo-sparsity --help"),
    Case("--nope", "error: no such option: --nope"),
    Case("train --nope", "error: train: no such option: --nope"),
    Case("train --steps 5", "train: no such option: --steps"),
    Case("train --overwrite=1", "train: option '--overwrite' does not take a value"),
    Case("export x", "export: no such command 'x'"),
    Case("export hf", "export hf: missing argument 'RUN'; see olmo-sparsity export hf --help"),
    Case("export hf runs/tiny", "export hf: missing argument 'DIR'"),
    Case("export hf a b c", "export hf: got unexpected extra argument"),
    Case("influence --k", "influence: option '--k' requires an argument"),
    Case("influence --selector x", "influence: invalid value for '--selector': 'x' is not one of 'unmask-one'"),
    Case("influence --selector '[bold]x'", "'[bold]x' is not one of 'unmask-one'"),
    Case("influence --precision fp64", "invalid value for '--precision': 'fp64' is not one of 'auto', 'fp32', 'bf16'"),
    Case("influence --visibility x", "invalid value for '--visibility': 'x' is not one of 'hidden', 'contextual'"),
    Case("show tables 1 --context x", "invalid value for '--context': 'x' is not one of 'real', 'null'"),
    Case("show tables 1 --selector x", "--selector x: not measured in tables"),
    Case("show", "show: missing argument '[RUN] WINDOW'"),
    Case("show tables 1 --revision x", "show: --revision x needs --model"),
    Case("summary --tables tables influence.local_len=8", "summary: got unexpected extra argument"),
    Case("report --run runs/tiny influence.seed=1", "report: got unexpected extra argument"),
    Case("influence pretrained.train_len=8", "are about a pretrained model, and none is named"),
    Case(
        "train pretrained.rope_scaling=yarn pretrained.rope_factor=2", "are about a pretrained model, and none is named"
    ),
    Case("show tables", "show tables: give a run and the number of a window"),
    Case("show 1", "show 1: give a run and the number of a window"),
    Case("show tables 1 2", "show tables 1 2: give a run and the number of a window"),
    Case("merge", "merge: missing argument 'DIR...'"),
    Case("merge tables", "merge: give either --check, or --out DIR"),
    Case("merge tables --check --out new", "merge: give either --check, or --out DIR"),
    Case("explore", "explore: missing option '--text'"),
    Case("explore --text words.jsonl --at 1 --out p.html", "explore: --at prints one place and writes no page"),
    Case("explore --text words.jsonl --selector x", "explore: invalid value for '--selector'"),
    Case("explore --text words.jsonl --selector own.py:mine", "own.py: cannot read this file"),
    Case("summary --run a --run b --tables x", "summary: with several runs there is no --tables"),
    Case("summary --tables a --tables b", "--tables a --tables b: one measurement is shown at a time"),
    Case("report --tables tables --tables no --out new.html", "one measurement is shown at a time; compare takes two"),
    Case("figures --run runs/tiny --tables a --tables a", "--tables a --tables a: one measurement is shown at a time"),
    Case("compare", "compare: missing argument 'A'"),
    Case("compare tables", "compare: missing argument 'B'"),
    Case("compare tables:kl tables", "compare: name a selector for both runs, as RUN:kl, or for none"),
    Case("compare tables:nope tables", "nope"),
    Case("prepare --out x", "prepare: no such option: --out"),
    Case("train --model x", "train: x is a pretrained model"),
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

MESSAGES = [
    Case("train --quiet=1", "error: train: option '--quiet' does not take a value"),
    Case("--verbose=1 train", "error: option '--verbose' does not take a value"),
    Case("synth --quiet=1", "error: synth: option '--quiet' does not take a value; see olmo-sparsity synth --help"),
    Case("train --quiet --nope", "train: no such option: --nope"),
    Case("train -qx", "train: no such option: -x"),
    Case("export hf --quiet", "export hf: missing argument 'RUN'"),
    Case("synth --quiet eval -v", "synth eval: missing argument 'TASK'"),
    *(
        Case(f"{command} -q --tables no", "no: there are no influence tables here")
        for command in ("summary", "report", "figures")
    ),
]

# A key that is given twice, or has no effect.
KEYS = [
    Case(command, line, make)
    for command, line, make in [
        (f"{INFLUENCE} influence.k=[1]", "influence.k=[1]: an option of this command gives influence.k, too", None),
        (
            "influence --k all influence.k=[3]",
            "influence.k=[3]: an option of this command gives influence.k_grid",
            None,
        ),
        (f"{INFLUENCE} 'influence={{seed: 2, k: [1]}}'", "an option of this command gives influence.k, too", None),
        (
            "influence --local-len 4 influence.local_len=5",
            "an option of this command gives influence.local_len",
            None,
        ),
        ("influence --model a.gguf 'pretrained={model: b}'", "beside --model there is no pretrained.model", None),
        ("influence --revision a pretrained.revision=b", "beside --revision there is no pretrained.revision", None),
        (f"{EXPLORE} --at 300 --k 2 influence.k=[1]", "an option of this command gives influence.k, too", document),
        (f"{EXPLORE} --at 300 --seed 1 influence.seed=2", "an option of this command gives influence.seed", document),
        (f"{EXPLORE} --at 300 influence.selectors=[random]", "measures the selectors that --selector names", document),
        (
            f"{EXPLORE} influence.selectors=[random]",
            "this command measures the selectors that --selector names",
            document,
        ),
        (f"{EXPLORE} --k 2 influence.k=[1]", "an option of this command gives influence.k, too", document),
        ("synth train parity --run new pretrained.train_len=5", "the keys of pretrained are about", None),
        ("synth eval parity --run new pretrained.model=x", "the keys of pretrained are about", None),
    ]
]

UNITS = [
    Case(f"{INFLUENCE} --unit x", "influence.unit = x: must be token, word, sentence, or block:N with N tokens"),
    Case(f"{INFLUENCE} --unit ''", "influence.unit = : must be token, word, sentence, or block:N"),
    Case(f"{INFLUENCE} --unit block", "influence.unit = block: must be token"),
    Case(f"{INFLUENCE} --unit block:0", "influence.unit = block:0: must be token"),
    Case(f"{INFLUENCE} --unit block:-1", "influence.unit = block:-1: must be token"),
    Case(f"{INFLUENCE} --unit block:{DIGITS}", "must be token, word, sentence, or block:N"),
    Case(
        f"{INFLUENCE} --unit block:12",
        "influence.k = [2]: there is only 1 block of 12 among the M = 12 long-range tokens",
    ),
    Case(f"{EXPLORE} --at 300 --unit x", "influence.unit = x: must be token", document),
]

OWN = [
    Case(
        "influence --selector no.py:f",
        "no.py: cannot read this file (No such file or directory); name one as FILE.py:NAME",
    ),
    Case("influence --selector words.jsonl:f", "'words.jsonl:f' is not one of 'unmask-one'"),
    Case(
        f"{INFLUENCE} --selector own.py:",
        "own.py: '': name a selector by a letter and up to 39",
        file("own.py", "def f(w): ..."),
    ),
    Case(
        f"{INFLUENCE} --selector own.py:g",
        "own.py: no function or selector is named g here",
        file("own.py", "def f(w): ..."),
    ),
    Case(
        f"{INFLUENCE} --selector own.py:f",
        "own.py: TypeError: f() takes 0 positional arguments",
        file("own.py", "def f(): ..."),
    ),
    Case(f"{INFLUENCE} --selector own.py:f", "own.py:2: SyntaxError: ", file("own.py", "\ndef f(:")),
    Case(
        f"{INFLUENCE} --selector own.py:f",
        "own.py:2: KeyError: 'x', in the selector f",
        file("own.py", "def f(window):\n    return {}['x']"),
    ),
    Case(
        f"{INFLUENCE} --selector own.py:f",
        "own.py: the selector f returned scores of shape (1, 20), not (1, 12)",
        file("own.py", "def f(window): return window.token_ids"),
    ),
    Case(
        f"{INFLUENCE} --selector own.py:f --selector ./own.py:f",
        "./own.py:f: another selector is named f; choose another name",
        file("own.py", "def f(window): ..."),
    ),
    Case(f"{INFLUENCE} influence.selectors=[a.py:f]", "a.py:f: a file is run only where --selector names it"),
]

MODELS = [
    Case("influence --model no.gguf --train", "--train: no.gguf is a pretrained model, which is never trained"),
    Case("explore --model no.gguf --text document.txt --at 5", "no.gguf: ", document),
    Case("summary --model no.gguf", "runs/no: nothing has been measured yet; run `olmo-sparsity influence` first"),
    Case("report --model no.gguf --out new.html", "nothing has been measured yet"),
    Case("show --model no.gguf 1", "runs/no: no such folder; expected a run or an influence folder"),
    Case("compare tables runs/no", "runs/no: no such folder; expected a run or an influence folder"),
    Case("influence --model empty --revision x", "only the hub has revisions", lambda: os.mkdir("empty")),
    Case("figures --model no.gguf --train", "--train: no.gguf is a pretrained model, which is never trained"),
    Case("train pretrained.model=no.gguf", "train: no.gguf is a pretrained model"),
    Case("influence --model models/none/llama", "models/none/llama: no such folder or file"),
    Case("influence --model runs", "runs: neither a Hugging Face folder"),
    Case("summary --run runs/tiny --run runs/two --revision x", "with several runs there is no"),
]

FOLDERS = [
    Case("summary --run runs/none", "runs/none: no such folder; name another, or run `olmo-sparsity influence` first"),
    Case("report --run words.jsonl", "words.jsonl: no such folder"),
    Case("summary", "runs/demo: nothing has been trained or measured yet; run `olmo-sparsity influence` first"),
    Case("summary --run runs/tiny --run runs/none", "runs/none: there is no training run here"),
    Case("summary --run runs/tiny --run runs/tiny", "have the same training.seed = 0"),
    Case("summary --tables runs/tiny", "is no influence folder"),
    Case("summary --tables tables --run runs/tiny", "tables: these tables are of no run, not of runs/tiny"),
    Case("figures --tables tables", "are not in a run folder; say with --out where to write"),
    Case("compare tables tables:greedy", "greedy was not measured there"),
    Case("influence --run tables", "is no run folder"),
    Case(f"{INFLUENCE} --out tables", "measured with other settings"),
    Case(f"{INFLUENCE} --out runs/tiny --overwrite", "is no influence folder"),
    Case(f"{INFLUENCE} context.full_len=16", "measure it at another length with --full-len 16"),
    Case(f"{INFLUENCE} context.local_len=20", "context.full_len = 20"),
    Case(
        "influence --config tiny.yaml --k every", "a list, such as 1,3,5, or all, or geometric (1, 2, 4, ... and all)"
    ),
    Case("influence --config tiny.yaml influence.k_grid=some", "influence.k_grid"),
    Case("train --config tiny.yaml training.steps=13", "12, not 13; choose another folder with --run DIR, where a"),
    Case("train --config tiny.yaml --run tiny.yaml", "this is a file"),
    Case(f"{TRAIN} data.cache_dir=tiny.yaml", "cannot make this folder"),
    Case(f"{TRAIN} data.source=nowhere", "nowhere: no such file"),
    Case(f"{EXPLORE} --out words.jsonl", "words.jsonl: this is no page that olmo-sparsity wrote", document),
    Case(f"{EXPLORE} --out words.jsonl --overwrite", "words.jsonl: this is no page that", document),
]

SYNTHETIC = [
    Case("synth nope", "synth: no such command 'nope'"),
    Case("synth train", "synth train: missing argument 'TASK'; see olmo-sparsity synth train --help"),
    Case("synth train nope", "synth: no task is named 'nope'; there are parity"),
    Case("synth eval nope", "synth: no task is named 'nope'"),
    Case("synth eval ../parity", "synth: no task is named '../parity'"),
    Case("synth train '\x1b[31mred'", "synth: no task is named '\\x1b[31mred'"),
    Case("synth train tiny --config no.yaml", "no.yaml: cannot read this configuration"),
    Case("synth train parity --config tiny.yaml", "tiny.yaml: this configuration is of 'tiny', not of 'parity'"),
    Case("synth train parity --run runs/tiny", "config.yaml: this configuration is of 'tiny', not of 'parity'"),
    Case("synth train parity synthetic.task=x", "override 'synthetic.task=x'"),
    Case("synth train parity synthetic.max_sparsity=0", "synthetic.max_sparsity = 0: must be at least 1"),
    Case("synth train parity synthetic.train_lengths=[20,8]", "synthetic.train_lengths = [20, 8]: must be two"),
    Case("synth train parity synthetic.positions=predicted", "synthetic.positions = predicted: couples the tokens"),
    Case("synth train parity synthetic.locality=1", "synthetic.locality = 1: too few tokens for k = 8"),
    Case("synth train variables synthetic.num_names=1", "synthetic.num_names = 1: the longest prompt"),
    Case("synth train variables synthetic.background=text", "synthetic.background = text: only for"),
    Case("synth train parity synthetic.modulus=1", "synthetic.modulus = 1: must be at least 2"),
    Case("synth train parity synthetic.background=prose", "override 'synthetic.background=prose'"),
    Case(
        "synth train parity synthetic.test_row_len=7",
        "synthetic.test_row_len = 7: of a prompt of 8 tokens 7 lie inside",
    ),
    Case("synth train parity context.full_len=90", "pose.max_position = 90: the longest sequence has 102 tokens"),
    Case("synth train parity synthetic.test_lengths=[]", "synthetic.test_lengths = []: must be"),
    Case("synth train parity training.stop_loss=0", "training.stop_loss = 0.0: must be"),
    Case("synth train sum data.source=no.txt --run runs/sum", "no.txt: no such file, folder or glob"),
    Case("synth summary", "synth summary: missing option '--run'"),
    Case("synth summary --run runs/tiny", "runs/tiny: no evaluation of this run is finished"),
    Case(
        "synth eval parity --out words.jsonl",
        "words.jsonl: this is a file, where a folder of the kind 'synthetic' was expected",
    ),
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
    Case(f"explore --text {LONG} --at 5 --run runs/tiny", "the name is too long"),
    Case(f"config --config {LONG}", "cannot read this configuration (File name too long)"),
    Case(f"prepare --config tiny.yaml data.cache_dir={LONG}", "the name is too long"),
    Case(f"{PREPARE} data.tokenizer={LONG}", "the name is too long"),
    Case(f"{PREPARE} data.source={LONG}.jsonl", "no such file, folder or glob"),
    Case("summary --tables no", "no: there are no influence tables here"),
    Case(
        "summary --tables words.jsonl",
        "words.jsonl: this is a file, where a folder of the kind 'influence' was expected",
    ),
    Case("summary --tables words.jsonl/x", "there are no influence tables here"),
    Case("config --config no.yaml", "no.yaml: cannot read this configuration (No such file or directory)"),
    Case("config --config runs", "runs: cannot read this configuration (Is a directory)"),
    Case("explore --text no --at 5 --run runs/tiny", "no: no such file"),
    Case("explore --text runs --at 5 --run runs/tiny", "runs: this is a folder; --text names a file with one document"),
    Case("report --tables tables --out tables", "tables: this is a folder, where a file is to be written"),
    Case("report --tables tables --out words.jsonl", "words.jsonl: this is no page that olmo-sparsity wrote"),
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

NUMBERS = [
    Case(f"{INFLUENCE} --num-windows x", "influence: invalid value for '--num-windows'"),
    Case(f"{INFLUENCE} --num-windows 1.5", "influence: invalid value for '--num-windows'"),
    Case(f"{INFLUENCE} --num-windows {DIGITS}", "influence: invalid value for '--num-windows'"),
    Case(f"{INFLUENCE} --num-windows 0", "influence.num_windows = 0: must be at least 1 and at most 1,000,000,000"),
    Case(f"{INFLUENCE} --num-windows 1000000000000000", "influence.num_windows = 1000000000000000: must be at least 1"),
    Case(f"{INFLUENCE} --seed -1", "influence.seed = -1: must be at least 0 and below 9,223,372,036,854,775,808"),
    Case(f"{INFLUENCE} --seed 18446744073709551616", "influence.seed = 18446744073709551616: must be at least 0"),
    Case(f"{INFLUENCE} --seed nan", "influence: invalid value for '--seed'"),
    Case(f"{INFLUENCE} --local-len 0", "influence.local_len = 0: must be at least 1"),
    Case(f"{INFLUENCE} --local-len 20", "influence.full_len = 20: must be larger than influence.local_len = 20"),
    Case(f"{INFLUENCE} --full-len 1e3", "influence: invalid value for '--full-len'"),
    Case(f"{INFLUENCE} --full-len 21", "influence.full_len = 21: the run is trained with 20 positions"),
    Case("influence --config tiny.yaml --k 13", "influence.k = [13]: there are only M = 12 long-range tokens"),
    Case("influence --config tiny.yaml --k 0", "influence.k = 0: must be at least 1"),
    Case("influence --config tiny.yaml --k -1", "--k -1: must be a number, such as 8"),
    Case("influence --config tiny.yaml --k x", "--k x: must be a number, such as 8"),
    Case("influence --config tiny.yaml --k ''", "--k : must be a number, such as 8"),
    Case("influence --config tiny.yaml --k 1,,2", "--k 1,,2: must be a number, such as 8"),
    Case("influence --config tiny.yaml --k \u0663", "--k \u0663: must be a number, such as 8"),
    Case(f"influence --config tiny.yaml --k {DIGITS}", "must be a number, such as 8"),
    Case(f"influence --shard 0/{DIGITS}", "must be I/N"),
    Case("influence --shard=-1/2", "--shard -1/2: must be I/N"),
    Case(f"{INFLUENCE} influence.lasso_masks=1000000000000000", "influence.lasso_masks = 1000000000000000: must be"),
    Case(
        f"{INFLUENCE} influence.resampled_draws=-1",
        "influence.resampled_draws = -1: must be at least 0 and at most 1,000",
    ),
    Case(
        f"{INFLUENCE} influence.resampled_draws=1000000000",
        "influence.resampled_draws = 1000000000: must be at least 0",
    ),
    Case(f"{INFLUENCE} influence.windows_per_part=0", "influence.windows_per_part = 0: must be at least 1"),
    Case(f"{INFLUENCE} influence.batch_tokens={DIGITS}", "override 'influence.batch_tokens=999"),
    Case(
        "influence --config tiny.yaml influence.k=[2,1]",
        "influence.k = [2, 1]: must be positive numbers in rising order",
    ),
    Case("influence --config tiny.yaml influence.k=[]", "influence.k = []: must be positive numbers in rising order"),
    Case(
        "influence --config tiny.yaml influence.k=[1000000000000000]",
        "influence.k = 1000000000000000: must be at least 1",
    ),
    Case("influence --config tiny.yaml influence.k=[x]", "override 'influence.k=[x]'"),
    Case("show tables 99", "tables: there is no window 99; its 60 windows count from 0"),
    Case("show tables 18446744073709551616", "show tables 18446744073709551616: give a run and the number of a window"),
    Case("show tables 9223372036854775808", "show tables 9223372036854775808: give a run and the number of a window"),
    Case(f"show tables {DIGITS}", "give a run and the number of a window"),
    Case("show tables \u0663", "give a run and the number of a window"),
    Case("show tables 1 --k -1", "--k -1: not measured; the measured k are 1, 2, 8"),
    Case("show tables 1 --k 99999999999999999999", "--k 99999999999999999999: not measured"),
    Case("show tables 1 --selector greedy", "--selector greedy: not measured in tables"),
    Case(f"{EXPLORE} --at -1", "offset -1: the text has", document),
    Case(f"{EXPLORE} --at 99999999999999999999", "offset 99999999999999999999: the text has", document),
    Case(f"{EXPLORE} --at 3", "offset 3: only", document),
    Case(f"{EXPLORE} --seed -1", "explore: invalid value for '--seed'", document),
    Case(f"{EXPLORE} --k 99", "99]: there are only M = 12 long-range tokens", document),
    Case(f"{EXPLORE} --unit page", "influence.unit", document),
    Case(EXPLORE, "document.txt: 0 tokens, and a window takes 20", file("document.txt", "")),
    Case(f"{TRAIN} training.batch_rows=1000000000000000", "training.batch_rows = 1000000000000000: must be at least 1"),
    Case(f"{TRAIN} training.batch_rows={DIGITS}", "override 'training.batch_rows=999"),
    Case(f"{TRAIN} training.batch_rows=10000000 context.full_len=1000000 context.train_len=1000000", "GB free"),
    Case(f"{TRAIN} model.d_model=131072", "model.d_model, model.n_layers and model.mlp_ratio: training needs at least"),
    Case(f"{TRAIN} model.d_model=1000000000000000", "model.d_model = 1000000000000000: must be at least 1"),
    Case(
        f"{TRAIN} model.n_layers=1000000000000000", "model.n_layers = 1000000000000000: must be at least 1 and at most"
    ),
    Case(f"{TRAIN} model.d_model=33", "model.d_model = 33: must be a multiple of 2 * model.n_heads = 4"),
    Case(f"{TRAIN} model.init_std=-1", "model.init_std = -1.0: must be at least 0 and at most 10"),
    Case(f"{TRAIN} model.init_std=.nan", "model.init_std = nan: must be at least 0 and at most 10"),
    Case(f"{TRAIN} training.max_grad_norm=.inf", "training.max_grad_norm = inf: must be positive"),
    Case(f"{TRAIN} training.learning_rate=.nan", "training.learning_rate = nan: must be positive"),
    Case(f"{TRAIN} training.z_loss=.inf", "training.z_loss = inf: must be at least 0"),
    Case(f"{TRAIN} training.beta1=1", "training.beta1 = 1.0: must be at least 0 and below 1"),
    Case(f"{TRAIN} training.seed=-1", "training.seed = -1: must be at least 0"),
    Case(f"{TRAIN} training.threads=1000000000000000", "training.threads = 1000000000000000: must be at least 1"),
    Case(f"{TRAIN} training.steps=null", "override 'training.steps=null'"),
    Case(f"{TRAIN} training.micro_batch_rows=3", "training.micro_batch_rows = 3: must divide training.batch_rows = 16"),
    Case(f"{TRAIN} context.full_len=1000000000000000", "context.full_len = 1000000000000000: must be at least 2"),
    Case(f"{TRAIN} pose.max_position=1000000000000000", "pose.max_position = 1000000000000000: must be at least 1"),
    Case(f"{TRAIN} pose.num_chunks=0", "pose.num_chunks = 0: must be at least 1"),
    Case(f"{TRAIN} training.device=xpu", "training.device = xpu: this machine has no such device"),
    Case(f"{TRAIN} training.device=cuda:99", "training.device = cuda:99: this machine has no such device"),
    Case(f"{PREPARE} data.validation_percent=100", "data.validation_percent = 100.0: must be above 0 and below 100"),
    Case(
        f"{PREPARE} data.max_documents=0",
        "data.max_documents = 0: must be at least 1 and at most 1,000,000,000,000, or null",
    ),
    Case(f"{PREPARE} data.processes=0", "data.processes = 0: must be at least 1 and at most 4,096, or null"),
    Case(f"{PREPARE} data.tokenizer=bpe:1", "data.tokenizer = bpe:1: between 300 and 200000 entries"),
    Case(f"{PREPARE} data.tokenizer=bpe:99999999999999999999", "data.tokenizer = bpe:99999999999999999999"),
]

TORCHRUN = [
    Case(
        "summary --tables tables",
        "LOCAL_RANK = x: this environment variable must be a number",
        variables=(("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "x")),
    ),
    Case("summary --tables tables", "RANK = x: this", variables=(("RANK", "x"), ("WORLD_SIZE", "1"))),
    Case("summary --tables tables", "RANK = \u00b2: this", variables=(("RANK", "\u00b2"), ("WORLD_SIZE", "2"))),
    Case("summary --tables tables", "RANK = 999", variables=(("RANK", DIGITS), ("WORLD_SIZE", "2"))),
    Case("summary --tables tables", "RANK = 2, WORLD_SIZE = 2", variables=(("RANK", "2"), ("WORLD_SIZE", "2"))),
    Case(
        "summary --tables tables",
        "LOCAL_RANK = 9, LOCAL_WORLD_SIZE = 2: LOCAL_RANK must be a number from 0 to LOCAL_WORLD_SIZE - 1",
        variables=(("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "9"), ("LOCAL_WORLD_SIZE", "2")),
    ),
    Case("summary --tables tables", "WORLD_SIZE = ", variables=(("RANK", "0"), ("WORLD_SIZE", ""))),
]

CONFIGURATIONS = [
    Case(
        "config --config y.yaml",
        f"y.yaml: {message}" if not message.startswith("y.yaml") else message,
        file("y.yaml", text),
    )
    for text, message in [
        (b"\xff", "not UTF-8 text, so not a configuration"),
        ("[1]", "a configuration is a mapping of keys to values"),
        ("- a", "a configuration is a mapping"),
        ("name: [", "y.yaml:1: not valid YAML"),
        ("a: b: c", "y.yaml:1: not valid YAML"),
        ("nope: 1", "y.yaml:1: nope: there is no key 'nope' here"),
        ("training: {steps: x}", "y.yaml:1: training.steps = x: must be a whole number"),
        ("training: 5", "y.yaml:1: training is a section of keys, not a value"),
        ("training: {steps: .nan}", "y.yaml:1: training.steps"),
        ("training: {steps: " + DIGITS + "}", "y.yaml:1: training.steps = 999"),
        ("name: '\x1b[31m'", "not valid YAML (unacceptable character #x001b"),
        ('name: "\\e[31m"', "name = '\\x1b[31m': must be a plain folder name"),
        ('data: {cache_dir: "a\\0b"}', "y.yaml:1: data.cache_dir = 'a\\x00b': holds a NUL"),
        ('data: {source: "\\ud800"}', "y.yaml:1: data.source = '\\ud800': holds half a surrogate pair"),
        ("name: ../x", "name = '../x': must be a plain folder name"),
        ("a: &x {b: *x}", "y.yaml"),
        ("name: '${oc.env:HOME}'", "y.yaml:1: name: ${...} interpolation is not supported"),
        ("!!python/object/apply:os.system ['ls']", "y.yaml"),
        ("training: {scheduler: x}", "training.scheduler = x: no such scheduler"),
        ("training: {trackers: [x]}", "training.trackers: no tracker is named ['x']"),
        ("influence: {selectors: [x]}", "influence.selectors: no selector is named ['x']"),
        ("influence: {selectors: []}", "influence.selectors = []: must name at least one selector"),
        ("name: {a: b}", "y.yaml"),
    ]
]

OVERRIDES = [
    Case(f"{TRAIN} {override}", line)
    for override, line in [
        ("=1", "override '=1'"),
        ("a=1", "override 'a=1': a: there is no key 'a' here"),
        ("training.stepz=3", "no key 'stepz'"),
        ("data=1", "override 'data=1': data is a section of keys, not a value"),
        ("data.source.x=1", "override 'data.source.x=1'"),
        ("'training.steps=['", "override 'training.steps=['"),
        ("'training.steps=${a}'", "${...} interpolation is not supported"),
        ("'training.steps=!!python/object:x'", "override 'training.steps=!!python/object:x'"),
        ("training.precision=fp64", "override 'training.precision=fp64'"),
        ("pretrained.device_map=x", "pretrained.device_map = x: must be auto, or null"),
        ("name=", "override 'name='"),
        ("x" * 5000 + "=1", "here; there are name, data, context"),
    ]
]


def documents(name: str, *texts: str) -> Callable[[], None]:
    return file(name, "".join(json.dumps({"text": text}) + "\n" for text in texts))


def parquet(values: pa.Array, column: str = "text") -> Callable[[], None]:
    return lambda: pq.write_table(pa.table({column: values}), "t.parquet")


def tokenizer(**changes: object) -> Callable[[], None]:
    """Return what writes t.json, the run's tokenizer with changes."""

    def make() -> None:
        Path("t.json").write_text(json.dumps({**json.loads(Path("runs/tiny/tokenizer.json").read_text()), **changes}))

    return make


def replaced_by_pipe(path: str) -> Callable[[], None]:
    def make() -> None:
        os.remove(path)
        os.mkfifo(path)

    return make


def in_manifest(dotted: str, value: object) -> Callable[[], None]:
    """Return what changes a value in the configuration that the manifest of the run holds."""

    def make() -> None:
        path = Path("runs/tiny/manifest.json")
        manifest = json.loads(path.read_text())
        *sections, key = dotted.split(".")
        section = manifest["config"]
        for name in sections:
            section = section[name]
        section[key] = value
        path.write_text(json.dumps(manifest))

    return make


def in_config(text: str) -> Callable[[], None]:
    return file("runs/tiny/config.yaml", text)


# What a run has stored of its configuration, changed since: by commands that train, measure, show, draw and export.
STORED = [
    Case(command, f"runs/tiny/{line}", make)
    for command, line, make in [
        ("train --run runs/tiny", "manifest.json: key config.data: expected", in_manifest("data", "words")),
        (
            INFLUENCE,
            "manifest.json: key config.training.seed: expected int, got str",
            in_manifest("training.seed", "x"),
        ),
        (INFLUENCE, "manifest.json: key config.training: expected", in_manifest("training", None)),
        (
            "influence --run runs/tiny",
            "manifest.json: key config.name: expected str, got int",
            in_manifest("name", 3),
        ),
        (
            "summary --run runs/tiny --run runs/tiny",
            "manifest.json: key config.training.seed: expected int, got array",
            in_manifest("training.seed", [1]),
        ),
        (
            "export hf runs/tiny new",
            "manifest.json: context.local_len = -8: must be at least 1",
            in_manifest("context.local_len", -8),
        ),
        ("influence --run runs/tiny", "config.yaml: a configuration is a mapping", in_config("[1, 2]")),
        ("summary --run runs/tiny", "config.yaml:1: data is a section of keys, not a value", in_config("data: 5")),
        ("report --run runs/tiny", "config.yaml:1: training.steps = ???", in_config("training: {steps: '???'}")),
    ]
]

INVALID_UTF8 = pa.array([b"\xff\xfe words", b"words"], pa.binary()).view(pa.string())
DATES = pa.array([datetime.date(2020, 1, 1)])

TEXT = [
    Case(f"{PREPARE} data.source=no.jsonl", "no.jsonl: no such file, folder or glob"),
    Case(f"{PREPARE} data.source=", "override 'data.source='"),
    Case(f"{PREPARE} data.source=t.jsonl", "t.jsonl: the file is empty", file("t.jsonl")),
    Case(f"{PREPARE} data.source=t.jsonl", "t.jsonl:1: not JSON", file("t.jsonl", "words\n")),
    Case(f"{PREPARE} data.source=t.jsonl", "t.jsonl:1: no text in the field 'text'", file("t.jsonl", '{"a": 1}\n')),
    Case(f"{PREPARE} data.source=t.jsonl", "t.jsonl:1: no text in the field 'text'", file("t.jsonl", "[1]\n")),
    Case(f"{PREPARE} data.source=t.jsonl", "t.jsonl:1: not JSON", file("t.jsonl", b"\xff\n")),
    Case(f"{PREPARE} data.source=t.jsonl", "it holds no document with text", documents("t.jsonl", "", " ")),
    Case(f"{PREPARE} data.source=t.txt", "t.txt:1: not UTF-8 text", file("t.txt", b"\xff")),
    Case(f"{PREPARE} data.source=t.jsonl.gz", "t.jsonl.gz:1: cannot read on", file("t.jsonl.gz", "words")),
    Case(f"{PREPARE} data.source=t.jsonl.zst", "t.jsonl.zst:1: cannot read on", file("t.jsonl.zst", "words")),
    Case(f"{PREPARE} data.source=t.parquet", "t.parquet: not a Parquet file", file("t.parquet", "words")),
    Case(f"{PREPARE} data.source=t.parquet", "the text in column 'text' is not UTF-8", parquet(INVALID_UTF8)),
    Case(f"{PREPARE} data.source=t.parquet", "no text in column 'text' (data.text_field), but date32", parquet(DATES)),
    Case(f"{PREPARE} data.source=t.parquet data.on_error=skip", "holds no document with text", parquet(DATES)),
    Case(f"{PREPARE} data.source=t.parquet", "t.parquet: no column 'text'", parquet(DATES, "\x1b[31mday")),
    Case(f"{PREPARE} data.source=t.xyz", "t.xyz: unknown kind of file", file("t.xyz", "words")),
    Case(f"{PREPARE} data.source=t.bin", "no tokenizer can be trained on those", file("t.bin", "words")),
    Case(f"{PREPARE} data.source=t.jsonl", "t.jsonl: this is a pipe or a device", lambda: os.mkfifo("t.jsonl")),
    Case(f"{PREPARE} data.source=t.jsonl", "t.jsonl: no such file", lambda: os.symlink("t.jsonl", "t.jsonl")),
    Case(f"{PREPARE} data.source=t.jsonl", "this folder holds no file that ends in", lambda: os.mkdir("t.jsonl")),
    Case(
        f"{PREPARE} data.source=folder",
        "this name is not UTF-8",
        lambda: (os.mkdir("folder"), Path(os.fsdecode(b"folder/\xff.txt")).write_text("words")),
    ),
    Case(f"{PREPARE} data.text_field=nope", "no text in the field 'nope'"),
    Case(f"{PREPARE} data.tokenizer=t.json", "data.tokenizer = t.json: no such file, and neither bpe:N nor one of"),
    Case(f"{PREPARE} data.tokenizer=t.json", "error: t.json: not a tokenizer.json", file("t.json", "words")),
    Case(f"{PREPARE} data.tokenizer=t.json", "error: t.json: not a tokenizer.json", file("t.json", "{}")),
    Case(f"{PREPARE} data.tokenizer=t.json", "t.json: not a tokenizer.json (not UTF-8 text)", file("t.json", b"\xff")),
    Case(f"{PREPARE} data.tokenizer=t.json", "t.json: this is a pipe or a device", lambda: os.mkfifo("t.json")),
    Case(f"{PREPARE} data.tokenizer=t.json", "data.tokenizer = t.json: no such file", lambda: os.mkdir("t.json")),
    Case(
        f"{PREPARE} data.tokenizer=t.json",
        "error: t.json: this tokenizer fails (Precompiled",
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ),
    Case(
        f"{PREPARE} data.tokenizer=t.json data.eos_token=none",
        "data.eos_token = 'none': the tokenizer has no such token",
        tokenizer(),
    ),
    Case(f"{EXPLORE} --at 5", "document.txt: this is a pipe or a device", lambda: os.mkfifo("document.txt")),
    Case(f"{EXPLORE} --at 5", "document.txt: not UTF-8 text", file("document.txt", b"\xff")),
    Case("explore --run runs/tiny --text words.jsonl --at 5", "words.jsonl: 400 documents, where one is expected"),
    Case(f"{INFLUENCE} --data t.jsonl", "t.jsonl:2: not JSON", file("t.jsonl", '{"text": "fine"}\n{oops\n')),
    Case("config --config y.yaml", "y.yaml: this is a pipe or a device", lambda: os.mkfifo("y.yaml")),
    Case("summary --tables tables", "tables: this folder exists and is no", replaced_by_pipe("tables/manifest.json")),
    Case(
        "summary --tables tables",
        "tables/windows/part-00001.parquet: this is a pipe or a device",
        replaced_by_pipe("tables/windows/part-00001.parquet"),
    ),
]


def forbidden(path: str, mode: int = 0) -> Callable[[], None]:
    return lambda: os.chmod(path, mode)


PERMISSIONS = [
    Case(
        "config --config tiny.yaml",
        "tiny.yaml: cannot read this configuration (Permission denied)",
        forbidden("tiny.yaml"),
    ),
    Case("summary --tables tables", "tables/manifest.json: permission denied", forbidden("tables/manifest.json")),
    Case("summary --tables tables", "tables: permission denied", forbidden("tables")),
    Case("summary --run runs/tiny", "runs/tiny/config.yaml: permission denied", forbidden("runs/tiny")),
    Case("report --tables tables --out new.html", "new.html: permission denied", forbidden(".", 0o555)),
    Case("figures --run runs/tiny", ": cannot make this folder (Permission denied)", forbidden("runs/tiny", 0o555)),
    Case("export hf runs/tiny new", "cannot", forbidden(".", 0o555)),
    Case(INFLUENCE, "runs/tiny/manifest.json: permission denied", forbidden("runs/tiny/manifest.json")),
    Case(INFLUENCE, "runs/tiny/tokenizer.json: ", forbidden("runs/tiny/tokenizer.json")),
    Case(INFLUENCE, "model.pt: permission denied", forbidden("runs/tiny/checkpoints/step12/model.pt")),
    Case(f"{PREPARE} data.source=words.jsonl", "words.jsonl: permission denied", forbidden("words.jsonl")),
    Case(
        "explore --run runs/tiny --text words.jsonl --at 5", "words.jsonl: permission denied", forbidden("words.jsonl")
    ),
    Case(
        f"{PREPARE} data.tokenizer=t.json", "t.json: permission denied", lambda: (tokenizer()(), os.chmod("t.json", 0))
    ),
    Case("prepare --config tiny.yaml data.validation_percent=20", "data", forbidden("data", 0o555)),
]
