"""Checks of arguments that do not depend on the state of the cluster. Their results are what the extension accepts.

The extension checks again what it must not trust. The checks here come first because their messages can quote the
caller's value.
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

# 30 years. A longer timeout counts as none; it would overflow a clock.
TIMEOUT_S_MAX = 1e9

_NUMBERS = (float, int)

# Maximum of `replicas`; no cluster has as many nodes.
REPLICAS_MAX = 2**31

# Maximum number of slots of one call.
SLOTS_MAX = 65_536

# 30 years.
TTL_S_MAX = 1e9

# Maximum number of axes of an array, as in NumPy.
AXES_MAX = 64


def check_timeout(timeout: float | None) -> float | None:
    """Checks a timeout in seconds. 0 does not wait; None and infinity mean no limit."""
    if timeout is None:
        return None
    # isinstance with SupportsFloat takes as long as a put.
    is_number = type(timeout) in _NUMBERS
    if not is_number and (isinstance(timeout, bool) or not isinstance(timeout, SupportsFloat)):
        raise InvalidArgument(f"timeout must be a number of seconds or None, not {a_type(timeout)}")
    try:
        seconds = float(timeout)
    except OverflowError:
        # An integer that exceeds the range of float.
        seconds = math.inf if timeout > 0 else -math.inf
    except (TypeError, ValueError):
        raise InvalidArgument(f"timeout must be a number of seconds or None, not {a_type(timeout)}") from None
    if math.isnan(seconds):
        raise InvalidArgument("timeout is NaN: set a number of seconds, or None for no limit")
    if seconds < 0:
        raise InvalidArgument(f"timeout is negative ({seconds:g} s): set 0 to not wait, or None for no limit")
    return seconds if seconds < TIMEOUT_S_MAX else None


def check_default_timeout(seconds: float | None) -> float | None:
    """Checks the argument `default_timeout`; None means that it was not passed."""
    try:
        check_timeout(seconds)
    except InvalidArgument as error:
        raise InvalidArgument(f"default_timeout is not valid: {error}") from None
    return seconds


def check_ref(ref: Ref | str) -> str:
    """Checks one ref and returns its text."""
    if isinstance(ref, Ref):
        return str(ref)
    if not isinstance(ref, str):
        advice = (
            "" if isinstance(ref, int | os.PathLike) else ": put the value first, and pass the ref that put returns"
        )
        raise InvalidArgument(f"expected a ref or a name, got {a_type(ref)}{advice}")
    if not ref:
        raise InvalidArgument("the name is empty: use at least one character")
    if not ref.isascii():
        try:
            ref.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"the name {ref!r} can't be encoded as UTF-8 ({error.reason}): use valid Unicode"
            ) from None
    return ref


def check_refs(refs: Ref | str | Iterable[Ref | str]) -> list[str]:
    """Checks one ref or several. A single str is one name, not a sequence of letters."""
    if isinstance(refs, Ref | str):
        return [check_ref(refs)]
    if not isinstance(refs, Iterable):
        raise InvalidArgument(f"expected a ref or a list of refs, got {a_type(refs)}")
    return [check_ref(ref) for ref in refs]


def check_inputs(refs: Iterable[Ref | str]) -> list[str]:
    """Checks the inputs of a reduce: at least one, each listed once."""
    if isinstance(refs, Ref | str):
        raise InvalidArgument(f"a reduce takes a list of refs, not a single ref: write [{str(refs)!r}]")
    inputs = check_refs(refs)
    if not inputs:
        raise InvalidArgument("the list of inputs is empty: a reduce needs at least one")
    if len(set(inputs)) < len(inputs):
        twice = next(ref for index, ref in enumerate(inputs) if ref in inputs[:index])
        raise InvalidArgument(f"{twice} is listed twice in the inputs: list each input once")
    return inputs


def check_list(what: str, refs: Iterable[Ref | str]) -> list[str]:
    """Checks a list of refs. A single str is an error: it would be read as a sequence of letters."""
    if isinstance(refs, Ref | str):
        raise InvalidArgument(f"expected a list of {what}, got a single ref: write [{str(refs)!r}]")
    if isinstance(refs, Mapping):
        raise InvalidArgument(f"expected a list of {what}, got a mapping: pass its keys or its values as a list")
    return check_refs(refs)


def check_outs(out: object, refs: int) -> list[object] | None:
    """Checks the `out` of a `get` of several objects: one value for each."""
    if out is None:
        return None
    if not isinstance(out, list | tuple):
        raise InvalidArgument(f"with several refs, out must be a list with one value for each, not {a_type(out)}")
    if len(out) != refs:
        raise InvalidArgument(f"out has {len(out)} values for {refs} refs: pass one for each")
    return list(out)


def check_shape(shape: object, dtype: object) -> Encoded:
    """Checks the shape and dtype of an array to create."""
    kind = check_dtype(dtype)
    try:
        axes = (operator.index(shape),) if isinstance(shape, SupportsIndex) else tuple(map(operator.index, shape))  # type: ignore[call-overload]
    except TypeError:
        raise InvalidArgument(f"shape must be an integer or a sequence of integers, not {shape!r}") from None
    if len(axes) > AXES_MAX or max(axes, default=0) > NUMBER_MAX:
        raise InvalidArgument(
            f"the shape has {len(axes)} axes, the longest of length {max(axes)}: use at most {AXES_MAX} axes, each of "
            f"length {NUMBER_MAX} or less"
        )
    if min(axes, default=0) < 0:
        raise InvalidArgument(f"the shape {axes} has a negative axis: use lengths from 0 up")
    if kind == BYTES and len(axes) != 1:
        raise InvalidArgument(f"bytes can't have the shape {axes}: pass one integer, the number of bytes")
    nbytes = math.prod(axes) * (item_bytes(kind) or 1)
    if nbytes > NUMBER_MAX:
        raise InvalidArgument(f"an array of shape {axes} has {nbytes} bytes: create at most {NUMBER_MAX}")
    return Encoded(kind, axes, PLAIN, nbytes, ())


def left(limit: float | None, begun: float) -> float | None:
    """Returns the rest of a timeout that began at a time of the monotonic clock, in seconds; None for no limit."""
    return None if limit is None else max(0.0, limit - (time.monotonic() - begun))


def _whole(what: str, value: SupportsIndex, more: str = "") -> int:
    """Checks an integer; `more` names the alternatives in the error."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what} must be an integer{more}, not {a_type(value)}") from None


def check_retain(retain: SupportsIndex | None, name: str | None) -> int | None:
    """Checks the number of versions to retain."""
    if retain is None:
        return None
    number = _whole("retain", retain, " or None")
    if not 1 <= number <= NUMBER_MAX:
        raise InvalidArgument(f"retain is {number}, and it counts the new object: set 1 to {NUMBER_MAX}")
    if name is None or number_of(name) is None:
        given = "this put has no name" if name is None else f"{name!r} does not"
        raise InvalidArgument(f'retain needs a name that ends in "/" and a number, and {given}: write name="policy/17"')
    return number


def check_replicas(replicas: SupportsIndex) -> int:
    """Checks the number of nodes that keep a copy."""
    number = _whole("replicas", replicas)
    if not 1 <= number <= REPLICAS_MAX:
        raise InvalidArgument(f"replicas is {number}, but the count includes the first copy: set 1 to {REPLICAS_MAX}")
    return number


def check_ttl(ttl: float | None) -> float | None:
    """Checks a time to live in seconds; None means no limit."""
    if ttl is None:
        return None
    if isinstance(ttl, bool | str) or not isinstance(ttl, SupportsFloat):
        raise InvalidArgument(f"ttl must be a number of seconds or None, not {a_type(ttl)}")
    try:
        seconds = float(ttl)
    except (OverflowError, TypeError, ValueError):
        raise InvalidArgument(f"ttl is {ttl!r}: set a number of seconds or None") from None
    # False for NaN too.
    if not 0 < seconds <= TTL_S_MAX:
        raise InvalidArgument(
            f"ttl is {seconds:g} s: set more than 0 and at most {TTL_S_MAX:g} s, or None to keep the object until it "
            "is deleted"
        )
    # The node counts nanoseconds.
    return max(seconds, 1e-9)


def check_job(job: str | None) -> str | None:
    """Checks the name of a job. It follows the rules of object names."""
    if job is None:
        return None
    text = check_text("job", job)
    if text.startswith("@"):
        raise InvalidArgument(f"the job name {text!r} starts with @, which is reserved for ids: use another name")
    _native.check_name(text)
    return text


def check_op(op: str) -> str:
    """Checks the name of an operation."""
    if op not in OPS:
        raise UnknownOp(f"unknown op {op!r}: use {', '.join(OPS[:-1])} or {OPS[-1]}")
    return op


def check_count(count: SupportsIndex | None, inputs: int, *, least: int = 1) -> int | None:
    """Checks `count`, which is at most the number of inputs; None means all."""
    if count is None:
        return None
    number = _whole("count", count, " or None")
    if not least <= number <= inputs:
        raise InvalidArgument(f"count is {number}: for {inputs} refs, set {least} to {inputs}")
    return number


def check_slots(count: SupportsIndex) -> int:
    """Checks the number of slots of one call."""
    number = _whole("count", count)
    if not 0 <= number <= SLOTS_MAX:
        raise InvalidArgument(f"count is {number}: make 0 to {SLOTS_MAX} slots with one call")
    return number


def check_part(part: slice) -> tuple[int | None, int | None]:
    """Checks a slice of rows or bytes; returns its bounds."""
    if not isinstance(part, slice):
        raise InvalidArgument(f"part must be a slice, not {a_type(part)}: write slice(0, 1000)")
    if part.step is not None and _whole("the step of part", part.step) != 1:
        raise InvalidArgument(f"part has a step of {part.step}: use step 1, and slice the result")
    return _bound("start", part.start), _bound("stop", part.stop)


def _bound(what: str, bound: SupportsIndex | None) -> int | None:
    if bound is None:
        return None
    # No object is longer, so the result of the slice is the same.
    return max(-NUMBER_MAX, min(_whole(f"the {what} of part", bound, " or None"), NUMBER_MAX))


def check_prefix(prefix: Ref | str) -> str:
    """Checks the start of refs to list; an empty one lists all."""
    return "" if isinstance(prefix, str) and not prefix else check_ref(prefix)


def check_limit(limit: SupportsIndex | None) -> int | None:
    """Checks a maximum number of rows; None means all."""
    if limit is None:
        return None
    number = _whole("limit", limit, " or None")
    if number < 1:
        raise InvalidArgument(f"limit is {number}: set at least 1, or None for all")
    return number


def check_after(after: SupportsIndex | None) -> int:
    """Checks the number that a version must exceed; None and -1 mean any version."""
    if after is None:
        return -1
    number = _whole("after", after, " or None")
    if not -1 <= number <= NUMBER_MAX:
        raise InvalidArgument(f"after is {number}: set 0 to {NUMBER_MAX}, or None for any version")
    return number


def check_text(what: str, value: str | os.PathLike[str]) -> str:
    """Checks an address, a cluster name or a path: text that is not empty."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be a string, not {a_type(text)}")
    if not text:
        raise InvalidArgument(f"{what} is empty")
    return text


def a_type(value: object) -> str:
    """Returns the type of a value with its article, such as "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
