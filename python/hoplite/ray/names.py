"""What Hoplite calls the tensors that methods of actors return, and Ray the transports that move them."""

from __future__ import annotations

# In upper case, as ObjectRefs tell theirs: for tensors, and for NumPy arrays.
TENSORS = "HOPLITE"
ARRAYS = "HOPLITE_NUMPY"


def name_of(obj_id: str, place: int = 0, count: int = 1) -> str:
    """What the tensor at a place of an ObjectRef's value is called in Hoplite, if the value has so many.

    One that is alone has a name of its own, for which a reduce can wait.
    """
    return f"ray/{obj_id}/{place}" if count == 1 else f"ray/{obj_id}/{place}-of-{count}"
