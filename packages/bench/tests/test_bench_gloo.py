"""Gloo in the bench: compilation and start of its program, and one run on two hosts."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote

import pytest

from bench_pair import Written, measured, prepared
from hoplite_bench.environments import Environments
from hoplite_bench.ranks.rank import write
from hoplite_bench.systems import OPS, Unavailable, gloo
from hoplite_bench.systems.base import RANKS
from hoplite_bench.systems.gloo import Gloo
from labs import needs_lab


def test_without_the_headers_the_error_names_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gloo, "HEADERS", tmp_path / "context.h")
    with pytest.raises(Unavailable, match=r"context.h is missing; .*apt-get install libgloo-dev"):
        Gloo().prepare(Environments(tmp_path))


def test_without_a_compiler_the_error_names_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gloo, "HEADERS", tmp_path)
    monkeypatch.setattr(gloo, "COMPILE", (str(tmp_path / "g++"),))
    with pytest.raises(Unavailable, match=r"can't compile gloo_rank.cpp \(.*apt-get install .*g\+\+"):
        Gloo().prepare(Environments(tmp_path))


def test_a_change_in_any_source_is_compiled_anew_and_no_change_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = [Path(shutil.copy(source, tmp_path)) for source in gloo.SOURCES]
    written = (RANKS / "gloo_rank.cpp", *RANKS.glob("*.hpp"))
    assert {source.name for source in sources} == {path.name for path in written}
    compiled = tmp_path / "compiled"
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\necho once >>{compiled}\n: >"$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(gloo, "HEADERS", tmp_path)
    monkeypatch.setattr(gloo, "SOURCES", sources)
    monkeypatch.setattr(gloo, "COMPILE", (str(compiler),))
    programs = set()
    for changed in [None, None, *sources]:
        if changed is not None:
            changed.write_text(changed.read_text() + "// changed\n")
        system = Gloo()
        system.prepare(Environments(tmp_path / "root"))
        programs.add(system.program)
    assert len(programs) == len(compiled.read_text().split()) == 1 + len(sources)


def test_every_host_has_a_rank_bound_to_its_address(tmp_path: Path) -> None:
    system = Gloo()
    system.program = tmp_path / "gloo_rank"
    launch = Written(tmp_path)
    system.start(launch, "default")
    assert [host for host, _, _ in launch.spawned] == [0, 1, 2]
    for host, (_, command, _) in zip(launch.hosts, launch.spawned, strict=True):
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert options["--address"] == host.address
        assert options["--store"] == f"10.9.0.1:{gloo.STORE_PORT}"
        assert options["--rank"] == str(host.number)
        assert options["--ranks"] == "3"


def test_a_bcube_is_offered_to_counts_that_make_one(tmp_path: Path) -> None:
    def offered(hosts: int) -> bool:
        system = Gloo()
        system.adapt([Written(tmp_path).hosts[0]] * hosts, None, plain=False)
        return "bcube" in [one.name for one in system.variants("allreduce")]

    assert [hosts for hosts in range(66) if offered(hosts)] == [4, 8, 12, 16, 32, 48, 64]
    assert not any(one.name == "bcube" for one in Gloo().variants("allreduce"))


@pytest.mark.peers
def test_one_source_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = prepared(Gloo()).program
    monkeypatch.setattr(Environments, "command", lambda *_: pytest.fail("compiled again"))
    assert prepared(Gloo()).program == program


def said(lines: TextIO) -> tuple[str, dict[str, str]]:
    """The next line from a rank."""
    word, *pairs = lines.readline().split()
    return word, {key: unquote(value) for key, _, value in (pair.partition("=") for pair in pairs)}


@pytest.mark.peers
def test_a_rank_reports_a_failure_and_continues(tmp_path: Path) -> None:
    system = prepared(Gloo())
    assert system.program is not None
    path = tmp_path / "control"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(30)
        options = {"address": "127.0.0.1", "store": "127.0.0.1:0", "version": "1 2%", "control": f"unix:{path}"}
        command = [word for name, value in options.items() for word in (f"--{name}", value)]
        with subprocess.Popen([system.program, *command, "--rank", "0", "--ranks", "1"]) as process:
            connection, _ = listener.accept()
            with connection, connection.makefile("r") as lines:
                connection.settimeout(30)

                def ask(word: str, **fields: object) -> tuple[str, dict[str, str]]:
                    connection.sendall((write(word, **fields) + "\n").encode())
                    return said(lines)

                word, fields = said(lines)
                assert (word, fields["rank"], fields["version"]) == ("hello", "0", "1 2%")
                assert int(fields["pid"]) == process.pid
                task = {"op": "allreduce", "bytes": 4096, "round": 1, "seed": 5, "arrival": 0}
                assert ask("prepare", **task, variant="by magic") == (
                    "failed",
                    {"why": "Gloo has no variant by magic of allreduce"},
                )
                assert ask("sing")[0] == "failed"
                assert ask("prepare", **task, variant="default")[0] == "ready"
                word, fields = ask("go", at=0, tokens="")
                assert word == "done"
                assert 0 < int(fields["start"]) <= int(fields["end"])
                assert ask("check") == ("checked", {"wrong": "", "disturbed": "", "extra": "0"})
            assert process.wait(30) == 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(120)  # the first time it is compiled
def test_two_hosts_measure_all_operations_and_variants() -> None:
    system = prepared(Gloo())
    rows = measured(system)
    assert {row.note for row in rows if not row.verified} == set()
    assert {(row.op, row.variant) for row in rows} == {(op, one.name) for op in OPS for one in system.variants(op)}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(120)  # the first time it is compiled
@pytest.mark.parametrize("hosts", [8, pytest.param(12, marks=pytest.mark.long)])
def test_more_hosts_sum_right_by_a_bcube(hosts: int) -> None:
    rows = measured(prepared(Gloo()), hosts=hosts, ops=["allreduce"])
    assert {row.note for row in rows if not row.verified} == set()
    assert "bcube" in {row.variant for row in rows}
