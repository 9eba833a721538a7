"""torchft with Hoplite as its checkpoint transport: torchft's own tests, and states of every kind."""

from __future__ import annotations

import datetime as dt
import io
import os
import pickle
import subprocess
import sys
import unittest
from collections import OrderedDict
from concurrent.futures import as_completed
from typing import TYPE_CHECKING, Any

import pytest

from hoplite.errors import DecodeError, InvalidArgument, ObjectLost, PackageMissing, Timeout, UnsupportedDtype
from support import Later, eventually

if TYPE_CHECKING:
    from pathlib import Path

    import hoplite

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

from hoplite.torch import safe_load  # noqa: E402 - after the check for torch
from hoplite.torchft import HopliteTransport, needs, states, transport  # noqa: E402 - after the check for torchft

pytestmark = [pytest.mark.rl, pytest.mark.timeout(120)]

SOON = dt.timedelta(seconds=30)

# Runs tests of torchft's wheel, whose managers then have our transport as their default.
MANAGERS = """
import itertools, sys, unittest
import torchft.manager
from hoplite import testing
from hoplite.torch import safe_load  # noqa: E402 - after the check for torch
from hoplite.torchft import HopliteTransport
from torchft import manager_integ_test

used = []

class Ours:
    def __class_getitem__(cls, _):
        return cls.make

    @classmethod
    def make(cls, *, timeout, num_chunks):
        used.append(HopliteTransport(client=next(nodes).client()))
        return used[-1]

with testing.cluster(2) as both:
    nodes = itertools.cycle(both)
    torchft.manager.HTTPTransport = Ours
    names = [f"ManagerIntegTest.{name}" for name in sys.argv[1:]]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names, manager_integ_test)
    result = unittest.TextTestRunner().run(suite)
    assert used
    assert result.testsRun >= len(names)
    sys.exit(not result.wasSuccessful())
"""


def numbered(count: int) -> Any:
    """Returns a tensor of whole numbers, float32 [count]."""
    return torch.arange(count, dtype=torch.float32)


def send(sender: HopliteTransport, step: int, state: object) -> None:
    """Offers a state to all."""
    sender.send_checkpoint([1], step, state, SOON)


def receive(receiver: HopliteTransport, source: HopliteTransport, step: int) -> Any:
    """Gets a state that a source offers."""
    return receiver.recv_checkpoint(0, source.metadata(), step, SOON)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes chunks small: each tensor of these tests is in several."""
    monkeypatch.setattr(transport, "CHUNK_BYTES", 100_000)
    return 100_000


def test_the_recovery_test_of_torchft_passes(clients: list[hoplite.Client], monkeypatch: pytest.MonkeyPatch) -> None:
    from torchft.checkpointing import transport_test

    # Its limit of ten seconds is too short for a busy machine.
    monkeypatch.setattr(transport_test, "as_completed", lambda results, **_: as_completed(results))
    transport_test.run_multi_recovery_test(
        unittest.TestCase(), lambda rank, _: HopliteTransport(client=clients[rank]), torch.device("cpu")
    )


def test_the_managers_of_torchft_recover_with_it(tmp_path: Path) -> None:
    program = tmp_path / "managers.py"
    program.write_text(MANAGERS)
    done = subprocess.run(
        [sys.executable, str(program), "test_ddp_recovery_0_async_quorum", "test_ddp_recovery_multi_rank"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.mark.usefixtures("chunks")
def test_a_state_arrives_as_it_was(clients: list[hoplite.Client]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 300)).sum().backward()
    optimizer.step()
    big = numbered(60_000)
    state = {
        "user": {"model": model.state_dict(), "optim": optimizer.state_dict()},
        "torchft": {"step": 3, "batches_committed": 6},
        "values": OrderedDict(strided=big[1::2], transposed=numbered(6).view(2, 3).t(), empty=torch.empty(0, 3)),
        "dtypes": [
            torch.tensor(7),
            torch.tensor([True, False]),
            numbered(5).to(torch.bfloat16),
            numbered(5).to(torch.float8_e4m3fn),
            torch.complex(numbered(3), numbered(3)).conj(),
        ],
        5: (None, "text", b"bytes", {1, 2}),
        "whole": big,
    }
    senders, receiver = HopliteTransport(client=clients[0]), HopliteTransport(client=clients[1])
    send(senders, 3, state)
    got = receive(receiver, senders, 3)
    assert list(got) == list(state)
    assert type(got["values"]) is OrderedDict
    assert got[5] == state[5]
    assert got["torchft"] == state["torchft"]
    torch.testing.assert_close(got["user"], state["user"], rtol=0, atol=0)
    torch.testing.assert_close(got["values"], state["values"], rtol=0, atol=0)
    for one, expected in zip(got["dtypes"], state["dtypes"], strict=True):
        assert one.dtype == expected.dtype
        assert one.tolist() == expected.tolist()
    assert torch.equal(got["whole"], big)
    # The received tensors are not shared memory: they can change.
    got["whole"].add_(1)
    assert torch.equal(receive(receiver, senders, 3)["whole"], big)


def test_another_default_device_of_the_receiver_is_not_used(clients: list[hoplite.Client]) -> None:
    sender, receiver = (HopliteTransport(client=client) for client in clients[:2])
    send(sender, 1, {"weight": torch.arange(12)})
    with torch.device("meta"):
        found = receive(receiver, sender, 1)
    assert found["weight"].tolist() == list(range(12))


def test_a_state_may_change_once_it_is_sent(clients: list[hoplite.Client]) -> None:
    sender = HopliteTransport(client=clients[0])
    weights = numbered(100_000)
    send(sender, 1, {"w": weights})
    weights.zero_()
    got = receive(HopliteTransport(client=clients[1]), sender, 1)
    assert torch.equal(got["w"], numbered(100_000))


def test_tied_tensors_are_sent_once_and_come_back_tied(client: hoplite.Client) -> None:
    sender = HopliteTransport(client=client)
    weights = numbered(100_000)
    send(sender, 1, {"embedding": weights, "head": weights})
    assert sum(row["bytes"] for row in client.objects("torchft/") if row["ref"].endswith("/bytes")) == weights.nbytes
    got = receive(sender, sender, 1)
    assert got["embedding"].data_ptr() == got["head"].data_ptr()
    assert torch.equal(got["head"], weights)


def test_sources_with_the_same_state_share_the_chunks(clients: list[hoplite.Client], chunks: int) -> None:
    one, other, healing = (HopliteTransport(client=client) for client in clients)
    state = {"w": numbered(chunks)}
    send(one, 8, state)
    send(other, 8, {"w": numbered(chunks)})
    rows = [row for row in clients[2].directory("torchft/") if row["ref"].endswith("/bytes")]
    assert len(rows) == 4
    assert [row["copies"] for row in rows] == [1] * 4
    assert torch.equal(receive(healing, other, 8)["w"], state["w"])
    # The healing replica holds them too, for the next.
    assert [len(clients[2].locations(row["ref"])) for row in rows] == [2] * 4
    # The state of the other source stays while it offers it.
    one.disallow_checkpoint()
    eventually(lambda: not clients[2].directory(f"{one.metadata()}/"))
    assert torch.equal(receive(healing, other, 8)["w"], state["w"])
    other.shutdown()
    eventually(lambda: not clients[2].directory("torchft/"))


def test_a_step_can_be_sent_again_with_another_state(clients: list[hoplite.Client]) -> None:
    sender, receiver = HopliteTransport(client=clients[0]), HopliteTransport(client=clients[1])
    for value in (1, 2):
        send(sender, 4, {"w": torch.full((50_000,), value)})
        assert receive(receiver, sender, 4)["w"].unique().tolist() == [value]


def test_a_step_that_is_not_offered_times_out(clients: list[hoplite.Client]) -> None:
    sender, receiver = HopliteTransport(client=clients[0]), HopliteTransport(client=clients[1])
    send(sender, 1, {})
    assert receive(receiver, sender, 1) == {}
    with pytest.raises(Timeout, match="timed out"):
        receiver.recv_checkpoint(0, sender.metadata(), 2, dt.timedelta(milliseconds=10))


def test_a_replica_does_not_wait_for_a_source_that_has_failed(
    nodes: list[hoplite.Node], clients: list[hoplite.Client]
) -> None:
    receiver = HopliteTransport(client=clients[1])
    with nodes[0].client() as failing:
        sender = HopliteTransport(client=failing)
        waiting = Later(receiver.recv_checkpoint, 0, sender.metadata(), 1, 4 * SOON)
        assert not waiting.done(within=2 * transport.SOURCE_CHECK_S)
    with pytest.raises(ObjectLost, match=sender.metadata()):
        waiting.result()


def test_a_tensor_without_values_is_rejected(client: hoplite.Client) -> None:
    sender = HopliteTransport(client=client)
    with pytest.raises(UnsupportedDtype, match=r"tensor \['m'\]\['w'\] is on the meta device: give it values"):
        send(sender, 1, {"m": {"w": torch.empty(3, device="meta")}})
    freed = torch.ones(512, 512)
    freed.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedDtype, match=r"tensor \['w'\] is a Tensor that needs a storage of 1048576 bytes"):
        send(sender, 1, {"w": freed})
    assert client.objects("torchft/") == []


class Schedule:
    """A class that torch does not consider safe to load."""


def test_an_object_that_receivers_could_not_load_is_rejected_by_the_sender(client: hoplite.Client) -> None:
    sender = HopliteTransport(client=client)
    with pytest.raises(InvalidArgument, match=r"\S+Schedule is not safe.*add_safe_globals"):
        send(sender, 1, {"schedule": Schedule()})
    with pytest.raises(InvalidArgument, match=r"cannot be saved .*: remove it"):
        send(sender, 1, {"schedule": lambda step: step})
    with torch.serialization.safe_globals([Schedule]):
        send(sender, 1, {"schedule": Schedule()})
        assert isinstance(receive(sender, sender, 1)["schedule"], Schedule)


class Runs:
    """A pickle that runs code."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("ran",)


def test_code_in_a_header_does_not_run(client: hoplite.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    receiver = HopliteTransport(client=client)
    saved = io.BytesIO()
    torch.save({"state": Runs(), "chunks": []}, saved)
    for step, header in enumerate([saved.getvalue(), pickle.dumps(Runs(), 2), b"", b"x" * 100, saved.getvalue()[:300]]):
        client.put(header, name=f"other/{step}/1")
        with pytest.raises(DecodeError, match=rf"step {step} of other cannot be loaded"):
            receiver.recv_checkpoint(0, "other", step, SOON)
    assert not (tmp_path / "ran").exists()


def test_a_header_with_too_few_chunks_is_rejected(client: hoplite.Client) -> None:
    header = safe_load.dump({"state": states.FlatState({"w": numbered(10)}).skeleton, "chunks": []}, "it")
    client.put(header, name="other/1/1")
    with pytest.raises(DecodeError, match="step 1 of other has 0 chunks, not 1"):
        HopliteTransport(client=client).recv_checkpoint(0, "other", 1, SOON)


def test_an_invalid_prefix_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="prefix '' is not valid"):
        HopliteTransport("")


def test_another_version_of_torchft_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchft.checkpointing.transport import CheckpointTransport

    needs.check()
    monkeypatch.delattr(CheckpointTransport, "disallow_checkpoint")
    with pytest.raises(PackageMissing, match=r"\(disallow_checkpoint\); pip install torchft==0\.2\.0"):
        needs.check()
    monkeypatch.setitem(sys.modules, "torchft.checkpointing.transport", None)
    with pytest.raises(PackageMissing, match=r"pip install 'numpy>=1.24' 'torchft"):
        needs.check()
