"""Program of test_rl_verl.py: verl's manager, rollout workers and mock servers, updated by a changing actor on Ray.

Run with the folder of a model of transformers. verl's own training worker requires a GPU; `Actor` takes its place.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

import ray  # noqa: E402 - imports warn
import tests.checkpoint_engine.test_utils as helpers  # noqa: E402 - in verl's wheel
import torch  # noqa: E402
import transformers  # noqa: E402
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry  # noqa: E402
from verl.single_controller.base import Worker  # noqa: E402
from verl.single_controller.base.decorator import Dispatch, register  # noqa: E402
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup  # noqa: E402
from verl.utils.import_utils import import_external_libs  # noqa: E402
from verl.workers.config import CheckpointEngineConfig, HFModelConfig, RolloutConfig  # noqa: E402

ACTORS = 1
OPTIONS = {"timeout": 60.0}


class Actor(Worker):
    """A worker of the actor, with the methods that verl's manager calls. Every rank has the whole model."""

    def __init__(self, folder: str, backend: str, module: str) -> None:
        super().__init__()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        import_external_libs(module)
        self.engine = CheckpointEngineRegistry.new(backend, is_master=self.rank == 0, bucket_size=1 << 20, **OPTIONS)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> dict[str, float]:
        assert mode == "hoplite"
        return await self.engine.send_weights(self.model.named_parameters(), global_steps=global_steps) or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.engine, method)(*arguments, **options)


def pool(workers: int) -> RayResourcePool:
    """Returns a pool of workers without GPUs."""
    return RayResourcePool(process_on_nodes=[workers], max_colocate_count=1, use_gpu=False)


async def main(folder: str) -> None:
    """Updates one replica, then another one that joins as well, then only that one after the first has left."""
    config = CheckpointEngineConfig(
        backend="hoplite", custom_backend_module="hoplite.verl", engine_kwargs={"hoplite": OPTIONS}
    )
    model = HFModelConfig(path=folder, use_remove_padding=False, override_config={"attn_implementation": "eager"})
    rollout = RolloutConfig(name="vllm", tensor_model_parallel_size=1, checkpoint_engine=config)
    actor_class = RayClassWithInitArgs(
        cls=ray.remote(Actor), folder=folder, backend=config.backend, module=config.custom_backend_module
    )
    actors = RayWorkerGroup(resource_pool=pool(ACTORS), ray_cls_with_init=actor_class, device_name="cpu")
    group, replicas = await helpers.create_rollout_worker_group(pool(1), model, rollout)
    manager = CheckpointEngineManager(config=config, actor_wg=actors, replicas=replicas)
    nbytes = sum(tensor.nbytes for tensor in transformers.AutoModelForCausalLM.from_pretrained(folder).parameters())

    async def update(version: int) -> None:
        metrics = await manager.update_weights(global_steps=17)
        assert metrics["hoplite/version"] == version
        assert metrics["hoplite/bytes"] >= nbytes

    await update(1)
    group.check_weights()
    late_group, late = await helpers.create_rollout_worker_group(pool(1), model, rollout)
    manager.add_replicas(late)
    await update(2)
    group.check_weights()
    late_group.check_weights()
    manager.remove_replicas(replicas[:1])
    ray.kill(replicas[0].workers[0])
    await update(3)
    late_group.check_weights()


if __name__ == "__main__":
    # In the environment of the workers: where they find the helpers in verl's wheel, this file and the node.
    names = ("PYTHONPATH", "HOPLITE_ADDRESS", "XDG_RUNTIME_DIR")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    torch.manual_seed(0)
    asyncio.run(main(sys.argv[1]))
    ray.shutdown()
    print("done")
