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


def evaluate(
    model: OLMoWithPositions,
    tokens: list[int],
    positions: list[int],
    visible: set[int],
    gates: dict[int, float] | None = None,
    *,
    first_reader: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Run the model on one row of tokens.

    Args:
        model: the model whose weights and settings are used.
        tokens: token IDs, T of them.
        positions: position ID of each token.
        visible: indices of the tokens that others may attend to. Every token attends to itself.
        gates: index of a token -> factor of the attention weight, before normalisation, that others give to it.
        first_reader: index of the first token that ``visible`` and ``gates`` are for. Those before it attend to all earlier ones.

    Returns:
        Log-probabilities after the last token in nats, [V], and the attention of the last token, averaged over heads and
        layers, [T].
    """
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
    config = model.config
    heads, width = config.n_heads, config.d_model // config.n_heads
    kind, eps = str(config.layer_norm_type.value), config.layer_norm_eps
    states = [weights["transformer.wte.weight"][token] for token in tokens]
    attention = np.zeros(len(tokens))
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
                allowed = [j for j in range(i + 1) if j in visible or j == i or i < first_reader]
                factors = np.array([1.0 if j == i or i < first_reader else (gates or {}).get(j, 1.0) for j in allowed])
                scores = np.array([(queries[i][head] @ keys[j][head]) / np.sqrt(width) for j in allowed])
                shares = np.exp(scores - scores.max()) * factors
                shares /= shares.sum()
                if i == len(states) - 1:
                    attention[allowed] += shares / (heads * config.n_layers)
                mixed.append(sum(share * values[j][head] for share, j in zip(shares, allowed, strict=True)))
            state = state + weights[prefix + "attn_out.weight"] @ np.concatenate(mixed)
            h = weights[prefix + "ff_proj.weight"] @ _norm(state, weights.get(prefix + "ff_norm.weight"), kind, eps)
            up, gate = np.split(h, 2)
            updated.append(state + weights[prefix + "ff_out.weight"] @ (up * gate / (1 + np.exp(-gate))))
        states = updated
    last = _norm(states[-1], weights.get("transformer.ln_f.weight"), kind, eps)
    output = weights.get("transformer.ff_out.weight", weights["transformer.wte.weight"])
    logits = (output @ last)[: config.vocab_size]
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max(), attention


def target_loss(
    model: OLMoWithPositions, tokens: list[int], positions: list[int], visible: set[int], target: int
) -> float:
    """Return the loss of ``target`` after the last token, in nats."""
    return -float(evaluate(model, tokens, positions, visible)[0][target])
