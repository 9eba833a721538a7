"""What `import hoplite.dask` says where Dask is missing, or is another than it was written for. Needs no Dask."""

from __future__ import annotations

import pytest

import programs

TELL = """
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

# A later Dask, which has given up a method of the client.
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
    assert "pip install 'hoplite-collectives[dask]'" in programs.run(MISSING + TELL)


def test_of_a_version_that_has_changed_is_said_what_it_lacks() -> None:
    said = programs.run(CHANGED + TELL)
    assert "distributed 2099.1.0" in said
    assert "lacks Client.run_on_scheduler:" in said
    assert "distributed==2026.8.*" in said


@pytest.mark.parametrize("gone", ["serialize_numpy_ndarray", "deserialize_numpy_ndarray"])
def test_each_part_that_is_used_is_looked_for(gone: str) -> None:
    script = CHANGED + f"delattr(sys.modules['distributed.protocol.numpy'], {gone!r})\n" + TELL
    assert f"distributed.protocol.numpy.{gone}" in programs.run(script)
