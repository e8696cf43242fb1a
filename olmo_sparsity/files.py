"""Files and folders on disk: written whole or not at all, locked, recognised by their manifest, read with checked types."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Annotated, Any, Optional, TypeVar

import msgspec

from olmo_sparsity import __version__
from olmo_sparsity.errors import UserError

logger = logging.getLogger(__name__)
T = TypeVar("T")

PARTIAL = re.compile(r"(?:^|/)\.([^/]+)\.[0-9a-f]{8}\.partial(?=/|$)")  # the name that the file will get
ABANDONED_SECONDS = 3600  # a partial file that has not changed for so long was left by a killed process
Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Parts = Annotated[int, msgspec.Meta(ge=1, le=10**7)]
# Keys of manifests that are read again, by type. Whoever reads a nested record checks what it holds.
KEYS: dict[Any, str] = {
    str: "status run_id run finished source split token_store tokens_sha256 tokenizer_sha256 windows_sha256 made_from dtype task",
    Parts: "num_parts windows_per_part",
    Count: "num_windows num_documents num_parameters steps tokens format eos_id vocab_size documents bytes max_sparsity modulus",
    dict: "config context environment influence splits skipped removed model own_selectors anchor fit checkpoint",
    float: "seconds validation_loss_nats",
    dict[str, str]: "files",
}
_optional_keys = [(key, Optional[type_], None) for type_, keys in KEYS.items() for key in keys.split()]
Manifest = msgspec.defstruct("Manifest", [("kind", str), *_optional_keys])
# What commands write into a folder of each kind; --overwrite deletes nothing else.
TABLES = r"sessions/[^/]+|estimates\.parquet|(windows|selections|answers)/part-[^/]+"
MEASURED = rf"(influence|synthetic)/[^/]+/({TABLES}|manifest\.json)"
CHECKPOINTS = r"checkpoints/(latest|step\d+/[^/]+\.(pt|yaml|json))"
RUN = rf"config\.yaml|tokenizer\.json|metrics\.jsonl|tensorboard/events[^/]+|{CHECKPOINTS}|{MEASURED}"
OWN_FILES = {"run": RUN, "influence": TABLES, "synthetic": TABLES}
OWN_FOLDERS = {"checkpoints", "tensorboard", "influence", "synthetic", "sessions", "windows", "selections", "answers"}
# Packages on which numbers depend.
PACKAGES = ["ai2-olmo", "torch", "numpy", "datasets", "tokenizers", "pyarrow", "scipy", "transformers", "gguf"]


def decode_json(content: bytes | str, *, where: Path | str) -> Any:
    """Value of JSON text; ``where`` is the file (and line) for the error. NaN, which Python's parser allows, is not JSON."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise UserError(f"{where}: not valid JSON, the file is damaged") from None


def check_type(value: Any, expected: type[T], *, where: Path | str) -> T:
    """Return a plain value as a dataclass, ``dict[str, int]`` and so on; nothing changes but int to float and list to tuple."""
    try:
        return msgspec.convert(value, expected, strict=True)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).replace("`", "").partition(" - at ")
        key = path.removeprefix("key in ").strip("$.")
        reason = f"{f'key {key}: ' if key else ''}{reason[:1].lower()}{reason[1:]}"
        raise UserError(f"{where}: {reason}; the file is damaged, or was changed") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that this package wrote."""
    try:
        value = decode_json(check_regular(path).read_bytes(), where=path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {path.parent} is not the expected folder, or is incomplete") from None
    return check_type(value, dict, where=path)


def read_manifest_of(folder: Path, *needed: str) -> dict[str, Any]:
    """Read the manifest of a folder of any kind; ``needed`` are keys that the caller relies on."""
    manifest = read_json(folder / "manifest.json")
    check_type(manifest, Manifest, where=folder / "manifest.json")
    need(manifest, *needed, where=folder / "manifest.json")
    return manifest


def need(manifest: dict[str, Any], *keys: str, where: Path) -> None:
    """Check that a manifest has some keys."""
    for key in keys:
        if manifest.get(key) is None:
            raise UserError(f"{where}: key {key} is missing; the file is damaged, or of another version")


def manifest_of_kind(folder: Path, kind: str) -> Optional[dict[str, Any]]:
    """Manifest of a folder of one kind, such as ``run``; None: nothing is there yet. Refuses a folder of anything else."""
    # List the files first: another process that starts now writes its manifest before anything else.
    names = os.listdir(folder) if folder.is_dir() else []
    if (folder / "manifest.json").is_file():
        manifest = read_manifest_of(folder)
        if manifest["kind"] == kind:
            return manifest
        raise UserError(f"{folder}: this is no {kind} folder (its manifest says {manifest['kind']!r}); choose another")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file, where a {kind} folder was expected; choose another")
    if any(not name.endswith(".partial") for name in names):
        raise UserError(f"{folder}: this folder exists and is no {kind} folder of olmo-sparsity; choose another")
    return None


def write_manifest(folder: Path, manifest: dict[str, Any], *, once: bool = False) -> None:
    """Write the manifest of a folder atomically; ``once`` leaves one that exists as it is."""
    write_json(folder / "manifest.json", manifest, once=once)


def tokenizer_of_run(run: Path, manifest: dict[str, Any]) -> Path:
    """Path of a run's tokenizer, compared with the hash in the run's manifest."""
    path = run / "tokenizer.json"
    need(manifest, "tokenizer_sha256", where=run / "manifest.json")
    if path.is_file() and sha256_file(path) != manifest["tokenizer_sha256"]:
        raise UserError(f"{path}: not the tokenizer that the manifest beside it was written with; restore it")
    return path


def partial_path(path: Path) -> Path:
    """Hidden temporary path, unique among all processes, where a file is written before it is renamed to ``path``."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def written_whole(path: Path, *, once: bool = False) -> Iterator[Path]:
    """Give a partial path to write, and rename it at the end. ``once``: a file that exists stays; one of several writers wins."""
    partial = partial_path(path)
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        if once:
            with suppress(OSError):  # unlike a rename, a link fails if the name exists, or there are no links
                os.link(partial, path)
        if not (once and os.path.lexists(path)):
            os.replace(partial, path)
    except OSError as error:
        if str(error.filename) == str(partial):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        with suppress(OSError):  # it has its name, or its folder cannot be read
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with written_whole(path) as partial:
        partial.write_bytes(text.encode())


def write_json(path: Path, value: dict[str, Any], *, once: bool = False) -> None:
    """Write a JSON object atomically. NaN and infinite numbers become null."""
    content = msgspec.json.encode(value, enc_hook=lambda number: number.item())  # of numpy
    with written_whole(path, once=once) as partial:
        partial.write_bytes(msgspec.json.format(content, indent=2) + b"\n")


def remove_leftovers(*folders: Path, name: Optional[str] = None, seconds: float = ABANDONED_SECONDS) -> None:
    """Remove what killed processes left, of this final name; ``seconds=0`` if a lock says that nobody writes now."""
    for partial in (path for folder in folders for path in folder.glob(".*.partial")):
        match = PARTIAL.fullmatch(partial.name)
        with suppress(FileNotFoundError):  # another process removes it, too
            if match and name in (None, match[1]) and time.time() - partial.lstat().st_mtime >= seconds:
                is_folder = partial.is_dir() and not partial.is_symlink()
                shutil.rmtree(partial) if is_folder else partial.unlink()


@contextmanager
def exclusive_lock(lock: Path, busy: Optional[str] = None) -> Iterator[None]:
    """Hold a lock file, which a killed process releases. ``busy``: the error if another process holds it; None: wait."""
    from filelock import FileLock, Timeout  # it hooks into every later import, and most commands lock nothing

    make_folder(lock.parent)
    try:
        with FileLock(lock, timeout=-1 if busy is None else 0):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)  # while it is still held: who waits notices that, and creates a new file
    except Timeout:
        raise UserError(str(busy)) from None


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless they exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make this folder ({error.strerror})") from None


def check_writable(folder: Path) -> None:
    """Check before long work that a folder takes files, or can be made."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{folder}: cannot write into this folder; choose another")


def check_regular(path: Path) -> Path:
    """Return a path that is to be read. A pipe would be waited for without end, and is refused."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: this is a pipe or a device, where a file was expected; write it into a file")
    return path


def check_replaceable(path: Path, is_own: Callable[[bytes], object], *, what: str) -> bool:
    """Whether there is a file to replace. Refuses what is no ``what`` of ours by its first and last 64 KiB."""
    if not os.path.lexists(path):
        return False
    if path.is_symlink() or not path.is_file():
        raise UserError(f"{path}: this is a symbolic link, a folder or a device, where a file should be; name another")
    with open(path, "rb") as file:
        ends = file.read(1 << 16)
        file.seek(max(len(ends), path.stat().st_size - (1 << 16)))
        if not is_own(ends + file.read()):
            raise UserError(f"{path}: no {what} that olmo-sparsity wrote, so it stays; move it or name another")
    return True


def clear_folder(folder: Path) -> None:
    """Delete what commands wrote into a folder of ours, except its manifest; leave and name the rest. Links are not followed."""
    manifest = read_manifest_of(folder)
    write_manifest(folder, {**manifest, "status": "running"})  # if this is interrupted, the folder is unfinished
    rest = []
    for parent, folders, names in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in [*names, *folders]):
            relative = path.relative_to(folder)
            is_link = path.is_symlink() and path.is_dir() and relative.parts[0] in OWN_FOLDERS
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # it is not empty
                    path.rmdir()
            elif is_link or re.fullmatch(OWN_FILES[manifest["kind"]], str(relative)) or PARTIAL.search(str(relative)):
                path.unlink(missing_ok=True)
            elif path != folder / "manifest.json":
                rest.append(str(relative))
    if rest:
        named = ", ".join(sorted(rest)[:5]) + (f" and {len(rest) - 5} more" if len(rest) > 5 else "")
        logger.info(f"{folder}: left as they are, since they are no part of it: {named}")


def telling_name(path: PurePath) -> str:
    """Last part of a path; of a checkpoint or a snapshot, the last parts that tell which one."""
    of_checkpoint = re.compile(r"step\d+(-unsharded)?|latest|checkpoints|snapshots|main|[0-9a-f]{40}")
    first = max(i for i, part in enumerate(path.parts) if i == 0 or not of_checkpoint.fullmatch(part))
    parts = [part for part in path.parts[first:] if part not in ("checkpoints", "snapshots")]
    return "-".join(re.sub(r"^([0-9a-f]{12})[0-9a-f]{28}$", r"\1", part) for part in parts)


def folder_name(folder: Path) -> str:
    """Last part of the path of a folder, also of ``.`` and ``..``, which do not name it."""
    return os.path.basename(os.path.abspath(folder))


def sha256_text(text: str) -> str:
    """SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(*paths: Path) -> str:
    """SHA-256 of the bytes of files, one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with open(check_regular(path), "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def environment() -> dict[str, Any]:
    """What a result may depend on besides its configuration, for manifests: versions, commit and machine."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and most commands record nothing

    packages: dict[str, Optional[str]] = dict.fromkeys(PACKAGES)
    checkout, commit, cpu = Path(__file__).parents[1], "", None
    for package in packages:
        with suppress(PackageNotFoundError):
            packages[package] = version(package)
    describe = ["git", "--git-dir=.git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.TimeoutExpired):
        commit = subprocess.run(describe, cwd=checkout, capture_output=True, text=True, timeout=10).stdout.strip()
    with suppress(OSError):
        cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    versions = {"olmo_sparsity": __version__, "commit": commit or None, "python": platform.python_version()}
    machine = {"machine": platform.machine(), "cpu": cpu and cpu[1], "system": platform.system()}
    return {**versions, "packages": packages, **machine}
