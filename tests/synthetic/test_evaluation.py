"""The evaluation against a loop written anew, and Predictive Position Coupling with models whose answers are known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from olmo_sparsity.config import Config, ContextConfig, ModelConfig, PoseConfig, SyntheticConfig
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.synthetic.data import PlacedSequences, check_synthetic, evaluated_sequences, words_of
from olmo_sparsity.synthetic.evaluation import respond

LENGTH, K = 8, 3


def config(positions: str, *, task: str = "parity", scratchpad: bool = True, embedding: str = "") -> Config:
    return Config(
        context=ContextConfig(local_len=2, full_len=24, train_len=8),
        pose=PoseConfig(max_position=24, num_chunks=1 if embedding == "none" else 2),
        model=ModelConfig(
            d_model=16,
            n_heads=2,
            n_layers=2,
            mlp_ratio=2,
            init_std=0.5,
            position_embedding=embedding or ("rope" if positions == "pose" else "absolute"),  # type: ignore[arg-type]
        ),
        synthetic=SyntheticConfig(
            task=task,  # type: ignore[arg-type]
            scratchpad=scratchpad,
            positions=positions,  # type: ignore[arg-type]
            max_sparsity=K,
            train_lengths=[6, 8],
            test_lengths=[LENGTH],
            test_sparsity=[K],
            test_rows=30,
            num_names=8,
        ),
    )


def model_of(experiment: Config) -> OLMoWithPositions:
    vocab_size = len(words_of(experiment.synthetic))
    return build_model(olmo_model_config(experiment, vocab_size=vocab_size, eos_id=0), seed=3).eval()


@pytest.mark.parametrize("task", ["parity", "variables"])
@pytest.mark.parametrize(
    ("positions", "embedding", "scratchpad"),
    [
        ("predicted", "absolute", True), ("coupled", "absolute", True), ("shifted", "absolute", True), ("pose", "rope", True),
        ("pose", "rope", False), ("shifted", "absolute", False), ("pose", "none", True),
        ("randpos", "rope", True), ("randpos", "rope", False), ("randpos", "absolute", True),
    ],
)  # fmt: skip
def test_responses_are_those_of_a_loop_over_single_sequences(
    task: str, positions: str, embedding: str, scratchpad: bool
) -> None:
    experiment = config(positions, task=task, scratchpad=scratchpad, embedding=embedding)
    check_synthetic(experiment)
    model, placed = model_of(experiment), evaluated_sequences(experiment, LENGTH, K)
    predicted = positions == "predicted"
    responses = respond(model, placed, predict_ids=predicted, batch_tokens=100)
    num_right = 0
    for row in range(30):
        prompt_len = int(placed.sequences.prompt_len_B[row])
        truth = placed.sequences.tokens_BT[row].tolist()
        ids = placed.ids_BT[row].tolist()
        written, written_ids = truth[:prompt_len], ids[:prompt_len]
        for place in range(prompt_len, prompt_len + (K if scratchpad else 1)):
            with torch.no_grad():
                tokens, at = torch.tensor([written]), torch.tensor([written_ids])
                logits = model(tokens, at)[0, -1, : model.vocab_size]
                if predicted:
                    hidden = model.logits_and_position_logits(tokens, at)[1][0, -1]
            written.append(int(logits.argmax()))
            written_ids.append(int(hidden.argmax()) if predicted else ids[place])
        assert responses.tokens_WK[row].tolist() == written[prompt_len:]
        assert responses.ids_WK[row].tolist() == written_ids[prompt_len:]
        right = written == truth[: len(written)] and written_ids == ids[: len(written)]
        assert responses.right_W[row] == right
        num_right += right
    if scratchpad is False and task == "parity":
        assert num_right < 30


class Oracle:
    """A model that answers as it is told, and records what it is given."""

    device = torch.device("cpu")
    vocab_size = 40

    def __init__(self, placed: PlacedSequences, *, wrong_id_at: int | None, wrong_token_at: int | None):
        self.placed, self.wrong_id_at, self.wrong_token_at = placed, wrong_id_at, wrong_token_at
        self.given_ids: list[np.ndarray] = []

    def logits_and_position_logits(
        self, tokens: torch.Tensor, ids: torch.Tensor, *, last_only: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert last_only and tokens.shape == ids.shape
        self.given_ids.append(ids.numpy().copy())
        step = tokens.shape[1] - int(self.placed.sequences.prompt_len_B[0])
        place = tokens.shape[1]
        token_W = torch.from_numpy(self.placed.sequences.tokens_BT[:, place] + (step == self.wrong_token_at))
        id_W = torch.from_numpy((self.placed.ids_BT[:, place] + (step == self.wrong_id_at)) % 24)
        return tuple(torch.nn.functional.one_hot(x, 40).float()[:, None] for x in (token_W, id_W))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("wrong_id_at", "wrong_token_at", "right"),
    [(None, None, True), (0, None, False), (K - 1, None, False), (None, 1, False), (1, 1, False)],
)
def test_a_wrong_position_id_is_an_error_even_with_the_right_tokens(
    wrong_id_at: int | None, wrong_token_at: int | None, right: bool
) -> None:
    placed = evaluated_sequences(config("predicted"), LENGTH, K)
    model = Oracle(placed, wrong_id_at=wrong_id_at, wrong_token_at=wrong_token_at)
    responses = respond(model, placed, predict_ids=True)  # type: ignore[arg-type]
    assert responses.right_W.tolist() == [right] * 30
    assert responses.tokens_right_W.tolist() == [wrong_token_at is None] * 30
    assert responses.ids_right_W.tolist() == [wrong_id_at is None] * 30


def test_the_model_is_given_the_ids_of_the_prompt_and_then_its_own() -> None:
    placed = evaluated_sequences(config("predicted"), LENGTH, K)
    model = Oracle(placed, wrong_id_at=0, wrong_token_at=None)
    respond(model, placed, predict_ids=True)  # type: ignore[arg-type]
    prompt_len = int(placed.sequences.prompt_len_B[0])
    assert [ids.shape[1] for ids in model.given_ids] == [prompt_len, prompt_len + 1, prompt_len + 2]
    for ids in model.given_ids:
        assert (ids[:, :prompt_len] == placed.ids_BT[:, :prompt_len]).all()
    assert (model.given_ids[1][:, prompt_len] == (placed.ids_BT[:, prompt_len] + 1) % 24).all()  # the wrong one


def test_nothing_of_the_response_reaches_the_model() -> None:
    """Another response after the same prompt changes no answer."""
    experiment = config("predicted")
    model, placed = model_of(experiment), evaluated_sequences(experiment, LENGTH, K)
    changed = SimpleNamespace(
        sequences=SimpleNamespace(
            tokens_BT=placed.sequences.tokens_BT.copy(),
            prompt_len_B=placed.sequences.prompt_len_B,
            response_len_B=placed.sequences.response_len_B,
        ),
        ids_BT=placed.ids_BT.copy(),
    )
    changed.sequences.tokens_BT[:, LENGTH + 1 :] = 3
    changed.ids_BT[:, LENGTH + 1 :] = 5
    before = respond(model, placed, predict_ids=True, batch_tokens=1)  # one row at a time, of more tokens than that
    after = respond(model, changed, predict_ids=True)  # type: ignore[arg-type]
    assert (before.tokens_WK == after.tokens_WK).all() and (before.ids_WK == after.ids_WK).all()
