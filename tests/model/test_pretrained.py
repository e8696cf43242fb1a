"""Opening pretrained models: what is loaded is what was saved, and nothing unsafe is."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

import httpx
import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from tiny_models import last_logits
from tokenizers import Tokenizer, models, processors
from transformers_models import BOS, EOS, KINDS, build_raw, byte_tokenizer, save

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.export import export_hf
from olmo_sparsity.model import pretrained
from olmo_sparsity.model.checkpoint import (
    load_model,
)
from olmo_sparsity.model.pretrained import PretrainedModel, open_pretrained

CPU = torch.device("cpu")
TOKENS = torch.randint(3, 200, (2, 12), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.tensor([0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13]).expand(2, -1)


def opened(model: Path | str, *, precision: Literal["fp32", "bf16"] = "fp32", **settings: Any) -> PretrainedModel:
    return open_pretrained(PretrainedConfig(model=str(model), **settings), device=CPU, precision=precision)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "llama"
    save(folder)
    return folder


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copied"))


@torch.no_grad()
def test_a_folder_is_opened_as_it_was_saved(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = opened(llama)
    assert capfd.readouterr() == ("", "")
    logits = found.model.logits(TOKENS, POSITIONS)
    saved = build_raw("llama").eval()
    expected = saved(TOKENS, position_ids=POSITIONS, attention_mask=torch.ones_like(TOKENS)).logits[:, -1]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    record = found.record
    assert (record.name, record.revision, record.architecture) == (str(llama), None, "LlamaForCausalLM")
    assert (record.dtype, record.max_position) == ("float32", 64)
    assert record.num_parameters == sum(parameter.numel() for parameter in saved.parameters())
    assert record.weights_sha256 == hashlib.sha256((llama / "model.safetensors").read_bytes()).hexdigest()
    assert record.tokenizer_sha256 == hashlib.sha256(found.tokenizer.to_str().encode()).hexdigest()
    assert found.model.vocab_size == 300 > found.tokenizer.get_vocab_size()
    assert found.model.device == CPU


@torch.no_grad()
def test_bf16_is_the_same_as_casting(llama: Path) -> None:
    found, cast = opened(llama, precision="bf16"), opened(llama).model.in_dtype(torch.bfloat16)
    assert found.record.dtype == "bfloat16"
    assert torch.equal(found.model.logits(TOKENS, POSITIONS), cast.logits(TOKENS, POSITIONS))
    assert found.model.in_dtype(torch.bfloat16) is found.model


def test_device_map_auto_on_one_device_changes_nothing(llama: Path) -> None:
    with torch.no_grad():
        logits = opened(llama, device_map="auto").model.logits(TOKENS, POSITIONS)
        assert torch.equal(logits, opened(llama).model.logits(TOKENS, POSITIONS))


def test_weights_in_several_files_are_hashed_in_the_order_of_their_names(tmp_path: Path) -> None:
    build_raw("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    byte_tokenizer().save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    together = hashlib.sha256(b"".join(shard.read_bytes() for shard in shards)).hexdigest()
    assert opened(tmp_path).record.weights_sha256 == together
    shards[0].unlink()
    with pytest.raises(UserError, match=rf"incomplete, {shards[0].name} is missing \(1 of {len(shards)} files\)$"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("tokenizer", "bos_id", "adds_bos"),
    [
        ({"adds_bos": True}, BOS, True),
        ({}, BOS, False),
        ({"has_bos": False}, EOS, False),
    ],
)
def test_the_first_token_is_measured_by_encoding(
    tokenizer: dict[str, bool], bos_id: int, adds_bos: bool, tmp_path: Path
) -> None:
    save(tmp_path, tokenizer=byte_tokenizer(**tokenizer))
    found = opened(tmp_path)
    assert (found.bos_id, found.adds_bos, found.eos_token) == (bos_id, adds_bos, "</s>")
    assert found.bos_text == {BOS: "<s>", EOS: "</s>"}[bos_id]
    ids = found.tokenizer.encode("a </s>", add_special_tokens=False).ids
    assert len(ids) == 6 and EOS not in ids  # written out in a text, it ends nothing


def test_entries_that_were_added_beside_the_vocabulary_need_no_logits(tmp_path: Path) -> None:
    """Of the 259 entries of the vocabulary each needs one."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|one|>", "<|two|>"], special_tokens=True)
    for vocab_size in (259, 258):
        save(tmp_path / str(vocab_size), tokenizer=tokenizer, vocab_size=vocab_size)
    assert opened(tmp_path / "259").model.vocab_size == 259
    with pytest.raises(
        UserError, match=r"258: its tokenizer has more entries than the model; one of the two is of ano"
    ):
        opened(tmp_path / "258")


def test_a_tokenizer_that_truncates_is_opened_without(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    save(tmp_path, tokenizer=tokenizer)
    assert len(opened(tmp_path).tokenizer.encode("a long text").ids) == 11


def test_a_model_without_a_fast_tokenizer_is_refused(copied: Path) -> None:
    for path in copied.glob("*token*"):
        path.unlink()
    with pytest.raises(UserError, match=r"^[^\n]*(tokenizer|cannot load)[^\n]*$"):
        opened(copied)


def test_a_tokenizer_that_encodes_nothing_is_refused(tmp_path: Path) -> None:
    empty = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), eos_token="</s>")
    save(tmp_path, tokenizer=empty)
    said = r"its tokenizer is empty, or does not work without transformers; give it a tokenizer\.json$"
    with pytest.raises(UserError, match=said):
        opened(tmp_path)


@pytest.mark.parametrize("change", [[], [7]])
def test_a_tokenizer_that_only_transformers_runs_is_refused(
    change: list[int], copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of Python code, and one whose code adds to what the library tokenizers returns, or leaves out of it."""

    class Own:
        eos_token, bos_token_id, eos_token_id = "</s>", None, EOS
        is_fast = True
        backend_tokenizer = byte_tokenizer().backend_tokenizer

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            ids = self.backend_tokenizer.encode(text).ids
            return {"input_ids": ids + change if change else ids[:-1]}

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Own())
    with pytest.raises(UserError, match="or does not work without transformers; give"):
        opened(copied)
    Own.is_fast = False
    said = r"its tokenizer \(Own\) cannot be run by the library tokenizers; write it as a tokenizer\.json$"
    with pytest.raises(UserError, match=said):
        opened(copied)


def test_a_tokenizer_without_an_end_of_text_is_refused(copied: Path) -> None:
    config = json.loads((copied / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (copied / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"names no token that ends texts \(eos_token\)[^\n]*$"):
        opened(copied)


def test_pickles_are_no_weights(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    torch.save(build_raw("llama").state_dict(), copied / "pytorch_model.bin")
    with pytest.raises(
        UserError, match=r"copied: no weights here, [^\n]*; pickles \(\.bin\) can run code and are not loaded"
    ):
        opened(copied)


@torch.no_grad()
def test_an_export_is_the_model_of_its_run(tiny_run: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_run / "checkpoints" / "latest", CPU)
    tokens, eos_id = TOKENS % 300, loaded.config.eos_token_id
    exported = opened(export_hf(tiny_run, tmp_path / "exported").folder)
    expected = last_logits(loaded, tokens, POSITIONS)
    assert (exported.model.logits(tokens, POSITIONS) - expected).abs().max() < 1e-5
    assert (exported.bos_id, exported.adds_bos, exported.rows_have_bos) == (eos_id, False, False)
    own = Tokenizer.from_file(str(tiny_run / "tokenizer.json"))
    assert exported.eos_token == own.id_to_token(eos_id)
    text = "the river of a garden"
    assert exported.tokenizer.encode(text).ids == own.encode(text, add_special_tokens=False).ids
    with pytest.raises(UserError, match="a run of this package is given with --run"):
        opened(tiny_run)


def test_what_transformers_would_load_in_place_of_the_weights_is_refused(copied: Path) -> None:
    """Its configuration may name another file, and an index may name pickles: the hash would be of others."""
    shutil.copy(copied / "model.safetensors", copied / "other.safetensors")
    changed_config(copied, transformers_weights="other.safetensors")
    with pytest.raises(UserError, match=r"transformers_weights in its config\.json names a file of weights; remove it"):
        opened(copied)
    changed_config(copied, transformers_weights=None)
    opened(copied)
    torch.save(build_raw("llama").state_dict(), copied / "weights.bin")
    names = dict.fromkeys(build_raw("llama").state_dict(), "weights.bin")
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(UserError, match=r"index\.json: it names weights\.bin, which is no \.safetensors file$"):
        opened(copied)


def test_code_of_a_model_is_not_run(copied: Path, tmp_path: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (copied / "config.json").write_text(json.dumps(config))
    (copied / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(UserError, match=r"needs Python code of its own, which is never run; [^\n]*$"):
        opened(copied)
    assert not (tmp_path / "ran").exists()


@torch.no_grad()
def test_a_configuration_cannot_name_another_attention(copied: Path) -> None:
    """transformers would fetch such a name from the hub, and run it."""
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"attn_implementation": "someone/kernel"}))
    found = opened(copied)
    assert found.model.logits_and_attention(TOKENS, POSITIONS)[1].shape == (2, 12)


def test_missing_weights_are_not_drawn_at_random(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(
        UserError,
        match=r"9 of the weights that LlamaForCausalLM needs are missing, such as model\.layers\.2\.[^\n]*; its files are "
        r"incomplete, or of another architecture$",
    ):
        opened(copied)


def changed_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def added_weights(folder: Path, **added: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | added, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_the_model_has_no_place_for_are_not_left_out(copied: Path) -> None:
    changed_config(copied, num_hidden_layers=1)
    with pytest.raises(
        UserError,
        match=r"9 of its weights have no place in LlamaForCausalLM [^\n]* model\.layers\.1\.input_layernorm\.weight; "
        r"without them it is another model: restore its config\.json, or, if it is meant without them, load it with "
        r"transformers and save it again$",
    ):
        opened(copied)
    transformers.AutoModelForCausalLM.from_pretrained(copied).save_pretrained(copied)  # the way out that is named
    opened(copied)
    added_weights(copied, **{"model.layers.0.self_attn.q_proj.bias": torch.ones(32)})
    with pytest.raises(
        UserError, match=r"1 of its weights have no place [^\n]* model\.layers\.0\.self_attn\.q_proj\.bias"
    ):
        opened(copied)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt-2", "transformer.h.0.attn.bias"),
        ("gpt-2", "transformer.h.0.attn.masked_bias"),
        ("gpt-neox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        ("llama", "model.layers.0.attention.bias"),
        ("llama", "model.layers.0.attention.masked_bias"),
        ("llama", "classifier.dense.weight"),
        ("llama", "visual.blocks.0.attn.qkv.weight"),
        ("llama", "model.vision_model.embeddings.weight"),
        ("llama", "audio_tower.conv1.weight"),
        ("llama", "score.weight"),
        ("llama", "v_head.summary.weight"),
        ("llama", "mtp.layers.0.mlp.weight"),
        ("llama", "model.vision_tower.patch.weight"),
        ("llama", "multi_modal_projector.weight"),
    ],
)
def test_weights_that_no_logits_depend_on_are_left_out(kind: str, name: str, tmp_path: Path) -> None:
    save(tmp_path, kind)
    added_weights(tmp_path, **{name: torch.ones(4)})
    opened(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *(
            (content, "not an index of weights, the file is damaged")
            for content in ("[" * 100_000, "{}", "[]", '{"weight_map": 5}', '{"weight_map": {"a": []}}')
        ),
        *(
            (json.dumps({"weight_map": weights}), "it names files outside its folder, or none")
            for weights in (
                {},
                {"a": 5},
                {"a": None, "b": "model-2.safetensors"},
                {"a": "../elsewhere.safetensors"},
                {"a": "model-2.safetensors", "b": "/elsewhere.safetensors"},
                {"a": "within/model.safetensors"},
            )
        ),
    ],
    ids=lambda value: value[:40],
)
def test_an_index_of_weights_names_files_of_its_folder(content: str, said: str, copied: Path) -> None:
    shutil.move(copied / "model.safetensors", copied.parent / "elsewhere.safetensors")
    (copied / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UserError, match=rf"index\.json: {said}$"):
        opened(copied)


def test_weights_of_other_shapes_are_named(copied: Path) -> None:
    changed_config(copied, intermediate_size=48)
    with pytest.raises(
        UserError,
        match=r"6 of its weights .* model\.layers\.0\.mlp\.down_proj\.weight: \[32, 64\] instead of \[32, 48\]; "
        r"restore its config\.json$",
    ):
        opened(copied)


def test_damaged_weights_are_one_line(copied: Path) -> None:
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"^[^\n]*cannot load this model[^\n]*$"):
        opened(copied)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[]"),
        ("config.json", '{"model_type": "llama", "hidden_size": "64"}'),
        ("config.json", '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 7}'),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "[1"),
    ],
)
def test_damaged_json_is_one_line(name: str, content: str, copied: Path) -> None:
    (copied / name).write_text(content)
    with pytest.raises(UserError, match=r"^[^\n]*(cannot load this model|config\.json: expected a JSON object)[^\n]*$"):
        opened(copied)


@pytest.mark.parametrize("kind", ["mamba"])
def test_an_architecture_without_position_ids_is_refused(kind: str, tmp_path: Path) -> None:
    save(tmp_path, kind)
    with pytest.raises(UserError, match=f"{KINDS[kind][0].__name__}: .* takes no position IDs"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", r"^pretrained\.model = /no/such/folder: no such folder or file; give the path of a model"),
        ("missing.gguf", r"^pretrained\.model = missing\.gguf: no such folder or file; give the path of a model"),
        (".", r"neither a Hugging Face folder \(config\.json\) nor a \.gguf file"),
    ],
)
def test_what_is_no_model(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        opened(name)


def test_a_file_that_is_no_gguf_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF and then nothing of the kind")
    with pytest.raises(UserError, match=r"^[^\n]*model\.gguf: transformers [^\n]* cannot load this model [^\n]*$"):
        opened(tmp_path / "model.gguf")


def test_a_model_that_does_not_fit_says_what_takes_less(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fails)
    said = r"llama: the model does not fit on the device; choose influence\.precision=bf16, or pretrained\.device_map=auto$"
    with pytest.raises(UserError, match=said):
        opened(llama)


def test_a_path_may_begin_with_the_home_folder(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(copied.parent))
    assert opened("~/copied").record.name == "~/copied"
    with pytest.raises(UserError, match="~nobody-of-this-name/copied: no such folder or file"):
        PretrainedConfig(model="~nobody-of-this-name/copied").check_there()


def test_only_the_hub_has_revisions(llama: Path) -> None:
    with pytest.raises(UserError, match=r"pretrained\.revision = main: .* is here on disk"):
        opened(llama, revision="main")


COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESPONSE = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co/someone/llama"))


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub that has one model at one commit; the calls to it are collected."""
    calls: list[dict[str, Any]] = []
    snapshot = Path(shutil.copytree(llama, tmp_path / "snapshots" / COMMIT))

    def snapshot_download(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


# What models on the hub consist of: the tokenizers of GPT-2, LLaMA, BERT, T5 and Mistral, weights in one file and in several, and
# what else lies beside them.
TOKENIZERS = {
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
}
TOKENIZERS |= {"vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tekken.json"}
CONFIGURATIONS = {"config.json", "generation_config.json"}
SAFE = {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"}
PICKLES = {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"}
OTHERS = {
    "modeling_own.py",
    "training_args.bin",
    "optimizer.pt",
    "model.gguf",
    "consolidated.00.pth",
    "README.md",
    "tf_model.h5",
}


def asked_for(call: dict[str, Any]) -> set[str]:
    """Return what a call downloads of these, as huggingface_hub understands patterns."""
    every = TOKENIZERS | CONFIGURATIONS | SAFE | PICKLES | OTHERS
    return set(huggingface_hub.utils.filter_repo_objects(every, allow_patterns=call["allow_patterns"]))


def test_a_model_of_the_hub_is_recorded_with_its_commit(hub: list[dict[str, Any]]) -> None:
    found = opened("someone/llama", revision="v1.0")
    assert (found.record.name, found.record.revision) == ("someone/llama", COMMIT)
    assert [(call["name"], call["revision"]) for call in hub] == [("someone/llama", "v1.0")]
    assert not [pattern for pattern in hub[0]["allow_patterns"] if pattern.endswith((".bin", ".py", ".pt", "*"))][1:]
    assert asked_for(hub[0]) == {*TOKENIZERS, *CONFIGURATIONS, *SAFE}


def test_pickles_of_the_hub_are_not_downloaded(hub: list[dict[str, Any]], tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / COMMIT
    (snapshot / "model.safetensors").unlink()
    no_safetensors = (
        r"^someone/llama: no safetensors on the hub at this revision \(0123456789ab\); [^\n]*; choose another revision$"
    )
    with pytest.raises(UserError, match=no_safetensors):
        opened("someone/llama")
    assert len(hub) == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            errors.LocalEntryNotFoundError("x\ny"),
            r"the hub cannot be reached, and its model at revision v2 is not in the cache",
        ),
        (
            errors.OfflineModeIsEnabled("x\ny"),
            r"the hub cannot be reached, and its model at revision v2 is not in the cache of huggingface_hub; give a folder, or",
        ),
        (ConnectionError("x\ny"), r"cannot be downloaded from the hub \(x\)$"),
        (ConnectionError(), r"cannot be downloaded from the hub \(ConnectionError\)$"),
        (
            errors.GatedRepoError("x\ny", response=RESPONSE),  # of these three each is a kind of the next
            r"^someone/llama: the hub gives this model only to accounts that accepted its terms$",
        ),
        (
            errors.RepositoryNotFoundError("x\ny", response=RESPONSE),
            r"^pretrained\.model = someone/llama: no such folder or file, and no such model on the hub$",
        ),
        (
            errors.HfHubHTTPError("x\ny", response=RESPONSE),
            r"^someone/llama: it cannot be downloaded from the hub \(x\)$",
        ),
        (
            errors.RevisionNotFoundError("x\ny", response=RESPONSE),
            r"^pretrained\.revision = v2: someone/llama has no such revision on the hub$",
        ),
        (
            errors.HFValidationError("x\ny"),
            r"^pretrained\.model = someone/llama: no such .*, and not a name on the hub$",
        ),
    ],
)
def test_without_the_hub_there_is_one_line(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(UserError, match=message) as caught:
        opened("someone/llama", revision="v2")
    assert "\n" not in str(caught.value)
    if "at revision v2" in message:
        with pytest.raises(UserError, match="the hub cannot be reached, and its model is not in the cache"):
            opened("someone/llama")


def test_an_export_of_a_run_says_whether_its_rows_had_a_bos(bos_run: Path, llama: Path, tmp_path: Path) -> None:
    """A model from elsewhere does not say it. A value of another type is refused in one line."""
    folder = export_hf(bos_run, tmp_path / "exported").folder
    found = opened(folder)
    assert (found.rows_have_bos, found.adds_bos, found.bos_text) == (True, True, found.eos_token)
    assert opened(llama).rows_have_bos is None
    (folder / "manifest.json").unlink()  # it has the hash of config.json
    content = json.loads((folder / "config.json").read_text())
    for value, expected in ((None, None), (False, False)):
        (folder / "config.json").write_text(json.dumps({**content, "rows_have_bos": value}))
        assert opened(folder).rows_have_bos is expected
    for wrong in ("yes", 1, [True]):
        (folder / "config.json").write_text(json.dumps({**content, "rows_have_bos": wrong}))
        with pytest.raises(UserError, match=r"exported: config\.json: rows_have_bos = .*: must be true or false$"):
            opened(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"])
def test_an_export_whose_files_were_exchanged(name: str, tiny_run: Path, tmp_path: Path) -> None:
    folder = export_hf(tiny_run, tmp_path / "exported").folder
    for free in ("README.md", "generation_config.json"):
        (folder / free).write_text("{}")
    opened(folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-9] + bytes(9) if name.startswith("model") else content + b"\n")
    with pytest.raises(UserError, match=rf"{name}: missing, or other contents .*; export the run again[^\n]*$"):
        opened(folder)
    for of_another_program in (
        "[]",
        '{"kind": "weights", "files": {"config.json": "0"}}',
        '{"files": {"config.json": "0"}}',
    ):
        (folder / "manifest.json").write_text(of_another_program)
        opened(folder)


def test_transformers_talks_again_afterwards(llama: Path) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), sys.stderr
    opened(llama)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), sys.stderr) == before
    logging.disable_progress_bar()
    try:
        with pretrained._quiet():
            pass
        assert not logging.is_progress_bar_enabled()  # which somebody else has switched off
    finally:
        logging.enable_progress_bar()


def test_a_first_token_that_is_not_the_bos_of_the_tokenizer_is_the_one_that_texts_begin_with(tmp_path: Path) -> None:
    """As of models whose tokenizer names a BOS and puts another token in front of a text."""
    tokenizer = byte_tokenizer(adds_bos=True)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A", pair="</s> $A $B", special_tokens=[("</s>", EOS)]
    )
    save(tmp_path, tokenizer=tokenizer)
    found = opened(tmp_path)
    assert found.tokenizer.encode("a").ids[0] == EOS
    assert (found.bos_id, found.bos_text, found.adds_bos) == (EOS, "</s>", True)
