"""The command that installs what a part of Hoplite lacks, for its error message.

The requirements of an extra are those in the metadata of the installed distribution, so the command is valid for this
version, and needs no release of Hoplite in an index.
"""

from __future__ import annotations

from pathlib import Path

CORE = "hoplite-collectives"


def install(extra: str, distribution: str = CORE) -> str:
    """Returns the command that installs the requirements of an extra, such as "pip install 'textual>=8'"."""
    # Imports csv, email and zipfile, which most programs do not need.
    from importlib.metadata import requires

    needs = [need.partition(";") for need in requires(distribution) or ()]
    names = [name.strip() for name, _, marker in needs if marker.replace('"', "'").endswith(f"extra == '{extra}'")]
    return " ".join(["pip install", *(f"'{name}'" for name in names)])


def install_package(name: str) -> str:
    """Returns the command that installs another package of Hoplite: from the clone of this library, if there is one."""
    from importlib.metadata import version

    folder = Path(__file__).parents[2] / "packages" / name.removeprefix("hoplite-")
    return f"pip install {folder if folder.is_dir() else f'{name}=={version(CORE)}'}"
