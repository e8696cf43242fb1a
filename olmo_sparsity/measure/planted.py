"""Windows whose long-range dependency is known, because it was planted.

Two kinds. *Needles*: a natural window in which the target completes a made-up name or number that was planted among the
long-range tokens. *Planted correlations* (the paper's Definition 3.2): noise in which the target is a function of k
planted tokens, at places of their own, on which a small model, the solver, was trained.

Legend: N windows, T tokens of a window, M long-range tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from olmo_sparsity.config import Config, ContextConfig, DataConfig, ModelConfig, PoseConfig, TrainingConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import write_text
from olmo_sparsity.storage.folders import make_folder

EOS = "<|endoftext|>"
NEEDLES = ("needle-name", "needle-number")
MAX_NEEDLE_TOKENS = 4
TRIES = 1000
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Planted:
    """Windows of one suite with their truth: ``rows`` int64 [N, T + 1], the target last; ``truth`` bool [N, M], the
    planted long-range positions; ``doc_ids`` [N], the unit of the bootstrap."""

    suite: str
    num_planted: int
    rows: np.ndarray
    truth: np.ndarray
    doc_ids: list[str]

    def take(self, chosen: np.ndarray) -> Planted:
        """Some of the windows."""
        doc_ids = [self.doc_ids[i] for i in chosen]
        return Planted(self.suite, self.num_planted, self.rows[chosen], self.truth[chosen], doc_ids)


def made_up_word(rng: np.random.Generator, suite: str) -> str:
    """A name that no text holds, such as `` Vobalik``, or a number of three to five digits; a space before it."""
    if suite == "needle-number":
        digits = int(rng.integers(3, 6))
        return f" {rng.integers(10 ** (digits - 1), 10**digits)}"
    syllables = [str(rng.choice(list(CONSONANTS))) + str(rng.choice(list(VOWELS))) for _ in range(rng.integers(2, 4))]
    return " " + "".join(syllables).capitalize() + str(rng.choice(list(CONSONANTS)))


def _needle(rng: np.random.Generator, tokenizer: Tokenizer, suite: str, max_tokens: int) -> list[int]:
    for _ in range(TRIES):
        tokens: list[int] = tokenizer.encode(made_up_word(rng, suite), add_special_tokens=False).ids
        if 2 <= len(tokens) <= max_tokens:
            return tokens
    raise UserError(
        f"{suite}: under this tokenizer no made-up word has 2 to {max_tokens} tokens, so nothing can be planted; "
        "validation.needle_copies or context.local_len may leave too little room"
    )


def needle_windows(
    suite: str,
    copies: int,
    base: np.ndarray,
    doc_ids: list[str],
    num_long_range: int,
    tokenizer: Tokenizer,
    seed: int,
) -> Planted:
    """Plants a needle into natural windows: whole copies of it among the long-range tokens, at places drawn uniformly
    without overlap, and its beginning at the end of the window, so that its last token is the target.

    Args:
        suite: one of ``NEEDLES``.
        copies: how many times among the long-range tokens.
        base: int64 [N, T + 1], natural windows and their targets.
        doc_ids: [N].
        num_long_range: M.
        tokenizer: of the windows.
        seed: window i is a function of (seed, suite, copies, i) alone.

    Raises:
        UserError: there is no room.
    """
    rows, truth = base.copy(), np.zeros((len(base), num_long_range), dtype=bool)
    room = min(MAX_NEEDLE_TOKENS, base.shape[1] - 1 - num_long_range, num_long_range // copies)
    for i in range(len(base)):
        rng = np.random.default_rng([seed, 10 + NEEDLES.index(suite), copies, i])
        needle = _needle(rng, tokenizer, suite, room)
        size = len(needle)
        # Uniform among all ways to place the copies: choose among the places that are left when each shrinks to one.
        starts = np.sort(rng.permutation(num_long_range - copies * (size - 1))[:copies]) + np.arange(copies) * (
            size - 1
        )
        for start in starts:
            rows[i, start : start + size] = needle
            truth[i, start : start + size] = True
        rows[i, -size:] = needle
    return Planted(suite, copies, rows, truth, doc_ids)


NOISE = tuple(f"n{i}" for i in range(16))
VALUES = tuple(f"v{i}" for i in range(4))
# Task: (suite, k, modulus of the sum; 13 leaves a sum of four values as it is). Every planted token of a sum matters alone;
# of a parity, only all of them do.
TASKS = {
    "sum1": ("planted-sum", 1, 13),
    "sum2": ("planted-sum", 2, 13),
    "sum4": ("planted-sum", 4, 13),
    "parity2": ("planted-parity", 2, 2),
}
SOLVER_CONTEXT = ContextConfig(local_len=8, full_len=32, train_len=32)
SOLVER_DOCUMENTS = 60_000


def _answers(suite: str, modulus: int) -> list[str]:
    return [f"{suite.removeprefix('planted-')}={value}" for value in range(modulus)]


def sequence(rng: np.random.Generator, task: str) -> tuple[list[str], list[int]]:
    """(``full_len`` words and the target, the planted positions): noise, and k planted values among the long-range words;
    the last word names the task, the target is the sum of the values, modulo the task's modulus."""
    suite, k, modulus = TASKS[task]
    words = [NOISE[i] for i in rng.integers(0, len(NOISE), SOLVER_CONTEXT.full_len)]
    values = rng.integers(0, len(VALUES), k)
    places = rng.permutation(SOLVER_CONTEXT.num_long_range)[:k]
    for value, place in zip(values, places, strict=True):
        words[place] = VALUES[value]
    words[-1] = task
    return [*words, _answers(suite, modulus)[values.sum() % modulus]], sorted(places.tolist())


def training_document(rng: np.random.Generator, task: str) -> list[str]:
    """A sequence without some of its long-range words, its target, and noise to fill the row.

    Noise is left out with a probability that is the document's own (0 in a third of them), planted words with another (0 in
    half of them): so the solver learns to answer as well as any visible set allows. A model that has met the task after
    whole windows only is at a loss when most of one is masked (in a trial the planted tokens alone then made it worse than
    no long-range token at all). Natural text teaches that of itself, for every document begins with short contexts.
    """
    words, places = sequence(rng, task)
    num_long_range = SOLVER_CONTEXT.num_long_range
    threshold = np.full(num_long_range, rng.uniform(-0.5, 1.0))
    threshold[places] = rng.uniform(-1.0, 1.0)
    left_out = rng.random(num_long_range) < threshold
    kept = [word for word, gone in zip(words[:num_long_range], left_out, strict=True) if not gone]
    filler = [NOISE[i] for i in rng.integers(0, len(NOISE), int(left_out.sum()))]
    return [*kept, *words[num_long_range:], *filler]


def solver_tokenizer() -> Tokenizer:
    """A word is a token."""
    answers = {answer for suite, _, modulus in TASKS.values() for answer in _answers(suite, modulus)}
    words = [EOS, *NOISE, *VALUES, *TASKS, *sorted(answers)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=EOS))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def write_solver_text(folder: Path, seed: int) -> tuple[Path, Path]:
    """Writes the solver's training documents and its tokenizer; returns their paths. What is there stays."""
    text, tokenizer = folder / f"text-seed{seed}.jsonl", folder / "tokenizer.json"
    make_folder(folder)
    if not text.is_file():
        rng = np.random.default_rng([seed, 20])
        tasks = list(TASKS)
        lines = []
        for _ in range(SOLVER_DOCUMENTS):
            words = training_document(rng, tasks[rng.integers(len(tasks))])
            lines.append(json.dumps({"text": " ".join(words)}) + "\n")
        write_text(text, "".join(lines))
    write_text(tokenizer, solver_tokenizer().to_str())
    return text, tokenizer


def solver_config(text: Path, tokenizer: Path, steps: int, training: TrainingConfig, seed: int) -> Config:
    """The solver's experiment, trained as any other: ``training`` says on which device."""
    return Config(
        name="solver",
        data=DataConfig(
            source=str(text), tokenizer=str(tokenizer), cache_dir=str(text.parent / "tokens"), validation_percent=2
        ),
        context=SOLVER_CONTEXT,
        # Rows are as long as windows, for the solver is to be right, not to generalize; masking leaves gaps in positions.
        pose=PoseConfig(num_chunks=8, vary_chunks=True, max_position=48),
        model=ModelConfig(
            d_model=64,
            n_heads=4,
            mlp_ratio=4,
            attention_layer_norm=True,
            layer_norm_type="rms",
            layer_norm_with_affine=True,
        ),
        training=TrainingConfig(
            steps=steps,
            seed=seed,
            warmup_steps=min(100, steps // 10),
            log_every=50,
            device=training.device,
            threads=training.threads,
            compile=training.compile,
            precision=training.precision,
        ),
    )


def correlated_windows(task: str, num_windows: int, seed: int) -> Planted:
    """Sequences of the full length with all k tokens planted; sequence i is a function of (seed, task, i) alone."""
    tokenizer = solver_tokenizer()
    num_long_range = SOLVER_CONTEXT.num_long_range
    rows = np.empty((num_windows, SOLVER_CONTEXT.full_len + 1), dtype=np.int64)
    truth = np.zeros((num_windows, num_long_range), dtype=bool)
    for i in range(num_windows):
        rng = np.random.default_rng([seed, 21, list(TASKS).index(task), i])
        words, places = sequence(rng, task)
        rows[i] = [tokenizer.token_to_id(word) for word in words]
        truth[i, places] = True
    suite, k, _ = TASKS[task]
    return Planted(suite, k, rows, truth, [f"{task}-{i}" for i in range(num_windows)])
