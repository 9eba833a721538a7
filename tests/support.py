"""Helpers for tests of several verbs: values whose sums are exact, and bounded waits."""

from __future__ import annotations

import functools
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import ml_dtypes
import numpy as np
import pytest

from hoplite.values import DTYPES, NARROW_DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from hoplite import Client

Array = np.ndarray[Any, Any]

P = ParamSpec("P")
T = TypeVar("T")

# Dtypes of NumPy arrays: all but one that only torch has, and a few that old versions of ml_dtypes lack.
ARRAY_DTYPES = tuple(dtype for dtype in DTYPES if dtype not in NARROW_DTYPES or hasattr(ml_dtypes, dtype))

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = tuple(dtype for dtype in DTYPES if "int" in dtype and dtype not in NARROW_DTYPES)

# The reduce operations of each dtype.
OPS = {
    **dict.fromkeys(FLOATS, ("sum", "min", "max", "prod", "mean")),
    **dict.fromkeys(INTEGERS, ("sum", "min", "max", "prod")),
    **dict.fromkeys(("complex64", "complex128"), ("sum", "prod", "mean")),
    "bool": ("any", "all"),
    "datetime64": ("min", "max"),
    "timedelta64": ("sum", "min", "max"),
    **dict.fromkeys(NARROW_DTYPES, ()),
}

# Timeout of everything that can hang: long enough for a busy machine, shorter than a test's own limit. It is not a
# performance assertion.
SOON = 30.0


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns a dtype by its name, including those of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


def numbers(shape: int | tuple[int, ...], dtype: str = "float32", *, seed: int = 0) -> Array:
    """Returns whole numbers from 0 to 3: sums and products of a few are exact in every dtype that has them.

    Elements of narrow dtypes have two bit patterns, which are not NaN.
    """
    few = np.random.default_rng(seed).integers(0, 4, shape, np.uint8)
    if dtype in NARROW_DTYPES:
        # An operation on a 0-d array returns a scalar.
        return np.asarray(few & 1).view(numpy_dtype(dtype))
    return few.astype(np.int64).astype(numpy_dtype(dtype)) if "time" in dtype else few.astype(numpy_dtype(dtype))


def fold(op: str, arrays: Sequence[Array]) -> Array:
    """Returns the expected result of a reduce, folded in order."""
    operations = {
        "min": np.minimum,
        "max": np.maximum,
        "prod": np.multiply,
        "any": np.logical_or,
        "all": np.logical_and,
    }
    total: Array = functools.reduce(operations.get(op, np.add), arrays)
    return (total / len(arrays)).astype(total.dtype) if op == "mean" else total


def same(got: Array, expected: Array) -> None:
    """Asserts that two arrays agree in dtype, shape and every element."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert np.array_equal(got, expected)


class Later(Generic[T]):
    """A call in its own thread. `result` waits for it and raises its error."""

    def __init__(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> None:
        self._call = functools.partial(call, *args, **options)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._error = error

    def done(self, within: float = 0.0) -> bool:
        """Returns whether the call has ended, after waiting at most `within` seconds."""
        self._thread.join(within)
        return not self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """The error of the call, if it has ended with one."""
        return self._error

    def result(self, within: float = SOON) -> T:
        """Returns the result of the call."""
        if not self.done(within):
            raise AssertionError(f"the call has not ended after {within} s")
        if self._error is not None:
            raise self._error
        return self._value


def bounded(seconds: float) -> pytest.MarkDecorator:
    """Parametrizes a test of a documented upper bound in seconds, its argument `within`.

    The bound is infinite in `make test`, whose result does not depend on load, and `seconds` in `make test-long`.
    """
    cases = [math.inf, pytest.param(seconds, marks=pytest.mark.long)]
    return pytest.mark.parametrize("within", cases, ids=["unbounded", f"{seconds:g} s"])


def eventually(what: Callable[[], bool]) -> None:
    """Polls a condition until it is true. Use it only where no call can be waited for."""
    deadline = time.monotonic() + SOON
    while not what():
        assert time.monotonic() < deadline, f"not so after {SOON} s"
        time.sleep(0.01)


def eventually_empty(client: Client) -> None:
    """Waits until a node holds no copies."""
    eventually(lambda: client.objects() == [])


class Watching:
    """Calls `look` in a thread while the context is entered. `look` repeats its check until `is_over` is set."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self.look)

    def look(self) -> None:
        """Runs in the thread."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._thread.join()
