"""The files of deploy/ match their schemas, and what they run works. The pages of docs/deploy show parts of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
# Commands of the environment of `make docs-site`.
TOOLS = ROOT / "target" / "site-venv" / "bin"


def run(*command: object, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with `hoplite` and `python` of this environment first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, line in {"hoplite": "-m hoplite.tools.cli ", "python": ""}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {line}"$@"\n')
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "deploy").glob("*.md")), ids=lambda page: page.name)
def test_the_pages_show_parts_of_the_files(page: Path) -> None:
    """Perhaps with less indentation."""
    files = [unindented(file.read_text()) for file in DEPLOY.rglob("*") if file.is_file()]
    for shown in re.findall(r"^```(?:ini|yaml|bash)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        assert any(unindented(shown) in file for file in files), f"no file of deploy/ contains:\n{shown}"
    for command in re.findall(r"deploy/[\w./-]+", page.read_text()):
        assert (ROOT / command.rstrip(".")).exists(), command


# -- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.mark.site
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda file: file.name)
def test_manifests_match_the_schemas_of_kubernetes(manifest: Path, tmp_path: Path) -> None:
    """Of the oldest version with sidecars, and of the newest. A misspelled field does not match."""
    for version in ("1.29", "1.37"):
        run(TOOLS / "kubernetes-validate", "--strict", "-k", version, manifest)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(manifest.read_text().replace("startupProbe:", "startProbe:"))
    assert "startProbe" in run(TOOLS / "kubernetes-validate", "--strict", wrong, code=1)


def pod(manifest: Path) -> dict[str, Any]:
    """Returns the specification of the pods of a manifest."""
    code = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"
    for document in json.loads(run(TOOLS / "python", "-c", code, manifest)):
        if "template" in document["spec"]:
            specification: dict[str, Any] = document["spec"]["template"]["spec"]
            return specification
    raise AssertionError(f"{manifest} has no pods")


@pytest.mark.site
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda file: file.name)
def test_the_container_of_a_node_starts_is_probed_and_leaves(manifest: Path, tmp_path: Path, path: str) -> None:
    """Its command runs here with its variables; only addresses and folders are those of the test."""
    specification = pod(manifest)
    containers = {one["name"]: one for one in specification["containers"] + specification["initContainers"]}
    node = containers["node"]
    token = tmp_path / "token"
    run("hoplite", "token", "new", "--out", token, env={"PATH": path})
    replaced = {
        "$(POD_IP):7420": "127.0.0.1:0",
        "/run/hoplite": str(tmp_path),
        "/etc/hoplite": str(tmp_path),
        # These names exist in the cluster only.
        "hoplite:7420": "",
        "training-0.training:7420,training:7420": "",
    }
    environment = {"PATH": path}
    for variable in node["env"]:
        value = variable.get("value", "")
        for text, local in replaced.items():
            value = value.replace(text, local)
        environment[variable["name"]] = value
    assert environment["HOPLITE_TOKEN_FILE"] == str(token)
    with subprocess.Popen(
        node["command"], env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert "127.0.0.1:" in process.stdout.readline()
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in node:
                    run(*node[probe]["exec"]["command"], env=environment)
            if "worker" in containers:
                socket = containers["worker"]["env"][0]["value"].replace("/run/hoplite", str(tmp_path))
                run(*containers["worker"]["command"], env={"PATH": path, "HOPLITE_ADDRESS": socket})
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON) == 0
            assert "unknown" not in process.stderr.read()
        finally:
            process.kill()
    # It may take this long to leave.
    assert specification["terminationGracePeriodSeconds"] > 30


@pytest.mark.site
def test_the_memory_limits_suffice_for_the_capacities() -> None:
    sizes = {"GiB": 1 << 30, "Gi": 1 << 30, "Mi": 1 << 20}
    for manifest in MANIFESTS:
        specification = pod(manifest)
        node = next(
            one for one in specification["containers"] + specification["initContainers"] if one["name"] == "node"
        )
        capacity = next(one["value"] for one in node["env"] if one["name"] == "HOPLITE_CAPACITY")
        bytes_of = [
            int(match[1]) * sizes[match[2]]
            for text in (capacity, node["resources"]["limits"]["memory"])
            if (match := re.fullmatch(r"(\d+)(\w+)", text))
        ]
        assert bytes_of[1] >= bytes_of[0] * 1.05 + (16 << 20) + (512 << 20) + (256 << 20), "too little to spare"


# -- systemd ----------------------------------------------------------------------------------------------------------


@pytest.mark.site
def test_the_unit_of_systemd_is_valid(tmp_path: Path, path: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "hoplite.service"
    text = (DEPLOY / "systemd" / "hoplite.service").read_text()
    unit.write_text(text.replace("/opt/hoplite/bin/hoplite", f"{path.partition(':')[0]}/hoplite"))
    run("systemd-analyze", "verify", unit)
    unit.write_text(unit.read_text().replace("Type=notify", "Type=notfy").replace("LimitNOFILE", "LimitNFILE"))
    assert "LimitNFILE" in run("systemd-analyze", "verify", unit)


def test_the_example_of_settings_starts_a_node(tmp_path: Path, path: str) -> None:
    lines = (DEPLOY / "systemd" / "hoplite.env").read_text().splitlines()
    # Also the settings that are commented out.
    settings = dict(line.removeprefix("# ").split("=") for line in lines if re.match(r"(# )?HOPLITE_\w+=", line))
    assert len(settings) == 7
    # It needs an extra.
    assert settings.pop("HOPLITE_HTTP") == "7480"
    run("hoplite", "token", "new", "--out", tmp_path / "token", env={"PATH": path})
    (tmp_path / "disk").mkdir()
    local = {
        "HOPLITE_LISTEN": "lo:0",
        "HOPLITE_JOIN": "",
        "HOPLITE_TOKEN_FILE": str(tmp_path / "token"),
        "HOPLITE_SPILL": str(tmp_path / "disk"),
        "HOPLITE_CAPACITY": "64MiB",
    }
    environment = {**os.environ, **settings, **local, "PATH": path}
    with subprocess.Popen(
        ["hoplite", "node"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("ready: 127.0.0.1:")
            process.terminate()
            assert process.wait(SOON) == 0
            assert "unknown" not in process.stderr.read()
        finally:
            process.kill()


# -- Slurm ------------------------------------------------------------------------------------------------------------

# Two hosts on this machine, by address and runtime folder. Runs a step's command on each at once.
SRUN = """
import os, signal, subprocess, sys
command = sys.argv[1:]
while command[0].startswith("--"):
    option, _, value = command.pop(0).partition("=")
    if option == "--job-name":
        shown = os.path.join(os.environ["STUB_FOLDER"], f"step-{value}-{os.getpid()}")
steps = []
for number, host in enumerate(("127.0.0.1", "127.0.0.2")):
    folder = os.path.join(os.environ["STUB_FOLDER"], host)
    variables = {"STUB_HOST": host, "SLURM_NODEID": str(number), "XDG_RUNTIME_DIR": folder}
    steps.append(subprocess.Popen(command, env={**os.environ, **variables}))
# Only the script's scancel sends HUP. TERM ends a step as that of Slurm does.
signal.signal(signal.SIGHUP, lambda *_: [step.send_signal(signal.SIGHUP) for step in steps])
signal.signal(signal.SIGTERM, lambda *_: [step.kill() for step in steps])
open(shown, "w").close()
codes = [step.wait() for step in steps]
os.unlink(shown)
sys.exit(max(codes))
"""
STUBS = {
    # Not by env: an interpreter that is a wrapper may change PATH.
    "srun": f"#!{sys.executable}\n{SRUN}",
    "scontrol": "#!/bin/sh\nprintf '127.0.0.1\\n127.0.0.2\\n'\n",
    "hostname": "#!/bin/sh\necho $STUB_HOST\n",
    "squeue": "#!/bin/sh\nls $STUB_FOLDER | sed -n 's/^step-\\(.*\\)-\\([0-9]*\\)$/\\1 \\2/p'\n",
    "scancel": '#!/bin/sh\nkill -"${1#--signal=}" "$2"\n',
}

# Puts an object named after its host, and gets that of the other.
PROGRAM = """
import os
import hoplite
hp = hoplite.init(timeout=20)
here = os.environ["STUB_HOST"]
other = {"127.0.0.1": "127.0.0.2", "127.0.0.2": "127.0.0.1"}[here]
hp.put(here.encode() * 10_000, name=f"from/{here}")
# In one write: the other host prints to the same pipe.
print(f"{here} got {len(bytes(hp.get(f'from/{other}', timeout=20)))}\\n", end="", flush=True)
hp.put(b"", name=f"done/{here}")
hp.get(f"done/{other}", timeout=20)
"""


@pytest.fixture
def slurm(path: str) -> Iterator[dict[str, str]]:
    """The variables of a job of two hosts, whose commands are stubs. Paths of sockets have to be short."""
    for name, text in STUBS.items():
        command = Path(path.partition(":")[0], name)
        command.write_text(text)
        command.chmod(0o755)
    with tempfile.TemporaryDirectory() as folder:
        for host in ("127.0.0.1", "127.0.0.2"):
            Path(folder, host).mkdir(mode=0o700)
        yield {
            "PATH": path,
            "STUB_FOLDER": folder,
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "n[1-2]",
        }


def test_the_script_of_slurm_runs_a_program_on_two_hosts(slurm: dict[str, str]) -> None:
    output = run(DEPLOY / "slurm" / "hoplite.sbatch", "python", "-c", PROGRAM, env=slurm)
    assert "127.0.0.1 got 90000" in output
    assert "127.0.0.2 got 90000" in output
    # Both nodes have ended before the script.
    assert not list(Path(slurm["STUB_FOLDER"]).glob("127*/hoplite/*.sock"))


def test_the_script_of_slurm_fails_if_the_program_fails(slurm: dict[str, str]) -> None:
    program = "import hoplite; hoplite.init(timeout=20); raise SystemExit(3)"
    run(DEPLOY / "slurm" / "hoplite.sbatch", "python", "-c", program, code=3, env=slurm)
    assert not list(Path(slurm["STUB_FOLDER"]).glob("127*/hoplite/*.sock"))


@pytest.mark.site
def test_the_script_of_slurm_has_no_findings_of_shellcheck() -> None:
    run(TOOLS / "shellcheck", DEPLOY / "slurm" / "hoplite.sbatch")
