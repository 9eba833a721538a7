"""Hoplite for PyTorch: the backend "hoplite" of torch.distributed.

import hoplite.torch
torch.distributed.init_process_group("hoplite")

The package uses only the public library. `import hoplite` never imports it.
"""

from hoplite.torch.backend import is_supported, register

if is_supported():
    register()
