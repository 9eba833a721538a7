"""How do I sum the first k of n results, without waiting for stragglers? Name all of them, and set `count`."""

import numpy as np

import hoplite

hp = hoplite.init()
gradients = [f"gradient/{worker}" for worker in range(5)]

# Before any of them exists. The result is a ref: pass it to any process of the cluster.
total = hp.reduce(gradients, "sum", count=3)

for worker in (4, 0, 2):
    hp.put(np.full(1000, worker), name=gradients[worker])

print(hp.get(total, timeout=30)[0])  # 6
print(sorted(map(str, total.inputs())))  # ['gradient/0', 'gradient/2', 'gradient/4']

# Later results are not used, but exist until they are deleted.
hp.put(np.full(1000, 1), name=gradients[1])
hp.delete([total, *gradients])
