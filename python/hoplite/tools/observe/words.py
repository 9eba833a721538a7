"""One English sentence for each event of a node. The subject is the node that recorded the event, and is left out.

An event of an unknown kind, or without a field, still becomes a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hoplite.tools.quantities import write_size

if TYPE_CHECKING:
    from collections.abc import Mapping

# Why the owner chose a source, if the event has no reason in words.
CHOICES = {
    "only_holder": "the only node with a copy",
    "idle_complete": "an idle node with a complete copy",
    "idle_relay": "an idle node whose copy still arrives",
    "least_loaded": "the node predicted to be the fastest",
    "insert": "a node that crosses to another rack",
    "redirect": "faster than the source before",
    "ordered": "it makes this part",
}

# A sentence for each kind; words in braces are fields, written by `_Fields`.
SENTENCES = {
    "put": "put {bytes}",
    "create": "began to write {bytes}",
    "seal": "completed the object",
    "delete": "deleted the object",
    "reduce_begin": "began to {op} {count} of {inputs} inputs",
    "wait": "{verb} of {process} waits",
    "reply": "{verb} of {process} ended after {seconds}{error}",
    "source": "chose {source} as its source: {reason}",
    "redirect": "changed the source from {before} to {source}",
    "locate": "sent {reader} to {source}",
    "fetch": "began to receive {bytes} from {source}{resumed}",
    "fetched": "received {bytes} from {source} in {seconds}",
    "fetch_failed": "lost the transfer from {source} after {received} of {bytes}: {why}",
    "serve": "began to send to {reader}{relayed}",
    "served": "finished sending after {seconds}",
    "evicted": "evicted cached copies: {copies}",
    "spill": "began to write {bytes} to disk",
    "spilled": "wrote the copy to disk in {seconds}",
    "spill_failed": "failed to write the copy to disk: {why}",
    "unspill": "began to read {bytes} from disk",
    "unspilled": "read the copy from disk in {seconds}",
    "degree": "planned the reduce as {degree}: {reason}",
    "ring": "runs the reduce as a ring of {parts}",
    "restart": "started epoch {epoch}: {why}",
    "reduced": "ended the reduce after {seconds}{error}",
    "fold": "began to fold {folded} at {place}",
    "folded": "finished the fold at {place} in {seconds}{error}",
    "corrupt": "received a corrupt block from {source}",
    "rejected": "rejected the message {message} of {node}",
    "limit": "rejected a request of {client}: limit {limit}",
}

MEMBERS = {
    "joined": "{node} joined",
    "left": "{node} left",
    "failed": "{node} failed{because}",
    "reconnected": "reconnected to {node}",
    "suspected": "suspects {node}{because}",
    "trusted": "{node} replies again",
    "barred": "barred {node}{because}",
}

# Parts of a sentence that are left out if the field is missing or false.
CLAUSES = {"error": ": {}", "resumed": ", and continues an interrupted transfer", "relayed": ", and relays a copy"}

# Fields with ids of nodes.
NODES = {"node", "source", "before", "reader"}
SIZES = {"bytes", "received"}


def sentence(event: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Returns what an event means, such as "received 32.0 MiB from 10.0.0.2:7420 in 0.31 s".

    Args:
        event: an event of `inspect("activity")`.
        names: names of the nodes, by id; a node without a name is written as the start of its id.
    """
    kind = str(event.get("kind"))
    text = MEMBERS.get(str(event.get("state"))) if kind == "member" else SENTENCES.get(kind)
    if text is None:
        shown = ", ".join(
            f"{name} {event[name]}" for name in event if name not in ("serial", "time", "kind", "recorder")
        )
        return f"{kind.replace('_', ' ')}{': ' * bool(shown)}{shown}"
    return text.format_map(_Fields(event, names))


def seconds(value: float) -> str:
    """Writes a time: 0.0123 is "12.3 ms"."""
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.3g} ms" if value < 0.1 else f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def node_name(node: str | None, names: Mapping[str, str]) -> str:
    """Returns the name of a node, or the start of its id."""
    return "an unknown node" if node is None else names.get(node, node[:8])


class _Fields:
    """Fields of an event as parts of a sentence, by the name in braces."""

    def __init__(self, event: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self._event = event
        self._names = names

    def __getitem__(self, name: str) -> str:
        value = self._event.get(name)
        if name == "because":
            return f": {self._event['why']}" if self._event.get("why") else ""
        if name in CLAUSES:
            return CLAUSES[name].format(value) if value else ""
        if name == "client":
            # A limit concerns a node or a process.
            return self["node" if self._event.get("node") else "process"]
        if name == "folded":
            inputs = [str(one) for one in self._event.get("inputs") or ()]
            streams = [f"the sum of {node_name(node, self._names)}" for node in self._event.get("children") or ()]
            return " and ".join([*inputs, *streams]) or "nothing"
        if name == "place":
            position = self._event.get("position")
            where = "the top" if position is None else f"position {position}"
            return f"{where} of epoch {self['epoch']}"
        if name == "reason":
            return str(value or CHOICES.get(str(self._event.get("choice")), "?"))
        if name in NODES:
            return node_name(value, self._names)
        if name == "process":
            return "a process" if value is None else f"process {value}"
        return "?" if value is None else self._written(name, value)

    def _written(self, name: str, value: Any) -> str:  # noqa: ANN401 - fields have any type
        if name in SIZES:
            return write_size(value)
        if name == "seconds":
            return seconds(value)
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
