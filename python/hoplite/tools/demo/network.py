"""A multilayer perceptron with all parameters in one flat float32 array, so that a gradient is one object.

Its functions are pure, and use only NumPy.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Labels = NDArray[np.int64]

# 8 x 8 pixels in, ten digits out. The two hidden layers make 1 126 410 parameters, 4.3 MiB.
WIDTHS = (64, 1024, 1024, 10)


def parameter_count() -> int:
    """Returns the length of the flat parameter array."""
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(WIDTHS))


def layers(flat: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Yields each layer's weights [inputs, outputs] and biases [outputs], as views of an array [parameter_count()]."""
    start = 0
    for inputs, outputs in itertools.pairwise(WIDTHS):
        middle = start + inputs * outputs
        end = middle + outputs
        yield flat[start:middle].reshape(inputs, outputs), flat[middle:end]
        start = end


def initial(seed: int) -> Floats:
    """Returns initial parameters: weights scaled for ReLU (He et al. 2015), biases zero."""
    random = np.random.default_rng(seed)
    flat = np.zeros(parameter_count(), np.float32)
    for weights, _ in layers(flat):
        weights[:] = random.standard_normal(weights.shape, np.float32) * math.sqrt(2 / len(weights))
    return flat


def gradient(flat: Floats, images: Floats, labels: Labels) -> Floats:
    """Computes the gradient of the mean cross-entropy of a batch.

    Args:
        flat: parameters, float32 [parameter_count()]; not changed.
        images: float32 [batch, 64], each pixel from 0 to 1.
        labels: int64 [batch], 0 to 9.

    Returns:
        float32 [parameter_count()].
    """
    parameters = list(layers(flat))
    activations = [images]
    for weights, biases in parameters[:-1]:
        activations.append(np.maximum(activations[-1] @ weights + biases, 0))
    weights, biases = parameters[-1]
    logits = activations[-1] @ weights + biases

    delta = np.exp(logits - logits.max(axis=1, keepdims=True))
    delta /= delta.sum(axis=1, keepdims=True)
    delta[np.arange(len(labels)), labels] -= 1
    delta /= np.float32(len(labels))

    result = np.empty_like(flat)
    for (weights, _), (to_weights, to_biases), below in zip(
        reversed(parameters), reversed(list(layers(result))), reversed(activations), strict=True
    ):
        np.matmul(below.T, delta, out=to_weights)
        delta.sum(axis=0, out=to_biases)
        delta = (delta @ weights.T) * (below > 0)
    return result


def accuracy(flat: Floats, images: Floats, labels: Labels) -> float:
    """Returns the share of images that the network classifies correctly, 0 to 1."""
    values = images
    *hidden, (weights, biases) = layers(flat)
    for hidden_weights, hidden_biases in hidden:
        values = np.maximum(values @ hidden_weights + hidden_biases, 0)
    return float(np.mean(np.argmax(values @ weights + biases, axis=1) == labels))
