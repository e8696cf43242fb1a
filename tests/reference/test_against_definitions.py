"""The tables of `olmo-sparsity influence` on a small Llama hold what the definitions say: every selector, context and loss."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from guard_commands import DATA, Command
from llama import Llama
from measure import Window, divergence
from selector_scores import FORWARD, LASSO_MASKS, OF_ENTRIES, SEED, SELECTORS, best
from tokenizers import Tokenizer

MODEL, CORPUS = DATA / "llama", DATA / "corpus"
TOLERANCE = 2e-5  # nats; of scores in other units, a share of the largest
IN_OTHER_UNITS = ("gradient", "attention", "h2o", "snapkv", "key-norm", "quest", "bm25", "random")
DRAWN_FOR = ("unmask-one", "mask-one", "gradient", "lasso", "greedy", "random")  # or are evaluated for drawn labels
WINDOWS, DRAWS, KS, BEYOND = 3, 2, [1, 2, 4, 6], 3  # a training row holds 3 tokens more than the local ones
MEASUREMENTS: dict[str, tuple[Any, ...]] = {  # visibility, anchor, unit, L, M (above 16, a page of Quest), selectors
    "hidden": ("hidden", "none", "token", 6, 12, [name for name in SELECTORS if name not in OF_ENTRIES]),
    "contextual": ("contextual", "bos", "token", 6, 18, [*SELECTORS]),
    "words": (
        "contextual",
        "bos",
        "word",
        34,
        12,
        ["unmask-one", "kl", "gradient", "greedy-patching", "snapkv", "bm25"],
    ),
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Command, Path]]:
    """The commands, which run at the same time, and their folders."""
    found = {}
    for name, (visibility, anchor, unit, local_len, many, selectors) in MEASUREMENTS.items():
        folder = tmp_path_factory.mktemp(name)
        keys = {"visibility": visibility, "anchor": anchor, "unit": unit, "selectors": f"[{','.join(selectors)}]"}
        keys |= {"k": KS, "seed": SEED, "num_windows": WINDOWS, "resampled_draws": DRAWS, "lasso_masks": LASSO_MASKS}
        arguments = [f"influence.{key}={value}" for key, value in keys.items()]
        arguments += [f"context.local_len={local_len}", f"context.full_len={local_len + many}"]
        arguments += [f"pretrained.train_len={local_len + BEYOND}", f"data.source={min(CORPUS.glob('*.jsonl'))}"]
        found[name] = Command("influence", "--model", MODEL, "--out", "tables", *arguments, cwd=folder), folder
    return found


def assert_close(measured: Any, expected: Any, what: object, *, share: bool = False) -> None:
    atol = TOLERANCE * (np.abs(expected).max() if share else 1)
    np.testing.assert_allclose(measured, expected, rtol=0, atol=atol, err_msg=str(what))


def check_window(row: dict[str, Any], real: Window, null: Window) -> None:
    """Compare a row of ``windows``."""
    short, everything = real.log_probs([]), range(len(real.groups))
    loss_short, loss_long, null_loss_long = real.loss([]), real.loss(everything), null.loss(range(len(null.groups)))
    races = [
        np.random.default_rng([SEED, 6, row["window_id"], a]).standard_exponential(len(short)) for a in range(DRAWS)
    ]
    drawn = [int(np.argmax(short - np.log(race))) for race in races]
    assert row["resampled_target_ids"] == drawn
    row_len, damped, null_damped = real.local_len + BEYOND, real.damped(), null.damped()
    expected = {
        "loss_short": loss_short, "loss_short_no_gap": real.loss_last(real.local_len), "loss_long": loss_long,
        "gain_long": loss_short - loss_long, "null_loss_long": null_loss_long, "null_gain_long": loss_short - null_loss_long,
        "loss_last": [real.loss_last(n) for n in row["last_n"]], "gain_beyond": real.loss_last(row_len) - loss_long,
        "loss_damped": damped[0], "kl_damped": damped[1], "null_loss_damped": null_damped[0], "null_kl_damped": null_damped[1],
        "kl_short": real.kl([]), "null_kl_short": null.kl([]), "entropy_short": -np.exp(short) @ short,
        "kl_short_to_long": divergence(short, real.everything.log_probs), "resampled_loss_short": -short[drawn],
        "resampled_loss_long": -real.everything.log_probs[drawn],
    }  # fmt: skip
    for name, value in expected.items():
        assert_close(row[f"{name}_nats"], value, name)
    assert {real.local_len, row_len, len(real.tokens)} < {*row["last_n"]}


def check_choice(row: dict[str, Any], w: Window) -> None:
    """Compare a row of ``selections``. J_k follow from the measured scores, which are close to those of the definition."""
    name, what = row["selector"], (row["selector"], row["context"], row["window_id"])
    chosen = [w.first.index(first) for first in row.get("group_first", row["positions"])]
    assert chosen == best(row["scores"], max(KS)), what
    expected = SELECTORS[name](w, max(KS), chosen) if name in FORWARD else SELECTORS[name](w)
    assert_close(row["scores"], expected, what, share=name in IN_OTHER_UNITS)
    assert row["positions"] == [position for group in chosen for position in w.groups[group]], what
    assert row["distance_tokens"] == [len(w.tokens) - position for position in row["positions"]], what
    log_q, losses = [w.log_probs(chosen[:k]) for k in KS], np.array([w.loss(chosen[:k]) for k in KS])
    assert_close(row["loss_sparse_nats"], losses, what)
    assert_close(row["gain_sparse_nats"], w.loss([]) - losses, what)
    is_drawn = "resampled" in row["context"]
    log_p, column = (
        (w.log_probs([]), "kl_short_to_sparse_nats") if is_drawn else (w.everything.log_probs, "kl_sparse_nats")
    )
    assert_close(row[column], [divergence(log_p, one) for one in log_q], what)
    assert row.get("num_tokens") in (None, [sum(len(w.groups[group]) for group in chosen[:k]) for k in KS]), what


@pytest.mark.parametrize("measurement", MEASUREMENTS)
def test_tables_hold_what_the_definitions_say(measurement: str, started: dict[str, tuple[Command, Path]]) -> None:
    command, folder = started[measurement]
    assert command.wait() == 0, command.err
    assert json.loads((folder / "tables" / "manifest.json").read_text())["context"]["train_len_is_stated"] is True
    visibility, anchor, _, local_len, many, selectors = MEASUREMENTS[measurement]
    tokenizer, model = Tokenizer.from_file(str(MODEL / "tokenizer.json")), Llama(MODEL)
    texts = [json.loads(line)["text"] for line in min(CORPUS.glob("*.jsonl")).read_text(encoding="utf-8").splitlines()]
    documents = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    counts = Counter(token for document in documents for token in document)
    bos = tokenizer.token_to_id(json.loads((MODEL / "tokenizer_config.json").read_text())["bos_token"])
    windows, varied, rows = {}, set(), Counter()
    for row in pq.read_table(folder / "tables" / "windows").to_pylist():
        local, begin = row["token_ids"][many:], row["start_token"]
        assert [*row["token_ids"], row["target_id"]] in [d[begin : begin + local_len + many + 1] for d in documents]
        contexts = [
            Window(
                model, [*far, *local], row["target_id"], local_len, visibility, [bos] if anchor == "bos" else [],
                row.get(first, [*range(many)]), [row["window_id"], number], counts,
                [tokenizer.decode([token], skip_special_tokens=False) for token in [*far, *local]],
            )
            for number, (far, first) in enumerate(
                [(row["token_ids"][:many], "group_first"), (row["null_token_ids"], "null_group_first")]
            )
        ]  # fmt: skip
        check_window(row, *contexts)
        windows[row["window_id"]] = *contexts, row["resampled_target_ids"]
    for row in pq.read_table(folder / "tables" / "selections").to_pylist():
        context, (real, null, drawn) = row["context"], windows[row["window_id"]]
        w = null if context.startswith("null") else real
        check_choice(row, dataclasses.replace(w, label=drawn[row["draw"]]) if "resampled" in context else w)
        rows[row["selector"], context] += 1
        varied |= {row["selector"]} if np.ptp(row["scores"]) > 0 else set()
    assert varied == {*selectors}
    for name in selectors:
        draws = DRAWS if name in DRAWN_FOR else 0
        assert [rows[name, context] for context in ("real", "null", "resampled")] == [WINDOWS, WINDOWS, WINDOWS * draws]
