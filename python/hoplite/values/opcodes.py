"""Checks a pickle before it is loaded: only permitted opcodes of protocol 5, and no length beyond its end.

CPython allocates the memory that a length states before it checks that so many bytes follow. Older opcodes contain memo
indexes, for which CPython allocates a table up to the largest. In both cases a few bytes could allocate gigabytes.

BUILD sets attributes of any object, including classes and functions, and the C unpickler has no hook for it. Each BUILD
is therefore replaced by opcodes that pass the object and its state to `persistent_load`. Does not know classes.
"""

from __future__ import annotations

from hoplite.errors import DecodeError

# Permitted opcodes, by the number of bytes that follow them. Not EXT1, EXT2 and EXT4, which find classes by an
# extension number and bypass `find_class` from the second use of a number on. Not BINPERSID, which replaces BUILD here.
_FOLLOWED = {
    0: b"(0)]}1N)aestuR\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98",
    1: b"\x80Khq",
    2: b"M",
    4: b"Jj",
    8: b"G",
}
# Opcodes followed by a length and data of that length, by the size of the length.
_COUNTED = {1: b"C\x8c\x8a", 4: b"BX\x8b", 8: b"\x8e\x8d\x96"}

# For each opcode, its size including itself; negative: the size of the length that follows; 0: one of the opcodes
# below, or unknown.
_STEPS = [0] * 256
for _bytes, _opcodes in _FOLLOWED.items():
    for _opcode in _opcodes:
        _STEPS[_opcode] = 1 + _bytes
for _bytes, _opcodes in _COUNTED.items():
    for _opcode in _opcodes:
        _STEPS[_opcode] = -_bytes

_STOP = ord(".")
# Opcode of older protocols, followed by two lines with the name of a class. `find_class` checks the name.
_GLOBAL = ord("c")
_BUILD = ord("b")
_FRAME = 0x95
_FRAME_BYTES = 8
# TUPLE2 and BINPERSID: pass the pair of the object and its state to `persistent_load`, and use its result.
_BUILD_BY_HOOK = b"\x86Q"


def check_opcodes(stream: bytes) -> bytes:
    """Checks a pickle and rewrites it.

    Returns:
        The pickle to load. Each BUILD is replaced by a call of `persistent_load` with the object and its state, which
        returns the object. Frames are removed because this changes the length.

    Raises:
        DecodeError: the pickle is truncated, or has an opcode that is not permitted.
    """
    at, end, begin = 0, len(stream), 0
    parts = []
    while at < end:
        opcode = stream[at]
        step = _STEPS[opcode]
        if step > 0:
            at += step
        elif step < 0:
            data = at + 1 - step
            at = data + int.from_bytes(stream[at + 1 : data], "little")
        elif opcode == _STOP:
            parts.append(stream[begin : at + 1])
            return b"".join(parts)
        elif opcode == _BUILD:
            parts += stream[begin:at], _BUILD_BY_HOOK
            at = begin = at + 1
        elif opcode == _FRAME:
            parts.append(stream[begin:at])
            at = begin = at + 1 + _FRAME_BYTES
        elif opcode == _GLOBAL:
            # A line without an end counts up to the end of the pickle.
            for _ in range(2):
                at = stream.find(b"\n", at) + 1 or end + 1
        else:
            raise DecodeError(
                f"the object can't be unpickled: opcode {opcode:#04x} at byte {at} is not one that hoplite writes"
            )
    raise DecodeError(f"the object can't be unpickled: it states at least {at} bytes and has {end}")
