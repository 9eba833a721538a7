"""What both versions of each application share: what they compute, and what comes out if it is right.

All numbers are whole and small, so that float32 holds them exactly and a sum is the same in any order. Knows neither
Ray nor Hoplite.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

IMAGES = 64
LABELS = 10

# Of a whole array one row of each such piece is looked at while an application runs.
PIECE_BYTES = 16384


@dataclass(frozen=True)
class Job:
    """What an application is to do.

    Attributes:
        workers: how many there are.
        count: how many of their answers a step needs.
        size: numbers of 4 bytes in the model, in the policy or in a batch.
        steps: how many steps.
        seconds: what each call of a worker computes at least.
    """

    workers: int
    count: int
    size: int
    steps: int
    seconds: float = 0.0


def needed(app: str, workers: int) -> int:
    """How many answers a step of an application needs, of so many workers; `app` is the name of its folder."""
    if app in ("sync_parameter_server", "one_to_all"):
        return workers
    # A majority; else the first half, and the others go on with what they have.
    return workers // 2 + 1 if app == "ensemble_serving" else max(1, workers // 2)


def zeros(job: Job) -> Any:
    """The model before the first step."""
    return np.zeros(job.size, "float32")


def gradient(job: Job, number: int) -> Any:
    """A gradient that tells whose it is: ones in the worker's part of the model."""
    made = zeros(job)
    made[number :: job.workers] = 1
    return made


def compute(job: Job, model: Any) -> None:
    """What a worker does with a model: it looks whether all of it came, and takes its time."""
    check_whole(model, job.workers, everything=False)
    time.sleep(job.seconds)


def check_whole(model: Any, period: int, *, everything: bool = True) -> None:
    """Checks that a model is made of whole gradients: it repeats itself.

    Args:
        model: an array.
        period: after so many numbers.
        everything: whether all of it is looked at, and not some of each part.

    Raises:
        ValueError: it does not.
    """
    rows = model[: model.size // period * period].reshape(-1, period)
    step = 1 if everything else max(1, PIECE_BYTES // rows[0].nbytes)
    if not (rows[::step] == rows[0]).all() or not (rows[-1] == rows[0]).all():
        raise ValueError(f"parts of an array of {model.size} numbers differ: some of it is missing or wrong")


def check_model(job: Job, model: Any, *, each: int | None = None) -> None:
    """Checks the model after the last step.

    Args:
        job: what was done.
        model: what came out.
        each: how many gradients of each worker are in it; None if that is the workers' speed alone.

    Raises:
        ValueError: a gradient is missing, is in it twice, or is not whole.
    """
    check_whole(model, job.workers)
    taken = model[: job.workers]
    if taken.sum() != job.count * job.steps or (each is not None and not (taken == each).all()):
        raise ValueError(f"{job.steps} steps of {job.count} gradients have left {taken.astype(int).tolist()}")


def rollout(job: Job, policy: Any) -> Any:
    """What a worker has seen of its world: in each place the version of the policy that it went by."""
    return np.full(max(1, job.size // 64), policy[0], "float32")


def learn(policy: Any, rollouts: list[Any]) -> None:
    """Makes the next version of a policy in its place: each rollout adds one.

    Raises:
        ValueError: a rollout is not whole, or of a version that is still to come.
    """
    for each in rollouts:
        if not (each == each[0]).all() or each[0] > policy[0]:
            raise ValueError(f"a rollout of version {each[0]} came when the policy is of version {policy[0]}")
    policy += len(rollouts)


def batch(job: Job, number: int) -> Any:
    """The images of a request; each is of one number, its label."""
    labels = labels_of(number)
    return np.repeat(labels.astype("float32"), max(1, job.size // IMAGES)).reshape(IMAGES, -1)


def labels_of(number: int) -> Any:
    """The right answer to a request."""
    return (np.arange(IMAGES) + number) % LABELS


def classify(job: Job, number: int, images: Any) -> Any:
    """The labels that a model sees in images. Model 1 sees one everywhere that no image has.

    Raises:
        ValueError: an image is not whole.
    """
    for image in images:
        check_whole(image, 1, everything=False)
    time.sleep(job.seconds)
    labels = images[:, 0].astype(int)
    return np.full_like(labels, LABELS) if number == 1 else labels


def vote(answers: list[Any]) -> Any:
    """The label of each image that most models have seen; of two, that of a lower number."""
    return np.array([np.bincount(seen).argmax() for seen in np.stack(answers, axis=1)])


def check_labels(number: int, labels: Any) -> None:
    """Checks the answer to a request.

    Raises:
        ValueError: it is wrong.
    """
    if not (labels == labels_of(number)).all():
        raise ValueError(f"request {number} was answered by {labels.tolist()}")
