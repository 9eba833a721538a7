"""The demo: asynchronous SGD on scikit-learn's handwritten digits, with four nodes and eight worker processes.

`run` is the trainer, `worker` the program of a worker process, `network` the neural network, which does not
use Hoplite, and `display` the progress display. This file defines the object names that trainer and workers share.
"""

from __future__ import annotations

import os

# Object names. Each worker numbers its gradients from 0. A plan has the same number as its policy.
IMAGES = "digits/images"
LABELS = "digits/labels"


def policy(step: int) -> str:
    """Name of the weights after a number of steps: float32 [parameter_count()]."""
    return f"policy/{step}"


def plan(step: int) -> str:
    """Name of the plan of a policy, JSON with two keys.

    "taken" is the number of gradients used so far, by worker. "done" is true after the last step.
    """
    return f"plan/{step}"


def gradient(worker: int, number: int) -> str:
    """Name of a worker's gradient: float32 [parameter_count()]."""
    return f"gradient/{worker}/{number}"


def limit_threads() -> None:
    """Limits NumPy to one thread per process, here and in child processes, if it is not imported yet."""
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
