"""Saving: packs the items of a rank into pieces, and completes the checkpoint."""

from __future__ import annotations

import concurrent.futures
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.storage import WriteResult

import hoplite
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import InvalidArgument, NameTaken
from hoplite.torch.checkpoint import storing
from hoplite.torch.weights.checking import single

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

# A piece is larger only if it has one item.
PIECE_BYTES = 64 * 2**20
# A cache line, and a multiple of the size of every element.
ALIGNMENT = 64


class HopliteWriter(dcp.StorageWriter):
    """Saves checkpoints as objects in the memory of the hosts.

    Args:
        checkpoint_id: name of the checkpoint, such as "ckpt/17". `dcp.save(checkpoint_id=)` replaces it.
        replicas: number of nodes that keep a copy of every piece, as for `Client.put`. With 2, the checkpoint survives
            the failure of any one node.
        retain: number of newest checkpoints to retain under the prefix of the name, including this one. None deletes
            nothing.
        client: client to use. The default is `hoplite.client()`.
        timeout: seconds to wait for memory and replicas of each piece. None waits without a limit. The default
            is `default_timeout` of `hoplite.init`.

    Raises:
        InvalidArgument: the name is not valid, or `replicas` or `retain` is below 1.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        replicas: int = 2,
        retain: int | None = None,
        client: hoplite.Client | None = None,
        timeout: float | None = DEFAULT,
    ) -> None:
        super().__init__()
        if replicas < 1 or (retain is not None and retain < 1):
            raise InvalidArgument(f"replicas is {replicas} and retain is {retain}: set both to at least 1")
        self._client = hoplite.client() if client is None else client
        self._replicas = replicas
        self._retain = retain
        self._timeout = limit(timeout, self._client)
        self.checkpoint_id: str | None = None
        self.reset(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Starts another checkpoint."""
        self.checkpoint_id = storing.checked(checkpoint_id) or self.checkpoint_id
        self._save = uuid.uuid4().hex

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Checks that the checkpoint can be saved, and reserves its name.

        A load that waits for the checkpoint therefore ends with `ObjectLost` if this process or its node fails.

        Raises:
            InvalidArgument: there is no `checkpoint_id`, or `use_collectives` is False; or `retain` is given and the
                name has no number.
            NameTaken: a checkpoint with this name exists, or another process saves it.
        """
        name = self._name()
        if not kwargs.get("use_collectives", True):
            raise InvalidArgument("use_collectives=False saves no complete checkpoint: leave it out")
        if self._retain is not None and not name.rpartition("/")[2].isdecimal():
            raise InvalidArgument(f"retain needs a number at the end of {name!r}: pass a name such as 'ckpt/17'")
        if is_coordinator:
            try:
                self._client.reserve(name=name, timeout=self._timeout)
            except NameTaken:
                raise NameTaken(
                    f"checkpoint {name} exists, or another process saves it: use another name, or delete it first"
                ) from None

    def prepare_local_plan(self, plan: Any) -> Any:
        """Returns the plan of this rank, unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Returns the plans of all ranks, unchanged."""
        return plans

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Puts the items of this rank. They are in the store, with their replicas, when this returns.

        Raises:
            StoreFull: the store had no capacity in time.
            Timeout: replicas were not complete in time.
            UnsupportedDtype: a tensor has no elements in memory of its own.
        """
        results: list[Any] = []
        seals = []
        with concurrent.futures.ThreadPoolExecutor(storing.AT_ONCE) as pool:
            for number, items in enumerate(_packed(plan.items, planner)):
                # The text before the last slash selects the owners of an object: here, others for each piece.
                piece = f"{self._name()}/{self._save}-{number}/bytes"
                nbytes = max(items[-1].start + items[-1].nbytes, 1)
                buffer = self._client.create(
                    nbytes, "bytes", name=piece, replicas=self._replicas, timeout=self._timeout
                )
                memory = storing.as_tensor(buffer.array)
                for item in items:
                    dtype, shape = item.copy_to(memory)
                    stored = storing.Stored(piece, item.start, item.nbytes, dtype, shape)
                    results.append(WriteResult(item.index, item.nbytes, tuple(stored)))
                del memory
                seals.append(pool.submit(buffer.seal, timeout=self._timeout))
        for seal in seals:
            seal.result()
        done = torch.futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Puts the list of all items, which completes the checkpoint, and deletes old ones as `retain` requires.

        Raises:
            InvalidArgument: the planner adds objects to the list that are not safe to load.
            NameTaken: a checkpoint with this name exists.
        """
        name = self._name()
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        metadata.storage_meta = self.storage_meta()
        data = storing.dump(metadata, name)
        self._client.put(data, name=name, replicas=self._replicas, retain=self._retain, timeout=self._timeout)
        if self._retain is not None:
            storing.prune(self._client, name, self._retain, self._timeout)

    def storage_meta(self) -> Any:
        """Returns the name of the checkpoint and the id of this save, for planners and logs."""
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._save)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether the name is valid for a checkpoint."""
        return storing.is_name(str(checkpoint_id))

    def _name(self) -> str:
        if self.checkpoint_id is None or self.checkpoint_id.endswith("/"):
            raise InvalidArgument(f"checkpoint_id is {self.checkpoint_id!r}: pass a name such as 'ckpt/17'")
        return self.checkpoint_id


class _Placed(NamedTuple):
    """An item in its piece. `value` is a tensor, or a buffer with the bytes of another value."""

    index: Any
    value: Any
    start: int
    nbytes: int

    def copy_to(self, memory: Any) -> tuple[Any, Any]:
        """Copies the item to its place in the memory of the piece; returns dtype and shape of a tensor."""
        place = memory[self.start : self.start + self.nbytes]
        if isinstance(self.value, torch.Tensor):
            tensor = self.value.detach()
            place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
            return tensor.dtype, tensor.shape
        place.copy_(torch.frombuffer(self.value, dtype=torch.uint8))
        return None, None


def _packed(items: Sequence[Any], planner: Any) -> Iterator[list[_Placed]]:
    """Yields the items of each piece. Only those of one piece are in memory at once."""
    piece: list[_Placed] = []
    end = 0
    for item in items:
        value = planner.resolve_data(item)
        if isinstance(value, torch.Tensor):
            value = single(str(item.index.fqn), value)
            nbytes = value.numel() * value.element_size()
        else:
            value = value.getbuffer()
            nbytes = len(value)
        start = -(-end // ALIGNMENT) * ALIGNMENT
        if piece and start + nbytes > PIECE_BYTES:
            yield piece
            piece, start = [], 0
        piece.append(_Placed(item.index, value, start, nbytes))
        end = start + nbytes
    if piece:
        yield piece
