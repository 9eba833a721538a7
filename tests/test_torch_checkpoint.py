"""torch.distributed.checkpoint with Hoplite as its storage: saved and loaded by different numbers of processes."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import torch_forks
from hoplite import testing
from hoplite.errors import DecodeError, InvalidArgument, NameTaken, StoreFull
from support import Later, eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    import hoplite

torch = pytest.importorskip("torch")

from torch.distributed import checkpoint as dcp  # noqa: E402 - after the check for torch

from hoplite.torch.checkpoint import HopliteReader, HopliteWriter, delete, writing  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]


def run_ranks(folder: Path, *steps: tuple[str, Sequence[str], str]) -> None:
    """Runs steps, each an action with one rank per socket, on a checkpoint."""
    program = f"""
import os, runpy, sys, warnings
warnings.simplefilter("ignore")
os.chdir({str(folder)!r})
sys.argv[1:] = [{json.dumps(steps)!r}]
runpy.run_path({str(Path(__file__).parent / "checkpoint_ranks.py")!r}, run_name="__main__")
"""
    ((status, output),) = torch_forks.run(program, [os.environ])
    assert status == 0, output


def save(client: hoplite.Client, name: str, state: dict[str, Any], **options: Any) -> None:
    """Saves a checkpoint from this process alone."""
    dcp.save(state, storage_writer=HopliteWriter(name, client=client, timeout=30, **options))


def load(client: hoplite.Client, name: str, state: dict[str, Any]) -> HopliteReader:
    """Loads a checkpoint in this process alone."""
    reader = HopliteReader(name, client=client, timeout=30)
    dcp.load(state, storage_reader=reader)
    return reader


def numbered(count: int) -> Any:
    """Returns whole numbers, float32 [count]."""
    return torch.arange(count, dtype=torch.float32)


def test_other_numbers_of_ranks_load_what_three_saved(nodes: list[hoplite.Node], tmp_path: Path) -> None:
    sockets = [node.socket for node in nodes]
    run_ranks(
        tmp_path,
        ("save", sockets, "ckpt/17"),
        ("rows", sockets[:2], "ckpt/17"),
        ("columns", [*sockets, sockets[0]], "ckpt/"),
        ("whole", sockets[1:2], "ckpt/17"),
    )


def test_ranks_of_one_host_load_each_piece_once(nodes: list[hoplite.Node], tmp_path: Path) -> None:
    with nodes[0].client() as saver, nodes[2].client() as client:
        before = client.status()["counters"]["fetches"]
        run_ranks(
            tmp_path,
            ("save", [nodes[0].socket] * 2, "ckpt/17"),
            ("whole", [nodes[2].socket] * 3, "ckpt/17"),
        )
        pieces = client.directory("ckpt/17/")
        assert len(pieces) == 2
        # This host has a copy of each piece, as a replica or for its three ranks.
        assert client.status()["counters"]["fetches"] - before == len(pieces)
        assert [len(saver.locations(piece["ref"])) for piece in pieces] >= [2, 2]


@pytest.mark.faults("the node of the writer is killed")
def test_a_checkpoint_survives_the_node_of_its_writer() -> None:
    with testing.node_process() as first, testing.node_process("--join", first.address) as second:
        with first.client() as client, second.client() as other:
            eventually(lambda: len(other.status()["members"]) == 2)
            save(client, "ckpt/3", {"w": numbered(100_000), "step": 3}, replicas=2)
            first.process.kill()
            state = {"w": torch.zeros(100_000), "step": 0}
            load(other, "ckpt/", state)
        assert state["step"] == 3
        assert torch.equal(state["w"], numbered(100_000))


def test_items_are_packed_into_pieces(client: hoplite.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PIECE_BYTES", 100_000)
    state = {
        **{f"small{number}": torch.full((100,), number) for number in range(50)},
        "large": numbered(60_000),
        "empty": torch.empty(0, 3),
        "none": torch.tensor(5),
        "strided": numbered(1000)[::2],
        "float8": numbered(8).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False]),
        "complex": torch.complex(numbered(3), numbered(3)),
    }
    save(client, "ckpt/1", state)
    pieces = {row["ref"]: row["bytes"] for row in client.objects("ckpt/1/")}
    assert 2 <= len(pieces) <= 4
    assert max(pieces.values()) >= 240_000
    got = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load(client, "ckpt/1", got)
    for name, tensor in state.items():
        assert got[name].tolist() == tensor.tolist(), name


def test_an_optimizer_and_a_module_come_back(client: hoplite.Client) -> None:
    def trained(steps: int) -> tuple[Any, Any]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        optimizer = torch.optim.Adam(module.parameters())
        for _ in range(steps):
            module(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        return module, optimizer

    module, optimizer = trained(2)
    save(client, "ckpt/2", {"model": module.state_dict(), "optim": optimizer.state_dict()})
    other, its = trained(1)
    state = {"model": other.state_dict(), "optim": its.state_dict()}
    load(client, "ckpt/2", state)
    torch.testing.assert_close(state["model"], module.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(state["optim"], optimizer.state_dict(), rtol=0, atol=0)


def test_a_checkpoint_is_saved_while_the_state_changes(client: hoplite.Client) -> None:
    state = {"w": numbered(100_000), "step": 1}
    saving = dcp.async_save(state, storage_writer=HopliteWriter("ckpt/1", client=client, timeout=30))
    state["w"].zero_()
    saving.result(timeout=30)
    got = {"w": torch.zeros(100_000), "step": 0}
    load(client, "ckpt/1", got)
    assert torch.equal(got["w"], numbered(100_000))
    assert got["step"] == 1


def test_old_checkpoints_are_deleted_with_their_pieces(clients: list[hoplite.Client]) -> None:
    for step in (9, 10, 11):
        save(clients[0], f"ckpt/{step}", {"w": torch.full((50_000,), step)}, retain=2)
    eventually(lambda: {row["ref"].split("/")[1] for row in clients[1].directory("ckpt/")} == {"10", "11"})
    state = {"w": torch.zeros(50_000, dtype=torch.int64)}
    assert load(clients[2], "ckpt/", state).checkpoint_id == "ckpt/11"
    assert state["w"].unique().tolist() == [11]
    delete("ckpt/11", client=clients[1])
    assert load(clients[2], "ckpt/", state).checkpoint_id == "ckpt/10"
    assert clients[1].directory("ckpt/11") == []


def test_a_save_that_fails_leaves_the_previous_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PIECE_BYTES", 2**20)
    with testing.cluster(1, capacity="16MiB") as (node,), node.client() as client:
        save(client, "ckpt/1", {"w": numbered(10)})
        writer = HopliteWriter("ckpt/2", client=client, timeout=1)
        large = {f"w{number}": torch.zeros(2**19) for number in range(12)}
        with pytest.raises(dcp.CheckpointException) as caught:
            dcp.save(large, storage_writer=writer)
        assert isinstance(caught.value.failures[0][0], StoreFull)
        state = {"w": torch.zeros(10)}
        assert load(client, "ckpt/", state).checkpoint_id == "ckpt/1"
        assert state["w"].tolist() == list(range(10))
        assert client.directory("ckpt/2/")
        delete("ckpt/2", client=client)
        assert client.directory("ckpt/2/") == []


def test_a_name_is_used_once(client: hoplite.Client) -> None:
    save(client, "ckpt/1", {"w": numbered(10)})
    with pytest.raises(dcp.CheckpointException, match=r"checkpoint ckpt/1 exists, .*: use another name"):
        save(client, "ckpt/1", {"w": numbered(10)})
    writer = HopliteWriter("ckpt/1", client=client)
    dcp.save({"w": numbered(10)}, checkpoint_id="ckpt/2", storage_writer=writer)
    assert [row["ref"] for row in client.objects("ckpt/") if row["ref"].count("/") == 1] == ["ckpt/1", "ckpt/2"]
    with pytest.raises(NameTaken):
        writer.set_up_storage_writer(True)


def test_a_load_ends_if_the_process_that_saves_fails(client: hoplite.Client, node: hoplite.Node) -> None:
    """It does not wait for its timeout. Then another process can save the checkpoint."""
    state = {"w": numbered(10)}
    save(client, "ckpt/1", state)
    with node.client() as saving:
        HopliteWriter("ckpt/2", client=saving).set_up_storage_writer(True)
        with pytest.raises(dcp.CheckpointException, match="another process saves it"):
            save(client, "ckpt/2", state)
        assert load(client, "ckpt/", state).checkpoint_id == "ckpt/1"
        waiting = Later(load, client, "ckpt/2", state)
        assert not waiting.done(within=0.05)
    with pytest.raises(dcp.CheckpointException, match=r"object ckpt/2 is lost: .* was closed before the put"):
        waiting.result()
    save(client, "ckpt/2", state)
    assert load(client, "ckpt/", state).checkpoint_id == "ckpt/2"


def test_a_missing_checkpoint_is_reported(client: hoplite.Client) -> None:
    for name in ("ckpt/1", "ckpt/"):
        with pytest.raises(dcp.CheckpointException, match="timed out"):
            dcp.load({"w": numbered(1)}, storage_reader=HopliteReader(name, client=client, timeout=0))


def test_another_shape_is_reported(client: hoplite.Client) -> None:
    save(client, "ckpt/1", {"w": numbered(10), "step": 1})
    with pytest.raises(dcp.CheckpointException, match=r"(?s)[Ss]ize"):
        load(client, "ckpt/1", {"w": numbered(11)})
    with pytest.raises(dcp.CheckpointException, match="Missing key"):
        load(client, "ckpt/1", {"v": numbered(10)})


class Runs:
    """A pickle that runs code."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("ran",)


def test_code_in_a_checkpoint_does_not_run(
    client: hoplite.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Values that are not tensors: the reader rejects them.
    save(client, "ckpt/1", {"bad": Runs()})
    with pytest.raises(dcp.CheckpointException, match=r"bad of ckpt/1 cannot be loaded .*mkdir is not safe"):
        load(client, "ckpt/1", {"bad": 0})
    # The list.
    data = io.BytesIO()
    torch.save(Runs(), data)
    reader = HopliteReader(client=client)
    for number, value in enumerate([data.getvalue(), b"", b"x" * 50]):
        client.put(value, name=f"other/{number}")
        reader.reset(f"other/{number}")
        with pytest.raises(DecodeError, match=f"checkpoint other/{number} cannot be loaded"):
            reader.read_metadata()
    other = io.BytesIO()
    torch.save({"w": numbered(3)}, other)
    client.put(other.getvalue(), name="other/9")
    reader.reset("other/9")
    with pytest.raises(DecodeError, match="other/9 is no checkpoint, but a dict"):
        reader.read_metadata()
    assert not (tmp_path / "ran").exists()


def test_ranks_that_found_different_checkpoints_do_not_load(client: hoplite.Client) -> None:
    reader = HopliteReader("ckpt/", client=client)
    plans = [dcp.LoadPlan([], storage_data=name) for name in ("ckpt/1", "ckpt/2", "ckpt/2")]
    with pytest.raises(InvalidArgument, match="ckpt/1 and ckpt/2: load again"):
        reader.prepare_global_plan(plans)
    assert reader.prepare_global_plan(plans[1:]) == plans[1:]


@pytest.mark.parametrize("name", ["", "/tmp/ckpt", "./ckpt", "@1"])
def test_an_invalid_name_is_rejected(client: hoplite.Client, name: str) -> None:
    for cls in (HopliteReader, HopliteWriter):
        with pytest.raises(InvalidArgument, match="pass a name such as 'ckpt/17', not a path"):
            cls(name, client=client)
        assert not cls.validate_checkpoint_id(name)


def test_invalid_arguments_are_rejected(client: hoplite.Client) -> None:
    with pytest.raises(InvalidArgument, match="replicas is 0"):
        HopliteWriter("ckpt/1", replicas=0, client=client)
    with pytest.raises(dcp.CheckpointException, match="checkpoint_id is 'ckpt/': pass a name"):
        save(client, "ckpt/", {})
    with pytest.raises(dcp.CheckpointException, match="retain needs a number at the end of 'ckpt/last'"):
        save(client, "ckpt/last", {}, retain=2)
    with pytest.raises(InvalidArgument, match="checkpoint_id is missing"):
        HopliteReader(client=client).read_metadata()
    with pytest.raises(InvalidArgument, match="use_collectives=False"):
        dcp.save({}, storage_writer=HopliteWriter("ckpt/1", client=client), use_collectives=False)
    with pytest.raises(InvalidArgument, match="is a prefix"):
        delete("ckpt/", client=client)


def test_a_tensor_without_memory_is_rejected(client: hoplite.Client) -> None:
    freed = torch.ones(512, 512)
    freed.untyped_storage().resize_(0)
    with pytest.raises(dcp.CheckpointException) as caught:
        save(client, "ckpt/1", {"w": freed})
    message = "w is a Tensor that needs a storage of 1048576 bytes, and has one without memory"
    assert str(caught.value.failures[0][0]).startswith(message)
