"""Commands in other packages, found by entry points and imported on use.

A package with the command `NAME` has the entry point `NAME`, a click command, in the group `hoplite.commands`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from hoplite import __version__
from hoplite.extras import install_package

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hoplite.commands"


class Unusable(click.UsageError):
    """The package of a command is not installed, or has another version than this library.

    Args:
        message: what is wrong.
        step: what to try next.
    """

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step


class Elsewhere(click.Command):
    """Placeholder for a command of another package.

    Args:
        name: name of the command.
        package: the package that contains it.
        text: its help text, in one line.
    """

    def __init__(self, name: str, package: str, text: str) -> None:
        super().__init__(name, help=text, add_help_option=False)
        self.package = package

    def get_short_help_str(self, limit: int = 45) -> str:
        """Returns the help text for the list of commands."""
        text = super().get_short_help_str(limit)
        return text if self._entry() is not None else f"Not installed: in the package {self.package}"

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - as click has them
    ) -> click.Context:
        """Delegates to the command. Completion offers nothing if its package is not installed."""
        if extra.get("resilient_parsing") and self._entry() is None:
            return click.Context(self, parent, info_name, **extra)
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> click.Command:
        """Imports and returns the command.

        Raises:
            Unusable: its package is not installed, or has another version.
        """
        entry = self._entry()
        if entry is None:
            message = f"hoplite {self.name} is in the package {self.package}, which is not installed"
            raise Unusable(message, install_package(self.package))
        step = install_package(self.package)
        there = entry.dist.version if entry.dist is not None else __version__
        if there != __version__:
            raise Unusable(f"{self.package} {there} does not match hoplite-collectives {__version__}", step)
        try:
            command: click.Command = entry.load()
        except ImportError as error:
            raise Unusable(f"{self.package} can't be imported: {error}", step) from None
        return command

    def _entry(self) -> EntryPoint | None:
        return _entries().get(str(self.name))


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    # Imports csv, email and zipfile, which other commands do not need.
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}


COMMANDS = (
    Elsewhere("bench", "hoplite-bench", "Compare Hoplite with Open MPI, MPICH, Gloo, Ray and Dask."),
    Elsewhere("lab", "hoplite-bench", "Emulate hosts and links of a given rate in network namespaces."),
    Elsewhere("select", "hoplite-bench", "Choose the fastest library for each operation here."),
    Elsewhere("study", "hoplite-bench", "Compare collective libraries in container set-ups."),
    Elsewhere("topology", "hoplite-topology", "Measure the network and find a fast order of ranks."),
)
