"""The errors of `import hoplite.dask` if Dask is missing or incompatible. Needs no Dask."""

from __future__ import annotations

import pytest

import programs

IMPORT = """
try:
    import hoplite.dask
except ImportError as error:
    print(error)
    assert isinstance(error, hoplite.HopliteError)
"""

MISSING = """
import sys, hoplite
sys.modules["distributed"] = None
"""

# A later Dask that has removed a method of the client.
CHANGED = """
import sys, types, hoplite
for name, holds in {
    "distributed": "Future get_worker secede wait",
    "distributed.diagnostics": "",
    "distributed.diagnostics.plugin": "SchedulerPlugin WorkerPlugin",
    "distributed.protocol": "",
    "distributed.protocol.numpy": "deserialize_numpy_ndarray",
    "distributed.protocol.serialize": "register_serialization",
}.items():
    module = sys.modules[name] = types.ModuleType(name)
    for what in holds.split():
        setattr(module, what, object)
sys.modules["distributed"].__version__ = "2099.1.0"
class Client:
    run = submit = scatter = replicate = who_has = scheduler_info = None
    register_plugin = unregister_worker_plugin = unregister_scheduler_plugin = None
sys.modules["distributed"].Client = Client
sys.modules["distributed.protocol.numpy"].serialize_numpy_ndarray = lambda array, context=None: None
"""


def test_without_dask_the_extra_is_named() -> None:
    assert "pip install 'distributed>=" in programs.run(MISSING + IMPORT)


def test_an_incompatible_version_is_reported_with_what_it_lacks() -> None:
    output = programs.run(CHANGED + IMPORT)
    assert "distributed 2099.1.0" in output
    assert "lacks Client.run_on_scheduler:" in output
    assert "distributed==2026.8.*" in output


@pytest.mark.parametrize("gone", ["serialize_numpy_ndarray", "deserialize_numpy_ndarray"])
def test_every_used_part_of_dask_is_checked(gone: str) -> None:
    script = CHANGED + f"delattr(sys.modules['distributed.protocol.numpy'], {gone!r})\n" + IMPORT
    assert f"distributed.protocol.numpy.{gone}" in programs.run(script)
