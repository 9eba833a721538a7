"""Checkpoints of torch.distributed.checkpoint in the memory of the hosts, by name.

    dcp.save(state_dict, storage_writer=HopliteWriter("ckpt/17", replicas=2, retain=2))
    dcp.load(state_dict, storage_reader=HopliteReader("ckpt/"))     # the newest

See docs/torch-frameworks.md.
"""

from hoplite.errors import PackageMissing

try:
    from torch.distributed.checkpoint.storage import StorageReader as _  # noqa: F401 - only checked
except ImportError as error:
    raise PackageMissing(
        f"hoplite.torch.checkpoint needs torch 2.4 or later with torch.distributed ({error}): run pip install -U torch"
    ) from None

from hoplite.torch.checkpoint.reading import HopliteReader
from hoplite.torch.checkpoint.storing import delete
from hoplite.torch.checkpoint.writing import HopliteWriter

__all__ = ["HopliteReader", "HopliteWriter", "delete"]
