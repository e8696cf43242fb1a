"""Any causal language model of ``transformers``: the only door to it.

Rows of a call have the same number of tokens. Position IDs rise along a row and may have gaps. The model knows nothing about
visible sets: a row holds the tokens that are to be seen, or a mask says who sees whom. A layer may see a window of the latest
positions only: then a token attends to another where both the mask and the window, counted in position IDs, allow it.

Every call gives position IDs and a mask, since without a mask transformers takes gaps in position IDs for borders between texts.
"""

from __future__ import annotations

import copy
import functools
import inspect
from contextlib import nullcontext, suppress
from typing import Any, Optional

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations import sdpa_attention

from olmo_sparsity.errors import UserError
from olmo_sparsity.model import taps
from olmo_sparsity.model.taps import KeysValues, Observer

EAGER_ELEMENTS = 2**27  # weights of attention that the eager implementation keeps at once; 512 MiB in fp32
FULL, SLIDING = "full_attention", "sliding_attention"  # layers that see all positions, and a window of the latest
BY_LENGTH = ("dynamic", "longrope")  # scalings of rotary positions that depend on the length of the text
CLOSE = 0.05  # keys that two passes of the same model compute differ by less, also in bf16


def repeated(x_BHTE: Tensor, num_times: int) -> Tensor:
    """Keys or values for each head of queries."""
    return x_BHTE if num_times == 1 else x_BHTE.repeat_interleave(num_times, dim=1)


class CausalLM:
    """A causal language model; its logits [B, V] are those after the last token of each row."""

    def __init__(self, raw: Any, *, max_position: Optional[int] = None):
        """Take over a model of transformers, for position IDs below ``max_position``; None: below its configuration's."""
        self.raw, self.architecture = raw.eval().requires_grad_(False), type(raw).__name__
        self.config = raw.config.get_text_config(decoder=True)
        if "position_ids" not in inspect.signature(type(raw).forward).parameters:
            raise self._refused("takes no position IDs, so hiding tokens would move those before them")
        own, _ = position_limit(raw.config)
        if not own:
            raise self._refused("has a configuration that does not name max_position_embeddings")
        self.max_position = int(max_position or own)
        self.vocab_size = int(raw.get_output_embeddings().weight.shape[0])  # V; the tokenizer may have fewer entries
        self.num_parameters = sum(parameter.numel() for parameter in raw.parameters())  # tied ones count once
        self.device: torch.device = raw.get_input_embeddings().weight.device  # where tokens go
        self.dtype: torch.dtype = raw.dtype
        self._kinds = set(getattr(self.config, "layer_types", None) or [SLIDING])
        window = getattr(self.config, "sliding_window", None) if SLIDING in self._kinds else None
        self.window = int(window or 0)  # of layers that see the latest positions only; 0: there are none
        # Where all heads share one head of keys, transformers repeats it by a stride of 0, of which CUDA's memory-efficient
        # attention computes wrong outputs at some lengths (https://github.com/pytorch/pytorch/issues/191937).
        sdpa_attention.repeat_kv = repeated
        raw.set_attn_implementation("eager")
        # Where this changes nothing, the model computes attention itself, and adds its masks to the scores (Falcon).
        raw.config._attn_implementation = "eager"
        with suppress(ValueError):  # attention that fused kernels do not compute
            raw.set_attn_implementation("sdpa")

    def logits(self, tokens_BT: Tensor, positions_BT: Tensor, mask_BTT: Optional[Tensor] = None) -> Tensor:
        """Logits under causal attention, or under a mask that says all that is allowed; each token must see itself.

        A mask is bool (True: the first token may attend to the second) or float (added to the scores; the logits are
        differentiable by it).
        """
        hook: Any = nullcontext()
        if mask_BTT is not None and mask_BTT.requires_grad:
            # CUDA's memory-efficient attention keeps what its backward pass needs only where queries require a gradient. Some
            # models change embeddings in place, which autograd allows of a copy.
            embedding = self.raw.get_input_embeddings()
            hook = embedding.register_forward_hook(lambda module, inputs, x: x.requires_grad_().clone())
        with hook:
            return self._run(tokens_BT, positions_BT, mask_BTT).logits[:, -1]

    def own_logits(self, tokens_BT: Tensor, positions_BT: Optional[Tensor] = None) -> Tensor:
        """Logits of the plain call ``model(input_ids)``, with the model's own masks, and positions if none are given."""
        return self.raw(input_ids=tokens_BT, position_ids=positions_BT).logits[:, -1]

    def prefix(self, tokens_BP: Tensor, positions_BP: Tensor, mask_BPP: Optional[Tensor] = None) -> KeysValues:
        """Keys and values of all tokens in each layer, under causal attention or a mask (bool)."""
        cache = self._cache()
        self._run(tokens_BP, positions_BP, mask_BPP, cache=cache)
        for number, layer in enumerate(cache.layers):
            kind = type(layer)
            if kind not in (DynamicLayer, DynamicSlidingWindowLayer) or not layer.is_initialized:
                raise self._refused(f"keeps more than keys and values of its own in layer {number} ({kind.__name__})")
            if layer.keys.shape[2] < tokens_BP.shape[1]:
                raise self._refused(f"forgets the first keys in layer {number}; choose a shorter influence.full_len")
        return [(layer.keys, layer.values) for layer in cache.layers]

    def logits_after(
        self, tokens_BY: Tensor, positions_BY: Tensor, prefix: Optional[KeysValues] = None,
        prefix_positions_BP: Optional[Tensor] = None,
    ) -> Tensor:  # fmt: skip
        """Logits of rows that see all of a prefix; layers with a window need the positions of the prefix."""
        output = self._run(tokens_BY, positions_BY, prefix=prefix, prefix_positions_BP=prefix_positions_BP)
        return output.logits[:, -1]

    def logits_and_attention(
        self, tokens_BT: Tensor, positions_BT: Tensor, prefix: Optional[KeysValues] = None,
        prefix_positions_BP: Optional[Tensor] = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Logits, and the attention of the last token, mean over layers and heads, fp32 [B, P + T].

        Where a head may attend to nothing (sinks), a row sums to less than 1.
        """
        num_seen = tokens_BT.shape[1] + (0 if prefix is None else prefix[0][0].shape[2])
        observer = Observer({"attention_of_heads"}, slice(0, num_seen), local_len=1)
        logits_BV = self._tapped(observer, tokens_BT, positions_BT, prefix, prefix_positions_BP)
        if logits_BV is not None and observer.num_layers:
            return logits_BV, _mean(observer.collected["attention_of_heads"]).to(tokens_BT.device)
        # The implementation that returns all weights of attention runs some rows at a time.
        before, parts = self.raw.config._attn_implementation, []
        per_row = self.config.num_hidden_layers * self.config.num_attention_heads * tokens_BT.shape[1] * num_seen
        self.raw.set_attn_implementation("eager")
        try:
            for rows in torch.arange(len(tokens_BT)).split(max(1, EAGER_ELEMENTS // per_row)):
                seen = None if prefix is None else [(k[rows], v[rows]) for k, v in prefix]
                at = None if prefix_positions_BP is None else prefix_positions_BP[rows]
                output = self._run(
                    tokens_BT[rows], positions_BT[rows], prefix=seen, prefix_positions_BP=at, output_attentions=True
                )
                layers = [x[:, :, -1].float().cpu() for x in output.attentions or () if x is not None]
                if not layers:
                    raise self._refused("returns no attention")
                parts.append((output.logits[:, -1], _mean(layers).to(tokens_BT.device)))
                del output, layers  # before the next are computed
        finally:
            self.raw.set_attn_implementation(before)
        logits, attention = zip(*parts, strict=True)
        return torch.cat(logits), torch.cat(attention)

    @torch.no_grad()
    def attention_states(
        self, tokens_BY: Tensor, positions_BY: Tensor, prefix: Optional[KeysValues], loss: taps.LossOfLogits
    ) -> Optional[list[taps.AttentionState]]:
        """The attention of every layer of rows behind a prefix, and the derivatives of a loss by it.

        None where attention is more than a causal softmax of scaled scores of the keys and values that a prefix holds.
        """
        if not self._is_fused or self._is_cut_short(positions_BY) or not self._prefix_is_what_attention_reads:
            return None
        probes = taps.Probes()
        with torch.enable_grad(), taps.tapped(self.raw, probes):
            return probes.states(loss(self.logits_after(tokens_BY, positions_BY, prefix).float()))

    @functools.cached_property
    def _prefix_is_what_attention_reads(self) -> bool:
        """Whether a prefix holds the keys and values that attention reads in each layer, rather than latent or shared ones."""
        tokens_BT = torch.arange(2, device=self.device)[None]
        observer = Observer({"keys", "values"}, slice(0, 2), local_len=1)
        with suppress(UserError):
            self.observe(tokens_BT, tokens_BT, observer)
            keys, values = zip(*self.prefix(tokens_BT, tokens_BT), strict=True)
            pairs = zip(keys + values, observer.collected["keys"] + observer.collected["values"], strict=True)
            return all(x.shape == y.shape and torch.allclose(x.float().cpu(), y, CLOSE, CLOSE) for x, y in pairs)
        return False

    @torch.no_grad()
    def observe(self, tokens_BT: Tensor, positions_BT: Tensor, observer: Observer) -> Tensor:
        """Run whole windows under causal attention, let the observer read every layer, and return the logits."""
        logits_BV = self._tapped(observer, tokens_BT, positions_BT)
        if logits_BV is None or observer.num_layers != self.config.num_hidden_layers:
            reason = "keys, values and attention of every layer cannot be read of such a model"
            raise UserError(f"{self.architecture}: {reason}; leave out the selectors that need them")
        return logits_BV

    def _tapped(self, observer: Observer, *rows: Any) -> Optional[Tensor]:
        """Logits of rows whose attention the observer reads; None where it is more than a softmax of scaled scores."""
        if self._is_fused:
            with suppress(taps.UnreadableAttentionError), taps.tapped(self.raw, observer):
                return self.logits_after(*rows)
        return None

    def in_dtype(self, dtype: torch.dtype) -> CausalLM:
        """A copy with weights of another dtype; the model itself if it has it. Buffers (rotary tables) stay in fp32."""
        if self.dtype == dtype:
            return self
        copied = copy.deepcopy(self.raw)
        for parameter in copied.parameters():
            parameter.data = parameter.data.to(dtype)
        return CausalLM(copied, max_position=self.max_position)

    @property
    def _is_fused(self) -> bool:
        return str(self.raw.config._attn_implementation) == "sdpa"

    def _refused(self, reason: str) -> UserError:
        return UserError(f"{self.architecture}: this model cannot be measured: it {reason}")

    def _run(
        self, tokens_BY: Tensor, positions_BY: Tensor, mask_BYY: Optional[Tensor] = None, *,
        prefix: Optional[KeysValues] = None, prefix_positions_BP: Optional[Tensor] = None,
        cache: Optional[transformers.DynamicCache] = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Run rows under causal attention, or a mask, behind a prefix that all see; a cache takes up keys and values."""
        num_before, seen_BK = 0, positions_BY
        if prefix is not None:
            cache, num_before = self._cache(), prefix[0][0].shape[2]
            for number, (k_BHPE, v_BHPE) in enumerate(prefix):
                cache.update(k_BHPE, v_BHPE, number)
            if prefix_positions_BP is not None:
                seen_BK = torch.cat([prefix_positions_BP, positions_BY], dim=1)
        num_rows, length = tokens_BY.shape
        mask: Any
        if self._is_cut_short(positions_BY):
            if mask_BYY is None:
                ones_YK = torch.ones(length, num_before + length, dtype=torch.bool, device=tokens_BY.device)
                mask_BYY = ones_YK.tril(num_before).expand(num_rows, -1, -1)
            # The window is counted in position IDs; transformers counts it in tokens.
            too_far_BYK = positions_BY[:, :, None] - seen_BK[:, None, :] >= self.window
            hidden = False if mask_BYY.dtype == torch.bool else torch.finfo(mask_BYY.dtype).min
            within = self._mask(mask_BYY.masked_fill(too_far_BYK, hidden))
            # Layers of other kinds, such as convolutions, take none of the two.
            every = {**dict.fromkeys(self._kinds), FULL: self._mask(mask_BYY), SLIDING: within}
            mask = within if self._kinds == {SLIDING} else every
        elif mask_BYY is None:
            mask = torch.ones(num_rows, num_before + length, dtype=torch.int64, device=tokens_BY.device)
        else:
            mask = self._mask(mask_BYY)
        # A CPU multiplies a view row by row, 8 times as slowly in fp32.
        head = self.raw.get_output_embeddings()
        with head.register_forward_pre_hook(lambda module, inputs: (inputs[0].contiguous(), *inputs[1:])):
            return self.raw(
                input_ids=tokens_BY, position_ids=positions_BY, attention_mask=mask, past_key_values=cache,
                use_cache=cache is not None, logits_to_keep=1, return_dict=True, **options,
            )  # fmt: skip

    def _cache(self) -> transformers.DynamicCache:
        """An empty cache whose layers keep all tokens; what of them a layer's window hides, its mask hides."""
        return transformers.DynamicCache() if self.window else transformers.DynamicCache(config=self.raw.config)

    def _is_cut_short(self, positions_BT: Tensor) -> bool:
        """Whether a layer may see less than all positions before the last one."""
        return 0 < self.window <= int(positions_BT.max())

    def _mask(self, mask_BYK: Tensor) -> Tensor:
        """A mask [B, 1, Y, K] of the kind that the model's implementation of attention takes."""
        if mask_BYK.dtype == torch.bool and self._is_fused:
            return mask_BYK[:, None]
        lowest = torch.finfo(self.dtype).min
        if mask_BYK.dtype == torch.bool:
            mask_BYK = torch.zeros_like(mask_BYK, dtype=self.dtype).masked_fill(~mask_BYK, lowest)
        return mask_BYK.clamp(min=lowest).to(self.dtype)[:, None]


def rotary_parameters(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of the layers without a window; layers that see no farther than one have no longer contexts."""
    parameters: Any = getattr(config.get_text_config(decoder=True), "rope_parameters", None)
    nested = config.get_text_config(decoder=True).nested_rope_parameter_keys(parameters) if parameters else ()
    entries = [parameters[key] for key in nested if key != SLIDING] if nested else [parameters]
    return [entry for entry in entries if entry]


def position_limit(config: Any) -> tuple[Optional[int], bool]:
    """The number of position IDs that a configuration names; True: scaling begins there that depends on a text's length."""
    positions: Any = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    scaled = [entry for entry in rotary_parameters(config) if entry.get("rope_type") in BY_LENGTH]
    limits = [entry.get("original_max_position_embeddings") or positions for entry in scaled]
    return min(limits, default=positions), bool(limits)


def _mean(layers: list[Tensor]) -> Tensor:
    """The mean over heads, then over layers, of weights of attention [B, H, T] of each layer."""
    return torch.stack([weights_BHT.mean(dim=1) for weights_BHT in layers]).mean(dim=0)
