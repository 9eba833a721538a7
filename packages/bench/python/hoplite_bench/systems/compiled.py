"""Compiles the programs of systems in C++, once for each state of their sources and of the library."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hoplite_bench.systems.base import RANKS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hoplite_bench.environments import Environments

# Headers of all these programs.
SHARED = (RANKS / "rank.hpp", RANKS / "lines.hpp")


def compiled(
    environments: Environments,
    compiler: Sequence[str],
    sources: Sequence[Path],
    libraries: Sequence[str],
    *,
    library: str,
    advice: str,
) -> Path:
    """Returns the program of these sources; compiles it unless that was done before.

    Args:
        environments: the folder of programs.
        compiler: the command with its options.
        sources: the first is compiled and includes the others.
        libraries: the options after the source.
        library: version of the library; with another one, the program is compiled again.
        advice: how to install what compilation needs, for the error.

    Raises:
        Unavailable: compilation fails.
    """
    made_of = hashlib.sha256(repr((library, *compiler, *libraries)).encode())
    for source in sources:
        made_of.update(source.read_bytes())
    name = sources[0].stem
    program = environments.root / f"{name}-{made_of.hexdigest()[:16]}"
    with environments.lock(name):
        if not program.exists():
            made = program.with_suffix(".new")
            environments.command(
                [*compiler, "-o", made, sources[0], *libraries], f"can't compile {sources[0].name} ({advice})"
            )
            made.rename(program)
    return program
