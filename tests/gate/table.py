"""The one table of the gate, and the lines above and below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gate.figures import NODES
from gate.record import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gate.figures import Failed
    from gate.record import Compared, Recorded

COLUMNS = ("figure", "recorded", "allowed", "now", "verdict")


def lines(compared: Sequence[Compared], failures: Sequence[Failed]) -> Iterator[str]:
    """Formats the comparison: failed cells last, each with its error in place of the figures."""
    rows = [COLUMNS]
    for one in compared:
        if one.verdict is Verdict.MISSING and any(one.name.startswith(f"{failed.cell}/") for failed in failures):
            continue
        unit = one.now.unit if one.now is not None else one.recorded.unit if one.recorded is not None else ""
        recorded = _number(one.recorded.value, unit) if one.recorded is not None else "-"
        now = f"{_number(one.now.value, unit)} {unit}" if one.now is not None else "-"
        if one.now is not None and one.now.shown:
            now += f" ({one.now.shown})"
        rows.append((one.name, recorded, _allowed(one.recorded), now, one.verdict.value))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for failed in failures:
        yield f"{failed.cell.ljust(widths[0])}  FAILED: {' '.join(failed.reason.split())}"


def head(facts: Mapping[str, Any], settings: str) -> str:
    """Formats machine, commit and settings."""
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}, "
        f"{facts['congestion_control']}, Python {facts['python']}\n"
        f"hoplite {facts['version']}, commit {facts['commit']}; {settings}"
    )


def _allowed(recorded: Recorded | None) -> str:
    if recorded is None:
        return "-"
    low, high = recorded.limits()
    return f"≤ {_number(high, recorded.unit)}" if recorded.better == "lower" else f"≥ {_number(low, recorded.unit)}"


def _number(value: float, unit: str) -> str:
    return f"{value:.0f}" if unit == NODES else f"{value:#.3g}".rstrip(".")
