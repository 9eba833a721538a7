"""Names of the tensor transports in Ray, and of the Hoplite objects that hold their tensors."""

from __future__ import annotations

# The transports for tensors and for NumPy arrays, in upper case as in `ObjectRef.tensor_transport()`.
TENSORS = "HOPLITE"
ARRAYS = "HOPLITE_NUMPY"


def name_of(obj_id: str, place: int = 0, count: int = 1) -> str:
    """Returns the name of the Hoplite object that holds one tensor of an ObjectRef's value.

    The name of a single tensor follows from the id alone, so a reduce can wait for it before the method has run.

    Args:
        obj_id: id of the ObjectRef.
        place: position of the tensor in the value.
        count: number of tensors in the value.
    """
    return f"ray/{obj_id}/{place}" if count == 1 else f"ray/{obj_id}/{place}-of-{count}"
