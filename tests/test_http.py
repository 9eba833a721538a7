"""The live page and the metrics over HTTP: keys, frames, lists and failures, of a fake cluster and of real nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from commands import COMMAND, run
from fake_activity import FakeCluster
from hoplite import viewers
from hoplite.tools.http.metrics import FAMILIES, Family, facts_of, prefixes_of
from hoplite.tools.observe.readers import PREFIXES_MAX
from hoplite_bench import observed
from support import SOON, eventually

try:
    import httpx
    import uvicorn

    from hoplite.tools.http import serve
except ImportError:
    pytest.skip("needs the extra http; make test-operations has it", allow_module_level=True)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.operations

assert uvicorn

KEY = "0123456789abcdef"
Row = dict[str, Any]


@contextlib.contextmanager
def served(cluster: FakeCluster, *keys: str) -> Iterator[httpx.Client]:
    """Serves node 0 of a fake cluster; yields an HTTP client that presents the first key."""
    server = serve(socket.create_server(("127.0.0.1", 0)), keys)
    server.start(cluster.client())  # type: ignore[arg-type] # a fake
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    try:
        with httpx.Client(base_url=server.url, headers=headers, timeout=SOON) as client:
            yield client
    finally:
        server.close()


def frames(client: httpx.Client, count: int) -> list[Row]:
    """Returns the first frames of the stream."""
    found: list[Row] = []
    with client.stream("GET", "/api/stream") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        for line in reply.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == count:
                    return found
    raise AssertionError("the stream ended")


def samples(text: str) -> dict[str, float]:
    """Returns the value of each sample of a scrape, by name and labels."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line and not line.startswith("#")
    }


def later(cluster: FakeCluster, seconds: float = 5.0) -> FakeCluster:
    """Moves the time of a fake cluster."""
    cluster.advance(seconds)
    return cluster


API = ("/metrics", "/api/stream", "/api/objects", "/api/object?ref=x", "/api/events", "/page.js")


def test_without_a_key_only_the_login_form_and_health_are_served() -> None:
    with served(later(FakeCluster(4)), KEY) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"hoplite_viewer={KEY}"}):
            with httpx.Client(base_url=client.base_url, headers=headers) as stranger:
                for path in API:
                    reply = stranger.get(path)
                    assert (path, reply.status_code) == (path, 401)
                    assert "hoplite token viewer" in reply.json()["error"]
                page = stranger.get("/")
                assert page.status_code == 401
                assert 'action="/login"' in page.text
                assert stranger.get("/healthz").text == "ok\n"


def test_a_browser_gets_a_cookie_for_https_only_behind_a_proxy_with_tls() -> None:
    with served(later(FakeCluster()), KEY) as client:
        for headers, name in (({}, "hoplite_viewer"), ({"X-Forwarded-Proto": "https"}, "__Host-hoplite_viewer")):
            login = httpx.post(f"{client.base_url}/login", data={"key": KEY}, headers=headers, timeout=SOON)
            cookie = login.headers["set-cookie"].split("; ")
            assert cookie[0].startswith(f"{name}=")
            # What a browser requires of this prefix.
            assert ("Secure" in cookie) == name.startswith("__Host-")
            assert "Path=/" in cookie
            assert not any(part.startswith("Domain") for part in cookie)
            browser = {"Cookie": cookie[0]}
            assert httpx.get(f"{client.base_url}/api/events", headers=browser, timeout=SOON).status_code == 200


def test_a_browser_logs_in_with_the_key_and_gets_a_cookie() -> None:
    with (
        served(later(FakeCluster(4)), "another-key-of-16", KEY) as client,
        httpx.Client(base_url=client.base_url, follow_redirects=True) as browser,
    ):
        assert browser.post("/login", data={"key": "wrong"}).status_code == 401
        assert browser.get("/").status_code == 401
        page = browser.post("/login", data={"key": f" {KEY} "})
        assert (page.status_code, page.url.path) == (200, "/")
        assert "page.js" in page.text
        cookie = page.history[0].headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        assert KEY not in cookie
        assert browser.get("/api/events").status_code == 200
        assert browser.post("/login", content=b"key=" + b"x" * 10_000).status_code == 413


def test_every_reply_has_the_headers_that_confine_the_page() -> None:
    with served(later(FakeCluster(4)), KEY) as client:
        for path in ("/", "/api/events", "/metrics", "/missing"):
            headers = client.get(path).headers
            assert headers["content-security-policy"].startswith("default-src 'self'")
            assert headers["x-content-type-options"] == "nosniff"
        assert client.get("/missing").status_code == 404
        for method in ("POST", "PUT", "DELETE"):
            assert client.request(method, "/api/objects").status_code == 405


def test_a_name_that_others_can_define_is_rejected() -> None:
    with served(later(FakeCluster(4))) as client:
        assert client.get("/api/events").status_code == 200
        assert client.get("/api/events", headers={"Host": "evil.example"}).status_code == 421
        assert client.get("/api/events", headers={"Host": "evillocalhost"}).status_code == 421
        assert client.get("/api/events", headers={"Host": "localhost:1"}).status_code == 200
        assert client.get("/api/events", headers={"Host": "hoplite.localhost:1"}).status_code == 200


def test_frames_arrive_as_server_sent_events() -> None:
    cluster = later(FakeCluster(6), 0.6)
    with served(cluster, KEY) as client:
        first, second = frames(client, 2)
    assert (first["full"], second["full"], second["number"]) == (True, False, 2)
    assert [node["id"] for node in first["nodes"]] == cluster.ids
    assert len(first["trees"][0]["edges"]) == 5


def test_several_viewers_share_one_observer_and_each_has_a_full_frame() -> None:
    with served(later(FakeCluster(6), 0.6), KEY) as client:
        for _ in range(3):
            assert frames(client, 1)[0]["full"]


def test_objects_are_listed_in_parts() -> None:
    with served(later(FakeCluster(5)), KEY) as client:
        everything = client.get("/api/objects", params={"limit": 1000}).json()
        assert not everything["more"]
        refs = [row["ref"] for row in everything["rows"]]
        assert len(refs) > 5
        for sort in ("ref", "bytes"):
            found: list[str] = []
            after = ""
            while True:
                part = client.get("/api/objects", params={"sort": sort, "limit": 2, "after": after}).json()
                found += [row["ref"] for row in part["rows"]]
                if not part["more"]:
                    break
                assert len(part["rows"]) == 2
                after = found[-1]
            assert sorted(found) == sorted(refs)
        some = client.get("/api/objects", params={"prefix": "grads/"}).json()["rows"]
        assert some
        assert all(row["ref"].startswith("grads/") for row in some)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-5", "limit=1e999"], ids=lambda query: query.partition("=")[2]
)
def test_a_query_that_is_not_valid_is_an_error_of_the_caller(query: str) -> None:
    with served(later(FakeCluster(4)), KEY) as client:
        reply = client.get(f"/api/objects?{query}")
        assert reply.status_code == 400
        assert "limit is" in reply.json()["error"]
        assert client.get("/api/object").status_code == 400
        assert client.get("/api/events?before=nan").status_code == 400


def test_too_many_objects_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    from hoplite.tools.http import objects

    monkeypatch.setattr(objects, "SORTED_MAX", 1)
    with served(later(FakeCluster(4)), KEY) as client:
        assert "sort by ref" in client.get("/api/objects?sort=bytes").json()["error"]
        assert client.get("/api/objects?sort=ref").status_code == 200


def test_an_object_has_copies_and_a_story() -> None:
    cluster = later(FakeCluster(5))
    with served(cluster, KEY) as client:
        found = client.get("/api/object", params={"ref": "weights/0"}).json()
        assert found["row"]["ref"] == "weights/0"
        assert {copy["node"] for copy in found["locations"]} == set(cluster.ids)
        assert "began to write 64.0 MiB" in found["story"][0]["text"]
        missing = client.get("/api/object", params={"ref": "none"}).json()
        assert missing == {"row": None, "locations": [], "story": []}


def test_older_events_are_paged_and_filtered() -> None:
    cluster = later(FakeCluster(5))
    with served(cluster, KEY) as client:
        newest = client.get("/api/events", params={"limit": 10}).json()["events"]
        # A page ends between two times, so that the next one skips no event.
        assert len(newest) >= 10
        assert {event["time"] for event in newest[10:]} <= {newest[9]["time"]}
        older = client.get("/api/events", params={"limit": 10, "before": newest[-1]["time"]}).json()["events"]
        assert all(event["time"] < newest[-1]["time"] for event in older)
        query = {"kind": "fetched", "node": cluster.ids[2]}
        fetched = client.get("/api/events", params=query).json()["events"]
        assert {(event["kind"], event["node"]) for event in fetched} == {("fetched", cluster.ids[2])}


def test_a_node_that_ends_leaves_the_page_running() -> None:
    cluster = later(FakeCluster(5, failed={0: 8.0, 2: 6.0}))
    with served(cluster, KEY) as client:
        assert client.get("/metrics").status_code == 200
        cluster.advance(2.0)
        states = {node["id"]: node["state"] for node in frames(client, 1)[0]["nodes"]}
        assert states[cluster.ids[2]] == "dead"
        # The node that is shown.
        cluster.advance(2.0)
        reply = client.get("/metrics")
        assert (reply.status_code, "has failed" in reply.json()["error"]) == (503, True)
        assert client.get("/healthz").status_code == 200


def test_closing_ends_streams_and_frees_the_port() -> None:
    server = serve(socket.create_server(("127.0.0.1", 0)), [])
    server.start(later(FakeCluster(4)).client())  # type: ignore[arg-type] # a fake
    port = int(server.url.rpartition(":")[2])
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream("GET", f"{server.url}/api/stream", timeout=SOON) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        server.close()
        list(lines)
    server.close()
    socket.create_server(("127.0.0.1", port)).close()


def test_metrics_of_a_node_in_both_formats() -> None:
    cluster = later(FakeCluster(6), 25.0)
    with served(cluster, KEY) as client:
        plain = client.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain")
        found = samples(plain.text)
        opened = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert opened.text.endswith("# EOF\n")
    assert found['hoplite_objects{state="complete"}'] > 0
    assert found['hoplite_membership_events_total{state="suspected"}'] >= 0
    assert found['hoplite_directory_seconds_bucket{le="0.001",operation="locate"}'] >= 0
    assert found['hoplite_peer_rtt_seconds{peer="10.0.0.2:7420"}'] == pytest.approx(101e-6)


def test_the_lag_of_a_reader_is_exported() -> None:
    cluster = later(FakeCluster(4), 25.0)
    facts = facts_of(cluster.client().inspect("metrics", node=cluster.ids[3]), {"weights/": 7})
    family = next(family for family in FAMILIES if family.name == "reader_lag_versions")
    ((labels, lag),) = family.samples(facts)
    assert (labels[0], lag) == ("weights/", 6)


def test_only_prefixes_whose_newest_version_was_looked_up_are_exported() -> None:
    reads = [{"prefix": f"policy{number}", "version": 3, "process": 1, "since": 0.0} for number in range(266)]
    newest = dict.fromkeys(prefixes_of({"reads": reads}), 5)
    facts = facts_of({"reads": reads}, newest)
    assert len(facts["newest"]) == len(facts["readers"]) == PREFIXES_MAX
    # The lag of any other is unknown, and not 0.
    assert {row["lag"] for row in facts["readers"].values()} == {2}


def test_what_an_old_node_lacks_is_left_out() -> None:
    replies: tuple[Row, ...] = (
        {},
        {"status": {"store": {}}},
        {"peers": None, "latencies": {}, "states": {"complete": {}}},
    )
    for reply in replies:
        facts = facts_of(reply, {})
        found = {family.name for family in FAMILIES for _ in family.samples(facts)}
        assert found == {"node_info", "members", "members_suspected", "members_lost"}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_follow_the_conventions_of_prometheus(family: Family) -> None:
    assert re.fullmatch(r"hoplite_[a-z][a-z_]*", family.full_name)
    assert family.full_name.endswith("_total") == (family.kind == "counter")
    stem = family.full_name.removesuffix("_total")
    if family.unit in ("bytes", "seconds"):
        assert stem.endswith(f"_{family.unit}")
    assert family.help.endswith(".")


def test_a_node_serves_its_page_and_ends_it(tmp_path: Path) -> None:
    with hoplite.Node(http=0, capacity="64MiB", socket=tmp_path / "node.sock") as node:
        assert node.http is not None
        key = viewers.viewer_keys(hoplite.settings.load(http_key_file=None, token=None, token_file=None, no_auth=None))
        headers = {"Authorization": f"Bearer {key[0]}"}
        assert httpx.get(f"{node.http}/metrics").status_code == 401
        with node.client() as client:
            client.put(b"x" * 100_000, name="served/1")
            client.put(b"x" * 100_000, name="served/2")
            client.get("served/1")
        found = samples(httpx.get(f"{node.http}/metrics", headers=headers, timeout=SOON).text)
        assert found['hoplite_objects{state="complete"}'] == 2
        assert found["hoplite_puts_total"] == 2
        rows = httpx.get(f"{node.http}/api/objects", headers=headers, timeout=SOON).json()["rows"]
        assert [row["ref"] for row in rows] == ["served/1", "served/2"]
        port = int(node.http.rpartition(":")[2])
    socket.create_server(("127.0.0.1", port)).close()
    assert hoplite.Node(capacity="64MiB", socket=tmp_path / "other.sock").http is None


def test_the_command_serves_the_page_of_a_node_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with hoplite.Node(capacity="64MiB", socket=path):
        command = [*COMMAND, "page", "--http", "0", "--socket", str(path), "--json"]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        tmp_path.chmod(0o700)
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as page,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(page.kill)
            assert page.stdout is not None
            url = json.loads(page.stdout.readline())["http"]
            key = run("token", "viewer", XDG_RUNTIME_DIR=str(tmp_path)).stdout.strip()
            headers = {"Authorization": f"Bearer {key}"}
            assert httpx.get(f"{url}/metrics", headers=headers, timeout=SOON).status_code == 200
            assert httpx.get(f"{url}/metrics", timeout=SOON).status_code == 401
            port = url.rpartition(":")[2]
            assert "used by another process" in run("page", "--http", port, "--socket", path, code=1).stderr
            page.send_signal(signal.SIGINT)
            assert page.wait(SOON) == 0


def test_the_cost_of_a_viewer_is_measured() -> None:
    found = observed.measure(1 << 20, blocks=1, seconds=1.5)
    assert found["rounds"] >= 2
    assert found["frames"] >= 1
    assert min(found["alone_s"], found["watched_s"]) > 0


def test_a_child_made_by_fork_does_not_hold_the_port(tmp_path: Path) -> None:
    program = """
import hoplite, os, sys, time
node = hoplite.Node(http=0, capacity="64MiB", socket=sys.argv[1])
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print(node.http.rpartition(":")[2], flush=True)
node.close()
print("closed", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "node.sock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert parent.stdout.readline() == "closed\n"
        eventually(lambda: _is_free(port))
        assert parent.stdin is not None
        parent.stdin.close()


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
