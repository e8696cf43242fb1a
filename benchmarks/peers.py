"""The same question put to other tools, captum and inseq, on the same weights in ``transformers``.

Legend: M long-range tokens, B rows, T tokens of a window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import OlmoForCausalLM


def captum_scores(
    theirs: OlmoForCausalLM,
    tokens_T: torch.Tensor,
    target: int,
    num_long_range: int,
    perturbations_per_eval: int,
    last_logits_only: bool,
) -> torch.Tensor:
    """``unmask-one`` of one window by captum's ``FeatureAblation``, [M]: the features are a keep-mask over the long-range
    tokens, all hidden; ablating one shows it. What is hidden goes into the attention mask, position IDs stay."""
    from captum.attr import FeatureAblation

    positions_1T = torch.arange(len(tokens_T), device=tokens_T.device)[None]

    def loss(keep_BM: torch.Tensor) -> torch.Tensor:
        num_rows = len(keep_BM)
        local_BL = keep_BM.new_ones(num_rows, len(tokens_T) - num_long_range)
        logits = theirs(
            input_ids=tokens_T.expand(num_rows, -1),
            attention_mask=torch.cat([keep_BM, local_BL], dim=1).long(),
            position_ids=positions_1T.expand(num_rows, -1),
            logits_to_keep=int(last_logits_only),
            use_cache=False,
        ).logits
        return -logits[:, -1].float().log_softmax(dim=-1)[:, target]

    hidden = torch.zeros(1, num_long_range, device=tokens_T.device)
    with torch.no_grad():
        return FeatureAblation(loss).attribute(
            hidden, baselines=torch.ones_like(hidden), perturbations_per_eval=perturbations_per_eval
        )[0]


def inseq_occlusion(theirs: OlmoForCausalLM, vocab_size: int) -> Callable[[torch.Tensor, int], Any]:
    """A function (tokens [T], target) -> inseq's occlusion attribution of the target: another quantity. It replaces a token
    by one that says nothing instead of hiding it, and scores every position, local ones too."""
    import inseq
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # inseq takes text; a word for each token gives it the same tokens.
    words = {f"t{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="t0", pad_token="t0", eos_token="t0", bos_token="t0"
    )
    theirs.config.bos_token_id = theirs.config.eos_token_id  # inseq must have one; the model knows none
    model = inseq.load_model(theirs, "occlusion", tokenizer=fast)

    def attribute(tokens_T: torch.Tensor, target: int) -> Any:
        context = " ".join(f"t{i}" for i in tokens_T.tolist())
        return model.attribute(
            context,
            f"{context} t{target}",
            attr_pos_start=len(tokens_T),
            show_progress=False,
            step_scores=[],
            generation_args={},
        )

    return attribute
