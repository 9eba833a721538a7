"""A policy that learns to name the largest of eight hidden features, and the rollouts it learns from.

Shared by both versions. Knows neither Hoplite nor Ray.
"""

from __future__ import annotations

from typing import Any

import torch

SEEN, HIDDEN, ACTIONS, BATCH = 32, 256, 8, 256

# What the policy has to find out: the features of an observation.
FEATURES = torch.randn(SEEN, ACTIONS, generator=torch.Generator().manual_seed(1))


class Policy(torch.nn.Sequential):
    """A network of 76 296 parameters."""

    def __init__(self) -> None:
        super().__init__(
            torch.nn.Linear(SEEN, HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, ACTIONS),
        )


def rollout(policy: Policy) -> tuple[Any, Any, Any]:
    """Samples actions for random observations. Returns observations, actions and rewards as NumPy arrays."""
    seen = torch.randn(BATCH, SEEN)
    with torch.no_grad():
        actions = torch.distributions.Categorical(logits=policy(seen)).sample()
    rewards = ((seen @ FEATURES).argmax(1) == actions).float()
    return seen.numpy(), actions.numpy(), rewards.numpy()


def improve(policy: Policy, optimizer: torch.optim.Optimizer, batch: tuple[Any, Any, Any]) -> float:
    """Makes one step of REINFORCE. Returns the mean reward of the batch."""
    seen, actions, rewards = (torch.from_numpy(array.copy()) for array in batch)
    chosen = torch.distributions.Categorical(logits=policy(seen)).log_prob(actions)
    optimizer.zero_grad()
    (-chosen * (rewards - rewards.mean())).mean().backward()
    optimizer.step()
    return float(rewards.mean())
