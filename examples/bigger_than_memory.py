"""How do I store more than memory holds? Give the node a directory on a disk."""

import pathlib
import tempfile

import numpy as np

import hoplite

with tempfile.TemporaryDirectory(dir=pathlib.Path.cwd()) as folder:  # on a disk, not on a tmpfs
    with hoplite.Node(capacity="64MiB", spill=folder) as node, node.client() as hp:
        # A file of 160 MiB in parts of 16 MiB.
        file = pathlib.Path(folder) / "data.bin"
        np.arange(20 << 20).tofile(file)
        parts = np.memmap(file, dtype=np.int64, mode="r").reshape(10, -1)
        refs = [hp.put(part, name=f"data/{number}") for number, part in enumerate(parts)]

        store = hp.status()["store"]
        print("in memory:", store["used"] <= store["capacity"])  # in memory: True
        print("on disk:", store["spilled"] >> 20 > 64)  # on disk: True

        # Reads come back from the disk, one part at a time.
        total = sum(int(hp.get(ref, timeout=30).sum()) for ref in refs)
        print(total == sum(range(20 << 20)))  # True
