"""The backend "hoplite_auto" of torch.distributed, which runs each operation and size on the backend that a plan names.

torch.distributed.init_process_group("hoplite_auto")

torch finds it by itself if the package is installed. From a checkout, call `register` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError, InvalidArgument, PackageMissing
from hoplite.extras import install

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise PackageMissing(f"hoplite_auto needs PyTorch, which can't be imported ({error}): {install('torch')}") from None

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, ProcessGroup, _DistributedBackendOptions

NAME = "hoplite_auto"
# The first with process groups in Python.
OLDEST = (2, 14)


def register() -> None:
    """Registers the backend with torch. A second call does nothing.

    Raises:
        HopliteError: torch is too old, or was built without torch.distributed or Gloo.
    """
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if not dist.is_available() or not dist.is_gloo_available() or version < OLDEST:
        raise HopliteError(
            f"{NAME} needs torch {'.'.join(map(str, OLDEST))} or later with torch.distributed and Gloo, but this is "
            f"torch {torch.__version__}: run pip install -U torch"
        )
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def status(group: Any = None) -> dict[str, Any]:
    """Describes the plan of a group and the calls of this rank.

    Args:
        group: a group of this backend; None is the default group.

    Returns:
        `plan`: fingerprint of the plan, or None. `source`: where it is from, or why there is none. `members`: for
        each backend that is in use, its `calls` and `bytes`. `left_out`: backends of the plan that can't be used, with
        the reason; the next fastest ones take their operations. `drift`: which operations take longer than the plan
        predicts, or "".

    Raises:
        InvalidArgument: the group has another backend.
    """
    found = group or dist.group.WORLD
    if not hasattr(found, "status"):
        found = found._get_backend(torch.device("cpu"))
    if not hasattr(found, "status"):
        raise InvalidArgument(f"the group has another backend than {NAME}: pass a group of {NAME}")
    return found.status()  # type: ignore[no-any-return]


def _create(options: _DistributedBackendOptions, _of_backend: Any) -> Backend | ProcessGroup:
    from hoplite_bench.select.torch_auto.group import AutoBackend, AutoProcessGroup
    from hoplite_bench.select.torch_auto.members import Members

    members = Members(options)
    # As in "cpu:hoplite_auto,cuda:nccl": another backend is the default of the group, or already has a device.
    is_shared = options.process_group.name() != "custom" or bool(options.process_group._device_types)
    return AutoBackend(members) if is_shared else AutoProcessGroup(members)
