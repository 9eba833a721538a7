"""What `make test-python` tests of hoplite-bench: one measurement, whose results are verified, and its report.

`make test-bench` also runs all other tests of this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

import bench_ports
from hoplite_bench import hosts, plan, session
from hoplite_bench.cli.bench import bench
from hoplite_bench.results import Results
from hoplite_bench.row import read

if TYPE_CHECKING:
    from pathlib import Path

bench_ports.take()


def test_a_broadcast_and_a_reduce_are_measured_verified_and_reported(tmp_path: Path) -> None:
    rsh, file, rows, report = (tmp_path / name for name in ("rsh", "hosts", "rows.jsonl", "report"))
    # A replacement for ssh, which runs the command on this machine.
    rsh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    rsh.chmod(0o755)
    file.write_text("one 127.0.0.1\ntwo 127.0.0.2\n")
    settings = session.Settings(["hoplite"], plan.cells(["broadcast", "reduce"], [2**20], [0.0]), 2)
    measured = session.measure(hosts.of_file(file, rsh=str(rsh)), settings, Results(rows))
    assert read([rows]) == measured
    assert [(row.system, row.op) for row in measured] == [
        ("wire", "broadcast"),
        ("hoplite", "broadcast"),
        ("wire", "reduce"),
        ("hoplite", "reduce"),
    ]
    assert [row.note for row in measured if not row.verified] == []
    assert all(len(row.samples) == 2 and min(row.samples) > 0 for row in measured)
    done = CliRunner().invoke(bench, ["report", str(rows), "--out", str(report), "--no-plots"])
    assert done.exit_code == 0, done.output
    page = (report / "report.md").read_text()
    assert "### Broadcast, 2 hosts" in page
    assert "### Reduce, 2 hosts" in page
