"""Timeouts of the integrations: a call without `timeout=` takes `default_timeout`, as the verbs of a client do."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from hoplite import settings
from hoplite._shared import DEFAULT, shared

if TYPE_CHECKING:
    from hoplite._attachment import Attachment

__all__ = ["DEFAULT", "limit"]


def limit(timeout: float | None, client: Attachment | None = None, *, otherwise: float | None = None) -> float | None:
    """Returns the seconds that a call may take; None for no limit.

    Args:
        timeout: the argument of the call; `DEFAULT` if it was omitted.
        client: the client of the call. None means that of the last `hoplite.init`, if there is one. It is not created.
        otherwise: timeout of a call that passes none, if the client has no default either.
    """
    if timeout is not DEFAULT:
        return timeout
    client = client or shared.last_client()
    found = _configured() if client is None else client._limit(DEFAULT)
    return otherwise if found is None else found


@functools.cache
def _configured() -> float | None:
    """The setting of this process, read once, as by a client."""
    found: float | None = settings.load(timeout=None)["timeout"]
    return found
