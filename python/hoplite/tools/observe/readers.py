"""Readers of versions: which process read which version of a prefix last, and how far behind the newest it is.

Names of versions are a prefix with a slash and a number, such as policy/17. Does not know how versions are looked up.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hoplite.tools.observe.collect import Report, Row

# Rows of a frame, and prefixes whose newest version is looked up.
LAGS_MAX = 50
PREFIXES_MAX = 100


class Readers:
    """Versions that exist, and those that processes read."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._reads: dict[str, list[Row]] = {}

    def update(self, report: Report) -> None:
        """Takes the reads and puts that a node reported."""
        reads = list(report.activity.get("reads", ()))
        self._reads[report.node] = reads
        for row in reads:
            self.note(prefix_of(row), row["version"])
        for event in report.events:
            if event.get("kind") in ("put", "seal"):
                prefix, version = split(event.get("ref") or "")
                if version is not None and prefix in self._newest:
                    self.note(prefix, version)

    def note(self, prefix: str, version: int) -> None:
        """Records that a version exists."""
        self._newest[prefix] = max(self._newest.get(prefix, version), version)

    def prefixes(self) -> list[str]:
        """Returns prefixes that processes read, at most as many as are looked up."""
        return list(self._newest)[:PREFIXES_MAX]

    def forget(self, gone: set[str]) -> None:
        """Drops readers on nodes that are gone, and prefixes that nobody reads."""
        for node in gone & self._reads.keys():
            del self._reads[node]
        read = {prefix_of(row) for rows in self._reads.values() for row in rows}
        for prefix in self._newest.keys() - read:
            del self._newest[prefix]

    def lags(self, now: float) -> list[Row]:
        """Returns the readers that are furthest behind."""
        rows = (
            {**row, "node": node} for node, reads in self._reads.items() for row in lags(reads, self._newest, now=now)
        )
        return heapq.nlargest(LAGS_MAX, rows, key=lambda row: (row["lag"], row["seconds"]))


def lags(reads: Iterable[Mapping[str, Any]], newest: Mapping[str, int], *, now: float) -> Iterable[Row]:
    """Yields how far readers of one node are behind.

    Args:
        reads: rows of `inspect`: prefix, version, process and since.
        newest: the newest known version, by prefix.
        now: Unix seconds, on the clock of `since`.
    """
    for row in reads:
        prefix, version = prefix_of(row), row["version"]
        latest = max(newest.get(prefix, version), version)
        yield {
            "prefix": prefix,
            "newest": latest,
            "process": row.get("process"),
            "version": version,
            "lag": latest - version,
            "seconds": round(max(now - row.get("since", now), 0.0), 1),
        }


def prefix_of(row: Mapping[str, Any]) -> str:
    """Returns the prefix of a row with its slash, as `latest` expects it. Nodes report it without."""
    prefix: str = row["prefix"]
    return prefix if prefix.endswith("/") else f"{prefix}/"


def split(ref: str) -> tuple[str, int | None]:
    """Splits the name of a version, such as "policy/17", into prefix and number; None if it has no number."""
    prefix, slash, number = ref.rpartition("/")
    is_number = bool(slash) and number.isascii() and number.isdigit() and len(number) <= 19
    return (f"{prefix}/", int(number)) if is_number else (ref, None)
