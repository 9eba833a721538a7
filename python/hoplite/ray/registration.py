"""`register`: registers Hoplite's tensor transports and collective groups with Ray, here and in actors.

Only this module imports them, because their interfaces in Ray are alpha.
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
    """Registers Hoplite's tensor transports and collective groups with Ray in this process.

    For methods with `@ray.method(tensor_transport="hoplite")`, call it before their class is defined, in the process
    that creates the actors. The transport "hoplite" transfers torch CPU tensors, or NumPy arrays if torch is not
    installed; "hoplite_numpy" transfers NumPy arrays. Members of a group of `ray.util.collective` with the backend
    "hoplite" need it too: call it in each member, or pass the members here. A second call does nothing.

    Args:
        actors: handles of actors in which to register as well.

    Raises:
        ConnectError: this process is connected only by Ray Client, whose server creates the actors.
        UnknownRay: the interfaces of the installed Ray differ from those that this package supports.
    """
    # Alpha interfaces of Ray: if they differ, the rest of this package still works.
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
        # Even with an empty list, `ray.get` would start a Ray cluster.
        ray.get(waiting)


def _register(_: Any) -> None:
    register()
