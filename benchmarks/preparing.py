"""``olmo-sparsity prepare`` against the bare tokenizers library: ``python -m benchmarks.preparing --source DIR``.

Each repetition runs, one after another, each in a process of its own, with the same tokenizer on the same cores:

    encode         the library's ``encode_batch_fast`` on texts that are already in memory
    read, encode   the same, the texts read as ``prepare`` reads them
    prepare        everything: read, hash, encode, write, join

Wall and processor time are those of the work without Python's imports, medians over the repetitions; memory is the peak of
the resident sets of the process and its children, added up. At the end a preparation is killed half-way and continued.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BATCH_CHARACTERS = 16_000_000  # larger batches keep the library's threads busier: the best case for it
PAGE = os.sysconf("SC_PAGE_SIZE")
WAYS = ("encode", "read, encode", "prepare")


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS or len(batch) == 1024:
            yield batch
            batch, characters = [], 0
    yield batch


def _processor_time() -> float:
    return sum(os.times()[:4])


def work(way: str, source: str, tokenizer: str, folder: str) -> dict[str, Any]:
    """Does one of the ways, in this process: wall and processor time in seconds, tokens."""
    from olmo_sparsity.config import DataConfig
    from olmo_sparsity.text.corpus import read_documents
    from olmo_sparsity.text.preparation import prepare
    from olmo_sparsity.text.vocabulary import read_tokenizer

    data = DataConfig(source=source, tokenizer=tokenizer, cache_dir=folder)
    library = read_tokenizer(Path(tokenizer))
    texts: Iterable[str] = (document.text for document in read_documents(data))
    if way == "encode":
        texts = list(texts)
    wall, processor, tokens = time.perf_counter(), _processor_time(), 0
    if way == "prepare":
        manifest = json.loads((prepare(data) / "manifest.json").read_text())
        tokens, documents = manifest["tokens"], manifest["documents"]
        tokens -= documents  # EOS
    else:
        for batch in _batches(texts):
            tokens += sum(len(encoding) for encoding in library.encode_batch_fast(batch, add_special_tokens=False))
    return {"wall": time.perf_counter() - wall, "processor": _processor_time() - processor, "tokens": tokens}


def _resident(process: int) -> int:
    """Bytes of a process and its descendants, pages that they share counted for each."""
    total, todo = 0, [process]
    while todo:
        one = todo.pop()
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * PAGE
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
    return total


def measured(way: str, source: str, tokenizer: str, folder: str) -> dict[str, Any]:
    """``work`` in a process of its own, and the peak of its memory."""
    command = [sys.executable, "-m", "benchmarks.preparing", "--work", way, "--source", source]
    command += ["--tokenizer", tokenizer, "--folder", folder]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, _resident(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.communicate()[0]
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{way}: it failed")
    return {**json.loads(output.splitlines()[-1]), "peak": peak}


def kill_and_continue(source: str, tokenizer: str, folder: Path, seconds: float, expected: Path) -> None:
    """Kills a preparation, runs the command again, and compares what comes of it with ``expected``."""
    command = [sys.executable, "-m", "olmo_sparsity", "prepare", f"data.source={source}", f"data.tokenizer={tokenizer}"]
    command += [f"data.cache_dir={folder}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    store = folder / expected.name
    done = len(list(store.glob("shards/*.record.json")))
    begun = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    again = time.perf_counter() - begun
    speed = json.loads((store / "manifest.json").read_text())["speed"]
    files = sorted(path.relative_to(expected) for path in expected.rglob("*.bin"))
    same = files == sorted(path.relative_to(store) for path in store.rglob("*.bin")) and all(
        (store / path).read_bytes() == (expected / path).read_bytes() for path in files
    )
    print(
        f"killed after {seconds:.1f} s with {done} shards done; again: {speed['shards']} shards in {again:.1f} s; "
        f"{len(files)} files, {'the same, byte for byte' if same else 'NOT THE SAME'}"
    )


def compare(source: str, tokenizer: str, name: str, repeats: int) -> None:
    """Measures all ways, interleaved, and prints a table."""
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        for repeat in range(repeats):
            for way in WAYS:
                results[way].append(measured(way, source, tokenizer, str(Path(temporary) / f"{repeat}")))
        (store,) = (path for path in (Path(temporary) / "0").iterdir() if path.is_dir())
        manifest = json.loads((store / "manifest.json").read_text())
        size = manifest["bytes"] / 1e6
        print(
            f"{name}: {len(manifest['shards'])} files, {manifest['documents']:,} documents, {size:,.1f} MB of text, "
            f"{manifest['tokens']:,} tokens; {manifest['speed']['processes']} cores; medians of {repeats}"
        )
        assert len({result["tokens"] for of_way in results.values() for result in of_way}) == 1
        print(
            f"{'':14} {'wall, s':>9} {'ratio':>6} {'CPU, s':>9} {'ratio':>6} {'MB/s':>7} {'tokens/s':>11} {'memory, MB':>11}"
        )
        median = {
            way: {key: statistics.median(result[key] for result in of_way) for key in of_way[0]}
            for way, of_way in results.items()
        }
        for way in WAYS:
            ratios = [
                statistics.median(a[key] / b[key] for a, b in zip(results[way], results["encode"], strict=True))
                for key in ("wall", "processor")
            ]
            one = median[way]
            print(
                f"{way:14} {one['wall']:9.2f} {ratios[0]:6.2f} {one['processor']:9.2f} {ratios[1]:6.2f} "
                f"{size / one['wall']:7.2f} {manifest['tokens'] / one['wall']:11,.0f} {one['peak'] / 2**20:11.0f}",
                flush=True,
            )
        against = statistics.median(
            a["wall"] / b["wall"] for a, b in zip(results["prepare"], results["read, encode"], strict=True)
        )
        print(f"prepare / (read, encode), wall: {against:.2f}")
        seconds = median["prepare"]["wall"] / 2
        kill_and_continue(source, tokenizer, Path(temporary) / "killed", seconds, store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="as data.source")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokenizer", nargs="+", default=["bpe:4096", "dolma-v1.5"], help="as data.tokenizer")
    parser.add_argument("--work", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    source = str(Path(given.source).resolve()) if Path(given.source).exists() else given.source
    if given.work:
        print(json.dumps(work(given.work, source, given.tokenizer[0], given.folder)))
        return
    from olmo_sparsity.config import DataConfig
    from olmo_sparsity.text.vocabulary import tokenizer_text

    for name in given.tokenizer:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "tokenizer.json"
            path.write_text(tokenizer_text(DataConfig(source=source, tokenizer=name)), encoding="utf-8")
            compare(source, str(path), name, given.repeats)


if __name__ == "__main__":
    main()
