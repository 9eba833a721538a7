"""A separate Ray instance on this host."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING

from hoplite_bench.local_program import LocalProgram
from hoplite_bench.systems.base import RANKS
from hoplite_bench.systems.ray import SETTINGS, STORE_BYTES_MIN, Ray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_bench.environments import Environments


@contextlib.contextmanager
def local_ray(environments: Environments, *, store_bytes: int) -> Iterator[LocalProgram]:
    """The program of Ray that puts and gets, for the duration of a `with` block.

    Args:
        environments: where Ray is installed.
        store_bytes: maximum size of its store; raised to the minimum that Ray requires.

    Raises:
        Unavailable: Ray can't be installed or does not start.
    """
    python = environments.python(Ray.name, Ray.requirements)
    with tempfile.TemporaryDirectory(prefix="hoplite-ray-", ignore_cleanup_errors=True) as folder:
        options = ["--store", str(max(store_bytes, STORE_BYTES_MIN)), "--folder", folder]
        with LocalProgram("Ray", [python, RANKS / "ray_local.py", *options], env=SETTINGS) as program:
            yield program
