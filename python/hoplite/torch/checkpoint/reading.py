"""Loading: gets the pieces that a rank needs, each once, and copies from shared memory into the state dict."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.planner import LoadItemType

import hoplite
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import InvalidArgument, ShapeMismatch
from hoplite.torch import safe_load
from hoplite.torch.checkpoint import storing

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence


class HopliteReader(dcp.StorageReader):
    """Loads checkpoints that a `HopliteWriter` saved, with any number of ranks.

    Args:
        checkpoint_id: name of the checkpoint, such as "ckpt/17"; or "ckpt/", the newest under that prefix when the load
            starts. `dcp.load(checkpoint_id=)` replaces it.
        client: client to use. The default is `hoplite.client()`.
        timeout: seconds to wait for the checkpoint, and for each piece. None waits without a limit. The default
            is `default_timeout` of `hoplite.init`, or 60.

    Attributes:
        checkpoint_id: name of the checkpoint; after a load of the newest, the name of that.

    Raises:
        InvalidArgument: the name is not valid.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        client: hoplite.Client | None = None,
        timeout: float | None = DEFAULT,
    ) -> None:
        super().__init__()
        self._client = hoplite.client() if client is None else client
        self._timeout = limit(timeout, self._client, otherwise=60.0)
        self._stored: dict[Any, Any] = {}
        self._given: str | None = None
        self.checkpoint_id: str | None = None
        self.reset(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Starts another load."""
        self._given = self.checkpoint_id = storing.checked(checkpoint_id) or self._given
        self._stored = {}

    def read_metadata(self) -> Any:
        """Returns the list of the items of the checkpoint.

        Raises:
            DecodeError: the object is not a checkpoint.
            InvalidArgument: there is no `checkpoint_id`.
            ObjectLost: the process that saved the checkpoint has failed before it was complete.
            Timeout: the checkpoint did not exist in time.
        """
        if self._given is None:
            raise InvalidArgument("checkpoint_id is missing: pass a name such as 'ckpt/17', or 'ckpt/' for the newest")
        name = self._given
        if name.endswith("/"):
            name = str(self._client.latest(name, timeout=self._timeout))
        self.checkpoint_id = name
        return storing.load(self._client.get(name, timeout=self._timeout), name)

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Stores where the items are."""
        self._stored = {index: storing.Stored(*stored) for index, stored in metadata.storage_data.items()}

    def prepare_local_plan(self, plan: Any) -> Any:
        """Adds the name of the checkpoint to the plan of this rank."""
        return dataclasses.replace(plan, storage_data=self.checkpoint_id)

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Checks that all ranks load the same checkpoint.

        Raises:
            InvalidArgument: a newer checkpoint was completed while the load began.
        """
        names = sorted({plan.storage_data for plan in plans})
        if len(names) > 1:
            raise InvalidArgument(f"ranks found different newest checkpoints, {' and '.join(names)}: load again")
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Copies all items of the plan into the state dict.

        Raises:
            DecodeError: a value contains a class that torch does not consider safe to load.
            ObjectLost: all nodes with a copy of a piece have failed.
            ShapeMismatch: a tensor of the state dict has another shape.
            Timeout: a piece did not arrive in time.
        """
        by_piece: dict[str, list[Any]] = {}
        for item in plan.items:
            by_piece.setdefault(self._stored[item.storage_index].piece, []).append(item)
        for piece, data in self._pieces(list(by_piece)):
            memory = storing.as_tensor(data)
            for item in by_piece[piece]:
                stored = self._stored[item.storage_index]
                part = memory[stored.start : stored.start + stored.nbytes]
                if item.type == LoadItemType.BYTE_IO:
                    value = bytes(part.numpy())
                    # The planner of torch unpickles it. This finds classes that are not safe first.
                    safe_load.load(value, f"{item.storage_index.fqn} of {self.checkpoint_id}")
                    planner.load_bytes(item, io.BytesIO(value))
                else:
                    self._copy(item, part.view(stored.dtype).view(stored.shape), planner)
        done = torch.futures.Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether the name is valid for a checkpoint, or a prefix of checkpoints."""
        return storing.is_name(str(checkpoint_id))

    def _copy(self, item: Any, source: Any, planner: Any) -> None:
        for axis, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            source = source.narrow(axis, start, length)
        target = planner.resolve_tensor(item).detach()
        if target.shape != source.shape:
            raise ShapeMismatch(
                f"{item.storage_index.fqn} of {self.checkpoint_id} has the shape {tuple(source.shape)} here, but the "
                f"state dict has {tuple(target.shape)}: load it into a tensor of the same shape"
            )
        target.copy_(source)
        planner.commit_tensor(item, target)

    def _pieces(self, names: Sequence[str]) -> Iterator[tuple[str, memoryview]]:
        """Yields pieces with their bytes; up to `storing.AT_ONCE` are held or on the way."""
        remaining = iter(names)
        with concurrent.futures.ThreadPoolExecutor(storing.AT_ONCE) as pool:

            def start(count: int) -> list[tuple[str, concurrent.futures.Future[Any]]]:
                some = itertools.islice(remaining, count)
                return [(name, pool.submit(self._client.get, name, timeout=self._timeout)) for name in some]

            coming = start(storing.AT_ONCE)
            while coming:
                name, future = coming.pop(0)
                yield name, future.result()
                coming += start(1)
