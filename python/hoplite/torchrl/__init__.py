"""Weights of TorchRL policies by name: the weight-sync backend "hoplite".

`import hoplite.torchrl` registers it, and `WeightSyncScheme.from_backend("hoplite")` creates a scheme. It needs the
extra `torchrl`. See docs/torch-frameworks.md.
"""

from hoplite.torchrl import needs as _needs

_needs.check()

from hoplite.torchrl.scheme import HopliteWeightSyncScheme  # noqa: E402

__all__ = ["HopliteWeightSyncScheme"]
