"""How do servers answer a caller, which takes the first k answers? It sends each a slot, a ref that they may put."""

import threading

import numpy as np

import hoplite

hp = hoplite.init()


def serve(model: int) -> None:
    """Answers one request. Servers can run on any host: a slow or restarted one is only late."""
    request = hp.get(hp.latest(f"request/{model}/", timeout=30))
    if model != 1:  # this one takes a while
        hp.put(np.full(10, float(model * request["x"])), name=request["answer"], ttl=600)


servers = [threading.Thread(target=serve, args=(model,)) for model in range(3)]
for server in servers:
    server.start()

# The caller's node has the directory entries of its slots: no third host delays an answer.
slots = hp.slots(3)
for model, slot in enumerate(slots):
    hp.put({"x": 5, "answer": str(slot)}, name=f"request/{model}/0")
mean = hp.reduce(slots, "mean", count=2)
print(hp.get(mean, timeout=30)[0])  # 5.0

# Later answers then raise ObjectDeleted at their server.
hp.delete([mean, *slots])
for server in servers:
    server.join()
