"""Whether the node at an address would admit a node with some settings, without joining its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite import _admission, _native

if TYPE_CHECKING:
    from hoplite.settings import Values


def refusal(values: Values, address: str) -> str | None:
    """Returns why the node at an address would not admit a node with these settings; None if it would.

    Args:
        values: settings of a node.
        address: host and port.

    Raises:
        HopliteError: the settings have no credentials for that address, or their files are not usable.
    """
    credentials: dict[str, object] = dict(_admission.admission(values, address)._asdict())
    for name in ("cluster", "no_encryption"):
        credentials[name] = values[name]
    return _native.check_peer(credentials, address)
