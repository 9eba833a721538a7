"""A run of the study in containers, with real libraries, and the report of its rows."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import bench_ports
from hoplite_bench.results import Results
from hoplite_bench.study import matrix, run
from hoplite_bench.study.collected import collect
from hoplite_bench.study.report import page
from labs import needs_lab

if TYPE_CHECKING:
    from pathlib import Path

bench_ports.take()

needs_runc = pytest.mark.skipif(shutil.which("runc") is None, reason="runc is not installed: apt-get install runc")
needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"
)


@pytest.mark.lab
@pytest.mark.timeout(180)
@needs_lab
@needs_runc
@needs_strace
def test_libraries_use_shared_memory_in_a_container_and_tcp_between_containers(tmp_path: Path) -> None:
    cells = matrix.cells(["single", "cross"], ["broadcast", "allreduce"], [2], 1 << 20)
    settings = run.Settings(["gloo", "hoplite"], cells, repeats=2, install=False)
    rows = run.measure(settings, Results(tmp_path / "rows.jsonl"))
    found = {(row.container, row.system, row.variant): row for row in rows if row.op == "broadcast"}
    assert [key[0] for key in found if key[1] == "hoplite"] == ["single", "single", "cross", "cross"]
    for (container, system, _), row in found.items():
        # Gloo may be missing.
        if system != "gloo" or row.samples:
            assert len(row.samples) == 2, row.note
            assert row.verified
        if row.samples and system != "wire":
            expected = {"hoplite": "shared memory", "gloo": "loopback TCP"}[system] if container == "single" else "TCP"
            assert row.transport == [expected], row.lab
    assert found["single", "hoplite", "own memory"].breakdown["staging"] > 0
    # Between containers, readers copy while the object arrives; in an allreduce, every rank puts.
    [between] = [row for row in rows if (row.op, row.container, row.variant) == ("allreduce", "cross", "own memory")]
    assert between.breakdown["staging"] > 0
    made = page(collect(rows))
    assert "| Hoplite (own memory) | shared memory | TCP |" in made
    assert "One container per rank, for Hoplite: One node per host may let all containers" in made
    assert "--ipc=host" not in made, "Gloo has no shared memory to use"
