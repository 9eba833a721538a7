"""Samplers as Ray actors: the trainer puts the weights, and hands their ref to each sampler at each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
import torch

from policy import Policy, rollout

if TYPE_CHECKING:
    from collections.abc import Iterator


@ray.remote(num_cpus=0)
class Sampler:
    """Samples with the weights of each call."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.policy = Policy()

    def sample(self, weights: dict[str, Any], version: int) -> tuple[int, Any]:
        """Returns the version and a rollout."""
        self.policy.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
        return version, rollout(self.policy)


class Fleet:
    """The samplers, and a Ray cluster on this host."""

    def __init__(self) -> None:
        ray.init(include_dashboard=False, log_to_driver=False)
        self.samplers: dict[str, Any] = {}
        self._calls: dict[Any, str] = {}
        self._newest: tuple[Any, int] = (None, 0)

    def publish(self, policy: Policy, version: int) -> None:
        """Puts weights."""
        self._newest = ray.put({name: tensor.numpy() for name, tensor in policy.state_dict().items()}), version

    def add(self, name: str) -> None:
        """Starts a sampler."""
        self.samplers[name] = Sampler.remote()
        self._call(name)

    def _call(self, name: str) -> None:
        self._calls[self.samplers[name].sample.remote(*self._newest)] = name

    def kill(self, name: str) -> None:
        """Kills a sampler, whatever it is doing."""
        ray.kill(self.samplers.pop(name))
        self._calls = {call: other for call, other in self._calls.items() if other != name}

    def rollouts(self) -> Iterator[tuple[str, int, Any]]:
        """Waits for a rollout. Yields its sampler, version and batch, then requests the next from that sampler."""
        for call in ray.wait(list(self._calls), timeout=30)[0]:
            name = self._calls.pop(call)
            version, batch = ray.get(call)
            yield name, version, batch
            self._call(name)

    def close(self) -> None:
        """Ends the cluster."""
        ray.shutdown()
