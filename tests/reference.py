"""An independent implementation of OLMo in NumPy and float64, one position at a time, written from the definitions."""

from __future__ import annotations

import numpy as np

from olmo_sparsity.model.olmo import OLMoWithPositions


def _norm(x: np.ndarray, weight: np.ndarray | None, kind: str, eps: float) -> np.ndarray:
    if kind != "rms":
        x = x - x.mean()
    x = x / np.sqrt((x**2).mean() + eps)
    return x if weight is None else x * weight


def _rotate(vector: np.ndarray, position: int, theta: float) -> np.ndarray:
    half = len(vector) // 2
    angle = position / theta ** (np.arange(half) * 2 / len(vector))
    a, b = vector[:half], vector[half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])


def target_loss(
    model: OLMoWithPositions, tokens: list[int], positions: list[int], visible: set[int], target: int
) -> float:
    """Return the loss of ``target`` after a row of tokens, in nats.

    ``visible``: indices of the tokens that others may attend to. Every token attends to itself.
    """
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
    config = model.config
    heads, width = config.n_heads, config.d_model // config.n_heads
    kind, eps = str(config.layer_norm_type.value), config.layer_norm_eps
    states = [weights["transformer.wte.weight"][token] for token in tokens]
    for layer in range(config.n_layers):
        prefix = f"transformer.blocks.{layer}."
        queries, keys, values = [], [], []
        for state, position in zip(states, positions, strict=True):
            h = _norm(state, weights.get(prefix + "attn_norm.weight"), kind, eps)
            q, k, v = np.split(weights[prefix + "att_proj.weight"] @ h, 3)
            if config.attention_layer_norm:
                q = _norm(q, weights.get(prefix + "q_norm.weight"), kind, eps)
                k = _norm(k, weights.get(prefix + "k_norm.weight"), kind, eps)
            turned = position if config.rope else 0
            queries.append([_rotate(part, turned, config.rope_theta) for part in q.reshape(heads, width)])
            keys.append([_rotate(part, turned, config.rope_theta) for part in k.reshape(heads, width)])
            values.append(v.reshape(heads, width))
        updated = []
        for i, state in enumerate(states):
            mixed = []
            for head in range(heads):
                allowed = [j for j in range(i + 1) if j in visible or j == i]
                scores = np.array([(queries[i][head] @ keys[j][head]) / np.sqrt(width) for j in allowed])
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                mixed.append(sum(share * values[j][head] for share, j in zip(shares, allowed, strict=True)))
            state = state + weights[prefix + "attn_out.weight"] @ np.concatenate(mixed)
            h = weights[prefix + "ff_proj.weight"] @ _norm(state, weights.get(prefix + "ff_norm.weight"), kind, eps)
            up, gate = np.split(h, 2)
            updated.append(state + weights[prefix + "ff_out.weight"] @ (up * gate / (1 + np.exp(-gate))))
        states = updated
    last = _norm(states[-1], weights.get("transformer.ln_f.weight"), kind, eps)
    output = weights.get("transformer.ff_out.weight", weights["transformer.wte.weight"])
    logits = (output @ last)[: config.vocab_size]
    return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target])
