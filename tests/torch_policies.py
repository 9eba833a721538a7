"""An environment and a policy for tests of TorchRL, importable in the workers of collectors."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase


class Emit(torch.nn.Module):
    """Has one parameter, and returns it as every action."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.full((1,), value))

    def forward(self, observation: Any) -> Any:
        """Returns the parameter."""
        return self.value.expand(*observation.shape[:-1], 1)


def policy(value: float = 0.0) -> Any:
    """Returns a policy of TorchRL whose actions are its only weight."""
    return TensorDictModule(Emit(value), in_keys=["observation"], out_keys=["action"])


class Endless(EnvBase):
    """An environment without states: its observation is always 0."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, _: Any, **__: Any) -> Any:
        return TensorDict({"observation": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _step(self, _: Any) -> Any:
        return TensorDict(
            {"observation": torch.zeros(1), "reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)}
        )

    def _set_seed(self, seed: int | None) -> None:
        pass
