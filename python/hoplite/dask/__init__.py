"""Hoplite on a Dask cluster: arrays in the shared memory of every host, relayed between hosts.

`install` starts a node on every host. `scatter` and `reduce` return ordinary futures. The package needs Dask:
pip install 'hoplite-collectives[dask]'. See docs/dask.md.
"""

from hoplite.dask import needs as _needs

_needs.check()

from hoplite.dask.installation import Installation, install, uninstall  # noqa: E402 - after the check
from hoplite.dask.needs import DaskMissing  # noqa: E402
from hoplite.dask.verbs import reduce, ref, replicate, scatter  # noqa: E402

__all__ = ["DaskMissing", "Installation", "install", "reduce", "ref", "replicate", "scatter", "uninstall"]
