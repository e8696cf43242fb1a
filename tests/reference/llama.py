"""A Llama in NumPy and float64, read from a Hugging Face folder. Sets say which tokens each token attends to."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


@dataclass(frozen=True)
class Pass:
    """One forward pass; T tokens, H heads, E the width of a head. Heads that share keys have copies of them."""

    log_probs: np.ndarray  # of the token after the last one, in nats, [V]
    attention: np.ndarray  # of each query to each key, [layers, H, T, T]
    queries: np.ndarray  # after RoPE, [layers, H, T, E]
    keys: np.ndarray  # after RoPE, [layers, H, T, E]


class Llama:
    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        assert (config["model_type"], config["hidden_act"]) == ("llama", "silu")
        assert config["rope_parameters"]["rope_type"] == "default"
        self.theta, self.eps = config["rope_parameters"]["rope_theta"], config["rms_norm_eps"]
        self.heads, self.key_heads = config["num_attention_heads"], config["num_key_value_heads"]
        stored = load_file(folder / "model.safetensors")
        weights = {name.removeprefix("model."): array.astype(np.float64) for name, array in stored.items()}
        self.layers = [
            {name.split(".")[-2]: array for name, array in weights.items() if name.startswith(f"layers.{layer}.")}
            for layer in range(config["num_hidden_layers"])
        ]
        self.embedding, self.norm = weights["embed_tokens.weight"], weights["norm.weight"]
        self.head = self.embedding if config["tie_word_embeddings"] else weights["lm_head.weight"]

    def run(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sees: Sequence[set[int]],
        *,
        more: Sequence[set[int]] = (),
        gate: float = 0.0,
        blend: bool = False,
    ) -> Pass:
        """Run a row of T tokens.

        Args:
            tokens: token IDs.
            positions: position IDs.
            sees: for each token, the indices of the tokens that it attends to.
            more: the same with further tokens, which a gate hides at 0 and shows at 1.
            gate: what the attention weights of further tokens are multiplied by before normalisation.
            blend: the gate is instead the share of the attention output with ``more`` beside that with ``sees``.
        """
        x, passed, indices = self.embedding[list(tokens)], [], range(len(tokens))
        shown, with_more = (
            np.array([[float(j in seen) for j in indices] for seen in sets]) for sets in (sees, more or sees)
        )
        for w in self.layers:
            normed = self._rms(x, w["input_layernorm"])
            q, k, v = (
                (normed @ w[f"{name}_proj"].T)
                .reshape(len(x), heads, -1)
                .swapaxes(0, 1)
                .repeat(self.heads // heads, axis=0)
                for name, heads in (("q", self.heads), ("k", self.key_heads), ("v", self.key_heads))
            )
            q, k = self._rotate(q, positions), self._rotate(k, positions)
            scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
            if blend:
                attention = (1 - gate) * _attend(scores, shown) + gate * _attend(scores, with_more)
            else:
                attention = _attend(scores, shown + gate * (with_more - shown))
            passed.append((attention, q, k))
            x = x + (attention @ v).swapaxes(0, 1).reshape(len(x), -1) @ w["o_proj"].T
            normed = self._rms(x, w["post_attention_layernorm"])
            opened = normed @ w["gate_proj"].T
            x = x + (opened / (1 + np.exp(-opened)) * (normed @ w["up_proj"].T)) @ w["down_proj"].T
        logits = self.head @ self._rms(x[-1], self.norm)
        return Pass(logits - np.logaddexp.reduce(logits), *map(np.stack, zip(*passed, strict=True)))

    def _rms(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return weight * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.eps)

    def _rotate(self, x: np.ndarray, positions: Sequence[int]) -> np.ndarray:
        """Rotate entries e and e + E / 2 of [H, T, E] by position / theta^(2 e / E)."""
        half = x.shape[-1] // 2
        angle = np.array(positions)[:, None] / self.theta ** (np.arange(half) / half)
        first, second, cos, sin = x[..., :half], x[..., half:], np.cos(angle), np.sin(angle)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attend(scores: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the softmax over keys whose weights are multiplied by factors before normalisation."""
    weights = factors * np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
