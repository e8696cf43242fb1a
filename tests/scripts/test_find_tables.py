"""The script that finds the measurement of a configuration among those of its model."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_pretrained import save_llama

from olmo_sparsity.cli.options import resolve
from olmo_sparsity.config import Config, load_config, to_dict
from olmo_sparsity.files import write_json
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.tables import newest_finished

SCRIPT = Path(__file__).parents[2] / "scripts" / "find_tables.py"
CONFIG = """
name: of-config
pretrained: {model: data/model.Q4_1.gguf}
context: {local_len: 8, full_len: 20}
influence: {k: [1, 4], visibility: contextual}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real.yaml").write_text(CONFIG)
    return load_config(tmp_path / "real.yaml")


def influence_of(config: Config) -> Path:
    return Path("runs") / config.pretrained.folder_name / "influence"


def write_manifest(name: str, config: Config, *, finished: str, **changes: Any) -> None:
    """Write the manifest of a measurement of the configuration, or with changes of its keys."""
    settings = {**to_dict(config.influence), **changes}
    folder, full = influence_of(config) / name, settings["full_len"] or 20
    (folder / "windows").mkdir(parents=True)
    write_json(
        folder / "manifest.json",
        {
            "kind": "influence", "status": "complete", "run_id": name, "num_parts": 1, "run": "model", "finished": finished,
            "influence": settings,
            "context": {"local_len": 8, "full_len": full, "train_len": None, "max_position": 64, "num_long_range": full - 8},
            "source": settings["data"] or config.data.source,
        },
    )  # fmt: skip


def found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    spec = importlib.util.spec_from_file_location("find_tables", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    module.main()
    return capsys.readouterr().out


def test_it_is_that_of_the_configuration_and_the_text_not_the_newest(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        SystemExit, match=rf"^{influence_of(config).parent}: real\.yaml has not been measured here; run [^\n]*$"
    ):
        found(monkeypatch, capsys, "real.yaml")
    write_manifest("other-k", config, finished="2026-01-05", k=[1, 8])
    write_manifest("longer", config, finished="2026-01-06", full_len=40)
    write_manifest("hidden", config, finished="2026-01-07", visibility="hidden")
    with pytest.raises(SystemExit, match="has not been measured here"):
        found(monkeypatch, capsys, "real.yaml")
    write_manifest("older", config, finished="2026-01-01")
    write_manifest("same", config, finished="2026-01-02")
    write_manifest("of-texts", config, finished="2026-01-03", data="my texts/")
    assert found(monkeypatch, capsys, "real.yaml") == f"{influence_of(config)}/same\n"
    assert found(monkeypatch, capsys, "real.yaml", "my texts/") == f"{influence_of(config)}/of-texts\n"
    later = dataclasses.replace(config, data=dataclasses.replace(config.data, source="c4"))
    write_manifest("of-c4", later, finished="2026-01-08")
    assert found(monkeypatch, capsys, "real.yaml") == f"{influence_of(config)}/same\n"


def test_a_measurement_that_named_what_the_configuration_leaves_open_is_found_if_there_is_no_other(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`influence` takes it for the same measurement, where the named value is the one that it resolves."""
    write_manifest("named", config, finished="2026-01-03", anchor="bos", precision="fp32", full_len=20)
    assert found(monkeypatch, capsys, "real.yaml") == f"{influence_of(config)}/named\n"
    write_manifest("same", config, finished="2026-01-01")
    assert found(monkeypatch, capsys, "real.yaml") == f"{influence_of(config)}/same\n"


def test_it_finds_what_influence_wrote(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though another measurement of the same model was finished later."""
    monkeypatch.chdir(tmp_path)
    save_llama(tmp_path / "data" / "model", [json.loads(line)["text"] for line in corpus_file.open()])
    text = CONFIG.replace(".Q4_1.gguf", "").replace(
        "influence: {", "influence: {num_windows: 4, selectors: [nearest], "
    )
    (tmp_path / "real.yaml").write_text(f"{text}data: {{source: {corpus_file}, cache_dir: {tmp_path / 'cache'}}}\n")
    config, run, _ = resolve(Path("real.yaml"), None, overrides=None)
    tables = measure(config, run)
    other = dataclasses.replace(config, influence=dataclasses.replace(config.influence, k=[2]))
    assert newest_finished(run) == tables != measure(other, run) == newest_finished(run)
    assert found(monkeypatch, capsys, "real.yaml") == f"{tables}\n"


def test_mistakes_are_one_line(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, words in (([], "usage"), (["gone.yaml"], "gone.yaml")):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        with pytest.raises(SystemExit) as end:
            exec(compile(SCRIPT.read_text(), str(SCRIPT), "exec"), {"__name__": "__main__"})
        assert words in str(end.value) and "\n" not in str(end.value)
