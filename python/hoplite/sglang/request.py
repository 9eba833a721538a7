"""The request that a server's ranks get in place of tensors, and their answers.

SGLang passes tensors of a caller to a custom loader in each rank. A request is one small tensor of bytes, so it also
works between hosts. Each rank answers in a slot of the caller. Does not know servers or models.
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any, NamedTuple

import torch

from hoplite.errors import InvalidArgument

# What a server must be started with, as its --custom-weight-loader.
LOADER = "hoplite.sglang.load_weights"

NAME = "hoplite.request"

# Seconds for an answer, which is a small object, once the server has replied.
ANSWER_S = 30.0


class Request(NamedTuple):
    """What a rank of tensor parallelism is to load.

    Attributes:
        name: the version.
        timeout: seconds to wait until it is on this host; None waits without limit.
        slots: refs for the answers, by stage of pipeline parallelism.
    """

    name: str
    timeout: float | None
    slots: list[str]

    def payload(self) -> str:
        """Returns it as SGLang's HTTP interface takes the tensors of a rank: pairs in base64 of a pickle."""
        text = json.dumps(self._asdict()).encode()
        tensor = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return base64.b64encode(pickle.dumps([(NAME, tensor)])).decode()


def read(named_tensors: Any) -> Request:
    """Returns the request in the tensors that a loader was called with.

    Raises:
        InvalidArgument: there is none.
    """
    try:
        ((name, tensor),) = named_tensors
        if name != NAME:
            raise ValueError(f"its name is {name}")
        found = json.loads(tensor.cpu().numpy().tobytes())
        request = Request(str(found["name"]), found["timeout"], [str(slot) for slot in found["slots"]])
        if not isinstance(request.timeout, int | float | None):
            raise TypeError(f"its timeout is {request.timeout!r}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{LOADER} got tensors that are no request of Hoplite ({error}): update the server by hoplite.sglang, or "
            "pass another load_format"
        ) from None
    return request
