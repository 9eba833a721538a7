"""The examples of docs/torch-frameworks.md run, each as a program."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import hoplite

pytestmark = [pytest.mark.rl, pytest.mark.timeout(120)]

PAGE = Path(__file__).parent.parent / "docs" / "torch-frameworks.md"
EXAMPLE = r"^<!-- example: framework {} -->\n```python\n(.*?)^```$"

# What surrounds a program in a real job.
BEFORE = {
    "torchft": """
import os
import torch.distributed as dist
from torchft.coordination import LighthouseServer
store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1)
os.environ.update(
    MASTER_ADDR="localhost", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1",
    TORCHFT_LIGHTHOUSE=lighthouse.address(),
)
""",
}
AFTER = {
    "torchft": """
manager.start_quorum()
manager.wait_quorum()
assert manager.current_step() == 0
manager.shutdown()
lighthouse.shutdown()
""",
    "torchrl": "scheme.shutdown()\n",
}


@pytest.mark.parametrize("framework", ["torch", "torchft", "torchrl"])
def test_the_examples_of_frameworks_run(node: hoplite.Node, tmp_path: Path, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}; see .ci/requirements-torch-frameworks.txt")
    (example,) = re.findall(EXAMPLE.format(framework), PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program = BEFORE.get(framework, "") + example + AFTER.get(framework, "")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "HOPLITE_ADDRESS": f"unix:{node.socket}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
