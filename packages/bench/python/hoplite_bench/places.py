"""Where this package and the library lie, for programs on other hosts that are to import the same ones."""

from __future__ import annotations

import os
from pathlib import Path

import hoplite


def python_path() -> str:
    """The folders that this process has imported both from, as PYTHONPATH takes them."""
    folders = (str(Path(file).parents[1]) for file in (__file__, hoplite.__file__))
    return os.pathsep.join(dict.fromkeys(folders))
