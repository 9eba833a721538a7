"""Runs a node of Ray until it ends, and starts it only when no other of its turn is starting on this machine.

A node is three programs in Python and two others. Ray gives them 15 seconds, which eight hosts of a lab on two cores
need for all of them together; then it calls it a bug and dies.
"""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
from pathlib import Path

STARTED = "Ray runtime started."


def main() -> int:
    """Returns the exit code of the node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turn", type=Path, help="a file, which all that take turns have in common")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of `ray start`, after --")
    options = parser.parse_args()
    # Not the script `ray`: its first line is the path of its interpreter, which may be too long for the kernel.
    command = [sys.executable, "-u", "-m", "ray.scripts.scripts", "start", "--block", *options.options[1:]]
    if options.turn is None:
        return subprocess.call(command)
    options.turn.parent.mkdir(parents=True, exist_ok=True)
    with options.turn.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            if STARTED in line:
                break
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
