"""Which tests run, under whose conditions, and with how many ranks.

PyTorch's tests have conditions: some run only for "gloo", some only for "mpi", some only with eight ranks. So a test
has several attempts, until one of them does not skip it. It knows neither torch nor processes.
"""

from __future__ import annotations

from dataclasses import dataclass

# Parts of reasons that no attempt changes: the test needs accelerators, or PyTorch has disabled it.
FINAL = ("accelerator", "cuda is not available", "nccl", "https://", "torchvision")


@dataclass(frozen=True)
class Attempt:
    """One way to run a suite.

    Attributes:
        backend: The backend that creates all groups: "gloo" or "hoplite".
        conditions: The backend that the tests' conditions see. If it is another, `backend` takes its place.
        ranks: Size of the world, for tests that do not choose it themselves.
    """

    backend: str
    conditions: str
    ranks: int

    def __str__(self) -> str:
        """How it is printed."""
        place = "" if self.conditions == self.backend else f" in place of {self.conditions}"
        return f"{self.backend}{place}, {self.ranks} ranks"


@dataclass(frozen=True)
class Run:
    """A suite, and the ways in which each of its tests is attempted.

    Attributes:
        suite: A function of `cases`.
        places: Conditions and ranks of each attempt, in order. "own" stands for the backend itself.
        start: How the processes of the ranks start: "fork" is fast; with "spawn", ranks also end as programs do.
    """

    suite: str
    places: tuple[tuple[str, int], ...]
    start: str = "fork"

    def attempts(self, backend: str) -> list[Attempt]:
        """Returns the attempts with one backend."""
        places = [(backend if conditions == "own" else conditions, ranks) for conditions, ranks in self.places]
        return [Attempt(backend, conditions, ranks) for conditions, ranks in dict.fromkeys(places)]


RUNS = (
    Run("distributed", (("own", 3), ("gloo", 3), ("mpi", 3))),
    Run("distributed", (("own", 4), ("gloo", 4), ("mpi", 4), ("mpi", 8))),
    Run("distributed", (("own", 8), ("gloo", 8), ("mpi", 8))),
    Run("spawned", (("own", 3),), start="spawn"),
    Run("rpc", (("gloo", 4),)),
)


def may_run_elsewhere(reason: str) -> bool:
    """Returns whether another attempt may run a test that was skipped for this reason."""
    return not any(part in reason.lower() for part in FINAL)
