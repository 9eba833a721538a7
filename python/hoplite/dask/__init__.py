"""Hoplite on a Dask cluster: arrays in the shared memory of every host, relayed between hosts.

`install` starts a node on every host. `scatter` and `reduce` return ordinary futures. It needs the extra
`dask`. See docs/dask.md.
"""

from hoplite.dask import needs as _needs

_needs.check()

from hoplite.dask.installation import Installation, install, uninstall  # noqa: E402 - after the check
from hoplite.dask.verbs import reduce, ref, replicate, scatter  # noqa: E402

__all__ = ["Installation", "install", "reduce", "ref", "replicate", "scatter", "uninstall"]
