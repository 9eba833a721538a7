"""The transport: which objects hold a checkpoint, and for how long.

A source cuts the bytes of its state into chunks. The name of a chunk contains the digest of its bytes: sources with the
same state share one object per chunk, whichever of them put it. A header, one object per call of `send_checkpoint`,
lists the chunks. A source holds a lease of its header and of all its chunks until `disallow_checkpoint`. An object is
deleted once its last lease has ended, also if the sources failed.

A source has reserved a name that it never puts. If its process or node fails, the name is lost, so that replicas which
wait for the header end.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from typing import TYPE_CHECKING, Any

import torch
from torchft.checkpointing.transport import CheckpointTransport

import hoplite
from hoplite.errors import DecodeError, HopliteError, InvalidArgument, NameTaken, Timeout
from hoplite.torch import safe_load
from hoplite.torchft import states

if TYPE_CHECKING:
    from datetime import timedelta

# Small enough that the sources of one recovery share the work, large enough that names and leases cost little.
CHUNK_BYTES = 32 * 2**20

# How often a replica that waits for a header checks whether its source has failed.
SOURCE_CHECK_S = 1.0


class HopliteTransport(CheckpointTransport[Any]):
    """Sends checkpoints to healing replicas through the stores of their hosts.

    A source copies its state into the store of its host, once for all replicas that heal. Replicas that heal at once
    relay to each other. If torchft selects several sources with the same state, each puts a part of it. The state may
    have nested dicts, lists and tuples; tensors, including DTensors; and whatever else `torch.load(weights_only=True)`
    accepts. Received tensors are on the CPU.

    Args:
        prefix: prefix of the names of all objects.
        client: client to use. The default is `hoplite.client()`.

    Raises:
        ConnectError: no node runs on this host, and none can be started.
        InvalidArgument: the prefix is not valid.
    """

    def __init__(self, prefix: str = "torchft", *, client: hoplite.Client | None = None) -> None:
        if not prefix or prefix.startswith("@"):
            raise InvalidArgument(f"prefix {prefix!r} is not valid: use a nonempty string that does not start with @")
        self._client = hoplite.client() if client is None else client
        self._prefix = prefix
        self._source = uuid.uuid4()
        self._sent = 0
        self._leases: list[hoplite.Lease] = []
        self._client.reserve(name=_alive(self.metadata()))

    def metadata(self) -> str:
        """Returns the prefix of the names of this source's headers, which torchft sends to healing replicas."""
        return f"{self._prefix}/{self._source.hex}"

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:
        """Puts the state, for any replica that has the metadata of this source.

        Args:
            dst_ranks: not used: every replica can get the objects.
            step: number of the step.
            state_dict: the state. It may change as soon as this returns.
            timeout: time limit of the call.

        Raises:
            InvalidArgument: the state contains an object that healing replicas could not load.
            StoreFull: the store of this host had no capacity in time.
            Timeout: the owners of the objects did not reply in time.
            UnsupportedDtype: a tensor is on the meta device.
        """
        deadline = _deadline(timeout)
        self.disallow_checkpoint()
        flat = states.FlatState(state_dict)
        spans = _spans(flat.nbytes)
        names = [f"{self._prefix}/{_digest(flat, *span)}/bytes" for span in spans]
        header = safe_load.dump({"state": flat.skeleton, "chunks": names}, "the state dict")
        try:
            # A failed step is sent again. Receivers get the newest header.
            self._sent += 1
            # Its node may have restarted.
            self._client.reserve(name=_alive(self.metadata()), timeout=_left(deadline))
            name = f"{self.metadata()}/{step}/{self._sent}"
            self._lease(name, deadline)
            self._client.put(header, name=name, timeout=_left(deadline))
            # Sources start at different chunks, to meet as late as possible.
            first = self._source.int % max(len(names), 1)
            for index in [*range(first, len(names)), *range(first)]:
                self._put_chunk(names[index], flat, spans[index], deadline)
        except BaseException:
            self.disallow_checkpoint()
            raise

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """Gets the state of a step.

        Args:
            src_rank: not used: the bytes come from every node that has them.
            metadata: `metadata()` of the source.
            step: number of the step.
            timeout: time limit of the call.

        Returns:
            The state, in memory of its own.

        Raises:
            DecodeError: the state contains an object that is not safe to load here.
            ObjectDeleted: the source has stopped offering this step.
            ObjectLost: the source failed before it offered this step, or all nodes with a part of the state have.
            Timeout: the source did not offer this step, or the bytes did not arrive, in time.
        """
        deadline = _deadline(timeout)
        newest = self._newest(metadata, step, deadline)
        header = safe_load.load(self._client.get(newest, timeout=_left(deadline)), f"step {step} of {metadata}")
        skeleton = states.Skeleton(header["state"])
        spans = _spans(skeleton.nbytes)
        names = header["chunks"]
        if len(names) != len(spans):
            raise DecodeError(f"step {step} of {metadata} has {len(names)} chunks, not {len(spans)}: send it again")
        data = torch.empty(skeleton.nbytes, dtype=torch.uint8, device="cpu")
        parts = [memoryview(data[start:end].numpy()) for start, end in spans]
        self._client.get(names, out=parts, timeout=_left(deadline))
        return skeleton.filled(data)

    def disallow_checkpoint(self) -> None:
        """Stops offering the state. Its objects are deleted, unless another source offers them too."""
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()

    def shutdown(self, wait: bool = True) -> None:
        """Stops offering the state. The client stays open. A second call does nothing."""
        self.disallow_checkpoint()
        with contextlib.suppress(HopliteError):
            self._client.delete(_alive(self.metadata()))

    def _newest(self, metadata: str, step: int, deadline: float) -> hoplite.Ref:
        """Waits for a header of a step, until its source has failed."""
        while True:
            left = _left(deadline)
            try:
                return self._client.latest(f"{metadata}/{step}/", timeout=min(left, SOURCE_CHECK_S))
            except Timeout:
                if left <= SOURCE_CHECK_S:
                    raise
            if self._client.wait([_alive(metadata)], timeout=0)[0]:
                # It raises, unless the source has reserved the name again.
                with contextlib.suppress(Timeout):
                    self._client.get(_alive(metadata), timeout=SOURCE_CHECK_S)

    def _put_chunk(self, name: str, flat: states.FlatState, span: tuple[int, int], deadline: float) -> None:
        self._lease(name, deadline)
        start, end = span
        with (
            contextlib.suppress(NameTaken),
            self._client.create(end - start, "bytes", name=name, timeout=_left(deadline)) as buffer,
        ):
            memory = buffer.array
            at = 0
            for part in flat.read(start, end):
                memory[at : at + len(part)] = part
                at += len(part)
            del memory

    def _lease(self, name: str, deadline: float) -> None:
        self._leases.append(self._client.lease(name, timeout=_left(deadline)))


def _alive(metadata: str) -> str:
    """Returns the name that a source has reserved as long as it runs."""
    return f"{metadata}/alive/0"


def _spans(nbytes: int) -> list[tuple[int, int]]:
    """Returns where each chunk of a state starts and ends."""
    return [(start, min(start + CHUNK_BYTES, nbytes)) for start in range(0, nbytes, CHUNK_BYTES)]


def _digest(flat: states.FlatState, start: int, end: int) -> str:
    digest = hashlib.sha256()
    for part in flat.read(start, end):
        digest.update(part)
    return digest.hexdigest()


def _deadline(timeout: timedelta) -> float:
    return time.monotonic() + timeout.total_seconds()


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
