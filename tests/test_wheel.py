"""Results of `make wheel` in target/wheels: the contents of each wheel, and that it runs with only its requirements.

Tests marked `long` also need `make wheel-free-threaded`, or another Python.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parent.parent
WHEELS = ROOT / "target" / "wheels"
FREE_THREADED = WHEELS / "free-threaded"
# The glibc that `make wheel` links for with zig, which torch, vLLM and MPI require too.
GLIBC = (2, 28)

CORE = "hoplite_collectives"
# The folder of each distribution.
FOLDERS = {
    CORE: ROOT,
    "hoplite_bench": ROOT / "packages" / "bench",
    "hoplite_topology": ROOT / "packages" / "topology",
}
PACKAGES = {CORE: "hoplite", "hoplite_bench": "hoplite_bench", "hoplite_topology": "hoplite_topology"}
# The crates of distributions with an extension. Their sdists contain neither the simulation nor other crates.
CRATES = {
    CORE: (
        "crates/certs",
        "crates/client",
        "crates/node",
        "crates/proto",
        "crates/py",
        "crates/shm",
        "crates/survey",
    ),
    "hoplite_topology": ("crates/topology", "packages/topology"),
}

# Run by each interpreter with only the wheel and its requirements. Prints the duration of the import in milliseconds.
USE = """
import sys, time
start = time.perf_counter()
import hoplite
took = time.perf_counter() - start
assert "numpy" not in sys.modules, "import hoplite brought NumPy with it"
assert "click" not in sys.modules and "rich" not in sys.modules, "import hoplite brought the command line with it"
with hoplite.Node(capacity="256MiB") as node, node.client() as hp:
    ref = hp.put(bytes(range(256)) * 4096)
    assert hp.get(ref, timeout=30) == bytes(range(256)) * 4096
    assert bytes(hp.get(hp.put(b"small"), timeout=30)) == b"small"
    hp.delete([ref])
print(took * 1000)
"""

# Run likewise. Ends while daemon threads are in calls: Python unwinds their stacks, through those of the module.
BUSY_AT_THE_END = """
import threading, time
import hoplite
node = hoplite.Node(capacity="64MiB")
hp = node.client()
def work():
    while True:
        ref = hp.put(bytes(10_000))
        hp.get(ref)
        hp.delete(ref)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""

# Run likewise. Prints the error of a feature whose extra is not installed.
WITHOUT_HTTP = """
import hoplite
try:
    hoplite.Node(http=0, capacity="64MiB")
except hoplite.HopliteError as error:
    print(error)
"""


@functools.cache
def only(pattern: str) -> Path:
    """Returns the only file in target/wheels that matches."""
    found = list(WHEELS.glob(pattern))
    assert len(found) == 1, f"{len(found)} of {pattern} in {WHEELS}: run make wheel"
    return found[0]


def wheel_of(distribution: str) -> Path:
    """Returns the wheel of a distribution."""
    return only(f"{distribution}-*.whl")


def package_files(distribution: str = CORE) -> set[str]:
    """Returns the paths in a wheel of all files of a distribution's package, without the extension module."""
    package = FOLDERS[distribution] / "python" / PACKAGES[distribution]
    kinds = ("*.py", "*.pyi", "py.typed", "*.cpp", "*.hpp", "*.html", "*.css", "*.js", "*.svg")
    return {str(path.relative_to(package.parent)) for kind in kinds for path in package.rglob(kind)}


def run(*command: str | Path, **environment: str) -> str:
    """Runs a command without access to this checkout, and returns its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command],
        env={**inherited, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def extension(distribution: str, suffix: str = "abi3") -> set[str]:
    """Returns the path of the extension module in a wheel, if there is one."""
    return {f"{PACKAGES[distribution]}/_native.{suffix}.so"} if distribution in CRATES else set()


def free_threaded(distribution: str) -> Path:
    """Returns the wheel of a distribution for the free-threaded Python 3.14."""
    found = list(FREE_THREADED.glob(f"{distribution}-*.whl"))
    assert len(found) == 1, f"{len(found)} of {distribution} in {FREE_THREADED}: run make wheel-free-threaded"
    return found[0]


FIND = [
    pytest.param(wheel_of, id="abi3"),
    pytest.param(free_threaded, id="free-threaded", marks=pytest.mark.long),
]


def imported(wheel: Path, folder: Path) -> set[str]:
    """Returns the symbols that the extension module of a wheel imports, with versions, such as "statx GLIBC_2.28"."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump is missing: apt-get install binutils")
    with zipfile.ZipFile(wheel) as archive:
        (module,) = (name for name in archive.namelist() if name.endswith(".so"))
        archive.extract(module, folder)
    lines = run(objdump, "-T", folder / module).splitlines()
    undefined = [line.partition("*UND*")[2].split()[1:] for line in lines if "*UND*" in line]
    return {" ".join(reversed(words)).replace("(", "").replace(")", "") for words in undefined}


def install(*where: str | Path, python: Path | str = sys.executable, also: str | None = None) -> None:
    """Installs the library's wheel and optionally another one, with their requirements in the tested versions."""
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check", "install")
    wheels = [wheel_of(CORE)] + ([wheel_of(also)] if also else [])
    run(*pip, "--constraint", ROOT / "requirements-dev.txt", *where, *wheels)


def print_figure(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Prints a figure to the terminal of the test run."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


@pytest.mark.parametrize("distribution", PACKAGES)
def test_a_wheel_contains_only_its_package(distribution: str, capsys: pytest.CaptureFixture[str]) -> None:
    built = wheel_of(distribution)
    with zipfile.ZipFile(built) as wheel:
        names = set(wheel.namelist())
    information = {name for name in names if ".dist-info/" in name}
    assert names - information == package_files(distribution) | extension(distribution)
    assert f"{PACKAGES[distribution]}/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in information)
    print_figure(capsys, f"{built.name}: {built.stat().st_size / 1e6:.1f} MB")


@pytest.mark.parametrize("distribution", CRATES)
@pytest.mark.parametrize("find", FIND)
def test_one_wheel_supports_every_python_from_3_11_and_one_the_free_threaded(
    find: Callable[[str], Path], distribution: str
) -> None:
    # Without zig, maturin names the glibc of this machine, or "linux" if no policy fits.
    tag = "manylinux_2_28" if has_zig() else r"(manylinux_2_\d+|linux)"
    python = "cp311-abi3" if find is wheel_of else "cp314-cp314t"
    name = rf"{distribution}-{re.escape(hoplite.__version__)}-{python}-{tag}_\w+\.whl"
    assert re.fullmatch(name, find(distribution).name)


def has_zig() -> bool:
    """Whether `make wheel` could install zig."""
    return (ROOT / "target" / "zig" / "ziglang" / "zig").exists()


@pytest.mark.parametrize("distribution", CRATES)
@pytest.mark.parametrize("find", FIND)
def test_a_module_needs_no_newer_glibc(find: Callable[[str], Path], distribution: str, tmp_path: Path) -> None:
    if not has_zig():
        pytest.skip("zig is not installed: make wheel installs it from PyPI")
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", " ".join(imported(find(distribution), tmp_path)))
    versions = {(int(major), int(minor)) for major, minor in found}
    assert versions
    assert max(versions) <= GLIBC


@pytest.mark.parametrize("distribution", CRATES)
@pytest.mark.parametrize("find", FIND)
def test_a_module_unwinds_with_the_library_of_the_process(
    find: Callable[[str], Path], distribution: str, tmp_path: Path
) -> None:
    # Two unwinders in a process end it: pthread_exit passes the state of one to the functions of the other.
    assert "_Unwind_Resume GCC_3.0" in imported(find(distribution), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("distribution", CRATES)
def test_the_free_threaded_wheel_has_a_module_of_its_own(distribution: str, tmp_path: Path) -> None:
    built = free_threaded(distribution)
    with zipfile.ZipFile(built) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    suffix = f"cpython-314t-{platform.machine()}-linux-gnu"
    assert names == package_files(distribution) | extension(distribution, suffix)
    # The stable interface of 3.11 does not have it.
    assert any(name.startswith("PyUnicodeWriter_Create") for name in imported(built, tmp_path))


@pytest.mark.long
def test_the_free_threaded_wheel_runs(tmp_path: Path) -> None:
    python = shutil.which("python3.14t")
    if python is None:
        pytest.skip("python3.14t is not installed, and neither PyPI nor Debian has it")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--only-binary", ":all:")
    of_python = ("--python-version", "3.14", "--abi", "cp314t", "--abi", "none", "--target", tmp_path)
    run(*pip, *of_python, "--constraint", ROOT / "requirements-dev.txt", free_threaded(CORE))
    run(python, "-s", "-W", "error", "-c", USE, PYTHONPATH=str(tmp_path))
    gil = "import hoplite, sys; print(sys._is_gil_enabled())"
    assert run(python, "-s", "-c", gil, PYTHONPATH=str(tmp_path)).strip() == "False"


def requirements_of(distribution: str) -> tuple[list[str], set[str]]:
    """Returns the requirements and extras of a wheel."""
    with zipfile.ZipFile(wheel_of(distribution)) as wheel:
        (metadata,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE)
    return required, set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE))


def test_the_wheels_have_few_requirements() -> None:
    of_values, of_frameworks = (
        {"numpy", "bfloat16", "torch", "arrow"},
        {*("dask", "proxystore", "ray", "torchft", "torchrl", "trl", "verl", "vllm")},
    )
    assert requirements_of(CORE) == (["click", "rich"], of_values | of_frameworks | {"demo", "http", "otel", "top"})
    assert requirements_of("hoplite_topology") == (["click", "hoplite-collectives", "rich"], {"lab", "solvers"})
    measuring = ["click", "hoplite-collectives", "numpy", "psutil", "pyroute2", "rich"]
    assert requirements_of("hoplite_bench") == (measuring, {"report"})


@pytest.mark.parametrize("distribution", PACKAGES)
def test_an_sdist_contains_everything_that_a_build_needs(distribution: str) -> None:
    with tarfile.open(only(f"{distribution}-*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"}
    crates = CRATES.get(distribution, ())
    for crate in crates:
        sources = [ROOT / crate / "Cargo.toml", *(ROOT / crate / "src").rglob("*.rs")]
        needed |= {"Cargo.toml", "Cargo.lock"} | {str(path.relative_to(ROOT)) for path in sources}
    assert needed | {f"python/{path}" for path in package_files(distribution)} <= names
    assert {"/".join(name.split("/")[:2]) for name in names if name.endswith(".rs")} == set(crates)
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("tests/", "target/"))]


def test_the_wheel_runs_in_a_bare_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install(python=python)
    assert "numpy" not in run(python, "-c", "import importlib.util as u; print(u.find_spec('numpy') and 'numpy')")
    took = min(float(run(python, "-I", "-c", USE)) for _ in range(5))
    for _ in range(5):
        run(python, "-I", "-c", BUSY_AT_THE_END)
    assert "pip install 'prometheus" in run(python, "-I", "-c", WITHOUT_HTTP)
    command = tmp_path / "venv" / "bin" / "hoplite"
    assert run(command, "--version").split()[-1] == hoplite.__version__
    assert "hoplite demo" in run(command, "--help")
    for package in ("hoplite-bench", "hoplite-topology"):
        assert f"Not installed: in the package {package}" in run(command, "--help")
    print_figure(capsys, f"import hoplite on {version(python)}: {took:.1f} ms, best of 5")


# Imports each module of a package.
IMPORT_ALL = """
import importlib, pkgutil, sys
from hoplite.errors import HopliteError
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except HopliteError as error:
        # A part that needs an extra names it.
        assert "pip install '" in str(error), error
"""

# A command of each package, run where nothing else is installed.
COMMANDS = {
    "hoplite_bench": ("bench", "--help"),
    "hoplite_topology": ("topology", "example", "--machines", "4"),
}


@pytest.mark.parametrize("distribution", COMMANDS)
def test_a_wheel_of_another_package_runs_with_its_requirements(distribution: str, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python, command = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "hoplite"
    install(python=python, also=distribution)
    assert run(python, "-I", "-c", IMPORT_ALL, PACKAGES[distribution]) == ""
    assert run(command, *COMMANDS[distribution])


@pytest.mark.long
def test_the_wheel_runs_on_the_newest_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got = subprocess.run(
        [ROOT / ".ci" / "newest-python", ROOT / "target" / "newest-python"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if got.returncode == 3:
        pytest.skip(got.stderr.strip())
    assert got.returncode == 0, got.stderr
    python = Path(got.stdout.strip())
    newest, packages = version(python), tmp_path / "packages"
    install("--target", packages, "--python-version", newest, "--only-binary", ":all:")
    took = min(float(run(python, "-s", "-c", USE, PYTHONPATH=str(packages))) for _ in range(5))
    command = (python, "-s", "-m", "hoplite.tools.cli")
    assert run(*command, "--version", PYTHONPATH=str(packages)).split()[-1] == hoplite.__version__
    assert "hoplite demo" in run(*command, "--help", PYTHONPATH=str(packages))
    print_figure(capsys, f"import hoplite on {newest}: {took:.1f} ms, best of 5")


@pytest.mark.long
@pytest.mark.parametrize("distribution", CRATES)
def test_an_sdist_builds_without_the_checkout(distribution: str, tmp_path: Path) -> None:
    maturin = shutil.which("maturin", path=str(Path(sys.executable).parent))
    assert maturin is not None, "maturin is not installed with this Python: run make build"
    subprocess.run(
        [maturin, "sdist", "--out", tmp_path], cwd=FOLDERS[distribution], check=True, timeout=100, capture_output=True
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    # All files of an archive have one old date, so cargo would reuse outputs of other builds.
    target = ROOT / "target" / "sdist"
    for built_before in target.glob("release/.fingerprint/hoplite-*"):
        shutil.rmtree(built_before)
    # Offline, so with the versions of the archive's lock file. Not --locked: cargo removes from the lock file what only
    # the simulation needs, which is not in the archive.
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, sdist],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CARGO_NET_OFFLINE": "true",
            "CARGO_TARGET_DIR": str(target),
        },
        cwd="/",
        check=True,
        timeout=880,
    )
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as wheel:
        assert package_files(distribution) | extension(distribution) <= set(wheel.namelist())


def version(python: Path) -> str:
    """Returns the version of an interpreter, such as 3.11.2."""
    return run(python, "-c", "import platform; print(platform.python_version())").strip()
