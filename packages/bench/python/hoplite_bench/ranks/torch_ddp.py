"""The communication of a training step with DistributedDataParallel: a backward pass whose gradients exist already.

The model has the parameters of ResNet-18 but computes nothing, so a step consists of DDP's own work: buckets, and their
allreduce. Gradients appear in the order of a real backward pass, from the last parameter to the first. The module does
not depend on the backend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import resnet
from content import fill, wrong

# DDP assigns parameters to new buckets after the first step, in the order in which their gradients appeared.
WARM_STEPS = 2


class Layer(torch.autograd.Function):  # type: ignore[misc]
    """Uses a parameter; the backward pass returns a given tensor as its gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, _parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        """Passes the value on."""
        ctx.gradient = gradient
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # noqa: ANN401
        """Returns the gradient of the parameter."""
        return given, ctx.gradient, None


class Model(torch.nn.Module):  # type: ignore[misc]
    """A chain of layers, one for each parameter."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.gradients = [np.zeros(shape, np.float32) for shape in shapes]

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Uses all parameters."""
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            value = Layer.apply(value, weight, torch.from_numpy(gradient))
        return value


class Training:
    """A model under DistributedDataParallel with default settings.

    Args:
        nbytes: size of the parameters; the model has the first ones that fit.
        ranks: number of ranks in the default process group.
    """

    def __init__(self, nbytes: int, ranks: int) -> None:
        self.nbytes = nbytes
        self.ranks = ranks
        self.model = Model(resnet.first(nbytes))
        self.parallel = DistributedDataParallel(self.model)
        for _ in range(WARM_STEPS):
            self.step()
            self.parallel.zero_grad()

    def fill(self, *, rank: int, seed: int) -> None:
        """Sets the gradients of this rank: integers, as many times as there are ranks, so that means are integers."""
        self.parallel.zero_grad()
        for number, gradient in enumerate(self.model.gradients):
            fill(gradient.reshape(-1), rank=rank, seed=seed + number)
            gradient *= self.ranks

    def step(self) -> None:
        """Runs the forward and the backward pass; returns when all ranks' gradients are averaged."""
        self.parallel(torch.zeros(1)).backward()

    def check(self, seed: int) -> str:
        """Compares the averaged gradients with the expected means; returns the first error."""
        for number, weight in enumerate(self.model.weights):
            if weight.grad is None:
                return f"parameter {number} has no gradient"
            # DDP multiplies by the reciprocal of the number of ranks, which is not exact unless that is a power of two.
            mean = np.rint(weight.grad.numpy().reshape(-1))
            if error := wrong(mean, nbytes=mean.nbytes, ranks=range(self.ranks), seed=seed + number):
                return f"gradient {number}: {error}"
        return ""
