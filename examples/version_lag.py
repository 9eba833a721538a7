"""Which readers use old versions? Metrics list the newest version of each prefix that each process read."""

import numpy as np

import hoplite

hp = hoplite.init()
for version in range(1, 4):
    hp.put(np.full(1000, version), name=f"policy/{version}")
hp.get("policy/1")

newest = hp.latest("policy/").number
for read in hp.inspect("metrics")["reads"]:
    print(read["prefix"], "lags by", newest - read["version"])  # policy lags by 2

# Totals since the start of the node.
print(hp.inspect("metrics")["totals"]["puts"])  # 3
