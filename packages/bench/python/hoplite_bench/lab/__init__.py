"""Emulated hosts on one Linux machine: network namespaces with links of a given rate, which tests can break.

`Lab` creates and removes them. It contains `Host`, `Rack` and `Pod`; `Moved` counts the bytes on a link. Requires
root, Linux and pyroute2; otherwise `LabError` names what is missing.
"""

from hoplite_bench.lab.errors import LabError
from hoplite_bench.lab.hosts import Host, Link, Moved, Pod, Rack
from hoplite_bench.lab.lab import Lab

__all__ = ["Host", "Lab", "LabError", "Link", "Moved", "Pod", "Rack"]
