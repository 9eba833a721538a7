"""Writes docs/metrics.md from the table of metrics.

`python docs/metrics.py` writes the page, `python docs/metrics.py --check` fails if it is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hoplite.tools.http.metrics import FAMILIES, Family

PAGE = Path(__file__).parent / "metrics.md"

OPENING = """\
# Metrics

After this page you know every metric that a node exports at `/metrics`. [Operations](operations.md) describes how to
turn them on. `make docs` generates this page from the table that the node uses.

[Counters](counters.md) explains the numbers of `hp.status()`, from which many metrics come, and the signs of trouble.

- A counter starts at 0 when the node starts.
- A metric that a node of an older version lacks is missing.
- `peer` is the address of a member, `process` a PID of this host.
- The lag of readers compares what processes of this host read with the newest version in the cluster. It covers the
  1024 latest readers and 100 prefixes.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
"""

CLOSING = """
`deploy/grafana/hoplite.json` is a Grafana dashboard of these metrics, `deploy/prometheus/alerts.yml` has alerts.
"""


def row(family: Family) -> str:
    """Returns the row of one family."""
    labels = ", ".join(f"`{label}`" for label in family.labels)
    if not isinstance(family.source, str):
        labels += ": " + ", ".join(family.source)
    return f"| `{family.full_name}` | {family.kind} | {family.unit} | {labels} | {family.help} |\n"


def main() -> int:
    """Writes or checks the page."""
    page = OPENING + "".join(map(row, FAMILIES)) + CLOSING
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    sys.stderr.write(f"{PAGE} is out of date: run make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
