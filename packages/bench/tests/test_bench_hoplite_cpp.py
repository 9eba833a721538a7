"""Hoplite in C++ in the bench: where it finds the library, how it starts its program, and one run on two hosts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench_pair import Written, measured, prepared
from hoplite_bench.environments import Environments
from hoplite_bench.systems import Unavailable, hoplite_cpp
from hoplite_bench.systems.base import COLLECTIVES
from hoplite_bench.systems.hoplite import PLAIN, Hoplite
from hoplite_bench.systems.hoplite_cpp import HopliteCpp
from labs import needs_lab

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hoplite_cpp, "pkg_config", lambda *_: "")


def built(checkout: Path) -> tuple[Path, Path]:
    """A checkout with empty files in place of the headers and the library."""
    include, library = checkout / "packages" / "native" / "include", checkout / "target" / "native"
    for file in (include / "hoplite" / "hoplite.hpp", include / "hoplite" / "hoplite.h", library / "libhoplite.so"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    return include, library


@pytest.mark.usefixtures("not_installed")
def test_without_the_library_the_error_names_the_command_that_builds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hoplite_cpp, "CHECKOUT", tmp_path)
    with pytest.raises(Unavailable, match=r"/target/native has no libhoplite.so; .*`make native`"):
        HopliteCpp().prepare(Environments(tmp_path / "root"))


@pytest.mark.usefixtures("not_installed")
def test_without_a_compiler_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built(tmp_path)
    monkeypatch.setattr(hoplite_cpp, "CHECKOUT", tmp_path)
    monkeypatch.setattr(hoplite_cpp, "COMPILE", (str(tmp_path / "g++"),))
    with pytest.raises(Unavailable, match=r"can't compile hoplite_rank.cpp .*`apt-get install g"):
        HopliteCpp().prepare(Environments(tmp_path / "root"))


def test_an_installed_library_is_used_before_that_of_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hoplite_cpp, "CHECKOUT", tmp_path)
    here = built(tmp_path)
    monkeypatch.setattr(hoplite_cpp, "pkg_config", lambda option: f"/opt/{option.partition('=')[2]}")
    assert hoplite_cpp.found() == (Path("/opt/includedir"), Path("/opt/libdir"))
    monkeypatch.setattr(hoplite_cpp, "pkg_config", lambda *_: "")
    assert hoplite_cpp.found() == here


@pytest.mark.usefixtures("not_installed")
def test_a_changed_header_is_compiled_anew_and_no_change_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    include, _ = built(tmp_path)
    compiler, calls = tmp_path / "g++", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho once >>{calls}\nwhile [ "$1" != -o ]; do shift; done\n: >"$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(hoplite_cpp, "CHECKOUT", tmp_path)
    monkeypatch.setattr(hoplite_cpp, "COMPILE", (str(compiler),))
    programs = set()
    for text in ["", "", "// changed\n"]:
        (include / "hoplite" / "hoplite.hpp").write_text(text)
        system = HopliteCpp()
        system.prepare(Environments(tmp_path / "root"))
        programs.add(system.program)
    assert len(programs) == len(calls.read_text().split()) == 2


def test_its_ranks_start_as_those_of_python_on_other_ports(tmp_path: Path) -> None:
    native, python = HopliteCpp(), Hoplite()
    native.program = tmp_path / "hoplite_rank"
    both = []
    for system in (native, python):
        launch = Written(tmp_path)
        system.start(launch, PLAIN)
        both.append(launch.spawned)
    for (host, command, variables), (_, python_command, python_variables) in zip(*both, strict=True):
        assert command[0] == str(native.program)
        options = python_command[python_command.index("--control") :]
        ports = dict(zip(command[1:], options, strict=True))
        changed = {own: other for own, other in ports.items() if own != other}
        assert all(own.endswith(":17427") and other.endswith(":17423") for own, other in changed.items())
        assert changed, f"rank {host} listens on the port of a node of the other system"
        assert variables == python_variables


def test_it_has_the_variants_that_a_native_node_supports(tmp_path: Path) -> None:
    system = HopliteCpp()
    system.adapt(Written(tmp_path).hosts, {"racks": []}, plain=True, transports="own")
    for op in COLLECTIVES:
        assert [one.name for one in system.variants(op)] == ["default", PLAIN]
    assert system.variants("ddp") == []


@NEEDS_COMPILER
@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(120)  # the first time it is compiled
def test_two_hosts_measure_all_operations() -> None:
    rows = measured(prepared(HopliteCpp()), ops=COLLECTIVES)
    assert {row.note for row in rows if not row.verified} == set()
    assert {row.op for row in rows} == set(COLLECTIVES)
    assert all(row.version for row in rows)
