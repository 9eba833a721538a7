"""What a lab raises."""

from hoplite.errors import HopliteError


class LabError(HopliteError):
    """A lab of network namespaces can't be created or does not respond: no root, no Linux, a missing tool.

    The message names what is missing.
    """
