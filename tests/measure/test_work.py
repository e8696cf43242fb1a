"""The size of parts by work, progress within a part, and a kill at a long window."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_pretrained import save_llama
from tqdm import tqdm

from olmo_sparsity.config import Config, InfluenceConfig, PretrainedConfig
from olmo_sparsity.measure import influence, measurement
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.measurement import WithinPart
from olmo_sparsity.measure.work import TOKENS_PER_PART, part_size, tokens_of_influence
from olmo_sparsity.progress import listening, tokens_ran
from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.selectors import ALL_SELECTORS
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.parts import part_path

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
    screened = dataclasses.replace(settings, screen=64, screen_sample=0.001)
    assert part_size(256, tokens_of_influence(screened, lengths(8128))) > 5


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
        screen=16,
        screen_by="gradient",
        screen_sample=0.01,
    )
    return dataclasses.replace(tiny_config, pretrained=PretrainedConfig(str(folder / "model")), influence=settings)


def with_settings(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
@pytest.mark.parametrize("screen", [("gradient", 16), ("hierarchy", 16), None])
def test_the_number_of_tokens_is_about_what_the_model_runs(
    config: Config, visibility: str, screen: tuple[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by, num = screen or ("gradient", None)
    chosen = with_settings(
        config,
        visibility=visibility,
        screen=num,
        screen_by=by,
        num_windows=1,
        full_len=120,
        selectors=InfluenceConfig().selectors,
    )
    ran: list[int] = []
    monkeypatch.setattr(measurement, "listening", lambda _: listening(ran.append))
    folder = measure(chosen, tmp_path / "run")
    assert read_json(folder / "manifest.json")["num_windows"] == 1
    expected = tokens_of_influence(chosen.influence, chosen.measured_lengths)
    assert 0.6 < sum(ran) / expected < 1.4


@pytest.mark.parametrize("num_windows", [1, 3])
@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_nothing_is_run_twice_for_attention(
    config: Config, visibility: str, num_windows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass of L_long gives the attention, J_M is L_long, and under ``contextual`` rows share a prefix."""
    full_len = 120
    chosen = with_settings(
        config, visibility=visibility, anchor="bos", screen=None, num_windows=num_windows, full_len=full_len,
        selectors=["attention"], resampled_draws=0,
    )  # fmt: skip
    local = chosen.measured_lengths.local_len
    many = full_len - local
    chosen = with_settings(chosen, k=[1, many])
    ran: list[int] = []
    monkeypatch.setattr(measurement, "listening", lambda _: listening(ran.append))
    measure(chosen, tmp_path / "run")
    # Local tokens: of L_short with the anchor, with and without the gap; under each of two contexts, after a prefix, of L_long
    # and of k = 1.
    of_context = {"hidden": (1 + full_len) + (1 + 1 + local), "contextual": 1 + many + 2 * local}
    assert sum(ran) == num_windows * (2 * (local + 1) + 2 * of_context[visibility])


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
    for table in ("windows", "selections", "screening"):
        for part in range(3):
            paths = [part_path(folder, table, part=part) for folder in (whole, tmp_path / "cut")]
            assert paths[0].read_bytes() == paths[1].read_bytes()
