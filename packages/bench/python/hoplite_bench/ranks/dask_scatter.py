"""Times `scatter` of Dask and of `hoplite.dask` on one cluster, interleaved; every worker compares the array it got.

Prints one line of JSON per round.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from distributed import Client, Future

import hoplite.dask
from content import DTYPE, fill, wrong

START_TIMEOUT_S = 120.0
# The round before the first that counts; it opens connections.
WARM_UP = -1


def compare(array: np.ndarray, nbytes: int, seed: int) -> str:
    """Compares the array that a worker got; runs as a task."""
    return wrong(array, nbytes=nbytes, ranks=range(1), seed=seed)


def scatter(client: Client, system: str, array: np.ndarray) -> Future:
    """Sends an array to every worker."""
    if system == "dask":
        return client.scatter(array, broadcast=True, hash=False)
    return hoplite.dask.scatter(client, array)


def main() -> None:
    """Runs all rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", required=True, help="tcp://host:port")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--nbytes", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    options = parser.parse_args()
    with Client(options.scheduler, timeout=START_TIMEOUT_S) as client:
        client.wait_for_workers(options.workers, timeout=START_TIMEOUT_S)
        # Its policy would delete the copies of a broadcast.
        client.amm.stop()
        hoplite.dask.install(client, memory=8 * options.nbytes)
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        for number in range(WARM_UP, options.repeats):
            for place, system in enumerate(("dask", "hoplite")):
                # Different bytes each time.
                seed = 2 * (number - WARM_UP) + place
                array = np.empty(options.nbytes // DTYPE.itemsize, DTYPE)
                fill(array, rank=0, seed=seed)
                begin = time.monotonic()
                future = scatter(client, system, array)
                seconds = time.monotonic() - begin
                compared = [
                    client.submit(compare, future, options.nbytes, seed, workers=[worker], pure=False)
                    for worker in workers
                ]
                said = "; ".join(filter(None, client.gather(compared)))
                used = time.monotonic() - begin
                del future, compared
                if number > WARM_UP:
                    print(json.dumps({"system": system, "seconds": seconds, "used": used, "wrong": said}), flush=True)  # noqa: T201
        hoplite.dask.uninstall(client)


if __name__ == "__main__":
    main()
