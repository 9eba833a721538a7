"""A server of the live page without a cluster: frames of an imaginary cluster of any size, and faults on request.

It serves the committed bundle with the same headers as a node, so that tests of the page need only a browser. A frame
is a function of its number: two runs show the same.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

BUNDLE = Path(__file__).parent.parent / "python" / "hoplite" / "tools" / "http" / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
MIB = 1 << 20
# Why a node at each depth of a broadcast has its source; an older node omits the reason.
REASONS = (("only_holder", "only holder"), ("idle_relay", "idle relay at depth 1"), ("least_loaded", ""))
KINDS = ("receive", "send", "fold", "wait", "reduce", "spill")


def node_id(index: int) -> str:
    """Returns the id of a node."""
    return f"{(index + 1) * 2654435761 % (1 << 64):016x}" * 2


def noise(*numbers: int) -> float:
    """Returns a number from 0 to 1 that depends on the numbers only."""
    state = 12345
    for number in numbers:
        state = (state * 31 + number) * 2654435761 % (1 << 32)
        state ^= state >> 15
    return state % 10007 / 10007


class Fake:
    """The imaginary cluster, and what the server does with it."""

    def __init__(self, nodes: int, objects: int) -> None:
        self.nodes = nodes
        self.objects = objects
        self.start = time.time()
        self.dead: set[int] = set()
        self.key: str | None = None
        self.interval = 1.0
        self.paused = False
        # A stream stops after this number of frames.
        self.frames = 1 << 62
        # Streams of an older generation end.
        self.generation = 0
        self.sent = 0
        self.port = 0
        self.requests: list[str] = []
        self.orders: dict[tuple[str, str], list[int]] = {}

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def name(self, index: int) -> str:
        """Returns the address of a node."""
        return f"10.0.{index // 8}.{index % 8 + 1}:7420"

    def row(self, index: int, number: int) -> dict[str, Any]:
        """Returns a node's row of a frame."""
        dead = index in self.dead
        share = 0.15 + 0.7 * noise(index) + 0.1 * noise(index, number // 5)
        capacity = 8192 * MIB
        return {
            "id": node_id(index),
            "name": self.name(index),
            "rack": f"rack-{index // 8 + 1}" if self.nodes > 8 else f"rack-{'ab'[index // 4]}",
            "state": "dead" if dead else "suspected" if self.nodes > 8 and index == 77 else "alive",
            "used": int(capacity * min(share, 1)),
            "capacity": capacity,
            "spilled": int(capacity * 0.1 * noise(index, 3)) if index % 3 == 0 else 0,
            "objects": int(1200 * noise(index, 7)),
            "in": 0 if dead else int(400 * MIB * noise(index, number)),
            "out": 0 if dead else int(400 * MIB * noise(index, number, 1)),
            "rtt_us": None if dead or index == 0 else int(80 + 300 * noise(index, 9)),
        }

    def tree_edges(self, first: int, count: int, number: int, *, up: bool) -> list[dict[str, Any]]:
        """Returns edges of a binary tree over `count` nodes, away from its root or up to it."""
        edges = []
        for place in range(1, count):
            parent, child = first + (place - 1) // 2, first + place
            depth = (place + 1).bit_length() - 1
            done = min(1.0, max(0.0, (number % 40) / 24 - 0.12 * depth))
            choice, reason = REASONS[min(depth, 3) - 1]
            moving = 0 < done < 1 and not {parent, child} & self.dead
            edges.append(
                {
                    "from": node_id(child if up else parent),
                    "to": node_id(parent if up else child),
                    "done": round(done, 3),
                    "rate": int(220 * MIB * (0.5 + noise(place, number))) if moving else 0,
                    "choice": None if up else choice,
                    "reason": "" if up else reason,
                }
            )
        return edges

    def trees(self, number: int) -> list[dict[str, Any]]:
        """Returns the running broadcasts and reduces."""
        drawn = min(self.nodes, 40)
        common = {"epoch": 0, "since": self.start, "omitted": self.nodes - drawn}
        broadcast = {"ref": "policy/17", "kind": "broadcast", "bytes": 256 * MIB, "root": node_id(0), "degree": ""}
        reduce = {"ref": "@9fa1.3c", "kind": "reduce", "bytes": 64 * MIB, "root": node_id(0), "degree": "tree 2"}
        ring = {"ref": "@9fa1.44", "kind": "ring", "bytes": 128 * MIB, "root": node_id(0), "degree": "ring of 8"}
        around = [
            {
                "from": node_id(one),
                "to": node_id((one + 1) % 8),
                "done": number % 20 / 20,
                "rate": 180 * MIB,
                "reason": "part 3",
            }
            for one in range(8)
        ]
        return [
            {**common, **broadcast, "reason": "", "edges": self.tree_edges(0, drawn, number, up=False)},
            {
                **common,
                **reduce,
                "omitted": 0,
                "epoch": 1,
                "reason": "7 inputs of 64 MiB: a tree of degree 2 is fastest",
                "edges": self.tree_edges(0, 7, number + 9, up=True),
            },
            {**common, **ring, "omitted": 0, "reason": "all contributors wait for the result", "edges": around},
        ]

    def frame(self, number: int) -> dict[str, Any]:
        """Returns a frame; the first of a stream is full."""
        now = self.start + number
        rows = [self.row(index, number) for index in range(self.nodes)]
        some = [int(self.nodes * noise(number, 5, index)) for index in range(5 if self.nodes < 100 else 24)]
        spans = [
            {
                "node": node_id(node),
                "kind": KINDS[int(6 * noise(number, node, index) ** 2)],
                "ref": "policy/17",
                "begin": now - 0.3 - 1.5 * noise(number, node, index, 1),
                "end": now - 0.2 * noise(number, node, index, 2),
                "text": "32 MiB of policy/17",
            }
            for index, node in enumerate(some)
            if node not in self.dead
        ]
        waits = [
            {
                "node": node_id(node),
                "process": 4100 + index,
                "verb": "get",
                "ref": f"grads/{number // 30}/{index}",
                "seconds": number % 30 + 3 * index,
                "on": node_id(0) if index else None,
                "reason": "the copy arrives from there" if index else "nobody has put this object",
            }
            for index, node in enumerate(some[:4])
        ]
        lags = [
            {
                "prefix": "policy",
                "newest": 17 + number,
                "node": node_id(node),
                "process": 900 + node,
                "version": 17 + number - index,
                "lag": index,
                "seconds": 2.5 * index,
            }
            for index, node in enumerate(range(1, min(6, self.nodes)), 1)
        ]
        return {
            "time": now,
            "number": number,
            "interval": max(1.0, self.interval),
            "cluster": "training",
            "node": node_id(0),
            "full": number == 0,
            # Only some rows change in each frame; the page keeps the others.
            "nodes": [
                row for index, row in enumerate(rows) if not number or index in self.dead or (index + number) % 3 == 0
            ],
            "trees": self.trees(number),
            "pairs": [
                {
                    "from": node_id(one // 2),
                    "to": node_id(one),
                    "rate": int(300 * MIB * noise(one, number)),
                    "transfers": 1 + one % 3,
                }
                for one in range(1, min(30, self.nodes))
            ],
            "waits": sorted(waits, key=lambda wait: -wait["seconds"]),
            "lags": lags,
            "events": self.events(now, 3),
            "skipped": 0,
            "spans": spans,
            "open": [
                {
                    "node": node_id(1),
                    "kind": "receive",
                    "ref": "policy/18",
                    "begin": now - 44,
                    "text": f"receives from {self.name(0)}: 40%",
                }
            ],
            "rates": {"in": sum(row["in"] for row in rows), "out": sum(row["out"] for row in rows)},
            "totals": {
                "objects": self.objects,
                "bytes": self.objects * 3 * MIB,
                "nodes": self.nodes,
                "dead": len(self.dead),
                "transfers": 12,
                "reduces": 2,
                "waits": len(waits),
            },
        }

    def events(self, before: float, count: int) -> list[dict[str, Any]]:
        """Returns the events of the time before, oldest first."""
        last = int((before - self.start) * 3)
        texts = {
            "fetched": "received 32 MiB from 10.0.0.1:7420 in 0.31 s",
            "source": "chose 10.0.0.4:7420 as its source: an idle node whose copy still arrives",
            "put": "put 256 MiB",
            "evicted": "evicted cached copies: 4",
        }
        return [
            {
                "time": self.start + at / 3,
                "node": node_id(int(self.nodes * noise(at))),
                "kind": (kind := list(texts)[at % 4]),
                "text": texts[kind],
                "ref": None if texts[kind].startswith("evicted") else "policy/17",
            }
            for at in range(last - count, last)
        ]

    def object_row(self, index: int) -> dict[str, Any]:
        """Returns a row of the directory."""
        return {
            "ref": f"experience/{index:07d}",
            "bytes": int(1024 * 1.3 ** (40 * noise(index))),
            "what": "float32[256, 1024]",
            "form": "plain",
            "job": "run-7" if index % 3 else None,
            "ttl": None,
            "owner": node_id(index % self.nodes),
            "age": 3.0 + index % 5000,
            "copies": 1 + index % 4,
            "partial": int(index % 11 == 0),
        }

    def page_of_objects(self, prefix: str, sort: str, limit: int, after: str | None) -> dict[str, Any]:
        """Returns a page of the directory, and its first row's position."""
        key = (prefix, sort)
        if key not in self.orders:
            order = [index for index in range(self.objects) if f"experience/{index:07d}".startswith(prefix)]
            if sort != "ref":
                order.sort(key=lambda index: -float(self.object_row(index)[sort]))
            self.orders[key] = order
        order = self.orders[key]
        first = order.index(int(after.split("/")[1])) + 1 if after else 0
        rows = [self.object_row(index) for index in order[first : first + limit]]
        return {"rows": rows, "more": first + limit < len(order), "total": len(order)}

    def detail(self, ref: str) -> dict[str, Any]:
        """Returns the details of an object."""
        row = self.page_of_objects(ref, "ref", 1, None)["rows"]
        places = [{"node": node_id(index), "complete": index != 2} for index in range(min(4, self.nodes))]
        story = [
            {"time": self.start - 60 + step, "node": node_id(step % self.nodes), "text": text}
            for step, text in enumerate(
                [f"put {ref}, 2.10 MiB", f"fetched {ref} from {self.name(0)} in 12 ms", "evicted the cached copy"]
            )
        ]
        return {"row": row[0] if row else None, "locations": places, "story": story}


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    fake: Fake

    def log_message(self, *_arguments: object) -> None:
        """Prints nothing."""

    def reply(self, body: bytes, kind: str, status: int = 200) -> None:
        """Sends a complete reply."""
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def admitted(self) -> bool:
        """Whether the request has the key."""
        return self.fake.key is None or f"key={self.fake.key}" in (self.headers["Cookie"] or "")

    def do_POST(self) -> None:
        """Logs in."""
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(303)
        self.send_header("Location", "/")
        self.send_header("Set-Cookie", f"key={form.get('key', [''])[0]}; HttpOnly; SameSite=Strict")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """Serves the page, its data, or the form to log in."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.fake.requests.append(self.path)
        if url.path in {"/page.js", "/page.css", "/icon.svg"}:
            file = BUNDLE / url.path[1:]
            self.reply(file.read_bytes(), TYPES[file.suffix])
        elif url.path == "/":
            file = BUNDLE / ("index.html" if self.admitted() else "login.html")
            self.reply(file.read_bytes(), TYPES[".html"], 200 if self.admitted() else 401)
        elif not self.admitted():
            self.reply(b"log in", "text/plain", 401)
        elif not url.path.startswith("/api/"):
            self.reply(b"not found", "text/plain", 404)
        elif url.path == "/api/stream":
            self.stream()
        else:
            self.reply(json.dumps(self.data(url.path, query)).encode(), "application/json")

    def data(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """Returns the reply of a path of the API."""
        if path == "/api/objects":
            limit = int(query.get("limit", "100"))
            return self.fake.page_of_objects(
                query.get("prefix", ""), query.get("sort", "ref"), limit, query.get("after")
            )
        if path == "/api/object":
            return self.fake.detail(query["ref"])
        before = float(query.get("before", str(time.time())))
        return {"events": self.fake.events(before, int(query.get("limit", "100")))}

    def stream(self) -> None:
        """Sends frames until the stream is dropped."""
        fake, generation = self.fake, self.fake.generation
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        number = 0
        while generation == fake.generation:
            if not fake.paused and number < fake.frames:
                try:
                    self.wfile.write(f"data: {json.dumps(fake.frame(number))}\n\n".encode())
                    self.wfile.flush()
                except OSError:
                    break
                number += 1
                fake.sent += 1
            time.sleep(fake.interval)
        self.close_connection = True


class Server(ThreadingHTTPServer):
    """Does not wait for streams when it closes."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_arguments: object) -> None:
        """A browser closes connections as it likes."""


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """Serves the page of a cluster, on the port that it had before, if any."""
    handler = type("Bound", (Handler,), {"fake": fake})
    with Server(("127.0.0.1", fake.port), handler) as server:
        fake.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            fake.generation += 1
            server.shutdown()
            thread.join()
