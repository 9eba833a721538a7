"""The place of a node's host: from a rack or a topology file, and the errors for an invalid file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from hoplite import Node, settings
from support import eventually

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in settings.VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def layout(**more: object) -> dict[str, Any]:
    """Returns three loopback hosts in three racks of two pods, and one without a place."""
    hosts = [
        {"name": "h0", "address": "127.0.0.1", "groups": ["pod-0", "rack-0"]},
        {"name": "h1", "addresses": ["10.9.9.9", "127.0.0.2"], "groups": ["pod-0", "rack-1"]},
        {"name": "h2", "address": "127.0.0.3", "groups": ["pod-1", "rack-2"]},
        {"name": "h3", "address": "127.0.0.4"},
    ]
    uplinks = {"rack-0": 4e9, "pod-0": 1.1e9}
    return {"format": "hoplite topology 1", "hosts": hosts, "uplinks": uplinks, "nic": 1e9} | more


def write(tmp_path: Path, document: object) -> Path:
    file = tmp_path / "topology.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_nodes_find_their_places_by_address_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, layout(times_us=[[None]], measured={"anything": 1}, quality="good"))
    monkeypatch.setenv("HOPLITE_TOPOLOGY", str(file))
    with (
        Node(listen="127.0.0.1:0", no_auth=True) as one,
        Node(listen="127.0.0.2:0", join=[one.address], no_auth=True) as two,
        Node(listen="127.0.0.1:0", join=[one.address], topology_host="h2", rack="x", no_auth=True) as three,
        Node(listen="0.0.0.0:0", advertise="127.0.0.4", join=[one.address], no_auth=True) as four,
    ):
        expected = {
            one.id: ["pod-0", "rack-0"],
            two.id: ["pod-0", "rack-1"],
            three.id: ["pod-1", "rack-2"],
            four.id: None,
        }
        with two.client() as client:
            eventually(lambda: len(client.status()["members"]) == len(expected))
            members = client.status()["members"]
            assert {member["id"]: member["place"] for member in members} == expected
            carries = {one.id: [2, 4], two.id: [2, None], three.id: [None, None], four.id: None}
            assert {member["id"]: member["carries"] for member in members} == carries
            assert client.status()["rack"] == "rack-1"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "is not valid JSON"),
        ([], 'not a topology: set "format" to "hoplite topology 1"'),
        ({"format": "hoplite topology 2"}, "not a topology"),
        (layout(racks=[]), 'unknown key "racks": use format, hosts'),
        (layout(hosts=[]), '"hosts" must be a list'),
        (layout(hosts=[{"address": "127.0.0.1"}]), r'"hosts"\[0\] has no "name"'),
        (layout(hosts=[{"name": "a", "rack": "b"}]), r'"hosts"\[0\]: unknown key "rack"'),
        (layout(hosts=[{"name": "a", "address": "b"}]), "'b' is not an IP address"),
        (layout(hosts=[{"name": "a", "address": "::1", "addresses": []}]), "remove one of them"),
        (layout(hosts=[{"name": "a"}, {"name": "a"}]), r"\"hosts\"\[1\] has the same name 'a' as \"hosts\"\[0\]"),
        (layout(hosts=[{"name": n, "address": "::1"} for n in "ab"]), r"\[1\] has the same address ::1"),
        (layout(hosts=[{"name": "a", "groups": list("abcde")}]), '"groups" has 5 labels: list at most 4'),
        (layout(hosts=[{"name": "a", "groups": ["x" * 64]}]), "at most 63 printable bytes"),
        (layout(hosts=[{"name": "a", "groups": ["x" * 50, "y" * 50]}]), "exceed 94 bytes in total"),
        (layout(hosts=[{"name": "a", "groups": "b"}]), '"groups" must be a string, or a list'),
        (layout(uplinks={"rack-9": 1e9}), "\"uplinks\" has the group 'rack-9', which has no hosts"),
        (layout(uplinks={"rack-0": "fast"}), '"uplinks" of \'rack-0\' is "fast"'),
        (layout(uplinks=[]), '"uplinks" must be an object'),
        (layout(uplinks={"rack-0": 1e15}), "above 0 and below 1e\\+15"),
        (layout(nic=0), '"nic" is 0: set a number of bits per second above 0'),
    ],
)
def test_an_invalid_topology_file_is_rejected(document: object, problem: str, tmp_path: Path) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=problem):
        Node(listen="127.0.0.1:0", topology=write(tmp_path, document))


def test_nodes_of_one_host_are_not_surveyed() -> None:
    with Node(listen="127.0.0.1:0") as node, node.client() as client:
        assert client.status()["survey"] == "none"
    with pytest.raises(hoplite.InvalidArgument, match="no effect without a topology file"):
        Node(topology="measure", topology_host="h0")


def test_a_host_missing_in_the_file_is_rejected(tmp_path: Path) -> None:
    file = write(tmp_path, layout())
    with pytest.raises(hoplite.InvalidArgument, match=r"no host 'h9' \(topology_host\): set one of h0, h1, h2, h3"):
        Node(topology=file, topology_host="h9")
    with pytest.raises(hoplite.InvalidArgument, match=r"no host has the address 127\.0\.0\.9: .* one of h0, h1"):
        Node(listen="127.0.0.9:0", topology=file)
    with pytest.raises(hoplite.InvalidArgument, match=r"has no TCP address.*set topology_host"):
        Node(topology=file)
    with pytest.raises(hoplite.InvalidArgument, match="no effect without a topology file"):
        Node(topology_host="h0")
    with pytest.raises(hoplite.InvalidArgument, match=r"can't read the topology in .*none\.json"):
        Node(topology=tmp_path / "none.json")
