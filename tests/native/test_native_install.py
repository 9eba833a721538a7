"""What `make install` and `make deb` install: programs in C and C++ are built with it as users do, and run."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from native.conftest import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
BUILT = Path(LIBRARY)
PROGRAMS = ROOT / "packages" / "native" / "tests" / "install"

COMPILERS = {"gcc": "g++", "clang": "clang++"}
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
# The oldest and the newest standard of each language that a header supports.
STANDARDS = {
    "hoplite.h": ("c11", "c2x", "c++11", "c++20"),
    "hoplite.hpp": ("c++20", "c++2b"),
}
# Of the stripped library.
SIZE_LIMIT = 6 * 1024 * 1024
# How a program is linked: options for pkg-config and for the compiler.
LINKED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "shared": ((), ()),
    "static": (("--static",), ("-Wl,-Bstatic", "-lhoplite", "-Wl,-Bdynamic")),
    "static without any shared library": (("--static",), ("-static",)),
}


def run(*command: str | Path, timeout: float = 100, **environment: str) -> str:
    """Runs a command outside of this checkout and returns its output."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Excludes other tests that run make or CMake in target/native."""
    assert (BUILT / "libhoplite.so").exists(), "the library is not built: run make native"
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(*arguments: str | Path) -> None:
    """Runs make in this checkout."""
    run("make", "-C", ROOT, f"NATIVE={BUILT}", *arguments)


def files(folder: Path) -> list[str]:
    """Returns the paths of everything in a folder that is not a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed library that was moved after `make install`."""
    there = tmp_path_factory.mktemp("installed")
    with alone():
        make("install", "PREFIX=/opt/hoplite", f"DESTDIR={there}")
    assert [path.name for path in there.iterdir()] == ["opt"]
    moved = there / "moved"
    (there / "opt" / "hoplite").rename(moved)
    return moved


def compiler_of(language: str, compiler: str) -> str:
    """Returns the command of a compiler, or skips."""
    command = COMPILERS[compiler] if language in {"cpp", "c++"} else compiler
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed: run make native-packages")
    return command


def pkg_config(installed: Path, *options: str) -> list[str]:
    """Returns flags for a compiler."""
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not installed: run make native-packages")
    (folder,) = (path.parent for path in installed.rglob("hoplite.pc"))
    return run("pkg-config", *options, "hoplite", PKG_CONFIG_PATH=str(folder)).split()


def library_folder(installed: Path) -> str:
    """Returns the folder of an installed library."""
    (found,) = installed.rglob("libhoplite.a")
    return str(found.parent)


def runs(program: Path, installed: Path, tmp_path: Path) -> None:
    """Checks that a program runs with the library that it was built with."""
    version = run(program, LD_LIBRARY_PATH=library_folder(installed), XDG_RUNTIME_DIR=str(tmp_path))
    assert version.strip() == hoplite.__version__


@functools.cache
def compiled(installed: Path, compiler: str, language: str) -> Path:
    """Compiles a program with the flags of pkg-config."""
    standard = "-std=c++20" if language == "cpp" else "-std=c11"
    made = installed.parent / f"{compiler}-{language}.o"
    source = PROGRAMS / f"program.{language}"
    flags = pkg_config(installed, "--cflags")
    run(compiler_of(language, compiler), standard, *WARNINGS, *flags, "-c", source, "-o", made)
    return made


def build(installed: Path, tmp_path: Path, compiler: str, language: str, linked: str) -> Path:
    """Compiles and links a program with the flags of pkg-config."""
    options, instead = LINKED[linked]
    program = tmp_path / "program"
    flags = [
        part
        for flag in pkg_config(installed, "--libs", *options)
        for part in (instead if flag == "-lhoplite" and "-Wl,-Bstatic" in instead else [flag])
    ]
    flags += [flag for flag in instead if flag == "-static"]
    run(compiler_of(language, compiler), compiled(installed, compiler, language), *flags, "-o", program)
    return program


@pytest.mark.parametrize("linked", LINKED)
@pytest.mark.parametrize(("compiler", "language"), [("gcc", "c"), ("clang", "cpp")])
def test_a_program_builds_with_pkg_config(
    prefix: Path, tmp_path: Path, compiler: str, language: str, linked: str
) -> None:
    program = build(prefix, tmp_path, compiler, language, linked)
    dynamic = run("readelf", "--dynamic", program)
    assert ("libhoplite.so.0" in dynamic) == (linked == "shared")
    assert ("NEEDED" in dynamic) == ("without" not in linked)
    runs(program, prefix, tmp_path)


def test_a_program_builds_with_find_package(prefix: Path, tmp_path: Path) -> None:
    run("cmake", "-S", PROGRAMS, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    for name in ("c_hoplite", "c_hoplite_static", "cpp_hoplite", "cpp_hoplite_static"):
        runs(tmp_path / name, prefix, tmp_path)


def test_find_package_refuses_an_incompatible_version(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(Later LANGUAGES C)\nfind_package(Hoplite 1.0 REQUIRED)\n"
    )
    with pytest.raises(AssertionError, match=r"compatible with requested version.*\"1\.0\"") as failed:
        run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    assert hoplite.__version__ in str(failed.value)


@pytest.mark.parametrize(
    ("header", "standard"), [(header, standard) for header, standards in STANDARDS.items() for standard in standards]
)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_header_compiles_alone_without_warnings(
    prefix: Path, tmp_path: Path, compiler: str, header: str, standard: str
) -> None:
    language = "c++" if "++" in standard else "c"
    source = tmp_path / "alone"
    source.write_text(f"#include <hoplite/{header}>\n#include <hoplite/{header}>\n")
    run(
        *(compiler_of(language, compiler), f"-std={standard}", *WARNINGS, "-fsyntax-only", f"-I{prefix}/include"),
        *("-x", language, source),
    )


def test_the_cpp_header_names_the_standard_that_it_needs(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "old.cpp"
    source.write_text("#include <hoplite/hoplite.hpp>\n")
    command = ["c++", "-std=c++17", "-fsyntax-only", f"-I{prefix}/include", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    first = next(line for line in done.stderr.splitlines() if "error" in line)
    assert "hoplite.hpp needs C++20: compile with -std=c++20" in first


def declared(installed: Path) -> set[str]:
    """Returns the functions in hoplite.h."""
    text = run("cc", "-E", "-P", installed / "include" / "hoplite" / "hoplite.h")
    return set(re.findall(r"\b(hoplite_\w+)\s*\(", text))


def test_the_shared_library_exports_the_functions_of_the_header(prefix: Path) -> None:
    lines = run("objdump", "--dynamic-syms", prefix / "lib" / "libhoplite.so").splitlines()
    defined = [line.split() for line in lines if re.match(r"[0-9a-f]{16} ", line) and "*UND*" not in line]
    functions = {fields[-1]: fields[-2] for fields in defined if ".text" in fields}
    assert set(functions) == declared(prefix)
    assert set(functions.values()) == {"HOPLITE_0.1"}
    # The name of the version is a symbol too.
    assert {fields[-1] for fields in defined} - set(functions) == {"HOPLITE_0.1"}


def test_the_static_library_defines_the_functions_of_the_header(prefix: Path) -> None:
    lines = run("nm", "--defined-only", "--extern-only", prefix / "lib" / "libhoplite.a").splitlines()
    assert {line.split()[-1] for line in lines if " T " in line} == declared(prefix)
    assert not [line for line in lines if re.match(r"[0-9a-f]{16} [^T] ", line)]


def test_the_static_library_can_be_linked_with_another_in_rust(prefix: Path, tmp_path: Path) -> None:
    other = tmp_path / "libother.a"
    run("rustc", "--edition=2024", "--crate-type=staticlib", "-O", PROGRAMS / "other.rs", "-o", other)
    flags = [flag for flag in pkg_config(prefix, "--static", "--libs-only-l") if flag != "-lhoplite"]
    program = (PROGRAMS / "two.c", prefix / "lib" / "libhoplite.a", other)
    run("cc", *WARNINGS, f"-I{prefix}/include", *program, *flags, "-o", tmp_path / "two")
    run(tmp_path / "two")


def test_the_shared_library_is_hardened_and_needs_only_libc_and_libgcc(prefix: Path) -> None:
    dynamic = run("readelf", "--dynamic", "--wide", prefix / "lib" / "libhoplite.so")
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed <= {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) == ["libhoplite.so.0"]
    assert "BIND_NOW" in dynamic
    assert not re.search("TEXTREL|RPATH|RUNPATH", dynamic)
    segments = run("readelf", "--segments", "--wide", prefix / "lib" / "libhoplite.so")
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK.* RW ", segments)


@pytest.mark.long  # of the library that users install, which takes minutes to optimize
def test_the_stripped_library_is_small(prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stripped = tmp_path / "stripped"
    run("strip", prefix / "lib" / "libhoplite.so", "-o", stripped)
    size = stripped.stat().st_size
    with capsys.disabled():
        sys.stdout.write(f"\nlibhoplite.so, stripped: {size / 2**20:.2f} MiB\n")
    assert size < SIZE_LIMIT


@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows the instructions of x86-64 only")
@pytest.mark.long  # likewise
def test_a_reduce_adds_several_numbers_with_one_instruction(prefix: Path) -> None:
    library = prefix / "lib" / "libhoplite.so"
    symbols = [line.split() for line in run("nm", "--print-size", library).splitlines() if "folding7kernels" in line]
    code = ""
    for start, size, *_ in symbols:
        end = hex(int(start, 16) + int(size, 16))
        code += run("objdump", "--disassemble", f"--start-address=0x{start}", f"--stop-address={end}", library)
    assert {"addps", "addpd", "paddd"} <= set(re.findall(r"\b(?:v?)(addps|addpd|paddd)\b", code))


def test_make_install_honours_prefix_and_destdir_and_make_uninstall_removes_everything(tmp_path: Path) -> None:
    for destination in ("", str(tmp_path / "image")):
        prefix = tmp_path / "prefix"
        with alone():
            make("install", f"PREFIX={prefix}", f"DESTDIR={destination}")
            there = Path(f"{destination}{prefix}")
            assert {"include/hoplite/hoplite.h", "include/hoplite/hoplite.hpp"} <= set(files(there))
            assert {path.parts[0] for path in map(Path, files(there))} == {"include", "lib"}
            assert all(there in path.parents for path in map(tmp_path.joinpath, files(tmp_path)))
            make("uninstall", f"DESTDIR={destination}")
        assert files(tmp_path) == []
        left = {path.name for path in there.rglob("*")}
        assert left <= {"include", "lib", "pkgconfig", "cmake"}


@pytest.fixture(scope="session")
def packages() -> list[Path]:
    """The Debian packages."""
    if shutil.which("dpkg-shlibdeps") is None:
        pytest.skip("dpkg-dev is not installed: run make native-packages")
    with alone():
        made = sorted(BUILT.glob("*.deb"))
        newest = (BUILT / "libhoplite.so").stat().st_mtime
        if len(made) != 2 or any(package.stat().st_mtime < newest for package in made):
            make("deb")
    return sorted(BUILT.glob("*.deb"))


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_a_program_builds_with_the_unpacked_packages(packages: list[Path], tmp_path: Path, language: str) -> None:
    for package in packages:
        run("dpkg-deb", "--extract", package, tmp_path / "unpacked")
    program = build(tmp_path / "unpacked", tmp_path, "gcc", language, "shared")
    runs(program, tmp_path / "unpacked", tmp_path)


def test_the_packages_declare_what_they_need(packages: list[Path]) -> None:
    development, runtime = packages
    assert re.match(rf"libhoplite-dev_{hoplite.__version__}_\w+\.deb$", development.name)
    assert re.match(rf"libhoplite0_{hoplite.__version__}_\w+\.deb$", runtime.name)
    assert run("dpkg-deb", "--field", development, "Depends").strip() == f"libhoplite0 (= {hoplite.__version__})"
    needed = run("dpkg-deb", "--field", runtime, "Depends").strip()
    assert {requirement.split()[0] for requirement in needed.split(", ")} == {"libc6", "libgcc-s1"}


@pytest.mark.long  # lintian unpacks the static library several times
def test_lintian_finds_nothing(packages: list[Path]) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed: run apt-get install lintian")
    assert run("lintian", "--allow-root", "--fail-on", "error,warning", *packages) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="dpkg installs packages as root only")
def test_a_removed_package_leaves_nothing(packages: list[Path], tmp_path: Path) -> None:
    for folder in ("info", "updates"):
        (tmp_path / "var" / "lib" / "dpkg" / folder).mkdir(parents=True)
    (tmp_path / "var" / "lib" / "dpkg" / "status").touch()
    dpkg = ("dpkg", f"--root={tmp_path}", "--force-depends", "--force-script-chrootless")
    run(*dpkg, "--install", *packages)
    installed = {path for path in files(tmp_path) if not path.startswith("var/")}
    assert any(path.endswith("/libhoplite.so.0") for path in installed)
    run(*dpkg, "--purge", "libhoplite-dev", "libhoplite0")
    assert not [path for path in files(tmp_path) if not path.startswith("var/")]
