"""The image of Dockerfile: it runs a node as an unprivileged user, reports its health, and leaves on its stop signal.

Builds the final stage over Debian's Python, because an image registry may not be reachable, with the wheel of
`make wheel`.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "target"
WHEELS = TARGET / "wheels"
# Debian's Python with pip. Unpacking its packages takes half a minute, so it is kept.
BASE = TARGET / "image-base.tar"
TOOLS = ("buildah", "mmdebstrap")
WITHOUT_NETWORK = """
FROM scratch
ADD image-base.tar /
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
"""

pytestmark = [pytest.mark.wheel, pytest.mark.long]


class Images:
    """Runs buildah with a storage of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = ("buildah", "--storage-driver", "vfs", "--root", folder / "root", "--runroot", folder / "run")

    def run(self, *arguments: str | Path, code: int = 0) -> str:
        """Runs buildah to completion and returns its output."""
        done = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, timeout=200, check=False, env=self.environment
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.strip()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts buildah."""
        return subprocess.Popen(
            [*self.command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment
        )

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        """Variables that select an isolation which needs no rights beyond root's."""
        return {**os.environ, "BUILDAH_ISOLATION": "chroot"}


def make_base() -> None:
    """Unpacks Debian's Python into `BASE`, or skips the test."""
    packages = ("--variant=minbase", "--include=python3,python3-pip", "bookworm")
    unpacked = BASE.with_suffix(".part.tar")
    done = subprocess.run(
        ["mmdebstrap", "--quiet", *packages, unpacked], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"Debian's packages can't be unpacked: {done.stderr.strip().splitlines()[-1]}")
    unpacked.rename(BASE)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """The image `hoplite`, built."""
    if os.geteuid() != 0:
        pytest.skip("unpacking an image needs root")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing: make image-packages installs it")
    folder = tmp_path_factory.mktemp("image")
    if not BASE.exists():
        make_base()
    wheels, images = folder / "wheels", Images(folder / "store")
    wheels.mkdir()
    (wheel,) = WHEELS.glob("hoplite_collectives-*.whl")
    shutil.copy(wheel, wheels)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--only-binary", ":all:")
    subprocess.run(
        [*pip, "--python-version", "3.11", "--constraint", ROOT / "requirements-dev.txt", "--dest", wheels, wheel],
        check=True,
        timeout=100,
    )
    (folder / "Base").write_text(WITHOUT_NETWORK)
    images.run("build", "--file", folder / "Base", "--tag", "localhost/base", TARGET)
    (folder / "Final").write_text("ARG PYTHON\n" + final_stage())
    build = ("build", "--pull-never", "--format", "docker", "--build-arg", "PYTHON=localhost/base")
    images.run(*build, "--build-context", f"wheel={wheels}", "--file", folder / "Final", "--tag", "hoplite", wheels)
    try:
        yield images
    finally:
        images.run("rm", "--all")
        images.run("rmi", "--all", "--force")


def final_stage() -> str:
    """Returns the last stage of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text()
    return text[text.rindex("\nFROM ") :]


def configuration(images: Images) -> dict[str, Any]:
    """Returns the image's configuration, as Docker reads it."""
    found: dict[str, Any] = json.loads(images.run("inspect", "--type", "image", "hoplite"))["Docker"]["config"]
    return found


@pytest.mark.timeout(600)
def test_the_image_is_configured_for_a_node(images: Images) -> None:
    found = configuration(images)
    assert (found["Entrypoint"], found["Cmd"], found["StopSignal"]) == (["hoplite"], ["node"], "SIGTERM")
    assert list(found["ExposedPorts"]) == ["7420/tcp"]
    assert found["Healthcheck"]["Test"] == ["CMD", "hoplite", "status"]


@pytest.mark.timeout(600)
def test_the_image_runs_a_node_that_is_healthy_and_leaves_on_the_stop_signal(images: Images) -> None:
    found = configuration(images)
    container = images.run("from", "--pull-never", "hoplite")
    assert images.run("run", container, "--", "id", "-u") == found["User"].partition(":")[0] == "7420"
    check = ("run", container, "--", *found["Healthcheck"]["Test"][1:])
    images.run(*check, code=1)
    with images.start("run", container, "--", *found["Entrypoint"], *found["Cmd"]) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("ready: ")
            assert images.run(*check)
            node(process.pid).send_signal(getattr(signal, found["StopSignal"]))
            assert process.wait(60) == 0
            assert "leaving: handing over" in process.stderr.read()
        finally:
            for left in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
                left.kill()
            process.kill()


def node(buildah: int) -> psutil.Process:
    """Returns the process of the node, which is the last of those that buildah starts."""
    *_, found = psutil.Process(buildah).children(recursive=True)
    assert (found.cmdline()[-1], found.uids().real) == ("node", 7420)
    return found


def test_the_dockerfile_has_no_faults(capsys: pytest.CaptureFixture[str]) -> None:
    hadolint = TARGET / "hadolint" / "bin" / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: make test-long installs it from PyPI")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False)
    with capsys.disabled():
        sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout
