"""What does the cluster hold, and where? `directory` lists objects, `locations` the nodes that hold one."""

import numpy as np

from hoplite import testing

with testing.cluster(3) as nodes:
    clients = [node.client() for node in nodes]
    for number, hp in enumerate(clients):
        hp.put(np.zeros((number + 1) * 100_000), name=f"layer/{number}")
    clients[0].get("layer/2", timeout=30)
    hp = clients[0]

    # The largest object first. The same in a terminal: hoplite objects --all --sort size
    largest, *_ = hp.directory("layer/", sort="bytes", timeout=30)
    print(largest["ref"], largest["what"], largest["copies"])  # layer/2 float64[300000] 2

    holders = {location.node for location in hp.locations("layer/2")}
    print(holders == {nodes[0].id, nodes[2].id})  # True

    received = hp.status()["counters"]["bytes_received"]
    print(received, "bytes received")  # 2400000 bytes received
