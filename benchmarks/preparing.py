"""Compares ``olmo-sparsity prepare`` with the bare tokenizers library: ``python -m benchmarks.preparing --source DIR``.

Each repetition runs these tasks one after another, each in its own process, with the same tokenizer on the same cores:

    encode         the library's ``encode_batch_fast`` on texts that are in memory
    read, encode   the same on texts that are read as ``prepare`` reads them
    prepare        everything: read, hash, encode, write, join

Wall time and processor time do not include Python's imports, and are medians over the repetitions. Memory is the peak of the sum
of the resident sets of the process and its children. At the end a preparation is killed half-way and continued.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BATCH_CHARACTERS = 16_000_000  # large batches keep the library's threads busy, which is its best case
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TASKS = ("encode", "read, encode", "prepare")


@dataclass(frozen=True)
class Cost:
    """What one task cost.

    Attributes:
        wall: seconds of wall time.
        processor: seconds of processor time, of all processes.
        tokens: number of tokens, without EOS.
        peak_bytes: peak of the resident memory of all processes; 0 if it was not measured.
    """

    wall: float
    processor: float
    tokens: int
    peak_bytes: int = 0


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_characters = 0
    for text in texts:
        batch.append(text)
        num_characters += len(text)
        if num_characters >= BATCH_CHARACTERS or len(batch) == 1024:
            yield batch
            batch, num_characters = [], 0
    yield batch


def _processor_time() -> float:
    return sum(os.times()[:4])


def run_task(task: str, source: str, *, tokenizer: str, folder: str) -> Cost:
    """Run one of ``TASKS`` in this process, and return its cost without the memory."""
    from olmo_sparsity.config import DataConfig
    from olmo_sparsity.text.corpus import read_documents
    from olmo_sparsity.text.preparation import prepare
    from olmo_sparsity.text.vocabulary import read_tokenizer

    data = DataConfig(source=source, tokenizer=tokenizer, cache_dir=folder)
    library = read_tokenizer(Path(tokenizer))
    texts: Iterable[str] = (document.text for document in read_documents(data))
    if task == "encode":
        texts = list(texts)
    wall, processor, tokens = time.perf_counter(), _processor_time(), 0
    if task == "prepare":
        manifest = json.loads((prepare(data) / "manifest.json").read_text())
        tokens = manifest["tokens"] - manifest["documents"]  # each document has one EOS
    else:
        for batch in _batches(texts):
            tokens += sum(len(encoding) for encoding in library.encode_batch_fast(batch, add_special_tokens=False))
    return Cost(wall=time.perf_counter() - wall, processor=_processor_time() - processor, tokens=tokens)


def _resident_bytes(process: int) -> int:
    """Return the resident memory of a process and its descendants. Shared pages count for each of them."""
    total, pending = 0, [process]
    while pending:
        pid = pending.pop()
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pending += [int(child) for child in (thread / "children").read_text().split()]
        except OSError:  # the process has ended
            continue
    return total


def measure_task(task: str, source: str, *, tokenizer: str, folder: str) -> Cost:
    """Run one of ``TASKS`` in its own process, and return its cost."""
    command = [sys.executable, "-m", "benchmarks.preparing", "--task", task, "--source", source]
    command += ["--tokenizer", tokenizer, "--folder", folder]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    peak_bytes = 0

    def watch() -> None:
        nonlocal peak_bytes
        while process.poll() is None:
            peak_bytes = max(peak_bytes, _resident_bytes(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.communicate()[0]
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{task}: it failed")
    return Cost(**{**json.loads(output.splitlines()[-1]), "peak_bytes": peak_bytes})


def kill_and_continue(source: str, tokenizer: str, *, folder: Path, seconds: float, expected: Path) -> None:
    """Kill a preparation after some seconds, run the command again, and compare the result with the folder ``expected``."""
    command = [sys.executable, "-m", "olmo_sparsity", "prepare", f"data.source={source}", f"data.tokenizer={tokenizer}"]
    command += [f"data.cache_dir={folder}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    store = folder / expected.name
    num_done = len(list(store.glob("shards/*.record.json")))
    begun = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rerun_seconds = time.perf_counter() - begun
    speed = json.loads((store / "manifest.json").read_text())["speed"]
    files = sorted(path.relative_to(expected) for path in expected.rglob("*.bin"))
    is_same = files == sorted(path.relative_to(store) for path in store.rglob("*.bin")) and all(
        (store / path).read_bytes() == (expected / path).read_bytes() for path in files
    )
    print(
        f"killed after {seconds:.1f} s with {num_done} shards done; then {speed['shards']} shards in {rerun_seconds:.1f} s; "
        f"{len(files)} files, {'the same, byte for byte' if is_same else 'NOT THE SAME'}"
    )


def _median_ratio(costs: list[Cost], others: list[Cost], *, key: str) -> float:
    return statistics.median(getattr(a, key) / getattr(b, key) for a, b in zip(costs, others, strict=True))


def compare(source: str, tokenizer: str, *, name: str, repeats: int) -> None:
    """Measure all tasks, interleaved, and print a table."""
    costs: dict[str, list[Cost]] = {task: [] for task in TASKS}
    with tempfile.TemporaryDirectory() as temporary:
        for repeat in range(repeats):
            for task in TASKS:
                folder = str(Path(temporary) / f"{repeat}")
                costs[task].append(measure_task(task, source, tokenizer=tokenizer, folder=folder))
        (store,) = (path for path in (Path(temporary) / "0").iterdir() if path.is_dir())
        manifest = json.loads((store / "manifest.json").read_text())
        megabytes = manifest["bytes"] / 1e6
        print(
            f"{name}: {len(manifest['shards'])} files, {manifest['documents']:,} documents, {megabytes:,.1f} MB of text, "
            f"{manifest['tokens']:,} tokens; {manifest['speed']['processes']} cores; medians of {repeats}"
        )
        assert len({cost.tokens for task in TASKS for cost in costs[task]}) == 1
        print(
            f"{'':14} {'wall, s':>9} {'ratio':>6} {'CPU, s':>9} {'ratio':>6} {'MB/s':>7} {'tokens/s':>11} {'memory, MB':>11}"
        )
        for task in TASKS:
            wall = statistics.median(cost.wall for cost in costs[task])
            processor = statistics.median(cost.processor for cost in costs[task])
            peak_bytes = statistics.median(cost.peak_bytes for cost in costs[task])
            wall_ratio = _median_ratio(costs[task], costs["encode"], key="wall")
            processor_ratio = _median_ratio(costs[task], costs["encode"], key="processor")
            print(
                f"{task:14} {wall:9.2f} {wall_ratio:6.2f} {processor:9.2f} {processor_ratio:6.2f} "
                f"{megabytes / wall:7.2f} {manifest['tokens'] / wall:11,.0f} {peak_bytes / 2**20:11.0f}",
                flush=True,
            )
        ratio = _median_ratio(costs["prepare"], costs["read, encode"], key="wall")
        print(f"prepare / (read, encode), wall: {ratio:.2f}")
        seconds = statistics.median(cost.wall for cost in costs["prepare"]) / 2
        kill_and_continue(source, tokenizer, folder=Path(temporary) / "killed", seconds=seconds, expected=store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="text to prepare, as data.source")
    parser.add_argument("--repeats", type=int, default=3, help="number of repetitions")
    parser.add_argument(
        "--tokenizer", nargs="+", default=["bpe:4096", "dolma-v1.5"], help="tokenizers to use, as data.tokenizer"
    )
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    source = str(Path(arguments.source).resolve()) if Path(arguments.source).exists() else arguments.source
    if arguments.task:
        cost = run_task(arguments.task, source, tokenizer=arguments.tokenizer[0], folder=arguments.folder)
        print(json.dumps(asdict(cost)))
        return
    from olmo_sparsity.config import DataConfig
    from olmo_sparsity.text.vocabulary import tokenizer_text

    for name in arguments.tokenizer:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "tokenizer.json"
            path.write_text(tokenizer_text(DataConfig(source=source, tokenizer=name)), encoding="utf-8")
            compare(source, str(path), name=name, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
