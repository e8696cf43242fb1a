"""The configuration: files, KEY=VALUE, mistakes, and what follows from its keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from olmo_sparsity.config import (
    Config,
    Lengths,
    PretrainedConfig,
    SyntheticConfig,
    changed,
    config_folder,
    different_keys,
    fingerprint,
    key_types,
    load_config,
    shipped,
    to_dict,
    to_yaml,
    words,
)
from olmo_sparsity.errors import UserError


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(config_folder().rglob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_written_is_read_again(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    for explain in (False, True):
        text = to_yaml(config, explain=explain)
        assert load_config(written(tmp_path, text)) == config
        assert yaml.safe_load(text) == to_dict(config)


def test_the_reference_is_generated() -> None:
    assert (config_folder() / "reference.yaml").read_text().partition("\n")[2] == to_yaml(Config(), explain=True)
    assert to_yaml(Config(name="ü")).startswith("name: ü\ndata:\n  source: builtin\n")


@settings(max_examples=30, deadline=None)
@given(
    st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1).filter(
        lambda text: text[:2] != "~/"
    )
)
def test_text_is_taken_as_it_is_written(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    config = load_config(None, [f"data.source={text}"])
    assert config.data.source == text
    assert load_config(written(tmp_path_factory.getbasetemp(), to_yaml(config))) == config
    assert load_config(None, [f"data.source=~/{text}"]).data.source == f"{Path.home()}/{text}"


def test_keys_go_before_overrides_and_these_before_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "training: {steps: 1, seed: 1, batch_rows: 1}\ndata:\nmodel: ~\ninfluence: {k: all}")
    config = load_config(path, ["training.seed=20240229", "training.batch_rows=2"], {"training.batch_rows": 3})
    assert (config.training.steps, config.training.seed, config.training.batch_rows) == (1, 20240229, 3)
    assert config.data == Config().data and config.influence.k == "all"
    for text, k in {"[1, 3]": [1, 3], "1,3": [1, 3], "geometric": "geometric"}.items():
        assert load_config(path, [f"influence.k={text}"]).influence.k == k
    assert load_config(None, ["pretrained.model=a/b", "pretrained.revision=12345e7"]).pretrained.revision == "12345e7"
    assert load_config(None, ["training.learning_rate=1e-4"]).training.learning_rate == 1e-4
    assert load_config(None, ["pretrained.model=a", "pretrained.model=null"]).pretrained == PretrainedConfig()
    assert load_config(None, ["synthetic.modulus=97"]).synthetic.modulus == 97


@pytest.mark.parametrize("dotted", sorted(key_types()))
def test_every_key_refuses_what_it_cannot_be_and_names_itself(dotted: str, tmp_path: Path) -> None:
    section, _, name = dotted.rpartition(".")
    with pytest.raises(UserError, match=rf"^{dotted}(: | = )"):
        load_config(None, [f"{dotted}=\0"])
    if "text" not in words(key_types()[dotted]) and dotted != "name":
        with pytest.raises(UserError, match=rf"^{dotted}(: | = )"):
            load_config(None, [f"{dotted}=-1"])
    nested = f"{section}: {{{name}: {{a: 1}}}}" if section else f"{name}: {{a: 1}}"
    with pytest.raises(UserError, match=rf"yaml:1: {dotted}\.a: there is no such key"):
        load_config(written(tmp_path, nested))


BAD_FILES = {
    "name: [1": "not valid YAML",
    "- 1": "holds keys and values",
    "5": "holds keys and values",
    "a: &a [*a]": "not valid YAML",
    "a: &a {b: *a}": "not valid YAML",
    "[" * 700: "not valid YAML",
    '"\\UFFFFFFFF": 1': "not valid YAML",
    "training: {steps: 5}\ntraining: {steps: 6}": "config.yaml:2: training.steps is given twice",
    "training:\n  stepz: 5": "config.yaml:2: training.stepz: there is no such key; did you mean training.steps?",
    "steps: 5": "config.yaml:1: steps: there is no such key; did you mean training.steps?",
    "training: 5": "training: there is no such key; did you mean training.",
    "training: {steps: null}": "training.steps = null: must be a whole number, at least 1",
    "training: {steps: 0x10}": "training.steps = 0x10: must be a whole number",
    "training: {steps: 1.5}": "training.steps = 1.5: must be a whole number",
    f"training: {{steps: {'9' * 5000}}}": "training.steps = 999",
    "training: {learning_rate: .nan}": "training.learning_rate = .nan: must be a number, above 0",
    "training: {learning_rate: inf}": "training.learning_rate = inf: must be a number",
    "training: {learning_rate: nan}": "training.learning_rate = nan: must be a number",
    "training: {precision: fp8}": "training.precision = fp8: must be one of auto, fp32, bf16",
    "context: {bos: maybe}": "context.bos = maybe: must be true or false",
    "influence: {k: [1, [2]]}": "must be a list, each a whole number, at least 1",
    "influence: {k: 1}": "influence.k = 1: must be a list",
    "influence: {k: [all]}": ", or one of all, geometric",
    'data: {source: "\\ud800"}': "data.source",
    "name: ../a": "name = ../a: must be letters, digits",
    "a: !!python/object/apply:os.system [touch ran]": "there is no such key",
    "context: {local_len: 128}": "config.yaml: context.full_len = 128: must be larger than context.local_len = 128",
}


@pytest.mark.parametrize("text", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_mistake_in_a_file_is_one_line(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        load_config(written(tmp_path, text))
    assert str(refused.value).startswith(str(tmp_path / "config.yaml"))
    assert BAD_FILES[text] in str(refused.value) and "\n" not in str(refused.value)
    assert not Path("ran").exists()


# What just fits, and the change with which it does not; the key that the line names.
CONTRADICTIONS = [
    ("context.full_len=65", "context.full_len=64", "context.full_len"),
    ("context.train_len=128", "context.train_len=129", "context.train_len"),
    ("context.train_len=64", "context.train_len=63", "context.train_len"),
    ("pose.max_position=128", "pose.max_position=127", "pose.max_position"),
    ("pose.method=randpos pose.max_position=200", "pose.method=randpos pose.vary_chunks=true", "pose.vary_chunks"),
    ("pose.num_chunks=1 model.position_embedding=none", "model.position_embedding=none", "pose.num_chunks=1"),
    ("model.n_heads=64", "model.n_heads=128", "model.d_model"),
    ("training.warmup_steps=0", "training.warmup_steps=0 training.scheduler=max_scheduler", "training.warmup_steps"),
    ("training.micro_batch_rows=128", "training.micro_batch_rows=100", "training.micro_batch_rows"),
    ("pretrained.model=a pretrained.revision=b", "pretrained.revision=b", "pretrained.revision"),
    ("pretrained.model=a pretrained.train_len=9", "pretrained.train_len=9", "train_len"),
    ("pretrained.model=a pretrained.rope_scaling=yarn:2", "pretrained.rope_scaling=yarn:2", "rope_scaling"),
    ("influence.full_len=65", "influence.full_len=64", "influence.full_len"),
    ("influence.full_len=128", "influence.full_len=129", "influence.full_len"),
    ("influence.min_preceding=128", "influence.min_preceding=127", "influence.min_preceding"),
    ("influence.k=1,2", "influence.k=2,1", "influence.k"),
    ("influence.k=1", "influence.k=", "influence.k"),
    ("influence.selectors=[kl, random]", "influence.selectors=[kl, kl]", "influence.selectors"),
    ("influence.selectors=kl", "influence.selectors=kml", "influence.selectors"),
    ("influence.selectors=kl", "influence.selectors=own.py:kl", "--selector"),
    ("influence.selectors=h2o influence.visibility=contextual", "influence.selectors=h2o", "influence.visibility"),
    ("synthetic.train_lengths=8,8", "synthetic.train_lengths=9,8", "synthetic.train_lengths"),
    ("synthetic.train_lengths=4,8", "synthetic.train_lengths=3,8", "synthetic.train_lengths"),
    ("synthetic.test_lengths=4", "synthetic.test_lengths=3", "synthetic.test_lengths"),
    ("synthetic.test_row_len=4", "synthetic.test_row_len=3", "synthetic.test_lengths"),
    ("synthetic.test_row_len=16", "synthetic.test_row_len=17", "synthetic.test_lengths"),
    ("synthetic.scratchpad=true synthetic.positions=coupled", "synthetic.positions=coupled", "synthetic.scratchpad"),
    ("synthetic.task=variables", "synthetic.task=variables synthetic.modulus=3", "modulus"),
    ("synthetic.task=variables synthetic.num_names=50", "synthetic.task=variables synthetic.num_names=49", "num_names"),
]


@pytest.mark.parametrize(("fits", "does_not", "named"), CONTRADICTIONS, ids=[one[1] for one in CONTRADICTIONS])
def test_keys_that_contradict_one_another(fits: str, does_not: str, named: str) -> None:
    def overrides(text: str) -> list[str]:
        words = text.replace(", ", ",").split()
        wide = [] if "row_len" not in text else ["synthetic.test_lengths=20"]
        return [*wide, *words]

    load_config(shipped("pretrained"), overrides(fits))
    with pytest.raises(UserError, match=named) as refused:
        load_config(shipped("pretrained"), overrides(does_not))
    assert ".yaml" not in str(refused.value)  # no file is wrong


def test_a_change_is_checked_and_leaves_the_rest() -> None:
    config = load_config()
    other = changed(config, {"influence.unit": "block:3", "training.steps": 5})
    assert (other.influence.unit, other.training.steps, other.context) == ("block:3", 5, config.context)
    with pytest.raises(UserError, match=r"^influence\.unit = block:0: must be token, word, sentence, or block:N$"):
        changed(config, {"influence.unit": "block:0"})


def test_lengths_and_k_of_a_measurement(tmp_path: Path) -> None:
    keys = [
        "context.local_len=8",
        "context.full_len=12",
        "context.train_len=10",
        "pose.max_position=40",
        "influence.k=[1]",
    ]
    config = load_config(shipped("pretrained"), keys)
    assert config.measured_lengths == Lengths(8, 12, 4, 10, 40)
    longer = changed(config, {"influence.local_len": 4, "influence.full_len": 40, "context.bos": True})
    assert (longer.measured_lengths, longer.num_positions) == (Lengths(4, 40, 36, 10, 40), 41)
    pretrained = changed(config, {"pretrained.model": "a/b", "influence.full_len": 4096})
    assert pretrained.measured_lengths == Lengths(8, 4096, 4088, None, None)
    for unit, most in (("token", 36), ("word", 36), ("block:5", 8), ("block:36", 1)):
        of_unit = changed(longer, {"influence.unit": unit})
        assert of_unit.num_groups == most
        powers = [k for k in range(1, most + 1) if k == most or k & (k - 1) == 0]
        for grid, ks in (("all", list(range(1, most + 1))), ("geometric", powers)):
            assert changed(of_unit, {"influence.k": grid}).with_measured_k().influence.k == ks
        assert changed(of_unit, {"influence.k": [most]}).with_measured_k().influence.k == [most]
        with pytest.raises(UserError, match=rf"^influence\.k = \[{most + 1}\]: there are only {most} candidates"):
            changed(of_unit, {"influence.k": [most + 1]}).with_measured_k()


def test_last_n_holds_the_lengths_and_a_fine_grid() -> None:
    lengths = Lengths(5, 100, 95, 30, None).last_n
    assert lengths == sorted({5, 30, 100, 8, 16, 32, 64, 12, 24, 48, 96})


def test_the_folder_of_a_model_tells_which_it_is(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-135M").mkdir()
    commit = "0123456789abcdef" * 2 + "01234567"
    names = {
        "HuggingFaceTB/SmolLM2-135M": "HuggingFaceTB-SmolLM2-135M",
        f"{tmp_path}/SmolLM2-135M/": "SmolLM2-135M",
        "data/SmolLM2 Q4_0.gguf": "SmolLM2-Q4_0",
        "runs/demo/checkpoints/latest": "demo-latest",
        f"cache/models--gpt2/snapshots/{commit}": "models-gpt2-0123456789ab",
        "models/OLMo-1B/step1000-unsharded": "OLMo-1B-step1000-unsharded",
        "models/my OLMo_1.5B (new)": "my-OLMo_1.5B-new",
        "gpt2": "gpt2",
    }
    assert {name: PretrainedConfig(name).folder_name for name in names} == names
    scaled = PretrainedConfig("a/b", revision="refs/pr/1", rope_scaling="yarn:2.5")
    assert scaled.folder_name == "a-b-refs-pr-1-yarn2.5"


def test_what_cannot_be_on_the_hub_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "there.gguf").touch()
    for name in (None, "gpt2", "org/name.v1", str(tmp_path), str(tmp_path / "there.gguf")):
        PretrainedConfig(name).check_there()
    for name in ("a.gguf", "org/a.gguf", "one/two/three", str(tmp_path / "none")):
        with pytest.raises(UserError, match=rf"^pretrained\.model = {name}: no such folder or file"):
            PretrainedConfig(name).check_there()


def test_planted_values_lie_inside_the_row_or_before_it() -> None:
    task = SyntheticConfig(test_row_len=10)
    for length in (7, 10, 11, 25):
        places = task.places(length)
        assert [*places] == (["inside", "beyond"] if length > 10 else ["inside"])
        assert [at for part in reversed(places.values()) for at in range(*part)] == list(range(length))
    assert SyntheticConfig().places(25) == {None: (0, 25)}
    assert [task.tokens_needed(k) for k in (1, 2, 3)] == [1, 2, 3]
    assert [SyntheticConfig("variables").tokens_needed(3), SyntheticConfig("variables").row_len(25, 3)] == [6, 28]
    assert [task.row_len(25, 3), SyntheticConfig(scratchpad=True).row_len(25, 3)] == [27, 29]


def test_keys_in_which_runs_may_not_differ() -> None:
    first = to_dict(load_config())
    free = ["training.device=cuda", "training.threads=2", "data.cache_dir=x", "influence.seed=3", "name=other"]
    assert different_keys(first, to_dict(load_config(None, free))) == []
    second = to_dict(load_config(None, ["training.seed=7", "context.full_len=40"]))
    assert different_keys(first, second) == [("context.full_len", 16, 40), ("training.seed", 0, 7)]


def test_a_fingerprint_depends_on_every_value_and_on_no_order() -> None:
    assert fingerprint({"a": 1}) == "2696610e7875"  # in every process
    assert fingerprint(Config()) != fingerprint(Config(name="other"))
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})
