"""Checks of arguments that need no cluster to be judged; what passes is what the extension takes.

The extension checks again what it must not trust. These come first since they can name what the caller wrote.
"""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Iterable, Mapping
from typing import SupportsFloat, SupportsIndex

from hoplite import _native
from hoplite.errors import InvalidArgument, UnknownOp
from hoplite.ref import NUMBER_MAX, Ref, number_of
from hoplite.values import OPS, Encoded, check_dtype
from hoplite.values.kinds import BYTES, PLAIN, item_bytes

# 30 years. Longer than that is "for ever", and would overflow a clock.
TIMEOUT_S_MAX = 1e9

_NUMBERS = (float, int)

# Replicas of one object; no cluster has as many nodes.
REPLICAS_MAX = 2**31

# An object that is to live longer is to live until it is deleted: 30 years.
TTL_S_MAX = 1e9

# Axes of an array, as NumPy has them.
AXES_MAX = 64


def check_timeout(timeout: float | None) -> float | None:
    """Reads a timeout in seconds; 0 means "only if it is there already", None and infinity "no limit"."""
    if timeout is None:
        return None
    # To ask whether something is a SupportsFloat takes as long as a put.
    is_number = type(timeout) in _NUMBERS
    if not is_number and (isinstance(timeout, bool) or not isinstance(timeout, SupportsFloat)):
        raise InvalidArgument(f"timeout is a number of seconds or None, not {a_type(timeout)}")
    try:
        seconds = float(timeout)
    except OverflowError:
        # A whole number that no float can be.
        seconds = math.inf if timeout > 0 else -math.inf
    except (TypeError, ValueError):
        raise InvalidArgument(f"timeout is a number of seconds or None, not {a_type(timeout)}") from None
    if math.isnan(seconds):
        raise InvalidArgument("timeout is NaN; it is a number of seconds or None")
    if seconds < 0:
        raise InvalidArgument(f"timeout is negative ({seconds:g} s); 0 asks without waiting, None waits without limit")
    return seconds if seconds < TIMEOUT_S_MAX else None


def check_ref(ref: Ref | str) -> str:
    """Reads one ref."""
    if isinstance(ref, Ref):
        return str(ref)
    if not isinstance(ref, str):
        advice = "" if isinstance(ref, int | os.PathLike) else "; put a value first, and take the ref that put returns"
        raise InvalidArgument(f"expected a ref, or a name as text, got {a_type(ref)}{advice}")
    if not ref:
        raise InvalidArgument("the name is empty")
    if not ref.isascii():
        try:
            ref.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the name {ref!r} is not Unicode text: {error.reason}") from None
    return ref


def check_refs(refs: Ref | str | Iterable[Ref | str]) -> list[str]:
    """Reads one ref or several; a text alone is one name, not its letters."""
    if isinstance(refs, Ref | str):
        return [check_ref(refs)]
    if not isinstance(refs, Iterable):
        raise InvalidArgument(f"expected refs, got {a_type(refs)}")
    return [check_ref(ref) for ref in refs]


def check_inputs(refs: Iterable[Ref | str]) -> list[str]:
    """Reads the inputs of a reduce: at least one, each once."""
    if isinstance(refs, Ref | str):
        raise InvalidArgument(f"a reduce takes a list of refs, not a single one; write [{str(refs)!r}]")
    inputs = check_refs(refs)
    if not inputs:
        raise InvalidArgument("a reduce needs at least one input; the list of refs is empty")
    if len(set(inputs)) < len(inputs):
        twice = next(ref for place, ref in enumerate(inputs) if ref in inputs[:place])
        raise InvalidArgument(f"{twice} is among the inputs twice; a reduce folds each input once")
    return inputs


def check_list(what: str, refs: Iterable[Ref | str]) -> list[str]:
    """Reads several refs; a single one is a mistake that would read as its letters."""
    if isinstance(refs, Ref | str):
        raise InvalidArgument(f"expected a list of {what}, got a single one; write [{str(refs)!r}]")
    if isinstance(refs, Mapping):
        raise InvalidArgument(f"expected a list of {what}, got a mapping: are its keys meant, or its values?")
    return check_refs(refs)


def check_outs(out: object, refs: int) -> list[object] | None:
    """Reads where several objects are to be copied: one value for each."""
    if out is None:
        return None
    if not isinstance(out, list | tuple):
        raise InvalidArgument(f"with several refs, out is a list with one value for each, not {a_type(out)}")
    if len(out) != refs:
        raise InvalidArgument(f"out has {len(out)} values for {refs} refs")
    return list(out)


def check_shape(shape: object, dtype: object) -> Encoded:
    """Reads what an array to be created is."""
    kind = check_dtype(dtype)
    try:
        axes = (operator.index(shape),) if isinstance(shape, SupportsIndex) else tuple(map(operator.index, shape))  # type: ignore[call-overload]
    except TypeError:
        raise InvalidArgument(f"shape is a whole number or several, not {shape!r}") from None
    if len(axes) > AXES_MAX or max(axes, default=0) > NUMBER_MAX:
        raise InvalidArgument(f"a shape of {len(axes)} axes: at most {AXES_MAX}, none longer than {NUMBER_MAX}")
    if min(axes, default=0) < 0:
        raise InvalidArgument(f"the shape {axes} has a negative axis")
    if kind == BYTES and len(axes) != 1:
        raise InvalidArgument(f"the shape of bytes is their number, not {axes}")
    nbytes = math.prod(axes) * (item_bytes(kind) or 1)
    if nbytes > NUMBER_MAX:
        raise InvalidArgument(f"an array of shape {axes} would have {nbytes} bytes")
    return Encoded(kind, axes, PLAIN, nbytes, ())


def left(limit: float | None, begun: float) -> float | None:
    """What is left of a timeout that has run since a moment of the monotonic clock; seconds, None for no limit."""
    return None if limit is None else max(0.0, limit - (time.monotonic() - begun))


def _whole(what: str, value: SupportsIndex, more: str = "") -> int:
    """Reads a whole number; `more` is what else it could be."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what} is a whole number{more}, not {a_type(value)}") from None


def check_retain(retain: SupportsIndex | None, name: str | None) -> int | None:
    """Checks how many versions of a name are to be retained."""
    if retain is None:
        return None
    number = _whole("retain", retain, " or None")
    if not 1 <= number <= NUMBER_MAX:
        raise InvalidArgument(f"retain is {number}, and it counts the object itself: set at least 1")
    if name is None or number_of(name) is None:
        given = "this put has no name" if name is None else f"{name!r} does not end in one"
        raise InvalidArgument(f'retain needs a name that ends in "/" and a number, and {given}: write name="policy/17"')
    return number


def check_replicas(replicas: SupportsIndex) -> int:
    """Checks how many nodes are to hold an object."""
    number = _whole("replicas", replicas)
    if not 1 <= number <= REPLICAS_MAX:
        raise InvalidArgument(f"replicas is {number}, and it counts the object itself: set 1 to {REPLICAS_MAX}")
    return number


def check_ttl(ttl: float | None) -> float | None:
    """Reads for how many seconds an object is to live; None means until it is deleted."""
    if ttl is None:
        return None
    if isinstance(ttl, bool | str) or not isinstance(ttl, SupportsFloat):
        raise InvalidArgument(f"ttl is a number of seconds or None, not {a_type(ttl)}")
    try:
        seconds = float(ttl)
    except (OverflowError, TypeError, ValueError):
        raise InvalidArgument(f"ttl is {ttl!r}; it is a number of seconds or None") from None
    # Not a number is not above 0 either.
    if not 0 < seconds <= TTL_S_MAX:
        raise InvalidArgument(
            f"ttl is {seconds:g} s; an object lives for more than 0 and at most {TTL_S_MAX:g} s, or with None until it "
            "is deleted"
        )
    # The node counts nanoseconds.
    return max(seconds, 1e-9)


def check_job(job: str | None) -> str | None:
    """Reads what a job is called: as an object may be."""
    if job is None:
        return None
    text = check_text("job", job)
    if text.startswith("@"):
        raise InvalidArgument(f"the job {text!r} begins with @, which marks refs")
    _native.check_name(text)
    return text


def check_op(op: str) -> str:
    """Reads the name of an operation."""
    if op not in OPS:
        raise UnknownOp(f"unknown op {op!r}: a reduce knows {', '.join(OPS[:-1])} and {OPS[-1]}")
    return op


def check_count(count: SupportsIndex | None, inputs: int, *, least: int = 1) -> int | None:
    """Reads how many of so many are meant; None means all."""
    if count is None:
        return None
    number = _whole("count", count, " or None")
    if not least <= number <= inputs:
        raise InvalidArgument(f"count is {number}; of {inputs} refs it must be from {least} to {inputs}")
    return number


def check_limit(limit: SupportsIndex | None) -> int | None:
    """Checks a maximum number of rows; None means all."""
    if limit is None:
        return None
    number = _whole("limit", limit, " or None")
    if number < 1:
        raise InvalidArgument(f"limit is {number}: set at least 1, or None for all")
    return number


def check_after(after: SupportsIndex | None) -> int:
    """Reads the number that a name's must exceed; None and -1 mean any."""
    if after is None:
        return -1
    number = _whole("after", after, " or None")
    if not -1 <= number <= NUMBER_MAX:
        raise InvalidArgument(f"after is {number}; numbers go from 0 to {NUMBER_MAX}, None takes any")
    return number


def check_text(what: str, value: str | os.PathLike[str]) -> str:
    """Reads an address, a cluster name or a path: text that is not empty."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} is text, not {a_type(text)}")
    if not text:
        raise InvalidArgument(f"{what} is empty")
    return text


def a_type(value: object) -> str:
    """The type of a value with its article: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
