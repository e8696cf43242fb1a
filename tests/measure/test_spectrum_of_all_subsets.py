"""The dependency spectrum of a tiny model against all subsets of its ten long-range tokens; grids of every k."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from olmo_sparsity.config import Config
from olmo_sparsity.measure.influence import default_name, measure
from olmo_sparsity.measure.setup.opened_model import open_model
from olmo_sparsity.storage.files import read_json


def test_every_k_is_measured_and_recorded(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    changes = {"num_windows": 2, "selectors": ["nearest", "random"], "k_grid": "all", "resampled_draws": 0}
    config = dataclasses.replace(tiny_config, influence=dataclasses.replace(tiny_config.influence, **changes))
    tables = measure(config, tiny_run, out=tmp_path / "tables")
    influence = read_json(tables / "manifest.json")["influence"]
    assert (influence["k"], influence["k_grid"]) == (list(range(1, 13)), None)


def test_a_folder_of_many_k_has_a_name_that_file_systems_take(tiny_config: Config, tiny_run: Path) -> None:
    opened, settings = open_model(tiny_config, tiny_run), dataclasses.replace(tiny_config.influence, k=[*range(1, 961)])
    name = default_name(settings, opened, trained=tiny_config.context, run_id="0123456789ab")
    assert "-k1to960of960-" in name and len(name) < 100
    for num, words in ((16, "-".join(map(str, range(1, 17)))), (17, "1to17of17")):
        few = dataclasses.replace(settings, k=[*range(1, num + 1)])
        assert f"-k{words}-" in default_name(few, opened, trained=tiny_config.context, run_id="0123456789ab")


def test_a_grid_ends_with_all_long_range_tokens_of_the_lengths(tiny_config: Config) -> None:
    for grid, ks in {"all": [*range(1, 13)], "geometric": [1, 2, 4, 8, 12]}.items():
        config = dataclasses.replace(tiny_config, influence=dataclasses.replace(tiny_config.influence, k_grid=grid))
        assert config.with_measured_k().influence == dataclasses.replace(tiny_config.influence, k=ks)
        blocks = dataclasses.replace(config, influence=dataclasses.replace(config.influence, unit="block:5"))
        assert blocks.with_measured_k().influence.k == [1, 2, 3]
