"""Prints the influence folder that a configuration has been measured into: `make real` shows this one, not the newest.

It is the newest finished measurement in the folder of the configuration's model with the same settings of `influence`, the same
lengths and the same name of the text. One that named a setting which the configuration leaves open counts if there is no other.
Usage: find_tables.py CONFIG [DATA]
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from olmo_sparsity.cli.options import resolve
from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_manifest_of
from olmo_sparsity.measure.influence import RESOLVED
from olmo_sparsity.tables import list_finished


def main() -> None:
    """Print the folder; where there is none, end the script with one line."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: find_tables.py CONFIG [DATA]")
    name, data = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else None
    try:
        config, run, _ = resolve(Path(name), None, overrides=None)
        if data is not None:
            config = dataclasses.replace(config, influence=dataclasses.replace(config.influence, data=data))
        manifests = {tables: read_manifest_of(tables) for tables in list_finished(run)}
    except UserError as error:
        sys.exit(str(error))
    found: list[Path] = []
    for without in ((), RESOLVED):
        found = found or [tables for tables, manifest in manifests.items() if is_of(manifest, config, without=without)]
    if not found:
        sys.exit(f"{run}: {name} has not been measured here; run `olmo-sparsity influence --config {name}` first")
    print(found[-1])


def is_of(manifest: dict[str, Any], config: Config, *, without: Collection[str]) -> bool:
    """Return whether a measurement has the settings, but for some, the lengths and the text of a configuration."""
    lengths, context = config.measured_lengths, manifest["context"]
    return (
        known(manifest["influence"], without) == known(to_dict(config.influence), without)
        and (context["local_len"], context["full_len"]) == (lengths.local_len, lengths.full_len)
        and manifest.get("source") == (config.influence.data or config.data.source)
    )


def known(settings: dict[str, Any], without: Collection[str]) -> dict[str, Any]:
    """Return settings without some, and without those that are null."""
    return {key: value for key, value in settings.items() if value is not None and key not in without}


if __name__ == "__main__":
    main()
