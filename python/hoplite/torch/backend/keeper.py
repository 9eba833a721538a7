"""A process that runs the node of one host for the ranks there, and ends when the last of them has.

It is apart from the ranks, so that a rank that dies takes no objects of others with it. The first line of its input is
its configuration; its output is one line: where it serves, or its error. Does not know torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import Any

import hoplite
from hoplite.errors import HopliteError, Timeout

# Time for the first rank to register the object that stands for all ranks.
REGISTER_S = 60.0
# Time to start.
START_S = 60.0
# How often the keeper looks whether the object is still there. It must outlast any pause of the owner.
LOOK_S = 30.0


def start(node: dict[str, Any], marker: str) -> tuple[str, str | None]:
    """Starts a keeper.

    Args:
        node: arguments of `hoplite.Node`, all of which JSON has.
        marker: name of an object; the keeper ends when that is deleted.

    Returns:
        The path of its socket, and the address that other nodes join if it has a TCP port.

    Raises:
        HopliteError: the node could not start.
    """
    # Not on the command line: it can have a token.
    line = json.dumps({"node": node, "marker": marker}) + "\n"
    process = subprocess.Popen(
        # By its path: the package that contains this file imports torch.
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A pipe would stay open after the ranks, and so block whoever reads their output to its end.
        stderr=subprocess.DEVNULL,
        # The signals of the ranks' terminal are not for it.
        start_new_session=True,
        # It finds hoplite where this process did.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as output:
        with contextlib.suppress(BrokenPipeError), process.stdin as line_in:
            line_in.write(line)
        ready, _, _ = select.select([output], [], [], START_S)
        reply = output.readline() if ready else ""
    if not ready:
        process.kill()
        raise HopliteError(f"the process of the node did not start within {START_S:g} s: run hoplite node on this host")
    try:
        facts = json.loads(reply)
    except ValueError:
        raise HopliteError(
            f"the process of the node ended with status {process.wait(START_S)}: run hoplite node"
        ) from None
    if "error" in facts:
        raise HopliteError(f"the node of this host can't start: {facts['error']}")
    return facts["socket"], facts["address"]


def main() -> None:
    """Runs the node until the marker is deleted."""
    facts = json.loads(sys.stdin.readline())
    try:
        node = hoplite.Node(**facts["node"])
        address = node.address if "listen" in facts["node"] or "join" in facts["node"] else None
    except HopliteError as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201 - the reply to the rank
        return
    with node, node.client() as client:
        print(json.dumps({"socket": node.socket, "address": address}), flush=True)  # noqa: T201
        sys.stdout.close()
        until_deleted(client, facts["marker"])


def until_deleted(client: hoplite.Client, marker: str) -> None:
    """Returns when an object that is put soon is deleted or lost."""
    with contextlib.suppress(HopliteError):
        client.get(marker, timeout=REGISTER_S)
        # A watch that begins after the deletion would wait for another object of this name.
        while client.wait([marker], timeout=LOOK_S)[0]:
            with contextlib.suppress(Timeout):
                for _ in client.watch_locations(marker, timeout=LOOK_S):
                    pass


if __name__ == "__main__":
    main()
