"""Commands that other packages bring, each found by its entry point and loaded only when it is used.

A package that brings `NAME` has the entry point `NAME` in the group `hoplite.commands`, which leads to a click command.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from hoplite import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hoplite.commands"


class Unusable(click.UsageError):
    """The package of a command is not installed, or does not fit this library.

    Args:
        said: which, and why.
        step: what to try next.
    """

    def __init__(self, said: str, step: str) -> None:
        super().__init__(said)
        self.step = step


class Elsewhere(click.Command):
    """Stands for the command of another package until that is used.

    Args:
        name: of the command.
        package: what brings it.
        text: what it does, in a line, as the command itself says it.
    """

    def __init__(self, name: str, package: str, text: str) -> None:
        super().__init__(name, help=text, add_help_option=False)
        self.package = package

    def get_short_help_str(self, limit: int = 45) -> str:
        """What the list of commands says."""
        text = super().get_short_help_str(limit)
        return text if self._entry() is not None else f"Not installed: pip install {self.package}"

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - as click has them
    ) -> click.Context:
        """Hands over to the command; a shell that completes is told nothing where that is not installed."""
        if extra.get("resilient_parsing") and self._entry() is None:
            return click.Context(self, parent, info_name, **extra)
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> click.Command:
        """The command.

        Raises:
            Unusable: its package is not there, or is one of another version.
        """
        entry = self._entry()
        if entry is None:
            said = f"hoplite {self.name} is in the package {self.package}, which is not installed"
            raise Unusable(said, f"pip install {self.package}")
        step = f"pip install {self.package}=={__version__}"
        there = entry.dist.version if entry.dist is not None else __version__
        if there != __version__:
            raise Unusable(f"{self.package} {there} does not fit hoplite-collectives {__version__}", step)
        try:
            command: click.Command = entry.load()
        except ImportError as error:
            raise Unusable(f"{self.package} can't be imported: {error}", step) from None
        return command

    def _entry(self) -> EntryPoint | None:
        return _entries().get(str(self.name))


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    # Brings csv, email and zipfile, which other commands do without.
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


COMMANDS = (
    Elsewhere(
        "bench",
        "hoplite-bench",
        "Measure Hoplite, Open MPI, MPICH, Gloo, Ray and Dask side by side; every answer is verified.",
    ),
    Elsewhere("lab", "hoplite-bench", "Hosts to play with: network namespaces with links of a given rate."),
    Elsewhere(
        "topology", "hoplite-topology", "Give ranks to machines such that those that exchange most are near each other."
    ),
)
