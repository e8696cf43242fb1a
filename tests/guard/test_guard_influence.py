"""``influence`` in settings that cover model x unit x visibility x anchor x path x null context pairwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from guard_commands import run
from guard_tables import assert_tables

SEES_TARGET = "unmask-one,mask-one,greedy,gradient,lasso"
BLIND = "kl,greedy-kl,attention,random,nearest,same-token,rarest,bm25,sentence-start"
OF_ENTRIES = "greedy-patching,h2o,snapkv,streaming-llm,key-norm,quest"
# Model, unit, visibility, anchor, path, null context, further keys.
SETTINGS = {
    "1": ("run", "token", "hidden", "none", "masked", "document", ["influence.targets=word-start"]),
    "2": ("run", "word", "hidden", "bos", "plain", "document", ["influence.resampled_draws=2"]),
    "3": ("run", "sentence", "hidden", "none", "compact", "shuffled", ["influence.seed=5"]),
    "4": ("run", "block:3", "contextual", "none", "compact", "document", ["influence.full_len=14"]),
    "5": ("llama", "token", "contextual", "bos", "plain", "shuffled", ["influence.max_windows_per_document=1"]),
    "6": ("llama", "word", "hidden", "none", "compact", "shuffled", []),
    "7": ("llama", "sentence", "contextual", "bos", "masked", "document", ["influence.min_preceding=30"]),
    "8": ("llama", "block:3", "hidden", "bos", "masked", "document", ["pretrained.train_len=10"]),
    "9": ("sliding", "token", "hidden", "bos", "compact", "shuffled", ["influence.k=geometric"]),
    "10": ("sliding", "word", "contextual", "none", "masked", "shuffled", []),
    "11": ("sliding", "sentence", "hidden", "none", "plain", "document", ["influence.resampled_draws=0"]),
    "12": ("sliding", "block:3", "contextual", "bos", "plain", "shuffled", []),
    "yarn": (
        "llama", "token", "hidden", "bos", "compact", "shuffled",
        ["pretrained.train_len=8", "pretrained.rope_scaling=yarn:4", "influence.full_len=24"],
    ),
    "linear": (
        "llama", "token", "contextual", "bos", "compact", "shuffled",
        ["pretrained.train_len=8", "pretrained.rope_scaling=linear:3"],
    ),
}  # fmt: skip
FEW = ["yarn", "linear"]  # measured with few selectors


def arguments_of(setting: str) -> list[str]:
    """Return the command line of a setting, without the folder of its tables."""
    model, unit, visibility, anchor, path, null, further = SETTINGS[setting]
    selectors = "kl,unmask-one" if setting in FEW else f"{SEES_TARGET},{BLIND}"
    if visibility == "contextual" and setting not in FEW:
        selectors += f",{OF_ENTRIES}" if model != "sliding" else f",{OF_ENTRIES.partition(',')[2]}"
    named = ["--run", "runs/guard"]
    if model != "run":
        named = ["--model", model, "--run", f"runs/of-{setting}", "--data", "corpus", "influence.local_len=5"]
        named += [] if "influence.full_len=24" in further else ["influence.full_len=17"]
    kinds = [] if null == "document" else [f"influence.null_context={null}"]  # the other one is the default
    keys = {"unit": unit, "visibility": visibility, "anchor": anchor, "path": path, "selectors": f"[{selectors}]"}
    small = ["influence.num_windows=4", "influence.windows_per_part=3", "influence.lasso_masks=24"]
    small += [f"influence.k={'[1,2,4]' if unit == 'block:3' else '[1,2,5]'}", "influence.resampled_draws=1"]
    given = {key.split("=")[0] for key in further}
    small = [key for key in small if key.split("=")[0] not in given]
    return [*named, *small, *(f"influence.{key}={value}" for key, value in keys.items()), *kinds, *further]


@pytest.mark.parametrize("setting", SETTINGS)
def test_setting(setting: str, workplace: Path) -> None:
    run("-q", "influence", *arguments_of(setting), "--out", f"tables-{setting}", cwd=workplace)
    assert_tables(setting, workplace / f"tables-{setting}")


def test_gguf_and_other_path(workplace: Path) -> None:
    """A GGUF file of the same weights, under a mask: the same losses."""
    keys = [key.replace("path=plain", "path=masked") for key in arguments_of("5")]
    keys[1], keys[3] = "llama.gguf", "runs/gguf"
    run("-q", "influence", *keys, "--out", "tables-gguf", cwd=workplace)
    assert_tables("5", workplace / "tables-gguf")
