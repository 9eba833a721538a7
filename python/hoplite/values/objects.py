"""All other Python objects, with pickle protocol 5. Buffers of arrays inside them are stored outside the pickle.

    magic and version, 8 bytes | size of the pickle, 8 | number of buffers, 8 | size of each buffer, 8 each
    the pickle
    each buffer, aligned to 64 bytes

Numbers are little-endian. Unpickling uses the buffers in place, so arrays are not copied.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
import sys
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from hoplite.errors import DecodeError, HopliteError, InvalidArgument, UnsupportedDtype
from hoplite.values import arrays, tensors
from hoplite.values.allowed import Allowed, defined_as, is_allowed, may_be_imported
from hoplite.values.kinds import BYTES, PICKLE, Encoded
from hoplite.values.opcodes import check_opcodes
from hoplite.values.parts import Parts, Private, aligned
from hoplite.values.states import build, check_target, item_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

_MAGIC = b"hoppkl\r\x01"
_HEADER = struct.Struct("<8sQQ")


class _Pickler(pickle.Pickler):
    """Checks each object for scalars and subclasses of ndarray, which a dispatch table can't list."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - what pickle takes
        return arrays.reduce_other(value)


class _CarefulPickler(_Pickler):
    """Rejects classes and functions that the list does not allow: `put` fails, not `get`. Ignores singletons."""

    allowed: tuple[str, ...] = ()

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - what pickle takes
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            name = defined_as(value)
            # A method of a builtin object has no module: pickle stores the function and object that restore it, and
            # those are checked.
            if name and not is_allowed(self.allowed, name, value):
                raise UnsupportedDtype(f"the value can't be pickled: {_refusal(name)}")
            if reason := item_target(name, value):
                raise UnsupportedDtype(f"the value can't be pickled: {reason}")
        return super().reducer_override(value)


class _CarefulUnpickler(pickle.Unpickler):
    """Loads only classes and functions that the list allows, and does not modify them."""

    allowed: tuple[str, ...] = ()

    def __init__(self, stream: bytes, buffers: list[Buffer], allowed: tuple[str, ...]) -> None:
        super().__init__(io.BytesIO(check_opcodes(stream)), fix_imports=False, buffers=buffers)
        self.allowed = allowed
        # Objects found by name, by id; kept alive so that ids stay unique. They can be other than classes and
        # functions.
        self._found: dict[int, object] = {}

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a class or a function
        path = f"{module}.{name}"
        # Before the import of the module, which may run code too.
        if not may_be_imported(self.allowed, path):
            raise DecodeError(f"the object can't be unpickled: {_refusal(path)}")
        found = super().find_class(module, name)
        if not is_allowed(self.allowed, path, found):
            raise DecodeError(f"the object can't be unpickled: through {path}, {_refusal(defined_as(found) or path)}")
        if reason := item_target(path, found):
            raise DecodeError(f"the object can't be unpickled: {reason}")
        self._found[id(found)] = found
        return _careful_restore(self._found) if found is arrays.restore_locked else found

    def persistent_load(self, pair: Any) -> Any:  # noqa: ANN401 - `check_opcodes` replaces BUILD by this call
        target, state = pair
        check_target(target, is_shared=id(target) in self._found)
        build(target, state)
        return target


def _careful_restore(found: dict[int, object]) -> Callable[[Any, Any], None]:
    """Returns a function that sets the state of an array, but rejects objects that were found by name.

    It is not a method of the unpickler: the unpickler's memo refers to it, and a reference cycle would keep the buffers
    until the garbage collector runs.
    """

    def restore(target: Any, state: Any) -> None:  # noqa: ANN401 - an array, or an attacker's choice
        check_target(target, is_shared=id(target) in found)
        arrays.restore_locked(target, state)

    return restore


def encode_object(value: object, allowed: Allowed = True) -> Encoded:
    """Pickles a value.

    Args:
        value: the value.
        allowed: classes and functions that the pickle may use.

    Raises:
        InvalidArgument: the value can't be pickled. The message states its type and the reason.
        UnsupportedDtype: the value uses a class or function that is not allowed.
    """
    buffers: list[memoryview] = []
    stream = Parts()
    # Checking each object takes time. Without NumPy there are no arrays to check for.
    kind = _Pickler if "numpy" in sys.modules else pickle.Pickler
    if not isinstance(allowed, bool):
        kind = _CarefulPickler
    pickler = kind(stream, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
    if isinstance(pickler, _CarefulPickler) and not isinstance(allowed, bool):
        pickler.allowed = allowed
    pickler.dispatch_table = {**copyreg.dispatch_table, **arrays.reducers(), **tensors.reducers()}
    try:
        pickler.dump(value)
    except (HopliteError, MemoryError):
        raise
    except Exception as error:  # raised by the value's own code
        raise InvalidArgument(
            f"can't put a {type(value).__module__}.{type(value).__qualname__}: it can't be pickled "
            f"({type(error).__name__}: {error}); put the data that it is made of, or define __reduce__ in its class"
        ) from error

    parts = Parts()
    parts.write(_HEADER.pack(_MAGIC, stream.nbytes, len(buffers)))
    parts.write(struct.pack(f"<{len(buffers)}Q", *(buffer.nbytes for buffer in buffers)))
    for part in stream.take():
        parts.write(part)
    for buffer in buffers:
        parts.align()
        parts.write(buffer)
    return Encoded(BYTES, (parts.nbytes,), PICKLE, parts.nbytes, parts.take())


def decode_object(data: memoryview, copy: bool, allowed: Allowed = True) -> Any:  # noqa: ANN401 - as it was put
    """Unpickles a value over read-only bytes; over private, writable copies of them if `copy` is true.

    Raises:
        DecodeError: the layout is not valid, or unpickling failed, for example because a class can't be imported or is
            not allowed.
    """
    stream, slices = _take_apart(data)
    buffers: list[Buffer] = [Private(each) for each in slices] if copy else [*slices]
    try:
        if isinstance(allowed, bool):
            return pickle.loads(stream, buffers=buffers)
        return _CarefulUnpickler(bytes(stream), buffers, allowed).load()
    except HopliteError:
        raise
    except (ImportError, AttributeError) as error:
        raise DecodeError(
            f"the object can't be unpickled ({type(error).__name__}: {error}): its modules and classes must be "
            "importable here, under the same names as where it was put"
            + ("; define classes in a module, not in the main script" if "__main__" in str(error) else "")
        ) from error
    except Exception as error:  # raised by the value's own code, or because the bytes are not a pickle
        raise DecodeError(f"the object can't be unpickled ({type(error).__name__}: {error})") from error


def _refusal(name: str) -> str:
    return (
        f'it uses {name}, which is not on the list of allow_pickle: add "{name}" there, or to HOPLITE_ALLOW_PICKLE, if '
        "it is harmless with any arguments"
    )


def _take_apart(data: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Finds the pickle and the buffers. Checks the header before it allocates anything."""
    nbytes = data.nbytes
    if nbytes < _HEADER.size:
        raise DecodeError(f"the object has {nbytes} bytes, which is too short for a pickled object")
    magic, stream_bytes, count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError(f"the object starts with {magic!r}, which is not a pickled object of this version of hoplite")
    if count > (nbytes - _HEADER.size) // 8:
        raise DecodeError(f"the object's header states {count} buffers, which do not fit into {nbytes} bytes")
    start = _HEADER.size + 8 * count
    lengths = data[_HEADER.size : start].cast("Q")
    end = start + stream_bytes
    for length in lengths:
        end = aligned(end) + length
    if end != nbytes:
        raise DecodeError(f"the object has {nbytes} bytes, but its header states {end}")
    # Pickle ignores bytes after STOP. A wrong length would include the zeros before the first buffer.
    if stream_bytes == 0 or data[start + stream_bytes - 1] != pickle.STOP[0]:
        raise DecodeError(f"the object's header states a pickle of {stream_bytes} bytes, which does not end there")

    end = start + stream_bytes
    slices = []
    for length in lengths:
        begin = aligned(end)
        end = begin + length
        slices.append(data[begin:end])
    return data[start : start + stream_bytes], slices
