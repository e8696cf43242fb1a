"""Training on several processes: torch's DDP, or FSDP2 for models that do not fit on one device.

With a single process these functions do nothing. Processes communicate through gloo on CPUs and NCCL on GPUs.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import DeviceMesh, init_device_mesh
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import MODEL, OPTIMIZER, Tensors, read_tensors
from olmo_sparsity.torchrun import ProcessInfo

if TYPE_CHECKING:
    from olmo_sparsity.model.olmo import OLMoWithPositions

T = TypeVar("T")


def device_of_process(device: torch.device, process: ProcessInfo) -> torch.device:
    """The device that this process trains on: under torchrun its own GPU."""
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
    """Set up communication between the processes of a run. When it exits, no variable may still refer to their model."""
    if process.world_size == 1:
        yield
        return
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
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


def num_processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share_of_rows(num_rows: int, *, key: str) -> slice:
    """The rows of a batch that this process computes. UserError, with the key that set ``num_rows``: no equal shares."""
    if num_rows % num_processes():
        raise UserError(f"{key} = {num_rows}: must be a multiple of the number of processes, {num_processes()}")
    rank, rows_each = dist.get_rank() if dist.is_initialized() else 0, num_rows // num_processes()
    return slice(rank * rows_each, (rank + 1) * rows_each)


def all_reduce_sum(value: torch.Tensor) -> torch.Tensor:
    """Sum of a tensor over all processes; it is computed in place."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def on_leader(make: Callable[[], T]) -> T:
    """Call ``make`` in the leader (rank 0) and return its result in all processes.

    An error of the leader ends all of them: one that waited for it would end with the traceback of a lost connection.
    """
    if not dist.is_initialized():
        return make()
    answer: list[Any] = [None, None]  # result, error
    if dist.get_rank() == 0:
        try:
            answer[0] = make()
        except (UserError, OSError) as error:
            answer[1] = error
        except Exception as error:  # a bug; it may not be picklable
            dist.broadcast_object_list([None, UserError(f"the first process of this training has failed: {error!r}")])
            raise
    dist.broadcast_object_list(answer, device=torch.device("cpu"))
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def shard_model(model: OLMoWithPositions, device: torch.device) -> None:
    """Shard a model with FSDP2, in place: weights of a layer are gathered while it computes."""
    # The device type is given, because on a machine with GPUs torch would lay out the mesh for GPUs by default.
    mesh = init_device_mesh(device.type, (num_processes(),))
    for block in model.transformer.blocks:  # so that the device never holds the whole model
        fully_shard(block.to(device), mesh=mesh)
    fully_shard(model.to(device), mesh=mesh)
    for name in ("logits_at", "logits_and_position_logits"):  # called in place of forward; they gather weights, too
        register_fsdp_forward_method(model, name)


def gradient_accumulation(module: nn.Module, model: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Context of a backward pass of a step; gradients of ``model``, in ``module``, are exchanged in the last one."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


def gather_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Gather the whole weights and optimizer state in the leader, on the CPU. All processes must call it."""
    options = dcp.StateDictOptions(full_state_dict=True, cpu_offload=dist.is_initialized())
    # First: it lets FSDP2 shard its parameters again, without which the optimizer's are not recognised.
    weights = dcp.get_model_state_dict(model, options=options)
    return {MODEL: weights, OPTIMIZER: dict(dcp.get_optimizer_state_dict(model, optimizer, options=options))}


def load_state(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Load what ``gather_state`` returned from a verified checkpoint. The leader reads, and all processes get the tensors."""
    tensors: Tensors = {MODEL: {}, OPTIMIZER: {}}
    on_leader(lambda: tensors.update({name: read_tensors(checkpoint / name) for name in tensors}))
    options = dcp.StateDictOptions(full_state_dict=True, broadcast_from_rank0=dist.is_initialized())
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    dcp.set_model_state_dict(model, tensors[MODEL], options=options)
    dcp.set_optimizer_state_dict(model, optimizer, tensors[OPTIMIZER], options=options)
    for group, built_with in zip(optimizer.param_groups, settings, strict=True):  # torch makes lists of its tuples
        group.update(built_with)
