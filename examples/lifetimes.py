"""How do I avoid leaks? Limit the time of an object, or bind it to leases or to a job."""

import numpy as np

import hoplite

hp = hoplite.init()

# For ever, until it is deleted.
ref = hp.put(np.ones(1000))
hp.delete(ref)

# A time: deleted a second after the put, also if this process has failed by then.
short = hp.put(np.ones(1000), ttl=1)

# Leases: deleted 5 s after the last one ends, in any process.
leased = hp.put(np.ones(1000))
with hp.lease(leased):
    print(hp.get(leased)[0])  # 1.0

# An array that you got stays valid after its object is deleted.
array = hp.get(short)
try:
    for _ in hp.watch_locations(short, timeout=30):
        pass
except hoplite.ObjectDeleted:
    print("deleted, but still readable:", array[0])  # deleted, but still readable: 1.0

# A job: `hoplite.init(job="run-7")` deletes all of its objects 5 s after the last client of the job ends.
