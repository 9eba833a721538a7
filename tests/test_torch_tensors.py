"""PyTorch in a typical program: data loader workers that get shared objects by ref, and tensors with every verb."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from support import SOON

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite import Client

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.frameworks, pytest.mark.timeout(120)]

LOADER = '''
import sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
import hoplite

ROWS = 64

class Rows(Dataset):
    """Row n of a table in shared memory; workers get it by its ref, without a copy."""

    def __init__(self, table, bias):
        self.table, self.bias = table, bias

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        table = hoplite.client().get(self.table, timeout=20)
        assert not table.flags.writeable
        bias = hoplite.client().get(self.bias, timeout=20)
        assert isinstance(bias, torch.Tensor)
        return row, torch.from_numpy(table[row].copy()) + bias

if __name__ == "__main__":
    method, how = sys.argv[1:]
    if how == "attached":
        node = hoplite.Node()
    hp = hoplite.init()
    table = np.random.default_rng(7).integers(0, 100, (ROWS, 10_000)).astype("float32")
    rows = Rows(hp.put(table), hp.put(torch.full((10_000,), 5.0)))
    for _ in range(1 if method == "spawn" else 2):
        loader = DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context=method, shuffle=True)
        seen = []
        for places, batch in loader:
            assert torch.equal(batch, torch.from_numpy(table)[places] + 5)
            seen += places.tolist()
        assert sorted(seen) == list(range(ROWS))
    # Ended workers hold nothing, and the parent keeps working.
    assert hp.get(rows.table).sum() == table.sum()
    hp.delete([rows.table, rows.bias])
'''


@pytest.mark.parametrize(
    ("method", "how"), [("fork", "embedded"), ("fork", "attached"), ("spawn", "embedded")], ids=str
)
def test_loader_workers_get_shared_objects_by_ref(tmp_path: Path, method: str, how: str) -> None:
    assert method in multiprocessing.get_all_start_methods()
    path = tmp_path / "train.py"
    path.write_text(LOADER)
    done = subprocess.run(
        # torch warns if a host has fewer processors than workers.
        [sys.executable, "-W", "ignore:This DataLoader will create", str(path), method, how],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]


def tensor(dtype: str, *shape: int) -> Any:
    """Returns small whole numbers, whose sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(0, 4, shape, generator=generator).to(getattr(torch, dtype))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((dtype, (40, 50)) for dtype in DTYPES), *(("float32", shape) for shape in [(), (0,), (5,), (3, 100, 1000)])],
    ids=str,
)
def test_tensors_round_trip_to_another_node(clients: list[Client], dtype: str, shape: tuple[int, ...]) -> None:
    """By default the result is a private tensor, which can be written without changing the object."""
    value = tensor(dtype, *shape)
    ref = clients[0].put(value)
    for client in clients[:2]:
        got = client.get(ref, timeout=SOON)
        assert isinstance(got, torch.Tensor)
        assert got.dtype == value.dtype
        assert got.shape == value.shape
        assert torch.equal(got, value)
        got += 1
        assert torch.equal(client.get(ref), value)
        assert not client.get(ref).requires_grad


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8"])
def test_get_into_a_tensor(clients: list[Client], dtype: str) -> None:
    value = tensor(dtype, 300, 400)
    ref = clients[0].put(value)
    out = torch.zeros_like(value)
    assert clients[1].get(ref, out=out, timeout=SOON) is out
    assert torch.equal(out, value)
    outs = [torch.zeros_like(value), torch.zeros_like(value)]
    got = clients[2].get([ref, clients[1].put(value)], out=outs, timeout=SOON)
    assert got[0] is outs[0]
    assert torch.equal(outs[0], value)
    assert torch.equal(outs[1], value)


def test_a_get_into_a_tensor_that_does_not_fit_is_rejected(clients: list[Client]) -> None:
    ref = clients[0].put(tensor("float32", 300, 400))
    with pytest.raises(hoplite.ShapeMismatch):
        clients[0].get(ref, out=torch.zeros(400, 300))
    with pytest.raises(hoplite.ShapeMismatch):
        clients[0].get(ref, out=torch.zeros(300, 400, dtype=torch.float64))
    with pytest.raises(hoplite.InvalidArgument):
        clients[0].get(ref, out=torch.zeros(400, 300).T)


@pytest.mark.parametrize(
    ("op", "dtype", "size"),
    [
        *((op, "float32", 100_000) for op in ("sum", "min", "max", "prod", "mean")),
        *(("sum", "float32", 10), ("mean", "bfloat16", 10), ("sum", "bfloat16", 100_000)),
        *(("max", "int64", 10), ("prod", "int64", 100_000)),
    ],
)
def test_a_reduce_of_tensors_is_a_tensor(clients: list[Client], op: str, dtype: str, size: int) -> None:
    values = [tensor(dtype, size), tensor(dtype, size, 1)[:, 0], torch.ones(size).to(getattr(torch, dtype))]
    total = clients[0].reduce([client.put(value) for client, value in zip(clients, values, strict=True)], op)
    stacked = torch.stack(values)
    expected = {
        "sum": lambda: stacked.sum(0),
        "min": lambda: stacked.amin(0),
        "max": lambda: stacked.amax(0),
        "prod": lambda: values[0] * values[1] * values[2],
        "mean": lambda: (stacked.double().sum(0) / 3).to(stacked.dtype),
    }[op]()
    got = clients[1].get(total, timeout=SOON)
    assert isinstance(got, torch.Tensor)
    assert got.dtype == stacked.dtype
    if op == "mean" and dtype == "bfloat16":
        # Divided after the sum was rounded, so it may be off by one step.
        assert torch.allclose(got.double(), expected.double(), rtol=2**-7)
    elif op == "mean":
        assert torch.allclose(got, expected, rtol=1e-6)
    else:
        assert torch.equal(got, expected)


def test_a_reduce_of_a_tensor_and_an_array(clients: list[Client]) -> None:
    """Only dtype and shape must be the same."""
    numpy = pytest.importorskip("numpy")
    refs = [clients[0].put(torch.ones(1000)), clients[1].put(numpy.ones(1000, "float32"))]
    got = clients[2].get(clients[2].reduce(refs), timeout=SOON)
    assert (torch.as_tensor(numpy.array(got)) == 2).all()


def test_a_tensor_that_requires_grad_is_put_without_its_graph(clients: list[Client]) -> None:
    """A parameter of a model: its values are put, or an error names the fix; the graph is never put."""
    leaf = torch.ones(1000, requires_grad=True)
    for value in (leaf, leaf * 2, torch.nn.Parameter(torch.ones(1000))):
        try:
            ref = clients[0].put(value)
        except hoplite.HopliteError as error:
            assert "detach" in str(error)  # noqa: PT017 - either is accepted
            ref = clients[0].put(value.detach())
        got = clients[1].get(ref, timeout=SOON)
        assert torch.equal(got, value.detach())
        assert not got.requires_grad
        assert got.grad_fn is None


def test_the_state_of_a_model_round_trips(clients: list[Client]) -> None:
    """A dictionary of tensors, pickled; then tensor by tensor into another model."""
    model = torch.nn.Linear(100, 200)
    state = model.state_dict()
    got = clients[1].get(clients[0].put(state), timeout=SOON)
    assert list(got) == list(state)
    assert all(torch.equal(got[name], state[name]) for name in state)
    refs = {name: clients[0].put(value.detach(), name=f"model/{name}/1") for name, value in state.items()}
    mine = torch.nn.Linear(100, 200)
    with torch.no_grad():
        for name, value in mine.state_dict().items():
            clients[1].get(refs[name], out=value, timeout=SOON)
    assert torch.equal(mine(torch.ones(100)), model(torch.ones(100)))


def test_another_default_device_of_the_caller_is_not_used(clients: list[Client]) -> None:
    values = [tensor("float32", 3, 4).t(), tensor("bfloat16", 2), torch.empty(0, 3)]
    with torch.device("meta"):
        refs = [clients[0].put(value, timeout=SOON) for value in values]
        found = [clients[1].get(ref, timeout=SOON) for ref in refs]
    for value, got in zip(values, found, strict=True):
        assert torch.equal(value, got)
