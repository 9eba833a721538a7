"""Logging of this process: nodes log to stderr, calls that wait long log to the logger "hoplite"."""

from __future__ import annotations

from hoplite import _native

# What bounds a call that has no timeout.
BOUNDS = "this call has no timeout: pass timeout=, or set HOPLITE_TIMEOUT for all calls"

_started = False


def start(level: str | None, form: str = "text") -> None:
    """Starts logging of the nodes and clients of this process to stderr. Only the first call with a level has effect.

    Args:
        level: lowest level to log, a value of the setting `log_level`; None does nothing.
        form: a value of the setting `log_format`.
    """
    global _started
    if level is not None and not _started:
        _started = True
        if form == "json":
            _native.log_to_stderr(level, is_json=True)
        else:
            _native.log_to_stderr(level)


def still_waiting(what: str, waited: float, state: str) -> None:
    """Logs that a call without a timeout is still waiting, and what bounds it.

    Args:
        what: what it waits for.
        waited: seconds since the call began.
        state: why that is not here.
    """
    # Slow to import, and rarely needed.
    import logging

    logging.getLogger("hoplite").warning("still waiting for %s after %.0f s: %s; %s", what, waited, state, BOUNDS)
