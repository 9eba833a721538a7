"""Hosts to play with, break and measure on one Linux machine: network namespaces with links of a given rate.

`Lab` makes them and takes them away; `Host`, `Rack` and `Pod` are what it holds, `Moved` is what their links have
carried. Needs root, Linux and pyroute2, and says so.
"""

from hoplite_bench.lab.errors import LabError
from hoplite_bench.lab.hosts import Host, Link, Moved, Pod, Rack
from hoplite_bench.lab.lab import Lab

__all__ = ["Host", "Lab", "LabError", "Link", "Moved", "Pod", "Rack"]
