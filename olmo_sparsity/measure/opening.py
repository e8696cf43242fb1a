"""Opens what is measured: a trained run or a pretrained model, and its text. Every measurement starts here."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import Config, DataConfig, InfluenceConfig, Lengths, Visibility, read_config_of
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import folder_name, manifest_of_kind, need, read_manifest_of, tokenizer_of_run
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.measure.fit import Anchor, check_fit, compare_first_tokens, num_compared_windows
from olmo_sparsity.measure.parts import check_same_model
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.checkpoint import check_checkpoint_of_run, read_model, trained_checkpoint
from olmo_sparsity.model.convert import to_transformers
from olmo_sparsity.model.devices import pick_device
from olmo_sparsity.model.pretrained import ModelRecord, from_memory, open_pretrained
from olmo_sparsity.text.prepare import prepare
from olmo_sparsity.text.sources import open_source
from olmo_sparsity.text.store import TokenStore, is_prepared, open_store, verify_prepared
from olmo_sparsity.text.tokenizer import eos_id_of, read_tokenizer, word_start_table
from olmo_sparsity.text.windows import Windows

logger = logging.getLogger(__name__)

C4_TOKENS_PER_WINDOW = 10_000  # some 20 documents: most windows come from different ones, however long they must be


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model that is ready to be measured, and how it is measured."""

    config: Config
    folder: Path  # of the run, or of the results of a pretrained model
    model: CausalLM
    tokenizer: Tokenizer
    eos_token: str  # ends every document of its text
    bos: Anchor  # the token that can be an anchor
    anchor: Optional[Anchor]  # ``bos``; None: there is none
    weights_sha256: str
    num_parameters: int
    max_position: int  # position IDs of training are below this
    checkpoint: Optional[dict[str, Any]] = None  # of a run: step, hash of the weights
    record: Optional[ModelRecord] = None  # of a pretrained model
    _fits: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)  # by number of windows

    def __repr__(self) -> str:
        name, lengths = self.record.name if self.record else folder_name(self.folder), self.lengths
        anchor = f"anchor {self.anchor.text!r}" if self.anchor else "no anchor"
        return (
            f"Model({name!r}, {self.num_parameters / 1e6:.3g}M parameters, {self.precision} on {self.model.device}, "
            f"local_len {lengths.local_len}, full_len {lengths.full_len}, {self.visibility}, {anchor})"
        )

    @property
    def lengths(self) -> Lengths:
        return self.config.measured_lengths

    @property
    def visibility(self) -> Visibility:
        return self.config.influence.visibility

    @property
    def precision(self) -> str:
        """Of all losses, ``fp32`` or ``bf16``."""
        return "bf16" if self.model.dtype == torch.bfloat16 else "fp32"

    @cached_property
    def target_table_V(self) -> Optional[np.ndarray]:
        """Which tokens may be targets, bool [V]; None: all."""
        return word_start_table(self.tokenizer) if self.config.influence.targets == "word-start" else None

    @property
    def anchor_id(self) -> Optional[int]:
        return None if self.anchor is None else self.anchor.id

    def engine(self, settings: InfluenceConfig) -> Engine:
        """Runs the model on its windows; ``settings``: the path, and the size of a pass."""
        return Engine(
            self.model, self.lengths.local_len, self.visibility, self.anchor_id, settings.path, settings.batch_tokens or 0
        )  # fmt: skip

    def identity(self) -> list[Any]:
        """The part of a measurement's fingerprint that says which model it is, and how its losses are defined."""
        fields = ("local_len", "full_len", "train_len", "max_position", "num_long_range")
        lengths = {name: getattr(self.lengths, name) for name in fields}
        scaling = None if self.record is None else self.record.rope_scaling
        identity = [self.weights_sha256, lengths, self.visibility, self.anchor_id, self.precision]
        return identity if scaling is None else [*identity, scaling]

    def fit(self, windows: Windows) -> dict[str, Any]:
        """Check on a few windows that a pretrained model can be measured; an entry of the manifest (of a run none).

        The checks run once. First tokens are compared again for another number of windows.
        """
        number = min(num_compared_windows(self.lengths.full_len), len(windows))
        if self.record is None or number in self._fits:
            return {"fit": self._fits[number]} if self._fits else {}
        tokens_WT = torch.from_numpy(np.ascontiguousarray(windows.tokens(np.arange(number)))).to(self.model.device)
        compared, full_len, local_len = None, self.lengths.full_len, self.lengths.local_len
        if self._fits:
            checks = next(iter(self._fits.values()))["checks"]
        else:
            logger.info(f"{self.record.name}: checking on windows of {full_len:,} tokens whether it can be measured")
            checks = check_fit(
                self.model, tokens_WT, name=self.record.name, local_len=local_len, anchor_id=self.anchor_id
            )
        if full_len < self.model.max_position:  # else a BOS does not fit in front
            compared = compare_first_tokens(
                self.model, tokens_WT, windows.document_W[:number], bos=self.bos, chosen=self.anchor_id, local_len=local_len
            )  # fmt: skip
        self._fits[number] = {"checks": checks, "anchor": compared}
        return {"fit": self._fits[number]}


def open_model(config: Config, run: Path, *, in_memory: Optional[tuple[Any, Any]] = None) -> OpenedModel:
    """Open the model that ``pretrained.model`` names, or otherwise a run's newest checkpoint.

    ``in_memory``: (model, tokenizer) of transformers in place of the named model.
    """
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    if config.pretrained.model is None:
        return _open_run(config, run, device)
    return _open_pretrained(config, run, device, in_memory)


def check_before_training(config: Config) -> None:
    """Check before a run is trained, which takes long, that it can be measured afterwards."""
    if config.influence.data is not None:
        open_source(dataclasses.replace(config.data, source=config.influence.data))
    _anchor_of(
        config, Anchor(0, config.data.eos_token), automatic=config.context.bos, max_position=config.num_positions
    )


def _open_run(config: Config, run: Path, device: torch.device) -> OpenedModel:
    """Load a run's newest checkpoint as a model of transformers."""
    latest = trained_checkpoint(run)
    manifest = read_manifest_of(run, "config", "num_parameters", "tokenizer_sha256")
    checkpoint = check_checkpoint_of_run(latest, manifest).record
    tokenizer = read_tokenizer(tokenizer_of_run(run, manifest))
    # In the text of training this token precedes every document.
    bos = Anchor(eos_id_of(tokenizer, config.data.eos_token), config.data.eos_token)
    anchor = _anchor_of(config, bos, automatic=config.context.bos, max_position=config.num_positions)
    model = CausalLM(to_transformers(*read_model(latest)).to(device))
    dtype = torch.bfloat16 if config.influence.precision == "bf16" else torch.float32
    return OpenedModel(
        config, run, model.in_dtype(dtype), tokenizer, config.data.eos_token, bos, anchor, checkpoint["model_sha256"],
        manifest["num_parameters"], config.max_position, checkpoint=checkpoint,
    )  # fmt: skip


def _open_pretrained(
    config: Config, run: Path, device: torch.device, in_memory: Optional[tuple[Any, Any]]
) -> OpenedModel:
    full_len, precision = config.measured_lengths.full_len, config.influence.precision
    if in_memory is None:
        opened = open_pretrained(config.pretrained, device=device, precision=precision, longest=full_len + 1)
    else:
        opened = from_memory(*in_memory, name=str(config.pretrained.model))
    record = opened.record
    if in_memory is None and manifest_of_kind(run, "pretrained"):
        check_same_model(run, record)
    # Under `contextual` the entry that attention rests on would be hidden without a BOS.
    automatic = opened.adds_bos or config.influence.visibility == "contextual"
    if opened.rows_have_bos is not None:
        automatic = opened.rows_have_bos  # as where the run of this export is measured
    bos = Anchor(opened.bos_id, opened.bos_text)
    anchor = _anchor_of(
        config, bos, automatic=automatic, max_position=None if opened.can_be_longer else record.max_position,
        remedy="; longer windows need a model with rotary positions (not scaled by dynamic NTK or LongRoPE) whose training "
        "row is stated (pretrained.train_len)",
    )  # fmt: skip
    longest, train_len = full_len + (anchor is not None), config.pretrained.train_len or 0
    limits = {"its stated training row": train_len, "its positions": record.max_position}
    beyond = " and ".join(what for what, limit in limits.items() if longest > limit)
    if beyond and opened.can_be_longer:
        logger.warning(
            f"{record.name}: rows of up to {longest:,} tokens go beyond {beyond}: the row has {train_len:,} tokens "
            f"(pretrained.train_len), and the model {record.max_position:,} positions (max_position_embeddings)"
        )
    return OpenedModel(
        config, run, opened.model, opened.tokenizer, opened.eos_token, bos, anchor, record.weights_sha256,
        record.num_parameters, record.max_position, record=record,
    )  # fmt: skip


def _anchor_of(
    config: Config, bos: Anchor, *, automatic: bool, max_position: Optional[int], remedy: str = ""
) -> Optional[Anchor]:
    """The anchor for ``influence.anchor``; ``automatic``: whether ``auto`` is ``bos``.

    With it, windows must fit into the positions of training, unless ``max_position`` is None.
    """
    setting, full_len = config.influence.anchor, config.measured_lengths.full_len
    anchor = bos if setting == "bos" or (setting == "auto" and automatic) else None
    if max_position is not None and full_len > (longest := max_position - (anchor is not None)):
        with_anchor = f" with the anchor {anchor.text!r} in front" if anchor is not None else ""
        raise UserError(
            f"full_len = {full_len}{with_anchor}: the model was trained on {max_position} positions; measure at most as many, "
            f"with --full-len {longest} or less{remedy}"
        )
    return anchor


class MeasuredText(NamedTuple):
    """The text to measure a model on."""

    store: TokenStore
    source: str  # as the configuration names it
    split: str  # ``validation`` of a run's text, ``held-out`` from other text, or ``measured``: text for a pretrained model
    training_store: Optional[TokenStore] = None  # the documents that the model was trained on; None: unknown
    excluded_ids_G: Optional[np.ndarray] = None  # uint64, IDs of documents that the model was trained on


def open_text(opened: OpenedModel) -> MeasuredText:
    """Open the text to measure a model on: documents that a run was not trained on, or text for a pretrained model."""
    config, run = opened.config, opened.folder
    if opened.record is None:
        return _text_of_run(config.data, config.influence, run=run)
    data = dataclasses.replace(_data_to_measure(config.data, config.influence), eos_token=opened.eos_token)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_file = Path(folder) / "tokenizer.json"
        tokenizer_file.write_text(opened.tokenizer.to_str(), encoding="utf-8")
        prepared = prepare(data, tokenizer_file=tokenizer_file)
    verify_prepared(prepared)
    return MeasuredText(open_store(prepared, "measured"), data.source, "measured")


def _text_of_run(data: DataConfig, settings: InfluenceConfig, *, run: Path) -> MeasuredText:
    manifest = read_manifest_of(run)
    if "token_store" not in manifest:
        raise UserError(
            f"{run}: this run was trained on a synthetic task and has no text; measure it with `olmo-sparsity synth`"
        )
    need(manifest, "tokens_sha256", where=run / "manifest.json")
    trained_on = Path(manifest["token_store"])
    if not is_prepared(trained_on):
        logger.info(f"{trained_on}: the token files of this run are gone; preparing the text again")
        trained_on = prepare(dataclasses.replace(read_config_of(run).data, cache_dir=data.cache_dir))
    verify_prepared(trained_on)
    training_store = open_store(trained_on, "train")
    if training_store.tokens_sha256 != manifest["tokens_sha256"]:
        raise UserError(
            f"{run}: data.source = {data.source} has changed since this run was trained on it, so it is unknown which "
            "documents the model has not seen; restore the text"
        )
    if settings.data is None:
        return MeasuredText(open_store(trained_on, "validation"), data.source, "validation", training_store)
    prepared = prepare(_data_to_measure(data, settings), tokenizer_file=run / "tokenizer.json")
    verify_prepared(prepared)
    made_from = {read_manifest_of(folder, "made_from")["made_from"] for folder in (trained_on, prepared)}
    if len(made_from) > 1:
        logger.info(
            f"{settings.data}: documents of text are recognised by their characters, those in token files by their tokens, so "
            "documents that the model was trained on cannot be left out here"
        )
    store = open_store(prepared, "measured")
    return MeasuredText(store, settings.data, "held-out", training_store, training_store.doc_ids_G)


def _data_to_measure(data: DataConfig, settings: InfluenceConfig) -> DataConfig:
    """How the text is read: ``influence.data`` as ``data``, with a limit of its own; or ``data`` itself."""
    if settings.data is not None:
        data = dataclasses.replace(data, source=settings.data, max_tokens=None)
    if data.max_tokens is None and data.source == "c4":
        data = dataclasses.replace(data, max_tokens=C4_TOKENS_PER_WINDOW * settings.num_windows)
    return data
