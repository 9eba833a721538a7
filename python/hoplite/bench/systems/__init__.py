"""What is measured side by side: how each system is installed, started and told what to do, one file a system."""

from __future__ import annotations

from hoplite.bench.systems.base import OPS, Launch, System, Unavailable, Variant

__all__ = ["OPS", "Launch", "System", "Unavailable", "Variant"]
