"""How do I avoid copies? `get` maps shared memory, `create` fills it in place, `out=` fills your own array."""

import numpy as np

import hoplite

hp = hoplite.init()

# Fill the object in place: no copy at `put`.
with hp.create((1000, 1000), "float32") as buffer:
    buffer[...] = 1
    ref = buffer.seal()

# Two views of the same memory. They are read-only: all processes of this host share it.
first, second = hp.get(ref), hp.get(ref)
print(np.shares_memory(first, second), first.flags.writeable)  # True False

# An array of your own, such as the weights of a model. It fills while the object arrives.
mine = np.empty((1000, 1000), "float32")
hp.get(ref, out=mine)
mine += 1
print(mine[0, 0], first[0, 0])  # 2.0 1.0

# A part: only these rows travel between hosts.
print(hp.get(ref, part=slice(0, 10)).shape)  # (10, 1000)
hp.delete(ref)
