"""`register`: makes Hoplite's tensor transports and collective groups known to Ray, here and in actors.

Nothing else of the package imports these, whose interfaces in Ray are alpha.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import ray

from hoplite.ray.names import ARRAYS, TENSORS
from hoplite.ray.place import check_connected

if TYPE_CHECKING:
    from collections.abc import Iterable


def register(actors: Iterable[Any] = ()) -> None:
    """Makes the tensor transport and the collective groups of Hoplite known to Ray in this process.

    Call it before a class of actors is made whose methods say `@ray.method(tensor_transport="hoplite")`, and in the
    process that makes the actors. The transport "hoplite" moves torch tensors of the CPU, or NumPy arrays where
    torch is not installed; "hoplite_numpy" moves NumPy arrays. The members of collective groups of
    `ray.util.collective` with the backend "hoplite" need it too: call it in each, or name them. Twice is fine.

    Args:
        actors: handles of actors to tell the same.

    Raises:
        ConnectError: this process is connected only by Ray Client, whose server makes the actors.
        UnknownRay: the interfaces of the installed Ray are not those that this package knows.
    """
    # Alpha interfaces of Ray: where they differ, the rest of this package goes on.
    from hoplite.ray.groups import check_group, register_backend
    from hoplite.ray.transport import HopliteArrayTransport, HopliteTransport, check_transport

    if ray.is_initialized():
        check_connected()
    check_transport()
    check_group()
    import numpy as np
    from ray.experimental.rdt.util import transport_manager_info

    kinds: dict[str, tuple[type, Any]] = {ARRAYS: (HopliteArrayTransport, np.ndarray)}
    if importlib.util.find_spec("torch") is not None:
        import torch

        kinds[TENSORS] = HopliteTransport, torch.Tensor
    else:
        kinds[TENSORS] = HopliteTransport, np.ndarray
    for name, (manager, kind) in kinds.items():
        if name not in transport_manager_info:
            ray.experimental.register_tensor_transport(name, ["cpu"], manager, kind)
    register_backend()
    waiting = [actor.__ray_call__.remote(_register) for actor in actors]
    if waiting:
        # Asked for nothing, Ray would start a cluster of its own.
        ray.get(waiting)


def _register(_: Any) -> None:
    register()
