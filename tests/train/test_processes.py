"""Training on two processes, as torchrun starts them; gloo, on the CPU."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
import torch
from conftest import Messages
from started_commands import ROOT, Started, run_cli, start_command, starts_of_python
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from watched_runs import metrics, wait_for_lines, weights

from olmo_sparsity.config import Config, PoseConfig, load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json
from olmo_sparsity.model.checkpoint import CheckpointState, list_checkpoints
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.torchrun import SINGLE_PROCESS, ProcessInfo, current_process
from olmo_sparsity.train import loop, processes
from olmo_sparsity.train import run as training_run
from olmo_sparsity.train.batches import IGNORE_INDEX
from olmo_sparsity.train.data import open_training_text
from olmo_sparsity.train.evaluation import Evaluation
from olmo_sparsity.train.loop import train
from olmo_sparsity.train.processes import device_of_process, gradient_accumulation, share_of_rows
from olmo_sparsity.train.run import LoopState, TrainingRun
from olmo_sparsity.train.run_folder import run_lock
from olmo_sparsity.train.step import SummedLoss, build_schedule, build_train_state

LOSS = 2e-5  # nats; the order of summation differs, over 12 steps of AdamW


def forked_by_its_launcher(folder: Path, *arguments: str, pause: float = 0.3) -> Started:
    return start_command(*arguments, cwd=folder, pause=pause, processes=2)


def assert_threads_have_ended(errors: str) -> None:
    """A thread of torch that is alive when the interpreter exits can abort the process, though its work is done."""
    left = re.findall("^.*threads at the end:(.*)$", errors, re.MULTILINE)
    assert len(left) == 2, errors
    if sys.platform == "linux":
        assert all(left)
    assert not any("gloo" in names for names in left), left


def assert_same_run(run: Path, other: Path) -> None:
    for ours, theirs in zip(metrics(run), metrics(other), strict=True):
        for key in ("loss_nats", "validation_loss_nats", "loss_beyond_train_len_nats"):
            assert (ours[key] is None) == (theirs[key] is None)
            assert ours[key] == (None if theirs[key] is None else pytest.approx(theirs[key], abs=LOSS)), (
                key,
                ours["step"],
            )
    for name, value in weights(run)["model.pt"].items():
        assert torch.allclose(value, weights(other)["model.pt"][name], atol=1e-3), name


def test_two_processes_train_the_same_run_as_one_and_resume_each_others(
    messages: Messages, tiny_run: Path, tiny_yaml: Path, tiny_config: Config, tmp_path: Path
) -> None:
    """On two processes: DDP, stopped by SIGTERM; FSDP2, stopped; FSDP2 to the end. Then the last steps again on one.

    The launcher of torchrun forks them; torchrun itself starts the job of SLURM.
    """
    run = tmp_path / "run"
    arguments = ("train", "--config", str(tiny_yaml), "--run", str(run))

    def stopped(parallel: str, after: int) -> tuple[int, str]:
        """Stop training after so many lines of metrics. Return (the step where it was saved, standard error)."""
        asked = (*arguments, "training.checkpoint_every=100", f"training.parallel={parallel}")
        process = forked_by_its_launcher(tmp_path, *asked)
        wait_for_lines(run, process, after)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        assert "resumes from there" in errors
        assert len(re.findall(rf"on 2 processes \({parallel}\)", errors)) == 1  # only the leader logs
        assert_threads_have_ended(errors)
        return int(list_checkpoints(run / "checkpoints")[-1].name.removeprefix("step")), errors

    first, _ = stopped("ddp", 3)
    assert 3 <= first < 10
    second, errors = stopped("fsdp", max(7, first + 1))  # after the evaluation at step 6
    assert f"resuming at step {first}" in errors
    assert max(7, first + 1) <= second < 12

    process = forked_by_its_launcher(tmp_path, *arguments, "training.parallel=fsdp", pause=0.0)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert f"resuming at step {second}" in errors
    assert len(re.findall("trained 12 steps", errors)) == 1
    assert_threads_have_ended(errors)
    assert_same_run(run, tiny_run)

    shutil.rmtree(run / "checkpoints" / "step12")
    before = list_checkpoints(run / "checkpoints")[-1].name.removeprefix("step")
    messages.clear()
    train(tiny_config, run)
    assert any(f"resuming at step {before}" in line for line in messages)
    assert_same_run(run, tiny_run)
    assert read_json(run / "manifest.json")["processes"] == 1


def test_no_process_of_a_run_that_another_training_holds_waits_for_the_others(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one on another machine than the leader's, which no torchrun ends."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    asked = ("train", "--config", str(tiny_yaml), "--run", str(tmp_path / "run"))
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with run_lock(tmp_path / "run", SINGLE_PROCESS):
        started = []
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            started.append(start_command(*asked, cwd=tmp_path))
        for process in started:
            _, errors = process.communicate(timeout=100)
            assert process.returncode == 2 and "run: another process is training this run; wait for it, or" in errors
    assert not (tmp_path / "run").exists()


# Stand-ins for the SLURM commands that the script calls: start a step, send a signal to it, requeue the job.
SLURM = {
    "srun": 'echo $$ > step.pid\nexec "$@"',
    "scancel": '[ "$*" = "--signal=TERM $SLURM_JOB_ID" ] && kill -TERM "$(cat step.pid)"',
    "scontrol": 'if [ "$1" = show ]; then echo localhost; else echo "$*" >> queue; fi',
}


def test_a_slurm_job_saves_and_is_requeued_until_it_is_done(tiny_yaml: Path, tiny_run: Path, tmp_path: Path) -> None:
    """torchrun starts two processes, which train with DDP."""
    for name, body in SLURM.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    run, queue = tmp_path / "run", tmp_path / "queue"
    job_id = str(os.getpid())  # the port follows from it, and another run of this test may be under way
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PROCESSES": "2",
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": job_id, "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "a",
    }  # fmt: skip

    def job(*arguments: str) -> subprocess.Popen[str]:
        command = [str(ROOT / "scripts" / "train-slurm.sh"), *arguments]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

    process = job("--config", str(tiny_yaml), "--run", str(run), "training.steps=1000000")
    wait_for_lines(run, process, 3)
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert queue.read_text() == f"requeue {job_id}\n"
    saved = list_checkpoints(run / "checkpoints")[-1].name.removeprefix("step")
    assert f"stopped and saved at step {saved}; the same command" in errors
    assert len(re.findall(r"on 2 processes \(ddp\)", errors)) == 1

    # A requeued job resumes, although its arguments contain --overwrite.
    for restarts, kept in (("0", ["--overwrite"]), ("1", [])):
        asked = ("--run", str(tiny_run), "--overwrite")
        variables = {**environment, "SLURM_RESTART_COUNT": restarts}
        del variables["PYTHON"]
        (started,) = starts_of_python("train-slurm.sh", *asked, cwd=tmp_path, **variables)
        assert started[started.index("--") + 1 :] == ["olmo_sparsity", "train", "--run", str(tiny_run), *kept]
    finished = run_cli(*started[started.index("train") :], cwd=tmp_path)
    assert finished.returncode == 0
    assert "already trained" in finished.stderr
    assert queue.read_text() == f"requeue {job_id}\n"


def test_shares_of_rows_are_equal_and_cover_the_batch() -> None:
    shares = [share_of_rows(12, ProcessInfo(rank, 4), key="training.batch_rows") for rank in range(4)]
    assert [i for share in shares for i in range(12)[share]] == list(range(12))
    with pytest.raises(UserError, match=r"training\.batch_rows = 10: must be a multiple of .* 4"):
        share_of_rows(10, ProcessInfo(0, 4), key="training.batch_rows")


def test_a_micro_batch_must_divide_the_rows_of_a_process(tiny_config: Config) -> None:
    training = dataclasses.replace(tiny_config.training, batch_rows=24, micro_batch_rows=8)
    with pytest.raises(UserError, match=r"training\.micro_batch_rows = 8: must divide the 12 rows"):
        build_train_state(
            torch.nn.Module(),  # type: ignore[arg-type]
            training,
            precision="fp32",
            compiled=False,
            process=ProcessInfo(0, 2),
            device=torch.device("cpu"),
        )


def test_current_process() -> None:
    assert current_process({}) == SINGLE_PROCESS
    process = current_process({"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
    assert process == ProcessInfo(5, 16, 1, 4)
    assert not process.is_leader
    # What torchrun does not set: the first process of its machine, and as many on it as are known.
    restarted = current_process({"RANK": "5", "WORLD_SIZE": "16", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert (process.restarts, restarted.restarts) == (0, 2)
    assert current_process({"RANK": "5", "WORLD_SIZE": "16"}) == ProcessInfo(5, 16, 0, 1)
    assert current_process({"RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "3"}) == ProcessInfo(0, 16, 3, 1)
    for one in ("RANK", "WORLD_SIZE"):
        assert current_process({one: "1", "LOCAL_RANK": "3"}) == SINGLE_PROCESS
    with pytest.raises(UserError, match="RANK = 4, WORLD_SIZE = 4"):
        current_process({"RANK": "4", "WORLD_SIZE": "4"})


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    cuda = torch.device("cuda")
    assert device_of_process(cuda, SINGLE_PROCESS) == cuda
    assert device_of_process(cuda, ProcessInfo(3, 4, 1, 2)) == torch.device("cuda", 1)
    assert device_of_process(torch.device("cpu"), ProcessInfo(3, 4, 1, 4)) == torch.device("cpu")
    assert current == [1]
    said = "^4 processes and 2 GPUs on this machine: .*; call torchrun with a smaller --nproc-per-node$"
    with pytest.raises(UserError, match=said):
        device_of_process(cuda, ProcessInfo(3, 4, 3, 4))


@pytest.mark.parametrize("error", [UserError("restore that one"), PermissionError(13, "denied", "runs")])
def test_a_mistake_that_the_leader_finds_is_raised_in_every_process(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only in the leader, for which the others would wait until the connection is lost."""
    sent: list[Any] = []

    def broadcast(results: list[Any], device: torch.device) -> None:
        sent.extend(results) if not sent else results.__setitem__(0, pickle.loads(pickle.dumps(sent[0])))

    def fail() -> None:
        raise error

    monkeypatch.setattr(processes.dist, "broadcast_object_list", broadcast)
    for rank in range(3):
        with pytest.raises(type(error)) as raised:
            processes.broadcast_from_leader(fail, ProcessInfo(rank, 3))
        assert str(raised.value) == str(error)
    sent.clear()
    assert [processes.broadcast_from_leader(lambda: "folder", ProcessInfo(rank, 3)) for rank in range(3)] == [
        "folder"
    ] * 3


@pytest.mark.parametrize(
    ("module", "step", "fails"),
    [
        (loop, "_save", "save_checkpoint"),
        (loop, "_finish", "write_json"),
        (training_run, "load_checkpoint", "read_state"),
    ],
)
def test_a_disk_that_fails_the_leader_ends_every_process_alike(
    module: ModuleType, step: str, fails: str, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the traceback of a lost connection, which is what processes end in that wait for the leader."""
    sent: list[Any] = []

    def broadcast(results: list[Any], device: torch.device) -> None:
        sent.extend(results) if not sent else results.__setitem__(0, sent[0])

    def full(*given: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(processes.dist, "broadcast_object_list", broadcast)
    monkeypatch.setattr(loop, "gather_state", lambda *given, **named: CheckpointState({}, {}))
    monkeypatch.setattr(module, fails, full)
    config = load_config(tiny_run / "config.yaml")
    state = LoopState(step=12, evaluation=Evaluation(validation_loss_nats=2.5))
    for rank in range(2):
        model = SimpleNamespace(config=None)
        train_state: Any = SimpleNamespace(model=model, optimizer=None, process=ProcessInfo(rank, 2))
        run = TrainingRun(
            folder=tiny_run,
            config=config,
            data=open_training_text(config, SINGLE_PROCESS),
            train_state=train_state,
            schedule=build_schedule(config.training),
            manifest=read_json(tiny_run / "manifest.json"),
            checkpoint=list_checkpoints(tiny_run / "checkpoints")[-1],
        )
        with pytest.raises(OSError, match="No space left on device"):
            getattr(module, step)(*([run] if step == "load_checkpoint" else [run, state]))


@pytest.mark.parametrize(("embedding", "few_targets", "predicts"), [("rope", True, False), ("learned", False, True)])
def test_a_sharded_model_computes_every_loss(
    embedding: str, few_targets: bool, predicts: bool, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the losses of synthetic tasks, which call other methods of the model than forward."""
    begin = processes.dist.init_process_group
    store = processes.dist.HashStore()
    monkeypatch.setattr(processes.dist, "init_process_group", lambda of: begin(of, rank=0, world_size=1, store=store))
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    cpu, rows_BT = torch.device("cpu"), torch.arange(16).reshape(2, 8)
    targets_BT = torch.where(rows_BT % 3 == 0, rows_BT + 1, IGNORE_INDEX)
    batch = (rows_BT, rows_BT % 11, targets_BT, *([rows_BT % 7] if predicts else []))
    kind = dataclasses.replace(tiny_config.model, position_embedding=embedding, n_layers=1)

    def loss_and_gradient(sharded: bool) -> tuple[float, float]:
        shape = olmo_model_config(dataclasses.replace(tiny_config, model=kind), vocab_size=320, eos_id=0)
        model = build_model(shape, 3)
        if sharded:
            processes.shard_model(model, cpu)
        objective, _ = SummedLoss(model, "fp32", few_targets=few_targets)(*batch)
        objective.backward()
        norm = processes.full_tensor(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9))
        return float(objective.detach()), float(norm)

    with processes.process_group(ProcessInfo(0, 2), cpu):
        assert loss_and_gradient(True) == pytest.approx(loss_and_gradient(False), rel=1e-5)


def test_gradients_are_exchanged_in_the_last_pass_of_a_step_only() -> None:
    class Replicated(DistributedDataParallel):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def no_sync(self) -> Any:
            return "no exchange"

    class Sharded(FSDPModule):
        exchanged: ClassVar[list[bool]] = []

        def __new__(cls) -> Any:
            return object.__new__(cls)

        def set_requires_gradient_sync(self, requires_gradient_sync: bool, **_: Any) -> None:
            self.exchanged.append(requires_gradient_sync)

    plain: Any = torch.nn.Module()
    sharded: Any = Sharded()
    for last in (False, True):
        assert (gradient_accumulation(Replicated(), plain, last=last) == "no exchange") == (not last)
        for module, model in ((plain, plain), (plain, sharded)):
            with gradient_accumulation(module, model, last=last):
                pass
    assert Sharded.exchanged == [False, True]


def test_a_rank_without_torchrun_is_one_line(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for port, missing in (("29500", "MASTER_ADDR"), (None, "MASTER_ADDR and MASTER_PORT")):
        monkeypatch.delenv("MASTER_ADDR", raising=False)
        monkeypatch.delenv("MASTER_PORT", raising=False)
        if port is not None:
            monkeypatch.setenv("MASTER_PORT", port)
        said = rf"RANK and WORLD_SIZE are set, and {missing} not: start .* with torchrun, which sets all of them, or unset RANK$"
        with pytest.raises(UserError, match=said):
            train(tiny_config, tmp_path / "run", process=ProcessInfo(rank=0, world_size=2))
    assert not (tmp_path / "run").exists()


def test_the_rows_that_processes_cannot_share_are_named_by_their_key(tiny_config: Config) -> None:
    """Each process gets its own share of the rows of a batch, and of the held-out ones."""
    training = dataclasses.replace(tiny_config.training, batch_rows=20, eval_rows=32)
    with pytest.raises(UserError, match=r"training\.eval_rows = 32: must be a multiple of the number of processes, 5"):
        open_training_text(dataclasses.replace(tiny_config, training=training), ProcessInfo(0, 5))
    with pytest.raises(UserError, match=r"training\.batch_rows = 20: must be a multiple of the number of processes, 8"):
        open_training_text(dataclasses.replace(tiny_config, training=training), ProcessInfo(0, 8))
    chunks = tiny_config.context.row_len + 1
    message = rf"^pose\.num_chunks = {chunks}: must be at most {chunks - 1}, the tokens of a training row$"
    with pytest.raises(UserError, match=message):
        open_training_text(dataclasses.replace(tiny_config, pose=PoseConfig(num_chunks=chunks)), SINGLE_PROCESS)
    for world_size, changes, said in ((5, {}, "eval_rows = 32"), (4, {"micro_batch_rows": 2}, "micro_batch_rows = 2")):
        config = dataclasses.replace(tiny_config, training=dataclasses.replace(training, **changes))
        with pytest.raises(UserError, match=rf"training\.{said}: must"):  # before the text is prepared
            train(config, Path("none"), process=ProcessInfo(0, world_size), source=MagicMock(open=lambda *_: 1 / 0))
    config = dataclasses.replace(tiny_config, training=dataclasses.replace(training, seed=3))
    whole = open_training_text(config, ProcessInfo(0, 1))
    for rank in range(4):
        share = open_training_text(config, ProcessInfo(rank, 4))
        for of_share, of_whole, rows in (
            (share.draw(7), whole.draw(7), 5),
            (share.evaluation_rows.like_training, whole.evaluation_rows.like_training, 8),
            (share.evaluation_rows.consecutive, whole.evaluation_rows.consecutive, 8),
        ):
            assert of_share is not None and of_whole is not None and of_share.num_targets == of_whole.num_targets
            for field, of_field in zip(of_share.fields, of_whole.fields, strict=True):
                assert torch.equal(field, of_field[rank * rows : (rank + 1) * rows])
    other = open_training_text(dataclasses.replace(config, training=training), ProcessInfo(0, 1))
    assert not torch.equal(other.draw(7).tokens_BT, whole.draw(7).tokens_BT)
    held_out = [one.evaluation_rows.like_training.tokens_BT for one in (other, whole)]
    assert torch.equal(*held_out)  # of every seed
