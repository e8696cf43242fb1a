"""Decides which shards are written when, by how many processes, and under which limits.

``data.max_documents`` and ``data.max_tokens`` hold in the order of the shards. But several shards are written at once, and which
one reaches a limit is known only when those before it are finished. So a shard is written under what is left of the limits when
it is started. If that turns out to have been too much, the shard is written again.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, MutableSequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.text.corpus import Shard
from olmo_sparsity.text.encoding import write_shard
from olmo_sparsity.text.records import Limits, ShardRecord
from olmo_sparsity.text.shard_writer import PROGRESS_FIELDS, ShardTask, has_record, read_finished, stamps_of
from olmo_sparsity.text.verification import Stamps
from olmo_sparsity.text.workers import SubmitShard, shared_progress, usable_cores, worker_pool

PROGRESS_SECONDS = 0.3  # between updates of the progress bar


@dataclass(frozen=True)
class WrittenShards:
    """The shards within the limits, in order.

    Attributes:
        records: of all of them.
        new_records: of those that were written by this call.
        stamps: those that their files had when they were hashed.
    """

    records: list[ShardRecord]
    new_records: list[ShardRecord]
    stamps: Stamps


class _Schedule:
    """Keeps track of the shards: which are finished, running, accepted under the limits, and which come next."""

    def __init__(self, template: ShardTask, shards: list[Shard]) -> None:
        self.template = template
        self.shards = shards
        self.cores = template.data.processes or usable_cores()
        self.remaining = template.limits  # what the accepted shards leave
        self.accepted: list[ShardRecord] = []  # the first shards, with the limits applied
        self.finished: dict[int, ShardRecord] = {}
        self.stamps: Stamps = {}  # of the files of these shards
        self._take_over()
        self.written: set[int] = set()  # numbers of the shards that were written now
        self.failed: set[int] = set()  # perhaps beyond a limit; retried when all shards before them are accepted
        self.running: dict[Future[ShardRecord], ShardTask] = {}

    def _take_over(self) -> None:
        """Take over the shards that an interrupted call has finished."""
        folder = self.template.folder
        numbers = [number for number in range(len(self.shards)) if has_record(folder, number)]
        if not numbers:
            return
        for number in progress_bar("check", " finished shards", total=len(numbers), iterable=numbers):
            if (finished := read_finished(folder, number)) is not None:
                self.finished[number], stamps = finished
                self.stamps |= stamps

    @property
    def is_complete(self) -> bool:
        """True if all shards are accepted, or a limit is reached."""
        return len(self.accepted) == len(self.shards) or self.remaining.is_reached_by(0, 0)

    def accept_finished(self) -> None:
        """Accept finished shards in order, up to the first one that is missing or has to be written again."""
        while not self.is_complete:
            number = len(self.accepted)
            record = self.finished.get(number)
            if record is None:
                return
            if not self.remaining.allow(record):
                del self.finished[number]
                return
            self.accepted.append(record)
            self.remaining = self.remaining.after(record)

    def pending(self) -> list[int]:
        """Return the numbers of the shards that should be written now, including those that are running."""
        number = len(self.accepted)
        end = len(self.shards)
        if self.remaining.is_limited:
            end = min(end, number + _shards_needed(self.remaining, self.accepted))
        return [
            shard
            for shard in range(number, end)
            if shard not in self.finished and (shard not in self.failed or shard == number)
        ]

    def next_tasks(self, pending: list[int], max_tasks: int) -> list[ShardTask]:
        """Return the tasks to start next. Without limits the largest shards come first."""
        running = {task.number for task in self.running.values()}
        waiting = [number for number in pending if number not in running]
        if not self.remaining.is_limited:
            waiting.sort(key=lambda number: -self.shards[number].num_bytes)
        return [
            dataclasses.replace(
                self.template,
                number=number,
                shard=self.shards[number],
                limits=self.remaining,
                num_threads=self._num_threads(number, pending),
            )
            for number in waiting[:max_tasks]
        ]

    def _num_threads(self, number: int, pending: list[int]) -> int:
        """Return the number of threads that encode a shard: the more, the larger its share of the pending text."""
        total = sum(self.shards[other].num_bytes for other in pending)
        share = self.shards[number].num_bytes / max(total, 1)
        equal_share = -(-self.cores // min(self.cores, len(pending)))
        return min(self.cores, max(equal_share, int(self.cores * share + 0.999)))

    def add(self, number: int, record: ShardRecord) -> None:
        """Add a shard that was written now."""
        self.finished[number] = record
        self.stamps |= stamps_of(self.template.folder, number, record=record)
        self.written.add(number)

    def collect(self, future: Future[ShardRecord]) -> None:
        """Add the result of a worker.

        Raises:
            UserError: the shard cannot be read, and is needed in any case.
        """
        task = self.running.pop(future)
        try:
            self.add(task.number, future.result())
        except UserError:
            is_next = task.number == len(self.accepted) and task.limits == self.remaining
            if is_next or not self.remaining.is_limited:
                raise
            self.failed.add(task.number)


def _shards_needed(remaining: Limits, accepted: list[ShardRecord]) -> int:
    """Estimate how many more shards reach a limit, from the mean of the accepted ones. The first shard is tried alone."""
    if not accepted:
        return 1
    usage = (
        (remaining.documents, sum(record.documents for record in accepted)),
        (remaining.tokens, sum(record.limited_tokens for record in accepted)),
    )
    estimates = [-(-limit * len(accepted) // max(used, 1)) for limit, used in usage if limit is not None]
    return max(1, min(estimates))


@contextmanager
def _progress_bar(progress: MutableSequence[int]) -> Iterator[None]:
    """Show a progress bar that follows ``progress``."""
    finished = threading.Event()
    with progress_bar("prepare", " documents", unit_scale=True) as bar:

        def follow() -> None:
            while not finished.wait(PROGRESS_SECONDS):
                documents, tokens, num_bytes = (sum(progress[i::PROGRESS_FIELDS]) for i in range(PROGRESS_FIELDS))
                bar.set_postfix_str(f"{tokens / 1e6:,.1f}M tokens, {num_bytes / 1e6:,.1f} MB", refresh=False)
                bar.update(documents - bar.n)

        thread = threading.Thread(target=follow, daemon=True)
        if not bar.disable:
            thread.start()
        try:
            yield
        finally:
            finished.set()
            if not bar.disable:
                thread.join()


def write_shards(template: ShardTask, shards: list[Shard]) -> WrittenShards:
    """Write the shards that are not finished, as far as the limits reach.

    Args:
        template: the task of every shard, except for its number, limits (here those of all shards together) and threads.
        shards: the shards of the source, in their fixed order.

    Raises:
        UserError: a shard cannot be read, or a worker process was killed.
    """
    progress = shared_progress(len(shards))
    schedule = _Schedule(template, shards)
    submit: Optional[SubmitShard] = None
    try:
        with _progress_bar(progress), ExitStack() as stack:
            schedule.accept_finished()
            while not schedule.is_complete:
                pending = schedule.pending()
                is_alone = schedule.cores == 1 or len(pending) == 1
                tasks = schedule.next_tasks(pending, 1 if is_alone else schedule.cores - len(schedule.running))
                if is_alone and not schedule.running:  # no other process is needed
                    (task,) = tasks
                    schedule.add(task.number, write_shard(task, progress))
                else:
                    if submit is None:
                        submit = stack.enter_context(worker_pool(min(schedule.cores, len(shards)), progress))
                    schedule.running |= {submit(task): task for task in tasks}
                    for future in wait(schedule.running, return_when=FIRST_COMPLETED).done:
                        schedule.collect(future)
                schedule.accept_finished()
    except BrokenProcessPool:
        raise UserError(
            "a process that tokenized was killed, perhaps because memory ran out; run the same command again, it continues; "
            "set data.processes to a smaller number if it happens again"
        ) from None
    return WrittenShards(
        records=schedule.accepted,
        new_records=[record for number, record in enumerate(schedule.accepted) if number in schedule.written],
        stamps=schedule.stamps,
    )
