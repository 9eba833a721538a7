"""Hoplite in C++: the same calls as in Python, by a small program of this package, compiled against libhoplite."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import hoplite
from hoplite_bench.systems.base import COLLECTIVES, RANKS, Unavailable, Variant
from hoplite_bench.systems.compiled import SHARED, compiled
from hoplite_bench.systems.hoplite import PLAIN, Hoplite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.environments import Environments

COMPILE = ("g++", "-std=c++20", "-O2")
CHECKOUT = Path(hoplite.__file__).parents[2]


class HopliteCpp(Hoplite):
    """One node for each address of a host, embedded in the first native worker there."""

    name = "hoplite-cpp"
    port = 17425

    def __init__(self) -> None:
        super().__init__()
        self.program: Path | None = None

    def prepare(self, environments: Environments) -> None:
        """Compiles the worker.

        Raises:
            Unavailable: the library or a compiler is missing, or compilation fails.
        """
        self.program = compiled_program(environments, "hoplite_rank.cpp")

    def variants(self, op: str) -> list[Variant]:
        """The default, and without encryption on request. A native node reads no topology file."""
        return [one for one in super().variants(op) if one.name in ("default", PLAIN)] if op in COLLECTIVES else []

    def command(self) -> Sequence[str | Path]:
        """The native worker."""
        assert self.program is not None, "start was called before prepare"
        return [self.program]


def compiled_program(environments: Environments, source: str) -> Path:
    """Compiles a program of `ranks/` against the library of this host.

    Raises:
        Unavailable: the library or a compiler is missing, or compilation fails.
    """
    include, library = found()
    headers = [*sorted((include / "hoplite").rglob("*.hpp")), include / "hoplite" / "hoplite.h"]
    return compiled(
        environments,
        [*COMPILE, f"-I{include}"],
        [RANKS / source, *SHARED, *headers],
        [f"-L{library}", f"-Wl,-rpath,{library}", "-lhoplite", "-pthread"],
        library=str(library),
        advice="install a compiler with `apt-get install g++`",
    )


def found() -> tuple[Path, Path]:
    """The folders of the headers and of the library: the installed ones, else those of this checkout.

    Raises:
        Unavailable: there are none.
    """
    installed = [pkg_config(f"--variable={name}") for name in ("includedir", "libdir")]
    if all(installed):
        return Path(installed[0]), Path(installed[1])
    include, library = CHECKOUT / "packages" / "native" / "include", CHECKOUT / "target" / "native"
    if (library / "libhoplite.so").exists() and (include / "hoplite" / "hoplite.hpp").exists():
        return include, library
    raise Unavailable(
        f"libhoplite is missing: pkg-config does not find hoplite, and {library} has no libhoplite.so; build it in a "
        "checkout with `make native`, or install it with `make install PREFIX=...`"
    )


def pkg_config(*options: str) -> str:
    """The output of pkg-config for the library; empty if either is missing."""
    try:
        done = subprocess.run(
            ["pkg-config", *options, "hoplite"], check=True, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
