"""Looks at a pickle before it is read: its opcodes must be allowed ones of protocol 5, and its lengths not too long.

CPython takes memory for what a length says before it looks whether so many bytes follow, and older opcodes give numbers
to what is remembered, for which it makes a table as long as the greatest: a few bytes cost gigabytes. And BUILD sets
attributes of any object, classes and functions included, and the C unpickler has no hook for it; so each BUILD is
replaced by the opcodes that pass the object and its state to `persistent_load`. Knows no class.
"""

from __future__ import annotations

from hoplite.errors import DecodeError

# Opcodes that are followed by so many bytes. Not those that find classes by an extension number (EXT1, 2 and 4), past
# `find_class` once the number was used before, nor BINPERSID, which stands for BUILD here.
_FOLLOWED = {
    0: b"(0)]}1N)aestuR\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98",
    1: b"\x80Khq",
    2: b"M",
    4: b"Jj",
    8: b"G",
}
# Opcodes that are followed by a length of so many bytes, and by what is so long.
_COUNTED = {1: b"C\x8c\x8a", 4: b"BX\x8b", 8: b"\x8e\x8d\x96"}

# Of each opcode how many bytes it takes, with itself; negative if a length of so many bytes follows, 0 if the
# opcode is one of those below or unknown.
_STEPS = [0] * 256
for _bytes, _opcodes in _FOLLOWED.items():
    for _opcode in _opcodes:
        _STEPS[_opcode] = 1 + _bytes
for _bytes, _opcodes in _COUNTED.items():
    for _opcode in _opcodes:
        _STEPS[_opcode] = -_bytes

_STOP = ord(".")
# Of older protocols, followed by two lines; it names a class as those of protocol 5 do, which is looked at elsewhere.
_GLOBAL = ord("c")
_BUILD = ord("b")
_FRAME = 0x95
_FRAME_BYTES = 8
# TUPLE2 and BINPERSID: the pair of the object and its state goes to `persistent_load`, whose result takes its place.
_BUILD_BY_HOOK = b"\x86Q"


def check_opcodes(stream: bytes) -> bytes:
    """Checks a pickle up to its end.

    Returns:
        The pickle to load: frames removed, since it changes in length, and each BUILD replaced by a call of
        `persistent_load` with the object and its state, which returns the object.

    Raises:
        DecodeError: it is cut off, or has an opcode that is not allowed.
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
            # A line that does not end is as long as the rest.
            for _ in range(2):
                at = stream.find(b"\n", at) + 1 or end + 1
        else:
            raise DecodeError(
                f"the object can't be unpickled: opcode {opcode:#04x} at byte {at} is not one that hoplite writes"
            )
    raise DecodeError(f"the object can't be unpickled: it says it is {at} bytes long, and is {end}")
