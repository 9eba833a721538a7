"""Metrics of a node as families of prometheus_client, which writes its text formats."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from hoplite.errors import HopliteError
from hoplite.tools.http.metrics import COUNTER, FAMILIES, HISTOGRAM, PREFIX, facts_of, prefixes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client
    from hoplite.tools.http.metrics import Family, Row

TIMEOUT_S = 5.0


class Scrape:
    """A registry for one scrape, as prometheus_client expects it.

    Args:
        facts: result of `facts_of`.
    """

    def __init__(self, facts: Row) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Any]:
        """Yields the families that have samples."""
        for family in FAMILIES:
            made = _made(family, self._facts)
            if made.samples:
                yield made


def _made(family: Family, facts: Row) -> Any:  # noqa: ANN401 - a family of prometheus_client
    name = PREFIX + family.name
    if family.kind == HISTOGRAM:
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for labels, value in family.samples(facts):
            histogram.add_metric(labels, _buckets(value), value.get("sum", 0.0))
        return histogram
    kind = CounterMetricFamily if family.kind == COUNTER else GaugeMetricFamily
    made = kind(name, family.help, labels=family.labels)
    for labels, value in family.samples(facts):
        made.add_metric(labels, value)
    return made


def _buckets(value: Row) -> list[tuple[str, int]]:
    """Returns the upper bound and the cumulative count of each bucket."""
    total, found = 0, []
    for bound, count in zip([*value["bounds"], float("inf")], value["counts"], strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
    return found


async def collect(client: Client) -> Scrape:
    """Reads the metrics of a client's node, and looks up the newest versions of what processes there read.

    Raises:
        HopliteError: the node does not reply.
    """
    native: Any = client
    reply: Row = await native.inspect_async("metrics", timeout=TIMEOUT_S)
    newest: dict[str, int] = {}

    async def look_up(prefix: str) -> None:
        with contextlib.suppress(HopliteError):
            newest[prefix] = (await native.latest_async(prefix, timeout=0)).number

    await asyncio.gather(*map(look_up, prefixes_of(reply)))
    return Scrape(facts_of(reply, newest))
