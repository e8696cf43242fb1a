"""Writes the shards of a source, several at a time: one task a shard in a pool of processes.

``data.max_documents`` and ``data.max_tokens`` hold in the order of the shards, and are applied when the shards are joined in that
order. A shard that is written ahead does not know what those before it leave of the limits. If it took too much, it is written
again.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, MutableSequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.text.corpus import Shard
from olmo_sparsity.text.encoding import write_shard
from olmo_sparsity.text.records import Limits, ShardRecord
from olmo_sparsity.text.shard_writer import PROGRESS_FIELDS, ShardTask, read_finished, shard_path

PROGRESS_SECONDS = 0.3  # between updates of the progress bar
Submit = Callable[[ShardTask], "Future[ShardRecord]"]
_progress: MutableSequence[int]  # in a worker process: the memory that it shares with its parent


@dataclass(frozen=True)
class WrittenShards:
    """The shards within the limits, in order.

    Attributes:
        records: of all of them.
        new_records: of those that were written by this call.
    """

    records: list[ShardRecord]
    new_records: list[ShardRecord]


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on this system
        return os.cpu_count() or 1


def write_shards(template: ShardTask, shards: list[Shard]) -> WrittenShards:
    """Write the shards that are not finished, as far as the limits reach.

    Args:
        template: the task of every shard, except for its number, limits (here those of all shards together) and threads.
        shards: the shards of the source, in their fixed order.

    Raises:
        UserError: a shard cannot be read, or a worker process was killed.
    """
    folder, cores = template.folder, usable_cores()
    finished = _read_finished(folder, len(shards))
    limits = template.limits  # what the accepted shards leave
    accepted: list[ShardRecord] = []
    new_records: list[ShardRecord] = []
    running: dict[int, tuple[Limits, Future[ShardRecord]]] = {}
    num_begun = 0
    with _started_workers(min(cores, len(shards) - len(finished)), len(shards)) as submit:
        for number, shard in enumerate(shards):
            if limits.are_reached_by(0, 0):
                break
            template = dataclasses.replace(template, limits=limits)
            end = min(len(shards), number + (1 if cores == 1 else _shards_needed(limits, accepted)))
            begin, num_begun = num_begun, max(num_begun, end)
            missing = [ahead for ahead in range(begin, num_begun) if ahead not in finished and ahead not in running]
            num_bytes = sum(shards[ahead].num_bytes for ahead in range(number, end) if ahead not in finished)
            for ahead in missing:
                threads = -(-cores * shards[ahead].num_bytes // max(num_bytes, 1))  # the more, the larger its share
                task = dataclasses.replace(template, number=ahead, shard=shards[ahead], num_threads=max(threads, 1))
                running[ahead] = limits, submit(task)
            record = finished.get(number) or _result(*running.pop(number), limits=limits)
            if record is None or not limits.allow(record):  # with this shard a limit is reached, so it is the last
                # A shard that failed may also be readable now, and not the last: those that are not begun are submitted again.
                running = {ahead: entry for ahead, entry in running.items() if not entry[1].cancel()}
                num_begun = number + 1
                task = dataclasses.replace(template, number=number, shard=shard, num_threads=cores)
                record = submit(task).result()
            if record is not finished.get(number):
                new_records.append(record)
            accepted.append(record)
            limits = limits.after(record)
    return WrittenShards(accepted, new_records)


def _read_finished(folder: Path, num_shards: int) -> dict[int, ShardRecord]:
    """Return the records, by number, of the shards that an interrupted call has finished."""
    records: dict[int, ShardRecord] = {}
    numbers = [number for number in range(num_shards) if (folder / shard_path(number, "record.json")).is_file()]
    for number in progress_bar("check", " finished shards", total=len(numbers), iterable=numbers) if numbers else ():
        if (finished := read_finished(folder, number)) is not None:
            records[number] = finished
    return records


def _shards_needed(limits: Limits, accepted: list[ShardRecord]) -> int:
    """Estimate how many more shards reach a limit, from the mean of the accepted ones. The first shard is tried alone."""
    usage = (
        (limits.documents, sum(record.documents for record in accepted)),
        (limits.tokens, sum(record.limited_tokens for record in accepted)),
    )
    estimates = [-(-limit * len(accepted) // max(used, 1)) for limit, used in usage if limit is not None]
    return max(1, min(estimates, default=sys.maxsize))


def _result(written_under: Limits, future: Future[ShardRecord], *, limits: Limits) -> Optional[ShardRecord]:
    """Return the record of a shard; None: it could not be read, perhaps behind the limit that is known now."""
    try:
        return future.result()
    except UserError:
        if written_under == limits:
            raise
        return None


@contextmanager
def _started_workers(num_processes: int, num_shards: int) -> Iterator[Submit]:
    """Give the function that submits a shard: to a pool of processes; with one process, to this one, which writes it at once.

    At the end of the context, or if the parent is killed, running workers exit at once, and the shards that they had begun
    are lost. Processes are spawned and not forked, since the parent may have threads.

    Raises:
        UserError: a worker process was killed.
    """
    context = multiprocessing.get_context("spawn")
    progress: MutableSequence[int] = context.RawArray("q", PROGRESS_FIELDS * num_shards)
    with _progress_bar(progress):
        if num_processes <= 1:
            yield lambda task: _done(lambda: write_shard(task, progress))
            return
        worker_end, parent_end = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(
            num_processes, mp_context=context, initializer=_init_worker, initargs=(worker_end, progress)
        )

        def submit(task: ShardTask) -> Future[ShardRecord]:
            try:
                with _block_signals():
                    return pool.submit(_write_shard_in_worker, task)
            except OSError as error:
                if error.errno is not None:
                    raise
                # A worker was killed while the next one is started: the pool has closed its queues ("handle is closed").
                raise BrokenProcessPool from error

        try:
            yield submit
        except BrokenProcessPool:
            raise UserError(
                "a process that tokenized was killed, perhaps because memory ran out; run the same command again, it "
                "continues"
            ) from None
        finally:
            parent_end.close()
            pool.shutdown(wait=True, cancel_futures=True)
            worker_end.close()


def _done(write: Callable[[], ShardRecord]) -> Future[ShardRecord]:
    future: Future[ShardRecord] = Future()
    try:
        future.set_result(write())
    except UserError as error:
        future.set_exception(error)
    return future


def _init_worker(connection: Connection, progress: MutableSequence[int]) -> None:
    global _progress
    _progress = progress
    threading.Thread(target=_exit_with_parent, args=(connection,), daemon=True).start()


def _exit_with_parent(connection: Connection) -> None:
    """Wait until the parent closes its end of the connection or dies, and exit at once."""
    try:
        connection.recv()  # nothing is ever sent
    except (EOFError, OSError):
        os._exit(1)


def _write_shard_in_worker(task: ShardTask) -> ShardRecord:
    return write_shard(task, _progress)


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block SIGINT and SIGTERM, and with them those of the processes that are started meanwhile.

    A terminal sends Ctrl-C to all processes, and batch systems do the same with SIGTERM. Here the parent ends its workers.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
