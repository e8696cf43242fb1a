"""Training on several processes: torch's DDP, or FSDP2 for models that do not fit on one device.

With a single process these functions do nothing. Processes communicate through gloo on CPUs and NCCL on GPUs.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import DeviceMesh, init_device_mesh
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import CheckpointState
from olmo_sparsity.torchrun import ProcessInfo

if TYPE_CHECKING:
    from olmo_sparsity.model.olmo import OLMoWithPositions

T = TypeVar("T")


def device_of_process(device: torch.device, process: ProcessInfo) -> torch.device:
    """Return the device that this process trains on: its own GPU if ``device`` is a GPU and there are several processes.

    Raises:
        UserError: a machine has fewer GPUs than processes.
    """
    if process.world_size == 1 or device.type != "cuda":
        return device
    if process.local_world_size > torch.cuda.device_count():
        raise UserError(
            f"{process.local_world_size} processes and {torch.cuda.device_count()} GPUs on this machine: training needs one "
            "GPU per process; call torchrun with a smaller --nproc-per-node"
        )
    torch.cuda.set_device(process.local_rank)
    return torch.device("cuda", process.local_rank)


@contextmanager
def process_group(process: ProcessInfo, device: torch.device) -> Iterator[None]:
    """Set up communication between the processes of a run; a context manager.

    When it exits, no variable of the caller may still refer to a DDP or FSDP model: see the comment at the end.
    """
    if process.world_size == 1:
        yield
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(
            f"RANK and WORLD_SIZE are set, and {' and '.join(missing)} not: start the processes of a run with torchrun, which "
            "sets all of them, or unset RANK"
        )
    # gloo on GPU machines, too: everything but gradients is exchanged in main memory.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # their variables refer to the model
        raise
    finally:
        # torch ends the threads of a group when the last reference to it is gone. A thread that is still alive when the
        # interpreter exits can abort the process, though its work is done. Models refer to the group (FSDP models in
        # cycles), and so does the device mesh, which torch's caches keep alive.
        gc.collect()
        for mesh in [item for item in gc.get_objects() if type(item) is DeviceMesh]:
            mesh._pg_registry.clear()
        dist.destroy_process_group()


def share_of_rows(num_rows: int, process: ProcessInfo, *, key: str) -> slice:
    """Return which rows of a batch of ``num_rows`` this process computes.

    Args:
        num_rows: of the whole batch.
        process: this process.
        key: the configuration key that set ``num_rows``, for the error message.

    Raises:
        UserError: the rows cannot be divided equally among the processes.
    """
    if num_rows % process.world_size:
        raise UserError(f"{key} = {num_rows}: must be a multiple of the number of processes, {process.world_size}")
    rows_each = num_rows // process.world_size
    return slice(process.rank * rows_each, (process.rank + 1) * rows_each)


def all_reduce_sum(value: torch.Tensor, process: ProcessInfo) -> torch.Tensor:
    """Return the sum of a tensor over all processes; it is computed in place."""
    if process.world_size > 1:
        dist.all_reduce(value)
    return value


def any_process(flag: bool, process: ProcessInfo) -> bool:
    """Return True in all processes if ``flag`` is True in any of them."""
    return bool(all_reduce_sum(torch.tensor(int(flag)), process))


def broadcast_from_leader(make: Callable[[], T], process: ProcessInfo) -> T:
    """Call ``make`` in the leader (rank 0) and return its result in all processes.

    A mistake of the user, or an error of the operating system, is raised in all of them: one that waited for the leader would end
    with the traceback of a lost connection.
    """
    if process.world_size == 1:
        return make()
    results: list[Any] = [None]
    if process.is_leader:
        try:
            results = [make()]
        except (UserError, OSError) as error:
            results = [error]
    dist.broadcast_object_list(results, device=torch.device("cpu"))
    if isinstance(results[0], (UserError, OSError)):
        raise results[0]
    return cast(T, results[0])


def shard_model(model: OLMoWithPositions, device: torch.device) -> None:
    """Shard a model with FSDP2, in place.

    Each process holds a share of every weight. The weights of a layer are gathered while it computes.
    """
    # The device type is given, because on a machine with GPUs torch would lay out the mesh for GPUs by default.
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # Block by block, so that the device never holds the whole model.
    for block in model.transformer.blocks:
        fully_shard(block.to(device), mesh=mesh)
    fully_shard(model.to(device), mesh=mesh)
    for name in ("logits_at", "logits_and_position_logits"):  # called in place of forward; they gather weights, too
        register_fsdp_forward_method(model, name)


def replicate(loss: nn.Module, process: ProcessInfo, *, sharded: bool) -> nn.Module:
    """Wrap the loss in DDP, unless the model is sharded or there is only one process."""
    if process.world_size == 1 or sharded:
        return loss
    return DistributedDataParallel(loss, forward_sync_buffers=False, gradient_as_bucket_view=True)


def gradient_accumulation(module: nn.Module, model: OLMoWithPositions, *, last: bool) -> AbstractContextManager[None]:
    """Return a context in which gradients are exchanged only if this is the ``last`` backward pass of a step.

    Args:
        module: the loss, wrapped in DDP or not.
        model: the model, sharded or not.
        last: whether this is the last pass of the step.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(module, DistributedDataParallel) and not last:
        return cast(AbstractContextManager[None], module.no_sync())
    return nullcontext()


def full_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor, gathered from all processes if it is sharded."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def gather_state(
    model: OLMoWithPositions, optimizer: torch.optim.Optimizer, *, process: ProcessInfo
) -> CheckpointState:
    """Gather the whole weights and optimizer state in the leader, on the CPU. All processes must call it.

    The result does not depend on the number of processes.
    """
    options = dcp.StateDictOptions(full_state_dict=True, cpu_offload=process.world_size > 1)
    return CheckpointState(
        weights=dcp.get_model_state_dict(model, options=options),
        optimizer=dict(dcp.get_optimizer_state_dict(model, optimizer, options=options)),
    )


def load_state(
    model: OLMoWithPositions, optimizer: torch.optim.Optimizer, *, state: CheckpointState, process: ProcessInfo
) -> None:
    """Load what ``gather_state`` returned. Only the leader needs ``state``; that of other processes may be empty.

    The settings of the optimizer stay those that it was built with: torch would turn the tuple of betas into a list, and with it
    every byte of the next checkpoint's hash.
    """
    options = dcp.StateDictOptions(full_state_dict=True, broadcast_from_rank0=process.world_size > 1)
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    dcp.set_model_state_dict(model, state.weights, options=options)
    dcp.set_optimizer_state_dict(model, optimizer, state.optimizer, options=options)
    for group, built_with in zip(optimizer.param_groups, settings, strict=True):
        group.update(built_with)
