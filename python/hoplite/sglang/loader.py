"""The loader in each rank of an SGLang server: loads a published version into the model.

An exception of a custom loader ends the server, so the outcome goes to the caller in a slot instead. All ranks of
tensor parallelism load, or none. Ranks of one host read the same copy in shared memory. Does not know who publishes.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

import hoplite
from hoplite._held import Held
from hoplite.errors import HopliteError
from hoplite.sglang import request as requests

logger = logging.getLogger("hoplite.sglang")


def load_weights(model: Any, named_tensors: Any) -> None:
    """Waits until a version is on this host, then loads it into the model, one tensor at a time. SGLang calls it.

    Start servers with `--custom-weight-loader hoplite.sglang.load_weights`.

    Args:
        model: a model of SGLang.
        named_tensors: the request of `hoplite.sglang.load` or of a trainer.
    """
    try:
        wanted = requests.read(named_tensors)
    except HopliteError:
        # Nobody waits for an answer.
        logger.exception("the model is as before")
        return
    stage, outcome = 0, ""
    try:
        stage, outcome = _load(model, wanted)
    except Exception as error:
        logger.exception("the model is as before")
        outcome = f"the model is as before: {error!r}"
    try:
        hoplite.client().put(outcome.encode(), name=wanted.slots[stage], timeout=requests.ANSWER_S)
    except Exception:
        # The caller waits no longer, or this host has no node; then the caller misses the answer.
        logger.exception("the outcome of the update to %s was not delivered (%s)", wanted.name, outcome or "loaded")


def _load(model: Any, wanted: requests.Request) -> tuple[int, str]:
    """Loads a version; returns the stage of pipeline parallelism of this rank, and what went wrong."""
    group, stage = _group()
    version, reason = None, None
    try:
        version = Held(wanted.name, wanted.timeout)
    except Exception as error:  # noqa: BLE001 - for the caller
        reason = f"{type(error).__name__}: {error}"
    reasons: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(reasons, reason, group=group)
    found = [f"rank {rank}: {each}" for rank, each in enumerate(reasons) if each is not None]
    if version is None or found:
        return stage, f"the model is as before, since not all ranks have {wanted.name}: {'; '.join(found)}"
    try:
        model.load_weights(version.tensors(next(model.parameters()).device))
    except Exception as error:
        logger.exception("%s is loaded in part", wanted.name)
        return stage, f"the model is a mix of versions until the next update, since its loader failed: {error!r}"
    return stage, ""


def _group() -> tuple[Any, int]:
    """Returns the group of tensor parallelism on the CPU, and the stage of pipeline parallelism, of this rank."""
    try:
        from sglang.srt.runtime_context import get_parallel

        return get_parallel().tp_group.cpu_group, int(get_parallel().pp_rank)
    except ImportError:
        # Releases before 0.5.20, such as the one of verl.
        from sglang.srt.distributed import get_pp_group, get_tp_group

        return get_tp_group().cpu_group, int(get_pp_group().rank_in_group)
