"""Logging of this process: nodes log to stderr, calls that wait long log to the logger "hoplite"."""

from __future__ import annotations

from hoplite import _native

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
    """Logs that a call is still waiting.

    Args:
        what: the object, or the number of objects.
        waited: seconds since the call began.
        state: why the object is not here.
    """
    # Slow to import, and rarely needed.
    import logging

    logging.getLogger("hoplite").warning("still waiting for %s after %.0f s: %s", what, waited, state)
