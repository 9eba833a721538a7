"""The backend "hoplite" of torch.distributed.

import hoplite.torch
torch.distributed.init_process_group("hoplite")

`register` makes torch know it; `import hoplite.torch` does that, and torch does it by itself for an installed package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, ProcessGroup, _DistributedBackendOptions

NAME = "hoplite"
# The first with process-group backends in Python.
OLDEST = (2, 14)


def register() -> None:
    """Registers the backend with torch. A second call does nothing.

    Raises:
        HopliteError: torch is too old, or was built without torch.distributed.
    """
    if not is_supported():
        raise HopliteError(
            f"the backend hoplite of torch.distributed needs torch {'.'.join(map(str, OLDEST))} or later with "
            f"torch.distributed, but this is torch {torch.__version__}: run pip install -U torch"
        )
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def is_supported() -> bool:
    """Whether this torch can have the backend."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return dist.is_available() and version >= OLDEST


def _create(options: _DistributedBackendOptions, _of_backend: Any) -> Backend | ProcessGroup:
    from hoplite.torch.backend.membership import Member
    from hoplite.torch.backend.process_group import HopliteBackend, HopliteProcessGroup

    member = Member(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout.total_seconds(),
        waits=options.enable_reconfigure,
    )
    # As in "cpu:hoplite,cuda:nccl": another backend is the default of the group, or already has a device.
    is_shared = options.process_group.name() != "custom" or bool(options.process_group._device_types)
    return HopliteBackend(member) if is_shared else HopliteProcessGroup(member)
