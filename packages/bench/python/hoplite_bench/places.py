"""The import paths of this package and the library, for programs on other hosts that must import the same ones."""

from __future__ import annotations

import os
from pathlib import Path

import hoplite


def python_path() -> str:
    """The folders from which this process imported both, in the format of PYTHONPATH."""
    folders = (str(Path(file).parents[1]) for file in (__file__, hoplite.__file__))
    return os.pathsep.join(dict.fromkeys(folders))
