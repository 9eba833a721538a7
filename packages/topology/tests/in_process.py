"""Runs the `hoplite` command in this process: starting Python for each would take most of the time.

`run` of `commands` does the same in a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings

import pytest

from hoplite.tools import cli


def run(*arguments: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that prints text. If it fails, checks that its last line suggests a fix (`try: `).

    Args:
        arguments: arguments of the command.
        code: expected exit status.
        environment: variables to add to this process's environment.
    """
    words = list(map(str, arguments))
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        patch.setattr(sys, "argv", ["hoplite", *words])
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == code, err.getvalue()
    if code:
        assert err.getvalue().splitlines()[-1].startswith("try: "), err.getvalue()
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
