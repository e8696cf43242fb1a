"""Other tools, captum and inseq, on the same weights in ``transformers``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import OlmoForCausalLM


def captum_scores(
    model: OlmoForCausalLM,
    tokens_T: torch.Tensor,
    *,
    target: int,
    num_long_range: int,
    perturbations_per_eval: int,
    last_logits_only: bool,
) -> torch.Tensor:
    """Return the scores of ``unmask-one`` for one window by captum's ``FeatureAblation``, [M].

    The features are a visibility mask over the long-range tokens, all of them hidden, and ablating a feature shows its
    token. Hidden tokens are masked in the attention mask; position IDs do not move.

    Args:
        model: the model.
        tokens_T: int64, the window, without its target.
        target: the token that follows.
        num_long_range: M.
        perturbations_per_eval: candidates per forward pass.
        last_logits_only: compute the logits of the last token only.
    """
    from captum.attr import FeatureAblation

    positions_1T = torch.arange(len(tokens_T), device=tokens_T.device)[None]

    def loss(visible_RM: torch.Tensor) -> torch.Tensor:
        num_rows = len(visible_RM)
        local_RL = visible_RM.new_ones(num_rows, len(tokens_T) - num_long_range)
        logits_RTV = model(
            input_ids=tokens_T.expand(num_rows, -1),
            attention_mask=torch.cat([visible_RM, local_RL], dim=1).long(),
            position_ids=positions_1T.expand(num_rows, -1),
            logits_to_keep=int(last_logits_only),
            use_cache=False,
        ).logits
        return -logits_RTV[:, -1].float().log_softmax(dim=-1)[:, target]

    hidden_1M = torch.zeros(1, num_long_range, device=tokens_T.device)
    with torch.no_grad():
        return FeatureAblation(loss).attribute(
            hidden_1M, baselines=torch.ones_like(hidden_1M), perturbations_per_eval=perturbations_per_eval
        )[0]


def inseq_occlusion(model: OlmoForCausalLM, vocab_size: int) -> Callable[[torch.Tensor, int], Any]:
    """Return a function (tokens [T], target) -> inseq's occlusion attribution of the target.

    This is another quantity: it replaces a token by a neutral one instead of hiding it, and scores local positions too.
    """
    import inseq
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # inseq takes text. One word per token gives it the same tokens.
    words = {f"t{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="t0", pad_token="t0", eos_token="t0", bos_token="t0"
    )
    model.config.bos_token_id = model.config.eos_token_id  # inseq needs one, and the model has none
    attributed = inseq.load_model(model, "occlusion", tokenizer=fast)

    def attribute(tokens_T: torch.Tensor, target: int) -> Any:
        context = " ".join(f"t{i}" for i in tokens_T.tolist())
        return attributed.attribute(
            context,
            f"{context} t{target}",
            attr_pos_start=len(tokens_T),
            show_progress=False,
            step_scores=[],
            generation_args={},
        )

    return attribute
