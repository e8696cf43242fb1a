"""What a window costs against its number of long-range tokens M: tokens that the model runs, seconds, and memory.

    python -m benchmarks.long_windows --out FOLDER [--model MODEL] [--sizes 64 128 ...] [--visibility contextual]

Prints a table, and writes ``long_windows.json``: for each question about one window of random tokens, its numbers at every M and
their exponents (the slope of the logarithms over the larger half of the sizes). A size that is already in the file is not
measured again, so that a run can be stopped and continued; a file of another model or setting is refused. Without ``--model`` the
model is a small Llama with random weights.
"""

from __future__ import annotations

import argparse
import json
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.results import check_results, check_same_setting, mistakes_in_one_line
from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import all_but_one_losses, gate_gradients, single_losses
from olmo_sparsity.measure.visible.passes import Rows
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.model.pretrained import open_pretrained
from olmo_sparsity.model.transformers_model import TransformersModel
from olmo_sparsity.progress import listening
from olmo_sparsity.storage.files import read_json, write_json

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8128)
QUADRATIC_UP_TO = 1024  # long-range tokens up to which mask-one is measured
RANDOM = "random"  # in place of the hash of weights
MEASURED = ("tokens", "seconds", "peak_bytes", "largest_bytes")
Question = Callable[[Evaluator, torch.Tensor], torch.Tensor]


class TensorMemory(TorchDispatchMode):
    """Records the memory of the tensors that are made in its context; the model's weights are not.

    Attributes:
        largest: bytes of the largest tensor.
        peak: bytes of all that lived at once, at most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.peak = 0
        self._living: dict[int, int] = {}  # bytes by the address of the storage, which several tensors may share

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given:  # a view of what was given is no new memory
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        address, num_bytes = storage._cdata, storage.nbytes()
        if address not in self._living:
            self._living[address] = num_bytes
            weakref.finalize(storage, self._living.pop, address, None)
            self.largest = max(self.largest, num_bytes)
            self.peak = max(self.peak, sum(self._living.values()))


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def unmask_one(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return loss({j}) of the first token for every long-range position, fp32 [W, M]."""
    all_WM = torch.arange(tokens_WT.shape[1] - evaluator.local_len).expand(len(tokens_WT), -1)
    return single_losses(evaluator, tokens_WT, targets_W=tokens_WT[:, 0], candidates_WJ=all_WM)[0]


def mask_one(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return loss(all but j) of the first token for every long-range position, fp32 [W, M]."""
    return all_but_one_losses(evaluator, tokens_WT, labels_WA=tokens_WT[:, :1])[:, :, 0]


def gradient(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return the derivatives by the gates of all long-range positions, fp32 [W, M]."""

    def loss(rows: Rows, logits_wV: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits_wV, tokens_WT[rows, 0], reduction="sum")

    return gate_gradients(evaluator, tokens_WT, loss_function=loss)


QUESTIONS: dict[str, Question] = {"unmask-one": unmask_one, "mask-one": mask_one, "gradient": gradient}


def measure(question: Question, evaluator: Evaluator, num_long_range: int) -> dict[str, float]:
    """Return tokens, seconds and bytes of a question about one window of random tokens.

    Seconds are CPU time of a run of its own: recording tensors takes time, and other work of the machine does not count.
    """
    generator = torch.Generator().manual_seed(num_long_range)
    shape = (1, num_long_range + evaluator.local_len)
    tokens_WT = torch.randint(0, evaluator.model.vocab_size, shape, generator=generator).to(evaluator.model.device)
    ran: list[int] = []
    with listening(ran.append), TensorMemory() as memory:
        question(evaluator, tokens_WT)
    evaluator.kept_prefixes.clear()
    begin = time.process_time()
    question(evaluator, tokens_WT)
    seconds = time.process_time() - begin
    evaluator.kept_prefixes.clear()
    return {
        "tokens": sum(ran),
        "seconds": seconds,
        "peak_bytes": memory.peak,
        "largest_bytes": memory.largest,
    }


def exponents(found: dict[int, dict[str, float]]) -> dict[str, float]:
    """Return the slope of log(number) against log(M) over the larger half of the sizes; none for fewer than two sizes."""
    sizes = sorted(found)[len(found) // 2 :] if len(found) > 3 else sorted(found)
    if len(sizes) < 2:
        return {}
    return {
        name: float(np.polyfit(np.log(sizes), np.log([found[size][name] for size in sizes]), 1)[0]) for name in MEASURED
    }


def run(evaluator: Evaluator, out: Path, *, weights: str, sizes: list[int], quadratic_up_to: int) -> dict[str, Any]:
    """Measure every question at every size that ``out`` lacks, writing after each; return all numbers and exponents.

    Args:
        evaluator: the model.
        out: the folder.
        weights: hash of the model's weights, or RANDOM.
        sizes: numbers of long-range tokens.
        quadratic_up_to: long-range tokens up to which mask-one is measured.

    Raises:
        UserError: what ``out`` holds was measured in another setting.
    """
    setting = {
        "weights": weights,
        "local_len": evaluator.local_len,
        "visibility": evaluator.visibility,
        "anchor": evaluator.num_anchors,
        "batch_tokens": evaluator.batch_tokens,
        "vocab_size": evaluator.model.vocab_size,
        "measured": list(MEASURED),
    }
    path = out / "long_windows.json"
    known: dict[str, Any] = read_json(path) if path.exists() else {"setting": setting, "questions": {}}
    check_same_setting(
        known["setting"], setting, where=str(path), advice="choose another --out folder, or delete the file"
    )
    questions = known["questions"]
    found = {name: {int(size): values for size, values in questions.get(name, {}).items()} for name in QUESTIONS}
    out.mkdir(parents=True, exist_ok=True)
    for size in sizes:
        for name, question in QUESTIONS.items():
            if size not in found[name] and (name != "mask-one" or size <= quadratic_up_to):
                found[name][size] = measure(question, evaluator, size)
                write_json(path, {"setting": setting, "questions": found})
    result = {"setting": setting, "questions": found, "exponents": {name: exponents(found[name]) for name in found}}
    write_json(path, result)
    return result


def small_model(max_position: int) -> CausalModel:
    """Return a Llama of 0.6M parameters with random weights."""
    config = transformers.LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_position,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TransformersModel(transformers.LlamaForCausalLM(config))


def _measured(given: argparse.Namespace) -> dict[str, Any]:
    if min(*given.sizes, given.local_len) < 1:
        raise UserError("--sizes, --local-len: a window has at least one long-range and one local token")
    if given.model is None:
        model, weights = small_model(max(given.sizes) + given.local_len), RANDOM
    else:
        opened = open_pretrained(PretrainedConfig(given.model), device=torch.device("cpu"), precision="fp32")
        model, weights = opened.model, opened.record.weights_sha256
    evaluator = Evaluator(model, given.local_len, batch_tokens=1024, visibility=given.visibility)
    return run(evaluator, given.out, weights=weights, sizes=given.sizes, quadratic_up_to=given.mask_one_up_to)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--model", help="in the form of pretrained.model")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of long-range tokens")
    parser.add_argument("--local-len", type=int, default=64)
    parser.add_argument("--visibility", choices=["hidden", "contextual"], default="hidden")
    parser.add_argument("--mask-one-up-to", type=int, default=QUADRATIC_UP_TO)
    given = parser.parse_args()
    check_results(given.out, "long_windows.json")
    torch.set_num_threads(1)
    with mistakes_in_one_line():
        result = _measured(given)
    print(json.dumps(result["setting"]))
    print(f"{'':12}{'M':>6}{'tokens':>12}{'CPU s':>10}{'all tensors, KiB':>20}{'largest tensor, KiB':>22}")
    for name, found in result["questions"].items():
        for size, values in sorted(found.items()):
            peak, largest = values["peak_bytes"] / 1024, values["largest_bytes"] / 1024
            print(f"{name:12}{size:6}{values['tokens']:12,}{values['seconds']:10.2f}{peak:20,.0f}{largest:22,.0f}")
        slopes = ", ".join(f"{key} {value:.2f}" for key, value in result["exponents"][name].items())
        print(f"{name:12}exponents: {slopes}")


if __name__ == "__main__":
    main()
