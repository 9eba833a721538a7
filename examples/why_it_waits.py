"""Why does a call wait, and where does a copy come from? `inspect` lists what a node does and did."""

import threading

import numpy as np

from hoplite import testing

with testing.cluster(2) as nodes:
    writer, reader = (node.client() for node in nodes)
    thread = threading.Thread(target=reader.get, args=["weights/2"], kwargs={"timeout": 30})
    thread.start()

    # What waits on the reader's node. Any member of the cluster can inspect any other.
    while not (waits := writer.inspect("activity", node=nodes[1].id, timeout=30)["waits"]):
        pass
    print(waits[0]["verb"], waits[0]["ref"])  # get weights/2

    writer.put(np.ones(1_000_000), name="weights/2")
    thread.join()

    # What happened there: which source was chosen and why, and how long the transfer took.
    for event in reader.inspect("activity", timeout=30)["events"]:
        if event["kind"] == "source":
            print(event["choice"], event["source"] == nodes[0].id)  # only_holder True
        if event["kind"] == "fetched":
            print(event["bytes"], "bytes in", event["seconds"], "s")  # 8000000 bytes in ... s
