"""How do readers follow versions, and skip those that they missed? By a number in the name, with `latest`."""

import numpy as np

import hoplite

hp = hoplite.init()

for version in range(1, 6):
    # Keeps the newest two versions and deletes older ones.
    hp.put(np.full(1000, version), name=f"policy/{version}", retain=2)

newest = hp.latest("policy/", timeout=30)
print(newest, hp.get(newest, timeout=30)[0])  # policy/5 5

# Waits for a version above the last one that this reader used.
try:
    hp.latest("policy/", after=newest.number, timeout=0)
except hoplite.Timeout:
    print("no newer version yet")  # no newer version yet

try:
    hp.get("policy/1", timeout=0)
except hoplite.ObjectDeleted:
    print("version 1 is deleted")  # version 1 is deleted
