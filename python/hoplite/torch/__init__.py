"""Hoplite for PyTorch: the backend "hoplite" of torch.distributed, and model weights by name.

import hoplite.torch as ht
torch.distributed.init_process_group("hoplite")

ht.publish(module, "policy/17")            # the trainer
got = ht.fetch("policy/", into=module)     # any number of receivers, which come and go

The package uses only the public library. `import hoplite` never imports it.
"""

from hoplite.torch import needs as _needs

_needs.check()

from hoplite.torch.backend import is_supported, register  # noqa: E402 - torch must be there for the others
from hoplite.torch.weights import (  # noqa: E402
    Manifest,
    ManifestInvalid,
    Publication,
    Staged,
    Weights,
    delete,
    fetch,
    fetch_async,
    publish,
    record,
)

__all__ = [
    "Manifest",
    "ManifestInvalid",
    "Publication",
    "Staged",
    "Weights",
    "delete",
    "fetch",
    "fetch_async",
    "publish",
    "record",
    "register",
]

if is_supported():
    register()
