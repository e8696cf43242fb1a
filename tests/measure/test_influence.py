"""A measurement from its configuration to its folder: finished, resumed, refused; and the fingerprint of all it depends on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Messages, write_corpus
from transformers_models import BOS_TEXT, save_with_words

from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.measure.influence import default_name, influence_run_id, measure, tokens_per_window
from olmo_sparsity.measure.opening import open_model, open_text
from olmo_sparsity.measure.parts import finished
from olmo_sparsity.progress import listening
from olmo_sparsity.selectors import ALL_SELECTORS
from olmo_sparsity.tables import part_path, read_table
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.tokenizer import read_tokenizer

LOCAL, FULL, M = 8, 20, 12
TABLES = ("windows", "selections")


def changed(config: Config, section: str = "influence", **values: Any) -> Config:
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


def rows_of(tables: Path, table: str = "windows") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(tables, table).to_pylist()
    return found


def part_bytes(tables: Path) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for table in TABLES
        for path in (tables / table).glob("*.parquet")
    }


def test_the_manifest_says_what_was_measured(tiny_run: Path, tiny_tables: Path, tiny_config: Config) -> None:
    manifest, windows = read_json(tiny_tables / "manifest.json"), rows_of(tiny_tables)
    assert manifest["context"] == {
        "local_len": LOCAL, "full_len": FULL, "train_len": 8, "max_position": 20, "pose_method": "pose", "num_chunks": 3,
        "pose_contents": "contiguous", "num_long_range": M,
    }  # fmt: skip
    documents = {row["doc_id"] for row in windows}
    assert (manifest["num_windows"], manifest["num_documents"], manifest["status"]) == (60, len(documents), "complete")
    assert (manifest["run"], manifest["split"], manifest["source"]) == ("tiny", "validation", tiny_config.data.source)
    trained = read_json(tiny_run / "manifest.json")
    assert manifest["num_parameters"] == trained["num_parameters"] and manifest["checkpoint"]["step"] == 12
    assert (manifest["num_parts"], manifest["windows_per_part"]) == (3, 25)
    assert manifest["influence"]["k"] == [1, 2, 8] and not {"model", "fit", "own_selectors"} & set(manifest)


def test_windows_are_consecutive_tokens_of_validation_documents(tiny_tables: Path, tiny_run: Path) -> None:
    store = open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "validation")
    where, tokenizer = (
        {f"{i:016x}": n for n, i in enumerate(store.doc_ids_G.tolist())},
        read_tokenizer(tiny_run / "tokenizer.json"),
    )
    windows = rows_of(tiny_tables)
    assert [window["window_id"] for window in windows] == list(range(60))
    for window in windows:
        begin = store.begins_G[where[window["doc_id"]]] + window["start_token"]
        assert store.tokens[begin : begin + FULL + 1].tolist() == [*window["token_ids"], window["target_id"]]
        null = store.tokens[store.begins_G[where[window["null_doc_id"]]] : store.ends_G[where[window["null_doc_id"]]]]
        assert " ".join(map(str, window["null_token_ids"])) in " ".join(map(str, null.tolist()))
        assert window["null_doc_id"] != window["doc_id"] and len(window["null_token_ids"]) == M
        assert tokenizer.decode([window["target_id"]]) == window["target_text"]


def test_a_finished_measurement_is_left_as_it_is(
    tiny_tables: Path, tiny_config: Config, tiny_run: Path, messages: Messages
) -> None:
    """The model does not run."""
    before, ran = part_bytes(tiny_tables), []
    with listening(ran.append):
        assert measure(tiny_config, tiny_run) == tiny_tables
    assert ran == [] and part_bytes(tiny_tables) == before
    assert [line for line in messages if "already measured (60 windows); nothing to do" in line]


def test_a_text_that_has_changed_is_not_taken_for_the_measured_one(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts").mkdir()
    text, out = write_corpus(tmp_path / "texts" / "more" / "a.jsonl", 30, seed=3), tmp_path / "tables"
    linked = write_corpus(tmp_path / "elsewhere" / "b.jsonl", 9, seed=5)
    (tmp_path / "texts" / "b.jsonl").symlink_to(linked)
    config = changed(tiny_config, data=str(tmp_path / "texts"), num_windows=3, selectors=["random"], resampled_draws=0)
    measure(config, tiny_run, out=out)
    assert finished(config, tiny_run, out) == out and finished(changed(config, seed=9), tiny_run, out) is None
    linked.parent.rename(tmp_path / "moved")  # a broken link
    assert finished(config, tiny_run, out) is None
    (tmp_path / "moved").rename(linked.parent)
    assert finished(config, tiny_run, out) == out
    pattern, of_pattern = changed(config, data=f"{tmp_path}/texts/**/b.jsonl"), tmp_path / "of-pattern"
    measure(pattern, tiny_run, out=of_pattern)
    assert finished(pattern, tiny_run, of_pattern) == of_pattern
    linked.touch()
    assert finished(pattern, tiny_run, of_pattern) is None
    write_corpus(text, 30, seed=4)  # a file in a folder of the folder
    assert finished(config, tiny_run, out) is None
    with pytest.raises(UserError, match="measured with other settings, another model or other text"):
        measure(config, tiny_run, out=out)


def test_fewer_windows_than_requested_are_told(
    tiny_config: Config, tiny_run: Path, tmp_path: Path, messages: Messages
) -> None:
    text = write_corpus(tmp_path / "text.jsonl", 5, seed=3)
    config = changed(tiny_config, data=str(text), num_windows=4, selectors=["random"], resampled_draws=0)
    measure(config, tiny_run, out=tmp_path / "few")
    assert not any("the text has only" in line for line in messages)
    tables = measure(changed(config, num_windows=5000), tiny_run, out=tmp_path / "all")
    windows = rows_of(tables)
    told = f"the text has only {len(windows)} windows, from {len({row['doc_id'] for row in windows})} documents, not the 5,000"
    assert any(told in line for line in messages)
    few = [line for line in messages if "documents, 50 needed for intervals: use more or longer text" in line]
    assert few and not any("held-out" in line for line in few)
    lengths = open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "validation").lengths_G
    long = changed(config, data=None, min_preceding=int(sorted(lengths)[-40]) - 2, num_windows=3)
    measure(long, tiny_run, out=tmp_path / "long")
    assert any("held-out documents, 50 needed for intervals: data.validation_percent=" in line for line in messages)


def test_missing_parts_are_measured_again_and_give_the_same_bytes(
    tiny_tables: Path, tiny_config: Config, tiny_run: Path, tmp_path: Path, messages: Messages
) -> None:
    tables = Path(shutil.copytree(tiny_tables, tmp_path / "tables"))
    whole, kept = part_bytes(tables), part_path(tables, "windows", part=1).stat().st_mtime_ns
    for part in (0, 2):
        part_path(tables, "windows", part=part).unlink()
    part_path(tables, "selections", part=2).unlink()
    assert measure(tiny_config, tiny_run, out=tables) == tables
    assert part_bytes(tables) == whole and any(
        "2 of 3 parts are gone; measuring them again" in line for line in messages
    )
    assert part_path(tables, "windows", part=1).stat().st_mtime_ns == kept


def test_other_settings_and_folders_are_refused_before_anything_is_deleted(
    tiny_tables: Path, tiny_config: Config, tiny_run: Path, tmp_path: Path, messages: Messages
) -> None:
    copy = Path(shutil.copytree(tiny_tables, tmp_path / "copy"))
    with pytest.raises(
        UserError,
        match=r"measured with other settings, another model or other text; choose another folder with --out DIR",
    ):
        measure(changed(tiny_config, seed=5), tiny_run, out=copy)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for folder, said in ((tmp_path / "mine", "is no influence folder"), (tiny_run, r"is no influence folder .*'run'")):
        with pytest.raises(UserError, match=said):
            measure(tiny_config, tiny_run, out=folder, overwrite=True)
    (tmp_path / "short.jsonl").write_text('{"text": "much too short"}\n')
    with pytest.raises(UserError, match="0 of its 1 documents hold a window of 20 tokens"):
        measure(changed(tiny_config, data=str(tmp_path / "short.jsonl")), tiny_run, out=copy, overwrite=True)
    assert part_bytes(copy) == part_bytes(tiny_tables)
    with pytest.raises(UserError, match="this run has no checkpoint"):
        measure(tiny_config, tmp_path / "nowhere")
    few = changed(tiny_config, seed=5, num_windows=5, selectors=["random"])
    assert measure(few, tiny_run, out=copy, overwrite=True) == copy
    assert read_json(copy / "manifest.json")["num_windows"] == 5 == len(rows_of(copy))
    assert f"{copy}: deleting its tables (--overwrite)" in messages
    whole = read_json(copy / "manifest.json")
    write_json(copy / "manifest.json", {name: value for name, value in whole.items() if name != "num_windows"})
    assert finished(few, tiny_run, copy) is None
    with pytest.raises(UserError, match=r"manifest\.json: key num_windows is missing"):
        measure(few, tiny_run, out=copy)


def test_more_windows_begin_with_the_same_ones(
    tiny_tables: Path, tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    few = measure(
        changed(tiny_config, num_windows=9, selectors=["random"], resampled_draws=0), tiny_run, out=tmp_path / "few"
    )
    names = ["doc_id", "start_token", "token_ids", "null_token_ids"]
    assert [[row[name] for name in names] for row in rows_of(few)] == [
        [row[name] for name in names] for row in rows_of(tiny_tables)[:9]
    ]


def test_measurements_of_several_lengths_share_targets_and_foreign_text(
    tiny_config: Config, tiny_run: Path, tiny_tables: Path, tmp_path: Path
) -> None:
    settings = {"full_len": 14, "min_preceding": FULL, "num_windows": 6, "k": [2], "selectors": ["nearest", "random"]}
    shorter = measure(changed(tiny_config, **settings), tiny_run, out=tmp_path / "shorter")
    for one, other in zip(rows_of(shorter), rows_of(tiny_tables)[:6], strict=True):
        assert all(one[name] == other[name] for name in ("doc_id", "target_id", "null_doc_id"))
        assert one["token_ids"] == other["token_ids"][6:] and one["null_token_ids"] == other["null_token_ids"][6:]
        # The local tokens are the same.
        assert one["loss_short_nats"] == pytest.approx(other["loss_short_nats"], abs=1e-5)


def test_one_document_has_a_shuffled_null_context(
    tiny_config: Config, tiny_run: Path, tmp_path: Path, messages: Messages
) -> None:
    one = write_corpus(tmp_path / "one.jsonl", 1, seed=3)
    config = changed(tiny_config, data=str(one), num_windows=9, selectors=["random"], resampled_draws=0)
    tables = measure(config, tiny_run, out=tmp_path / "tables")
    assert read_json(tables / "manifest.json")["influence"]["null_context"] == "shuffled"
    assert any("influence.null_context = document: all text is one document" in line for line in messages)
    for window in rows_of(tables):
        assert window["null_doc_id"] == window["doc_id"] and sorted(window["null_token_ids"]) == sorted(
            window["token_ids"][:M]
        )


def test_windows_that_overlap_with_training_text_are_marked(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    """Half of the texts end with words that the model was trained on."""
    store = open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "train")
    tokenizer = read_tokenizer(tiny_run / "tokenizer.json")
    documents = [store.tokens[a : b - 1].tolist() for a, b in zip(store.begins_G, store.ends_G, strict=True)]
    trained = {tuple(tokens[i : i + 13]) for tokens in documents for i in range(len(tokens) - 12)}
    new = [json.loads(line)["text"] for line in write_corpus(tmp_path / "new.jsonl", 40, seed=98).open()]
    mixed = [f"{text} {tokenizer.decode(documents[i])}" if i % 2 else text for i, text in enumerate(new)]
    source = tmp_path / "mixed.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in mixed))
    few = changed(tiny_config, data=str(source), selectors=["random"], resampled_draws=0)
    windows = rows_of(measure(few, tiny_run, out=tmp_path / "checked"))
    for window in windows:
        tokens = [*window["token_ids"], window["target_id"]]
        assert window["train_overlap"] == any(tuple(tokens[i : i + 13]) in trained for i in range(len(tokens) - 12))
    assert 10 < sum(window["train_overlap"] for window in windows) < 50
    short = measure(
        changed(few, full_len=11, k=[1], num_windows=5), tiny_run, out=tmp_path / "short"
    )  # cannot hold 13 tokens
    assert {window["train_overlap"] for window in rows_of(short)} == {None}


# Pretrained models.


@pytest.fixture(scope="module")
def pretrained(corpus_file: Path, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = save_with_words(
        tmp_path_factory.mktemp("models") / "llama", [json.loads(line)["text"] for line in corpus_file.open()]
    )
    few = changed(tiny_config, num_windows=12, windows_per_part=5, selectors=["kl", "random"], resampled_draws=0)
    return dataclasses.replace(few, pretrained=PretrainedConfig(str(folder)))


def test_a_pretrained_model_has_a_folder_of_results(pretrained: Config, tmp_path: Path) -> None:
    run, source = tmp_path / "runs" / "llama", Path(shutil.copy(pretrained.data.source, tmp_path / "words[1].jsonl"))
    pretrained = changed(pretrained, "data", source=str(source))
    tables = measure(pretrained, run)
    manifest, of_folder = read_json(tables / "manifest.json"), read_json(run / "manifest.json")
    assert of_folder == {"kind": "pretrained", "status": "complete", "model": manifest["model"]}
    assert manifest["model"]["name"] == pretrained.pretrained.model
    assert (manifest["visibility"], manifest["anchor"]["text"], manifest["split"]) == ("hidden", BOS_TEXT, "measured")
    lengths = {"local_len": LOCAL, "full_len": FULL, "train_len": None, "max_position": 64, "num_long_range": M}
    assert manifest["context"] == lengths and manifest["fit"]["anchor"]["num_windows"] == 12
    assert (manifest["precision"], manifest["run"]) == ("fp32", "llama")
    assert not {"checkpoint", "pose"} & set(manifest) and tables.name.startswith(
        "words-1-jsonl-measured-8of20-bos-n12-"
    )
    assert {(row["gain_beyond_nats"], row["train_overlap"]) for row in rows_of(tables)} == {(None, None)}
    whole = part_bytes(tables)
    part_path(tables, "windows", part=1).unlink()
    assert measure(pretrained, run) == tables and part_bytes(tables) == whole
    contextual = measure(changed(pretrained, visibility="contextual"), run)
    assert "8of20-contextual-bos-n12" in contextual.name
    for one, other in zip(
        rows_of(contextual), rows_of(tables), strict=True
    ):  # nothing or everything visible: both definitions agree
        for name in ("loss_short_nats", "loss_long_nats"):
            assert one[name] == pytest.approx(other[name], abs=1e-5)
    assert finished(pretrained, run, None) == tables
    source.touch()
    assert finished(pretrained, run, None) is None


# Fingerprints, names, sizes of parts.


def run_id(config: Config, run: Path) -> str:
    opened = open_model(config, run)
    return influence_run_id(config.influence, opened, open_text(opened).store)


def test_tables_of_other_models_text_or_settings_have_another_fingerprint(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    earlier = Path(shutil.copytree(tiny_run, tmp_path / "earlier" / tiny_run.name, symlinks=True))
    shutil.rmtree(earlier / "checkpoints" / "step12")
    measurements = {"as it is": (tiny_config, tiny_run), "weights": (tiny_config, earlier)}
    settings: dict[str, Any] = {
        "local_len": 6, "full_len": 19, "precision": "bf16", "visibility": "contextual", "seed": 1, "num_windows": 61, "k": [1],
        "selectors": ["kl"], "max_windows_per_document": 3, "targets": "word-start", "null_context": "shuffled",
        "resampled_draws": 1, "lasso_masks": 7, "min_preceding": 20, "unit": "word",
    }  # fmt: skip
    measurements |= {key: (changed(tiny_config, **{key: value}), tiny_run) for key, value in settings.items()}
    measurements["training rows"] = (changed(tiny_config, "context", train_len=14), tiny_run)
    measurements["anchor"] = (changed(tiny_config, full_len=19, anchor="bos"), tiny_run)
    for seed in (5, 6):
        text = write_corpus(tmp_path / f"{seed}.jsonl", 30, seed=seed)
        measurements[f"text {seed}"] = (changed(tiny_config, data=str(text)), tiny_run)
    found: dict[str, str] = {}
    for name, (config, run) in measurements.items():
        assert found.setdefault(run_id(config, run), name) == name
    renamed = Path(shutil.copytree(tiny_run, tmp_path / "renamed", symlinks=True))
    same = changed(tiny_config, local_len=8, full_len=20, precision="fp32", anchor="none")
    assert found[run_id(same, renamed)] == "as it is"


NAMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "c4-en-val-n5-k1-4-seed3-012345": ({}, {}),
    "c4-en-val-8of20-n5-k1-4-seed3-012345": ({}, {"full_len": 21}),
    "c4-en-val-8of20-n5-k1-4-seed3-012345 ": ({}, {"record": "a model"}),
    "c4-en-val-word-contextual-n5-k1-4-seed3-012345": ({"unit": "word", "visibility": "contextual"}, {}),
    "c4-en-val-block4-bos-n5-k1-4-seed3-012345": ({"unit": "block:4"}, {"anchor": "bos"}),
    f"c4-en-val-n5-k{'-'.join(map(str, range(1, 17)))}-seed3-012345": ({"k": [*range(1, 17)]}, {}),
    "c4-en-val-n5-k1to17of17-seed3-012345": ({"k": [*range(1, 18)]}, {}),
    "text-val-n5-k1-4-seed3-012345": ({}, {"source": "/a/__.b/--"}),
    "x" * 40 + "-val-n5-k1-4-seed3-012345": ({}, {"source": "x" * 50}),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_folder_says_what_differs(name: str) -> None:
    settings, fields = NAMES[name]
    trained = SimpleNamespace(context=ContextConfig(8, fields.pop("full_len", 20)))
    source = fields.pop("source", "/data/c4.en")
    lengths = SimpleNamespace(local_len=8, full_len=20)
    opened: Any = SimpleNamespace(**({"config": trained, "lengths": lengths, "record": None, "anchor": None} | fields))
    named = InfluenceConfig(**({"num_windows": 5, "k": [1, 4], "seed": 3} | settings))
    assert default_name(named, opened, source, "val", run_id="0123456789ab") == name.strip()


def test_parts_are_smaller_where_windows_take_more() -> None:
    def tokens(*selectors: str, local_len: int = 64, full_len: int = 128) -> int:
        lengths = Config(context=ContextConfig(local_len=local_len, full_len=full_len)).measured_lengths
        return tokens_per_window(InfluenceConfig(selectors=list(selectors)), lengths)

    one = {name: tokens(name) for name in ALL_SELECTORS}
    assert min(one.values()) == one["nearest"] < one["kl"] < one["unmask-one"] < one["greedy"]
    assert tokens("kl", "greedy") > one["greedy"]
    assert tokens("kl", full_len=1024) > 10 * tokens("kl")


def test_every_k_of_a_grid_is_measured_and_recorded(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    config = changed(tiny_config, num_windows=2, selectors=["nearest"], k="all", resampled_draws=0)
    tables = measure(config, tiny_run, out=tmp_path / "tables")
    influence = read_json(tables / "manifest.json")["influence"]
    assert influence["k"] == [*range(1, 13)]
    assert changed(tiny_config, k="geometric").with_measured_k().influence.k == [1, 2, 4, 8, 12]
    assert changed(tiny_config, k="all", unit="block:5").with_measured_k().influence.k == [1, 2, 3]
