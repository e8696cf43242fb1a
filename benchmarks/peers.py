"""Other tools, captum and inseq, on the same weights in ``transformers``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import OlmoForCausalLM

from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.visibility import attention_mask, with_anchor
from olmo_sparsity.progress import tokens_ran


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


def plain_losses(
    evaluator: Evaluator, tokens_1T: torch.Tensor, *, target: int, visible_RM: torch.Tensor
) -> torch.Tensor:
    """Return the loss under visible sets (bool), [R], each of which runs the whole window under a mask, last logits only."""
    tokens_RT, positions_RT = with_anchor(tokens_1T.expand(len(visible_RM), -1), evaluator.anchor_id)
    always_R1 = visible_RM.new_ones(len(visible_RM), 1)
    visible_RT = torch.cat(
        [*[always_R1] * evaluator.num_anchors, visible_RM, always_R1.expand(-1, evaluator.local_len)], dim=1
    )
    allowed_RTT = attention_mask(visible_RT, local_len=evaluator.local_len, visibility=evaluator.visibility)
    tokens_ran(tokens_RT.numel())
    logits_RV = evaluator.model.last_logits(tokens_RT, positions_RT, bias_BTT=allowed_RTT)
    return -logits_RV.float().log_softmax(dim=-1)[:, target]


def captum_of_groups(
    evaluator: Evaluator, tokens_1T: torch.Tensor, *, target: int, groups_M: torch.Tensor, unmask: bool, num_scored: int
) -> torch.Tensor:
    """Return captum's ``FeatureAblation`` of the first groups of a window, [num_scored].

    The features are a visibility mask over the groups. The whole window runs for each of them, as many at once as a pass holds.

    Args:
        evaluator: the model, with the anchor, the definition of visible and the tokens of a pass.
        tokens_1T: int64, the window, without its target.
        target: the token that follows.
        groups_M: int64, the group of each long-range token.
        unmask: score a group by the gain of unmasking it alone; otherwise by the cost of hiding it alone.
        num_scored: groups that are scored.
    """
    from captum.attr import FeatureAblation

    sign = 1.0 if unmask else -1.0

    def signed_loss(features_RI: torch.Tensor) -> torch.Tensor:
        visible_RI = torch.full((len(features_RI), int(groups_M.max()) + 1), not unmask)
        visible_RI[:, :num_scored] = features_RI > 0.5
        return sign * plain_losses(evaluator, tokens_1T, target=target, visible_RM=visible_RI[:, groups_M])

    shown_1I = torch.ones(1, num_scored)
    hidden_1I = torch.zeros(1, num_scored)
    inputs, baselines = (hidden_1I, shown_1I) if unmask else (shown_1I, hidden_1I)
    rows = evaluator.rows_per_pass(evaluator.window_len(tokens_1T.shape[1]))
    with torch.no_grad():
        scores_1I = FeatureAblation(signed_loss).attribute(inputs, baselines=baselines, perturbations_per_eval=rows)
    return scores_1I[0]
