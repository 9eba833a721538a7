"""HTTP interfaces of servers in front of engines in this process: what TRL calls of vLLM, and any other."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rl_models import Server

# Replies to GET, of which TRL reads single fields.
FACTS: dict[str, Any] = {"/health": {}, "/v1/models": {"data": [{"max_model_len": 64}]}}


@contextlib.contextmanager
def served(server: Server) -> Iterator[str]:
    """Serves engines on loopback. Yields the base URL."""

    def answer(path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        if body is None:
            return 200, FACTS[path]
        try:
            if path in ("/pause", "/resume"):
                server.calls.append(path[1:])
            elif path == "/init_weight_transfer_engine":
                server.init_weight_transfer_engine(body["init_info"])
            elif path == "/update_weights":
                server.update_weights(body["update_info"])
            else:
                {
                    "/start_weight_update": server.start_weight_update,
                    "/finish_weight_update": server.finish_weight_update,
                }[path]()
        except Exception as error:  # noqa: BLE001 - the server reports any error of its workers
            return 500, {"error": str(error)}
        return 200, {}

    with answering(answer) as url:
        yield url


@contextlib.contextmanager
def answering(answer: Callable[[str, dict[str, Any] | None], tuple[int, dict[str, Any]]]) -> Iterator[str]:
    """Serves JSON on loopback. Yields the base URL.

    Args:
        answer: returns the status and the reply, given the path and the body; None for a GET.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}"))

        def _reply(self, body: dict[str, Any] | None) -> None:
            status, reply = answer(urlsplit(self.path).path, body)
            text = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()
