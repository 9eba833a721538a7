"""Handles of operations, as `async_op=True` returns them. Does not know what the operations do."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Work as TorchWork

from hoplite.torch.backend.untraced import untraced

if TYPE_CHECKING:
    from concurrent.futures import Future
    from datetime import timedelta

    from torch import Tensor


@untraced
class Work(TorchWork):
    """An operation that is over, or runs in the loop.

    Args:
        outputs: the tensors that the operation fills.
        running: the operation; None if it is over.
        source: rank that sent the message, if known.
    """

    def __init__(self, outputs: list[Any], running: Future[Any] | None = None, source: int = -1) -> None:
        super().__init__()
        self._outputs = outputs
        self._running = running
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end of the operation.

        Args:
            timeout: time to wait. None and zero mean the timeout of the operation.

        Raises:
            RuntimeError: the operation failed, or is not over in time.
        """
        if self._running is not None:
            seconds = timeout.total_seconds() if timeout else 0.0
            try:
                self._running.result(seconds if seconds > 0 else None)
            except concurrent.futures.TimeoutError:
                if self._running.done():
                    raise
                raise RuntimeError(f"wait timed out after {seconds:g} s: the operation still runs") from None
        return True

    def synchronize(self) -> None:
        """Waits for the end of the operation."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation is over."""
        return self._running is None or self._running.done()

    def is_success(self) -> bool:
        """Whether the operation is over and did not fail."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Returns the error of the operation, if it failed."""
        return self._running.exception() if self._running is not None and self._running.done() else None

    def result(self) -> list[Tensor]:
        """Returns the outputs."""
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """Returns the rank that sent the message."""
        self.wait()
        if self._running is not None and self._source < 0:
            return int(self._running.result())
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Returns a future of the outputs; it is completed if the operation is over."""
        outputs = self._outputs
        flat = outputs[0] if outputs and isinstance(outputs[0], list) else outputs
        devices = sorted({str(tensor.device) for tensor in flat if tensor.device.type == "cuda"})
        future: Any = torch.futures.Future(devices=devices or None)
        running = self._running
        if running is None:
            future.set_result(outputs)
            return future

        def result(_: torch.futures.Future[None]) -> list[Tensor]:
            running.result()
            return outputs

        # Only an error of a callback is one for C++ too, such as for the gradients of DistributedDataParallel.
        over, future = future, future.then(result)
        if running.done():
            # DistributedDataParallel waits for the handle, gets the future, and reads its value at once.
            over.set_result(None)
        else:
            # Callbacks run in a thread of their own: they may wait for further operations, which the loop runs.
            running.add_done_callback(
                lambda _: threading.Thread(target=over.set_result, args=(None,), daemon=True).start()
            )
        return future
