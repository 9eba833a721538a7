"""The loader of SGLang servers, with the classes of its wheel on CPU: sessions, its unpickler, layers and barriers."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
import torch_forks
from hoplite import testing
from hoplite.errors import HopliteError, InvalidArgument, Timeout
from support import SOON

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator

torch = pytest.importorskip("torch")
sglang_stubs = pytest.importorskip("sglang_stubs")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("sglang.srt.managers.scheduler_components.weight_updater", exc_type=ImportError)
    pytest.importorskip("sglang.srt.model_executor.model_runner_components.weight_updater", exc_type=ImportError)

import torch.distributed as dist  # noqa: E402
from sglang.srt.layers.linear import QKVParallelLinear, RowParallelLinear  # noqa: E402
from sglang.srt.managers import io_struct  # noqa: E402
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager  # noqa: E402
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater  # noqa: E402
from sglang.srt.model_loader.weight_utils import default_weight_loader  # noqa: E402
from sglang.srt.runtime_context import get_context, get_parallel  # noqa: E402
from sglang.srt.utils import MultiprocessingSerializer  # noqa: E402

import hoplite.torch  # noqa: E402 - torch must be there
from hoplite.sglang import HopliteWeightTransfer, load, load_weights, request  # noqa: E402
from rl_servers import answering  # noqa: E402

pytestmark = [pytest.mark.rl, pytest.mark.timeout(120)]

ROOT = Path(__file__).parent.parent

UPDATE = ["pause_generation", "server_info", "begin_weight_update", "update_weights_from_tensor", "end_weight_update"]


@pytest.fixture(autouse=True)
def _shared(node: hoplite.Node) -> Iterator[None]:  # noqa: ARG001 - the node of this user
    with hoplite.init():
        yield
    hoplite.shutdown()


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[Any]:
    """The group of tensor parallelism, of one rank, and SGLang's settings for tests."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = SimpleNamespace(cpu_group=dist.group.WORLD, world_size=1)
    with (
        get_context().override_server_args(device="cpu"),
        get_parallel().override(tp_group=found, tp_rank=0, tp_size=1, pp_rank=0, dp_size=1),
    ):
        yield found
    dist.destroy_process_group()


class Model(torch.nn.Module):  # type: ignore[name-defined]
    """Layers of SGLang, of one of two ranks, and a norm. `load_weights` is the one of its models."""

    def __init__(self) -> None:
        super().__init__()
        ranks = {"tp_size": 2, "tp_rank": 1, "attn_tp_size": 2, "attn_tp_rank": 1, "moe_tp_size": 2}
        with get_parallel().override(**ranks, tp_group=SimpleNamespace(rank_in_group=1, world_size=2)):
            self.qkv = QKVParallelLinear(8, 2, 4, 2, bias=False, params_dtype=torch.float32)
            self.o = RowParallelLinear(8, 8, bias=False, params_dtype=torch.float32)
        self.norm = torch.nn.Parameter(torch.zeros(8), requires_grad=False)
        self.fails = False

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            if name in ("q", "k", "v"):
                self.qkv.weight.weight_loader(self.qkv.weight, tensor, name)
            elif name == "o":
                self.o.weight.weight_loader(self.o.weight, tensor)
            else:
                default_weight_loader(self.norm, tensor)
            if self.fails:
                raise RuntimeError("the loader fails")


def checkpoint(step: int) -> dict[str, Any]:
    """Returns tensors of whole numbers, as a trainer has them."""
    shapes = {"q": (8, 8), "k": (4, 8), "v": (4, 8), "o": (8, 8), "norm": (8,)}
    return {name: torch.full(shape, 10.0 * step + place) for place, (name, shape) in enumerate(shapes.items())}


def has(model: Model, step: int) -> bool:
    """Whether a model has what rank 1 of 2 has of a checkpoint."""
    whole = checkpoint(step)
    qkv = torch.cat([whole["q"][4:], whole["k"][2:], whole["v"][2:]])
    return bool(
        torch.equal(model.qkv.weight, qkv)
        and torch.equal(model.o.weight, whole["o"][:, 4:])
        and torch.equal(model.norm, whole["norm"])
    )


class Engine:
    """A server of SGLang in this process: its HTTP interface, in front of the scheduler's part that updates weights.

    Args:
        loaders: what it is started with as --custom-weight-loader.
        has_sessions: whether it is of a release with sessions of updates.
    """

    def __init__(self, loaders: tuple[str, ...] = (request.LOADER,), *, has_sessions: bool = True) -> None:
        self.model = Model()
        self.calls: list[str] = []
        self.weight_version = "default"
        self.facts: dict[str, Any] = {"tp_size": 1, "pp_size": 1, "custom_weight_loader": list(loaders)}
        self.has_sessions = has_sessions
        self.missing = ""
        self.runs: dict[str, Any] = {}
        self.updater = WeightUpdater(
            tp_rank=0,
            device="cpu",
            gpu_id=0,
            model_config=None,
            custom_weight_loaders=list(loaders),
            get_model=lambda: self.model,
            update_model_fields=lambda **_: None,
            recapture_cuda_graph=lambda: None,
            get_model_runner=lambda: None,
        )
        runner = SimpleNamespace(weight_updater=self.updater)
        worker = SimpleNamespace(
            weight_update_runners=lambda: [("target", runner)],
            deserialize_own_rank=lambda payloads: MultiprocessingSerializer.deserialize(payloads[0]),
        )
        self.manager = SchedulerWeightUpdaterManager(
            tp_worker=worker,
            draft_worker=None,
            memory_saver_adapter=None,
            flush_cache=lambda **_: True,
            is_fully_idle=lambda **_: True,
            scheduler=SimpleNamespace(record_weight_version_change=lambda **_: None),
        )

    def call(self, method: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Calls a method of the server; returns the status and the reply, as SGLang's server does."""
        self.calls.append(method)
        if method == self.missing:
            return 404, {"detail": "Not Found"}
        if method == "server_info":
            return 200, self.facts
        if method in ("pause_generation", "continue_generation"):
            return 200, {"status": "ok"}
        if method == "update_weight_version":
            self.weight_version = body["new_version"]
            return 200, {"success": True}
        if not self.has_sessions:
            if method in ("begin_weight_update", "end_weight_update"):
                return 404, {"detail": "Not Found"}
            # Its scheduler has no sessions.
            self.manager._session = self.manager._session or SESSION
            assert "selector" not in body
            assert body.pop("disable_draft_model")
        kinds: dict[str, Any] = {
            "begin_weight_update": (io_struct.BeginWeightUpdateReqInput, self.manager.begin_weight_update),
            "end_weight_update": (io_struct.EndWeightUpdateReqInput, self.manager.end_weight_update),
            "update_weights_from_tensor": (
                io_struct.UpdateWeightsFromTensorReqInput,
                self.manager.update_weights_from_tensor,
            ),
        }
        kind, run = kinds[method]
        if "serialized_named_tensors" in body:
            body["serialized_named_tensors"] = [base64.b64decode(each) for each in body["serialized_named_tensors"]]
        done = self.runs.get(method, run)(kind(**body))
        return 200 if done.success else 400, {"success": done.success, "message": done.message}


def _session() -> Any:
    module = sys.modules["sglang.srt.managers.scheduler_components.weight_updater"]
    return module._WeightUpdateSession(selector="target")


SESSION = _session()


def served(engine: Engine) -> contextlib.AbstractContextManager[str]:
    """Serves an engine on loopback, at the URL of the context."""
    return answering(lambda path, body: engine.call(path.strip("/"), body or {}))


def test_a_server_loads_each_version_in_place() -> None:
    engine = Engine()
    places = [parameter.data_ptr() for parameter in engine.model.parameters()]
    with served(engine) as url:
        transfer = HopliteWeightTransfer([url], timeout=SOON)
        for step in (1, 2):
            assert transfer.send_weights(checkpoint(step)) == f"policy/{step}"
            assert has(engine.model, step)
            assert engine.weight_version == f"policy/{step}"
    assert places == [parameter.data_ptr() for parameter in engine.model.parameters()]
    order = [*UPDATE[:1], *UPDATE[2:3], UPDATE[1], *UPDATE[3:], "update_weight_version", "continue_generation"]
    assert engine.calls == order * 2


def test_tensors_that_come_one_by_one() -> None:
    engine = Engine()
    buffer = torch.empty(64)

    def gathered() -> Iterator[tuple[str, Any]]:
        for name, tensor in checkpoint(3).items():
            yield f"_orig_mod.{name}", buffer[: tensor.numel()].view(tensor.shape).copy_(tensor)

    with served(engine) as url:
        HopliteWeightTransfer([url], timeout=SOON).send_weights(gathered())
    assert has(engine.model, 3)


def test_a_server_without_sessions() -> None:
    engine = Engine(has_sessions=False)
    hoplite.torch.publish(checkpoint(4), "policy/4")
    with served(engine) as url:
        assert load(url, timeout=SOON) == "policy/4"
    assert has(engine.model, 4)
    assert engine.weight_version == "policy/4"


def test_late_servers_and_older_versions() -> None:
    for step in (1, 2):
        hoplite.torch.publish(checkpoint(step), f"policy/{step}")
    engine = Engine()
    with served(engine) as url:
        assert load(url, "policy/", timeout=SOON) == "policy/2"
        assert has(engine.model, 2)
        assert load(url, "policy/1", timeout=SOON) == "policy/1"
        assert has(engine.model, 1)
        with pytest.raises(Timeout, match="other/"):
            load(url, "other/", timeout=0)


def test_a_session_that_a_killed_trainer_left_open() -> None:
    hoplite.torch.publish(checkpoint(1), "policy/1")
    engine = Engine()
    engine.call("begin_weight_update", {"selector": "all"})
    with served(engine) as url:
        load(url, timeout=SOON)
    assert has(engine.model, 1)


def test_a_version_that_is_missing_leaves_the_model_and_the_server_as_they_are() -> None:
    hoplite.torch.publish(checkpoint(1), "policy/1")
    engine = Engine()
    with served(engine) as url:
        load(url, timeout=SOON)
        with pytest.raises(HopliteError, match=r"the model is as before, .* rank 0: Timeout: .*policy/7"):
            load(url, "policy/7", timeout=0)
        assert has(engine.model, 1)
        assert engine.weight_version == "policy/1"
        assert "continue_generation" not in engine.calls[7:]
        # The session is not left open.
        load(url, "policy/1", timeout=SOON)


def test_a_loader_that_fails_does_not_end_the_server() -> None:
    hoplite.torch.publish(checkpoint(1), "policy/1")
    engine = Engine()
    engine.model.fails = True
    with served(engine) as url:
        with pytest.raises(HopliteError, match=r"mix of versions until the next update.*the loader fails"):
            load(url, timeout=SOON)
        assert engine.weight_version == "default"
        engine.model.fails = False
        load(url, timeout=SOON)
    assert has(engine.model, 1)


def test_stages_with_two_outcomes_are_a_mix() -> None:
    hoplite.torch.publish(checkpoint(1), "policy/1")
    engine = Engine()
    engine.facts["pp_size"] = 2
    update = engine.manager.update_weights_from_tensor

    def other_stage(payload: bytes) -> None:
        ((_, tensor),) = MultiprocessingSerializer.deserialize(payload)
        slots = json.loads(tensor.numpy().tobytes())["slots"]
        hoplite.client().put(b"the model is as before: no memory", name=slots[1])

    def both(body: Any) -> Any:
        other_stage(body.serialized_named_tensors[0])
        return update(body)

    engine.runs["update_weights_from_tensor"] = both
    with served(engine) as url, pytest.raises(HopliteError, match=r"mix of versions, since 1 of 2 ranks .* no memory"):
        load(url, timeout=SOON)


def test_a_server_without_a_call_is_named() -> None:
    hoplite.torch.publish(checkpoint(1), "policy/1")
    engine = Engine()
    engine.missing = "pause_generation"
    with served(engine) as url, pytest.raises(HopliteError, match=r"refused pause_generation \(404\)"):
        load(url, timeout=SOON)


def test_a_server_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Engine(), Engine()
    bad.model.fails = True
    with served(good) as url, served(bad) as other:
        transfer = HopliteWeightTransfer(lambda: [other, url], timeout=SOON)
        transfer.send_weights(checkpoint(1))
        assert has(good.model, 1)
        assert other in caplog.text
        assert "continue_generation" not in bad.calls
        bad.model.fails = False
        transfer.send_weights(checkpoint(2))
        assert has(good.model, 2)
        assert has(bad.model, 2)
    with pytest.raises(HopliteError, match="no server has loaded policy/3"):
        transfer.send_weights(checkpoint(3))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidArgument, match="is the text 'http://a:1': pass a list of URLs"):
        HopliteWeightTransfer("http://a:1")
    with pytest.raises(InvalidArgument, match="mode is 'stop': pass one of retract, in_place, abort"):
        HopliteWeightTransfer([], mode="stop")
    with pytest.raises(InvalidArgument, match="prefix 'policy' is not valid"):
        HopliteWeightTransfer([], prefix="policy")
    hoplite.torch.publish(checkpoint(1), "policy/1")
    with pytest.raises(InvalidArgument, match='no URL of a server: pass one such as "http://host:30000"'):
        load("host:30000", timeout=SOON)
    with served(Engine(loaders=())) as url, pytest.raises(HopliteError, match=f"weight-loader {request.LOADER}"):
        load(url, timeout=SOON)
    engine = Engine()
    engine.facts = {"version": 1}
    with served(engine) as url, pytest.raises(HopliteError, match="is no server of SGLang"):
        load(url, timeout=SOON)
    with pytest.raises(HopliteError, match="did not reply to pause_generation"):
        load(url, timeout=SOON)


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [("w", torch.ones(2))],
        [(request.NAME, torch.ones(2))],
        [(request.NAME, torch.tensor([91, 93], dtype=torch.uint8))],
    ],
)
def test_tensors_that_are_no_request_are_logged(tensors: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    load_weights(model, tensors)
    assert "are no request of Hoplite" in caplog.text
    assert not model.norm.any()


def test_its_layers_are_recorded_and_load_from_their_parts() -> None:
    hoplite.torch.publish(checkpoint(5), "policy/5")
    model = Model()
    manifest = hoplite.torch.fetch("policy/5", layout={}, timeout=SOON).manifest
    layout = hoplite.torch.record(model.load_weights, manifest)
    columns = slice(0, 8)
    assert layout == {
        "q": (slice(4, 8), columns),
        "k": (slice(2, 4), columns),
        "v": (slice(2, 4), columns),
        "o": (slice(0, 8), slice(4, 8)),
        "norm": (slice(0, 8),),
    }
    assert not model.norm.any()
    hoplite.torch.fetch("policy/5", layout=layout, timeout=SOON).load(model.load_weights)
    assert has(model, 5)


# Two ranks of tensor parallelism, on a node each. Only what the loader uses of SGLang.
RANK = """
import os, sys
from types import ModuleType, SimpleNamespace
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=2)
context = ModuleType("sglang.srt.runtime_context")
parallel = SimpleNamespace(tp_group=SimpleNamespace(cpu_group=dist.group.WORLD), pp_rank=0)
context.get_parallel = lambda: parallel
for name in ("sglang", "sglang.srt"):
    sys.modules[name] = ModuleType(name)
sys.modules[context.__name__] = context
import hoplite
from hoplite.sglang import load_weights, request

class Model(torch.nn.Linear):
    def load_weights(self, weights):
        self.load_state_dict(dict(weights))

model = Model(2, 2)
model.load_state_dict({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
name, timeout = os.environ["VERSION"], float(os.environ["LIMIT"])
asked = request.Request(name, timeout, [os.environ["SLOT"]])
import base64, pickle
load_weights(model, pickle.loads(base64.b64decode(asked.payload())))
print("loaded", int(model.bias.sum()))
hoplite.shutdown()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("is_there", [True, False])
def test_all_ranks_load_or_none(tmp_path: Path, is_there: bool) -> None:
    capacity = "64MiB" if is_there else "16MiB"
    with (
        testing.cluster(1) as (first,),
        testing.node_process("--join", first.address, "--capacity", capacity) as second,
    ):
        large = torch.zeros(1 if is_there else 8 << 20)
        weights = {"weight": torch.ones(2, 2), "bias": torch.ones(2), "large": large}
        if is_there:
            del weights["large"]
        with first.client() as client:
            hoplite.torch.publish(weights, "policy/1", client=client)
            slots = client.slots(2)
            sockets: list[Any] = [first.socket, second.socket]
            environments = [
                {
                    **os.environ,
                    "HOPLITE_ADDRESS": f"unix:{socket}",
                    "RANK": str(rank),
                    "STORE": str(tmp_path / "store"),
                    "SLOT": str(slots[rank]),
                    "VERSION": "policy/1",
                    "LIMIT": "60",
                }
                for rank, socket in enumerate(sockets)
            ]
            done = torch_forks.run(RANK, environments)
            answers = [bytes(answer).decode() for answer in client.get(slots, timeout=SOON)]
    assert [status for status, _ in done] == [0, 0], done
    assert [re.findall(r"loaded (\d)", output) for _, output in done] == [["2" if is_there else "0"]] * 2
    if is_there:
        assert answers == ["", ""]
    else:
        assert all("rank 1: StoreFull" in answer and "rank 0" not in answer for answer in answers), answers


# Ranks of FSDP2, of which rank 0 calls the server.
TRAINER = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
import hoplite
from hoplite.sglang import HopliteWeightTransfer
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=2)

class Model(torch.nn.Module):
    def __init__(self, step):
        super().__init__()
        shapes = {"q": (8, 8), "k": (4, 8), "v": (4, 8), "o": (8, 8), "norm": (8,)}
        for place, (name, shape) in enumerate(shapes.items()):
            setattr(self, name, torch.nn.Parameter(torch.full(shape, 10.0 * step + place)))

transfer = HopliteWeightTransfer([os.environ["URL"]], timeout=60)
names = [transfer.send_weights(fully_shard(Model(step))) for step in (1, 2)]
assert names == (["policy/1", "policy/2"] if rank == 0 else [None, None]), names
dist.barrier()
# A failure of one rank is that of all.
try:
    transfer.send_weights({"q": fully_shard(Model(3)).q, "w": torch.ones(1) if rank else "text"})
except hoplite.HopliteError as error:
    print("refused", error)
hoplite.shutdown()
dist.destroy_process_group()
"""


def test_each_rank_of_a_trainer_publishes_what_it_has(tmp_path: Path, node: hoplite.Node) -> None:
    engine = Engine()
    with served(engine) as url:
        shared = {"HOPLITE_ADDRESS": f"unix:{node.socket}", "STORE": str(tmp_path / "store"), "URL": url}
        done = torch_forks.run(TRAINER, [{**os.environ, **shared, "RANK": str(rank)} for rank in range(2)])
    assert [status for status, _ in done] == [0, 0], done
    assert all("w is a str, not a tensor" in output for _, output in done), done
    assert has(engine.model, 2)
    assert engine.weight_version == "policy/2"


def test_the_program_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "torch-frameworks.md").read_text()
    (program,) = re.findall(r"<!-- example: server sglang -->\n```python\n(.*?)```", page, re.DOTALL)
    engine = Engine()
    with served(engine) as url:
        names = {"steps": 2, "train": lambda step: checkpoint(step + 1)}
        exec(program.replace("http://server:30000", url), names)
    assert has(engine.model, 2)
