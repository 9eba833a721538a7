"""Samplers as processes: each fetches the newest weights when it is ready. The trainer does not know how many run."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch

import hoplite
import hoplite.torch as ht
from policy import Policy, rollout

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES = multiprocessing.get_context("spawn")


def sample(pipe: Connection) -> None:
    """Samples with the newest weights until it is killed."""
    torch.set_num_threads(1)
    policy = Policy()
    while True:
        version = ht.fetch("policy/", into=policy, timeout=30).version
        pipe.send((version, rollout(policy)))
        pipe.recv()


class Fleet:
    """The samplers, and the node of this host."""

    def __init__(self) -> None:
        hoplite.init()
        self.samplers: dict[str, tuple[Any, Connection]] = {}

    def publish(self, policy: Policy, version: int) -> None:
        """Publishes weights."""
        ht.publish(policy, f"policy/{version}", timeout=30)

    def add(self, name: str) -> None:
        """Starts a sampler."""
        ours, theirs = PROCESSES.Pipe()
        process = PROCESSES.Process(target=sample, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self.samplers[name] = process, ours

    def kill(self, name: str) -> None:
        """Kills a sampler (SIGKILL), whatever it is doing."""
        process, pipe = self.samplers.pop(name)
        process.kill()
        process.join()
        pipe.close()

    def rollouts(self) -> Iterator[tuple[str, int, Any]]:
        """Waits for rollouts. Yields sampler, version and batch of each, then requests the next from that sampler."""
        names = {pipe: name for name, (_, pipe) in self.samplers.items()}
        for pipe in wait(list(names), timeout=30):
            yield names[pipe], *pipe.recv()
            pipe.send("the next one")

    def close(self) -> None:
        """Kills the samplers and ends the node."""
        for name in list(self.samplers):
            self.kill(name)
        hoplite.shutdown()
