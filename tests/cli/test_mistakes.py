"""Mistakes of a user: exit code 2, one line with the place and the remedy, and nothing written."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from started_commands import exit_code

DATA = Path(__file__).parents[1] / "guard" / "data"
TRAIN = "train --config guard.yaml --run new training.steps=1"
PREPARE = "prepare --config guard.yaml data.cache_dir=new"
RUN = "influence --run runs/guard --out new"
MODEL = "influence --run new --data corpus --local-len 5 --full-len 16 --model"
DIGITS = "9" * 5000


def written(name: str, content: str | bytes) -> Callable[[], object]:
    """Make a file; those of commands are made while it has no content yet."""
    return lambda: Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def nothing() -> None:
    pass


def manifest_without(key: str) -> Callable[[], object]:
    def change() -> None:
        path = Path("runs/guard/manifest.json")
        manifest = json.loads(path.read_text())
        del manifest[key]
        path.write_text(json.dumps(manifest))

    return change


def many_missing_parts() -> None:
    path = Path("tables/words/manifest.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_parts": 24}))


def lost_checkpoint() -> None:
    shutil.rmtree("runs/guard/checkpoints/step60")


def token_file() -> None:
    np.arange(8, dtype="<u2").tofile("tokens.bin")


own_page = written("page.html", '<meta name="generator" content="olmo-sparsity 1.0">')

# The command, what its line must hold, and what makes the input.
ARGUMENTS = [
    ("nope", "no such command 'nope'; see olmo-sparsity --help"),
    ("--nope", "no such option: --nope"),
    ("train --nope", "train: no such option: --nope"),
    ("train --steps 5", "no such option: --steps"),
    ("train --overwrite=1", "'--overwrite' does not take a value"),
    ("export x", "export: no such command 'x'"),
    ("export hf a b c", "export hf: got unexpected extra argument"),
    ("influence --k", "'--k' requires an argument"),
    ("influence --k x", "--k x: must be a number, such as 8"),
    ("influence --k 0", "influence.k = [0]: must be a list, each a whole number, at least 1"),
    ("influence --k 1,", "--k 1,: must be a number"),
    ("influence --selector x", "no selector is named x; there are unmask-one, kl,"),
    ("influence --selector own.py:mine", "own.py: cannot read this file"),
    ("influence --precision fp64", "'fp64' is not one of"),
    ("influence --visibility x", "'x' is not one of 'hidden', 'contextual'"),
    ("influence --unit paragraph", "influence.unit = paragraph: must be token, word, sentence, or block:N"),
    ("influence --seed -1", "influence.seed = -1: must be a whole number, at least 0"),
    ("influence --num-windows many", "invalid value for '--num-windows'"),
    ("influence --shard 2/2", "--shard 2/2: must be I/N"),
    ("influence --shard 0/2 --overwrite", "--overwrite: with 2 processes"),
    ("influence --k 2 influence.k=3", "influence.k=3: an option of this command gives influence.k, too"),
    ("influence --model a pretrained.model=b", "an option of this command gives pretrained.model, too"),
    ("influence pretrained.train_len=8", "no pretrained model is named; name one"),
    ("influence --train --model llama", "--train: llama is a pretrained model"),
    (
        "influence --run elsewhere",
        "elsewhere: this run is not trained; train it with `olmo-sparsity train --run elsewhere`",
    ),
    ("influence --run elsewhere --shard 0/2", "alone, then measure with several processes"),
    ("train pretrained.model=x", "train: x is a pretrained model, which is never trained"),
    ("show runs/seed0 1 2", "show runs/seed0 1: give a run and the number of a window"),
    ("show runs/seed0 1 --model llama", "give a run and the number of a window"),
    ("show runs/seed0 --selector x", "--selector x: not measured"),
    ("show runs/seed0 99999", "there is no window 99999"),
    ("show runs/seed0 1 --k 99", "--k 99: not measured; the measured k are "),
    ("summary influence.seed=1", "summary: got unexpected extra argument"),
    ("report --run runs/seed0 influence.seed=1", "report: got unexpected extra argument"),
    ("summary --json --csv", "summary: give one of --json and --csv"),
    ("summary --run runs/seed0 --run runs/seed1 --tables x", "with several runs there is no --tables"),
    ("summary --run runs/seed0 --run runs/seed0", "name each seed once"),
    ("summary --run runs/seed0 --tables tables/words", "not of runs/seed0; leave out one of the two"),
    ("summary --run runs/none", "runs/none"),
    ("summary", "runs/demo: no such folder; run `olmo-sparsity influence` first"),
    ("figures --run runs/none", "runs/none: this run is not trained"),
    ("figures --run runs/seed0 --out guard.yaml", "guard.yaml: cannot write into this folder"),
    ("compare", "missing argument 'A'"),
    ("compare runs/seed0 runs/seed1:kl", "for both runs"),
    ("merge", "missing argument 'DIR...'"),
    ("merge tables/words", "merge: give either --check, or --out DIR"),
    ("merge tables/words --check --out new", "merge: give either --check, or --out DIR"),
    ("explore", "explore: missing option '--text'"),
    ("explore --text no.txt", "no.txt: no such file"),
    ("explore --text guard.yaml --at 1 --out p.html", "--at prints one place and writes no page"),
    ("explore --text guard.yaml --run runs/guard --k 99", "99]: there are only 12 candidates"),
    ("synth eval nope", "no task is named 'nope'; there are parity, scratchpad, sum, variables"),
    ("synth train sum --config synthetic/parity.yaml", "this configuration is of 'parity', not of 'sum'"),
    ("synth train parity pretrained.model=a", "pretrained: synthetic tasks do not use the keys of this section"),
    ("synth train parity model.position_embedding=absolute", "synthetic.positions = pose takes"),
    ("export hf runs/none", "runs/none: there is no trained model here"),
    ("'\x1b[31mred'", "no such command"),
    ("'train' '\x1b[31mred=1'", "there is no such key"),
    ("train data.source=\udcff", "this name is not UTF-8"),
    ("hypothesis --run runs/none", "runs/none: there is no training run here"),
    ("synth summary --run runs/none", "runs/none"),
    ("synth summary", "runs/synthetic/parity"),
]
KEYS = [
    (f"{TRAIN} training.stepz=3", "training.stepz: there is no such key; did you mean training.steps?"),
    (f"{TRAIN} steps=3", "steps: there is no such key; did you mean training.steps?"),
    (f"{TRAIN} training=3", "training: there is no such key; did you mean training."),
    (f"{TRAIN} 5", "a change is written KEY=VALUE"),
    (f"{TRAIN} training.batch_rows=many", "training.batch_rows = many: must be a whole number"),
    (f"{TRAIN} training.batch_rows={DIGITS}", "training.batch_rows = 999"),
    (f"{TRAIN} training.learning_rate=nan", "training.learning_rate = nan: must be a number, above 0"),
    (f"{TRAIN} pose.num_chunks=0", "pose.num_chunks = 0: must be a whole number, at least 1"),
    (f"{TRAIN} pose.num_chunks=99", "pose.num_chunks = 99"),
    (f"{TRAIN} context.local_len=16", "context.full_len = 16: must be larger than context.local_len = 16"),
    (f"{TRAIN} training.compile=yes", "must be one of auto, always, never"),
    (f"{TRAIN} context.bos=2", "context.bos = 2: must be true or false"),
    (f"{TRAIN} training.device=cuda:99", "training.device"),
    (f"{TRAIN} name=../x", "name = ../x: must be letters"),
    (f"{RUN} influence.k=[99]", "influence.k = [99]: there are only 12 candidates"),
    (f"{RUN} influence.selectors=[best]", "no selector is named best"),
    (f"{RUN} influence.selectors=[own.py:mine]", "a file is run only where --selector names it"),
    (f"{RUN} context.local_len=5", "context.local_len = 4, not 5; measure it at another length with --local-len 5"),
    (f"{RUN} training.learning_rate=1", "training.learning_rate = 0.004, not 1.0"),
    (f"{RUN} --full-len 99", "the run is trained with 16 positions"),
    ("influence --config guard.yaml --run fresh --train --k 99", "99]: there are only 12 candidates"),
    ("explore --config guard.yaml --run fresh --text guard.yaml", "or add --train to this command"),
    ("train --config no.yaml", "no.yaml: cannot read this configuration (No such file or directory)"),
    ("train --config corpus", "corpus: cannot read this configuration (Is a directory)"),
    ("train --config broken.yaml", "broken.yaml: not valid YAML", written("broken.yaml", "name: [1")),
    ("train --config binary.yaml", "binary.yaml: not valid YAML", written("binary.yaml", b"\xff\xfe")),
    (
        "train --config twice.yaml", "twice.yaml:3: training.steps is given twice",
        written("twice.yaml", "training:\n  steps: 1\n  steps: 2\n"),
    ),
]  # fmt: skip
FILES = [
    (f"{PREPARE} data.source=none.jsonl", "none.jsonl"),
    (f"{PREPARE} data.source=none/*.txt", "none/*.txt"),
    (f"{PREPARE} data.source=~/none.txt", f"{Path.home() / 'none.txt'}: no such file"),
    (f"{PREPARE} data.source=t.jsonl", "t.jsonl:2", written("t.jsonl", '{"text": "a b"}\n{"text": ')),
    (f"{PREPARE} data.source=t.jsonl", "t.jsonl:1", written("t.jsonl", '{"body": "a b"}\n')),
    (f"{PREPARE} data.source=t.jsonl", "t.jsonl", written("t.jsonl", "")),
    (f"{PREPARE} data.source=t.txt", "t.txt", written("t.txt", b"\xff\xfe\x00")),
    (f"{PREPARE} data.source=t.txt", "t.txt: this is UTF-16 text", written("t.txt", "a b".encode("utf-16-le"))),
    (f"{PREPARE} data.source=t.json", "t.json: this is an HTML", written("t.json", "<!doctype html>\n<p>404")),
    (f"{PREPARE} data.source=t.jsonl.zst", "t.jsonl.zst: this file is empty", written("t.jsonl.zst", "")),
    (
        f"{PREPARE} data.source=t.jsonl.zst",
        "t.jsonl.zst:1: cannot be read on",
        written("t.jsonl.zst", b"\x5e\x2a\x4d\x18\1\0\0\0"),
    ),
    (f"{PREPARE} data.source=t.jsonl.gz", "t.jsonl.gz", written("t.jsonl.gz", "no gzip")),
    (f"{PREPARE} data.source=t.parquet", "t.parquet", written("t.parquet", "PAR1")),
    (f"{PREPARE} data.source=t.csv", "t.csv", written("t.csv", "a,b")),
    (f"{PREPARE} data.tokenizer=bad.json", "bad.json", written("bad.json", "{}")),
    (f"{PREPARE} data.tokenizer=none", "data.tokenizer = none: no such file"),
    (f"{TRAIN} data.source=tokens.bin data.tokenizer=llama/tokenizer.json", "data.eos_token", token_file),
    (RUN, "manifest.json", written("runs/guard/manifest.json", "{")),
    (RUN, "manifest.json", manifest_without("tokenizer_sha256")),
    (RUN, "model.pt", written("runs/guard/checkpoints/step60/model.pt", "x")),
    (f"{MODEL} ./nowhere", "no such folder or file"),
    (f"{MODEL} runs/guard", "a run of this package is given with --run"),
    (f"{MODEL} nowhere.gguf", "no such folder or file"),
    (f"{MODEL} empty", "empty", lambda: Path("empty").mkdir()),
    (f"{MODEL} llama pretrained.revision=x", "only the hub has revisions"),
    (
        "explore --config guard.yaml --run fresh --train --text t.txt",
        "t.txt: 400,000 characters, and a page holds",
        written("t.txt", "ab " * 133_333 + "c"),
    ),
    ("explore --run runs/guard --text guard.yaml --k 1 --out page.html", "page.html: the file exists", own_page),
    (
        "explore --run runs/guard --text guard.yaml --k 1 --out guard.yaml/page.html",
        "guard.yaml: cannot write into this folder",
    ),
    ("report --tables tables/words --out page.html", "page.html: the file exists; --overwrite replaces it", own_page),
    ("summary --tables tables/words", "manifest.json", written("tables/words/manifest.json", "{")),
    ("summary --tables tables/interrupted", "tables/interrupted"),
    ("summary --tables corpus", "corpus"),
    # Before the training.
    ("influence --train --config guard.yaml --run fresh --data none.txt training.steps=1", "none.txt: no such file"),
    ("influence --train --config guard.yaml --run fresh --out runs/guard training.steps=1", "is no influence folder"),
    ("synth eval parity --config synthetic/parity.yaml --out runs/guard", "is no synthetic folder"),
    (
        "influence --config guard.yaml --run runs/guard --out new",
        "this run has lost its last checkpoint",
        lost_checkpoint,
    ),
    ("merge tables/words tables/contextual --out new", "tables/contextual"),
    ("merge --check tables/interrupted", "part-0000"),
    # Ten are printed of the 23 that are missing in each of two tables.
    ("merge --check tables/words", "tables/words: and 36 more", many_missing_parts),
]


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, runs, tables and text as a user may have them."""
    folder = tmp_path_factory.mktemp("inputs") / "data"
    shutil.copytree(DATA, folder)
    (folder / "run").rename(folder / "runs" / "guard")
    return folder


@pytest.mark.parametrize("case", [*ARGUMENTS, *KEYS, *FILES], ids=lambda case: case[0][:60])
def test_a_mistake_is_one_line_and_writes_nothing(
    case: tuple[str, str] | tuple[str, str, Callable[[], object]],
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    command, words, make = case if len(case) == 3 else (*case, nothing)
    shutil.copytree(inputs, tmp_path / "here", copy_function=os.link if make is nothing else shutil.copy)
    monkeypatch.chdir(tmp_path / "here")
    make()
    before = contents()
    code = exit_code("-q", *shlex.split(command))
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert words in err, err
    assert "Traceback" not in err
    assert all(line.startswith("olmo-sparsity: error: ") for line in lines) or command.startswith("merge --check"), err
    assert len(lines) == 1 or command.startswith("merge --check"), err
    after = contents()
    assert {path: after.get(path) for path in before} == before
    assert not [path for path in after.keys() - before.keys() if not path.startswith(("data/", "new", ".", "runs/."))]
