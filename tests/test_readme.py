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


def run(script: str, environment: dict[str, str], *, stderr: int | None = None) -> subprocess.Popen[str]:
    """Starts a user's script."""
    command = [sys.executable, "-c", script]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=stderr, text=True
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


# Each script, with the part of its program before its last put.
KILLED = {"one": "hp.put(array", "two": "hp.put(np.full"}


@pytest.mark.faults("kills a program")
@pytest.mark.parametrize("order", ["one first", "two first"])
@pytest.mark.parametrize("killed", KILLED)
def test_a_script_that_is_killed_before_its_put_ends_the_wait_of_the_other(
    hosts: list[dict[str, str]], order: str, killed: str
) -> None:
    """The error names the process and the node."""
    two, one = PYTHON[1:3]
    scripts = {"one": one, "two": two}
    scripts[killed] = scripts[killed].replace(KILLED[killed], f"import os\nos.kill(os.getpid(), 9)\n{KILLED[killed]}")
    assert scripts[killed] not in PYTHON
    with ExitStack() as stack:
        started = {
            which: stack.enter_context(run(scripts[which], hosts[which == "two"], stderr=subprocess.PIPE))
            for which in sorted(scripts, key=lambda which: not order.startswith(which))
        }
        errors = {which: script.communicate(timeout=SOON)[1] for which, script in started.items()}
    assert errors[killed] == ""
    lost, other = {"one": ("answer/1", "two"), "two": ("part/2", "one")}[killed]
    process = started[killed].pid
    assert re.search(rf"ObjectLost: .*{lost}.* process {process} on node \w+", errors[other]), errors[other]


@pytest.mark.faults("kills a program")
def test_the_sum_continues_without_the_part_of_a_killed_script(hosts: list[dict[str, str]]) -> None:
    two, one = PYTHON[1:3]
    with run(two.replace(KILLED["two"], f"import os\nos.kill(os.getpid(), 9)\n{KILLED['two']}"), hosts[1]) as killed:
        killed.communicate(timeout=SOON)
    with run(one.replace('op="sum"', 'op="sum", count=1'), hosts[0]) as script:
        assert script.communicate(timeout=SOON)[0].startswith("1.0 [Ref('part/1'")


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
