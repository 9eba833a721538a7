"""Objects consist of huge pages if the host provides them for shared memory on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import hoplite

SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


@pytest.fixture
def _on_request() -> Iterator[None]:
    """Sets `advise` while a test runs: only programs that request huge pages get them."""
    try:
        before = SETTING.read_text().partition("[")[2].partition("]")[0]
        SETTING.write_text("advise")
    except OSError as error:
        pytest.skip(f"needs to set {SETTING}, as root and not in a container: {error.strerror}")
    yield
    SETTING.write_text(before)


def huge_bytes() -> int:
    """Bytes of objects that this process maps by huge pages."""
    total, is_store = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if "-" in name:
            is_store = "memfd:hoplite" in line
        elif is_store and name == "ShmemPmdMapped":
            total += int(rest.split()[0]) << 10
    return total


@pytest.mark.usefixtures("_on_request")
def test_an_object_consists_of_huge_pages(clients: list[hoplite.Client]) -> None:
    array = np.arange(8 << 20, dtype="uint64")
    ref = clients[0].put(array)
    assert huge_bytes() > 0
    np.testing.assert_array_equal(clients[1].get(ref, timeout=60), array)
