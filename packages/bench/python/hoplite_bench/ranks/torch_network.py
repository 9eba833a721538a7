"""ResNet-18 on a batch of images of CIFAR's shape: a real forward and backward pass. Knows no other ranks.

The images and labels are random, because the time of a pass does not depend on them. The first layers are those for
larger images, as in `resnet`, so a pass takes 0.2 s on one core.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

import resnet

BATCH = 32
IMAGE = (3, 32, 32)
LABELS = 10
SEED = 5


class Network:
    """The parameters, and one batch.

    Args:
        place: device of all tensors.
    """

    def __init__(self, place: torch.device) -> None:
        random = torch.Generator().manual_seed(SEED)
        self.parameters = []
        for shape in resnet.shapes():
            # Vectors are the scales and shifts of normalizations, and the bias.
            value = torch.randn(shape, generator=random) if len(shape) > 1 else torch.ones(shape)
            value *= (2 / max(1, math.prod(shape[1:]))) ** 0.5
            self.parameters.append(value.to(place).requires_grad_())
        self.images = torch.randn((BATCH, *IMAGE), generator=random).to(place)
        self.labels = torch.randint(LABELS, (BATCH,), generator=random).to(place)

    def train(self) -> None:
        """Computes the gradients of all parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        functional.cross_entropy(self.forward(), self.labels).backward()

    def forward(self) -> torch.Tensor:
        """The logits of the batch."""
        left = iter(self.parameters)

        def layer(value: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
            convolved = functional.conv2d(value, next(left), stride=stride, padding=padding)
            return functional.batch_norm(convolved, None, None, next(left), next(left), training=True)

        value = functional.max_pool2d(functional.relu(layer(self.images, 2, 3)), 3, 2, 1)
        before = resnet.STAGES[0]
        for channels in resnet.STAGES:
            for _ in range(2):
                stride = 1 if channels == before else 2
                inner = layer(functional.relu(layer(value, stride, 1)), 1, 1)
                short = value if channels == before else layer(value, stride, 0)
                value, before = functional.relu(inner + short), channels
        return functional.linear(value.mean((2, 3)), next(left), next(left))
