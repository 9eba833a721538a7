"""How does an object survive the failure of its host? Put it with `replicas=2`."""

import numpy as np

import hoplite
from hoplite import testing

with testing.node_process() as first, testing.node_process("--join", first.address) as second:
    reader = first.client()
    writer = second.client()

    safe = writer.put(np.arange(100_000), replicas=2)
    print("nodes that hold it:", safe.replicas)  # nodes that hold it: 2
    unsafe = writer.put(np.arange(100_000))

    second.process.kill()

    print("still there:", reader.get(safe, timeout=30)[-1])  # still there: 99999
    try:
        reader.get(unsafe, timeout=30)
    except hoplite.ObjectLost:
        print("lost with its node")  # lost with its node
