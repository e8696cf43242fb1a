"""Run a recipe: ``python -m experiments RECIPE [--set KEY=VALUE ...] [-j N] [--dry-run]``.

A recipe is a YAML file of command lines: ``each`` is run for each of its ``runs`` and seeds, ``then`` after all of them. {key} in
a line stands for a setting; {run} (its folder), {name}, {arguments} and {seed} for those of a run; {runs} for all of them as
options. A line of ``then`` with {end}, what a run's folder ends with, is run for each seed. The commands themselves know what is
finished, so a recipe that was stopped continues when it is run again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import yaml

FOLDER = Path(__file__).parent


class RecipeError(Exception):
    """A mistake of the user, said in one line."""


def read_recipe(name: str) -> dict[str, Any]:
    """Return a recipe of this folder by its name, or any other by its path."""
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise RecipeError(f"{name}: no such recipe; there are {', '.join(recipe_names())}, or give a .yaml file")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def recipe_names() -> list[str]:
    """Return the names of the recipes of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def settings_of(recipe: dict[str, Any], changes: list[str]) -> dict[str, str]:
    """Return the settings of a recipe as text, changed by ``KEY=VALUE``. A setting may use those before it."""
    given = {"runs": ",".join(recipe["runs"]), **{key: str(value) for key, value in recipe["settings"].items()}}
    for change in changes:
        key, equals, value = change.partition("=")
        if key not in given or not equals:
            raise RecipeError(f"--set {change}: give KEY=VALUE; this recipe has {', '.join(given)}")
        given[key] = value
    settings: dict[str, str] = {}
    for key, value in given.items():
        settings[key] = filled(value, settings)
    unknown = [name for name in settings["runs"].split(",") if name not in recipe["runs"]]
    if unknown:
        raise RecipeError(f"--set runs={settings['runs']}: no run is named {unknown[0]}")
    return settings


def filled(line: str, values: dict[str, str]) -> str:
    """Return a line with values in place of {key}, and without double spaces."""
    try:
        return " ".join(line.format_map(values).split())
    except (KeyError, ValueError, IndexError) as error:
        raise RecipeError(f"{line}: {error} is no setting of this recipe") from None


def command_lines(recipe: dict[str, Any], settings: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the command lines of the runs, in any order, and those that follow them, in this order."""
    each, folders = [], []
    seeds = settings["seeds"].split(",")
    ends = {seed: "" if seed == "0" else f"-seed{seed}" for seed in seeds}
    for name in settings["runs"].split(","):
        run = recipe["runs"][name]
        run = run if isinstance(run, dict) else {"arguments": run}
        for seed in seeds[: run.get("first_seeds")]:
            folders.append(f"{settings['folder']}/{name}{ends[seed]}")
            of_run = {"run": folders[-1], "name": name, "seed": seed, "arguments": filled(run["arguments"], settings)}
            each.append(filled(recipe["each"], {**settings, **of_run}))
    known = {**settings, "runs": " ".join(f"--run {folder}" for folder in folders)}
    then = []
    for line in recipe["then"]:
        repeated = ends.values() if "{end}" in line else [""]
        then += [filled(line, {**known, "end": end}) for end in repeated]
    return each, then


def start(lines: list[str], *, processes: int) -> int:
    """Run command lines, several at once; after the first that fails start no other. Return its exit code, else 0."""
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    if processes > 1:  # processes that share cores slow each other down
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    failed: list[int] = []

    def run(line: str) -> None:
        if not failed:
            print(line, flush=True)
            code = subprocess.run(shlex.split(line), env=environment, check=False).returncode
            failed.extend([code] * (code != 0))

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run, lines))
    return failed[0] if failed else 0


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """End with one line and exit code 2."""
        self.exit(2, f"experiments: error: {message}\n")


def main() -> None:
    """Run the recipe that the command line names, or print its command lines."""
    abouts = (f"  {name:<14}{read_recipe(name)['about']}" for name in recipe_names())
    parser = Parser(
        prog="python -m experiments", description="Run a recipe; run again, it continues.",
        epilog="\n".join(("recipes:", *abouts)), formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("recipe", help="its name, or a .yaml file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the recipe"
    )
    parser.add_argument("-j", type=int, default=1, metavar="N", help="run N commands at once")
    parser.add_argument("--dry-run", action="store_true", help="print the command lines, and run none")
    given = parser.parse_args()
    if given.j < 1:
        parser.error(f"-j {given.j}: must be at least 1")
    try:
        recipe = read_recipe(given.recipe)
        each, then = command_lines(recipe, settings_of(recipe, given.set))
    except RecipeError as error:
        parser.error(str(error))
    if given.dry_run:
        print("\n".join([*each, *then]))
        return
    try:
        sys.exit(start(each, processes=given.j) or start(then, processes=1))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
