"""The influence engine against its peers and against the machine's limit, all in one run: ``make bench``.

For every size of model: the loss of each single unmasking of a few windows, by every method in turn, several times over, on
the same windows, threads and weights. Prints medians, their spread, ratios and the share of the measured peak of a matrix
product; writes ``table.json`` and figures. With ``--run`` also what screening and bf16 do to a trained model's numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Optional

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.peers import captum_scores, inseq_occlusion
from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, ModelConfig
from olmo_sparsity.export.conversion import to_transformers
from olmo_sparsity.measure.batch_size import make_evaluator
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import row_losses, short_log_probs, single_losses, surprisal, target_losses
from olmo_sparsity.measure.scores import WindowScores, rank
from olmo_sparsity.measure.screening import ScreeningSettings
from olmo_sparsity.measure.visibility import visible_mask
from olmo_sparsity.measure.window_batch import WindowBatch
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config, with_weights_in

# (model, entries of the vocabulary, local_len, num_long_range, windows). All are OLMo 1, which the peers know, too.
SIZES = {
    "demo": (ModelConfig(d_model=128, n_heads=4, n_layers=2, mlp_ratio=4), 4096, 16, 32, 64),
    "5M": (ModelConfig(d_model=256, n_heads=8, n_layers=5, mlp_ratio=8), 4096, 64, 64, 4),
    "100M": (ModelConfig(d_model=768, n_heads=12, n_layers=8, mlp_ratio=8), 50280, 64, 64, 1),
}
SCREEN = 16
AS_WRITTEN, BATCHED = "captum, 1 a pass", "captum, 64 a pass"
PEAK_CUBE = {"cpu": 2048, "cuda": 8192}
SCALES = {"M": (16, 32, 64, 128, 256), "L": (16, 32, 64, 128, 256), "k": (1, 4, 16, 64), "windows": (1, 2, 4, 8)}


def work(
    model: ModelConfig, vocab_size: int, local_len: int, num_long_range: int, num_windows: int
) -> dict[str, float]:
    """Floating-point operations of all single unmaskings, two for each multiplication and addition of a matrix product.

    ``needed``: what ``olmo_sparsity.compact`` has to do. A row has L local tokens; the layers between the first and the last
    take all of it, the first one is spared the projections of queries, keys and values, the last one needs keys and values
    of all tokens and the rest of the last one; of each candidate all layers once; the vocabulary once a row.
    ``rows``: what rows of L + 1 tokens take that are run as they are; ``masked``: rows of L + M, and logits of all tokens.
    """
    width, layers, hidden = model.d_model, model.n_layers, model.mlp_ratio * model.d_model
    mlp, projections, out = 2 * 1.5 * hidden * width, 2 * 3 * width**2, 2 * width**2
    rows, length = num_windows * num_long_range, local_len
    vocabulary = 2 * vocab_size * width

    def attention(queries: int, keys: int) -> float:
        return 4.0 * width * (queries * keys - queries * (queries - 1) / 2)

    def layer(tokens: int) -> float:
        return tokens * (projections + out + mlp) + attention(tokens, tokens)

    first = length * (out + mlp) + 4 * width * length
    between = (layers - 2) * (length * (projections + out + mlp) + attention(length, length + 1))
    last = length * 2 * 2 * width**2 + 2 * width**2 + out + mlp + attention(1, length + 1)
    alone = layers * (projections + out + mlp)
    local = num_windows * (length * projections + attention(length, length))
    full = length + num_long_range
    return {
        "needed": rows * (first + between + last + alone + vocabulary) + local,
        "rows": rows * (layers * layer(length + 1) + vocabulary),
        "masked": rows * (layers * layer(full) + full * vocabulary),
    }


def _timed(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _peaks(device: torch.device) -> dict[str, Callable[[], Any]]:
    cube = PEAK_CUBE[device.type]
    wide = torch.randn(cube, cube, device=device)
    low = wide.bfloat16()
    return {"peak fp32": lambda: wide @ wide, "peak bf16": lambda: low @ low}


def _random_model(model: ModelConfig, vocab_size: int, full_len: int, device: torch.device) -> OLMoWithPositions:
    """Weights of such a size that attention is no mean and predictions differ: as of a trained model, nearly."""
    config = Config(model=model, context=ContextConfig(local_len=min(16, full_len - 1), full_len=full_len))
    built = (
        build_model(olmo_model_config(config, vocab_size=vocab_size, eos_id=0), seed=0)
        .to(device)
        .eval()
        .requires_grad_(False)
    )
    for parameter in built.parameters():
        parameter.mul_(2.0)
    return built


def compare(name: str, repeats: int, device: torch.device, slow_peers: bool) -> dict[str, Any]:
    """Medians and spreads of every method at one size, interleaved, and how far each is from the masked definition."""
    model, vocab_size, local_len, num_long_range, num_windows = SIZES[name]
    full_len = local_len + num_long_range
    ours = _random_model(model, vocab_size, full_len, device)
    theirs = to_transformers(ours).to(device)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, vocab_size, (num_windows, full_len), generator=generator).to(device)
    targets = torch.randint(1, vocab_size, (num_windows,), generator=generator).to(device)
    everything = torch.arange(num_long_range, device=device).expand(num_windows, -1)
    settings = InfluenceConfig()
    exact = make_evaluator(ours, settings, full_len=full_len, local_len=local_len)
    low = Evaluator(with_weights_in(ours, torch.bfloat16), local_len, batch_tokens=exact.batch_tokens)
    windows = WindowBatch(tokens, targets, window_ids_W=np.arange(num_windows), context="real", seed=0)
    loss_short = surprisal(short_log_probs(exact, tokens), targets)[:, None]

    def singles(evaluator: Evaluator) -> torch.Tensor:
        return single_losses(evaluator, tokens, targets_W=targets, candidates_WJ=everything)[0]

    def screened(ranking: str) -> torch.Tensor:
        scores = WindowScores(
            exact,
            windows,
            log_p_short_WV=short_log_probs(exact, tokens),
            max_k=8,
            screening=ScreeningSettings(SCREEN, ranking=ranking, ranker=low),
        )
        return torch.from_numpy(scores.loss_single_WM)

    @torch.inference_mode()
    def masked_all_logits() -> torch.Tensor:
        """The masked path as one would write it: every token's logits, one window's candidates a pass."""
        visible_MT = visible_mask(everything[0, :, None], full_len, local_len=local_len)
        itself = torch.eye(full_len, dtype=torch.bool, device=device)
        allowed = (visible_MT[:, None, :] & torch.ones_like(itself).tril()) | itself
        positions = torch.arange(full_len, device=device).expand(num_long_range, -1)
        losses = []
        for w in range(num_windows):
            logits = ours(tokens[w].expand(num_long_range, -1), positions, attention_bias=allowed[:, None])
            losses.append(-logits[:, -1, :vocab_size].float().log_softmax(dim=-1)[:, targets[w]])
        return torch.stack(losses)

    def captum(at_once: int, last_logits_only: bool) -> torch.Tensor:
        scores = [
            captum_scores(theirs, tokens[w], int(targets[w]), num_long_range, at_once, last_logits_only)
            for w in range(num_windows)
        ]
        return loss_short - torch.stack(scores)

    methods: dict[str, Callable[[], Any]] = {
        "compact, fp32": lambda: singles(exact),
        f"screened to {SCREEN} by gradient in bf16, fp32": lambda: screened("gradient"),
        f"screened to {SCREEN} by all in bf16, fp32": lambda: screened("unmask-one"),
        "compact, bf16": lambda: singles(low),
        "plain, fp32": lambda: singles(Evaluator(ours, local_len, path="plain", batch_tokens=exact.batch_tokens)),
        "masked, fp32, all logits": masked_all_logits,
        BATCHED: lambda: captum(64, False),
        f"{BATCHED}, last logits only": lambda: captum(64, True),
    }
    if slow_peers:
        methods[AS_WRITTEN] = lambda: captum(1, False)
        occlusion = inseq_occlusion(theirs, vocab_size)
        methods["inseq occlusion (another quantity)"] = lambda: [
            occlusion(tokens[w], int(targets[w])) for w in range(num_windows)
        ]
    peaks = _peaks(device)
    definition = target_losses(
        Evaluator(ours, local_len, path="masked", batch_tokens=exact.batch_tokens),
        tokens,
        targets_W=targets,
        visible_WNS=everything[:, :, None],
    )[0]
    difference: dict[str, Optional[float]] = {}
    for method, call in methods.items():  # which warms it up, too
        losses = call()
        if isinstance(losses, torch.Tensor):
            known = ~losses.isnan()
            difference[method] = float((losses - definition.to(losses.device))[known].abs().max())
        else:
            difference[method] = None
    times: dict[str, list[float]] = {key: [] for key in (*methods, *peaks)}
    for _ in range(repeats):
        for method, call in {**methods, **peaks}.items():
            times[method].append(_timed(call, device))
    per_second = {key: 2 * PEAK_CUBE[device.type] ** 3 / median(times.pop(key)) for key in peaks}
    return {
        "size": name,
        "num_parameters": sum(parameter.numel() for parameter in ours.parameters()),
        "local_len": local_len,
        "num_long_range": num_long_range,
        "vocab_size": vocab_size,
        "num_windows": num_windows,
        "batch_tokens": exact.batch_tokens,
        "seconds": times,
        "difference_nats": difference,
        "operations": work(model, vocab_size, local_len, num_long_range, num_windows),
        "peak_per_second": per_second,
    }


def shares(found: dict[str, Any]) -> dict[str, float]:
    """Share of the measured peak, of the methods whose work is counted."""
    counted = {
        "compact, fp32": ("needed", "peak fp32"),
        "compact, bf16": ("needed", "peak bf16"),
        "plain, fp32": ("rows", "peak fp32"),
        "masked, fp32, all logits": ("masked", "peak fp32"),
    }
    return {
        method: found["operations"][of] / median(found["seconds"][method]) / found["peak_per_second"][peak]
        for method, (of, peak) in counted.items()
    }


def comparison_table(found: dict[str, Any]) -> Table:
    """One size, a row a method."""
    captum = median(found["seconds"][BATCHED])
    share = shares(found)
    peaks = ", ".join(f"{key} {value / 1e9:,.0f} GFLOP/s" for key, value in found["peak_per_second"].items())
    operations = ", ".join(f"{key} {value / 1e9:,.1f}" for key, value in found["operations"].items())
    table = Table(
        "method", "median s", "min - max", "times captum, 64 a pass", "share of peak", "max difference, nats",
        title=f"{found['size']}: {found['num_parameters'] / 1e6:.1f}M parameters, L {found['local_len']}, "
        f"M {found['num_long_range']}, {found['num_windows']} windows",
        caption=f"{peaks}; operations, GFLOP: {operations}; passes of {found['batch_tokens']} tokens",
    )  # fmt: skip
    for method, seconds in found["seconds"].items():
        table.add_row(
            method,
            f"{median(seconds):.3f}",
            f"{min(seconds):.3f} - {max(seconds):.3f}",
            f"{captum / median(seconds):.2f}",
            f"{share[method]:.2f}" if method in share else "-",
            "another quantity"
            if found["difference_nats"][method] is None
            else f"{found['difference_nats'][method]:.1e}",
        )
    return table


def scaling(repeats: int, device: torch.device) -> dict[str, Any]:
    """Seconds of the 5M model's single unmaskings against M, L and windows, and of one set of k a window against k; with
    the exponent, the slope of the logarithms."""
    model, vocab_size, *_ = SIZES["5M"]
    ours = _random_model(model, vocab_size, 512, device)
    found = {}
    for name, values in SCALES.items():
        calls: dict[int, Callable[[], Any]] = {}
        for value in values:
            sizes = {"M": 64, "L": 64, "k": 1, "windows": 1, name: value}
            num_windows = 64 if name == "k" else sizes["windows"]
            tokens = torch.randint(1, vocab_size, (num_windows, sizes["L"] + sizes["M"]), device=device)
            evaluator = make_evaluator(ours, InfluenceConfig(), full_len=tokens.shape[1], local_len=sizes["L"])
            every = torch.arange(sizes["M"], device=device).expand(num_windows, -1)
            if name == "k":
                calls[value] = partial(
                    row_losses,
                    evaluator,
                    tokens,
                    targets_W=tokens[:, 0],
                    windows_R=torch.arange(num_windows, device=device),
                    visible_RS=every[:, :value],
                )
            else:
                calls[value] = partial(single_losses, evaluator, tokens, targets_W=tokens[:, 0], candidates_WJ=every)
        for call in calls.values():
            call()
        times: dict[int, list[float]] = {value: [] for value in values}
        for _ in range(repeats):
            for value, call in calls.items():
                times[value].append(_timed(call, device))
        medians = [median(times[value]) for value in values]
        exponent = float(np.polyfit(np.log(values), np.log(medians), 1)[0])
        found[name] = {"values": list(values), "seconds": medians, "exponent": exponent}
    return found


def of_a_trained_run(run: Path, num_windows: int) -> dict[str, Any]:
    """What screening and bf16 do to the numbers of a trained model, on its held-out text."""
    from olmo_sparsity.config.files import load_config
    from olmo_sparsity.measure.opened_run import open_run

    config = load_config(run / "config.yaml", [f"influence.num_windows={num_windows}"])
    lengths = config.context
    opened_run = open_run(config, run)
    windows = opened_run.windows(config, lengths.full_len)
    num_windows = len(windows)
    rows_WT = torch.from_numpy(windows.tokens(np.arange(num_windows))).to(opened_run.device)  # the target last
    tokens_WT, targets_W = rows_WT[:, :-1].contiguous(), rows_WT[:, -1].contiguous()
    batch = WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(num_windows), context="real", seed=0)
    exact, low = (
        make_evaluator(
            opened_run.model,
            config.influence,
            full_len=lengths.full_len,
            local_len=lengths.local_len,
            precision=precision,
        )
        for precision in ("fp32", "bf16")
    )

    def scores_of(evaluator: Evaluator, screening: Optional[ScreeningSettings] = None) -> WindowScores:
        log_p_short_WV = short_log_probs(evaluator, tokens_WT)
        return WindowScores(evaluator, batch, log_p_short_WV=log_p_short_WV, max_k=8, with_kl=True, screening=screening)

    fine, coarse = scores_of(exact), scores_of(low)
    best_WM = {"loss_single": rank(-fine.loss_single_WM), "kl_single": rank(-fine.kl_single_WM)}
    best_of_low_WM = {"loss_single": rank(-coarse.loss_single_WM), "kl_single": rank(-coarse.kl_single_WM)}
    at = np.arange(num_windows)[:, None]
    recall: dict[str, Any] = {}
    for ranking in ("gradient", "unmask-one"):
        num_candidates = min(SCREEN, fine.num_long_range)
        screened = scores_of(exact, ScreeningSettings(num_candidates, ranking=ranking, ranker=low))
        screened_WM = {"loss_single": screened.loss_single_WM, "kl_single": screened.kl_single_WM}
        recall[ranking] = {
            f"{name} k={k}": float(np.isfinite(screened_WM[name])[at, best_WM[name][:, :k]].mean())
            for name in best_WM
            for k in (1, 8)
        }
    error_WM = coarse.loss_single_WM - fine.loss_single_WM
    overlap = {
        name: np.mean(
            [len({*a} & {*b}) / 8 for a, b in zip(best_WM[name][:, :8], best_of_low_WM[name][:, :8], strict=True)]
        )
        for name in best_WM
    }
    return {
        "run": run.name,
        "num_windows": num_windows,
        "recall_at_screen": recall,
        "bf16": {
            "loss_single mean error, nats": float(error_WM.mean()),
            "loss_single mean |error|, nats": float(np.abs(error_WM).mean()),
            "spread of loss_single over candidates, nats": float(fine.loss_single_WM.std(axis=1).mean()),
            "long gain, fp32": float((fine.loss_short_W - fine.loss_long_W).mean()),
            "long gain, bf16": float((coarse.loss_short_W - coarse.loss_long_W).mean()),
            **{f"overlap of J_8, {name}": float(value) for name, value in overlap.items()},
        },
    }


def draw(results: list[dict[str, Any]], scale: Optional[dict[str, Any]], out: Path) -> None:
    """Two figures: the methods of each size, and the cost against each length."""
    figure, axes = plt.subplots(1, len(results), figsize=(4.6 * len(results), 3.6), layout="constrained", squeeze=False)
    for axis, found in zip(axes[0], results, strict=True):
        seconds = found["seconds"]
        captum = median(seconds[BATCHED])
        names = sorted(seconds, key=lambda name: -median(seconds[name]))
        medians = [median(seconds[name]) for name in names]
        low = [m - min(seconds[name]) for m, name in zip(medians, names, strict=True)]
        high = [max(seconds[name]) - m for m, name in zip(medians, names, strict=True)]
        colors = [
            "#0072B2" if name.split(",")[0].split(" ")[0] in ("compact", "screened") else "#999999" for name in names
        ]
        axis.barh(names, medians, xerr=[low, high], color=colors, error_kw={"linewidth": 0.8})
        for i, value in enumerate(medians):
            axis.text(max(value, value + high[i]) * 1.08, i, f"{captum / value:.1f}x", va="center", fontsize=7)
        axis.set_xscale("log")
        axis.set_xlim(right=max(medians) * 3)
        axis.set_xlabel("seconds (median, min to max)")
        axis.set_title(f"{found['size']}: {found['num_parameters'] / 1e6:.1f}M parameters", fontsize=9)
        axis.tick_params(labelsize=7)
    figure.suptitle(
        "All single unmaskings of the same windows; right of each bar: times as fast as captum, 64 a pass", fontsize=9
    )
    _save(figure, out / "methods")
    if scale is None:
        return
    figure, axis = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
    looks = zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7"), "osD^", strict=True)
    for (name, of), (color, marker) in zip(scale.items(), looks, strict=True):
        axis.loglog(
            of["values"], of["seconds"], marker=marker, color=color, label=f"{name}: exponent {of['exponent']:.2f}"
        )
    axis.set_xlabel("M, L (the other 64), k, or windows (M = L = 64)")
    axis.set_ylabel("seconds")
    axis.legend(fontsize=7)
    axis.set_title("Cost of the 5M model's single unmaskings; of k: of 64 sets", fontsize=9)
    _save(figure, out / "scaling")


def _save(figure: Any, path: Path) -> None:
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=SIZES, help="may be given again; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--run", type=Path, help="a trained run, for recall and the error of bf16")
    parser.add_argument("--num-windows", type=int, default=1000, help="windows of --run")
    parser.add_argument(
        "--fast", action="store_true", help="leave out what is slow: single captum passes, inseq, scaling"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    console = Console(width=160)
    arguments.out.mkdir(parents=True, exist_ok=True)
    console.print(f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    results = []
    for name in arguments.size or SIZES:
        results.append(compare(name, arguments.repeats, device, not arguments.fast))
        console.print(comparison_table(results[-1]))
    scale = None if arguments.fast else scaling(arguments.repeats, device)
    if scale is not None:
        console.print("cost grows with " + ", ".join(f"{name}^{of['exponent']:.2f}" for name, of in scale.items()))
    trained = None if arguments.run is None else of_a_trained_run(arguments.run, arguments.num_windows)
    if trained is not None:
        console.print_json(json.dumps(trained))
    (arguments.out / "table.json").write_text(
        json.dumps({"device": device_name(device), "sizes": results, "scaling": scale, "trained": trained}, indent=2)
    )
    draw(results, scale, arguments.out)
    console.print(f"{arguments.out}: table.json, methods.png, scaling.png")


if __name__ == "__main__":
    main()
