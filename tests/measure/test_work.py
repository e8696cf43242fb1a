"""The size of parts by work, progress within a part, and a kill at a long window."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_windows
import torch
from conftest import Messages
from tiny_models import NORMED, build
from tiny_pretrained import save_llama
from tqdm import tqdm

from olmo_sparsity.config import Config, InfluenceConfig, PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure import influence, measurement
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.measurement import WithinPart
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import gate_gradients
from olmo_sparsity.measure.work import (
    TOKENS_PER_PART,
    WHOLE,
    Share,
    num_evaluations,
    part_size,
    share_of_process,
    tokens_of_influence,
)
from olmo_sparsity.progress import listening, tokens_ran
from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.selectors import ALL_SELECTORS, SELECTORS
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.parts import part_path
from olmo_sparsity.tables.schemas import schemas

LONG = 300  # tokens of a window of a model whose windows else have 20


def lengths(num_long_range: int, local_len: int = 64) -> MeasuredLengths:
    return MeasuredLengths(local_len, local_len + num_long_range, None, None, num_long_range)


def test_a_part_has_fewer_windows_where_windows_take_more() -> None:
    assert part_size(256, 100) == 256
    assert part_size(256, TOKENS_PER_PART // 7) == 7
    assert part_size(256, TOKENS_PER_PART * 9) == 1
    settings = InfluenceConfig(selectors=["unmask-one", "kl"], resampled_draws=0)
    sizes = [part_size(256, tokens_of_influence(settings, lengths(num))) for num in (64, 512, 4096, 8128)]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0] > 30, sizes[-1]) == (True, 1)


@pytest.fixture(scope="module")
def config(corpus_file: Path, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A tiny Llama, to be measured on windows of 300 tokens of one long text."""
    folder = tmp_path_factory.mktemp("long")
    texts = [json.loads(line)["text"] for line in corpus_file.open()]
    save_llama(folder / "model", texts, max_position=LONG + 1)
    (folder / "long.jsonl").write_text("".join(json.dumps({"text": " ".join(texts[i::2])}) + "\n" for i in range(2)))
    settings = dataclasses.replace(
        tiny_config.influence,
        num_windows=3,
        full_len=LONG,
        data=str(folder / "long.jsonl"),
        selectors=["unmask-one", "kl", "random"],
        k=[1, 4],
        resampled_draws=0,
    )
    return dataclasses.replace(tiny_config, pretrained=PretrainedConfig(str(folder / "model")), influence=settings)


def test_every_selector_is_counted() -> None:
    one = [tokens_of_influence(InfluenceConfig(selectors=[name]), lengths(64)) for name in ALL_SELECTORS]
    least = min(one)
    assert {name for name, tokens in zip(ALL_SELECTORS, one, strict=True) if tokens == least} == {
        "attention",
        "random",
        "nearest",
    }
    every = tokens_of_influence(InfluenceConfig(selectors=list(ALL_SELECTORS)), lengths(64))
    assert max(one) < every < sum(one)


LOCAL, MANY, KS = 7, 20, [1, 3, 20]  # of the last no set is run: all tokens are visible


def tokens_of(**keys: Any) -> int:
    given: dict[str, Any] = {"selectors": ["kl", "unmask-one", "mask-one", "random"], "k": KS, "resampled_draws": 0}
    return tokens_of_influence(InfluenceConfig(**(given | keys)), lengths(MANY, LOCAL))


def of_sets(visibility: str) -> int:
    """The tokens of the sets that one selector chooses, of the sizes 1 and 3."""
    return 2 * LOCAL + (1 + 3 if visibility == "hidden" else 0)


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_what_each_part_of_a_measurement_runs(visibility: str) -> None:
    """Row by row; what is added by drawn labels is the difference to a measurement without them."""
    singles, rows = MANY * (LOCAL + 1), of_sets(visibility)
    mask_one = (
        sum(LOCAL + MANY - j for j in range(MANY)) - MANY // 2
    )  # what is behind each hidden token, and the token's place
    long = LOCAL + MANY if visibility == "hidden" else MANY + LOCAL
    latest = [2, 3, 4, 6, LOCAL, 8, 12, 16, 24]  # up to 27; all tokens are L_long
    base = LOCAL + sum(latest) + 2 * (singles + long)  # L_short; under each context the single tokens and L_long
    assert tokens_of(visibility=visibility, selectors=["unmask-one"]) == base + 2 * rows
    assert tokens_of(visibility=visibility, selectors=["random"]) == base + 2 * (rows - singles)
    blind = tokens_of(visibility=visibility, selectors=["unmask-one", "random"])
    assert blind == base + 2 * 2 * rows
    assert tokens_of(visibility=visibility, selectors=["kl", "random"]) == blind
    every = tokens_of(visibility=visibility)
    assert every == blind + 2 * rows + 2 * (rows + mask_one)
    for draws in (1, 3):  # of which one is drawn under the null context, too; by the two selectors that see the target
        more = tokens_of(visibility=visibility, resampled_draws=draws) - every
        assert more == (draws + 1) * (2 * rows + mask_one)
    if visibility == "contextual":  # one pass over the window serves all policies
        policies = [
            tokens_of(visibility=visibility, selectors=["random", *of_cache])
            for of_cache in ([], ["h2o"], ["h2o", "snapkv"])
        ]
        assert np.diff(policies).tolist() == [2 * (LOCAL + MANY + rows), 2 * rows]


@pytest.mark.parametrize("path", ["compact", "plain", "masked"])
@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_what_the_scores_of_each_selector_run(visibility: str, path: str) -> None:
    """Row by row, beyond what all of them share; forward selection takes as many steps as the largest k."""
    far = MANY if visibility == "hidden" else 0
    but_one = [LOCAL + MANY - j for j in range(MANY)]
    steps = [[LOCAL + len({*range(taken), j}) for j in range(taken, MANY)] for taken in range(3)]
    expected = {
        "gradient": far + LOCAL + 2 * LOCAL,  # a backward pass takes as much as two forward passes
        "attention": 0 if path == "compact" else LOCAL + MANY,
        "mask-one": MANY * (LOCAL + MANY) if path == "masked" else sum(but_one) - MANY // 2,
        "greedy": sum(map(sum, steps)),
        "greedy-kl": sum(map(sum, steps)),
        "lasso": 12 * (LOCAL + MANY // 2),
        "nearest": 0,
        "bm25": 0,
    }
    given: dict[str, Any] = {"visibility": visibility, "path": path, "k": [1, 3], "lasso_masks": 12}
    without = tokens_of(selectors=["random"], **given)
    for name, tokens in expected.items():
        more = tokens_of(selectors=["random", name], **given) - without
        assert more == 2 * (tokens + of_sets(visibility)), name


@pytest.mark.parametrize(("path", "anchor_id"), [("compact", None), ("compact", 1), ("masked", None), ("masked", 1)])
@pytest.mark.parametrize("num_losses", [1, 2])
def test_what_gradients_run(path: str, anchor_id: Optional[int], num_losses: int) -> None:
    """Each loss goes backward, which takes as much as two passes forward, through the local tokens or, under a mask, all."""
    tokens_WT, _ = tiny_windows.windows(3)
    front = 0 if anchor_id is None else 1

    def losses(_: slice, logits_wV: torch.Tensor) -> torch.Tensor:
        return logits_wV[:, :num_losses].sum(dim=0).squeeze()

    ran: list[int] = []
    with listening(ran.append):
        evaluator = Evaluator(build(NORMED).eval(), tiny_windows.LOCAL, path=path, anchor_id=anchor_id)
        gate_gradients(evaluator, tokens_WT, loss_function=losses)
    times = 1 + 2 * num_losses
    far = front + tiny_windows.M  # whose keys and values are computed once, for all losses
    of_window = times * (front + tiny_windows.FULL) if path == "masked" else times * tiny_windows.LOCAL + far
    assert sum(ran) == 3 * of_window


def test_what_each_selector_costs() -> None:
    """In passes over one row, of 9 groups at k up to 4; a label that is not seen takes a pass for the prediction."""
    settings = InfluenceConfig(k=[1, 4], lasso_masks=12)
    cost = {name: num_evaluations(name, 9, settings=settings) for name in SELECTORS}
    of_selection = 9 + 8 + 7 + 6
    expected = {
        "unmask-one": 9 + 1, "kl": 9 + 2, "gradient": 3, "attention": 1, "random": 0, "nearest": 0, "mask-one": 9 + 1,
        "greedy": of_selection, "greedy-kl": of_selection + 1, "greedy-patching": 3 * 3 + 1, "lasso": 12, "streaming-llm": 0,
        **dict.fromkeys(["same-token", "rarest", "bm25", "sentence-start"], 0),
        **dict.fromkeys(["h2o", "snapkv", "key-norm", "quest"], 1),
    }  # fmt: skip
    assert cost == expected


def test_evaluations_of_windows_with_fewer_groups_than_are_asked_for() -> None:
    def cost(name: str, num_groups: int, **keys: Any) -> int:
        return num_evaluations(name, num_groups, settings=InfluenceConfig(k=[1, 5], **keys))

    assert [cost("greedy", num) for num in (3, 5, 9)] == [3 + 2 + 1, 5 + 4 + 3 + 2 + 1, 9 + 8 + 7 + 6 + 5]


@pytest.mark.parametrize(("shards", "processes"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_every_part_is_in_one_share(shards: int, processes: int) -> None:
    """Shards of machines, each with processes of torchrun; the parts of a share leave the same number when divided."""
    owners: dict[int, int] = {}
    for shard, rank in itertools.product(range(shards), range(processes)):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(processes)} if processes > 1 else {}
        named = f"{shard}/{shards}" if shards > 1 else None
        share = share_of_process(named, overwrite=False, variables=variables)
        assert share == Share(shard * processes + rank, shards * processes, is_leader=rank == 0)
        for part in range(share.index, 40, share.count):
            assert owners.setdefault(part, share.index) == share.index
        if shards * processes > 1:
            with pytest.raises(UserError, match=f"--overwrite: with {shards * processes} processes"):
                share_of_process(named, overwrite=True, variables=variables)
        else:
            assert share_of_process(named, overwrite=True, variables=variables) == share
    assert set(owners) == set(range(40))


def test_shares_measure_their_parts_and_a_rerun_what_is_missing(
    tmp_path: Path, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts keep the size that a measurement was begun with. Who measures nothing writes no session."""
    folder, asked = tmp_path / "tables", []
    manifest = {
        "kind": "influence", "run_id": "0", "run": "run", "source": "text", "split": "validation", "num_windows": 11,
        "num_documents": 11, "context": {"local_len": 8, "full_len": 24, "num_long_range": 16, "train_len": None},
        "tokens_sha256": "t", "windows_sha256": "w", "device": "a GPU",
    }  # fmt: skip

    def measure_part(window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        asked.append(window_ids_W.tolist())
        rows = [{"window_id": window} for window in window_ids_W.tolist()]
        schema = schemas(16)
        windows = pa.Table.from_pylist(rows, schema=schema["windows"])
        return {"windows": windows, "selections": schema["selections"].empty_table()}

    def run(part_size: int, share: Share = WHOLE, **options: bool) -> list[list[int]]:
        asked.clear()
        measurement.measure_parts(
            folder, manifest, part_size=part_size, measure_part=measure_part, share=share, **options
        )
        return list(asked)

    def shares() -> list[str]:
        return sorted(read_json(path)["share"] for path in (folder / "sessions").glob("*.json"))

    monkeypatch.setattr(measurement, "environment", lambda: {"commit": "c"})
    began = datetime.now(timezone.utc)
    assert run(3, Share(1, 2)) == [[3, 4, 5], [9, 10]]
    (session,) = (read_json(path) for path in (folder / "sessions").iterdir())
    assert began <= datetime.fromisoformat(session.pop("started")) <= datetime.now(timezone.utc)
    assert session == {"share": "1/2", "device": "a GPU", "environment": {"commit": "c"}}
    metadata = pq.read_schema(part_path(folder, "windows", part=1)).metadata
    facts = {name: metadata[name.encode()].decode() for name in ("run_id", "local_len", "full_len", "num_long_range")}
    assert facts == {"run_id": "0", "local_len": "8", "full_len": "24", "num_long_range": "16"}
    assert b"train_len" not in metadata  # which is not known
    assert run(3, Share(1, 2)) == [] and shares() == ["1/2"]
    assert read_json(folder / "manifest.json")["status"] == "running"
    assert run(5) == [[0, 1, 2], [6, 7, 8]] and shares() == ["0/1", "1/2"]
    done = read_json(folder / "manifest.json")
    assert (done["status"], done["num_parts"], done["windows_per_part"]) == ("complete", 4, 3)
    part_path(folder, "windows", part=2).unlink()
    assert run(3, Share(0, 2)) == [[6, 7, 8]] and shares() == ["0/1", "0/2", "1/2"]
    messages.clear()
    assert run(6, overwrite=True) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10]] and shares() == ["0/1"]
    assert messages[0] == f"{folder}: deleting its tables (--overwrite)"


@pytest.mark.parametrize("shard", ["2/2", "3/2", "0/0", "1", "1/2/3", "-1/2", "1/2 ", "1234567890/1234567891"])
def test_what_is_no_share(shard: str) -> None:
    with pytest.raises(UserError, match=f"^--shard {shard}: must be I/N, with I from 0 to N - 1"):
        share_of_process(shard, overwrite=False, variables={})


def test_a_bar_moves_within_a_part_and_ends_with_it() -> None:
    bar: Any = tqdm(total=4, disable=True)
    bar.update = functools.partial(moved, bar)
    within = WithinPart(bar, 2, 100)
    seen = []
    for _ in range(30):  # more than was expected
        within.tokens_ran(10)
        seen.append(bar.n)
    assert seen[:3] == [0.1, 0.2, 0.3]
    assert seen == sorted(seen)
    assert seen[-1] == 1.99  # the end is for the part that is written
    within.finish()
    assert bar.n == 2
    assert within.tokens_per_window == 150  # what it took
    many = WithinPart(bar, 200, 10)
    many.tokens_ran(57)
    assert bar.n == 7  # whole windows where there are many
    unknown = WithinPart(bar, 2, None)
    unknown.tokens_ran(10**6)
    assert bar.n == 7
    unknown.finish()
    assert bar.n == 9


@pytest.mark.parametrize(("num", "step"), [(9, 0.01), (10, 0.1), (99, 0.1), (100, 1), (101, 1)])
def test_a_bar_moves_by_steps_of_about_a_thousandth_of_a_part(num: int, step: float) -> None:
    bar: Any = tqdm(total=num, disable=True)
    bar.update = functools.partial(moved, bar)
    within, seen = WithinPart(bar, num, 1000), set()
    for _ in range(1250):
        within.tokens_ran(1)
        seen.add(bar.n)
    assert min(seen - {0}) == pytest.approx(step) and 1.25 - step - 1e-6 < max(seen) <= 1.25
    few = WithinPart(bar, num, 1000)
    few.tokens_ran(num - 1)
    few.finish()
    assert few.tokens_per_window == 1  # none takes less


def moved(bar: Any, num: float) -> None:
    """What ``tqdm.update`` does to the count of a bar that is shown."""
    bar.n += num


def test_nobody_needs_to_listen() -> None:
    tokens_ran(5)
    heard: list[int] = []
    with listening(heard.append):
        tokens_ran(7)
    tokens_ran(9)
    assert heard == [7]


def test_a_kill_within_a_long_window_loses_that_part_only(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window is a part of its own, since its work is; the second is cut off half way, and measured again."""
    monkeypatch.setattr("olmo_sparsity.measure.work.TOKENS_PER_PART", 1000)
    whole = measure(config, tmp_path / "run", out=tmp_path / "whole")
    assert read_json(whole / "manifest.json")["num_parts"] == 3
    ran, calls = [0], []
    measured = influence.measure_windows

    def counted(*args: Any, **options: Any) -> object:
        calls.append(int(args[1]["real"].window_ids_W[0]))
        return measured(*args, **options)

    def killed(num_tokens: int) -> None:
        ran[0] += num_tokens
        if calls == [0, 1] and ran[0] > 1500:
            raise KeyboardInterrupt

    monkeypatch.setattr(influence, "measure_windows", counted)
    monkeypatch.setattr(measurement, "listening", lambda _: listening(killed))
    with pytest.raises(KeyboardInterrupt):
        measure(config, tmp_path / "run", out=tmp_path / "cut")
    assert [path.name for path in sorted((tmp_path / "cut" / "windows").glob("*.parquet"))] == ["part-00000.parquet"]
    assert measure(config, tmp_path / "run", out=tmp_path / "cut") == tmp_path / "cut"
    assert calls == [0, 1, 1, 2]
    for table in ("windows", "selections"):
        for part in range(3):
            paths = [part_path(folder, table, part=part) for folder in (whole, tmp_path / "cut")]
            assert paths[0].read_bytes() == paths[1].read_bytes()
