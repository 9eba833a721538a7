"""The verbs as functions of the module, for scripts with one client: that of the last `hoplite.init()`.

The first use makes it, as `hoplite.init()` without arguments would. A program with an event loop uses the methods of a
client, which have twins for asyncio.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from hoplite.client import Client
from hoplite.session import default_client

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def _of_default_client(method: Callable[Concatenate[Client, P], T]) -> Callable[P, T]:
    @functools.wraps(method)
    def verb(*args: P.args, **options: P.kwargs) -> T:
        return method(default_client(), *args, **options)

    signature = inspect.signature(method)
    own = [parameter for name, parameter in signature.parameters.items() if name != "self"]
    verb.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    verb.__qualname__ = method.__name__
    return verb


promise = _of_default_client(Client.promise)
put = _of_default_client(Client.put)
create = _of_default_client(Client.create)
get = _of_default_client(Client.get)
wait = _of_default_client(Client.wait)
reduce = _of_default_client(Client.reduce)
hold = _of_default_client(Client.hold)
delete = _of_default_client(Client.delete)
latest = _of_default_client(Client.latest)
locations = _of_default_client(Client.locations)
watch_locations = _of_default_client(Client.watch_locations)
status = _of_default_client(Client.status)
objects = _of_default_client(Client.objects)
