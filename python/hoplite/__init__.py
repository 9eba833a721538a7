"""Hoplite: immutable objects in shared memory on every host; broadcast and reduce computed while they appear.

import hoplite

hp = hoplite.init()
ref = hp.put(array, name="grad/1")
total = hp.reduce(["grad/1", "grad/2", "grad/3"], op="sum", count=2)
value = hp.get(total, timeout=30)
"""

import warnings as _warnings
from typing import TYPE_CHECKING as _TYPE_CHECKING

from hoplite import _native
from hoplite.buffer import Buffer
from hoplite.client import Client
from hoplite.errors import (
    AddressInUse,
    ConnectError,
    ForkedClient,
    GetTimeout,
    HopliteError,
    InvalidArgument,
    JoinError,
    NameTaken,
    NodeDown,
    NotAllowed,
    ObjectCorrupt,
    ObjectDeleted,
    ObjectLost,
    ShapeMismatch,
    StoreFull,
    TooFewCopies,
    Undecodable,
    UnknownOp,
    UnsupportedDtype,
)
from hoplite.lease import Lease
from hoplite.location import Location
from hoplite.node import Node
from hoplite.ref import Ref
from hoplite.session import connect, init, shutdown
from hoplite.tokens import new_token

if _TYPE_CHECKING:
    from hoplite.default import (
        create,
        delete,
        get,
        hold,
        latest,
        locations,
        objects,
        promise,
        put,
        reduce,
        status,
        wait,
        watch_locations,
    )

__all__ = [
    "AddressInUse",
    "Buffer",
    "Client",
    "ConnectError",
    "ForkedClient",
    "GetTimeout",
    "HopliteError",
    "InvalidArgument",
    "JoinError",
    "Lease",
    "Location",
    "NameTaken",
    "Node",
    "NodeDown",
    "NotAllowed",
    "ObjectCorrupt",
    "ObjectDeleted",
    "ObjectLost",
    "Ref",
    "ShapeMismatch",
    "StoreFull",
    "TooFewCopies",
    "Undecodable",
    "UnknownOp",
    "UnsupportedDtype",
    "connect",
    "create",
    "delete",
    "get",
    "hold",
    "init",
    "latest",
    "locations",
    "new_token",
    "objects",
    "promise",
    "put",
    "reduce",
    "shutdown",
    "status",
    "wait",
    "watch_locations",
]

__version__ = _native.__version__

# How the extension was compiled: "release", or "debug", which is slow.
__build__ = "debug" if _native.DEBUG_BUILD else "release"

if __build__ == "debug":
    _warnings.warn(
        "hoplite was built without optimisation: it is slow, and its benchmarks refuse to run; build with make build",
        RuntimeWarning,
        stacklevel=2,
    )


def __getattr__(name: str) -> object:
    """Fetches the verbs as functions when the first is used: most scripts hold a client and use none."""
    if name in __all__:
        from hoplite import default

        value: object = getattr(default, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'hoplite' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
