"""Values with tensors as bytes, and back without running code from the bytes."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import torch

from hoplite.errors import DecodeError, InvalidArgument


def dump(value: object, what: str) -> bytes:
    """Returns the bytes of a value, which `load` accepts.

    Args:
        value: nested dicts, lists and tuples with tensors and plain values.
        what: name of the value for errors.

    Raises:
        InvalidArgument: the value has an object that cannot be saved, or that `load` would reject.
    """
    file = io.BytesIO()
    try:
        torch.save(value, file)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"{what} has an object that cannot be saved ({error}): remove it") from error
    data = file.getvalue()
    try:
        load(data, what)
    except DecodeError as error:
        raise InvalidArgument(str(error)) from error
    return data


def load(data: bytes | memoryview, what: str) -> Any:
    """Returns a value from its bytes. Classes that torch does not consider safe are rejected before they are called.

    Args:
        data: result of `dump` or `torch.save`.
        what: name of the value for errors.

    Raises:
        DecodeError: the bytes contain a class that is not safe, or are corrupt.
    """
    try:
        return torch.load(io.BytesIO(data), map_location=_where, weights_only=True)
    except Exception as error:  # torch raises errors of many classes for corrupt bytes
        raise DecodeError(
            f"{what} cannot be loaded ({_reason(error)}): use only tensors and plain values, or pass other classes to "
            "torch.serialization.add_safe_globals in every process"
        ) from error


def _where(storage: Any, location: str) -> Any:
    """Selects the device of a tensor: CPU memory for tensors with values, which this host may have no device for."""
    return storage if location != "meta" else None


def _reason(error: Exception) -> str:
    """Returns the cause in a message of torch.load, whose first lines suggest to load without a check."""
    found = re.search(r"GLOBAL (\S+) (?:was not|whose)", str(error))
    return f"{found[1]} is not safe" if found else type(error).__name__
