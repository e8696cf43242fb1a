"""Opens what is measured: a trained run or a pretrained model, and its text. Every measurement starts here."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import Config, InfluenceConfig, Lengths, PoseConfig, Visibility
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import folder_name, manifest_of_kind, read_manifest_of, sha256_text, tokenizer_of_run
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.measure.fit import Anchor, check_fit, compare_first_tokens, num_compared_windows
from olmo_sparsity.measure.text import MeasuredText, text_of_pretrained, text_of_run
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.checkpoint import CheckpointInfo, check_checkpoint_of_run, trained_checkpoint
from olmo_sparsity.model.convert import open_run
from olmo_sparsity.model.devices import pick_device, take_own_gpu
from olmo_sparsity.model.pretrained import ModelRecord
from olmo_sparsity.text.sources import list_files
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.tokenizer import eos_id_of, read_tokenizer, word_start_table
from olmo_sparsity.text.windows import Windows, sample_windows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedModel:
    """A model that is ready to be measured, from a trained run or a pretrained one.

    Attributes:
        name: of the run's folder.
        folder: that folder, in which the results go.
        load: loads the model.
        weights_sha256: identifies its weights.
        num_parameters: of the model.
        tokenizer: of its text.
        open_text: opens the text to measure the model on.
        bos: the token that can be an anchor.
        anchor: the anchor, which is ``bos``; None: there is none.
        lengths: of its windows.
        visibility: what a hidden token is hidden from.
        precision: of all losses, ``fp32`` or ``bf16``.
        max_position: position IDs of training lie below this.
        pose: position IDs of the training of a run; None for a pretrained model.
        checkpoint: which checkpoint of the run the weights come from; None for a pretrained model.
        record: what a pretrained model is; None for a run.
    """

    name: str
    folder: Path
    load: Callable[[], CausalLM]
    weights_sha256: str
    num_parameters: int
    tokenizer: Tokenizer
    open_text: Callable[[], MeasuredText]
    bos: Anchor
    anchor: Optional[Anchor]
    lengths: Lengths
    visibility: Visibility
    precision: str
    max_position: int
    pose: Optional[PoseConfig] = None
    checkpoint: Optional[CheckpointInfo] = None
    record: Optional[ModelRecord] = None

    @cached_property
    def model(self) -> CausalLM:
        """The model, loaded when it is first asked for, with weights in the precision of the losses."""
        return self.load().in_dtype(torch.bfloat16 if self.precision == "bf16" else torch.float32)

    @cached_property
    def text(self) -> MeasuredText:
        """The text to measure the model on; it is opened when first asked for.

        Raises:
            UserError: the text is not usable.
        """
        return self.open_text()

    @cached_property
    def tokenizer_sha256(self) -> str:
        """Of the tokenizer's JSON text, for manifests."""
        return sha256_text(self.tokenizer.to_str())

    @property
    def anchor_id(self) -> Optional[int]:
        """Token ID of the anchor; None: there is none."""
        return None if self.anchor is None else self.anchor.id

    def engine(self, settings: InfluenceConfig) -> Engine:
        """What runs the model on its windows; ``settings``: the path, and the size of a pass."""
        return Engine(
            self.model,
            self.lengths.local_len,
            visibility=self.visibility,
            anchor_id=self.anchor_id,
            path=settings.path,
            batch_tokens=settings.batch_tokens or 0,
        )

    def fit(self, windows: Windows, known: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        """Check on a few windows that a pretrained model can be measured; return the manifest's entry about it, of a run none.

        ``known``: an earlier entry. Its checks stay; first tokens are compared again where these windows are more.

        Raises:
            UserError: the model does not do what the measurement takes for granted.
        """
        if self.record is None:
            return {}
        lengths = self.lengths
        number = min(num_compared_windows(lengths.full_len), len(windows))
        if known and (known["fit"]["anchor"] is None or number <= known["fit"]["anchor"]["num_windows"]):
            return known
        tokens_WT = torch.from_numpy(np.ascontiguousarray(windows.tokens(np.arange(number)))).to(self.model.device)
        if known:
            checks = known["fit"]["checks"]
        else:
            logger.info(
                f"{self.record.name}: checking on windows of {lengths.full_len:,} tokens whether it can be measured"
            )
            options: dict[str, Any] = {
                "name": self.record.name,
                "local_len": lengths.local_len,
                "anchor_id": self.anchor_id,
            }
            checks = [dataclasses.asdict(check) for check in check_fit(self.model, tokens_WT, **options)]
        compared = None
        if lengths.full_len < self.model.max_position:  # else a BOS does not fit in front
            documents = windows.store.doc_ids_G[windows.document_W[:number]]
            compared = dataclasses.asdict(
                compare_first_tokens(
                    self.model, tokens_WT, documents, bos=self.bos, chosen=self.anchor_id, local_len=lengths.local_len
                )
            )
        return {"fit": {"checks": checks, "anchor": compared}}

    def windows(self, settings: InfluenceConfig) -> Windows:
        """Return windows of the text; ``settings``: how many, and which targets.

        Raises:
            UserError: the text has no such window.
        """
        return draw_windows(
            self.text.store,
            settings,
            full_len=self.lengths.full_len,
            tokenizer=self.tokenizer,
            exclude_ids=self.text.excluded_ids_G,
        )


def draw_windows(
    store: TokenStore,
    settings: InfluenceConfig,
    *,
    full_len: int,
    tokenizer: Tokenizer,
    exclude_ids: Optional[np.ndarray] = None,
) -> Windows:
    """Return windows of ``full_len`` tokens as a configuration says how they are drawn.

    Args:
        store: the text to draw from.
        settings: how many, and which targets.
        full_len: tokens of a window.
        tokenizer: of the text.
        exclude_ids: uint64 [any]; IDs of documents that must not be used.

    Raises:
        UserError: the text has no such window.
    """
    return sample_windows(
        store,
        full_len,
        num_windows=settings.num_windows,
        max_per_document=settings.max_windows_per_document,
        seed=settings.seed,
        min_preceding=max(full_len, settings.min_preceding or 0),
        exclude_ids=exclude_ids,
        target_table_V=word_start_table(tokenizer) if settings.targets == "word-start" else None,
    )


def open_model(config: Config, run: Path, *, in_memory: Optional[tuple[Any, Any]] = None) -> OpenedModel:
    """Open the model that ``pretrained.model`` names, or otherwise a run's newest checkpoint.

    Args:
        config: which model and text, on which device, with which anchor.
        run: folder of the trained run, or of the results of a pretrained model.
        in_memory: (model, tokenizer) of transformers, in place of the one that the configuration names.

    Raises:
        UserError: the model or the run is not usable, or has too few positions.
    """
    take_own_gpu(config.training.device)
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    if config.pretrained.model is None:
        return _open_run(config, run, device=device)
    return _open_pretrained(config, run, device=device, in_memory=in_memory)


def check_before_training(config: Config) -> None:
    """Check what a measurement of a run takes for granted and what is known before the run is trained, which takes long.

    Raises:
        UserError: a key of a pretrained model is set, the text to measure is missing, or the windows do not fit into the
            positions.
    """
    if config.influence.data is not None:
        list_files(dataclasses.replace(config.data, source=config.influence.data))
    anchor = _anchor_of(Anchor(0, config.data.eos_token), config.influence.anchor, automatic=config.context.bos)
    _check_positions(config.measured_lengths.full_len, anchor, max_position=config.num_positions)


def _open_run(config: Config, run: Path, *, device: torch.device) -> OpenedModel:
    """Load a run's newest checkpoint; the text is its validation documents, or what ``influence.data`` names."""
    latest = trained_checkpoint(run)
    manifest = read_manifest_of(run, "num_parameters")
    checkpoint = check_checkpoint_of_run(latest, manifest)
    tokenizer = read_tokenizer(tokenizer_of_run(run, manifest))
    # In the text of training this token stands before every document.
    bos = Anchor(eos_id_of(tokenizer, config.data.eos_token), config.data.eos_token)
    anchor = _anchor_of(bos, config.influence.anchor, automatic=config.context.bos)
    _check_positions(config.measured_lengths.full_len, anchor, max_position=config.num_positions)
    return OpenedModel(
        name=folder_name(run),
        folder=run,
        load=lambda: CausalLM(open_run(latest).to(device)),
        weights_sha256=checkpoint.model_sha256,
        num_parameters=manifest["num_parameters"],
        tokenizer=tokenizer,
        open_text=lambda: text_of_run(config.data, config.influence, run=run, manifest=manifest),
        bos=bos,
        anchor=anchor,
        lengths=config.measured_lengths,
        visibility=config.influence.visibility,
        precision="fp32" if config.influence.precision == "auto" else config.influence.precision,
        max_position=config.max_position,
        pose=config.pose,
        checkpoint=checkpoint,
    )


def _open_pretrained(
    config: Config, run: Path, *, device: torch.device, in_memory: Optional[tuple[Any, Any]]
) -> OpenedModel:
    """Open a pretrained model, and text tokenized by its own tokenizer."""
    from olmo_sparsity.model.pretrained import from_memory, open_pretrained  # it needs libraries that runs do not need

    exists = manifest_of_kind(run, "pretrained")
    full_len = config.measured_lengths.full_len
    if in_memory is None:
        opened = open_pretrained(
            config.pretrained, device=device, precision=config.influence.precision, longest=full_len + 1
        )
    else:
        opened = from_memory(*in_memory, name=str(config.pretrained.model))
    if exists:
        check_same_model(run, opened.record)
    bos = Anchor(opened.bos_id, opened.bos_text)
    if opened.rows_have_bos is not None:
        automatic = opened.rows_have_bos  # as where the run of this checkpoint or export is measured
    else:
        # Under `contextual` the entry that attention rests on would be hidden without it.
        automatic = opened.adds_bos or config.influence.visibility == "contextual"
    anchor = _anchor_of(bos, config.influence.anchor, automatic=automatic)
    if opened.can_be_longer:
        _warn_of_longer(opened.record, config.pretrained.train_len, longest=full_len + (anchor is not None))
    else:
        _check_positions(
            full_len,
            anchor,
            max_position=opened.record.max_position,
            remedy="; more are measured of a model with rotary positions (not scaled by dynamic NTK or LongRoPE) whose training "
            "row is stated (pretrained.train_len)",
        )
    return OpenedModel(
        name=folder_name(run),
        folder=run,
        load=lambda: opened.model,
        weights_sha256=opened.record.weights_sha256,
        num_parameters=opened.record.num_parameters,
        tokenizer=opened.tokenizer,
        open_text=lambda: text_of_pretrained(
            config.data, config.influence, tokenizer=opened.tokenizer, eos_token=opened.eos_token
        ),
        bos=bos,
        anchor=anchor,
        lengths=config.measured_lengths,
        visibility=config.influence.visibility,
        precision="bf16" if opened.record.dtype == "bfloat16" else "fp32",
        max_position=opened.record.max_position,
        record=opened.record,
    )


def _warn_of_longer(record: ModelRecord, train_len: Optional[int], *, longest: int) -> None:
    """Warn where rows have more tokens than the stated row of training, or more than the model has positions."""
    assert train_len is not None
    if longest <= min(train_len, record.max_position):
        return
    beyond = "its stated training row" if longest > train_len else ""
    beyond += (" and " if beyond else "") + "its positions" if longest > record.max_position else ""
    logger.warning(
        f"{record.name}: rows of up to {longest:,} tokens go beyond {beyond}: the row has {train_len:,} tokens "
        f"(pretrained.train_len), and the model {record.max_position:,} positions (max_position_embeddings)"
    )


def check_same_model(run: Path, record: ModelRecord) -> None:
    """Check that the folder of results, where it exists, is that of this model.

    Raises:
        UserError: it holds the results of another model, or of one whose positions are scaled otherwise.
    """
    stored = read_manifest_of(run, "model")["model"]
    rope_scaling = stored.get("rope_scaling")
    if rope_scaling != record.rope_scaling:
        raise UserError(
            f"{run}: this folder holds the results of {stored['name']} with pretrained.rope_scaling = "
            f"{rope_scaling or 'none'}, not {record.rope_scaling or 'none'}; choose another folder with --run DIR"
        )
    if (stored["weights_sha256"], stored["tokenizer_sha256"]) != (record.weights_sha256, record.tokenizer_sha256):
        raise UserError(
            f"{run}: this folder holds the results of {stored['name']} with other weights or another tokenizer; choose another "
            "folder with --run DIR"
        )


def _anchor_of(bos: Anchor, setting: str, *, automatic: bool) -> Optional[Anchor]:
    """Return the anchor that ``influence.anchor`` asks for; ``automatic``: whether ``auto`` is ``bos`` for this model."""
    return bos if setting == "bos" or (setting == "auto" and automatic) else None


def _check_positions(full_len: int, anchor: Optional[Anchor], *, max_position: int, remedy: str = "") -> None:
    """Check that the rows to measure, with the anchor in front, fit into the positions of training.

    Raises:
        UserError: they do not.
    """
    num_anchors = 0 if anchor is None else 1
    with_anchor = f" with the anchor {anchor.text!r} in front" if anchor is not None else ""
    if full_len + num_anchors > max_position:
        raise UserError(
            f"full_len = {full_len}{with_anchor}: the model was trained on {max_position} positions; measure at most as many, "
            f"with --full-len {max_position - num_anchors} or less{remedy}"
        )


def identity(opened: OpenedModel) -> list[Any]:
    """Return what every fingerprint of a measurement holds of the model and of how its losses are defined."""
    scaling, lengths = None if opened.record is None else opened.record.rope_scaling, opened.lengths
    return [
        opened.weights_sha256,
        {
            "local_len": lengths.local_len,
            "full_len": lengths.full_len,
            "train_len": lengths.train_len,
            "max_position": lengths.max_position,
            "num_long_range": lengths.num_long_range,
        },
        opened.visibility,
        opened.anchor_id,
        opened.precision,
        *([] if scaling is None else [scaling]),
    ]


def lengths_record(opened: OpenedModel) -> dict[str, Any]:
    """Return the lengths of a measurement, as manifests and summaries give them."""
    lengths, pose = opened.lengths, opened.pose
    record: dict[str, Any] = {
        "local_len": lengths.local_len,
        "full_len": lengths.full_len,
        "train_len": lengths.train_len,
        "max_position": opened.max_position,
    }
    if pose is not None:
        record |= {"pose_method": pose.method, "num_chunks": pose.num_chunks, "pose_contents": pose.contents}
    elif lengths.train_len is not None:
        record["train_len_is_stated"] = True
    return {**record, "num_long_range": lengths.num_long_range}
