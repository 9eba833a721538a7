"""The checkpoint engine of verl: its registry, and its manager with rollout workers on Ray without GPUs."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
import torch_forks
from hoplite.errors import HopliteError, InvalidArgument, Timeout
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")
base = pytest.importorskip("verl.checkpoint_engine.base", exc_type=ImportError)

import hoplite.verl  # noqa: E402 - registers the engine

pytestmark = [pytest.mark.rl, pytest.mark.timeout(240)]

ROOT = Path(__file__).parent.parent


@pytest.fixture
def _shared(node: hoplite.Node) -> Iterator[None]:  # noqa: ARG001 - the node of this user
    with hoplite.init():
        yield
    hoplite.shutdown()


def engine(*, is_master: bool = False, **options: Any) -> Any:
    """Creates an engine as verl does."""
    return base.CheckpointEngineRegistry.new(
        "hoplite", bucket_size=1 << 20, is_master=is_master, timeout=SOON, **options
    )


def begin(actors: list[Any], rollouts: list[Any]) -> None:
    """Builds the topology of one update, as verl's manager does."""
    kind = base.CheckpointEngineRegistry.get("hoplite")
    metadata = [each.prepare() for each in (*actors, *rollouts)]
    for group, options in zip(
        (actors, rollouts), kind.build_topology(len(actors), len(rollouts), metadata), strict=True
    ):
        for index, each in enumerate(group):
            each.init_process_group(**{name: values[index] for name, values in options.items()})


async def receive(rollout: Any) -> dict[str, Any]:
    return {name: tensor async for name, tensor in rollout.receive_weights(global_steps=5)}


def test_it_is_a_checkpoint_engine() -> None:
    kind = base.CheckpointEngineRegistry.get("hoplite")
    assert kind is hoplite.verl.HopliteCheckpointEngine
    assert issubclass(kind, base.CheckpointEngine)
    assert not kind.__abstractmethods__
    for name in base.CheckpointEngine.__abstractmethods__ - {"init_process_group"}:
        theirs, ours = (inspect.signature(getattr(each, name)) for each in (base.CheckpointEngine, kind))
        assert list(theirs.parameters) == list(ours.parameters)


@pytest.mark.usefixtures("_shared")
def test_rollout_workers_receive_what_the_master_sends() -> None:
    read = []

    def weights(rank: int, value: int) -> Iterator[tuple[str, Any]]:
        # One piece of memory for both.
        memory = torch.zeros(40, dtype=torch.uint8)
        yield "first", memory[:24].view(torch.bfloat16).view(3, 4).fill_(value)
        yield "second", memory.view(torch.int64).copy_(torch.arange(5) + value)
        read.append(rank)

    async def update(rollouts: list[Any], value: int) -> list[Any]:
        sent = [each.send_weights(weights(rank, value), global_steps=5) for rank, each in enumerate(actors)]
        return list(await asyncio.gather(*(receive(each) for each in rollouts), *sent))

    actors = [engine(is_master=True), engine()]
    for version, count in enumerate((2, 3, 1), 1):
        rollouts = [engine() for _ in range(count)]
        begin(actors, rollouts)
        *received, metrics, nothing = asyncio.run(update(rollouts, version))
        # Each tensor starts at a multiple of 64 bytes.
        assert metrics == {"hoplite/version": version, "hoplite/bytes": 128}
        assert nothing is None
        for each in received:
            assert list(each) == ["first", "second"]
            assert torch.equal(each["first"], torch.full((3, 4), version, dtype=torch.bfloat16))
            assert torch.equal(each["second"], torch.arange(5) + version)
        for each in (*actors, *rollouts):
            each.finalize()
    # To read the weights is a collective call: every rank has done it.
    assert sorted(read) == [0] * 3 + [1] * 3


@pytest.mark.usefixtures("_shared")
def test_wrong_uses_are_named() -> None:
    with pytest.raises(InvalidArgument, match="prefix 'policy' is not valid"):
        engine(prefix="policy")
    with pytest.raises(HopliteError, match="rank 0 of the actor is not the master"):
        begin([engine()], [engine()])
    with pytest.raises(HopliteError, match="this update has no version"):
        asyncio.run(receive(engine()))
    late = engine()
    late.timeout = 0
    begin([engine(is_master=True)], [late])
    with pytest.raises(Timeout, match="policy/1"):
        asyncio.run(receive(late))


def test_its_manager_updates_workers_that_come_and_go(tmp_path: Path) -> None:
    import tokenizers
    import transformers

    words = tokenizers.models.WordLevel({"?": 0, "end": 1, "a": 2, "b": 3}, unk_token="?")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), unk_token="?", eos_token="end", pad_token="end"
    ).save_pretrained(tmp_path / "model")
    config = transformers.Qwen2Config(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=1,
    )
    transformers.Qwen2ForCausalLM(config).bfloat16().save_pretrained(tmp_path / "model")
    # The helpers are the package `tests` in the folder of verl.
    site = Path(inspect.getfile(base)).parents[2]
    with hoplite.Node(capacity="256MiB", socket=tmp_path / "node") as node:
        done = subprocess.run(
            [sys.executable, ROOT / "tests" / "verl_program.py", tmp_path / "model"],
            env={
                **os.environ,
                "HOPLITE_ADDRESS": f"unix:{node.socket}",
                "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(site)]),
                # Ray would otherwise install the environment of the driver anew.
                "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            },
            capture_output=True,
            text=True,
            timeout=230,
            check=False,
        )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


def test_without_verl_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['verl'] = None; import hoplite.verl"
    ((_, output),) = torch_forks.run(program, [os.environ])
    assert re.search(r"PackageMissing: hoplite.verl needs verl .*pip install .*'verl>=", output)
