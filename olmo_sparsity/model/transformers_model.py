"""Any causal language model of ``transformers``, as the measurements call one (``CausalModel``).

Every call gives the model its position IDs and a mask. Without a mask transformers takes gaps in the position IDs for borders
between texts, and hides each text from the next. Whether a model computes what was asked for is not known from its
architecture: ``olmo_sparsity.measure.setup.fit`` measures it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Optional

import torch
import transformers
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations import sdpa_attention
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.attribution import AttentionProbes, AttentionState, LossOfLogits, requiring_grad
from olmo_sparsity.model.causal_model import KeysValues
from olmo_sparsity.model.observation import Observer

RECORDING = "olmo-sparsity-recording"  # the name under which transformers knows _attend_and_record
PROBING = "olmo-sparsity-probing"  # the name under which transformers knows _attend_and_probe
OBSERVING = "olmo-sparsity-observing"  # the name under which transformers knows _attend_and_observe
PLAIN_ELEMENTS = 2**27  # weights of attention that the plain implementation keeps at once; 512 MiB in fp32
NOT_PROBED = ("softcap", "position_bias", "s_aux")  # options of attention that _attend_and_probe does not know
FULL, SLIDING = "full_attention", "sliding_attention"  # layers that see all positions, and a window of the latest ones
_probes: ContextVar[AttentionProbes] = ContextVar("reads a differentiable pass")
_observer: ContextVar[Observer] = ContextVar("reads every layer of a pass")
_recorded: ContextVar[list[torch.Tensor]] = ContextVar("recorded attention of the last token, of each layer so far")


class TransformersModel:
    """A causal language model of ``transformers``. It computes the logits of the last token only."""

    def __init__(self, model: Any, *, max_position: Optional[int] = None):
        """Take over a model: it is put in evaluation mode, without gradients of its weights.

        Args:
            model: of transformers.
            max_position: rows may have position IDs below this; None: below what its configuration says.

        Raises:
            UserError: it takes no position IDs, or does not say how many there are.
        """
        architecture = type(model).__name__
        if "position_ids" not in inspect.signature(type(model).forward).parameters:
            raise UserError(
                f"{architecture}: such a model cannot be measured, because it takes no position IDs (its attention counts "
                "tokens, as with ALiBi, or it has a recurrent state); hiding tokens would move those before them"
            )
        self._model = model.eval().requires_grad_(False)
        own = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if not own:
            raise UserError(
                f"{architecture}: such a model cannot be measured, because its configuration does not say how many positions "
                "it has (max_position_embeddings)"
            )
        self._max_position = int(max_position or own)
        self._window, self._all_layers_slide = _sliding_window(model.config.get_text_config(decoder=True))

    @property
    def raw(self) -> Any:
        """The model of transformers."""
        return self._model

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits; it may exceed the number of the tokenizer's entries."""
        return int(self._model.get_output_embeddings().weight.shape[0])

    @property
    def device(self) -> torch.device:
        """Where tokens go: the device of the input embedding."""
        device: torch.device = self._model.get_input_embeddings().weight.device
        return device

    @property
    def max_position(self) -> int:
        """The number of position IDs that rows may have: those that the model was made for, or more where it was said."""
        return self._max_position

    @property
    def architecture(self) -> str:
        """The name of the model's class in transformers."""
        return type(self._model).__name__

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    @property
    def num_parameters(self) -> int:
        """The number of weights; tied ones count once."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def last_logits(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, *, bias_BTT: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """Return the logits [B, V] of the last token, under causal attention or a bias; see ``CausalModel``."""
        mask = self._mask_of_rows(tokens_BT, positions_BT, allowed_BTT=bias_BTT)
        with requiring_grad(self._model.get_input_embeddings(), bias_BTT):
            logits: torch.Tensor = self._run(tokens_BT, positions_BT, attention_mask=mask, use_cache=False).logits
        return logits[:, -1]

    def own_last_logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, V] of the last token under the masks of transformers; see ``CausalModel``."""
        mask = torch.ones_like(tokens_BT)
        logits: torch.Tensor = self._run(tokens_BT, positions_BT, attention_mask=mask, use_cache=False).logits
        return logits[:, -1]

    def last_logits_and_attention(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        *,
        prefix: Optional[KeysValues] = None,
        prefix_positions_BP: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits [B, V] and the attention, fp32 [B, T], of the last token; see ``CausalModel``.

        Fused kernels return no attention. So the weights of the last token are computed beside them, from the same queries and
        keys; a model that does not use them, or cannot, is run in transformers' plain implementation. Where a head may
        attend to nothing (sinks), a row sums to less than 1.
        """
        layers_BT: list[torch.Tensor] = []
        if self._implementation == "sdpa":
            token = _recorded.set(layers_BT)
            try:
                with self._implemented_by(RECORDING):
                    output = self._run_after(prefix, tokens_BT, positions_BT, prefix_positions_BP=prefix_positions_BP)
                    logits_BV = output.logits[:, -1]
            finally:
                _recorded.reset(token)
        if not layers_BT:
            logits_BV, layers_BT = self._run_plain_implementation(
                tokens_BT, positions_BT, prefix=prefix, prefix_positions_BP=prefix_positions_BP
            )
        attention_BT = torch.stack([layer_BT.to(tokens_BT.device) for layer_BT in layers_BT]).mean(dim=0)
        return logits_BV, attention_BT

    def keys_values(
        self, tokens_BP: torch.Tensor, positions_BP: torch.Tensor, *, allowed_BPP: Optional[torch.Tensor] = None
    ) -> KeysValues:
        """Return the keys and values of all tokens, under causal attention or to what is allowed; see ``CausalModel``.

        Raises:
            UserError: a layer keeps something else, or not those of all tokens.
        """
        cache = self._cache()
        mask = self._mask_of_rows(tokens_BP, positions_BP, allowed_BTT=allowed_BPP)
        self._run(tokens_BP, positions_BP, attention_mask=mask, past_key_values=cache, use_cache=True)
        for number, layer in enumerate(cache.layers):
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or not layer.is_initialized:
                raise UserError(
                    f"{self.architecture}: such a model cannot be measured, because layer {number} keeps no keys and values of "
                    "its own, but a recurrent state or those of another layer"
                )
            if layer.keys.shape[2] < tokens_BP.shape[1]:
                raise UserError(
                    f"{self.architecture}: layer {number} keeps the keys of the last {layer.keys.shape[2]} of "
                    f"{tokens_BP.shape[1]} tokens only (a sliding window); choose a shorter influence.full_len"
                )
        return [(layer.keys, layer.values) for layer in cache.layers]

    def last_logits_after(
        self,
        tokens_BY: torch.Tensor,
        positions_BY: torch.Tensor,
        *,
        prefix: KeysValues,
        prefix_positions_BP: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Return the logits [B, V] of the last token; every token sees all of the prefix and those before it."""
        output = self._run_after(prefix, tokens_BY, positions_BY, prefix_positions_BP=prefix_positions_BP)
        logits: torch.Tensor = output.logits
        return logits[:, -1]

    @torch.no_grad()
    def attention_states(
        self,
        tokens_BY: torch.Tensor,
        positions_BY: torch.Tensor,
        *,
        prefix: Optional[KeysValues],
        loss: LossOfLogits,
    ) -> Optional[list[AttentionState]]:
        """Return the attention of every layer of rows, and its derivatives; see ``CausalModel``.

        Returns:
            None where the model's attention is more than a causal softmax of scaled scores (a short sliding window, a cap, a
            bias, a sink), or transformers does not hand it to another implementation.
        """
        if self._implementation != "sdpa" or self._is_cut_short(positions_BY):
            return None
        probes = AttentionProbes()
        token = _probes.set(probes)
        try:
            with torch.enable_grad(), self._implemented_by(PROBING):
                logits_BV = self._run_after(prefix, tokens_BY, positions_BY).logits[:, -1]
                if len(probes) != self._model.config.get_text_config(decoder=True).num_hidden_layers:
                    return None
                return probes.states(loss(logits_BV.float()))
        except _UnknownAttentionError:
            return None
        finally:
            _probes.reset(token)

    @torch.no_grad()
    def observe(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, *, observer: Observer) -> None:
        """Run whole windows under causal attention, and let the observer read every layer; see ``CausalModel``.

        Raises:
            UserError: the attention is more than a softmax of scaled scores (a cap, a bias, a sink), or transformers does not
                hand it to another implementation.
        """
        config, num_read = self._model.config.get_text_config(decoder=True), 0
        if self._implementation == "sdpa":
            with_states = "hidden_states" in observer.needs
            token = _observer.set(observer)
            try:
                with self._implemented_by(OBSERVING):
                    mask = self._mask_of_rows(tokens_BT, positions_BT, allowed_BTT=None)
                    output = self._run(
                        tokens_BT,
                        positions_BT,
                        attention_mask=mask,
                        use_cache=False,
                        output_hidden_states=with_states,
                    )
                num_read = observer.num_layers
                for x_BTD in output.hidden_states if with_states else ():
                    observer.states(x_BTD)
            except _UnknownAttentionError:
                num_read = 0
            finally:
                _observer.reset(token)
        if num_read != config.num_hidden_layers:
            raise UserError(
                f"{self.architecture}: keys, values and attention of every layer cannot be read of such a model, because its "
                "attention is more than a softmax of scores, or is not given to other implementations; leave out the selectors "
                "that need them"
            )

    def in_dtype(self, dtype: torch.dtype) -> TransformersModel:
        """Return a copy with weights of another dtype; the model itself if it has it. Buffers (rotary tables) stay in fp32."""
        if self.dtype == dtype:
            return self
        assert len(getattr(self._model, "hf_device_map", {})) <= 1, "a model on several devices is opened in its dtype"
        copied = copy.deepcopy(self._model)
        for parameter in copied.parameters():
            parameter.data = parameter.data.to(dtype)
        return TransformersModel(copied, max_position=self._max_position)

    def _run(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, **options: Any) -> Any:
        with self._model.get_output_embeddings().register_forward_pre_hook(_contiguous):
            return self._model(
                input_ids=tokens_BT, position_ids=positions_BT, logits_to_keep=1, return_dict=True, **options
            )

    def _run_after(
        self,
        prefix: Optional[KeysValues],
        tokens_BY: torch.Tensor,
        positions_BY: torch.Tensor,
        *,
        prefix_positions_BP: Optional[torch.Tensor] = None,
        **options: Any,
    ) -> Any:
        """Run tokens under causal attention that all see the tokens of the prefix, if there is one."""
        cache, num_before = None, 0
        if prefix is not None:
            cache = self._cache()
            for number, (k_BHPE, v_BHPE) in enumerate(prefix):
                cache.update(k_BHPE, v_BHPE, number)
            num_before = prefix[0][0].shape[2]
        mask: Any = None
        if self._is_cut_short(positions_BY):
            seen_BK = positions_BY
            if prefix_positions_BP is not None:
                seen_BK = torch.cat([prefix_positions_BP, positions_BY], dim=1)
            mask = self._masks(_causal(positions_BY, num_before), positions_BY, seen_BK=seen_BK)
        else:
            num_seen = num_before + tokens_BY.shape[1]
            mask = torch.ones(len(tokens_BY), num_seen, dtype=torch.int64, device=tokens_BY.device)
        return self._run(
            tokens_BY, positions_BY, attention_mask=mask, past_key_values=cache, use_cache=cache is not None, **options
        )

    def _cache(self) -> transformers.DynamicCache:
        """Return an empty cache whose layers keep all tokens; what of them a layer's window hides, its mask hides."""
        return transformers.DynamicCache() if self._window else transformers.DynamicCache(config=self._model.config)

    def _is_cut_short(self, positions_BT: torch.Tensor) -> bool:
        """Whether a layer may see less than all positions before the last one."""
        return self._window is not None and int(positions_BT.max()) >= self._window

    def _mask_of_rows(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, *, allowed_BTT: Optional[torch.Tensor]
    ) -> Any:
        """Return what transformers takes as the mask of rows, under causal attention or to what is allowed."""
        if self._is_cut_short(positions_BT):
            allowed_BTT = _causal(positions_BT, 0) if allowed_BTT is None else allowed_BTT
            return self._masks(allowed_BTT, positions_BT, seen_BK=positions_BT)
        return torch.ones_like(tokens_BT) if allowed_BTT is None else self._mask(allowed_BTT)

    def _masks(self, allowed_BYK: torch.Tensor, positions_BY: torch.Tensor, *, seen_BK: torch.Tensor) -> Any:
        """Return the masks of layers with and without a window, which is counted in position IDs.

        transformers counts it in tokens, so that gaps in the position IDs would widen it.

        Args:
            allowed_BYK: bool or float, as ``_mask`` takes it.
            positions_BY: int64, position IDs of the tokens that attend.
            seen_BK: int64, those of the tokens that are attended to.
        """
        assert self._window is not None
        too_far_BYK = positions_BY[:, :, None] - seen_BK[:, None, :] >= self._window
        hidden = False if allowed_BYK.dtype == torch.bool else torch.finfo(allowed_BYK.dtype).min
        within = self._mask(allowed_BYK.masked_fill(too_far_BYK, hidden))
        return within if self._all_layers_slide else {FULL: self._mask(allowed_BYK), SLIDING: within}

    def _mask(self, bias_BTT: torch.Tensor) -> torch.Tensor:
        """Return the bias as a mask [B, 1, T, T] of the kind that the model's implementation of attention takes."""
        if bias_BTT.dtype != torch.bool:
            lowest = torch.finfo(self.dtype).min
            return bias_BTT.clamp(min=lowest).to(self.dtype)[:, None]
        if self._implementation == "sdpa":
            return bias_BTT[:, None]
        nothing_BTT = torch.zeros(bias_BTT.shape, dtype=self.dtype, device=bias_BTT.device)
        return nothing_BTT.masked_fill(~bias_BTT, torch.finfo(self.dtype).min)[:, None]

    @property
    def _implementation(self) -> str:
        return str(self._model.config._attn_implementation)

    @contextmanager
    def _implemented_by(self, name: str) -> Iterator[None]:
        before = self._implementation
        self._model.set_attn_implementation(name)
        try:
            yield
        finally:
            self._model.set_attn_implementation(before)

    def _run_plain_implementation(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        *,
        prefix: Optional[KeysValues],
        prefix_positions_BP: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the logits [B, V] and, of each layer, the attention, fp32 [B, T], of the last token.

        This implementation keeps the attention of every token, in every layer, so it runs a few rows at a time.

        Raises:
            UserError: it returns none.
        """
        config = self._model.config.get_text_config(decoder=True)
        num_seen = tokens_BT.shape[1] + (0 if prefix is None else prefix[0][0].shape[2])
        elements_of_row = config.num_hidden_layers * config.num_attention_heads * tokens_BT.shape[1] * num_seen
        logits, attention = [], []
        for rows in torch.arange(len(tokens_BT), device=tokens_BT.device).split(
            max(1, PLAIN_ELEMENTS // elements_of_row)
        ):
            of_rows = None
            if prefix is not None:
                of_rows = [
                    (k_BHPE[rows.to(k_BHPE.device)], v_BHPE[rows.to(v_BHPE.device)]) for k_BHPE, v_BHPE in prefix
                ]
            with self._implemented_by("eager"):
                output = self._run_after(
                    of_rows,
                    tokens_BT[rows],
                    positions_BT[rows],
                    prefix_positions_BP=None if prefix_positions_BP is None else prefix_positions_BP[rows],
                    output_attentions=True,
                )
            layers_bHTT = [layer_bHTT for layer_bHTT in output.attentions or () if layer_bHTT is not None]
            if not layers_bHTT:
                raise UserError(f"{self.architecture}: transformers returns no attention of such a model")
            logits.append(output.logits[:, -1])
            attention.append([layer_bHTT[:, :, -1].float().mean(dim=1) for layer_bHTT in layers_bHTT])
            del output, layers_bHTT  # before the next is computed
        return torch.cat(logits), [torch.cat(of_layer) for of_layer in zip(*attention, strict=True)]


def _sliding_window(config: Any) -> tuple[Optional[int], bool]:
    """Return (positions that layers with a window see, None without such layers; whether all layers have one)."""
    window = getattr(config, "sliding_window", None)
    slides = [kind == SLIDING for kind in getattr(config, "layer_types", None) or ()]
    return (int(window) if window and (not slides or any(slides)) else None), all(slides)


def _contiguous(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the inputs of a layer with contiguous rows.

    transformers cuts the last token out of ``[B, T, D]``. On a CPU ``linear`` multiplies such a view row by row, without the
    matrix kernels: SmolLM2's output embedding takes 8 times as long in fp32, 300 times in bf16.
    """
    x_BTD, *others = inputs
    return x_BTD.contiguous(), *others


def _causal(positions_BY: torch.Tensor, num_before: int) -> torch.Tensor:
    """Return bool [B, Y, P + Y], True where tokens see the P before them, themselves and those of them that are earlier."""
    num_rows, length = positions_BY.shape
    ones_YK = torch.ones(length, num_before + length, dtype=torch.bool, device=positions_BY.device)
    return ones_YK.tril(num_before).expand(num_rows, -1, -1)


def _attend_and_record(
    module: torch.nn.Module,
    q_BHTE: torch.Tensor,
    k_BHTE: torch.Tensor,
    v_BHTE: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    scaling: Optional[float] = None,
    position_bias: Optional[torch.Tensor] = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention of the fused kernel, as transformers calls it, and record the weights of the last token.

    The fused kernel knows a scale, a mask and a bias, and refuses what else a model may ask for. Heads may share keys.
    """
    last_BHE = q_BHTE[:, :, -1].float() * (q_BHTE.shape[-1] ** -0.5 if scaling is None else scaling)
    grouped = last_BHE.unflatten(1, (k_BHTE.shape[1], -1))
    scores_BHT = (grouped @ k_BHTE.float().transpose(2, 3)).flatten(1, 2)
    for bias in (attention_mask, position_bias):
        if bias is not None:
            last = bias[:, :, -1, : k_BHTE.shape[2]]
            scores_BHT = scores_BHT.masked_fill(~last, -torch.inf) if last.dtype == torch.bool else scores_BHT + last
    _recorded.get().append(scores_BHT.softmax(dim=-1).mean(dim=1))
    if position_bias is not None:
        options["position_bias"] = position_bias
    attended: tuple[torch.Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
        module, q_BHTE, k_BHTE, v_BHTE, attention_mask, scaling=scaling, **options
    )
    return attended


class _UnknownAttentionError(Exception):
    """A layer's attention is not what ``AttentionProbes`` computes."""


def _attend_and_probe(
    module: torch.nn.Module,
    q_BHTE: torch.Tensor,
    k_BHYE: torch.Tensor,
    v_BHYE: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    scaling: Optional[float] = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return causal attention, as transformers calls it, through which derivatives can be read.

    The mask is not used: rows are causal, and whatever precedes them is seen by all.
    """
    if any(options.get(name) is not None for name in NOT_PROBED):
        raise _UnknownAttentionError
    width = q_BHTE.shape[-1]
    out_BHTE = _probes.get().attend(q_BHTE, k_BHYE, v_BHYE, scaling=width**-0.5 if scaling is None else scaling)
    return out_BHTE.transpose(1, 2).contiguous(), None


def _attend_and_observe(
    module: torch.nn.Module,
    q_BHTE: torch.Tensor,
    k_BHTE: torch.Tensor,
    v_BHTE: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    scaling: Optional[float] = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention of the fused kernel, as transformers calls it, and let the observer read the layer."""
    if any(options.get(name) is not None for name in NOT_PROBED):
        raise _UnknownAttentionError
    _observer.get().layer(
        q_BHTE,
        k_BHTE,
        v_BHTE,
        scaling=q_BHTE.shape[-1] ** -0.5 if scaling is None else scaling,
        allowed_BTT=None if attention_mask is None else attention_mask[:, 0],
    )
    attended: tuple[torch.Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
        module, q_BHTE, k_BHTE, v_BHTE, attention_mask, scaling=scaling, **options
    )
    return attended


def _repeated(x_BHTE: torch.Tensor, num_times: int) -> torch.Tensor:
    """Return keys or values for each head of queries, in memory of their own.

    Where all heads share one, transformers repeats it by a stride of 0. Of such keys CUDA's memory-efficient attention computes
    wrong outputs at some lengths (https://github.com/pytorch/pytorch/issues/191937).
    """
    return repeat_kv(x_BHTE, num_times).contiguous()


sdpa_attention.repeat_kv = _repeated
transformers.AttentionInterface.register(OBSERVING, _attend_and_observe)
transformers.AttentionMaskInterface.register(OBSERVING, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
transformers.AttentionInterface.register(PROBING, _attend_and_probe)
transformers.AttentionMaskInterface.register(PROBING, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
transformers.AttentionInterface.register(RECORDING, _attend_and_record)
transformers.AttentionMaskInterface.register(RECORDING, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
