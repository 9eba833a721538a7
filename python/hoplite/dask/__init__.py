"""Hoplite on a Dask cluster: arrays in the shared memory of every host, sent from host to host by relays.

`install` starts a node on every host; tasks take the futures of `scatter` and `reduce` as any others. Needs Dask: pip
install 'hoplite-collectives[dask]'. docs/dask.md has the rest.
"""

from hoplite.dask import needs as _needs

_needs.check()

from hoplite.dask.installation import Installation, install, uninstall  # noqa: E402 - after the check
from hoplite.dask.needs import DaskMissing  # noqa: E402
from hoplite.dask.verbs import reduce, ref, replicate, scatter  # noqa: E402

__all__ = ["DaskMissing", "Installation", "install", "reduce", "ref", "replicate", "scatter", "uninstall"]
