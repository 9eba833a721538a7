"""Any other Python object, by pickle protocol 5, with the buffers of arrays inside it kept outside the pickle.

    magic and version, 8 bytes | bytes of the pickle, 8 | number of buffers, 8 | bytes of each buffer, 8 each
    the pickle
    each buffer, from the next multiple of 64 bytes on

Numbers are little-endian. The buffers are handed to pickle where they lie, so that arrays come back without a copy.
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
from hoplite.values.allowed import Allowed, defined_as, is_allowed, may_be_asked
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
    """Asks of each object whether it is a scalar or a subclass of ndarray, which no table of types can name."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - what pickle takes
        return arrays.reduce_other(value)


class _CarefulPickler(_Pickler):
    """Refuses classes and functions that a list does not allow, so that the putter hears of them; not singletons."""

    allowed: tuple[str, ...] = ()

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - what pickle takes
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            name = defined_as(value)
            # A method of a builtin object has no module: what is made of it is asked for in its place.
            if name and not is_allowed(self.allowed, name, value):
                raise UnsupportedDtype(f"the value can't be pickled: {_refusal(name)}")
            if reason := item_target(name, value):
                raise UnsupportedDtype(f"the value can't be pickled: {reason}")
        return super().reducer_override(value)


class _CarefulUnpickler(pickle.Unpickler):
    """Finds no class and no function but those that a list allows, and changes none."""

    allowed: tuple[str, ...] = ()

    def __init__(self, stream: bytes, buffers: list[Buffer], allowed: tuple[str, ...]) -> None:
        super().__init__(io.BytesIO(check_opcodes(stream)), fix_imports=False, buffers=buffers)
        self.allowed = allowed
        # By id, and so kept alive. Other things than classes and functions can be found by their own names.
        self._found: dict[int, object] = {}

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a class or a function
        asked = f"{module}.{name}"
        # Before the module is imported, which may run code too.
        if not may_be_asked(self.allowed, asked):
            raise DecodeError(f"the object can't be unpickled: {_refusal(asked)}")
        found = super().find_class(module, name)
        if not is_allowed(self.allowed, asked, found):
            raise DecodeError(f"the object can't be unpickled: by {asked} {_refusal(defined_as(found) or asked)}")
        if reason := item_target(asked, found):
            raise DecodeError(f"the object can't be unpickled: {reason}")
        self._found[id(found)] = found
        return _careful_restore(self._found) if found is arrays.restore_locked else found

    def persistent_load(self, pair: Any) -> Any:  # noqa: ANN401 - what `check_opcodes` puts in place of BUILD
        target, state = pair
        check_target(target, is_shared=id(target) in self._found)
        build(target, state)
        return target


def _careful_restore(found: dict[int, object]) -> Callable[[Any, Any], None]:
    """What sets the state of an array, but of nothing that was found by name.

    It is no method of the unpickler, whose memo has it: such a circle would keep the buffers until it is collected.
    """

    def restore(target: Any, state: Any) -> None:  # noqa: ANN401 - an array, or an attacker's choice
        check_target(target, is_shared=id(target) in found)
        arrays.restore_locked(target, state)

    return restore


def encode_object(value: object, allowed: Allowed = True) -> Encoded:
    """Pickles a value.

    Args:
        value: the value.
        allowed: what the pickle may use.

    Raises:
        InvalidArgument: it can't be pickled; says of what type it is, why, and what to do.
        UnsupportedDtype: it takes a class or a function that is not allowed.
    """
    buffers: list[memoryview] = []
    stream = Parts()
    # The question for each object takes time, so it is asked only where there can be an array.
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
    except Exception as error:  # it comes from code of the value's own
        raise InvalidArgument(
            f"can't put a {type(value).__module__}.{type(value).__qualname__}: it can't be pickled "
            f"({type(error).__name__}: {error}); put the data that it is made of, or give its class __reduce__"
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
    """Unpickles a value over read-only bytes; over copies of them that are its own, and writable, if `copy` is true.

    Raises:
        DecodeError: the bytes are not laid out so, or the unpickling failed, as for a class that can't be imported or
            is not allowed.
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
            f"the object can't be unpickled ({type(error).__name__}: {error}): modules and classes that it is made of "
            "must be importable here, under the names they had where it was put"
            + ("; put classes into a module rather than the main script" if "__main__" in str(error) else "")
        ) from error
    except Exception as error:  # it comes from code of the value's own, or from bytes that are no pickle
        raise DecodeError(f"the object can't be unpickled ({type(error).__name__}: {error})") from error


def _refusal(name: str) -> str:
    return (
        f'it takes {name}, which is not on the list of allow_pickle; add "{name}" there, or to HOPLITE_ALLOW_PICKLE, '
        "if all that it can be called with is harmless"
    )


def _take_apart(data: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Finds the pickle and the buffers; what the header says is checked before anything is made by it."""
    nbytes = data.nbytes
    if nbytes < _HEADER.size:
        raise DecodeError(f"the object has {nbytes} bytes, which is too short for a pickled object")
    magic, stream_bytes, count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError(f"the object begins with {magic!r}, which is no pickled object of this version of hoplite")
    if count > (nbytes - _HEADER.size) // 8:
        raise DecodeError(f"the object's header tells of {count} buffers, which {nbytes} bytes have no room for")
    start = _HEADER.size + 8 * count
    lengths = data[_HEADER.size : start].cast("Q")
    end = start + stream_bytes
    for length in lengths:
        end = aligned(end) + length
    if end != nbytes:
        raise DecodeError(f"the object has {nbytes} bytes, its header tells of {end}")
    # What pickle ignores: bytes after the stop. They would be the zeros before the first buffer.
    if stream_bytes == 0 or data[start + stream_bytes - 1] != pickle.STOP[0]:
        raise DecodeError(f"the object's header tells of a pickle of {stream_bytes} bytes, which does not end there")

    end = start + stream_bytes
    slices = []
    for length in lengths:
        begin = aligned(end)
        end = begin + length
        slices.append(data[begin:end])
    return data[start : start + stream_bytes], slices
