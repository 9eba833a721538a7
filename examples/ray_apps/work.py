"""The computations of the applications and the checks of their results, shared by both versions.

All numbers are small integers, so that float32 stores them exactly and a sum does not depend on the order. The module
uses neither Ray nor Hoplite.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

IMAGES = 64
LABELS = 10

# While an application runs, one row per piece of this size is checked.
PIECE_BYTES = 16384


@dataclass(frozen=True)
class Job:
    """The parameters of a run.

    Attributes:
        workers: number of workers.
        count: number of results that a step needs.
        size: number of float32 values in the model, policy or batch.
        steps: number of steps.
        seconds: minimum compute time of each call of a worker.
    """

    workers: int
    count: int
    size: int
    steps: int
    seconds: float = 0.0


def needed(app: str, workers: int) -> int:
    """Returns the number of results that a step needs; `app` is the name of the application's folder."""
    if app in ("sync_parameter_server", "one_to_all"):
        return workers
    # A majority of the predictions, or the first half of the results, while the other workers continue.
    return workers // 2 + 1 if app == "ensemble_serving" else max(1, workers // 2)


def zeros(job: Job) -> Any:
    """Returns the model before the first step."""
    return np.zeros(job.size, "float32")


def gradient(job: Job, number: int) -> Any:
    """Returns a gradient that identifies its worker: ones in the worker's part of the model."""
    made = zeros(job)
    made[number :: job.workers] = 1
    return made


def compute(job: Job, model: Any) -> None:
    """Simulates the computation of a worker: verifies the model and sleeps."""
    check_whole(model, job.workers, everything=False)
    time.sleep(job.seconds)


def check_whole(model: Any, period: int, *, everything: bool = True) -> None:
    """Checks that a model consists of whole gradients, so that its values repeat.

    Args:
        model: an array.
        period: number of values after which they repeat.
        everything: whether to check all values, instead of a sample of each part.

    Raises:
        ValueError: the values do not repeat.
    """
    rows = model[: model.size // period * period].reshape(-1, period)
    step = 1 if everything else max(1, PIECE_BYTES // rows[0].nbytes)
    if not (rows[::step] == rows[0]).all() or not (rows[-1] == rows[0]).all():
        raise ValueError(f"parts of an array of {model.size} numbers differ: some values are missing or wrong")


def check_model(job: Job, model: Any, *, each: int | None = None) -> None:
    """Checks the model after the last step.

    Args:
        job: the parameters of the run.
        model: the final model.
        each: number of gradients of each worker in it; None if that depends on the speed of the workers.

    Raises:
        ValueError: a gradient is missing, occurs twice, or is incomplete.
    """
    check_whole(model, job.workers)
    taken = model[: job.workers]
    if taken.sum() != job.count * job.steps or (each is not None and not (taken == each).all()):
        raise ValueError(f"after {job.steps} steps of {job.count} gradients, the model is {taken.astype(int).tolist()}")


def rollout(job: Job, policy: Any) -> Any:
    """Returns a rollout of a worker: each value is the version of its policy."""
    return np.full(max(1, job.size // 64), policy[0], "float32")


def learn(policy: Any, rollouts: list[Any]) -> None:
    """Updates a policy in place to its next version: each rollout adds one.

    Raises:
        ValueError: a rollout is incomplete, or of a future version.
    """
    for each in rollouts:
        if not (each == each[0]).all() or each[0] > policy[0]:
            raise ValueError(f"got a rollout of version {each[0]}, but the policy has version {policy[0]}")
    policy += len(rollouts)


def batch(job: Job, number: int) -> Any:
    """Returns the images of a request; all values of an image are its label."""
    labels = labels_of(number)
    return np.repeat(labels.astype("float32"), max(1, job.size // IMAGES)).reshape(IMAGES, -1)


def labels_of(number: int) -> Any:
    """Returns the correct labels of a request."""
    return (np.arange(IMAGES) + number) % LABELS


def classify(job: Job, number: int, images: Any) -> Any:
    """Returns the labels that a model predicts for images. Model 1 always predicts a label that no image has.

    Raises:
        ValueError: an image is incomplete.
    """
    for image in images:
        check_whole(image, 1, everything=False)
    time.sleep(job.seconds)
    labels = images[:, 0].astype(int)
    return np.full_like(labels, LABELS) if number == 1 else labels


def vote(answers: list[Any]) -> Any:
    """Returns the most frequent label of each image; on a tie, the lowest one."""
    return np.array([np.bincount(seen).argmax() for seen in np.stack(answers, axis=1)])


def check_labels(number: int, labels: Any) -> None:
    """Checks the labels of a request.

    Raises:
        ValueError: the labels are wrong.
    """
    if not (labels == labels_of(number)).all():
        raise ValueError(f"the labels of request {number} are {labels.tolist()}")
