"""One training run on several processes: torch's DDP, or FSDP2 for models that one device cannot hold.

All of it does nothing where one process trains alone. Processes talk through gloo on CPUs and NCCL on GPUs.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import DeviceMesh, init_device_mesh
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.torchrun import ProcessInfo

T = TypeVar("T")


def device_of_process(device: torch.device, place: ProcessInfo) -> torch.device:
    """The GPU of this process, where ``device`` is a GPU and there are several processes.

    Raises:
        UserError: a machine has fewer GPUs than processes.
    """
    if place.count == 1 or device.type != "cuda":
        return device
    if place.local_count > torch.cuda.device_count():
        raise UserError(
            f"{place.local_count} processes and {torch.cuda.device_count()} GPUs on this machine: training wants a GPU for "
            "each; give torchrun a smaller --nproc-per-node"
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


@contextmanager
def process_group(place: ProcessInfo, device: torch.device) -> Iterator[None]:
    """All processes of the run have come, and can talk to each other; what talks (a model of DDP or FSDP) ends here, too."""
    if place.count == 1:
        yield
        return
    # gloo on GPU machines, too: what the processes tell each other besides gradients lies in main memory.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # their variables hold the model
        raise
    finally:
        # torch ends a group's threads when nothing refers to it any more, and threads that live on when the interpreter ends
        # can abort a process whose work is done. Models refer to it, FSDP's in cycles; and its mesh, which torch's caches keep.
        gc.collect()
        for mesh in [thing for thing in gc.get_objects() if type(thing) is DeviceMesh]:
            mesh._pg_registry.clear()
        dist.destroy_process_group()


def share_of_rows(num_rows: int, place: ProcessInfo, key: str) -> slice:
    """This process's rows of a batch of ``num_rows``.

    Raises:
        UserError: the rows cannot be shared equally; ``key`` is named.
    """
    if num_rows % place.count:
        raise UserError(f"{key} = {num_rows}: must be a multiple of the number of processes, {place.count}")
    each = num_rows // place.count
    return slice(place.rank * each, (place.rank + 1) * each)


def all_reduce_sum(value: torch.Tensor, place: ProcessInfo) -> torch.Tensor:
    """The sum of a tensor over all processes."""
    if place.count > 1:
        dist.all_reduce(value)
    return value


def any_process(flag: bool, place: ProcessInfo) -> bool:
    """Is it so in one of the processes; all of them get the same answer."""
    return bool(all_reduce_sum(torch.tensor(int(flag)), place))


def broadcast_from_leader(make: Callable[[], T], place: ProcessInfo) -> T:
    """What ``make`` returns in the leading process, in all of them."""
    if place.count == 1:
        return make()
    box: list[Any] = [make() if place.is_leader else None]
    dist.broadcast_object_list(box, device=torch.device("cpu"))
    return cast(T, box[0])


def shard_model(model: OLMoWithPositions, device: torch.device) -> None:
    """FSDP2, in place: each process holds its share of every weight; a layer's are gathered while it computes."""
    # Named, or a GPU machine's training on its CPUs would be laid out for the GPUs.
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # One after another, or the device would have to hold the whole model for once.
    for block in model.transformer.blocks:
        fully_shard(block.to(device), mesh=mesh)
    fully_shard(model.to(device), mesh=mesh)


def replicate(loss: nn.Module, place: ProcessInfo, sharded: bool) -> nn.Module:
    """DDP around the loss, unless the model is sharded or this process is alone."""
    if place.count == 1 or sharded:
        return loss
    return DistributedDataParallel(loss, forward_sync_buffers=False, gradient_as_bucket_view=True)


def gradient_accumulation(module: nn.Module, model: OLMoWithPositions, last: bool) -> AbstractContextManager[None]:
    """Gradients are exchanged in a step's ``last`` backward pass alone."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(module, DistributedDataParallel) and not last:
        return cast(AbstractContextManager[None], module.no_sync())
    return nullcontext()


def full_tensor(value: torch.Tensor) -> torch.Tensor:
    """A plain tensor, whatever shares of it the processes hold."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def gather_state(
    model: OLMoWithPositions, optimizer: torch.optim.Optimizer, place: ProcessInfo
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(weights, optimizer state) by the names of the parameters, whole and on the CPU, in the leading process; the same
    whatever the number of processes. All processes call it."""
    options = dcp.StateDictOptions(full_state_dict=True, cpu_offload=place.count > 1)
    return dcp.get_model_state_dict(model, options=options), dict(
        dcp.get_optimizer_state_dict(model, optimizer, options=options)
    )


def load_state(
    model: OLMoWithPositions,
    optimizer: torch.optim.Optimizer,
    weights: dict[str, Any],
    state: dict[str, Any],
    place: ProcessInfo,
) -> None:
    """Puts what ``gather_state`` gave back into place; only the leading process need have it."""
    options = dcp.StateDictOptions(full_state_dict=True, broadcast_from_rank0=place.count > 1)
    dcp.set_model_state_dict(model, weights, options=options)
    dcp.set_optimizer_state_dict(model, optimizer, state, options=options)
