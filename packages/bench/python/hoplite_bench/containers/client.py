"""Runs a command in a container through its server; the command has the stdin, stdout and stderr of this program.

It runs without the bench's packages, as a file: client.py SOCKET COMMAND.
"""

from __future__ import annotations

import json
import socket
import sys


def main() -> int:
    """Returns the exit status of the command; 255 if there is none."""
    path, command = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
            socket.send_fds(server, [b" "], [0, 1, 2])
            server.sendall(json.dumps(command).encode() + b"\n")
            status = server.recv(1)
        except OSError as error:
            sys.stderr.write(f"can't run a command in the container at {path}: {error}; check that it still runs\n")
            return 255
    if not status:
        sys.stderr.write(f"the container at {path} ended before the command\n")
        return 255
    return status[0]


if __name__ == "__main__":
    sys.exit(main())
