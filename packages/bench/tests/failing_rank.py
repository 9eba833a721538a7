"""A rank of a test that does what it is given in the third round, in which a peer fails; it needs no other rank."""

from __future__ import annotations

import os
import threading
import time

import rank
from rank import Rank, Task, arguments, serve, timeout_s

ENDS_AFTER_S = 0.02
EARLIER_ROUNDS_S = 0.5


class FailingRank(Rank):
    """One behavior."""

    def __init__(self, does: str) -> None:
        self.does = does

    def prepare(self, task: Task) -> str:  # noqa: ARG002 - it has no arrays
        """Needs nothing."""
        return ""

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Misbehaves, or does nothing, which is correct."""
        if task.round < 3 and self.does == "finishes early":
            time.sleep(EARLIER_ROUNDS_S)
        match self.does if task.round == 3 else "":
            case "raises":
                raise TimeoutError(f"a peer is missing after {timeout_s(600.0):g} s")
            case "hangs":
                time.sleep(3600)
            case "crashes":
                print("the library aborts", flush=True)  # noqa: T201 - the last output of the process
                os._exit(3)
            case "babbles":
                # Every line that it sends from now on.
                rank.write = lambda *_, **__: "well"
            case "raises and ends":
                threading.Timer(ENDS_AFTER_S, os._exit, [4]).start()
                raise TimeoutError("a peer is missing")
        return None

    def check(self, task: Task) -> str:
        """Has a wrong result if it lies."""
        if task.round == 3 and self.does == "never checks":
            time.sleep(3600)
        lies = self.does == "always lies" or (task.round == 3 and self.does == "lies")
        return "element 0 is 1 instead of 2" if lies else ""


def main() -> None:
    """Takes part until the bench disconnects."""
    parser = arguments()
    parser.add_argument("--does", required=True)
    options = parser.parse_args()
    serve(
        FailingRank(options.does),
        control=options.control,
        number=options.rank,
        ranks=options.ranks,
        version="of a test",
    )


if __name__ == "__main__":
    main()
