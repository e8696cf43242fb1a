"""What a result may depend on besides its configuration, as manifests record it: commit, versions, machine."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from olmo_sparsity.storage import environment as recorded
from olmo_sparsity.storage.environment import environment

AS_SOMEBODY = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *AS_SOMEBODY, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_checkout_around_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the name of a tag nor a part of the hash; changed files are told of; a package inside other software has none."""
    checkout = tmp_path / "checkout"
    module = checkout / "olmo_sparsity" / "storage" / "environment.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    monkeypatch.setattr(recorded, "__file__", str(module))
    git(tmp_path, "init", "-q", ".")
    assert environment()["commit"] is None
    git(tmp_path, "init", "-q", "checkout")
    assert environment()["commit"] is None  # nothing is committed
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "one")
    git(checkout, "tag", "-a", "v1", "-m", "one")
    commit = git(checkout, "rev-parse", "HEAD")
    assert environment()["commit"] == commit and len(commit) == 40
    module.write_text("changed")
    assert environment()["commit"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert environment()["commit"] is None


def test_a_git_that_does_not_answer_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(recorded, "__file__", str(tmp_path / "olmo_sparsity" / "storage" / "environment.py"))
    monkeypatch.setattr(subprocess, "run", waits)
    assert environment()["commit"] is None


@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        ("processor\t: 0\nmodel\t\t: 85\nmodel name\t: A CPU: 2 GHz \nmodel name\t: Another\n", "A CPU: 2 GHz"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", None),
        (None, None),
    ],
)
def test_the_cpu_is_the_first_that_the_system_names(
    text: str | None, cpu: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, **_: str) -> str:
        if text is None or str(path) != "/proc/cpuinfo":
            raise FileNotFoundError(str(path))
        return text

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(recorded, "_commit", lambda: "abc")
    monkeypatch.setattr(recorded, "_version_of", lambda package: None)
    found = environment()
    monkeypatch.undo()
    assert (found["cpu"], found["commit"]) == (cpu, "abc")


def test_the_version_of_each_package_that_numbers_come_from_is_recorded() -> None:
    """The weights, the text and its tokens, the arithmetic, and the intervals."""
    weights, text = {"ai2-olmo", "transformers", "gguf", "accelerate"}, {"datasets", "tokenizers", "pyarrow"}
    assert set(environment()["packages"]) == weights | text | {"torch", "numpy", "scipy"}


def test_versions_are_those_of_the_packages_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not installed has none."""
    monkeypatch.setattr(recorded, "PACKAGES", ("numpy", "no-such-package"))
    found = environment()
    assert found["packages"] == {"numpy": sys.modules["numpy"].__version__, "no-such-package": None}
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["olmo_sparsity"] == importlib.metadata.version("olmo-sparsity")
