"""Notifications to the service manager: datagrams to NOTIFY_SOCKET, as systemd reads for services of Type=notify."""

from __future__ import annotations

import os
import socket

VARIABLE = "NOTIFY_SOCKET"


def notify(*facts: str) -> str | None:
    """Notifies the service manager, if there is one; never blocks.

    Args:
        facts: such as "READY=1" and "STATUS=...".

    Returns:
        Why the notification failed; None if it was sent, or if there is no service manager.
    """
    address = os.environ.get(VARIABLE, "")
    if not address:
        return None
    if address[0] not in "/@":
        return f"{VARIABLE} is {address}, which is neither a path nor @name"
    # A name that begins with @ is in the abstract namespace.
    target = "\0" + address[1:] if address[0] == "@" else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as own:
            own.setblocking(False)
            own.sendto("\n".join(facts).encode(), target)
    except OSError as error:
        return f"{VARIABLE} is {address}: {error.strerror or error}"
    return None
