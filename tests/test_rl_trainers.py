"""Accelerate and Lightning on the backend "hoplite": three ranks learn, digit for digit, what they learn with Gloo.

All numbers are multiples of a power of two that 64 bits hold exactly, so the order of additions does not matter.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import torch_forks
from test_docs import blocks
from torch_ranks import free_port

pytest.importorskip("accelerate")
pytest.importorskip("pytorch_lightning")

pytestmark = [pytest.mark.rl, pytest.mark.timeout(240)]

PAGE = Path(__file__).parent.parent / "docs" / "torch.md"

RANKS = 3

MODEL = """
import os, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import hoplite.torch

RANK, RANKS, STEPS, ROWS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 2, 8

def whole_numbers(*shape):
    return torch.randint(-2, 3, shape).double()

def model():
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(whole_numbers(*parameter.shape))
    return module

def data():
    torch.manual_seed(2)
    rows = RANKS * STEPS * ROWS
    return torch.utils.data.TensorDataset(whole_numbers(rows, 12), whole_numbers(rows, 2))

def loss_of(outputs, targets):
    # A sum: a mean by three would have to be rounded.
    return ((outputs - targets) ** 2).sum() * RANKS / 2**6

def digits(module):
    return [parameter.tolist() for parameter in module.parameters()]

def compared(train):
    found = {}
    for backend in ("gloo", "hoplite"):
        os.environ["MASTER_PORT"] = os.environ["PORT_" + backend]
        found[backend] = train(backend)
        assert dist.get_backend() == backend, dist.get_backend()
        dist.destroy_process_group()
    start = digits(model())
    assert found["gloo"][0] != start, "nothing was learned"
    assert found["hoplite"] == found["gloo"], found
    print("the same")
"""

ACCELERATE = """
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

def train(backend):
    dist.init_process_group(backend)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == RANKS and accelerator.distributed_type.name == "MULTI_CPU"
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=2.0**-2)
    loader = torch.utils.data.DataLoader(data(), batch_size=ROWS)
    module, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = loss_of(module(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather_for_metrics(loss.detach()).tolist())
    total = accelerator.reduce(torch.tensor(RANK), reduction="sum").item()
    accelerator.wait_for_everyone()
    result = digits(accelerator.unwrap_model(module)), losses, total
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return result

compared(train)
"""

LIGHTNING = """
import pytorch_lightning as lightning
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.strategies import DDPStrategy

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = model()

    def training_step(self, batch, number):
        loss = loss_of(self.layers(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        # Lightning averages integers with ReduceOp.AVG.
        self.log("step", torch.tensor(number * RANKS + RANK), sync_dist=True, on_step=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=2.0**-2)

def train(backend):
    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy=DDPStrategy(process_group_backend=backend), max_epochs=1,
        plugins=[TorchElasticEnvironment()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=os.environ["FOLDER"],
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=ROWS, shuffle=False))
    return digits(module.layers), {name: value.item() for name, value in trainer.callback_metrics.items()}

compared(train)
"""


def ranks(program: str, folder: Path) -> list[tuple[int, str]]:
    """Runs a program as each rank, in a folder, as torchrun does."""
    job = {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")} | {
        "MASTER_ADDR": "127.0.0.1", "PORT_gloo": str(free_port()), "PORT_hoplite": str(free_port()),
        "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "none", "FOLDER": str(folder),
    }  # fmt: skip
    return torch_forks.run(program, [job | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)])


@pytest.mark.parametrize("program", [ACCELERATE, LIGHTNING], ids=["accelerate", "lightning"])
def test_trainers_learn_what_they_learn_with_gloo(program: str, tmp_path: Path) -> None:
    ended = ranks(MODEL + program, tmp_path)
    assert [status for status, _ in ended] == [0] * RANKS, ended
    assert all("the same" in output for _, output in ended), ended


@pytest.mark.parametrize("package", ["accelerate", "pytorch_lightning", "torch"])
def test_the_examples_of_trainers_run_on_three_ranks(package: str, tmp_path: Path) -> None:
    (example,) = [block.text for block in blocks(PAGE) if block.how == f"framework {package}"]
    before = (
        f"import os, warnings\nwarnings.simplefilter('ignore')\nimport hoplite.torch\nos.chdir({str(tmp_path)!r})\n"
    )
    ended = ranks(before + example, tmp_path)
    assert [status for status, _ in ended] == [0] * RANKS, ended
