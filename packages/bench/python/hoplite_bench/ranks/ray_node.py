"""Runs a node of Ray until it ends, and starts it only when no other node with the same lock is starting.

A node consists of three Python programs and two others. Ray allows 15 seconds for their start, but on two cores, eight
hosts of a lab together need that long; then Ray reports a bug and exits.
"""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
from pathlib import Path

STARTED = "Ray runtime started."


def main() -> int:
    """Returns the exit status of the node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turn", type=Path, help="lock file, shared by the nodes that must not start at the same time")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of `ray start`, after --")
    options = parser.parse_args()
    # Not the script `ray`: its first line has the path of its interpreter, which may be too long for the kernel.
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
