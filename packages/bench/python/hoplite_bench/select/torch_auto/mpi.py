"""What the backend of mpi4py takes: it has fewer operations and dtypes than Gloo, and only dense tensors.

Whether it takes a call depends only on facts that are the same on all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "mpi4py"
METHODS = ("allgather", "allreduce", "broadcast", "gather", "reduce")
DTYPES = {
    torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
}  # fmt: skip
OPERATORS = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)


def takes(method: str, arguments: tuple[Any, ...]) -> bool:
    """Whether the backend has an operation for such arguments.

    Args:
        method: name of the method of a backend.
        arguments: its arguments; the last has the options.
    """
    if method not in METHODS:
        return False
    own, options = arguments[-2], arguments[-1]
    if method in ("allreduce", "reduce") and not any(options.reduceOp == op for op in OPERATORS):
        return False
    return all(tensor.dtype in DTYPES for tensor in own)


def dense(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Calls an operation with contiguous copies of tensors that are not, and copies the results back.

    Operations of mpi4py are over on return.
    """
    copies = []

    def contiguous(value: Any) -> Any:
        if isinstance(value, list):
            return [contiguous(one) for one in value]
        if not isinstance(value, torch.Tensor) or value.is_contiguous():
            return value
        copies.append((value, value.detach().contiguous()))
        return copies[-1][1]

    work = run(*[contiguous(value) for value in arguments])
    with torch.no_grad():
        for original, copy in copies:
            original.copy_(copy)
    return work
