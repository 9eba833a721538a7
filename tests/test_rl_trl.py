"""Weight transfer of TRL: its AsyncGRPOTrainer on CPU updates servers that run vLLM's engines in this process."""

from __future__ import annotations

import inspect
import logging
import os
import queue
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
import torch_forks
from hoplite.errors import HopliteError, InvalidArgument, UnsupportedDtype
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch = pytest.importorskip("torch")
pytest.importorskip("vllm.model_executor.model_loader.reload", exc_type=ImportError)
trl = pytest.importorskip("trl.experimental.async_grpo", exc_type=ImportError)

import hoplite.torch  # noqa: E402 - torch must be there
import hoplite.vllm  # noqa: E402 - registers the backend
from hoplite.trl import HopliteWeightTransfer  # noqa: E402
from rl_models import Policy, Server, fill, same  # noqa: E402
from rl_servers import served  # noqa: E402

pytestmark = [pytest.mark.rl, pytest.mark.timeout(120)]

UPDATE = ["pause", "start_weight_update", "update_weights", "finish_weight_update", "resume"]


@pytest.fixture(autouse=True)
def _shared(node: hoplite.Node) -> Iterator[None]:  # noqa: ARG001 - the node of this user
    with hoplite.init():
        yield
    hoplite.shutdown()


class Rollouts:
    """Rollouts that are ready before the training; TRL's `RolloutWorkerProtocol`."""

    def __init__(self) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.versions: list[int] = []

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def check_health(self, stale_after_s: float) -> None:
        """Always healthy."""

    def update_model_version(self, model_version: int) -> None:
        self.versions.append(model_version)


def test_it_implements_the_protocol() -> None:
    protocol = sys.modules["trl.experimental.async_grpo.async_grpo_trainer"].WeightTransferProtocol
    methods = [name for name in vars(protocol) if not name.startswith("_")]
    assert len(methods) == 5
    for name in methods:
        theirs, ours = (inspect.signature(getattr(each, name)) for each in (protocol, HopliteWeightTransfer))
        assert list(theirs.parameters) == list(ours.parameters)


def model_folder(folder: Path) -> Any:
    """Saves a model of a few hundred parameters; returns its tokenizer."""
    import tokenizers
    import transformers

    words = tokenizers.models.WordLevel({"?": 0, "end": 1, "a": 2, "b": 3}, unk_token="?")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), unk_token="?", eos_token="end", pad_token="end"
    )
    tokenizer.save_pretrained(folder)
    tiny().save_pretrained(folder)
    return tokenizer


def tiny() -> Any:
    """Returns a small model that loads weights as vLLM's models do."""
    import transformers

    config = transformers.Qwen2Config(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=1,
    )
    model = transformers.Qwen2ForCausalLM(config)
    model.load_weights = Policy.load_weights.__get__(model)
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_trainer_updates_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    # TRL asks the GPU for its name to estimate its speed.
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "CPU")
    tokenizer = model_folder(tmp_path / "model")
    server, rollouts = Server(model=tiny), Rollouts()
    with served(server) as url:
        trainer = trl.AsyncGRPOTrainer(
            model=str(tmp_path / "model"),
            reward_funcs=[lambda **_: [0.0]],
            args=trl.AsyncGRPOConfig(
                str(tmp_path / "out"), max_steps=1, use_cpu=True, report_to=[], bf16=False, vllm_server_base_url=url
            ),
            train_dataset=datasets.Dataset.from_dict({"prompt": ["a"] * 4}),
            processing_class=tokenizer,
            rollout_worker=rollouts,
            weight_transfer=HopliteWeightTransfer([url], timeout=SOON),
        )
        for version in (1, 2):
            fill(trainer.model, 10 * version)
            trainer._sync_weight()
            assert all(same(model, trainer.model) for model in server.models)
            assert rollouts.versions[-1] == version
    assert server.calls == UPDATE * 2
    assert hoplite.client().latest("policy/", timeout=0).number == 2


def test_servers_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    module, servers = Policy(10), [Server(1), Server(1)]
    urls: list[str] = []
    transfer = HopliteWeightTransfer(lambda: urls, timeout=SOON)
    # Nobody is there yet; a later server loads what was published.
    transfer.send_weights(iter(module.named_parameters()))
    with served(servers[0]) as first:
        urls.append(first)
        transfer.init_weight_transfer()
        with served(servers[1]) as second:
            urls.append(second)
            fill(module, 20)
            transfer.send_weights(iter(module.named_parameters()))
            assert all(same(server.models[0], module) for server in servers)
        # One server has ended. The other one is updated.
        fill(module, 30)
        with caplog.at_level(logging.WARNING, "hoplite.trl"):
            transfer.send_weights(iter(module.named_parameters()))
        assert re.search(f"server {second} has not loaded policy/3: .*refused", caplog.text)
        assert [same(server.models[0], module) for server in servers] == [True, False]
        # It is back at its old address, or at another.
        with served(servers[1]) as urls[1]:
            fill(module, 40)
            transfer.send_weights(iter(module.named_parameters()))
            assert all(same(server.models[0], module) for server in servers)
    with pytest.raises(HopliteError, match="no server has loaded policy/5"):
        transfer.send_weights(iter(module.named_parameters()))


def test_a_worker_that_fails_is_reported_and_loads_the_next_version() -> None:
    server, module = Server(), Policy(10)
    broken: Any = server.models[1]
    load_weights = broken.load_weights
    broken.load_weights = lambda _: 1 / 0
    with served(server) as url:
        transfer = HopliteWeightTransfer([url], timeout=SOON)
        with pytest.raises(HopliteError, match=r"no server has loaded policy/1 .*division by zero"):
            transfer.send_weights(iter(module.named_parameters()))
        # Its workers have different versions: it stays paused.
        assert server.calls == UPDATE[:-1]
        broken.load_weights = load_weights
        transfer.send_weights(iter(module.named_parameters()))
    assert server.calls == UPDATE[:-1] + UPDATE
    assert all(same(model, module) for model in server.models)


def test_servers_go_on_if_the_weights_cannot_be_published() -> None:
    server = Server(1)
    with served(server) as url:
        transfer = HopliteWeightTransfer([url], timeout=SOON)
        with pytest.raises(UnsupportedDtype, match="device meta"):
            transfer.send_weights(iter([("large", torch.empty(1, device="meta"))]))
    assert server.calls == []


def test_a_sharded_model_is_read_to_its_end_after_an_error(node: hoplite.Node) -> None:
    gathered = []

    def weights() -> Iterator[tuple[str, Any]]:
        for number in range(8):
            # A collective call, in which other ranks take part.
            gathered.append(number)
            yield f"l{number}", torch.empty(1 << 20, device="meta" if number == 5 else "cpu")

    with pytest.raises(UnsupportedDtype, match="l5 is on device meta"):
        HopliteWeightTransfer([], timeout=SOON).send_weights(weights())
    assert gathered == list(range(8))
    assert node.client().directory() == []


@pytest.mark.parametrize("elements", [3, 1 << 20])
def test_weights_may_use_one_buffer_after_another(elements: int) -> None:
    one = torch.zeros(elements)
    transfer = HopliteWeightTransfer([], prefix="reused/")
    transfer.send_weights((f"_orig_mod.l{number}", one.fill_(number)) for number in (1, 2, 3))
    got = hoplite.torch.fetch("reused/", timeout=SOON)
    assert {name: tensor.unique().tolist() for name, tensor in got.items()} == {"l1": [1], "l2": [2], "l3": [3]}


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidArgument, match="servers is the text 'http://host:8000': pass a list of URLs"):
        HopliteWeightTransfer("http://host:8000")
    with pytest.raises(InvalidArgument, match="prefix 'policy' is not valid"):
        HopliteWeightTransfer([], prefix="policy")


def test_without_trl_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['trl'] = None; import hoplite.trl"
    ((_, output),) = torch_forks.run(program, [os.environ])
    assert re.search(r"PackageMissing: hoplite.trl needs TRL .*pip install .*'trl>=", output)
