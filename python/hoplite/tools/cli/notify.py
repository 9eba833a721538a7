"""What a service manager wants to know: datagrams to NOTIFY_SOCKET, which systemd reads for services of Type=notify."""

from __future__ import annotations

import os
import socket

VARIABLE = "NOTIFY_SOCKET"


def notify(*facts: str) -> str | None:
    """Tells the service manager, if there is one; never waits for it.

    Args:
        facts: such as "READY=1" and "STATUS=...".

    Returns:
        Why it could not be told; None if it was, or if there is none.
    """
    address = os.environ.get(VARIABLE, "")
    if not address:
        return None
    if address[0] not in "/@":
        return f"{VARIABLE} is {address}, neither a path nor @name"
    # A name that begins with @ is in no folder.
    target = "\0" + address[1:] if address[0] == "@" else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as own:
            own.setblocking(False)
            own.sendto("\n".join(facts).encode(), target)
    except OSError as error:
        return f"{VARIABLE} is {address}: {error.strerror or error}"
    return None
