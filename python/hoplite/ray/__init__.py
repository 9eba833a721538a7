"""Hoplite on Ray: one node per Ray node, and ObjectRefs whose values Hoplite transfers and reduces.

import ray
import hoplite.ray

ray.init()
hoplite.ray.start()
ref = hoplite.ray.put(array)
total = hoplite.ray.reduce([ref, *(gradient.remote(seed) for seed in range(8))], "sum", count=5)
array = ray.get(total)

The package uses only the public library. `import hoplite` never imports it.
"""

from hoplite.ray._versions import UnknownRay
from hoplite.ray.cluster import Cluster, start, status, stop
from hoplite.ray.objects import get, put, ref, wait
from hoplite.ray.place import client
from hoplite.ray.registration import register
from hoplite.ray.sums import inputs, lost, reduce

__all__ = [
    "Cluster",
    "UnknownRay",
    "client",
    "get",
    "inputs",
    "lost",
    "put",
    "reduce",
    "ref",
    "register",
    "start",
    "status",
    "stop",
    "wait",
]
