"""What this process logs of Hoplite: on stderr what its nodes say, in the logger "hoplite" what its calls wait for."""

from __future__ import annotations

from hoplite import _native

_started = False


def start(level: str | None) -> None:
    """Lets the nodes and clients of this process log to stderr, from a level up; the first call that names one counts.

    Args:
        level: one of `hoplite.settings.LEVELS`; None starts nothing.
    """
    global _started
    if level is not None and not _started:
        _started = True
        _native.log_to_stderr(level)


def still_waiting(what: str, waited: float, state: str) -> None:
    """Tells the logger that a call goes on waiting.

    Args:
        what: the object, or how many of them.
        waited: for how many seconds so far.
        state: why it is not here.
    """
    # Slow to import, for what is seldom said.
    import logging

    logging.getLogger("hoplite").warning("still waiting for %s after %.0f s: %s", what, waited, state)
