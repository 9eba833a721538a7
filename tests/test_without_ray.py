"""`hoplite.ray` without Ray, or with an unsupported version of Ray."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

LOADED = "import hoplite, sys; assert not [name for name in sys.modules if name.startswith('hoplite.ray')]"

# A Ray of another version, with only the parts that every version of Ray has.
OTHER = """
__version__ = "1.13.0"

class exceptions:
    class RayError(Exception):
        pass
"""


def run(program: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program with additional folders at the start of the module path."""
    before = "".join(f"import sys; sys.path.insert(0, {str(each)!r})\n" for each in path)
    return subprocess.run(
        [sys.executable, "-c", before + program], capture_output=True, text=True, timeout=60, check=False
    )


def test_hoplite_does_not_import_hoplite_ray() -> None:
    assert run(LOADED).returncode == 0


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray_the_error_names_the_extra() -> None:
    done = run("import hoplite.ray")
    assert done.returncode == 1
    assert "pip install 'numpy>=1.24' 'ray>=" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("hoplite.errors.PackageMissing")


def test_with_another_ray_the_error_names_the_versions(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text(OTHER)
    done = run("import hoplite.ray", tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "UnknownRay: hoplite.ray supports Ray 2.60, but this is Ray 1.13.0, which has no " in last


DIFFERENT = {
    "has no ray.experimental.rdt.tensor_transport_manager": """
sys.modules["ray.experimental.rdt.tensor_transport_manager"] = None
""",
    "has no manager of tensor transfers": """
del ray._private.worker.Worker.rdt_manager
""",
    "requires additional methods of a tensor transport (renamed)": """
import abc
from ray.experimental.rdt.tensor_transport_manager import TensorTransportManager
TensorTransportManager.renamed = abc.abstractmethod(lambda self: None)
abc.update_abstractmethods(TensorTransportManager)
TensorTransportManager.__abstractmethods__ |= {"renamed"}
""",
    "has no ray.util.collective": """
sys.modules["ray.util.collective.backend_registry"] = None
""",
    "requires additional operations of a collective group (alltoall)": """
from ray.util.collective.collective_group.base_collective_group import BaseGroup
BaseGroup.alltoall = lambda self: None
BaseGroup.alltoall.__isabstractmethod__ = True
BaseGroup.__abstractmethods__ |= {"alltoall"}
""",
}


# Imports Ray once, which takes seconds, and changes it in a child for each case.
FORKS = """
import json, os, sys
import ray
import ray.experimental.rdt.tensor_transport_manager
import ray.util.collective
for what, change in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        exec(change)
        try:
            import hoplite.ray
            hoplite.ray.register()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        else:
            print("registered", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.ray
def test_changed_interfaces_of_ray_are_named_when_used() -> None:
    """The rest of the package keeps working."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS],
        input=json.dumps(DIFFERENT), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for what, line in zip(DIFFERENT, done.stdout.splitlines(), strict=True):
        assert line.startswith("UnknownRay: hoplite.ray supports Ray 2.60, but this is Ray 2.")
        assert what in line
