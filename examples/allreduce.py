"""How does every process get the sum of all? One reduces into a reserved ref, for which the others wait already."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hoplite import testing

N = 4

with testing.cluster(N) as nodes:
    clients = [node.client() for node in nodes]
    total = clients[0].reserve()

    def rank(number: int) -> float:
        """Contributes an array, and gets the sum of all."""
        hp = clients[number]
        hp.put(np.full(1_000_000, number), name=f"part/{number}")
        if number == 0:
            hp.reduce([f"part/{other}" for other in range(N)], "sum", name=total)
        return float(hp.get(total, timeout=30)[0])

    with ThreadPoolExecutor(N) as pool:
        print(list(pool.map(rank, range(N))))  # [6.0, 6.0, 6.0, 6.0]
