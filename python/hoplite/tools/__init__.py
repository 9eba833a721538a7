"""What runs on the library: the `hoplite` command and the demo, and what tools of other packages share.

Those packages are hoplite-bench and hoplite-topology. Tools use what the library offers to every program; the library
imports none of them.
"""
