"""Draws how well the cost models predict times, and how much the best order gains over the worst, by algorithm.

`python docs/topology/algorithms.py` writes correlations.svg and speedups.svg, and prints the table of
docs/topology/results.md. Its inputs are algorithms.json, which is simulated, and orders_in_a_lab.json, which was
measured. `--simulate` completes algorithms.json, in some minutes. `--check` fails if a picture is out of date.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import drawing
from orders_in_a_lab import ALGORITHMS, RACKS, machines

from hoplite_topology import study
from hoplite_topology.problem import Wanted

FOLDER = Path(__file__).parent
SIMULATED = FOLDER / "algorithms.json"
LAB = FOLDER / "orders_in_a_lab.json"
MODELS = ("congestion", "paper")
WANTED = [Wanted("ring"), Wanted("halving-doubling"), Wanted("bcube", base=4), Wanted("double-tree")]
ORDERS = 100
# Machines for each figure, as in the paper; number of data centers; duration of the search for each order.
CORRELATED, MEASURED = 64, 512
TRIALS = {CORRELATED: 20, MEASURED: 10}
SEARCH_S = {CORRELATED: 0.5, MEASURED: 2.0}
# Only rows with these uplinks are compared with the models. Rows with wider uplinks are controls.
UPLINK = "200mbit"

LEFT, RIGHT, TOP = 210, 50, 24
LINE, BAR = 24, 12


class Row(NamedTuple):
    """A row of a picture.

    Attributes:
        label: text on its left.
        values: one for each trial.
        fill: color of its bar.
    """

    label: str
    values: list[float]
    fill: str


def simulate() -> None:
    """Simulates the trials that algorithms.json lacks, each in its own data center, and adds them to the file."""
    trials: list[dict[str, Any]] = json.loads(SIMULATED.read_text())["trials"] if SIMULATED.exists() else []
    known = {(trial["machines"], trial["name"], trial["seed"]) for trial in trials}
    for machines_, seed, wanted in (
        (m, seed, wanted) for m in TRIALS for seed in range(TRIALS[m]) for wanted in WANTED
    ):
        name = _name(wanted)
        if (machines_, name, seed) in known:
            continue
        centre = study.Centre(wanted, study.Setting(machines=machines_, orders=ORDERS, seed=seed))
        trial: dict[str, Any] = {"machines": machines_, "name": name, "seed": seed, "correlation": {}, "speedup": {}}
        for model in MODELS:
            costs, times = zip(*centre.spread(model, SEARCH_S[machines_]), strict=True)
            trial["correlation"][model] = round(study.spearman(list(costs), list(times)), 3)
            trial["speedup"][model] = round(times[-1] / times[0], 3)
        trials.append(trial)
        lines = ",\n  ".join(map(json.dumps, trials))
        document = {"simulated": True, "bytes": wanted.bytes, "orders": ORDERS}
        SIMULATED.write_text(json.dumps(document)[:-1] + f', "trials": [\n  {lines}\n]}}\n')


def _name(wanted: Wanted) -> str:
    return f"{wanted.algorithm}, base {wanted.base}" if wanted.algorithm == "bcube" else wanted.algorithm


def simulated(trials: list[dict[str, Any]], machines_: int, key: str) -> dict[str, list[Row]]:
    """Returns one row for each algorithm, by model."""
    found: dict[str, list[Row]] = {}
    for model, fill in zip(MODELS, (drawing.BLUE, drawing.ORANGE), strict=True):
        for name in map(_name, WANTED):
            values = [it[key][model] for it in trials if (it["machines"], it["name"]) == (machines_, name)]
            found.setdefault(model, []).append(Row(name, values, fill))
    return found


def measured(document: list[dict[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Returns one row for each system in the lab: correlation of costs with times, and slowdown of the worst order."""
    native = machines()
    correlations, speedups = [], []
    for (system, variant), wanted in ALGORITHMS.items():
        name = f"{system} {variant}"
        there = [one for one in document if one.get("uplink", UPLINK) == UPLINK and name in one["seconds"]]
        if len(there) < 2:
            continue
        seconds = [one["seconds"][name] for one in there]
        costs = [native.cost(wanted, "congestion", one["order"]) for one in there]
        correlations.append(Row(name, [study.spearman(costs, seconds)], drawing.GREEN))
        speedup = seconds[costs.index(max(costs))] / seconds[costs.index(min(costs))]
        speedups.append(Row(name, [speedup], drawing.GREEN))
    return correlations, speedups


def chart(title: str, parts: list[tuple[str, list[Row]]], least: float, most: float) -> str:
    """Draws parts one below the other: for each row a bar up to its mean, and a dot for each value.

    Args:
        title: title of the picture.
        parts: headings with their rows.
        least: left end of the axis; bars start here, or at 0 if it is negative.
        most: right end of the axis.
    """
    wide = drawing.WIDTH - LEFT - RIGHT
    origin = max(least, 0.0)

    def x(value: float) -> float:
        return LEFT + (min(max(value, least), most) - least) / (most - least) * wide

    drawn, y = [], float(TOP)
    for heading, rows in parts:
        drawn.append(drawing.text(8, y, heading))
        y += LINE
        for row in rows:
            mean = statistics.mean(row.values)
            begin, end = sorted((x(origin), x(mean)))
            drawn += [
                drawing.text(LEFT - 8, y, row.label, anchor="end"),
                drawing.bar(begin, y - BAR + 2, end - begin, BAR, row.fill),
                *(drawing.dot(x(value), y - BAR / 2 + 2, row.fill) for value in row.values if len(row.values) > 1),
                drawing.text(drawing.WIDTH - RIGHT + 8, y, f"{mean:.2f}"),
            ]
            y += LINE
        y += LINE / 2
    base = y - LINE
    marks = sorted({-tick for tick in drawing.ticks(-least) if tick > 0} | set(drawing.ticks(most)))
    grid = [drawing.line(x(at), TOP + 8, x(at), base, width=0.3) for at in marks]
    drawn += [drawing.text(x(at), base + 16, f"{at:g}", anchor="middle") for at in marks]
    drawn.append(drawing.text(drawing.WIDTH - RIGHT, base + 36, title, anchor="end"))
    return drawing.picture(title, base + 44, grid + drawn)


def table(correlations: dict[str, list[Row]], speedups: dict[str, list[Row]]) -> list[str]:
    """Returns table rows of the simulated values: the mean of all trials, with minimum and maximum."""

    def cell(row: Row) -> str:
        return f"{statistics.mean(row.values):.2f} ({min(row.values):.2f} to {max(row.values):.2f})"

    lines = []
    for at, wanted in enumerate(WANTED):
        cells = [cell(rows[model][at]) for rows in (correlations, speedups) for model in MODELS]
        lines.append(f"| {_name(wanted)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Simulates with --simulate, then writes the pictures, or compares them with --check."""
    if "--simulate" in sys.argv[1:]:
        simulate()
    trials = json.loads(SIMULATED.read_text())["trials"]
    correlations, speedups = simulated(trials, CORRELATED, "correlation"), simulated(trials, MEASURED, "speedup")
    lab_correlations, lab_speedups = measured(json.loads(LAB.read_text()))
    of_lab = f"lab, {sum(RACKS)} hosts in {len(RACKS)} racks, by the congestion model"

    def parts(rows: dict[str, list[Row]], machines_: int, lab: list[Row]) -> list[tuple[str, list[Row]]]:
        said = f"simulated, {machines_} machines, {TRIALS[machines_]} data centers"
        return [*((f"{said}, by the {model} model", rows[model]) for model in MODELS), (of_lab, lab)]

    said = "Spearman's correlation of cost and time over ten orders"
    drawn = chart(said, parts(correlations, CORRELATED, lab_correlations), -1.0, 1.0)
    drawing.keep(FOLDER / "correlations.svg", drawn, "algorithms.py")
    said = "Time of the order of highest cost, as a multiple of that of lowest cost"
    longest = max(value for rows in [*speedups.values(), lab_speedups] for row in rows for value in row.values)
    drawn = chart(said, parts(speedups, MEASURED, lab_speedups), 0.0, longest * 1.02)
    drawing.keep(FOLDER / "speedups.svg", drawn, "algorithms.py")
    if "--check" not in sys.argv[1:]:
        print("\n".join(table(correlations, speedups)))  # noqa: T201


if __name__ == "__main__":
    main()
