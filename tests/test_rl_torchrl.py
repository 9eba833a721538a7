"""TorchRL with Hoplite as its weight-sync backend: its collectors on this host, and schemes one by one."""

from __future__ import annotations

import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from hoplite.errors import HopliteError, InvalidArgument, PackageMissing, Timeout, UnsupportedDtype
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import hoplite

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

with warnings.catch_warnings():
    # TorchRL deprecates some of its own classes.
    warnings.simplefilter("ignore", DeprecationWarning)
    from tensordict import TensorDict
    from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
    from torchrl.weight_update.weight_sync_schemes import WeightSyncScheme

    import torch_policies
    from hoplite.torchrl import HopliteWeightSyncScheme, needs

pytestmark = [pytest.mark.rl, pytest.mark.timeout(180)]


@pytest.fixture
def address(node: hoplite.Node) -> str:
    """The node that all processes of a test use."""
    return f"unix:{node.socket}"


class Sides:
    """A trainer and its workers, in one process."""

    def __init__(self, address: str, **options: Any) -> None:
        self.model = torch_policies.policy(1.0)
        self.trainer = WeightSyncScheme.from_backend("hoplite", address=address, **options)
        self.trainer.init_on_sender(model_id="policy", model=self.model, num_workers=2)
        self.trainer.connect()
        self.workers: list[Any] = []

    def add(self, number: int) -> Any:
        """Starts a worker, as in another process; returns its model."""
        model = torch_policies.policy()
        scheme = pickle.loads(pickle.dumps(self.trainer))
        self.workers.append(scheme)
        scheme.init_on_receiver(model_id="policy", model=model, worker_idx=number)
        scheme.connect(worker_idx=number)
        return model

    def send(self, value: float, **options: Any) -> None:
        """Changes the weights, and sends them."""
        with torch.no_grad():
            self.model.module.value.fill_(value)
        self.trainer.send(**options)

    def close(self) -> None:
        """Shuts down all sides."""
        for scheme in (*self.workers, self.trainer):
            scheme.shutdown()


@pytest.fixture
def sides(address: str) -> Iterator[Sides]:
    sides = Sides(address, name="policy")
    yield sides
    sides.close()


def value(model: Any) -> float:
    """Returns the weight of a model."""
    return float(model.module.value.detach())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [pytest.param(MultiSyncCollector, marks=pytest.mark.long), MultiAsyncCollector])
def test_collectors_use_the_weights_that_were_sent(address: str, client: hoplite.Client, kind: Any) -> None:
    policy = torch_policies.policy(1.0)
    scheme = HopliteWeightSyncScheme("policy", address=address)
    collector = kind(
        [torch_policies.Endless] * 2,
        policy,
        frames_per_batch=8,
        total_frames=-1,
        weight_sync_schemes={"policy": scheme},
    )
    try:
        batches = iter(collector)
        assert next(batches)["action"].unique().tolist() == [1.0]
        for number in (2.0, 3.0):
            with torch.no_grad():
                policy.module.value.fill_(number)
            collector.update_policy_weights_()
            # An asynchronous worker may have collected some batches before.
            while next(batches)["action"].unique().tolist() != [number]:
                assert kind is MultiAsyncCollector
    finally:
        collector.shutdown()
    # The first version, and two updates, of which two are retained.
    assert str(client.latest("policy/", timeout=0)) == "policy/2"


def test_workers_have_the_weights_once_send_returns(sides: Sides) -> None:
    first, second = sides.add(0), sides.add(1)
    assert [value(first), value(second)] == [1.0, 1.0]
    for number in (2.0, 3.0, 4.0):
        sides.send(number)
        assert [value(first), value(second)] == [number, number]
    # A scheme without a new version has nothing to receive.
    assert sides.workers[0].receive() is None


def test_a_late_worker_starts_with_the_newest_weights(sides: Sides) -> None:
    sides.add(0)
    sides.send(5.0, worker_ids=0)
    sides.send(6.0, worker_ids=[0])
    assert value(sides.add(1)) == 6.0


def test_a_restarted_trainer_goes_on_counting(sides: Sides, address: str, client: hoplite.Client) -> None:
    model = sides.add(0)
    sides.send(7.0, worker_ids=0)
    again = HopliteWeightSyncScheme("policy", address=address, sync=False)
    restored = torch_policies.policy(8.0)
    again.init_on_sender(model_id="policy", model=restored, num_workers=1)
    again.connect()
    assert str(client.latest("policy/", timeout=0)) == "policy/2"
    # The workers of the first trainer follow.
    eventually(lambda: value(model) == 8.0)
    again.shutdown()


def test_send_names_the_workers_that_are_missing(address: str) -> None:
    sides = Sides(address, name="policy", timeout=1)
    model = sides.add(1)
    with pytest.raises(Timeout, match="workers 0 have not applied version 1 of policy: check whether they run"):
        sides.send(2.0)
    eventually(lambda: value(model) == 2.0)
    sides.close()


def test_weights_can_be_passed_in_any_form(sides: Sides) -> None:
    model = sides.add(0)
    sides.trainer.send(TensorDict({"module": {"value": torch.tensor([2.0])}}), worker_ids=0)
    assert value(model) == 2.0
    sides.trainer.send({"module.value": torch.tensor([3.0])}, worker_ids=0)
    assert value(model) == 3.0
    sides.trainer.send(torch_policies.policy(4.0), worker_ids=0)
    assert value(model) == 4.0
    with pytest.raises(InvalidArgument, match="need a scheme for each"):
        sides.trainer.send({0: torch.ones(1), 1: torch.ones(1)})
    with pytest.raises(UnsupportedDtype, match=r"have a float as module\.value"):
        sides.trainer.send({"module.value": 1.0})


def test_the_objects_of_a_unique_name_are_deleted(address: str, client: hoplite.Client) -> None:
    sides = Sides(address)
    assert value(sides.add(0)) == 1.0
    assert client.directory("torchrl/")
    sides.close()
    assert client.directory("torchrl/") == []
    sides.close()
    # Data objects have ids, not names.
    large = Sides(address, sync=False)
    large.trainer.send({"module.value": torch.ones(1 << 20)})
    assert len(client.directory()) > 4
    large.close()
    assert client.directory() == []


def test_workers_of_a_trainer_without_weights_start_with_their_own(address: str) -> None:
    trainer = HopliteWeightSyncScheme("policy", address=address)

    class Context:
        num_workers = 1

    context = Context()
    trainer.init_on_sender(model_id="policy", context=context)
    trainer.connect()
    worker = pickle.loads(pickle.dumps(trainer))
    model = torch_policies.policy(9.0)
    worker.init_on_receiver(model_id="policy", model=model, worker_idx=0)
    worker.connect(worker_idx=0)
    assert value(model) == 9.0
    with pytest.raises(InvalidArgument, match="the trainer has no weights of policy: pass them to send"):
        trainer.send()
    trainer.send({"module.value": torch.tensor([2.0])})
    assert value(model) == 2.0
    worker.shutdown()
    trainer.shutdown()


def test_a_worker_reports_that_nothing_was_published(address: str) -> None:
    trainer = HopliteWeightSyncScheme("policy", address=address, timeout=0.1)
    model = torch_policies.policy()
    trainer.init_on_sender(model_id="policy", model=model, num_workers=1)
    worker = pickle.loads(pickle.dumps(trainer))
    worker.init_on_receiver(model_id="policy", model=model, worker_idx=0)
    with pytest.raises(Timeout, match="the trainer has not published weights as policy"):
        worker.connect(worker_idx=0)
    worker.shutdown()
    trainer.shutdown()


def test_a_scheme_that_is_not_connected_does_not_send(address: str) -> None:
    with pytest.raises(HopliteError, match="not connected as a sender: pass it to a collector"):
        HopliteWeightSyncScheme("policy", address=address).send()


@pytest.mark.parametrize("name", ["", "@1", "policy/"])
def test_an_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidArgument, match="pass a name such as 'policy'"):
        HopliteWeightSyncScheme(name)


def test_another_version_of_torchrl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs.check()
    monkeypatch.delattr(WeightSyncScheme, "_wait_for_instruction")
    with pytest.raises(PackageMissing, match=r"lacks WeightSyncScheme\._wait_for_instruction\(timeout\): pip install"):
        needs.check()
