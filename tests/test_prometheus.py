"""Debian's Prometheus scrapes real nodes; the dashboard and the alerts ask only for metrics that exist."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from hoplite.tools.http.metrics import FAMILIES, HISTOGRAM
from support import SOON, eventually
from test_docs import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "hoplite.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
PAGE = ROOT / "docs" / "operations.md"

# Names of samples that a node can export.
NAMES = {family.full_name for family in FAMILIES if family.kind != HISTOGRAM} | {
    f"{family.full_name}{suffix}"
    for family in FAMILIES
    if family.kind == HISTOGRAM
    for suffix in ("_bucket", "_sum", "_count")
}

KEY = "0123456789abcdef"


def panels() -> list[dict[str, Any]]:
    """Returns the panels of the dashboard that show something."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def of_dashboard() -> list[str]:
    """Returns the queries of the dashboard, with its variables replaced as Grafana does."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [query.replace("$instance", ".*").replace("$__rate_interval", "1m") for query in found]


def of_alerts() -> list[str]:
    """Returns the expressions of the alerts."""
    text = re.sub(r">-\n", "", ALERTS.read_text())
    found = re.findall(r"^ +expr: (.*?)(?=^ +(?:for|annotations):)", text, re.MULTILINE | re.DOTALL)
    return [" ".join(query.split()) for query in found]


def block(how: str) -> str:
    """Returns a block of the page on operations."""
    return next(each.text for each in blocks(PAGE) if each.how == f"file {how}")


@pytest.mark.parametrize("query", [*of_dashboard(), *of_alerts()])
def test_a_query_uses_metrics_that_exist(query: str) -> None:
    names = set(re.findall(r"\bhoplite_\w+", query))
    assert names <= NAMES
    assert names or query.startswith("up")


def test_the_dashboard_has_distinct_panels_in_a_grid() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels()) > 10
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(set(places)) == len(places)
    assert len(of_alerts()) == ALERTS.read_text().count("- alert:")


def needs_prometheus() -> None:
    """Skips a test without Prometheus or the extra `http`."""
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: make operations-packages")
    pytest.importorskip("starlette")


@pytest.mark.operations
def test_promtool_accepts_the_alerts_and_the_configuration_of_the_page(tmp_path: Path) -> None:
    needs_prometheus()
    key = tmp_path / "key"
    key.write_text(KEY)
    config = tmp_path / "prometheus.yml"
    text = block("prometheus.yml").replace("/etc/prometheus/hoplite.key", str(key))
    config.write_text(text.replace("/etc/prometheus/hoplite-alerts.yml", str(ALERTS)))
    subprocess.run(["promtool", "check", "config", config], check=True, timeout=SOON, capture_output=True)


class Server:
    """A running Prometheus.

    Attributes:
        log: file to which it writes its messages.
    """

    def __init__(self, folder: Path, config: Path) -> None:
        self.log = folder / "prometheus.log"
        self._url = ""
        # It chooses a free port, and logs the address before it has read its storage and its configuration.
        storage = f"--storage.tsdb.path={folder / 'data'}"
        command = ["prometheus", f"--config.file={config}", storage, "--web.listen-address=127.0.0.1:0"]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(SOON)

    def wait_until_ready(self) -> None:
        """Waits until it serves requests: until then, it replies to each of them with an error."""
        import httpx

        def is_ready() -> bool:
            assert self._process.poll() is None, self.log.read_text()
            found = re.search(r"Listening on.*\baddress=(\S+:\d+)", self.log.read_text())
            if found is None:
                return False
            self._url = f"http://{found[1]}/api/v1"
            return bool(httpx.get(f"http://{found[1]}/-/ready", timeout=SOON).is_success)

        eventually(is_ready)

    def get(self, path: str, **parameters: str) -> Any:  # noqa: ANN401 - JSON
        """Returns the data of a reply."""
        import httpx

        reply = httpx.get(f"{self._url}/{path}", params=parameters, timeout=SOON).json()
        assert reply["status"] == "success", reply
        return reply["data"]

    def query(self, query: str) -> list[dict[str, Any]]:
        """Returns the samples of a query."""
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    def values(self, query: str) -> list[int]:
        """Returns the values of the samples of a query, in order."""
        return sorted(int(sample["value"][1]) for sample in self.query(query))

    def is_up(self, count: int) -> bool:
        """Whether all targets were scraped three times."""
        found = self.query('count_over_time(up{job="hoplite"}[1m])')
        return len(found) == count and all(int(sample["value"][1]) >= 3 for sample in found)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[Server, list[hoplite.Node]]]:
    """Prometheus, with the configuration of the page, and two nodes that moved objects."""
    needs_prometheus()
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    with contextlib.ExitStack() as stack:
        nodes: list[hoplite.Node] = []
        for number in range(2):
            node = hoplite.Node(
                listen="127.0.0.1:0",
                join=[node.address for node in nodes],
                capacity="64MiB",
                socket=tmp_path / f"{number}.sock",
                http=0,
                http_key_file=key,
            )
            nodes.append(stack.enter_context(node))
        targets = json.dumps([str(node.http).removeprefix("http://") for node in nodes])
        text = block("prometheus.yml").replace("/etc/prometheus/hoplite.key", str(key))
        text = re.sub(r"targets: .*", f"targets: {targets}", text)
        text = text.replace("/etc/prometheus/hoplite-alerts.yml", str(ALERTS))
        config = tmp_path / "prometheus.yml"
        config.write_text(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n{text}")
        server = Server(tmp_path, config)
        stack.callback(server.close)
        server.wait_until_ready()
        yield server, nodes


@pytest.mark.operations
def test_prometheus_scrapes_nodes_and_answers_all_queries(
    prometheus: tuple[Server, list[hoplite.Node]],
) -> None:
    server, nodes = prometheus
    with nodes[0].client() as one, nodes[1].client() as other:
        for version in range(3):
            one.put(bytes(1 << 20), name=f"policy/{version}")
        other.get("policy/0", timeout=SOON)
        one.get("policy/2", timeout=SOON)
        eventually(lambda: server.is_up(2))
        # The next scrape has what the last one lacked.
        eventually(lambda: server.values("hoplite_puts_total > 0") == [3])
        # Node 1 reads version 0 of 2.
        eventually(lambda: server.values('hoplite_reader_lag_versions{prefix="policy/"}') == [0, 2])
        for query in [*of_dashboard(), *of_alerts()]:
            server.query(query)
        rules = server.get("rules")["groups"][0]["rules"]
        eventually(lambda: all(rule["health"] == "ok" for rule in server.get("rules")["groups"][0]["rules"]))
        assert len(rules) == len(of_alerts())
        # A wrong family would be dropped silently.
        known = {name for name in server.get("label/__name__/values") if name.startswith("hoplite_")}
        assert known <= NAMES
        assert {
            "hoplite_transfers_total",
            "hoplite_peer_received_bytes_total",
            "hoplite_directory_seconds_bucket",
        } <= known


@pytest.mark.operations
def test_promtool_finds_no_fault_in_the_metrics(prometheus: tuple[Server, list[hoplite.Node]]) -> None:
    import httpx

    text = httpx.get(f"{prometheus[1][0].http}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=SOON).text
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=SOON, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.operations
def test_the_program_of_the_page_prints_a_url(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    program = f"import hoplite\n{block('node.py')}".replace("7480", "0")
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=True,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)},
    )
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+\n", done.stdout)
