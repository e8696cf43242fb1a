"""Records of a preparation: limits, finished shards, and the splits in the manifest.

``to_json`` and ``from_json`` convert a record to and from the JSON object that is on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass(frozen=True)
class Limits:
    """How many more documents, and tokens of the first split, may be read. None: any number."""

    documents: Optional[int]
    tokens: Optional[int]

    @property
    def is_limited(self) -> bool:
        """True if there is any limit."""
        return self.documents is not None or self.tokens is not None

    def is_reached_by(self, documents: int, tokens: int) -> bool:
        """Return True if so many documents and tokens reach one of the limits."""
        return (self.documents is not None and documents >= self.documents) or (
            self.tokens is not None and tokens >= self.tokens
        )

    def allow(self, record: ShardRecord) -> bool:
        """Return True if a shard that was written under other limits would be the same under these."""
        if record.limits == self:
            return True
        return not record.is_cut and not self.is_reached_by(record.documents, record.limited_tokens)

    def after(self, record: ShardRecord) -> Limits:
        """Return what a shard leaves of these limits."""
        return Limits(
            documents=None if self.documents is None else self.documents - record.documents,
            tokens=None if self.tokens is None else self.tokens - record.limited_tokens,
        )


@dataclass(frozen=True)
class SourceRun:
    """Consecutive documents of one source."""

    source: str
    num_documents: int


def append_run(runs: list[SourceRun], run: SourceRun) -> None:
    """Append a run to a list, or add it to the last run if that has the same source."""
    if runs and runs[-1].source == run.source:
        runs[-1] = SourceRun(run.source, runs[-1].num_documents + run.num_documents)
    else:
        runs.append(run)


def _runs_to_json(runs: list[SourceRun]) -> list[list[Any]]:
    return [[run.source, run.num_documents] for run in runs]


def _runs_from_json(value: list[list[Any]]) -> list[SourceRun]:
    return [SourceRun(source, num_documents) for source, num_documents in value]


@dataclass(frozen=True)
class TokenFile:
    """A token file. ``path`` is relative to the prepared folder, or absolute if the file is a source."""

    path: str
    num_bytes: int
    tokens: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": self.num_bytes, "tokens": self.tokens, "sha256": self.sha256}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> TokenFile:
        return TokenFile(path=value["path"], num_bytes=value["bytes"], tokens=value["tokens"], sha256=value["sha256"])


@dataclass(frozen=True)
class SourceFile:
    """A token file that is a source and was scanned for documents.

    ``closed_documents`` counts those that end with EOS; ``has_open_end`` is True if tokens without EOS follow the last one.
    """

    file: TokenFile
    closed_documents: int
    has_open_end: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.file.path,
            "size": self.file.num_bytes,
            "sha256": self.file.sha256,
            "tokens": self.file.tokens,
            "closed": self.closed_documents,
            "unclosed": self.has_open_end,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> SourceFile:
        return SourceFile(
            file=TokenFile(path=value["path"], num_bytes=value["size"], tokens=value["tokens"], sha256=value["sha256"]),
            closed_documents=value["closed"],
            has_open_end=value["unclosed"],
        )


@dataclass(frozen=True)
class ShardSplit:
    """The documents of a shard that belong to one split. ``sha256`` holds the hash of each of its files, by name."""

    documents: int
    tokens: int
    sources: list[SourceRun]
    sha256: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "sources": _runs_to_json(self.sources),
            "sha256": self.sha256,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> ShardSplit:
        return ShardSplit(
            documents=value["documents"],
            tokens=value["tokens"],
            sources=_runs_from_json(value["sources"]),
            sha256=value["sha256"],
        )


@dataclass(frozen=True)
class ShardRecord:
    """What was written of a shard. A shard with a record on disk is finished.

    Attributes:
        name: name of the shard.
        limits: the limits under which it was written.
        is_cut: True if a limit ended it.
        documents: number of documents, of all splits.
        num_bytes: size of their text in UTF-8; of token files, of their tokens.
        skipped: number of skipped records for each reason.
        source_file: the token file that was scanned; None if the source is text.
        seconds: time it took.
        splits: the documents of each split; ``max_tokens`` counts those of the first split.
    """

    name: str
    limits: Limits
    is_cut: bool
    documents: int
    num_bytes: int
    skipped: dict[str, int]
    source_file: Optional[SourceFile]
    seconds: float
    splits: dict[str, ShardSplit]

    @property
    def limited_tokens(self) -> int:
        """Tokens that count towards ``max_tokens``."""
        return next(iter(self.splits.values())).tokens

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "limits": [self.limits.documents, self.limits.tokens],
            "cut": self.is_cut,
            "documents": self.documents,
            "bytes": self.num_bytes,
            "skipped": self.skipped,
            **({} if self.source_file is None else {"file": self.source_file.to_json()}),
            "seconds": self.seconds,
            "splits": {split: entry.to_json() for split, entry in self.splits.items()},
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> ShardRecord:
        max_documents, max_tokens = value["limits"]
        return ShardRecord(
            name=value["name"],
            limits=Limits(max_documents, max_tokens),
            is_cut=value["cut"],
            documents=value["documents"],
            num_bytes=value["bytes"],
            skipped=value["skipped"],
            source_file=SourceFile.from_json(value["file"]) if "file" in value else None,
            seconds=value["seconds"],
            splits={split: ShardSplit.from_json(entry) for split, entry in value["splits"].items()},
        )


@dataclass(frozen=True)
class SplitEntry:
    """A split in the manifest of a prepared folder."""

    documents: int
    tokens: int
    tokens_sha256: str
    files: list[TokenFile]
    sources: list[SourceRun]
    index_sha256: dict[str, str] = field(default_factory=dict)  # older versions did not record it

    def to_json(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "tokens_sha256": self.tokens_sha256,
            "index_sha256": self.index_sha256,
            "files": [file.to_json() for file in self.files],
            "sources": _runs_to_json(self.sources),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> SplitEntry:
        return SplitEntry(
            documents=value["documents"],
            tokens=value["tokens"],
            tokens_sha256=value["tokens_sha256"],
            files=[TokenFile.from_json(file) for file in value["files"]],
            sources=_runs_from_json(value["sources"]),
            index_sha256=dict(value.get("index_sha256", {})),
        )
