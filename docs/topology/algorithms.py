"""Draws, for each algorithm, how well plan's models foretell times and what the best order gains over the worst.

`python docs/topology/algorithms.py` writes correlations.svg and speedups.svg from algorithms.json, which is simulated,
and orders_in_a_lab.json, which was measured, and prints the table of docs/topology/results.md. `--simulate` makes
algorithms.json, if it isn't there, in some minutes; `--check` fails if a picture is not what would be written.
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
# Of each figure as many machines as the paper has, and how many data centres; and how long each order is looked for.
CORRELATED, MEASURED = 64, 512
TRIALS = {CORRELATED: 20, MEASURED: 10}
SEARCH_S = {CORRELATED: 0.5, MEASURED: 2.0}
# The lab's uplinks that plan's models are compared for; other ones are there to show that an order matters less then.
UPLINK = "200mbit"

LEFT, RIGHT, TOP = 210, 50, 24
LINE, BAR = 24, 12


class Row(NamedTuple):
    """A line of a picture.

    Attributes:
        label: what it is of.
        values: of each trial.
        fill: its colour.
    """

    label: str
    values: list[float]
    fill: str


def simulate() -> None:
    """Writes what the simulator says of each algorithm in each trial, a data centre of its own; goes on with a file."""
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
    """A row of each algorithm, by model."""
    found: dict[str, list[Row]] = {}
    for model, fill in zip(MODELS, (drawing.BLUE, drawing.ORANGE), strict=True):
        for name in map(_name, WANTED):
            values = [it[key][model] for it in trials if (it["machines"], it["name"]) == (machines_, name)]
            found.setdefault(model, []).append(Row(name, values, fill))
    return found


def measured(document: list[dict[str, Any]]) -> tuple[list[Row], list[Row]]:
    """A row of each system in the lab: correlations of costs and times, and how much longer the worst order takes."""
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
    """Parts one below the other: a bar to the mean of each row, and a dot for each of its values.

    Args:
        title: of the picture.
        parts: a heading and its rows.
        least: at the left end of the axis; bars begin at 0, or at 1 where that is the least.
        most: at the right end.
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
    """The simulated figures: the mean of all trials, with the least and the most."""

    def cell(row: Row) -> str:
        return f"{statistics.mean(row.values):.2f} ({min(row.values):.2f} to {max(row.values):.2f})"

    lines = []
    for at, wanted in enumerate(WANTED):
        cells = [cell(rows[model][at]) for rows in (correlations, speedups) for model in MODELS]
        lines.append(f"| {_name(wanted)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Simulates if that is asked for, then writes the pictures, or compares them."""
    if "--simulate" in sys.argv[1:]:
        simulate()
    trials = json.loads(SIMULATED.read_text())["trials"]
    correlations, speedups = simulated(trials, CORRELATED, "correlation"), simulated(trials, MEASURED, "speedup")
    lab_correlations, lab_speedups = measured(json.loads(LAB.read_text()))
    of_lab = f"lab, {sum(RACKS)} hosts in {len(RACKS)} racks, by the congestion model"

    def parts(rows: dict[str, list[Row]], machines_: int, lab: list[Row]) -> list[tuple[str, list[Row]]]:
        said = f"simulated, {machines_} machines, {TRIALS[machines_]} data centres"
        return [*((f"{said}, by the {model} model", rows[model]) for model in MODELS), (of_lab, lab)]

    said = "Spearman's correlation of cost and time over ten orders"
    drawn = chart(said, parts(correlations, CORRELATED, lab_correlations), -1.0, 1.0)
    drawing.keep(FOLDER / "correlations.svg", drawn, "algorithms.py")
    said = "How many times as long the order of most cost takes as the one of least"
    longest = max(value for rows in [*speedups.values(), lab_speedups] for row in rows for value in row.values)
    drawn = chart(said, parts(speedups, MEASURED, lab_speedups), 0.0, longest * 1.02)
    drawing.keep(FOLDER / "speedups.svg", drawn, "algorithms.py")
    if "--check" not in sys.argv[1:]:
        print("\n".join(table(correlations, speedups)))  # noqa: T201


if __name__ == "__main__":
    main()
