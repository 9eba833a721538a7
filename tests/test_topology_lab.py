"""The programs of docs/topology that measure in a lab, and LightGBM there."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import run
from hoplite.tools.bench.environments import Environments
from hoplite.tools.bench.systems import Unavailable
from hoplite.tools.lab import Lab
from labs import needs_lab

FOLDER = Path(__file__).parent.parent / "docs" / "topology"


def program(name: str) -> Any:  # noqa: ANN401 - a module
    """A program of docs/topology, imported."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_reversed_bits_move_each_rank_to_the_other_end() -> None:
    assert program("lightgbm_in_a_lab").reversed_bits(list("abcdefgh")) == list("aecgbfdh")


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_lightgbm_keeps_the_order(tmp_path: Path) -> None:
    try:
        python = Environments().python("lightgbm", program("lightgbm_in_a_lab").REQUIREMENTS)
    except Unavailable as error:
        pytest.skip(str(error))
    with Lab(hosts=3) as lab:
        ordered = [lab.hosts[number] for number in (2, 0, 1)]
        hosts = tmp_path / "hosts"
        hosts.write_text("".join(f"{host.name} {host.address}\n" for host in ordered))
        path = f"{python.parent}:{os.environ['PATH']}"
        verify = ("topology", "verify", "--format", "lightgbm", "--hosts", hosts, "--launcher", lab.agent)
        said = json.loads(run(*verify, "--json", PATH=path).stdout)
    assert said == {"format": "lightgbm", "ranks": 3, "kept": True, "hosts": ["node2", "node0", "node1"]}
