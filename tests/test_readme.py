"""The commands and code of the README, run unchanged except for addresses."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from commands import COMMAND
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (Path(__file__).parent.parent / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.strip() for line in re.findall(r"^    .*$", README, re.MULTILINE)]


def run(script: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Starts a user's script."""
    return subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )


def test_the_example_of_one_process_runs() -> None:
    with run(PYTHON[0], {}) as script:
        output, _ = script.communicate(timeout=SOON)
        assert script.returncode == 0
        assert output.startswith("[3. 3. 3. 3.] [Ref(")
        assert "part/1" in output
        assert "part/3" in output


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[dict[str, str]]]:
    """The environments of two hosts that run the README's nodes, each with its own runtime folder."""
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    new_token = next(command for command in COMMANDS if command.startswith("hoplite token new"))
    subprocess.run([*COMMAND, *shlex.split(new_token)[1:]], cwd=tmp_path, check=True)
    environments = []
    with ExitStack() as stack:
        for number, command in enumerate(command for command in COMMANDS if command.startswith("hoplite node")):
            folder = tmp_path / str(number)
            folder.mkdir(mode=0o700)
            environment = {"XDG_RUNTIME_DIR": str(folder)}
            for host, port in enumerate(ports, start=1):
                command = command.replace(f"10.0.0.{host}:7420", f"127.0.0.1:{port}")
            node = stack.enter_context(
                subprocess.Popen(
                    [*COMMAND, *shlex.split(command)[1:]],
                    cwd=tmp_path,
                    env={**os.environ, **environment},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(node.wait, SOON)
            stack.callback(node.terminate)
            assert node.stdout is not None
            assert node.stdout.readline().startswith("ready: 127.0.0.1:")
            environments.append(environment)
        yield environments


@pytest.mark.parametrize(("order", "job"), [("one first", False), ("two first", True)], ids=["deletes", "job"])
def test_the_example_of_two_hosts_runs(hosts: list[dict[str, str]], order: str, job: bool) -> None:
    """Two runs on the same nodes. Each deletes its objects itself or through its job, which ends later."""
    for number in range(2):
        two, one = PYTHON[1:3]
        if job:
            two, one = (re.sub(r"hp\.delete.*\n", "", code) for code in (two, one))
            two, one = (code.replace("init()", f"init(job='run-{number}')") for code in (two, one))
        run_both(hosts, order, one, two)
        if job:
            # A run ends with its last process. Then the next run finds its names free.
            client = hoplite.connect(hosts[0]["XDG_RUNTIME_DIR"] + "/hoplite/node.sock")
            eventually(lambda: client.directory() == [])  # noqa: B023 - waited for here
            client.close()


def run_both(hosts: list[dict[str, str]], order: str, one: str, two: str) -> None:
    with ExitStack() as stack:
        scripts = {}
        for which in ("one", "two") if order == "one first" else ("two", "one"):
            code, host = {"one": (one, hosts[0]), "two": (two, hosts[1])}[which]
            scripts[which] = stack.enter_context(run(code, host))
        output = {which: script.communicate(timeout=SOON)[0] for which, script in scripts.items()}
        assert all(script.returncode == 0 for script in scripts.values())
    assert output["one"].startswith("3.0 [Ref(")
    assert output["two"].strip() == "3.0"


def test_every_command_of_the_readme_exists() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile, f"make {target}"


def test_files_that_the_documents_name_exist() -> None:
    root = Path(__file__).parent.parent
    for document in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([A-Za-z.]+)\)", (root / document).read_text()):
            assert (root / target).exists(), f"{document} names {target}"
