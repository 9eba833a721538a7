"""The shapes of the parameters of ResNet-18, in the order in which a forward pass uses them; needs no framework."""

from __future__ import annotations

import math

# Channels of the four stages; each has two blocks of two convolutions.
STAGES = (64, 128, 256, 512)
CLASSES = 1000
ITEM_BYTES = 4


def shapes() -> list[tuple[int, ...]]:
    """The shapes of all 62 parameters, 11.7 million float32 in total."""
    found = convolution(64, 3, 7)
    before = STAGES[0]
    for channels in STAGES:
        for block in range(2):
            found += convolution(channels, before, 3) + convolution(channels, channels, 3)
            if block == 0 and before != channels:
                # The shortcut around the block, which changes the number of channels.
                found += convolution(channels, before, 1)
            before = channels
    return [*found, (CLASSES, before), (CLASSES,)]


def convolution(channels: int, before: int, width: int) -> list[tuple[int, ...]]:
    """A convolution without a bias, and the scale and shift of the batch normalization after it."""
    return [(channels, before, width, width), (channels,), (channels,)]


def first(nbytes: int) -> list[tuple[int, ...]]:
    """The first parameters that fit into a number of bytes; at least one."""
    found: list[tuple[int, ...]] = []
    left = nbytes
    for shape in shapes():
        left -= ITEM_BYTES * math.prod(shape)
        if found and left < 0:
            break
        found.append(shape)
    return found


# Size of all parameters, and of their gradients.
NBYTES = ITEM_BYTES * sum(map(math.prod, shapes()))
