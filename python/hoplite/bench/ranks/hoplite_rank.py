"""A worker with an embedded Hoplite node, which does each operation as a program would that uses Hoplite.

Refs go from rank to rank through the bench, as an application's own messages would carry them.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import hoplite
from content import DTYPE, fill, wrong
from rank import Rank, Task, arguments, serve

START_TIMEOUT_S = 60.0
# The bench ends a round that hangs earlier; this is for a worker that the bench forgot.
PATIENCE_S = 600.0


class HopliteRank(Rank):
    """One client of one node."""

    def __init__(self, client: hoplite.Client) -> None:
        self.client = client
        self.made: list[hoplite.Ref | str] = []
        self.results: list[tuple[np.ndarray, range]] = []

    def prepare(self, task: Task) -> str:
        """Puts this rank's input, if the operation has one of it; for rtt it is made, but put in the round."""
        takes_part = task.rank == 0 or task.op in ("gather", "reduce", "allreduce")
        if not takes_part:
            return ""
        array = np.empty(task.nbytes // DTYPE.itemsize, DTYPE)
        fill(array, rank=task.rank, seed=task.seed)
        if task.op == "rtt":
            self.array = array
            return ""
        ref = self.client.put(array)
        self.made.append(ref)
        return str(ref)

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Gets or reduces, and keeps what came out for `check`."""
        client, root = self.client, task.rank == 0
        everyone = range(task.ranks)
        match task.op:
            case "rtt" if task.rank < 2:
                there, back = f"rtt/{task.round}/0", f"rtt/{task.round}/1"
                if root:
                    self.made += [there, back]
                    client.put(self.array, name=there)
                    self.results.append((client.get(back, timeout=PATIENCE_S), range(1)))
                else:
                    client.put(client.get(there, timeout=PATIENCE_S), name=back)
            case "broadcast" if not root:
                self.results.append((client.get(tokens[0], timeout=PATIENCE_S), range(1)))
            case "gather" if root:
                arrays = client.get(tokens, timeout=PATIENCE_S)
                self.results += [(array, range(rank, rank + 1)) for rank, array in enumerate(arrays)]
            case "reduce" if root:
                self.made.append(client.reduce(tokens, op="sum"))
                self.results.append((client.get(self.made[-1], timeout=PATIENCE_S), everyone))
            case "allreduce":
                name = f"sum/{task.round}"
                if root:
                    self.made.append(client.reduce(tokens, op="sum", name=name))
                self.results.append((client.get(name, timeout=PATIENCE_S), everyone))
            case _:
                # Only the source of a broadcast, or one of whom nothing is asked.
                return 0, 0
        return None

    def check(self, task: Task) -> str:
        """Compares all results, then deletes what this rank made."""
        found = [wrong(array, ranks=ranks, seed=task.seed) for array, ranks in self.results]
        self.results.clear()
        self.client.delete(self.made)
        self.made.clear()
        return next((one for one in found if one), "")


def main() -> None:
    """Takes part until the bench hangs up."""
    parser = arguments()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--join", required=True)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    options = parser.parse_args()
    # Hosts of a measurement are on a network of their own: without a token.
    node = join(options.listen, options.join, options.capacity, options.socket)
    with node, node.client() as client:
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(client.status()["members"]) < options.ranks:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(client.status()['members'])} of {options.ranks} nodes joined")
            time.sleep(0.02)
        serve(
            HopliteRank(client),
            control=options.control,
            number=options.rank,
            ranks=options.ranks,
            version=hoplite.__version__,
        )


def join(listen: str, seed: str, capacity: int, socket: Path) -> hoplite.Node:
    """Starts a node; the one that the others join may come a little later than they."""
    deadline = time.monotonic() + START_TIMEOUT_S
    seeds = [] if listen == seed else [seed]
    while True:
        try:
            return hoplite.Node(listen=listen, join=seeds, capacity=capacity, socket=socket, insecure=True)
        except hoplite.JoinError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main()
