"""The tensor transport "hoplite": it transfers the results of actor methods between actors through Hoplite.

Each tensor is a Hoplite object, put when the method returns. Its name follows from the ObjectRef, so it can be the
input of a reduce before the method has run. The receiver gets it by that name; the sender takes no part. Ray
reports the end of the last reference.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import ray

from hoplite import Client, ClientClosed, HopliteError, Timeout, UnsupportedDtype
from hoplite.ray import place
from hoplite.ray._versions import create_transfer_manager, unknown
from hoplite.ray.again import put_again
from hoplite.ray.names import ARRAYS, TENSORS, name_of

try:
    from ray.experimental.rdt.tensor_transport_manager import (
        CommunicatorMetadata,
        FetchRequest,
        TensorTransportManager,
        TensorTransportMetadata,
    )
except ImportError:
    raise unknown("has no ray.experimental.rdt.tensor_transport_manager with the classes of a transport") from None

# Ray imports this module in every actor that takes part in transfers, and waits for that before the first transfer.
create_transfer_manager()

DELETE_S = 10.0


@dataclass
class HopliteMetadata(TensorTransportMetadata):  # type: ignore[misc] # Ray is not there when types are checked
    """The metadata that a receiver gets for the tensors of an ObjectRef.

    Attributes:
        names: the names of their objects, in order.
    """

    names: list[str] = field(default_factory=list)


@dataclass
class HopliteFetch(FetchRequest):  # type: ignore[misc] # as above
    """A fetch for `ray.get`, performed by `wait_fetch_complete`.

    Attributes:
        names: the names of the objects.
        targets: the caller's buffers to fill, if any.
    """

    names: list[str] = field(default_factory=list)
    targets: list[Any] | None = None


class HopliteTransport(TensorTransportManager):  # type: ignore[misc] # as above
    """The transport for torch tensors, or for NumPy arrays without torch; Ray creates one per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Leases of the objects that this process put, by the id of the ObjectRef.
        self._leases: dict[str, list[Any]] = {}
        # Clients of current transfers, by the id of the ObjectRef. Closing one aborts its transfer.
        self._receiving: dict[str, list[Client]] = {}

    def tensor_transport_backend(self) -> str:
        """The name of the transport."""
        return TENSORS

    @staticmethod
    def is_one_sided() -> bool:
        """Returns True: receivers get tensors without the sender."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """Returns True: an aborted transfer leaves both actors usable."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:  # noqa: ARG002 - Ray's signature
        """Returns True: `hoplite.ray.start` runs a node on every Ray node, so all actors have the transport."""
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> HopliteMetadata:
        """Puts the tensors of an ObjectRef. If Ray retries the task, the tensors of the first attempt stay.

        Raises:
            UnsupportedDtype: a tensor is not in host memory.
            HopliteError: see `Client.put`.
        """
        for tensor in rdt_object:
            device = getattr(getattr(tensor, "device", None), "type", "cpu")
            if device != "cpu":
                raise UnsupportedDtype(
                    f"a tensor is on {device}, but the hoplite transport takes CPU tensors only: return tensor.cpu()"
                )
        hp = place.client()
        names = [name_of(obj_id, number, len(rdt_object)) for number in range(len(rdt_object))]
        leases = [hp.lease(name) for name in names]
        try:
            for name, tensor in zip(names, rdt_object, strict=True):
                put_again(hp, tensor.detach() if hasattr(tensor, "detach") else tensor, name)
        except BaseException:
            for lease in leases:
                lease.release()
            raise
        with self._lock:
            self._leases.setdefault(obj_id, []).extend(leases)
        meta = [(tensor.shape, tensor.dtype) for tensor in rdt_object]
        return HopliteMetadata(tensor_meta=meta, tensor_device="cpu", names=names)

    def get_communicator_metadata(
        self,
        src_actor: Any,  # noqa: ARG002 - Ray's signature
        dst_actor: Any,  # noqa: ARG002
        backend: str | None = None,  # noqa: ARG002
    ) -> Any:
        """Returns empty metadata: receivers need the names only."""
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: HopliteMetadata,
        communicator_metadata: Any,  # noqa: ARG002 - Ray's signature
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Gets the tensors of an ObjectRef.

        Raises:
            HopliteError: Ray has aborted the transfer; see also `Client.get`.
        """
        # A separate client, so that closing it aborts this transfer only.
        with place.another() as hp:
            with self._lock:
                self._receiving.setdefault(obj_id, []).append(hp)
            try:
                return _received(hp, tensor_transport_metadata.names, target_buffers, None)
            except ClientClosed:
                raise HopliteError(f"Ray has aborted the transfer of {obj_id}") from None
            finally:
                with self._lock:
                    self._receiving[obj_id].remove(hp)
                    if not self._receiving[obj_id]:
                        del self._receiving[obj_id]

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: HopliteMetadata,
        communicator_metadata: Any,  # noqa: ARG002 - Ray's signature
        target_buffers: list[Any] | None = None,
    ) -> HopliteFetch:
        """Returns a fetch for `ray.get`, without starting it."""
        names = tensor_transport_metadata.names
        return HopliteFetch(obj_id=obj_id, tensors=[], names=names, targets=target_buffers)

    def wait_fetch_complete(self, fetch_request: HopliteFetch, timeout: float = -1) -> list[Any]:
        """Gets the tensors of a fetch for `ray.get`.

        Raises:
            TimeoutError: the tensors did not arrive in time.
        """
        limit = None if timeout < 0 else timeout
        return _received(place.client(), fetch_request.names, fetch_request.targets, limit)

    def send_multiple_tensors(
        self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        """Is not called by Ray, because the transport is one-sided."""
        raise NotImplementedError("the hoplite transport is one-sided: receivers get tensors without the sender")

    def garbage_collect(
        self,
        obj_id: str,
        tensor_transport_meta: HopliteMetadata,
        tensors: list[Any],  # noqa: ARG002 - Ray's signature
    ) -> None:
        """Deletes the tensors of an ObjectRef without references."""
        with self._lock:
            leases = self._leases.pop(obj_id, [])
        try:
            place.client().delete(tensor_transport_meta.names, timeout=DELETE_S)
        finally:
            for lease in leases:
                lease.release()

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:  # noqa: ARG002 - Ray's signature
        """Aborts the transfers of an ObjectRef to this process."""
        with self._lock:
            receiving = list(self._receiving.get(obj_id, []))
        for hp in receiving:
            hp.close()


class HopliteArrayTransport(HopliteTransport):
    """The transport for NumPy arrays. Ray needs one transport per type. Received arrays are read-only."""

    def tensor_transport_backend(self) -> str:
        """The name of the transport."""
        return ARRAYS


def check_transport() -> None:
    """Checks that this Ray requires no other methods of a transport.

    Raises:
        UnknownRay: it does; the message names them.
    """
    missing = sorted(getattr(HopliteTransport, "__abstractmethods__", ()))
    if missing:
        raise unknown(f"requires additional methods of a tensor transport ({', '.join(missing)})")
    if not hasattr(ray.experimental, "register_tensor_transport"):
        raise unknown("has no ray.experimental.register_tensor_transport")


def _received(hp: Client, names: list[str], targets: list[Any] | None, limit: float | None) -> list[Any]:
    if not names:
        return []
    try:
        return hp.get(names, out=targets, timeout=limit)
    except Timeout as error:
        raise TimeoutError(str(error)) from None
