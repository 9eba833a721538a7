"""Hoplite: immutable objects in shared memory on every host, with broadcast and reduce while the objects appear.

import hoplite

hp = hoplite.init()
ref = hp.put(array, name="grad/1")
total = hp.reduce(["grad/1", "grad/2", "grad/3"], op="sum", count=2)
value = hp.get(total, timeout=30)
"""

import warnings as _warnings

from hoplite import _native
from hoplite._client import Client
from hoplite._select import select
from hoplite.buffer import Buffer
from hoplite.errors import (
    AddressInUse,
    ClientClosed,
    ConnectError,
    DecodeError,
    ForkedClient,
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
    Timeout,
    UnknownOp,
    UnsupportedDtype,
)
from hoplite.lease import Lease
from hoplite.location import Location
from hoplite.node import Node
from hoplite.ref import Ref
from hoplite.session import client, connect, init, shutdown
from hoplite.tokens import new_token

__all__ = [
    "AddressInUse",
    "Buffer",
    "Client",
    "ClientClosed",
    "ConnectError",
    "DecodeError",
    "ForkedClient",
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
    "Timeout",
    "UnknownOp",
    "UnsupportedDtype",
    "client",
    "connect",
    "init",
    "new_token",
    "select",
    "shutdown",
]

__version__ = _native.__version__

# Profile of the compiled module: "release", or "debug", which is slow.
__build__ = "debug" if _native.DEBUG_BUILD else "release"

if __build__ == "debug":
    _warnings.warn(
        "hoplite was built without optimization: it is slow, and benchmarks do not run. Build it with make build",
        RuntimeWarning,
        stacklevel=2,
    )
