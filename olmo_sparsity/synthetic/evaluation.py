"""Evaluates a model on a synthetic task: it generates the response of each prompt, greedily, token by token.

A response is right if every token is. Where the model predicts position IDs, they are generated with the tokens, and a response
with a wrong ID is wrong, even if every token is right.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch

from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.synthetic.data import PlacedSequences


@dataclass(frozen=True)
class Responses:
    """Generated responses of W sequences, K tokens each, and the true ones.

    Attributes:
        tokens_WK: int64, generated tokens.
        true_tokens_WK: int64, the response of the sequence.
        ids_WK: int64, position IDs of the generated tokens: predicted, or the true ones where they are given.
        true_ids_WK: int64, position IDs of the sequence.
    """

    _: KW_ONLY
    tokens_WK: np.ndarray
    true_tokens_WK: np.ndarray
    ids_WK: np.ndarray
    true_ids_WK: np.ndarray

    @property
    def tokens_right_W(self) -> np.ndarray:
        """Bool, True where every token is right."""
        return (self.tokens_WK == self.true_tokens_WK).all(axis=1)

    @property
    def ids_right_W(self) -> np.ndarray:
        """Bool, True where every position ID is right."""
        return (self.ids_WK == self.true_ids_WK).all(axis=1)

    @property
    def right_W(self) -> np.ndarray:
        """Bool, True where the response is right."""
        return self.tokens_right_W & self.ids_right_W


@torch.no_grad()
def respond(
    model: OLMoWithPositions, placed: PlacedSequences, *, predict_ids: bool, batch_tokens: int = 2**16
) -> Responses:
    """Generate the responses to the prompts of sequences of one length and one sparsity.

    Args:
        model: in evaluation mode.
        placed: the sequences and their position IDs; the responses are used as the truth, and for their position IDs where
            those are given.
        predict_ids: the model predicts the position IDs of its response.
        batch_tokens: largest number of tokens in one forward pass; a pass has at least one row.
    """
    sequences = placed.sequences
    (prompt_len,), (response_len,) = set(sequences.prompt_len_B.tolist()), set(sequences.response_len_B.tolist())
    prompt, response = slice(0, prompt_len), slice(prompt_len, prompt_len + response_len)
    rows_per_pass = max(1, batch_tokens // response.stop)
    tokens_parts, ids_parts = [], []
    for begin in range(0, len(sequences.tokens_BT), rows_per_pass):
        rows = slice(begin, begin + rows_per_pass)
        # The model is given nothing of the response but, where they are not predicted, its position IDs.
        tokens_WT = torch.from_numpy(sequences.tokens_BT[rows, prompt].copy()).to(model.device)
        given_WT = torch.from_numpy(placed.ids_BT[rows, : prompt_len if predict_ids else response.stop].copy())
        ids_WT = given_WT.to(model.device)
        for length in range(prompt_len, response.stop):
            if predict_ids:
                logits_W1V, logits_W1I = model.logits_and_position_logits(tokens_WT, ids_WT, last_only=True)
                ids_WT = torch.cat([ids_WT, logits_W1I[:, 0].argmax(dim=-1, keepdim=True)], dim=1)
            else:
                logits_W1V = model(tokens_WT, ids_WT[:, :length], last_logits_only=True)
            token_W1 = logits_W1V[:, 0, : model.vocab_size].argmax(dim=-1, keepdim=True)
            tokens_WT = torch.cat([tokens_WT, token_W1], dim=1)
        tokens_parts.append(tokens_WT[:, response].cpu().numpy())
        ids_parts.append(ids_WT[:, response].cpu().numpy())
    return Responses(
        tokens_WK=np.concatenate(tokens_parts),
        true_tokens_WK=sequences.tokens_BT[:, response],
        ids_WK=np.concatenate(ids_parts),
        true_ids_WK=placed.ids_BT[:, response],
    )
