"""Hoplite: immutable objects in shared memory on every host; broadcast and reduce computed while they appear.

import hoplite

hp = hoplite.init()
ref = hp.put(array, name="grad/1")
total = hp.reduce(["grad/1", "grad/2", "grad/3"], op="sum", count=2)
value = hp.get(total, timeout=30)
"""

import warnings as _warnings

from hoplite import _native
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
    ObjectDeleted,
    ObjectLost,
    ShapeMismatch,
    StoreFull,
    UnknownOp,
    UnsupportedDtype,
)
from hoplite.node import Node
from hoplite.ref import Ref
from hoplite.session import connect, init

__all__ = [
    "AddressInUse",
    "Client",
    "ConnectError",
    "ForkedClient",
    "GetTimeout",
    "HopliteError",
    "InvalidArgument",
    "JoinError",
    "NameTaken",
    "Node",
    "NodeDown",
    "ObjectDeleted",
    "ObjectLost",
    "Ref",
    "ShapeMismatch",
    "StoreFull",
    "UnknownOp",
    "UnsupportedDtype",
    "connect",
    "init",
]

__version__ = _native.__version__

if _native.DEBUG_BUILD:
    _warnings.warn(
        "hoplite was built without optimisation: it is slow, and its benchmarks refuse to run; build with make build",
        RuntimeWarning,
        stacklevel=2,
    )
