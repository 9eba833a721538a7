"""Looks at a pickle before it is read: its opcodes must be those of protocol 5, and its lengths no longer than it is.

CPython takes memory for what a length says before it looks whether so many bytes follow, and older opcodes give numbers
to what is remembered, for which it makes a table as long as the greatest: a few bytes cost gigabytes. Knows no class.
"""

from __future__ import annotations

from hoplite.errors import Undecodable

# Opcodes that are followed by so many bytes.
_FOLLOWED = {
    0: b"(.0)]}1N)aestuRbQ\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98",
    1: b"\x80Khq\x82",
    2: b"M\x83",
    4: b"Jj\x84",
    8: b"G\x95",
}
# Opcodes that are followed by a length of so many bytes, and by what is so long.
_COUNTED = {1: b"C\x8c\x8a", 4: b"BX\x8b", 8: b"\x8e\x8d\x96"}

# Of each opcode how many bytes it takes, with itself; negative if a length of so many bytes follows, 0 if unknown.
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


def check_opcodes(stream: bytes) -> None:
    """Checks a pickle up to its end.

    Raises:
        Undecodable: it is cut off, or has an opcode that no pickle of protocol 5 has.
    """
    at, end = 0, len(stream)
    while at < end:
        opcode = stream[at]
        step = _STEPS[opcode]
        if step > 0:
            if opcode == _STOP:
                return
            at += step
        elif step < 0:
            begin = at + 1 - step
            at = begin + int.from_bytes(stream[at + 1 : begin], "little")
        elif opcode == _GLOBAL:
            # A line that does not end is as long as the rest.
            for _ in range(2):
                at = stream.find(b"\n", at) + 1 or end + 1
        else:
            raise Undecodable(f"the object can't be unpickled: opcode {opcode:#04x} at byte {at} is not of protocol 5")
    raise Undecodable(f"the object can't be unpickled: it says it is {at} bytes long, and is {end}")
