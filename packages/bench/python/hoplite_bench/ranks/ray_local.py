"""Puts and gets of Ray on one host, on request.

A request has operation, bytes and repeats, such as "put 1024 10"; the reply has the seconds of each repeat, as JSON.
The bench controls the timing, so that Ray can be interleaved with other systems. The first line of output, before any
request, has Ray's version.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import ray

from content import DTYPE, fill, wrong

if TYPE_CHECKING:
    from collections.abc import Callable


def put(value: np.ndarray) -> tuple[float, np.ndarray]:
    """Times a put; returns the stored value."""
    start = time.perf_counter()
    ref = ray.put(value)
    took = time.perf_counter() - start
    return took, ray.get(ref)


def get(value: np.ndarray) -> tuple[float, np.ndarray]:
    """Times a get of a stored value."""
    ref = ray.put(value)
    start = time.perf_counter()
    view = ray.get(ref)
    return time.perf_counter() - start, view


def put_get(value: np.ndarray) -> tuple[float, np.ndarray]:
    """Times a put and a get."""
    start = time.perf_counter()
    view = ray.get(ray.put(value))
    return time.perf_counter() - start, view


OPS: dict[str, Callable[[np.ndarray], tuple[float, np.ndarray]]] = {"put": put, "get": get, "put_get": put_get}


def answer(**fields: object) -> None:
    """Writes one line of JSON."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Executes requests until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=int, required=True, help="size of the object store in bytes")
    parser.add_argument("--folder", required=True, help="folder for Ray's own files; a short path")
    options = parser.parse_args()
    ray.init(
        num_cpus=1,
        object_store_memory=options.store,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=options.folder,
    )
    answer(version=ray.__version__)
    for seed, line in enumerate(sys.stdin):
        op, nbytes, times = line.split()
        value = np.empty(int(nbytes) // DTYPE.itemsize, DTYPE)
        fill(value, rank=0, seed=seed)
        seconds = []
        for _ in range(int(times)):
            took, view = OPS[op](value)
            seconds.append(took)
        answer(seconds=seconds, wrong=wrong(view, nbytes=int(nbytes), ranks=range(1), seed=seed))
        del view


if __name__ == "__main__":
    main()
