"""What SGLang imports and the tests of its weight updates do not use: triton, of 1 GB, and IPython. Import it first.

They are stubs for this process. Decorators of theirs return what they decorate, and classes of theirs have no content.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Looks for triton, whose stub would be none that it could use.
import torch._inductor.config  # noqa: F401

STUBS = ("triton", "IPython")


class Value:
    """Anything of a stub: called, it returns what it decorates."""

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else Value()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Value()


class Stub(ModuleType):
    """A module that has every name."""

    __version__ = "0"
    __path__: list[str] = []  # noqa: RUF012 - as of a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper() or name in ("constexpr", "dtype"):
            return type(name, (), {"__init__": lambda *_, **__: None})
        return Value()


class Finder:
    """Finds the stubs."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in STUBS else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Stub:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Has nothing to run."""


sys.meta_path.insert(0, Finder())
