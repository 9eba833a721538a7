"""Programs on top of the library: the `hoplite` command, the demo, and helpers for hoplite-bench and hoplite-topology.

Tools use the library's public modules; `certificates` also uses the native extension. The library does not import them.
"""
