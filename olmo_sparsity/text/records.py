"""Records of a preparation: limits, finished shards, and the splits in the manifest. Their fields are the keys on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Optional

from msgspec import Meta

NAMED_RECORDS = 10  # broken records that are named, of a shard and of a preparation
Count = Annotated[int, Meta(ge=0)]


class Limits(NamedTuple):
    """How many more documents, and tokens of the first split, may be read. None: any number."""

    documents: Optional[int]
    tokens: Optional[int]

    def are_reached_by(self, documents: int, tokens: int) -> bool:
        """Return True if so many documents and tokens reach one of the limits."""
        return (self.documents is not None and documents >= self.documents) or (
            self.tokens is not None and tokens >= self.tokens
        )

    def allow(self, record: ShardRecord) -> bool:
        """Return True if a shard that was written under other limits would be the same under these."""
        if record.limits == self:
            return True
        return not record.cut and not self.are_reached_by(record.documents, record.limited_tokens)

    def after(self, record: ShardRecord) -> Limits:
        """Return what a shard leaves of these limits."""
        return Limits(
            documents=None if self.documents is None else self.documents - record.documents,
            tokens=None if self.tokens is None else self.tokens - record.limited_tokens,
        )


class SourceRun(NamedTuple):
    """Consecutive documents of one source."""

    source: str
    num_documents: Count


def append_run(runs: list[SourceRun], run: SourceRun) -> None:
    """Append a run to a list, or add it to the last run if that has the same source."""
    if runs and runs[-1].source == run.source:
        runs[-1] = SourceRun(run.source, runs[-1].num_documents + run.num_documents)
    else:
        runs.append(run)


@dataclass(frozen=True)
class TokenFile:
    """A token file. ``path`` is relative to the prepared folder, or absolute if the file is a source."""

    path: str
    bytes: Count
    tokens: Count
    sha256: str


@dataclass(frozen=True)
class SourceFile:
    """A token file that is a source and was scanned for documents.

    Attributes:
        path: its absolute path.
        size: its bytes.
        sha256: its hash.
        tokens: how many it holds.
        closed: the number of its documents that end with EOS.
        unclosed: True if tokens without EOS follow the last of them.
    """

    path: str
    size: Count
    sha256: str
    tokens: Count
    closed: Count
    unclosed: bool


@dataclass(frozen=True)
class ShardSplit:
    """The documents of a shard that belong to one split. ``sha256`` holds the hash of each of its files, by name."""

    documents: Count
    tokens: Count
    sources: list[SourceRun]
    sha256: dict[str, str]


@dataclass(frozen=True)
class ShardRecord:
    """What was written of a shard. A shard with a record on disk is finished.

    Attributes:
        name: name of the shard.
        limits: the limits under which it was written.
        cut: True if a limit ended it.
        documents: number of documents, of all splits.
        bytes: size of their text in UTF-8; of token files, of their tokens.
        skipped: number of skipped records for each reason.
        broken: the first broken ones, at most ``NAMED_RECORDS``: file, line and problem of each.
        seconds: time it took.
        splits: the documents of each split; ``max_tokens`` counts those of the first split.
        file: the token file that was scanned; None if the source is text.
    """

    name: str
    limits: Limits
    cut: bool
    documents: Count
    bytes: Count
    skipped: dict[str, Count]
    seconds: float
    splits: Annotated[dict[str, ShardSplit], Meta(min_length=1)]
    file: Optional[SourceFile] = None
    broken: list[str] = field(default_factory=list)

    @property
    def limited_tokens(self) -> int:
        """Tokens that count towards ``max_tokens``."""
        return next(iter(self.splits.values())).tokens


@dataclass(frozen=True)
class SplitEntry:
    """A split in the manifest of a prepared folder. ``index_sha256`` holds the hash of each array of its index, by name."""

    documents: Count
    tokens: Count
    tokens_sha256: str
    index_sha256: dict[str, str]
    files: list[TokenFile]
    sources: list[SourceRun]
