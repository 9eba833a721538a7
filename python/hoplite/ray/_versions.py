"""Which Ray this package knows. Names the extra where Ray is missing, and the versions where an interface differs."""

from __future__ import annotations

from hoplite.errors import HopliteError

# The version that `make test-ray` runs with.
KNOWN = "2.60"

try:
    import ray
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ModuleNotFoundError(
        "hoplite.ray needs Ray, which is not installed here: pip install 'hoplite-collectives[ray]'", name="ray"
    ) from None


class UnknownRay(HopliteError, ImportError):
    """An interface of the installed Ray is not the one that this package knows."""


def unknown(what: str) -> UnknownRay:
    """The error for an interface that differs.

    Args:
        what: differs, in words that follow "which".
    """
    return UnknownRay(
        f"hoplite.ray knows Ray {KNOWN}, and this is Ray {ray.__version__}, which {what}: install "
        f"'hoplite-collectives[ray]', which asks for a Ray that is known"
    )


try:
    from ray.experimental import get_object_locations
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise unknown(f"has no {error.name}") from None

__all__ = ["KNOWN", "NodeAffinitySchedulingStrategy", "UnknownRay", "get_object_locations", "unknown"]
