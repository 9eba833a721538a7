"""Puts and gets of Ray on one host: reads "put 1024 10", that is what, bytes and times; answers with seconds, as JSON.

The bench says when, so that Ray takes turns with others. The first answer, before any question, is Ray's version.
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
    """Times a put; returns what is in the store."""
    start = time.perf_counter()
    ref = ray.put(value)
    took = time.perf_counter() - start
    return took, ray.get(ref)


def get(value: np.ndarray) -> tuple[float, np.ndarray]:
    """Times a get of what is in the store."""
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
    """Writes one line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answers until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=int, required=True, help="bytes of the object store")
    parser.add_argument("--folder", required=True, help="for Ray's own files; a short path")
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
