"""The live page and the metrics of a node over HTTP, behind a key for viewers. Read-only.

`serve` is the entry point `http` of the library's services. It imports the extra `http` on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite.errors import PackageMissing
from hoplite.extras import install

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from hoplite.tools.http.server import Server


def serve(listener: socket.socket, keys: Sequence[str]) -> Server:
    """Prepares a server on an open port.

    Args:
        listener: the port, which the server closes in the end.
        keys: keys that viewers may present; empty if they need none.

    Raises:
        PackageMissing: the extra is not installed.
    """
    try:
        from hoplite.tools.http.server import Server
    except ModuleNotFoundError as error:
        listener.close()
        raise PackageMissing(f"http needs {error.name}, which is not installed: {install('http')}") from None
    return Server(listener, keys)
