"""`make gate`: measures cells, compares them with docs/benchmarks/gate.json, and prints one table.

The exit status is 0 if no figure is worse, 1 if one is worse or could not be measured, 2 if nothing was measured.
"""

from __future__ import annotations

import argparse
import datetime as dt
import difflib
import sys
import time

from gate import busy, collectives, conditions, record, rounds, server, small, table
from gate.record import Verdict
from gate.runs import Run, logged
from hoplite.errors import HopliteError
from hoplite.tools.cli.ending import ending_in_order
from hoplite_bench import machine

RECORD = conditions.ROOT / "docs/benchmarks/gate.json"
# The values of earlier runs of this checkout, from which spreads are derived.
LOG = conditions.ROOT / "target/gate/runs.jsonl"
GROUPS = [*collectives.GROUPS, *rounds.GROUPS, server.GROUP, small.GROUP, busy.GROUP]
CELLS = [cell for group in GROUPS for cell in group.cells]


def chosen(words: str) -> list[str]:
    """Returns the cells with these names or prefixes; all without any.

    Raises:
        HopliteError: a word begins no cell.
    """
    begins = tuple(words.split())
    for word in begins:
        if not any(cell.startswith(word) for cell in CELLS):
            near = "".join(f", did you mean {cell}?" for cell in difflib.get_close_matches(word, CELLS, n=1))
            raise HopliteError(f"no cell begins with {word!r}{near}: set CELLS to beginnings of {', '.join(CELLS)}")
    return [cell for cell in CELLS if not begins or cell.startswith(begins)]


def gate(words: str, reason: str | None) -> int:
    """Measures, compares and prints; with a reason, also records. Returns the exit status.

    Raises:
        HopliteError: nothing was measured, and why.
    """
    cells, changed = chosen(words), conditions.changed_crates()
    if reason is not None and not reason.strip():
        raise HopliteError('ACCEPT is empty: give a reason, such as make gate ACCEPT="reduce: fold in place"')
    if reason is not None and changed:
        raise HopliteError(f"{', '.join(changed)} differ from the commit: commit them before ACCEPT")
    recorded = {} if reason is not None and not RECORD.exists() else record.read(RECORD)
    conditions.check(needs_root=any(group.needs_root and set(group.cells) & set(cells) for group in GROUPS))
    conditions.wait_idle()
    facts, begun = machine.facts(), time.monotonic()
    commit = str(facts["commit"]).rstrip("+")
    run = Run(GROUPS, cells)
    measured: list[Run | None] = [run]
    compared = record.compare(run.figures.values(), recorded, cells)
    if reason is None and (worse := {one.name for one in compared if one.verdict is Verdict.WORSE}):
        measured.append(run.repeat(GROUPS, worse))
        compared = record.compare(run.figures.values(), recorded, cells)
    for one in measured if not changed else []:
        if one is not None:
            one.log(LOG, commit)
    settings = f"{len(cells)} of {len(CELLS)} cells in {(time.monotonic() - begun) / 60:.1f} minutes"
    _print(table.head(facts, settings), *table.lines(compared, run.failures))
    if reason is not None:
        today = dt.datetime.now(dt.UTC).date().isoformat()
        values = logged(LOG, commit)
        fresh = record.accept(recorded, run.figures.values(), values, commit=commit, date=today, reason=reason.strip())
        record.write(RECORD, fresh)
        _print(f"recorded {len(run.figures)} figures in {RECORD.relative_to(conditions.ROOT)}: commit it")
        return int(bool(run.failures))
    return int(bool(run.failures) or any(one.verdict.fails for one in compared))


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def main() -> int:
    """Parses the arguments and runs the gate."""
    parser = argparse.ArgumentParser(prog="python -m gate", description="Compare figures with the record.")
    parser.add_argument("--cells", default="", help="names of cells or their beginnings; all by default")
    parser.add_argument("--accept", metavar="REASON", help="record the figures of this run, with the reason")
    options = parser.parse_args()
    try:
        with ending_in_order():
            return gate(options.cells, options.accept)
    except HopliteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
