"""The weight-transfer backend of vLLM, with the classes of its wheel on CPU: factories, engines and reloading."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import hoplite
import torch_forks
from hoplite import testing
from hoplite.errors import InvalidArgument, Timeout
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")
pytest.importorskip("vllm.model_executor.model_loader.reload", exc_type=ImportError)

from vllm.distributed.weight_transfer import base, factory  # noqa: E402

import hoplite.vllm  # noqa: E402
from rl_models import Policy, Server, fill, same  # noqa: E402
from rl_servers import served  # noqa: E402

pytestmark = [pytest.mark.rl, pytest.mark.timeout(120)]

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _shared(node: hoplite.Node) -> Iterator[None]:  # noqa: ARG001 - the node of this user
    """The engines use the client that the process shares."""
    with hoplite.init():
        yield
    hoplite.shutdown()


def trainer(server: Any, module: Any, **options: Any) -> Any:
    """Creates the engine of a trainer as vLLM's users do."""
    info = hoplite.vllm.HopliteTrainerInitInfo(**({"rank": 0, "timeout": SOON} | options))
    source = module if isinstance(module, base.WeightSource) else base.ModuleSource(module)
    return factory.WeightTransferTrainerFactory.trainer_init(info, client=server, source=source)


def test_the_entry_point_registers_once() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    (entry,) = [importlib.metadata.EntryPoint(name, value, "vllm.general_plugins") for name, value in points.items()]
    for _ in range(2):
        entry.load()()
    engine = factory.WeightTransferEngineFactory._registry["hoplite"]()
    assert engine is hoplite.vllm.HopliteWeightTransferEngine
    assert factory.WeightTransferTrainerFactory._registry["hoplite"]() is hoplite.vllm.HopliteTrainerEngine


def test_a_backend_of_the_same_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(factory.WeightTransferEngineFactory._registry, "hoplite", lambda: Policy)
    with pytest.raises(InvalidArgument, match=r"another package \(rl_models.Policy\)"):
        hoplite.vllm.register()


def test_all_workers_load_each_version_in_place() -> None:
    server, module = Server(), Policy(10)
    places = [[parameter.data_ptr() for parameter in model.parameters()] for model in server.models]
    engine = trainer(server, module)
    for value in (10, 20):
        fill(module, value)
        engine.send_weights()
        assert all(same(model, module) for model in server.models)
    # Graphs that were captured before still refer to the same memory.
    assert places == [[parameter.data_ptr() for parameter in model.parameters()] for model in server.models]
    update = ["start_weight_update", "update_weights", "finish_weight_update"]
    assert server.calls == ["init_weight_transfer_engine", *update, *update]
    assert server.weight_version == "policy/2"


def test_servers_and_trainers_restart_at_any_time() -> None:
    module = Policy(10)
    trainer(Server(), module, retain=3).send_weights()
    # A server that has seen no handshake takes part in the next update.
    server = Server()
    fill(module, 20)
    engine = trainer(Server(), module, retain=3)
    engine.client = server
    engine.send_weights()
    assert server.weight_version == "policy/2"
    # Anyone brings a late server up to date, or back.
    late = Server()
    assert hoplite.vllm.load(late, "policy/", timeout=SOON) == "policy/2"
    assert same(late.models[0], module)
    assert hoplite.vllm.load(late, "policy/1", timeout=SOON) == "policy/1"
    assert same(late.models[1], Policy(10))
    with pytest.raises(Timeout):
        hoplite.vllm.load(late, "other/", timeout=0)


def test_the_program_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "torch-frameworks.md").read_text()
    (program,) = re.findall(r"<!-- example: server vllm -->\n```python\n(.*?)```", page, re.DOTALL)
    server, module = Server(), Policy(10)
    with served(server) as url:
        names = {"rank": 0, "model": module, "steps": 2, "train": lambda model: fill(model, 20)}
        exec(program.replace("http://server:8000", url), names)
    assert all(same(model, module) for model in server.models)
    assert hoplite.client().latest("policy/", timeout=0).number == 2


# Other routes, some of which need packages that only a whole installation has.
OTHERS = [
    "vllm.entrypoints.openai.models.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.openai.decisions.api_router",
    "vllm.entrypoints.serve.sagemaker.api_router",
]


@pytest.mark.parametrize("page", ["torch-frameworks.md", "train-and-serve.md"])
def test_the_command_of_the_page_starts_a_server_with_the_routes(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi import FastAPI
    from vllm.entrypoints import serve
    from vllm.entrypoints.launchers.api_server.routers import register_api_routers

    (variables,) = re.findall(r"^    (.*)vllm serve MODEL", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    for name in OTHERS:
        monkeypatch.setitem(sys.modules, name, mock.MagicMock())
    for name in ("register_vllm_serve_api_routers", "register_vllm_dev_api_routers"):
        monkeypatch.setattr(serve, name, lambda _: None)
    app = FastAPI()
    register_api_routers(argparse.Namespace(), app, ())
    calls = {"init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"}
    assert {f"/{call}" for call in calls} <= app.openapi()["paths"].keys()


def test_other_ranks_read_the_source_and_publish_nothing() -> None:
    class Source(base.ModuleSource):
        passes = 0

        def iter_full(self) -> Iterator[tuple[str, Any]]:
            yield from super().iter_full()
            self.passes += 1

    server, source = Server(), Source(Policy(10))
    trainer(server, source, rank=1).send_weights()
    assert (source.passes, server.calls) == (1, [])
    with pytest.raises(Timeout):
        hoplite.client().latest("policy/", timeout=0)


def test_a_version_that_is_missing_leaves_the_model_as_it_is() -> None:
    server, module = Server(), Policy(10)
    engine = trainer(server, module)
    engine.send_weights()
    with pytest.raises(Timeout, match="policy/7"):
        hoplite.vllm.load(server, "policy/7", timeout=0)
    assert server.calls[-1] == "finish_weight_update"
    assert all(same(model, module) for model in server.models)
    fill(module, 20)
    engine.send_weights()
    assert all(same(model, module) for model in server.models)


def test_a_version_that_failed_to_load_leaves_nothing_in_the_next() -> None:
    class Broken(Policy):
        fails = True

        def load_weights(self, weights: Any) -> set[str]:
            if not self.fails:
                return super().load_weights(weights)
            super().load_weights(list(weights)[:1])
            raise RuntimeError("the loader fails")

    server, module = Server(model=Broken), Policy(10)
    engine = trainer(server, module)
    with pytest.raises(RuntimeError, match="the loader fails"):
        engine.send_weights()
    # The model is a mix, but of tensors with elements, and its loaders are those of before.
    assert {parameter.device.type for model in server.models for parameter in model.parameters()} == {"cpu"}
    fill(module, 20)
    for model in server.models:
        model.fails = False
    engine.send_weights()
    assert all(same(model, module) for model in server.models)


def test_bad_arguments_are_named() -> None:
    class Partial(base.ModuleSource):
        def owned_names(self, rank: int) -> list[str]:
            return [name for name in super().owned_names(rank) if name == "first.weight"]

    class Local(base.WeightSource):
        metadata = base.ModuleSource.metadata

    with pytest.raises(InvalidArgument, match="rank 0 owns 1 of 3 parameters"):
        trainer(Server(), Partial(Policy()))
    with pytest.raises(InvalidArgument, match="Local has no full tensors"):
        trainer(Server(), Local())
    with pytest.raises(InvalidArgument, match="prefix 'policy' is not valid: end it with \"/\""):
        trainer(Server(), Policy(), prefix="policy")
    server = Server()
    for update, problem in (
        ({"name": "policy/"}, "'policy/' is not a version"),
        ({"name": 7}, "7 is not a version"),
        ({"names": []}, "unexpected keyword argument 'names'"),
    ):
        server.start_weight_update()
        with pytest.raises(ValueError, match=problem):
            server.update_weights(update)
    with pytest.raises(ValueError, match="unexpected keyword argument 'master_port'"):
        server.init_weight_transfer_engine({"master_port": 1})


# Imports vLLM once, which takes seconds, then forks two workers.
WORKERS = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import torch
from rl_models import Policy, Server
import hoplite, hoplite.vllm

class Large(Policy):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(1 << 20, 4))

other = os.fork()
server = Server(1, Large)
server.start_weight_update()
server.update_weights({"name": "policy/1", "timeout": 60})
server.finish_weight_update()
assert torch.equal(server.models[0].table, torch.full((1 << 20, 4), 3.0))
hoplite.shutdown()
if other:
    assert os.waitpid(other, 0)[1] == 0
"""


def test_the_workers_of_a_host_share_one_copy(tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    with testing.node_process() as first, testing.node_process("--join", first.address) as second:
        environment = {**os.environ, "HOPLITE_ADDRESS": f"unix:{second.socket}"}
        workers = subprocess.Popen(
            [sys.executable, script, str(ROOT / "tests")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        module = Policy()
        module.table = torch.nn.Parameter(torch.full((1 << 20, 4), 3.0))
        with first.client() as client, second.client() as other, workers:
            hoplite.torch.publish(module, "policy/1", client=client)
            output, _ = workers.communicate(timeout=100)
            assert workers.returncode == 0, output
            received = other.status()["counters"]["bytes_received"]
    nbytes = 4 * 4 << 20
    assert nbytes <= received < 1.5 * nbytes


# Ranks of FSDP2, which have no client of the server but rank 0.
RANK = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory
import hoplite, hoplite.vllm
from rl_models import Policy, fill

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=2)
module = torch.compile(fully_shard(Policy()))
DTensor.full_tensor = None
engine = WeightTransferTrainerFactory.trainer_init(
    hoplite.vllm.HopliteTrainerInitInfo(rank=rank, timeout=60),
    client=HTTPVLLMWeightSyncClient(os.environ["URL"]) if rank == 0 else None,
    source=ModuleSource(module),
)
for value in (10, 20):
    fill(module, value)
    engine.send_weights()
dist.barrier()
hoplite.shutdown()
dist.destroy_process_group()
"""


def test_each_rank_publishes_what_it_has(tmp_path: Path, node: hoplite.Node) -> None:
    script, server = tmp_path / "rank.py", Server()
    script.write_text(RANK)
    with served(server) as url:
        shared = {"HOPLITE_ADDRESS": f"unix:{node.socket}", "STORE": str(tmp_path / "store"), "URL": url}
        ranks = [
            subprocess.Popen(
                [sys.executable, script, str(ROOT / "tests")],
                env={**os.environ, **shared, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        for each in ranks:
            with each:
                output, _ = each.communicate(timeout=100)
                assert each.returncode == 0, output
    assert all(same(model, Policy(20)) for model in server.models)
    manifest = hoplite.torch.fetch("policy/2", layout={}, timeout=SOON).manifest
    rows = [(entry.name, entry.begin, entry.shape) for entry in manifest.entries if entry.name == "first.weight"]
    assert rows == [("first.weight", (0, 0), (2, 4)), ("first.weight", (2, 0), (1, 4))]


def test_without_vllm_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['vllm'] = None; import hoplite.vllm"
    ((_, output),) = torch_forks.run(program, [os.environ])
    assert re.search(r"PackageMissing: hoplite.vllm needs vLLM .*pip install .*'vllm>=", output)
