"""Result tables: their columns, part files written whole and read with checks, merging, and the folders that hold them.

Conventions of columns: a missing value is null, never 0; units are part of the names (``*_nats``, ``*_tokens``); positions count
from 0 at the first token of the window.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NamedTuple, Optional

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from olmo_sparsity.config import Lengths, NullContext, Visibility
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    check_regular,
    check_type,
    folder_name,
    make_folder,
    manifest_of_kind,
    need,
    read_json,
    read_manifest_of,
    remove_leftovers,
    telling_name,
    write_json,
    write_manifest,
    written_whole,
)
from olmo_sparsity.selectors import OwnEntries

logger = logging.getLogger(__name__)
OF_TABLES = ("run_id", "num_parts", "num_windows", "context")  # keys of the manifest of every folder of tables

SCHEMA_VERSION = "6"
DAMPING = tuple(tenth / 10 for tenth in range(1, 10))  # weights of p_all in the blends with p_{}
RESAMPLED = {
    "real": "resampled",
    "null": "null-resampled",
}  # contexts of choices for a drawn token, by that of their tokens


@dataclass(frozen=True)
class Kind:
    """What the folders of one kind hold."""

    command: str  # of olmo-sparsity, which writes it
    tables: tuple[str, ...]  # the first is written last: its parts show that the other tables have theirs


KINDS = {
    "influence": Kind("influence", ("windows", "selections")),
    "synthetic": Kind("synth eval", ("answers",)),
}


class Column(NamedTuple):
    """One column of a table."""

    name: str
    type: pa.DataType
    meaning: str
    only: str = ""  # "groups": where influence.unit is not token; "places": where synthetic.test_row_len is given


ROW_MEANINGS = {
    "windows": "one window",
    "selections": "one window, selector, context and draw",
    "answers": "one sequence of a synthetic task",
}
ID, INT, FLOAT, TEXT, YES_NO = pa.int64(), pa.int32(), pa.float32(), pa.string(), pa.bool_()
INTS, FLOATS, TEXTS = pa.list_(INT), pa.list_(FLOAT), pa.list_(TEXT)

WINDOWS = (
    ("window_id", ID, "Number of the window, from 0."),
    ("doc_id", TEXT, "Hash of the text of the window's document, 16 hexadecimal digits."),
    ("weight", pa.float64(), "Weight of the window in every mean over windows; 1 of windows that were given."),
    ("source", TEXT, "Source of the document: a file name, or the name of a data set."),
    ("split", TEXT, "`validation`, `held-out` (given by `influence.data`), or `measured` (of a pretrained model)."),
    ("train_overlap", YES_NO, "Whether 13 of its tokens in a row are in the training text; null: not looked for."),
    ("start_token", ID, "Index of the window's first token in its document."),
    ("token_ids", INTS, "Token IDs of the window, full_len of them; the first M are the long-range ones."),
    ("token_texts", TEXTS, "Text of each token of the window."),
    ("target_id", INT, "Token ID of the target, the token after the window."),
    ("target_text", TEXT, "Text of the target token."),
    ("target_class", TEXT, "Kind of dependency of the target, one of `target_classes.CLASSES`."),
    ("null_doc_id", TEXT, "Document that the null context is taken from: another one, or the window's own."),
    ("null_token_ids", INTS, "Long-range token IDs of the null context, M of them."),
    ("group_first", INTS, "First position of each group of long-range tokens.", "groups"),
    ("null_group_first", INTS, "The same for the tokens of the null context.", "groups"),
    ("loss_short_nats", FLOAT, "L_short: loss with only the local tokens and the anchor visible."),
    ("loss_short_no_gap_nats", FLOAT, "L_short with the local tokens at the positions of a row's beginning."),
    ("loss_long_nats", FLOAT, "L_long: loss with all tokens visible."),
    ("gain_long_nats", FLOAT, "Long gain: loss_short_nats - loss_long_nats."),
    ("null_loss_long_nats", FLOAT, "L_long under the null context."),
    ("null_gain_long_nats", FLOAT, "Long gain under the null context."),
    ("null_target_class", TEXT, "Class that the same rule gives with the long-range tokens of the null context."),
    ("last_n", INTS, "Numbers of latest tokens: 2^i, 3 * 2^i from full_len / 16 on, local_len, train_len, full_len."),
    ("loss_last_nats", FLOATS, "Loss with the last n tokens alone, at a row's beginning, for each n of last_n."),
    ("gain_beyond_nats", FLOAT, "loss_last_nats at train_len - loss_long_nats; null: no training row is known."),
    ("kl_short_nats", FLOAT, "KL(p_all, p_{}): divergence of the prediction from the local tokens alone."),
    ("null_kl_short_nats", FLOAT, "KL(p_all, p_{}) under the null context."),
    ("loss_damped_nats", FLOATS, "Loss of the blends p_{}^(1-w) p_all^w, normalized, for w = 0.1, 0.2, ..., 0.9."),
    ("kl_damped_nats", FLOATS, "KL(p_all, blend) for each w."),
    ("null_loss_damped_nats", FLOATS, "loss_damped_nats under the null context."),
    ("null_kl_damped_nats", FLOATS, "kl_damped_nats under the null context."),
    ("resampled_target_ids", INTS, "Token IDs drawn from p_{} in place of the target."),
    ("resampled_loss_short_nats", FLOATS, "L_short of each drawn token."),
    ("resampled_loss_long_nats", FLOATS, "L_long of each drawn token."),
    ("kl_short_to_long_nats", FLOAT, "KL(p_{}, p_all): what showing all tokens costs on a token drawn from p_{}."),
    ("entropy_short_nats", FLOAT, "Entropy of p_{}; its mean is that of loss_short_nats if p_{} is calibrated."),
)
SELECTIONS = (
    ("window_id", ID, "Number of the window, from 0."),
    ("doc_id", TEXT, "Hash of the text of the window's document, 16 hexadecimal digits."),
    ("selector", TEXT, "Name of the selector."),
    ("context", TEXT, "`real`, `null`; `resampled`, `null-resampled`: with a drawn token as the target."),
    ("draw", INT, "Index of the drawn token in `resampled_target_ids`; 0 in other contexts."),
    ("sees_target", YES_NO, "True if the selector uses the target token."),
    ("num_evaluations", INT, "Cost of the scores, in forward passes over one row."),
    ("positions", INTS, "Selected positions, group by group, the most influential first; J_k are the first."),
    ("distance_tokens", INTS, "Distance of each selected position to the target."),
    ("group_first", INTS, "First position of each selected group, the most influential first.", "groups"),
    ("group_last", INTS, "Last position of each selected group.", "groups"),
    ("scores", FLOATS, "Score of every long-range position, or of every group, in order."),
    ("k", INTS, "Numbers of unmasked tokens, or groups of them (`influence.unit`)."),
    ("num_tokens", INTS, "Number of tokens of J_k, for each k; all if there are fewer groups.", "groups"),
    ("loss_sparse_nats", FLOATS, "L_short,sparse(k): loss with the local tokens and J_k visible, for each k."),
    ("gain_sparse_nats", FLOATS, "Sparse gain for each k: loss_short_nats (of the drawn token) - loss_sparse_nats."),
    ("kl_sparse_nats", FLOATS, "KL(p_all, p_{J_k}) for each k in the row's context; null with a drawn token."),
    ("kl_short_to_sparse_nats", FLOATS, "KL(p_{}, p_{J_k}) for each k; null in contexts without a drawn token."),
)
ANSWERS = (
    ("window_id", ID, "Number of the sequence, from 0."),
    ("length_tokens", INT, "Tokens of the prompt, without the query."),
    ("sparsity", INT, "k: planted bits, or assignments that the response depends on."),
    ("place", TEXT, "`inside` or `beyond` the last `synthetic.test_row_len` tokens.", "places"),
    ("response_ids", INTS, "Token IDs that the model generated."),
    ("true_ids", INTS, "Token IDs of the true response."),
    ("response_positions", INTS, "Position IDs of the response: predicted, or given."),
    ("true_positions", INTS, "True position IDs of the response."),
    ("tokens_right", YES_NO, "True if every token of the response is right."),
    ("positions_right", YES_NO, "True if every position ID of the response is; null if they are given."),
    ("right", YES_NO, "True if every token is right and, where it is predicted, every position ID."),
)
ROWS = {"windows": WINDOWS, "selections": SELECTIONS, "answers": ANSWERS}
COLUMNS = {table: [Column(*row) for row in rows] for table, rows in ROWS.items()}


def schemas(num_long_range: int, unit: str = "token", *, has_places: bool = False) -> dict[str, pa.Schema]:
    """Arrow schema of every table. ``scores`` holds M numbers, or of units other than tokens one a group."""
    only = {"", "groups" if unit != "token" else "", "places" if has_places else ""}

    def arrow_type(column: Column) -> pa.DataType:
        return pa.list_(FLOAT, num_long_range) if column.name == "scores" and unit == "token" else column.type

    return {
        table: pa.schema([(column.name, arrow_type(column)) for column in columns if column.only in only])
        for table, columns in COLUMNS.items()
    }


def schemas_of(manifest: dict[str, Any]) -> dict[str, pa.Schema]:
    """Arrow schema of every table of the folder of a manifest."""
    unit = manifest.get("influence", {}).get("unit", "token")
    has_places = manifest.get("test_row_len") is not None
    return schemas(manifest["context"]["num_long_range"], unit, has_places=has_places)


class _Settings(msgspec.Struct):
    unit: Annotated[str, msgspec.Meta(pattern="^(token|word|sentence|block:[1-9][0-9]*)$")] = "token"
    null_context: NullContext = "document"


class _Compared(msgspec.Struct):
    chosen: Literal["bos", "none"]
    lower_with: dict[str, Optional[str]]
    text: str


class _Fit(msgspec.Struct):
    anchor: Optional[_Compared] = None


class _Model(msgspec.Struct):
    name: str
    revision: Optional[str] = None
    rope_scaling: Optional[str] = None


class _Measured(msgspec.Struct):
    """The manifest of a measurement, as far as results are read with it."""

    run: str
    source: str
    split: str
    context: Lengths
    influence: _Settings
    visibility: Visibility = "hidden"
    model: Optional[_Model] = None
    fit: Optional[_Fit] = None
    own_selectors: OwnEntries = {}


def lengths_of(manifest: dict[str, Any]) -> Lengths:
    """Lengths of the measurement of a manifest."""
    return check_type(manifest["context"], Lengths, where="manifest.json: context")


def model_name(manifest: dict[str, Any]) -> str:
    """Name of the run or model of a manifest, and how the positions of a pretrained model are scaled."""
    model = manifest.get("model")
    if not model:
        return str(manifest["run"])
    name = str(telling_name(PurePath(model["name"])) if model.get("revision") is None else model["name"])
    return f"{name} {model['rope_scaling']}" if model.get("rope_scaling") else name


def run_again(kind: str) -> str:
    """Advice to run the command again that measured a kind of tables."""
    return f"run the same `olmo-sparsity {KINDS[kind].command}` again"


def part_path(folder: Path, table: str, *, part: int) -> Path:
    """Path of a part of one table."""
    return folder / table / f"part-{part:05d}.parquet"


def write_part(folder: Path, table: str, *, part: int, content: pa.Table, metadata: dict[str, str]) -> None:
    """Write one part file atomically; ``metadata``: at least its ``run_id``."""
    path = part_path(folder, table, part=part)
    make_folder(path.parent)
    identity = {"schema_version": SCHEMA_VERSION, "table": table, "part": str(part)}
    with written_whole(path) as partial:
        content = content.replace_schema_metadata({**identity, **metadata})
        pq.write_table(content, partial.absolute(), compression="zstd", write_page_checksum=True)


def missing_parts(folder: Path, manifest: dict[str, Any]) -> list[int]:
    """Numbers of the parts that at least one table lacks."""
    tables = KINDS[manifest["kind"]].tables
    present = [{path.name for path in (folder / table).glob("part-*.parquet")} for table in tables]
    in_all = set.intersection(*present)
    return [part for part in range(manifest["num_parts"]) if part_path(folder, "", part=part).name not in in_all]


def finalize(folder: Path) -> int:
    """Mark a measurement as complete if all parts exist, and return the number of missing parts. Any process may call it."""
    manifest = read_manifest_of(folder, "num_parts")
    if missing := missing_parts(folder, manifest):
        return len(missing)
    if manifest["status"] != "complete":
        finished = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        write_manifest(folder, {**manifest, "status": "complete", "finished": finished})
    remove_leftovers(folder, *(folder / name for name in ("sessions", *KINDS[manifest["kind"]].tables)))
    return 0


def read_manifest(folder: Path, kind: str = "influence") -> dict[str, Any]:
    """Manifest of a finished folder of one kind (a key of ``KINDS``)."""
    manifest = manifest_of_kind(folder, kind)
    if manifest is None:
        raise UserError(f"{folder}: there are no {kind} tables here; run `olmo-sparsity {KINDS[kind].command}` first")
    if manifest.get("status") != "complete":
        raise UserError(f"{folder}: these tables are unfinished; {run_again(kind)}, it continues")
    need(manifest, *OF_TABLES, where=folder / "manifest.json")
    if kind == "influence":
        check_type(manifest, _Measured, where=folder / "manifest.json")
    return manifest


@contextmanager
def _one_line_if_damaged(path: Path, advice: str) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file into one line. What the system cannot read says nothing about the file."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: this part is missing; {advice}, it continues") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a damaged footer's offset
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error  # pyarrow's names no file
        raise UserError(f"{path}: damaged, or no Parquet file; delete it, then {advice}") from None


def read_part(
    folder: Path,
    table: str,
    part: int,
    manifest: dict[str, Any],
    *,
    columns: Optional[list[str]] = None,
    where: Optional[pc.Expression] = None,
) -> pa.Table:
    """Read a part with the checksums of its pages, if it is of this measurement; ``where`` filters its rows."""
    path = check_regular(part_path(folder, table, part=part))
    again = run_again(manifest["kind"])
    with _one_line_if_damaged(path, again):
        schema = pq.read_schema(path.absolute())
        identity = {"run_id": manifest["run_id"], "schema_version": SCHEMA_VERSION, "table": table, "part": str(part)}
        for key, expected in identity.items():
            found = (schema.metadata or {}).get(key.encode(), b"none").decode(errors="replace")
            if found != expected:
                raise UserError(
                    f"{path}: this file has {key} {found}, where {expected} belongs; {again}, with --overwrite"
                )
        names = schemas_of(manifest)[table].names
        if not schema.equals(schemas_of(manifest)[table], check_metadata=False):
            raise UserError(
                f"{path}: columns {', '.join(schema.names)}, not {', '.join(names)} with their types; {again}, with --overwrite"
            )
        content = pq.read_table(
            path.absolute(), columns=columns, filters=where, page_checksum_verification=True, partitioning=None
        )
    return content.replace_schema_metadata(None)


def read_parts(
    folder: Path, table: str, *, columns: Optional[list[str]] = None, where: Optional[pc.Expression] = None
) -> Iterator[pa.Table]:
    """Yield the parts of a table of a finished folder, one at a time. All rows of a window are in the same part."""
    kind = next(kind for kind, of in KINDS.items() if table in of.tables)
    manifest, num_rows = read_manifest(folder, kind), 0
    for part in range(manifest["num_parts"]):
        content = read_part(folder, table, part, manifest, columns=columns, where=where)
        num_rows += len(content)
        yield content
    if table != "selections" and where is None and num_rows != manifest["num_windows"]:
        raise UserError(
            f"{folder / table}: {num_rows} rows, where {folder / 'manifest.json'} counts num_windows = "
            f"{manifest['num_windows']}; {run_again(kind)}, with --overwrite"
        )


def read_table(folder: Path, table: str, *, columns: Optional[list[str]] = None) -> pa.Table:
    """Read all parts of a table that is known to be small."""
    return pa.concat_tables(read_parts(folder, table, columns=columns))


def read_windows(folder: Path, table: str, *, window_ids: Iterable[int]) -> list[dict[str, Any]]:
    """Rows of some windows, in the order of the table. Windows that the table lacks are ignored."""
    wanted = pc.field("window_id").isin(pa.array(list(window_ids), pa.int64()))
    return [row for part in read_parts(folder, table, where=wanted) for row in part.to_pylist()]


def list_rows(column: pa.ChunkedArray) -> np.ndarray:
    """Convert a column of lists of equal length to one array [R, length]."""
    return np.asarray(pc.list_flatten(column).to_numpy().reshape(len(column), -1))


def check_begun(folder: Path, manifest: dict[str, Any]) -> None:
    """Check that a measurement that was begun has the columns of this version, before other parts are added to it."""
    for table in KINDS[manifest["kind"]].tables:
        for path in sorted((folder / table).glob("part-*.parquet"))[:1]:
            read_part(folder, table, int(path.stem[5:]), manifest, columns=[])


def check_tables(folder: Path) -> list[str]:
    """One line for each part of a folder, finished or not, that is missing, damaged or of another measurement."""
    manifest, problems = _manifest_of_tables(folder), []
    for table in KINDS[manifest["kind"]].tables:
        for part in range(manifest["num_parts"]):
            try:
                read_part(folder, table, part, manifest)
            except UserError as error:
                problems.append(str(error))
    return problems


def _manifest_of_tables(folder: Path) -> dict[str, Any]:
    manifest = read_manifest_of(folder)
    if manifest["kind"] not in KINDS:
        raise UserError(f"{folder}: this is no folder of tables (its manifest says {manifest['kind']!r})")
    need(manifest, *OF_TABLES, where=folder / "manifest.json")
    return manifest


def merge_folders(sources: list[Path], out: Path) -> None:
    """Copy the finished parts of several folders of one measurement to ``out``, and mark it as complete if all are there.

    Raises:
        UserError: a folder is of another measurement, a part is damaged, or two parts differ; parts in ``out`` stay.
    """
    manifests = {folder: _manifest_of_tables(folder) for folder in sources}
    first = manifests[sources[0]]
    if merged := manifest_of_kind(out, first["kind"]):
        manifests[out] = merged
    for folder, manifest in manifests.items():
        for key in ("kind", "run_id", "num_windows", "num_parts", "windows_per_part", "windows_sha256", "context"):
            if manifest.get(key) != first.get(key):
                raise UserError(
                    f"{folder}: from another measurement than {sources[0]}: {key} is {manifest.get(key)}, not {first.get(key)}"
                )
    make_folder(out)
    write_manifest(out, {**first, "status": "running", "finished": None}, once=True)
    for source in sources:
        for part in sorted(set(range(first["num_parts"])) - set(missing_parts(source, first))):
            for table in reversed(KINDS[first["kind"]].tables):  # the first table vouches for the others
                _copy_part(source, out, table, part, first)
        for session in (source / "sessions").glob("*.json"):
            make_folder(out / "sessions")
            write_json(out / "sessions" / session.name, read_json(_inside(source, session)), once=True)
    num_parts, num_missing = first["num_parts"], finalize(out)
    logger.info(f"{out}: {num_parts - num_missing} of {num_parts} parts are there")


def _copy_part(source: Path, out: Path, table: str, part: int, manifest: dict[str, Any]) -> None:
    theirs, ours = (part_path(folder, table, part=part) for folder in (source, out))
    _inside(source, theirs)
    content = read_part(source, table, part, manifest)
    if not ours.exists():
        make_folder(ours.parent)
        with written_whole(ours, once=True) as partial:
            shutil.copyfile(theirs, partial)
    elif not content.equals(read_part(out, table, part, manifest)):
        raise UserError(f"{theirs}: this part has other values than {ours}; delete one of the two")


def _inside(folder: Path, path: Path) -> Path:
    """Return a path that no link leads out of a folder: whoever made one would decide what is copied."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"{path}: a symbolic link leads out of {folder}, to {path.resolve()}; name the folder it leads to"
        )
    return path


def list_finished(run: Path, kind: str = "influence") -> list[Path]:
    """Finished folders of one kind in a run, in the order in which they were finished; damaged ones are left out, and named."""
    finished, damaged = _finished_and_damaged(run, kind)
    for reason in damaged:
        logger.warning(f"{reason}; this measurement is left out")
    return finished


def _finished_and_damaged(run: Path, kind: str) -> tuple[list[Path], list[UserError]]:
    finished, damaged = [], []
    for path in sorted((run / kind).glob("*/manifest.json")):
        try:
            manifest = read_manifest_of(path.parent)
        except UserError as error:
            damaged.append(error)
            continue
        if manifest.get("status") == "complete":
            finished.append((manifest.get("finished") or "", path.parent))
    return [folder for _, folder in sorted(finished)], damaged


def newest_finished(run: Path, kind: str = "influence") -> Path:
    """Folder of one kind in a run that was finished last."""
    finished, damaged = _finished_and_damaged(run, kind)
    if damaged and not finished:
        raise damaged[0]
    if not finished:
        reason = "nothing of this kind is measured" if run.is_dir() else "no such folder"
        raise UserError(f"{run}: {reason}; run `olmo-sparsity {KINDS[kind].command}` first")
    return finished[-1]


def find_tables(path: Path) -> Path:
    """``path`` if it is the folder of a measurement; of a run that of the newest one."""
    if (path / "windows").is_dir():
        read_manifest(path)
        return path
    newest = newest_finished(path)
    if others := len(list_finished(path)) - 1:
        logger.info(
            f"{newest}: the newest measurement of {path}; {others} more there (`olmo-sparsity list` lists them)"
        )
    return newest


def named_tables(name: Path, run: Path) -> Path:
    """Folder of the measurement that a name means: its path, or in a run its name or how no other name there ends."""
    if name.exists() or len(name.parts) != 1:
        return name
    names = [path.parent.name for path in (run / "influence").glob("*/manifest.json")]
    named = [own for own in names if own == name.name] or sorted(own for own in names if own.endswith(name.name))
    if len(named) > 1:
        raise UserError(f"{name}: {' and '.join(named)} of {run} end so; give more of the name")
    return run / "influence" / named[0] if named else name


def run_of_tables(tables: Path, kind: str = "influence") -> Optional[Path]:
    """Folder of the run or model that a folder of one kind lies in; None: it lies elsewhere."""
    path = tables if len(tables.parts) > 2 and tables.parent.name == kind else tables.resolve()
    return path.parent.parent if path.parent.name == kind else None


def figures_folder(tables: Path) -> Path:
    """Folder for the figures and the report of a measurement."""
    run = run_of_tables(tables)
    if run is None:
        read_manifest(tables)
        raise UserError(f"{tables}: these tables are not in a run folder; say with --out where to write")
    return run / "figures" / folder_name(tables)
