"""Whether Dask is installed, with the interface that this package was written for. Imports nothing else of it."""

from __future__ import annotations

import importlib
import inspect

from hoplite.errors import HopliteError

EXTRA = "hoplite-collectives[dask]"

# The release that the tests run with.
KNOWN = "2026.8"

# What is used of it, by module.
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


class DaskMissing(HopliteError, ImportError):
    """Dask is not installed, or has another interface than this package uses. The message says which to install."""


def check() -> None:
    """Refuses an environment in which the rest of this package can't work.

    Raises:
        DaskMissing: says what to install.
    """
    try:
        version = importlib.import_module("distributed").__version__
        importlib.import_module("numpy")
    except ImportError as error:
        raise DaskMissing(f"hoplite.dask needs Dask and NumPy ({error}): pip install '{EXTRA}'") from None
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
        raise DaskMissing(
            f"distributed {version} has another interface than hoplite.dask uses, it lacks {', '.join(missing)}: "
            f"install one that is known to work, pip install 'distributed=={KNOWN}.*'"
        )


def _changed() -> list[str]:
    """Methods and arguments that are not there, of classes that are."""
    distributed = importlib.import_module("distributed")
    serialize = importlib.import_module("distributed.protocol.numpy").serialize_numpy_ndarray
    missing = [f"Client.{name}" for name in OF_CLIENT if not hasattr(distributed.Client, name)]
    if "context" not in inspect.signature(serialize).parameters:
        missing.append("serialize_numpy_ndarray(context=)")
    return missing


def check_worker(worker: object) -> None:
    """Refuses a worker, or a scheduler, without what the plugins use of it.

    Raises:
        DaskMissing: says what to install.
    """
    missing = [name for name in OF_WORKER if not hasattr(worker, name)]
    if missing:
        raise DaskMissing(
            f"a worker of this version of Dask has no {', '.join(missing)}: install one that is known to work, "
            f"pip install 'distributed=={KNOWN}.*'"
        )
