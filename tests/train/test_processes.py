"""Training on two processes: the run of one, resumed by either; what one process finds ends the other."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import Messages
from filelock import FileLock
from started_commands import ROOT, Started, run_cli, start_command, starts_of_python
from watched_runs import metrics, wait_for_lines, weights

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json
from olmo_sparsity.model.checkpoint import list_checkpoints
from olmo_sparsity.torchrun import current_process
from olmo_sparsity.train.loop import train
from olmo_sparsity.train.parallel import on_leader, process_group, share_of_rows

LOSS = 2e-5  # nats; the order of summation differs, over 12 steps of AdamW
LONG = 100_000


def assert_same_run(run: Path, other: Path) -> None:
    for ours, theirs in zip(metrics(run), metrics(other), strict=True):
        for key in ("loss_nats", "validation_loss_nats", "loss_beyond_train_len_nats"):
            assert ours[key] == (None if theirs[key] is None else pytest.approx(theirs[key], abs=LOSS)), (key, ours)
    for name, value in weights(run)["model.pt"].items():
        assert torch.allclose(value, weights(other)["model.pt"][name], atol=1e-3), name


def assert_threads_have_ended(errors: str) -> None:
    """A thread of torch that is alive when the interpreter exits can abort the process, though its work is done."""
    left = re.findall("^.*threads at the end:(.*)$", errors, re.MULTILINE)
    assert len(left) == 2 and not any("gloo" in names for names in left), errors


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_the_run_of_one_and_resume_each_others(
    parallel: str, messages: Messages, tiny_run: Path, tiny_yaml: Path, tiny_config: Config, tmp_path: Path
) -> None:
    """The first eight steps on two processes, with gradients accumulated over two passes; the rest on one, and again on two."""
    run = tmp_path / "run"
    asked = ("train", "--config", str(tiny_yaml), "--run", str(run), f"training.parallel={parallel}")
    whole = start_command(*asked, "training.micro_batch_rows=4", cwd=tmp_path, processes=2)
    _, errors = whole.communicate()
    assert whole.returncode == 0, errors
    assert len(re.findall(rf"on 2 processes \({parallel}\)", errors)) == 1  # only the leader logs
    assert_threads_have_ended(errors)
    assert_same_run(run, tiny_run)
    shutil.rmtree(run / "checkpoints" / "step12")
    train(tiny_config, run)
    assert any("resuming at step 8" in line for line in messages)
    assert_same_run(run, tiny_run)
    shutil.rmtree(run / "checkpoints" / "step12")
    resumed = start_command(*asked, cwd=tmp_path, processes=2)
    _, errors = resumed.communicate()
    assert resumed.returncode == 0 and "resuming at step 8" in errors, errors
    assert errors.count("the last bits of its weights will differ") == 1  # by the start before, not by older ones
    assert_same_run(run, tiny_run)
    starts = [
        (start["step"], start["processes"], start["parallel"]) for start in read_json(run / "manifest.json")["starts"]
    ]
    assert starts == [(0, 2, parallel), (8, 1, None), (8, 2, parallel)]


def test_sharded_processes_train_a_task_whose_position_ids_are_predicted(tmp_path: Path) -> None:
    config = ROOT / "tests" / "guard" / "data" / "synthetic" / "scratchpad-predicted.yaml"
    keys = ("training.steps=6", "training.eval_every=6", "training.parallel=fsdp")
    for number in (1, 2):
        asked = ("synth", "train", "scratchpad-predicted", "--config", str(config), "--run", f"run{number}")
        command = start_command(*asked, *keys, cwd=tmp_path, processes=number)
        _, errors = command.communicate()
        assert command.returncode == 0, errors
    assert_same_run(tmp_path / "run2", tmp_path / "run1")


def test_a_signal_saves_and_ends_all_processes(tiny_yaml: Path, tmp_path: Path) -> None:
    run, keys = tmp_path / "run", (f"training.steps={LONG}", "training.checkpoint_every=100000")
    process = start_command("train", "--config", str(tiny_yaml), "--run", str(run), *keys, cwd=tmp_path, processes=2)
    wait_for_lines(run, process, 3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    saved = list_checkpoints(run / "checkpoints")[-1].name.removeprefix("step")
    assert f"stopped and saved at step {saved}; the same command" in errors
    assert_threads_have_ended(errors)


def test_what_the_leader_finds_is_one_line_of_every_process(tiny_yaml: Path, tmp_path: Path) -> None:
    with FileLock(tmp_path / ".run.lock"):
        process = start_command("train", "--config", str(tiny_yaml), "--run", "run", cwd=tmp_path, processes=2)
        _, errors = process.communicate()
    assert len(re.findall("run: another process is training this run; wait for it", errors)) == 2
    assert "Traceback" not in errors.partition("threads at the end")[0]
    assert not (tmp_path / "run").exists()


def fails_in_the_leader() -> None:
    """What each of two processes does: print how an error of the leader ends it, and its share of the rows."""
    process = current_process()

    def fail(error: Exception) -> None:
        raise error

    with process_group(process, torch.device("cpu")):
        said = [str(on_leader(lambda: "for all" if process.is_leader else "never"))]
        for error in (UserError("restore that one"), OSError(28, "No space left"), ZeroDivisionError("a bug")):
            try:
                on_leader(lambda error=error: fail(error))  # type: ignore[misc]
            except Exception as raised:
                said.append(f"{type(raised).__name__}: {raised}")
        shares = [share_of_rows(12, key="training.batch_rows")]
        try:
            share_of_rows(9, key="training.batch_rows")
        except UserError as error:
            said.append(str(error))
    print("|".join([str(process.rank), str(shares[0]), *said]), flush=True)
    assert not dist.is_initialized()


def test_an_error_of_the_leader_is_raised_in_every_process(tmp_path: Path) -> None:
    both = Started(fails_in_the_leader, cwd=tmp_path, processes=2)
    out, errors = both.communicate()
    assert both.returncode == 0, errors
    for rank, line in enumerate(sorted(line for line in out.splitlines() if "|" in line)):
        told = line.rpartition("]:")[2].split("|")
        bug = (
            "ZeroDivisionError: a bug"
            if rank == 0
            else ("UserError: the first process of this training has failed: ZeroDivisionError('a bug')")
        )
        uneven = "training.batch_rows = 9: must be a multiple of the number of processes, 2"
        assert told == [
            str(rank), str(slice(6 * rank, 6 * rank + 6)), "for all", "UserError: restore that one",
            "OSError: [Errno 28] No space left", bug, uneven,
        ]  # fmt: skip


def test_a_rank_without_torchrun_is_one_line(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"RANK and WORLD_SIZE are set, and MASTER_ADDR not: start .* with torchrun"):
        train(tiny_config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


# Stand-ins for the SLURM commands that the script calls: start a step, send a signal to it, requeue the job.
SLURM = {
    "srun": 'echo $$ > step.pid\nexec "$@"',
    "scancel": '[ "$*" = "--signal=TERM $SLURM_JOB_ID" ] && kill -TERM "$(cat step.pid)"',
    "scontrol": 'if [ "$1" = show ]; then echo localhost; else echo "$*" >> queue; fi',
}


@pytest.mark.slow
def test_a_slurm_job_saves_and_is_requeued_until_it_is_done(tiny_yaml: Path, tiny_run: Path, tmp_path: Path) -> None:
    """torchrun starts two processes; a requeued job resumes, although its arguments contain --overwrite."""
    for name, body in SLURM.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job_id, run = str(os.getpid()), tmp_path / "run"  # the port follows from the ID, and another test may be under way
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PROCESSES": "2",
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": job_id, "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "a",
    }  # fmt: skip
    command = [str(ROOT / "scripts" / "train-slurm.sh"), "--config", str(tiny_yaml), "--run", str(run)]
    process = subprocess.Popen(
        [*command, f"training.steps={LONG}"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    wait_for_lines(run, process, 3)
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert (tmp_path / "queue").read_text() == f"requeue {job_id}\n"
    assert "stopped and saved at step" in errors and len(re.findall(r"on 2 processes \(ddp\)", errors)) == 1
    for restarts, kept in (("0", ["--overwrite"]), ("1", [])):
        variables = {**environment, "SLURM_RESTART_COUNT": restarts}
        del variables["PYTHON"]
        asked = ("--run", str(tiny_run), "--overwrite")
        (started,) = starts_of_python("train-slurm.sh", *asked, cwd=tmp_path, **variables)
        assert started[started.index("--") + 1 :] == ["olmo_sparsity", "train", "--run", str(tiny_run), *kept]
    finished = run_cli(*started[started.index("train") :], cwd=tmp_path)
    assert finished.returncode == 0 and "already trained" in finished.stderr
