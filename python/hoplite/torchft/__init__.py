"""Hoplite as the checkpoint transport of torchft: a healing replica takes the state from every node that has it.

Pass `HopliteTransport()` to `torchft.Manager` as `checkpoint_transport`. It needs the extra `torchft`.
See docs/torch-frameworks.md.
"""

from hoplite.torchft import needs as _needs

_needs.check()

from hoplite.torchft.transport import HopliteTransport  # noqa: E402

__all__ = ["HopliteTransport"]
