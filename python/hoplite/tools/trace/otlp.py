"""Spans for OpenTelemetry, sent by OTLP over HTTP. Needs the extra `otel`.

Each node is a resource. A transfer is a child of the transfer by which its source received the object, so a broadcast
is one trace. A fold is a child of the fold that it sends to, so a reduce is one trace.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hoplite import __version__
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hoplite.tools.trace.spans import Span

# Spans per request.
BATCH = 512
TIMEOUT_S = 10

# Path of an OTLP receiver.
PATH = "/v1/traces"


def send(spans: Sequence[Span], names: Mapping[str, str], endpoint: str, show: Callable[[int], None]) -> None:
    """Sends spans to an OTLP receiver.

    Args:
        spans: in order of their begin.
        names: names of the nodes, by id.
        endpoint: URL of the receiver; without a path, `PATH` is appended.
        show: called with the number of spans sent so far.

    Raises:
        HopliteError: the receiver does not accept them.
    """
    url = endpoint if endpoint.removeprefix("https://").removeprefix("http://").count("/") else endpoint + PATH
    # It logs each retry; the error below states the result.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S)
    try:
        ready = _converted(spans, names)
        for first in range(0, len(ready), BATCH):
            if exporter.export(ready[first : first + BATCH]) is not SpanExportResult.SUCCESS:
                raise HopliteError(f"{url} did not accept the spans: {len(ready) - first} of {len(ready)} are not sent")
            show(min(first + BATCH, len(ready)))
    finally:
        exporter.shutdown()


def _converted(spans: Sequence[Span], names: Mapping[str, str]) -> Sequence[Any]:
    memory = InMemorySpanExporter()
    tracers: dict[str, trace.Tracer] = {}
    for node in dict.fromkeys(span.node for span in spans):
        resource = {"service.name": "hoplite", "service.instance.id": node, "host.name": names.get(node, node)}
        provider = TracerProvider(resource=Resource(resource), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(memory))
        tracers[node] = provider.get_tracer("hoplite", __version__)
    parents = _parents(spans)
    started: dict[int, trace.Span] = {}

    def start(span: Span) -> trace.Span:
        if id(span) not in started:
            # Removed, so that a circle of malformed events ends.
            parent = parents.pop(id(span), None)
            # The parent first: its trace is the child's.
            context = trace.set_span_in_context(start(parent) if parent is not None else trace.INVALID_SPAN)
            started[id(span)] = tracers[span.node].start_span(
                f"{span.fields.get('verb', span.kind)} {span.ref}",
                context,
                start_time=round(span.begin * 1e9),
                attributes=_attributes(span, names),
            )
        return started[id(span)]

    for span in spans:
        one = start(span)
        if span.failure is not None:
            one.set_status(trace.StatusCode.ERROR, span.failure)
        one.end(round(span.end * 1e9))
    finished: Sequence[Any] = memory.get_finished_spans()
    return finished


def _parents(spans: Sequence[Span]) -> dict[int, Span]:
    """The parent of a span, by its `id`. Follows the bytes backwards for copies, and forwards for sums."""
    parents: dict[int, Span] = {}
    # The transfer to each node that began last: that of a source, when its receiver begins.
    receives: dict[Any, Span] = {}
    reduces = {span.ref: span for span in spans if span.kind == "reduce"}
    for span in spans:
        if span.kind == "receive":
            parent = receives.get((span.fields.get("source"), span.fields.get("instance")))
            if parent is not None:
                parents[id(span)] = parent
            receives[span.node, span.fields.get("instance")] = span
        elif span.kind == "fold":
            for sender in span.senders:
                parents[id(sender)] = span
            if span.ref in reduces:
                # Replaced by the fold to which it sends, if there is one.
                parents.setdefault(id(span), reduces[span.ref])
    for span in spans:
        # A send is a part of the transfer that it feeds.
        if span.kind == "receive":
            for sender in span.senders:
                parents[id(sender)] = span
    return parents


def _attributes(span: Span, names: Mapping[str, str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"hoplite.kind": span.kind, "hoplite.ref": span.ref}
    for name in ("bytes", "source", "reader", "resumed", "relayed", "epoch", "position", "process", "op", "ended"):
        value = span.fields.get(name)
        if value is not None:
            attributes[f"hoplite.{name}"] = names.get(value, value) if isinstance(value, str) else value
    return attributes
