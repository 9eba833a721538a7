"""What `make wheel` leaves in target/wheels: what is in it, and that it runs where nothing else is installed."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import hoplite

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parent.parent
WHEELS = ROOT / "target" / "wheels"

# Run by each interpreter with nothing beside the wheel but what it requires. Prints the milliseconds of the import.
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


@functools.cache
def only(pattern: str) -> Path:
    """The one file in target/wheels that matches."""
    found = list(WHEELS.glob(pattern))
    assert len(found) == 1, f"{len(found)} of {pattern} in {WHEELS}: run make wheel"
    return found[0]


def package_files() -> set[str]:
    """Every file of the package but the built module, by its path in a wheel."""
    package = ROOT / "python" / "hoplite"
    kinds = ("*.py", "*.pyi", "py.typed", "*.cpp", "*.hpp")
    return {str(path.relative_to(package.parent)) for kind in kinds for path in package.rglob(kind)}


def run(*command: str | Path, **environment: str) -> str:
    """Runs a command that knows nothing of this checkout and returns what it said."""
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


def install(*where: str | Path, python: Path | str = sys.executable) -> None:
    """Installs the wheel, with the versions of click and rich that this project is tested with."""
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check", "install")
    run(*pip, "--constraint", ROOT / "requirements-dev.txt", *where, only("*.whl"))


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Prints a figure where whoever runs the tests sees it."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


def test_the_wheel_holds_the_package_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(only("*.whl")) as wheel:
        names = set(wheel.namelist())
    information = {name for name in names if ".dist-info/" in name}
    assert names - information == package_files() | {"hoplite/_native.abi3.so"}
    assert {"hoplite/py.typed", "hoplite/_native.pyi"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in information)
    tell(capsys, f"{only('*.whl').name}: {only('*.whl').stat().st_size / 1e6:.1f} MB")


def test_one_wheel_serves_every_python_from_3_11() -> None:
    # Where no manylinux policy fits, maturin says "linux": such a wheel runs on machines like this one only.
    name = rf"hoplite_collectives-{re.escape(hoplite.__version__)}-cp311-abi3-(manylinux_2_\d+|linux)_\w+\.whl"
    assert re.fullmatch(name, only("*.whl").name)


def test_the_wheel_requires_only_what_the_command_line_needs() -> None:
    with zipfile.ZipFile(only("*.whl")) as wheel:
        (metadata,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert required == ["click", "rich"]
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE))
    of_values, of_tools = {"numpy", "bfloat16", "torch", "arrow"}, {"demo", "lab", "bench", "topology"}
    assert extras == of_values | of_tools | {"dask", "proxystore", "ray"}


def test_the_sdist_holds_all_that_a_build_needs() -> None:
    with tarfile.open(only("*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {"Cargo.toml", "Cargo.lock", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO"}
    # All crates but the simulation, of which the module has nothing; maturin takes it out of the workspace too.
    for crate in ("proto", "shm", "node", "py"):
        sources = [ROOT / "crates" / crate / "Cargo.toml", *(ROOT / "crates" / crate / "src").rglob("*.rs")]
        needed |= {str(path.relative_to(ROOT)) for path in sources}
    assert needed | {f"python/{path}" for path in package_files()} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("tests/", "target/"))]


def test_the_wheel_runs_in_a_bare_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    install(python=python)
    assert "numpy" not in run(python, "-c", "import importlib.util as u; print(u.find_spec('numpy') and 'numpy')")
    took = min(float(run(python, "-I", "-c", USE)) for _ in range(5))
    command = tmp_path / "venv" / "bin" / "hoplite"
    assert run(command, "--version").split()[-1] == hoplite.__version__
    assert "hoplite demo" in run(command, "--help")
    tell(capsys, f"import hoplite on {version(python)}: {took:.1f} ms, best of 5")


@pytest.mark.timeout(180)
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
    tell(capsys, f"import hoplite on {newest}: {took:.1f} ms, best of 5")


@pytest.mark.long
def test_the_sdist_builds_without_the_checkout(tmp_path: Path) -> None:
    maturin = shutil.which("maturin", path=str(Path(sys.executable).parent))
    assert maturin is not None, "maturin is not installed beside this Python: run make build"
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=ROOT, check=True, timeout=100, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    # Files of an archive are all of one old date, so cargo would take what it has built of others for theirs.
    target = ROOT / "target" / "sdist"
    for built_before in target.glob("release/.fingerprint/hoplite-*"):
        shutil.rmtree(built_before)
    # Offline, so by the versions of the lock file in the archive. Not --locked: cargo strikes from it what only the
    # simulation needs, which is not in the archive.
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
        assert package_files() | {"hoplite/_native.abi3.so"} <= set(wheel.namelist())


def version(python: Path) -> str:
    """The version of an interpreter, such as 3.11.2."""
    return run(python, "-c", "import platform; print(platform.python_version())").strip()
