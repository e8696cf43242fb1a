"""Worker processes that write shards, and their behaviour on signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, MutableSequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import FrameType
from typing import Optional

from olmo_sparsity.text.encoding import write_shard
from olmo_sparsity.text.records import ShardRecord
from olmo_sparsity.text.shard_writer import PROGRESS_FIELDS, ShardTask

SubmitShard = Callable[[ShardTask], "Future[ShardRecord]"]
_progress: MutableSequence[int]  # in a worker process: the memory that it shares with its parent


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on this system
        return os.cpu_count() or 1


def shared_progress(num_shards: int) -> MutableSequence[int]:
    """Return memory that worker processes share, int64 [3 * shards]: documents, tokens and bytes of each shard so far."""
    memory: MutableSequence[int] = multiprocessing.get_context("spawn").RawArray("q", PROGRESS_FIELDS * num_shards)
    return memory


def _exit_with_parent(connection: Connection) -> None:
    """Wait until the parent closes its end of the connection or dies, and exit at once."""
    try:
        connection.recv()  # nothing is ever sent
    except (EOFError, OSError):
        os._exit(1)


def _init_worker(connection: Connection, progress: MutableSequence[int]) -> None:
    global _progress
    _progress = progress
    threading.Thread(target=_exit_with_parent, args=(connection,), daemon=True).start()


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
def worker_pool(num_processes: int, progress: MutableSequence[int]) -> Iterator[SubmitShard]:
    """Start a pool of processes, and return the function that submits a shard to it.

    At the end of the context, or if the parent is killed, running workers exit at once, and the shards that they had begun
    are lost. Processes are spawned and not forked, since the parent may have threads.
    """
    context = multiprocessing.get_context("spawn")
    worker_end, parent_end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        num_processes, mp_context=context, initializer=_init_worker, initargs=(worker_end, progress)
    )

    def submit(task: ShardTask) -> Future[ShardRecord]:
        with _block_signals():
            return pool.submit(_write_shard_in_worker, task)

    try:
        yield submit
    finally:
        parent_end.close()
        pool.shutdown(wait=True, cancel_futures=True)
        worker_end.close()


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Turn SIGTERM, which batch systems send before they kill, into ``KeyboardInterrupt``, as Ctrl-C is."""

    def interrupt(_number: int, _frame: Optional[FrameType]) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
