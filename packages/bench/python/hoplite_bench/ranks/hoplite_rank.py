"""A worker of Hoplite, which runs each operation as an application of Hoplite would.

It embeds a node, or attaches to that of another worker on the same machine.

The bench passes refs from rank to rank, as an application's own messages would.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import hoplite
from content import DTYPE, fill, wrong_at
from hoplite.tools.peace import disturbances
from rank import Rank, Task, arguments, serve, timeout_s

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

START_TIMEOUT_S = 60.0
# For workers that were left behind, unless the bench sets another one; that of the bench is shorter.
PATIENCE_S = timeout_s(600.0)
# Separator between the refs of a rank's inputs and the ref of the sum, and separator between those of its inputs.
AND = "+"
NEXT = "|"


class HopliteRank(Rank):
    """One client of one node.

    Args:
        client: the client.
        seal_at_call: whether inputs become readable only at the call, even if all ranks call at once. Where ranks share
            processors, a rank may call late, and others would otherwise finish most of the work before that.
    """

    def __init__(self, client: hoplite.Client, *, seal_at_call: bool = False) -> None:
        self.client = client
        self.seal_at_call = seal_at_call
        self.made: list[hoplite.Ref | str] = []
        self.came: list[np.ndarray] = []
        self.own: np.ndarray | list[hoplite.Buffer] | None = None
        self.reserved: hoplite.Ref | None = None
        self.counters = client.status()["counters"]

    def prepare(self, task: Task) -> str:
        """Creates this rank's input in the store, if it has one, so that it exists once and before all calls.

        For an allreduce, the root reserves the ref of the sum and sends it with the refs of its inputs.
        An input that is sealed at the call has a name; so do all if ranks call one after another. For a round trip, it
        is put during the round under a reserved ref that the other side has, like the reply to a request.
        """
        self.own = None
        if (task.rank > 1 and task.op == "rtt") or (task.rank > 0 and task.op == "broadcast"):
            return ""
        count = task.nbytes // DTYPE.itemsize
        if task.op == "rtt":
            self.reserved = self.client.reserve()
            self.made.append(self.reserved)
            if task.rank == 0:
                self.own = np.empty(count, DTYPE)
                fill(self.own, rank=0, seed=task.seed)
            return str(self.reserved)
        # Further inputs count as inputs of additional ranks.
        numbers = [task.rank + task.ranks * further for further in range(task.inputs)]
        late = self.seal_at_call or task.arrival_ns > 0
        names = [f"in/{task.round}/{number}" if late else None for number in numbers]
        buffers = [self.client.create(count, DTYPE, name=name) for name in names]
        for number, buffer in zip(numbers, buffers, strict=True):
            fill(buffer.array, rank=number, seed=task.seed)
        if late:
            self.own = buffers
        else:
            names = [str(buffer.seal()) for buffer in buffers]
        inputs = [name for name in names if name is not None]
        self.made += inputs
        return self._with_result(task, NEXT.join(inputs))

    def _with_result(self, task: Task, token: str) -> str:
        """Appends the ref of the sum to the root's token, if all ranks get the sum."""
        if task.op != "allreduce" or task.rank > 0:
            return token
        self.reserved = self.client.reserve()
        return f"{token}{AND}{self.reserved}"

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Gets or reduces, and stores the results for `check`."""
        client, root = self.client, task.rank == 0
        result = tokens[0].partition(AND)[2]
        tokens = [ref for token in tokens for ref in token.partition(AND)[0].split(NEXT)]
        sealed = isinstance(self.own, list)
        if isinstance(self.own, list):
            for buffer in self.own:
                buffer.seal(timeout=PATIENCE_S)
            self.own = None
        match task.op:
            case "rtt" if root:
                client.put(self.own, name=self.reserved, timeout=PATIENCE_S)
                self.came.append(client.get(tokens[1], timeout=PATIENCE_S))
            case "rtt" if task.rank == 1:
                self.came.append(client.get(tokens[0], timeout=PATIENCE_S))
                client.put(self.came[0], name=self.reserved, timeout=PATIENCE_S)
            case "broadcast" if not root:
                self.came.append(client.get(tokens[0], timeout=PATIENCE_S))
            case "gather" if root:
                self.came += client.get(tokens, timeout=PATIENCE_S)
            case "allgather":
                self.came += client.get(tokens, timeout=PATIENCE_S)
            case "reduce" if root:
                self.made.append(client.reduce(tokens, op="sum", timeout=PATIENCE_S))
                self.came.append(client.get(self.made[-1], timeout=PATIENCE_S))
            case "allreduce":
                if root:
                    self.made.append(client.reduce(tokens, op="sum", name=self.reserved, timeout=PATIENCE_S))
                self.came.append(client.get(result, timeout=PATIENCE_S))
            case _ if not sealed:
                # A rank whose input already exists has nothing to do: it does not call.
                return 0, 0
        return None

    def parts(self, took_ns: int) -> dict[str, int]:
        """The call: inputs are created in the store and results are views of it, so there are no other copies."""
        return {"collective": took_ns}

    def check(self, task: Task) -> str:
        """Compares all results, then deletes the objects of this rank."""
        came, self.came, self.own = self.came, [], None
        facts = {"nbytes": task.nbytes, "rank": task.rank, "ranks": task.ranks, "seed": task.seed}
        said = wrong_at(came, op=task.op, inputs=task.inputs, **facts)
        del came
        self.client.delete(self.made, timeout=PATIENCE_S)
        self.made.clear()
        return said

    def disturbed(self) -> str:
        """Returns the node's counters since the last call that only a fault explains; there are none without faults."""
        before, self.counters = self.counters, self.client.status()["counters"]
        return ", ".join(disturbances(self.counters, before))


def options_of_node() -> argparse.ArgumentParser:
    """The options of a rank that embeds a node, or attaches to one."""
    parser = arguments()
    parser.add_argument("--listen", help="address of this node; omitted if it is the only one")
    parser.add_argument("--join", help="address of the first node")
    parser.add_argument("--capacity", type=int, help="size of the store; omitted to attach to a node that is running")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes to wait for")
    return parser


@contextlib.contextmanager
def joined(options: argparse.Namespace) -> Iterator[hoplite.Client]:
    """A client of a node that all other nodes have joined, for the duration of a `with` block."""
    with contextlib.ExitStack() as stack:
        if options.capacity is None:
            client = stack.enter_context(attach(options.socket))
        else:
            # Hosts of a measurement have their own network, so no authentication is needed.
            node = stack.enter_context(join(options.listen, options.join, options.capacity, options.socket))
            client = stack.enter_context(node.client())
        deadline = time.monotonic() + START_TIMEOUT_S
        while options.nodes > 1 and len(client.status()["members"]) < options.nodes:
            if time.monotonic() > deadline:
                joined = len(client.status()["members"])
                raise TimeoutError(f"{joined} of {options.nodes} nodes joined within {START_TIMEOUT_S:.0f} s")
            time.sleep(0.02)
        # Nodes without configured racks survey them first; measurements start after that.
        while client.status()["survey"] == "waiting" and time.monotonic() < deadline:
            time.sleep(0.1)
        yield client


def main() -> None:
    """Takes part until the bench disconnects."""
    parser = options_of_node()
    parser.add_argument("--own-memory", action="store_true", help="copy inputs and results, as other libraries do")
    parser.add_argument("--seal-at-call", action="store_true", help="make inputs readable only at the call")
    options = parser.parse_args()
    with joined(options) as client:
        serve(
            rank_of(client, own_memory=options.own_memory, seal_at_call=options.seal_at_call),
            control=options.control,
            number=options.rank,
            ranks=options.ranks,
            version=hoplite.__version__,
        )


def rank_of(client: hoplite.Client, *, own_memory: bool, seal_at_call: bool) -> HopliteRank:
    """The rank that works in the store, or in its own memory."""
    if not own_memory:
        return HopliteRank(client, seal_at_call=seal_at_call)
    # It builds on this module.
    from hoplite_own import OwnMemoryRank

    return OwnMemoryRank(client)


def attach(socket: Path) -> hoplite.Client:
    """A client of another worker's node; retries, because that may start a little later."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            # The node ends with its worker. No other one will serve the socket.
            return hoplite.connect(f"unix:{socket}", reconnect=False)
        except hoplite.ConnectError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def join(listen: str | None, seed: str | None, capacity: int, socket: Path) -> hoplite.Node:
    """Starts a node; retries, because the node to join may start a little later."""
    deadline = time.monotonic() + START_TIMEOUT_S
    seeds = [] if seed is None or listen == seed else [seed]
    while True:
        try:
            return hoplite.Node(listen=listen, join=seeds, capacity=capacity, socket=socket, no_auth=True)
        except hoplite.JoinError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main()
