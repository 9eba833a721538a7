"""Kernel memory groups (cgroups) with limits, for tests of processes without enough memory. Needs root."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


def memory_groups() -> Path | None:
    """Returns the folder of this process's memory group; None if it is unknown."""
    for text in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = text.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    unified = Path("/sys/fs/cgroup")
    return unified if (unified / "cgroup.controllers").exists() else None


@contextlib.contextmanager
def limited(name: str, *limits: int) -> Iterator[Path]:
    """Creates nested memory groups with limits in bytes. Skips the test if this process may not create them."""
    above = memory_groups()
    made: list[Path] = []
    try:
        for depth, limit in enumerate(limits):
            assert above is not None
            folder = above / f"hoplite-{os.getpid()}-{name}-{depth}"
            folder.mkdir()
            made.append(folder)
            version_1 = folder / "memory.limit_in_bytes"
            if not version_1.exists():
                (above / "cgroup.subtree_control").write_text("+memory")
            (version_1 if version_1.exists() else folder / "memory.max").write_text(str(limit))
            above = folder
    except (OSError, AssertionError) as error:
        for folder in reversed(made):
            folder.rmdir()
        pytest.skip(f"needs memory groups that this process may make: {error}")
    try:
        yield made[-1]
    finally:

        def removed(folder: Path) -> bool:
            with contextlib.suppress(OSError):
                folder.rmdir()
            return not folder.exists()

        # The kernel removes processes that have ended from a group a moment later.
        for folder in reversed(made):
            eventually(lambda folder=folder: removed(folder))  # type: ignore[misc]
