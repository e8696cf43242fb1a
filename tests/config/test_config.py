from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity.config import Config, PretrainedConfig, fingerprint
from olmo_sparsity.config.files import config_folder, load_config, to_yaml
from olmo_sparsity.config.lengths import Lengths
from olmo_sparsity.errors import UserError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return path


def test_overrides_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "training: {steps: 7, seed: 3}\n")
    config = load_config(path, ["training.steps=9", "influence.k=[1,4]"])
    assert (config.training.steps, config.training.seed, config.training.batch_rows) == (9, 3, 256)
    assert config.influence.k == [1, 4]
    assert config.context.row_len == config.context.local_len


def test_the_later_of_k_and_a_grid_of_k_wins(tmp_path: Path) -> None:
    """A grid stands in place of k, so k that is given behind one would otherwise be lost."""
    path = write(tmp_path, "influence: {k_grid: all}\n")

    def measured(*overrides: str) -> list[int]:
        return load_config(path, overrides).with_measured_k().influence.k

    every = measured()
    assert every == list(range(1, len(every) + 1)) and len(every) > 3
    assert measured("influence.k=[1,3]") == [1, 3]
    assert measured("influence.k=[1,3]", "influence.k_grid=all") == every
    assert measured("influence.k_grid=all", "influence.k=[2]") == [2]
    assert measured("influence.seed=3") == every


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training:\n  steps: 5\n  stepz: 3\n", "c.yaml:3: training.stepz: there is no key 'stepz'"),
        ("? [a]\n: 5\n", "c.yaml:1: [...]: there is no key '[...]' here"),
        ("trainin:\n  steps: 5\n", "c.yaml:1: trainin: there is no key 'trainin'"),
        ("training:\n  steps: abc\n", "c.yaml:2: training.steps = abc: must be a whole number"),
        ("training:\n  steps: 5\n  steps: 3\n", "c.yaml:3: training.steps: this key stands here twice"),
        ("training:\n  <<: {steps: 5}\n", "c.yaml:2: training.<<: there is no key '<<' here"),
        (
            "training: &t {steps: *t}\n",
            "c.yaml:1: training.steps: a mapping of keys to values, where this must be a whole",
        ),
        ("training: " + "[" * 5000, "c.yaml: too many brackets in one another"),
        ('name: "\\UFFFFFFFF"\n', "c.yaml: not valid YAML"),
        ("training: 3\n", "section of keys"),
        ("training:\n steps: 3\n  x: [\n", "c.yaml:3: not valid YAML"),
        ("[1, 2]\n", "mapping of keys"),
        ("context: {local_len: 64, full_len: 64}\n", "context.full_len = 64: must be larger than context.local_len"),
        ("context: {local_len: 16, train_len: 8}\n", "context.train_len = 8: must lie between context.local_len = 16"),
        (
            "context: {train_len: 129}\n",
            "context.train_len = 129: must lie between context.local_len = 64 (and 2) and context",
        ),
        (
            "context: {local_len: 1}\n",
            "context.train_len = 1: must lie between context.local_len = 1 (and 2) and context",
        ),
        ("training:\n  seed: -1\n", "c.yaml:2: training.seed = -1: must be at least 0"),
        ("training:\n  seed:\n    -1\n", "c.yaml:3: training.seed = -1: must be at least 0"),
        ("influence:\n  k: [1,\n    0]\n", "c.yaml:2: influence.k = 0: must be at least 1"),
        ("training: {seed: 99999999999999999999999}\n", "training.seed"),
        ("influence: {selectors: [gues]}\n", "no selector is named ['gues']"),
        ("model: {d_model: 30, n_heads: 4}\n", "model.d_model = 30"),
        (
            "model: {d_model: 36, n_heads: 4}\n",
            "model.d_model = 36: must be a multiple of 2 * model.n_heads = 8 (rotary",
        ),
        (
            "training: {batch_rows: 10, micro_batch_rows: 3}\n",
            "training.micro_batch_rows = 3: must divide training.batch_rows = 10",
        ),
        (
            "training: {checkpoint_every: 100, keep_every: 50}\n",
            "training.keep_every = 50: must be a multiple of training.checkpoint_every = 100, or null",
        ),
        ("data: {max_tokens: 0}\n", "data.max_tokens = 0: must be at least 1"),
        ("name: ../elsewhere\n", "plain folder name"),
        ("name: ..\n", "name = '..': must be a plain folder name"),
        ("name: .hidden\n", "name = '.hidden': must be a plain folder name"),
        ("name: -q\n", "name = '-q': must be a plain folder name"),
        ("pose: {max_position: 100}\n", "pose.max_position = 100: must be at least context.full_len = 128"),
        ("pose:\n  contents: half\n", "c.yaml:2: pose.contents = half: must be one of contiguous, matched"),
        ("pose: {method: randpos, num_chunks: 3}\n", "pose.num_chunks = 3: pose.method = randpos has no chunks"),
        (
            "pose: {method: randpos, contents: matched}\n",
            "pose.contents = matched: pose.method = randpos has no chunks",
        ),
        ("data: {source: '${oc.env:HOME}'}\n", "interpolation"),
        ('data: {source: "\\x24{oc.env:HOME}"}\n', "interpolation"),
        ("pretrained:\n  modle: x\n", "c.yaml:2: pretrained.modle: there is no key 'modle'"),
        ("pretrained: {model: ''}\n", "pretrained.model = ''"),
        ("pretrained: {revision: main}\n", "pretrained.revision = main: there is no pretrained.model"),
        ("pretrained: {model: x, device_map: cuda}\n", "pretrained.device_map = cuda: must be auto, or null"),
        (
            "pretrained: {model: x, rope_scaling: yarn}\n",
            "pretrained.rope_factor = None with pretrained.rope_scaling = yarn",
        ),
        (
            "pretrained: {model: x, rope_factor: 2}\n",
            "pretrained.rope_factor = 2.0 with pretrained.rope_scaling = none",
        ),
        ("influence: {local_len: 128}\n", "influence.full_len = 128: must be larger than influence.local_len = 128"),
        ("influence: {local_len: 130}\n", "influence.full_len = 128: must be larger than influence.local_len = 130"),
        ("influence: {full_len: 129}\n", "influence.full_len = 129: the run is trained with 128 positions"),
        ("influence: {min_preceding: 127}\n", "influence.min_preceding = 127: must be at least the length of the full"),
    ],
)
def test_errors_name_the_line_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(write(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "name: a-b_c.d e\n",
        "context: {local_len: 2, train_len: 128}\n",
        "pose: {num_chunks: 64}\n",
        "pose: {method: randpos, max_position: 200}\n",
        "influence: {min_preceding: 128}\n",
        "training: {checkpoint_every: 50, keep_every: 100}\n",
        "training: {batch_rows: 10, micro_batch_rows: 10}\n",
        "model: {d_model: 8, n_heads: 4}\n",
    ],
)
def test_what_just_fits_is_accepted(tmp_path: Path, text: str) -> None:
    load_config(write(tmp_path, text))


def test_a_model_without_positions_takes_ordinary_rows_only(tmp_path: Path) -> None:
    path = write(tmp_path, "model: {position_embedding: none}\npose: {num_chunks: 1}\n")
    load_config(path)
    begins = "model.position_embedding = none: a model without positions has no use for pose.method = "
    for overrides, told in (
        (["pose.num_chunks=2"], "pose with pose.num_chunks = 2; set pose.num_chunks=1"),
        (
            ["pose.method=randpos", "pose.num_chunks=2"],  # the default, which randpos does not use
            "randpos with pose.num_chunks = 2; set pose.num_chunks=1, without pose.method",
        ),
    ):
        with pytest.raises(UserError) as caught:
            load_config(path, overrides)
        assert str(caught.value) == f"{path}: {begins}{told}"


def test_mistakes_in_overrides_and_missing_files(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    with pytest.raises(UserError, match="there is no key 'stepz'"):
        load_config(path, ["training.stepz=3"])
    assert load_config(write(tmp_path, "name: 2025-31-12\n")).name == "2025-31-12"
    with pytest.raises(UserError, match=r"\[=3"):
        load_config(path, ["[=3"])
    with pytest.raises(UserError, match=r"influence\.k\.0=3"):
        load_config(path, ["influence.k.0=3"])
    for crafted in ("${oc.env:HOME}", '"\\x24{oc.env:HOME}"'):
        with pytest.raises(UserError, match="interpolation"):
            load_config(path, [f"data.source={crafted}"])
    with pytest.raises(UserError, match="key=value"):
        load_config(path, ["training.steps"])
    for name, reason in (("none.yaml", "No such file or directory"), (".", "Is a directory")):
        with pytest.raises(UserError) as caught:
            load_config(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: cannot read this configuration ({reason})"


@pytest.mark.parametrize("explain", [True, False])
def test_every_character_is_read_again(explain: bool, tmp_path: Path) -> None:
    """Those that YAML counts as ends of lines or refuses as they are, the borders of its ranges, and some beyond U+FFFF."""
    characters = [
        *range(1, 0x200),
        *range(0x2000, 0x2070),
        0xD7FF,
        0xE000,
        0xFEFF,
        *range(0xFFF0, 0x10010),
        0x1F30A,
        0x10FFFF,
    ]
    text = r"runs\x41\u0042 " + " ".join(map(chr, characters))
    config = dataclasses.replace(Config(), data=dataclasses.replace(Config().data, source=text))
    assert load_config(write(tmp_path, to_yaml(config, explain=explain))) == config


@pytest.mark.parametrize("path", sorted(config_folder().rglob("*.yaml")), ids=lambda path: path.name)
def test_configurations_are_the_same_after_writing_and_reading(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert load_config(write(tmp_path, to_yaml(config))) == config


@pytest.mark.parametrize("name", ["reference", "demo", "smollm2", "synthetic/variables"])
def test_explanations_change_nothing(name: str, tmp_path: Path) -> None:
    config = load_config(config_folder() / f"{name}.yaml")
    assert load_config(write(tmp_path, to_yaml(config, explain=True))) == config


def test_the_reference_is_up_to_date() -> None:
    assert (config_folder() / "reference.yaml").read_text().partition("\n")[2] == to_yaml(Config(), explain=True)


def test_k_is_checked_against_the_number_of_long_range_tokens(tmp_path: Path) -> None:
    path = write(tmp_path, "context: {local_len: 8, full_len: 12}\n")
    load_config(path, ["influence.k=[1,4]"]).check_k()
    with pytest.raises(UserError, match=r"influence\.k = \[8\]: there are only M = 4.*--k"):
        load_config(path).check_k()
    blocks = ["influence.unit=block:3"]  # two, the last of one token
    load_config(path, [*blocks, "influence.k=[1,2]"]).check_k()
    assert load_config(path, [*blocks, "influence.k_grid=all"]).with_measured_k().influence.k == [1, 2]
    with pytest.raises(
        UserError, match=r"influence\.k = \[3\]: there are only 2 blocks of 3 among the M = 4 long-range"
    ):
        load_config(path, [*blocks, "influence.k=[1,3]"]).check_k()


def test_lengths_are_those_of_measuring_and_otherwise_those_of_the_context(tmp_path: Path) -> None:
    """Of a run up to the positions of its training; a pretrained model has no training row."""
    path = write(tmp_path, "context: {local_len: 8, full_len: 12, train_len: 10}\npose: {max_position: 40}\n")
    assert load_config(path).measured_lengths == Lengths(8, 12, 4, 10, 40)
    given = ["influence.local_len=4", "influence.full_len=40"]
    assert load_config(path, given).measured_lengths == Lengths(4, 40, 36, 10, 40)
    load_config(path, [*given, "influence.k=[36]"]).check_k()
    bos = ["context.bos=true"]  # has a position of its own, in front of those of the lengths
    assert load_config(path, [*given, *bos]).measured_lengths == Lengths(4, 40, 36, 10, 40)
    with pytest.raises(UserError, match="full_len = 41: the run is trained with 40 positions"):
        load_config(path, [*bos, "influence.full_len=41"])
    pretrained = load_config(path, ["pretrained.model=some/model", "influence.full_len=4096"])
    assert pretrained.measured_lengths == Lengths(8, 4096, 4088)


def test_the_folder_of_a_pretrained_model_tells_which_it_is(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-135M").mkdir()
    commit = "0123456789abcdef" * 2 + "01234567"
    names = {
        "HuggingFaceTB/SmolLM2-135M": "HuggingFaceTB-SmolLM2-135M",
        str(tmp_path / "SmolLM2-135M"): "SmolLM2-135M",
        f"{tmp_path}/SmolLM2-135M/": "SmolLM2-135M",
        "data/SmolLM2 Q4_0.gguf": "SmolLM2-Q4_0",
        "runs/demo/checkpoints/step2000": "demo-step2000",
        "runs/demo/checkpoints/latest": "demo-latest",
        f"cache/models--gpt2/snapshots/{commit}": "models-gpt2-0123456789ab",
        "gpt2": "gpt2",
        "models/OLMo-1B/step1000-unsharded": "OLMo-1B-step1000-unsharded",
        "models/gpt2/main": "gpt2-main",
        "runs/demo/checkpoints/step7-unsharded/latest": "demo-step7-unsharded-latest",
        "models/my OLMo_1.5B (new)": "my-OLMo_1.5B-new",
        ".gpt2.": "gpt2",
        "long" * 30: "long" * 20,
    }
    assert {name: PretrainedConfig(name).folder_name for name in names} == names
    assert PretrainedConfig("a/b", revision="refs/pr/1").folder_name == "a-b-refs-pr-1"


def test_a_scaling_is_named_with_its_factor_and_is_of_a_pretrained_model_only() -> None:
    for method in ("linear", "yarn"):
        for number, short in ((4.0, "4"), (2.5, "2.5")):
            keys: dict[str, Any] = {"rope_scaling": method, "rope_factor": number}
            scaled = PretrainedConfig("a/b", revision="main", **keys)
            assert (scaled.scaling, scaled.folder_name) == (f"{method}:{short}", f"a-b-main-{method}{short}")
            scaled.check_used()
            with pytest.raises(UserError, match="are about a pretrained model, and none is named"):
                PretrainedConfig(**keys).check_used()
    assert PretrainedConfig("a/b").scaling is None
    PretrainedConfig().check_used()
    PretrainedConfig("a/b", train_len=8).check_used()
    with pytest.raises(UserError, match="are about a pretrained model, and none is named"):
        PretrainedConfig(train_len=8).check_used()


def test_what_cannot_be_on_the_hub_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "there.gguf").touch()
    for name in (None, "gpt2", "org/name.v1", str(tmp_path), str(tmp_path / "there.gguf")):
        PretrainedConfig(name).check_there()
    for name in ("a.gguf", "org/a.gguf", "one/two/three", str(tmp_path / "none")):
        with pytest.raises(
            UserError, match=rf"^pretrained\.model = {name}: no such folder or file; give the path of a model"
        ):
            PretrainedConfig(name).check_there()


def test_fingerprint_depends_on_every_value() -> None:
    assert fingerprint({"a": 1}) == "2696610e7875"  # in every process
    assert fingerprint(Config()) != fingerprint(Config(name="other"))
    # Not on the order of keys: a manifest that was read again is the same measurement.
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})
