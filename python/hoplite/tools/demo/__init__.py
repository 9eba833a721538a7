"""The main job on real input: asynchronous SGD on scikit-learn's digits, over four nodes and eight workers.

`network` knows the mathematics and nothing of Hoplite, `worker` is what each worker process runs, `run` is the trainer
and `display` what people see of it. This file holds what trainer and workers agree on.
"""

from __future__ import annotations

import os

# Names of the objects. A worker's gradients are numbered from 0; the number of a plan is that of its policy.
IMAGES = "digits/images"
LABELS = "digits/labels"


def policy(step: int) -> str:
    """Weights after so many steps: float32 [parameter_count()]."""
    return f"policy/{step}"


def plan(step: int) -> str:
    """What goes with a policy, as JSON: "taken", how many gradients of each worker are used up; "done"."""
    return f"plan/{step}"


def gradient(worker: int, number: int) -> str:
    """A worker's gradient: float32 [parameter_count()]."""
    return f"gradient/{worker}/{number}"


def limit_threads() -> None:
    """Keeps NumPy, once imported here or in a child, from using every core in every process."""
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
