"""What a lab raises."""

from hoplite.errors import HopliteError


class LabError(HopliteError):
    """A lab of network namespaces can't be made or does not answer: no root, no Linux, a tool that is missing.

    The message says what is needed.
    """
