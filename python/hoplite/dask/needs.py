"""Checks that a supported version of Dask is installed. Imports no other module of this package."""

from __future__ import annotations

import importlib
import inspect

from hoplite.errors import PackageMissing
from hoplite.extras import install

# The release of Dask that the tests use.
KNOWN = "2026.8"

# The interfaces of Dask that this package uses, by module.
USED = {
    "distributed": ("Client", "Future", "get_worker", "secede", "wait"),
    "distributed.diagnostics.plugin": ("SchedulerPlugin", "WorkerPlugin"),
    "distributed.protocol.numpy": ("deserialize_numpy_ndarray", "serialize_numpy_ndarray"),
    "distributed.protocol.serialize": ("register_serialization",),
}
OF_CLIENT = (
    *("register_plugin", "unregister_worker_plugin", "unregister_scheduler_plugin", "run_on_scheduler"),
    *("run", "submit", "scatter", "replicate", "who_has", "scheduler_info"),
)
OF_WORKER = ("data", "handlers", "loop", "rpc", "scheduler")


def check() -> None:
    """Checks that Dask has the interfaces that this package uses.

    Raises:
        PackageMissing: Dask is missing or differs; the message names the package to install.
    """
    try:
        version = importlib.import_module("distributed").__version__
        importlib.import_module("numpy")
    except ImportError as error:
        raise PackageMissing(f"hoplite.dask needs Dask and NumPy ({error}): {install('dask')}") from None
    missing = []
    for module, names in USED.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            missing.append(module)
            continue
        missing += [f"{module}.{name}" for name in names if not hasattr(found, name)]
    if not missing:
        missing = _changed()
    if missing:
        raise PackageMissing(
            f"hoplite.dask does not support distributed {version}, which lacks {', '.join(missing)}: "
            f"install a supported version, pip install 'distributed=={KNOWN}.*'"
        )


def _changed() -> list[str]:
    """Returns the missing methods and arguments of existing classes."""
    distributed = importlib.import_module("distributed")
    serialize = importlib.import_module("distributed.protocol.numpy").serialize_numpy_ndarray
    missing = [f"Client.{name}" for name in OF_CLIENT if not hasattr(distributed.Client, name)]
    if "context" not in inspect.signature(serialize).parameters:
        missing.append("serialize_numpy_ndarray(context=)")
    return missing


def check_worker(worker: object) -> None:
    """Checks that a worker has the attributes that the plugin uses.

    Raises:
        PackageMissing: it lacks some; the message names the version to install.
    """
    missing = [name for name in OF_WORKER if not hasattr(worker, name)]
    if missing:
        raise PackageMissing(
            f"a worker of this version of Dask lacks {', '.join(missing)}: install a supported version, "
            f"pip install 'distributed=={KNOWN}.*'"
        )
