"""Keeps the compiler of `torch.compile` out of the backend, as it keeps out of the backends that are written in C++.

A compiled program calls the operations between its graphs. `torch.compiler.disable` does the same for one function, but
imports the compiler, which takes seconds. Does not know operations.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from torch._C._dynamo import eval_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T", bound=type)

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def untraced(kind: T) -> T:
    """Marks the methods of a class: the compiler traces neither them nor what they call."""
    for function in _functions(kind):
        eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = "an operation of the backend hoplite"
    return kind


def _functions(kind: type) -> Iterator[Any]:
    for member in vars(kind).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            yield function
