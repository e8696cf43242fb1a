"""Opening pretrained models: what is loaded is what was saved, and what is not one whole, safe model is refused in one line."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import httpx
import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, processors
from transformers_models import BOS, EOS, build_raw, byte_tokenizer, save

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.pretrained import PretrainedModel, from_memory, open_pretrained

CPU = torch.device("cpu")
TOKENS = torch.randint(3, 200, (2, 12), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.tensor([0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13]).expand(2, -1)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 9\n"


def opened(model: Path | str, *, precision: str = "fp32", **settings: Any) -> PretrainedModel:
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
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), sys.stderr
    found = opened(llama)
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), sys.stderr) == before
    saved = build_raw("llama").eval()
    expected = saved(TOKENS, position_ids=POSITIONS, attention_mask=torch.ones_like(TOKENS)).logits[:, -1]
    torch.testing.assert_close(found.model.logits(TOKENS, POSITIONS), expected, atol=1e-5, rtol=0)
    spread = opened(llama, device_map="auto").model
    assert torch.equal(spread.logits(TOKENS, POSITIONS), found.model.logits(TOKENS, POSITIONS))
    record = found.record
    assert (record.name, record.revision, record.architecture) == (str(llama), None, "LlamaForCausalLM")
    assert (record.dtype, record.max_position) == ("float32", 64)
    assert record.num_parameters == sum(parameter.numel() for parameter in saved.parameters())
    assert record.weights_sha256 == hashlib.sha256((llama / "model.safetensors").read_bytes()).hexdigest()
    assert record.tokenizer_sha256 == hashlib.sha256(found.tokenizer.to_str().encode()).hexdigest()
    assert found.model.vocab_size == 300 > found.tokenizer.get_vocab_size()
    assert found.rows_have_bos is None


@torch.no_grad()
def test_bf16_is_the_same_as_casting(llama: Path, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, cast = opened(llama, precision="bf16"), opened(llama).model.in_dtype(torch.bfloat16)
    assert found.record.dtype == "bfloat16"
    assert torch.equal(found.model.logits(TOKENS, POSITIONS), cast.logits(TOKENS, POSITIONS))
    assert found.model.in_dtype(torch.bfloat16) is found.model
    config(rows_have_bos=True)(copied)  # exports of runs are measured as the run is
    for model, has_units, dtype in ((llama, True, "bfloat16"), (llama, False, "float32"), (copied, True, "float32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda found=has_units, **_: found)
        settings = PretrainedConfig(model=str(model), device_map="auto")
        assert open_pretrained(settings, device=torch.device("cuda"), precision="auto").record.dtype == dtype


def test_weights_in_several_files_are_hashed_in_the_order_of_their_names(tmp_path: Path) -> None:
    build_raw("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    byte_tokenizer().save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    together = hashlib.sha256(b"".join(shard.read_bytes() for shard in shards)).hexdigest()
    assert opened(tmp_path).record.weights_sha256 == together
    shards[0].unlink()
    with pytest.raises(UserError, match=rf"no {shards[0].name} here \(1 of {len(shards)} files missing\); pickles"):
        opened(tmp_path)


@torch.no_grad()
def test_a_model_in_memory_is_that_of_a_folder(llama: Path) -> None:
    """Its hash is of names and values; each weight counts, also one of no dimensions."""
    raw = build_raw("llama")
    raw.register_buffer("scale", torch.tensor(2.0))
    found = from_memory(raw, byte_tokenizer(), name="mine")
    torch.testing.assert_close(found.model.logits(TOKENS, POSITIONS), opened(llama).model.logits(TOKENS, POSITIONS))
    assert (found.record.name, found.record.max_position, found.bos_id) == ("mine", 64, BOS)
    again = from_memory(raw, byte_tokenizer(), name="mine").record.weights_sha256
    raw.scale.fill_(3.0)
    assert found.record.weights_sha256 == again != from_memory(raw, byte_tokenizer(), name="mine").record.weights_sha256


EOS_IN_FRONT = processors.TemplateProcessing(single="</s> $A", pair="</s> $A $B", special_tokens=[("</s>", EOS)])
EOS_BEHIND = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])


@pytest.mark.parametrize(
    ("options", "processor", "bos_id", "adds_bos"),
    [
        ({"adds_bos": True}, None, BOS, True),
        ({}, None, BOS, False),
        ({"has_bos": False}, None, EOS, False),
        ({}, EOS_IN_FRONT, EOS, True),  # not the BOS that it names
        ({}, EOS_BEHIND, BOS, False),  # what stands behind a text is not in front of it
    ],
)
def test_the_first_token_is_measured_by_encoding(
    options: dict[str, bool], processor: Any, bos_id: int, adds_bos: bool, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer(**options)
    if processor is not None:
        tokenizer.backend_tokenizer.post_processor = processor
    tokenizer.backend_tokenizer.enable_truncation(4)
    save(tmp_path, tokenizer=tokenizer)
    found = opened(tmp_path)
    assert (found.bos_id, found.adds_bos, found.eos_token) == (bos_id, adds_bos, "</s>")
    assert found.bos_text == {BOS: "<s>", EOS: "</s>"}[bos_id]
    ids = found.tokenizer.encode("a </s>", add_special_tokens=False).ids
    assert len(ids) == 6 and EOS not in ids  # neither cut short nor read as a token that ends the text


def test_a_tokenizer_with_dropout_is_opened_without(tmp_path: Path) -> None:
    """Also where dropout would split the text whose tokens show what stands in front."""
    alphabet = {letter: number + 3 for number, letter in enumerate("The rivab")} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    own = Tokenizer(
        models.BPE(alphabet | {"ab": 40, "abab": 41, "Th": 42}, [("a", "b"), ("ab", "ab"), ("T", "h")], dropout=0.5)
    )
    save(tmp_path, tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>"))
    assert {tuple(opened(tmp_path).tokenizer.encode("abab").ids) for _ in range(9)} == {(41,)}


def other_bos(folder: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "<|one|>"
    tokenizer.save_pretrained(folder)


def two_in_front(folder: Path) -> None:
    tokenizer, special = byte_tokenizer(), [("<s>", BOS), ("</s>", EOS)]
    front = processors.TemplateProcessing(single="<s> </s> $A", special_tokens=special)
    tokenizer.backend_tokenizer.post_processor = front
    tokenizer.save_pretrained(folder)


def empty_tokenizer(folder: Path) -> None:
    own = Tokenizer(models.BPE())
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>").save_pretrained(folder)


def cannot_encode(folder: Path) -> None:
    own = Tokenizer(models.Unigram([("</s>", 0.0), ("T", -1.0)]))
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>").save_pretrained(folder)


def config(**changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | changes))

    return change


def written(name: str, content: str | bytes) -> Callable[[Path], object]:
    content = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(content)


def only(*changes: Callable[[Path], object], without: str = "") -> Callable[[Path], object]:
    """Delete files, then change others."""

    def change(folder: Path) -> None:
        for path in folder.glob(without) if without else ():
            path.unlink()
        for one in changes:
            one(folder)

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    return changed


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])


def index(content: Any) -> Callable[[Path], object]:
    text = content if isinstance(content, str) else json.dumps({"weight_map": content})
    return only(written("model.safetensors.index.json", text), without="model.safetensors")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(build_raw("llama").state_dict(), folder / "pytorch_model.bin")


def in_two_files(folder: Path) -> None:
    """transformers would take one of the two values."""
    (folder / "model.safetensors").unlink()
    build_raw("llama").save_pretrained(folder, max_shard_size="40KB")
    first, *_, last = sorted(folder.glob("model-*.safetensors"))
    state = load_file(last)
    state["model.embed_tokens.weight"] = -load_file(first)["model.embed_tokens.weight"]
    save_file(state, last, metadata={"format": "pt"})


def classifier(folder: Path) -> None:
    """Of a model whose output matrix is its embedding."""
    save(folder, tie_word_embeddings=True)
    weights(lambda state: state.update({"score.weight": torch.ones(2, 32)}))(folder)


BIAS = "model.layers.0.self_attn.q_proj.bias"
OUTSIDE = "it must name .safetensors files of its folder, and nothing else; restore it$"
CODE = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "an adapter beside the model": (written("adapter_config.json", "{}"), r"adapter_config\.json: an adapter of peft.*; merge"),
    "an adapter alone": (only(written("adapter_config.json", "{}"), without="*.json"), "an adapter of peft"),
    "pickles": (pickled, r"no model\.safetensors here \(1 of 1 files missing\); pickles"),
    "an LFS pointer to weights": (written("model.safetensors", LFS), r"s: this is a Git LFS pointer; .*git lfs pull"),
    "an LFS pointer to a tokenizer": (written("tokenizer.json", LFS), r"tokenizer\.json: this is a Git LFS pointer"),
    "a page in place of weights": (
        written("model.safetensors", "<!DOCTYPE html>"), r"no safetensors file \(it begins with b'<!DOCTYPE ht'\)"
    ),
    "an empty file of weights": (written("model.safetensors", ""), r"no safetensors file \(it begins with b''\)"),
    "weights cut short": (cut("model.safetensors"), "cannot load this model"),
    "a list as configuration": (written("config.json", "[]"), "cannot load this model"),
    "a text where a number is": (
        written("config.json", '{"model_type": "llama", "hidden_size": "64"}'), "cannot load this model"
    ),
    "a damaged tokenizer": (written("tokenizer.json", "[1"), "cannot load this model"),
    "no tokenizer": (only(without="*token*"), "tokenizer|cannot load this model"),
    "SentencePiece alone": (
        only(written("tokenizer.model", b"\n\x0e\n\x05<unk>"), without="tokenizer.json"), r"tokenizer\.model: the library"
    ),
    "a tokenizer that encodes nothing": (empty_tokenizer, "its tokenizer is empty"),
    "no end of text": (
        written("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast"}'), "has no token that ends texts"
    ),
    "two tokens in front": (two_in_front, r"puts 2 tokens in front of a text \(<s> </s>\)"),
    "a BOS beyond the embedding": (
        only(other_bos, config(vocab_size=259), weights(lambda state: state.update(
            {name: state[name][:259].clone() for name in ("model.embed_tokens.weight", "lm_head.weight")}
        ))), "the token '<|one|>' of ID 259, and the model only 259 tokens".replace("|", r"\|"),
    ),
    "missing weights": (config(num_hidden_layers=3), r"9 weights are missing in LlamaForCausalLM.* model\.layers\.2\."),
    "weights without a place": (
        config(num_hidden_layers=1), r"9 weights have no place.* model\.layers\.1\.input_layernorm\.weight"
    ),
    "a bias": (weights(lambda state: state.update({BIAS: torch.ones(32)})), r"1 weights have no place.*q_proj\.bias"),
    "another shape": (
        config(intermediate_size=48), r"6 weights .* model\.layers\.0\.mlp\.down_proj\.weight: \[32, 64\] instead of \[32, 48\]"
    ),
    **{
        f"index {text[:14]}": (index(text), "the file is damaged")
        for text in ("[" * 100_000, "{}", "[]", '{"weight_map": 5}', '{"weight_map": {"a": 5}}')
    },
    **{
        f"index of {names}": (index(names), OUTSIDE)
        for names in ({}, {"a": "x.bin"}, {"a": "../x.safetensors"}, {"a": "a.safetensors", "b": "/x.safetensors"})
    },
    "a weight in two files": (in_two_files, r"model-.*: model-00001-of-.* holds model\.embed_tokens\.weight, too"),
    "integers without their scale": (
        weights(lambda state: state.update({"lm_head.weight": (state["lm_head.weight"] * 99).to(torch.int8)})),
        r"lm_head\.weight is stored as I8, and config\.json has no quantization_config",
    ),
    "a classifier": (classifier, r"1 weights have no place in LlamaForCausalLM.* score\.weight"),
    "a tokenizer that cannot encode": (cannot_encode, r"not a tokenizer\.json that works \(.*`unk_id` is missing\)"),
    "code": (only(config(**CODE), written("own.py", "raise SystemExit('it ran')")), "contains custom code"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_one_whole_safe_model_is_refused_in_one_line(case: str, copied: Path) -> None:
    change, said = REFUSED[case]
    change(copied)
    with pytest.raises(UserError, match=rf"^[^\n]*({said})[^\n]*$") as caught:
        opened(copied)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("special", [True, False])
def test_entries_that_were_added_beside_the_vocabulary_need_no_logits_if_no_text_has_them(
    special: bool, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|one|>", "<|two|>"], special_tokens=special)
    save(tmp_path, tokenizer=tokenizer, vocab_size=259)
    if special:
        assert opened(tmp_path).model.vocab_size == 259
    else:
        with pytest.raises(UserError, match=r"has the token '<\|two\|>' of ID 260, and the model only 259 tokens"):
            opened(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt-2", "transformer.h.0.attn.masked_bias"), ("gpt-neox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        ("llama", "model.layers.0.attention.bias"), ("llama", "classifier.dense.weight"), ("llama", "score.weight"),
        ("llama", "v_head.summary.weight"), ("llama", "mtp.layers.0.mlp.weight"), ("llama", "visual.blocks.0.attn.qkv.weight"),
        ("llama", "model.vision_tower.patch.weight"), ("llama", "audio_tower.conv1.weight"),
    ],
)  # fmt: skip
def test_weights_that_no_logits_depend_on_are_left_out(
    kind: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, kind)
    weights(lambda state: state.update({name: torch.ones(4)}))(tmp_path)
    transformers.utils.logging.add_handler(caplog.handler)
    try:
        opened(tmp_path)
    finally:
        transformers.utils.logging.remove_handler(caplog.handler)
    assert not caplog.records  # what was left out is told to nobody


@torch.no_grad()
def test_a_configuration_cannot_name_another_attention_or_other_weights(llama: Path, copied: Path) -> None:
    """transformers would fetch the first from the hub, and run it; the second would not be what was hashed."""
    config(attn_implementation="someone/kernel", transformers_weights="other.safetensors")(copied)
    save_file(build_raw("llama", hidden_size=8).state_dict(), copied / "other.safetensors")
    logits, attention = opened(copied).model.logits_and_attention(TOKENS, POSITIONS)
    assert torch.equal(logits, opened(llama).model.logits(TOKENS, POSITIONS)) and attention.shape == (2, 12)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["falcon", "llama", "gpt-oss"])
def test_attention_is_that_which_transformers_returns(kind: str, tmp_path: Path) -> None:
    """Falcon computes its attention itself, and GPT-OSS has sinks: both by the implementation that returns the weights."""
    save(tmp_path, kind)
    logits, attention = opened(tmp_path).model.logits_and_attention(TOKENS, POSITIONS)
    raw = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    output = raw(TOKENS, position_ids=POSITIONS, attention_mask=torch.ones_like(TOKENS), output_attentions=True)
    expected = torch.stack([layer[:, :, -1].mean(dim=1) for layer in output.attentions]).mean(dim=0)
    torch.testing.assert_close(logits, output.logits[:, -1], atol=1e-5, rtol=0)
    torch.testing.assert_close(attention, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("/no/such/folder", {}, r"^pretrained\.model = /no/such/folder: no such folder or file, and no name"),
        ("missing.gguf", {}, r"^pretrained\.model = missing\.gguf: no such folder or file, and no name"),
        (".", {}, r"neither a Hugging Face folder \(config\.json\) nor a \.gguf file"),
        ("mamba/config.json", {}, r"neither a Hugging Face folder \(config\.json\) nor a \.gguf file"),
        ("~nobody-of-this-name/copied", {}, "~nobody-of-this-name/copied: no such folder or file"),
        ("pointer.gguf", {}, r"pointer\.gguf: this is a Git LFS pointer"),
        ("text.gguf", {}, r"text\.gguf: no gguf file \(it begins with b'text'\)"),
        ("damaged.gguf", {}, r"damaged\.gguf: transformers .* cannot load this model"),
        ("mamba", {}, "MambaForCausalLM: .* takes no position IDs"),
        ("~/mamba", {"revision": "main"}, r"revision = main: .* is on disk; only the hub has revisions"),
    ],
)
def test_what_is_no_model(
    name: str, settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path / "mamba", "mamba")
    for file, content in (("pointer", LFS), ("text", b"text"), ("damaged", b"GGUF and then nothing of the kind")):
        (tmp_path / f"{file}.gguf").write_bytes(content)
    with pytest.raises(UserError, match=rf"^[^\n]*{message.lstrip('^')}[^\n]*$"):
        opened(name, **settings)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESPONSE = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co/someone/llama"))
# What models on the hub consist of, and what is never downloaded.
WANTED = "tokenizer.json tokenizer_config.json tokenizer.model special_tokens_map.json added_tokens.json vocab.json vocab.txt "
WANTED += (
    "merges.txt spiece.model tekken.json config.json generation_config.json adapter_config.json model.safetensors "
)
WANTED += "model-00001-of-00002.safetensors model.safetensors.index.json"
OTHERS = "pytorch_model.bin pytorch_model-00001-of-00002.bin pytorch_model.bin.index.json modeling_own.py optimizer.pt "
OTHERS += "training_args.bin model.gguf consolidated.00.pth README.md tf_model.h5 adapter_model.safetensors"


def test_a_model_of_the_hub_is_recorded_with_its_commit(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pickles are not even downloaded; where there is nothing else, that is said, or that the hub cannot tell."""
    snapshot = Path(shutil.copytree(llama, tmp_path / "snapshots" / COMMIT))
    calls: list[Any] = []

    def snapshot_download(name: str, *, revision: Optional[str], allow_patterns: list[str]) -> str:
        calls.append((name, revision))
        every = huggingface_hub.utils.filter_repo_objects(
            [*WANTED.split(), *OTHERS.split()], allow_patterns=allow_patterns
        )
        assert set(every) == set(WANTED.split())
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    found = opened("someone/llama", revision="v1.0")
    assert (found.record.name, found.record.revision, calls) == ("someone/llama", COMMIT, [("someone/llama", "v1.0")])
    (snapshot / "model.safetensors").unlink()
    for listed, said in (
        (lambda *_, **__: ["pytorch_model.bin"], "no safetensors on the hub; .*; choose another revision$"),
        (lambda *_, **__: 1 / 0, "its weights cannot be downloaded from the hub"),
    ):
        monkeypatch.setattr(huggingface_hub, "list_repo_files", listed)
        with pytest.raises(UserError, match=rf"^pretrained\.model = someone/llama: {said}"):
            opened("someone/llama")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            errors.LocalEntryNotFoundError("x\ny"),
            "no such .*; the hub cannot be reached, and its cache does not have this model$",
        ),
        (ConnectionError("x\ny"), r"its weights cannot be downloaded from the hub \(x\)$"),
        (ConnectionError(), r"its weights cannot be downloaded from the hub \(ConnectionError\)$"),
        (
            errors.GatedRepoError("x\ny", response=RESPONSE),
            "the hub gives this model only to accounts that accepted its terms$",
        ),
        (
            errors.RepositoryNotFoundError("x\ny", response=RESPONSE),
            "no such folder or file, and no such model on the hub$",
        ),
        (errors.RevisionNotFoundError("x\ny", response=RESPONSE), "the hub has no such revision of this model$"),
        (errors.HFValidationError("x\ny"), "no such .*, and not a name on the hub$"),
    ],
)
def test_without_the_hub_there_is_one_line(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(UserError, match=rf"^pretrained\.model = someone/llama at revision v2: {message}"):
        opened("someone/llama", revision="v2")
