"""Which shard is made when, by which process, under which limits.

Limits hold in the order of the shards, but which shard crosses one is only known when those before it are done. So a shard
is made under what was left when it was begun, and once more if that turns out to have been too much.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, MutableSequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.text.corpus import Shard
from olmo_sparsity.text.encoding import COUNTS, Job, read_record, write_shard

Record = dict[str, Any]
Submit = Callable[[Job], "Future[Record]"]
LOOK_SECONDS = 0.3  # how often the progress bar moves
_counts: MutableSequence[int]  # in a worker: what it shares with its parent


def usable_cores() -> int:
    """Processor cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _end_with(leash: Connection) -> None:
    try:
        leash.recv()  # nothing is ever sent: the other end is closed, or its process is gone
    except (EOFError, OSError):
        os._exit(1)


def _begin(leash: Connection, counts: MutableSequence[int]) -> None:
    global _counts
    _counts = counts
    threading.Thread(target=_end_with, args=(leash,), daemon=True).start()


def _work(job: Job) -> Record:
    return write_shard(job, _counts)


@contextmanager
def _unsignalled() -> Iterator[None]:
    """Processes begun meanwhile never see Ctrl-C, which a terminal sends to all, nor SIGTERM, which batch systems do: the
    parent ends them, and knows why."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _worker_pool(processes: int, counts: MutableSequence[int]) -> Iterator[Submit]:
    """A pool of processes; on leaving, those still at work are ended at once, as they are when the parent is killed, and
    what they had begun is void. Spawned, not forked: the parent may have threads."""
    context = multiprocessing.get_context("spawn")
    held, leash = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(held, counts))

    def submit(job: Job) -> Future[Record]:
        with _unsignalled():
            return pool.submit(_work, job)

    try:
        yield submit
    finally:
        leash.close()
        pool.shutdown(wait=True, cancel_futures=True)
        held.close()


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which batch systems send before they kill, ends the work as Ctrl-C does: by ``KeyboardInterrupt``."""

    def interrupt(_number: int, _frame: Optional[FrameType]) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class _Left:
    """What the shards accepted so far leave of the limits; None: no limit."""

    documents: Optional[int]
    tokens: Optional[int]
    split: str

    @property
    def limited(self) -> bool:
        return self.documents is not None or self.tokens is not None

    @property
    def nothing(self) -> bool:
        return any(limit is not None and limit <= 0 for limit in (self.documents, self.tokens))

    def _uses(self, record: Record) -> list[tuple[Optional[int], int]]:
        return [(self.documents, record["documents"]), (self.tokens, record["splits"][self.split]["tokens"])]

    def allows(self, record: Record) -> bool:
        """Is this what the shard becomes under these limits, though it may have been made under others."""
        if record["limits"] == [self.documents, self.tokens]:
            return True
        return not record["cut"] and all(limit is None or used < limit for limit, used in self._uses(record))

    def after(self, record: Record) -> _Left:
        documents, tokens = (None if limit is None else limit - used for limit, used in self._uses(record))
        return _Left(documents, tokens, self.split)

    def shards_needed(self, accepted: list[Record]) -> int:
        """About how many more shards reach a limit, if they are like those before; the first is always tried alone."""
        estimates = [1]
        if accepted:
            used = [sum(column) for column in zip(*([u for _, u in self._uses(r)] for r in accepted), strict=True)]
            limits = (self.documents, self.tokens)
            reached = [-(-n * len(accepted) // max(u, 1)) for n, u in zip(limits, used, strict=True) if n is not None]
            estimates.append(min(reached))
        return max(estimates)


def _threads(cores: int, shards: list[Shard], pending: list[int], number: int) -> int:
    """Threads that encode a shard: more than its even share where it is so large that it would be the last to end."""
    share = shards[number].num_bytes / max(sum(shards[n].num_bytes for n in pending), 1)
    return min(cores, max(-(-cores // min(cores, len(pending))), int(cores * share + 0.999)))


@contextmanager
def _progress(counts: MutableSequence[int]) -> Iterator[None]:
    """A bar that follows ``counts``, in a terminal."""
    finished = threading.Event()
    with progress_bar("prepare", " documents", unit_scale=True) as bar:

        def follow() -> None:
            while not finished.wait(LOOK_SECONDS):
                documents, tokens, num_bytes = (sum(counts[i::COUNTS]) for i in range(COUNTS))
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


def make_shards(template: Job, shards: list[Shard]) -> tuple[list[Record], list[Record]]:
    """Makes the shards that are not done; returns the records of all that the limits leave, in their order, and of those
    that were made now.

    Args:
        template: the job of every shard, but for its number, its limits (here: of all shards together) and threads.
        shards: of the source, in their fixed order.

    Raises:
        UserError: a shard cannot be read, or a process was killed.
    """
    cores = template.data.processes or usable_cores()
    counts = multiprocessing.get_context("spawn").RawArray("q", COUNTS * len(shards))
    found = ((number, read_record(template.folder, number)) for number in range(len(shards)))
    records = {number: record for number, record in found if record is not None}
    made: set[int] = set()
    failed: set[int] = set()  # beyond a limit perhaps: tried again when that is known
    accepted: list[Record] = []
    left = _Left(template.max_documents, template.max_tokens, template.splits[0])
    running: dict[Future[Record], Job] = {}
    submit: Optional[Submit] = None
    try:
        with _progress(counts), ExitStack() as stack:
            while (number := len(accepted)) < len(shards) and not left.nothing:
                if number in records and left.allows(records[number]):
                    accepted.append(records[number])
                    left = left.after(records[number])
                    continue
                records.pop(number, None)
                end = min(len(shards), number + left.shards_needed(accepted)) if left.limited else len(shards)
                begun = {job.number for job in running.values()}
                pending = [n for n in range(number, end) if n not in records and (n not in failed or n == number)]
                waiting = [n for n in pending if n not in begun]
                if not left.limited:
                    waiting.sort(key=lambda n: -shards[n].num_bytes)
                alone = cores == 1 or len(pending) == 1
                jobs = [
                    dataclasses.replace(
                        template,
                        number=n,
                        shard=shards[n],
                        max_documents=left.documents,
                        max_tokens=left.tokens,
                        threads=_threads(cores, shards, pending, n),
                    )
                    for n in waiting[: 1 if alone else cores - len(running)]
                ]
                if alone and not running:
                    (job,) = jobs
                    records[job.number] = write_shard(job, counts)
                    made.add(job.number)
                    continue
                if submit is None:
                    submit = stack.enter_context(_worker_pool(min(cores, len(shards)), counts))
                running |= {submit(job): job for job in jobs}
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    try:
                        records[job.number] = future.result()
                        made.add(job.number)
                    except UserError:
                        exact = job.number == number and job.limits == [left.documents, left.tokens]
                        if exact or not left.limited:
                            raise
                        failed.add(job.number)
    except BrokenProcessPool:
        raise UserError(
            "a process that tokenized was killed, for want of memory perhaps; run the same command again, it continues, "
            "with a smaller data.processes if need be"
        ) from None
    return accepted, [record for number, record in enumerate(accepted) if number in made]
