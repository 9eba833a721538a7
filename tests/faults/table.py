"""The rows of a fault matrix as a table in Markdown: `python -m faults.table ROWS.jsonl`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from faults.cells import FAULTS, NBYTES, NOTHING, PLACES, PROGRESS

HEAD = """# Every fault at every place

By `make fault-matrix`: 8 hosts of a lab, objects of 64 MiB on links of 1 Gbit/s, nodes that take a silent one for dead
after 3 s. Each cell is one run: one host was broken when the link of the receiver that is watched had carried so much,
and every byte of what the others got was looked at. A cell says what that took longer than undisturbed, in seconds,
until the last had its answer. "lost": the object was nowhere else, and after so many seconds from the fault on the last
was told so. Bold is more than what is aimed at: detection (3 s; 0.05 s of a process that is killed) and 0.3 s for a
broadcast, one time of the wire (0.56 s) and 0.5 s for a reduce, two for an allreduce, and 1 s to tell of a loss."""


def table(rows: list[dict[str, Any]]) -> str:
    """Formats rows as `faults.matrix` writes them."""
    by_place: dict[tuple[str, str, str], dict[float, str]] = defaultdict(dict)
    for row in rows:
        by_place[row["op"], row["role"], row["fault"]][row["progress"]] = cell(row)
    lines = [HEAD]
    for op in dict.fromkeys(row["op"] for row in rows):
        heads = "".join(f" at {progress:.0%} |" for progress in PROGRESS)
        lines.append(f"\n## {op.capitalize()}\n\n| broken | how |{heads}\n|---|---|{'---|' * len(PROGRESS)}")
        for place in (place for place in PLACES if place.op == op):
            for fault, words in FAULTS.items():
                cells = by_place.get((op, place.role, fault))
                if cells is not None:
                    said = "".join(f" {cells.get(progress, '')} |" for progress in PROGRESS)
                    lines.append(f"| {place.role} | {words} |{said}")
    detected = [row["detected_s"] for row in rows if row["detected_s"] is not None and row["fault"] != "kill"]
    killed = [row["detected_s"] for row in rows if row["detected_s"] is not None and row["fault"] == "kill"]
    healed = [row["healed_s"] for row in rows if row["fault"] != NOTHING]
    lines.append("")
    if killed:
        lines.append(f"A killed process was missed after {min(killed):.3f} to {max(killed):.3f} s.")
    if detected:
        lines.append(f"One that is silent was missed after {min(detected):.1f} to {max(detected):.1f} s.")
    if healed:
        lines.append(f"Once the fault was undone, all knew each other after {min(healed):.1f} to {max(healed):.1f} s.")
    return "\n".join(lines) + "\n"


def cell(row: dict[str, Any]) -> str:
    """What came of one cell, and at which byte it was broken if that is not what was wanted."""
    added = row["added_s"]
    said = {"right": f"{added:+.2f}", "lost": f"lost, {added:.2f}"}.get(row["verdict"], row["verdict"])
    if added > row["limit_s"] or row["verdict"] not in ("right", "lost"):
        said = f"**{said}**"
    reached = row["offset"] / NBYTES
    # The way there takes a moment, in which more bytes come.
    is_other = abs(reached - row["progress"]) > 0.02
    return f"{said} ({reached:.0%})" if is_other else said


def main() -> int:
    """Reads the file that is named and prints its table."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    lines = Path(sys.argv[1]).read_text().splitlines()
    sys.stdout.write(table([json.loads(line) for line in lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
