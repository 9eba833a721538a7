"""Formats the rows of a fault matrix as a Markdown table: `python -m faults.table ROWS.jsonl`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from faults.cells import FAULTS, NBYTES, NOTHING, PLACES, PROGRESS

HEAD = """# Fault matrix

After this page you know how much longer a broadcast, a reduce or an allreduce takes if a host fails at a given moment.

    make fault-matrix

This runs 8 hosts of a lab with objects of 64 MiB, links of 1 Gbit/s and a detection timeout of 3 s. Each cell is one
run. The fault is injected when the link of the observed receiver has carried the given share of an object; a share in
parentheses is the actual one, if it differs. Every byte of the results is verified.

- **A number** is the time added to the undisturbed operation, in seconds, until the last caller has its result.
- **lost**: the object existed nowhere else. The number is the time from the fault until the last caller has its
  error.
- **Bold**: more than the target. The target is the detection time (3 s, 0.05 s for a killed process) plus 0.3 s for a
  broadcast, one transfer (0.56 s) and 0.5 s for a reduce, two transfers and 0.5 s for an allreduce, or 1 s for a lost
  object. Without a fault, it is 0.3 s."""


def table(rows: list[dict[str, Any]]) -> str:
    """Formats rows as `faults.matrix` writes them."""
    by_place: dict[tuple[str, str, str], dict[float, str]] = defaultdict(dict)
    for row in rows:
        by_place[row["op"], row["role"], row["fault"]][row["progress"]] = cell(row)
    lines = [HEAD]
    for op in dict.fromkeys(row["op"] for row in rows):
        heads = "".join(f" at {progress:.0%} |" for progress in PROGRESS)
        lines.append(f"\n## {op.capitalize()}\n\n| host | fault |{heads}\n|---|---|{'---|' * len(PROGRESS)}")
        for place in (place for place in PLACES if place.op == op):
            for fault, words in FAULTS.items():
                cells = by_place.get((op, place.role, fault))
                if cells is not None:
                    text = "".join(f" {cells.get(progress, '')} |" for progress in PROGRESS)
                    lines.append(f"| {place.role} | {words} |{text}")
    detected = [row["detected_s"] for row in rows if row["detected_s"] is not None and row["fault"] != "kill"]
    killed = [row["detected_s"] for row in rows if row["detected_s"] is not None and row["fault"] == "kill"]
    healed = [row["healed_s"] for row in rows if row["fault"] != NOTHING]
    lines.append("")
    if killed:
        lines.append(f"A killed process was detected after {min(killed):.3f} to {max(killed):.3f} s.")
    if detected:
        lines.append(f"An unresponsive host was detected after {min(detected):.1f} to {max(detected):.1f} s.")
    if healed:
        lines.append(
            f"All nodes were members again {min(healed):.1f} to {max(healed):.1f} s after the end of the fault."
        )
    return "\n".join(lines) + "\n"


def cell(row: dict[str, Any]) -> str:
    """Formats the result of a cell, with the byte position of the fault if it differs from the planned one."""
    added = row["added_s"]
    text = {"right": f"{added:+.2f}", "lost": f"lost, {added:.2f}"}.get(row["verdict"], row["verdict"])
    if added > row["limit_s"] or row["verdict"] not in ("right", "lost"):
        text = f"**{text}**"
    reached = row["offset"] / NBYTES
    # Injecting the fault takes a moment, in which more bytes arrive.
    is_other = abs(reached - row["progress"]) > 0.02
    return f"{text} ({reached:.0%})" if is_other else text


def main() -> int:
    """Reads the file of the argument and prints its table."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    lines = Path(sys.argv[1]).read_text().splitlines()
    sys.stdout.write(table([json.loads(line) for line in lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
