"""`hoplite topology watch` on small clusters, and its results from reports of nodes."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import hoplite
from hoplite import Node
from hoplite_topology import watching
from hoplite_topology.cli.topology import topology
from hoplite_topology.problem import Wanted

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite.node_status import Status


def run(*options: object) -> tuple[int, str]:
    done = CliRunner().invoke(topology, ["watch", *map(str, options)])
    # The command itself prints what was raised; this runner keeps it.
    return done.exit_code, f"{done.output}{done.exception or ''}"


def status(number: int, members: list[dict[str, Any]]) -> dict[str, Any]:
    return {**members[number], "members": members, "survey": "found"}


def members(racks: str) -> list[dict[str, Any]]:
    """Members whose racks are letters, on a network of equal round trips."""
    return [
        {
            "id": f"{number}",
            "address": f"10.0.0.{number}:7420",
            "place": [rack] if rack != "-" else None,
            "carries": [None] if rack != "-" else None,
            "rtt_us": 80,
            "bytes_per_second": 125_000_000,
        }
        for number, rack in enumerate(racks, 1)
    ]


@pytest.mark.parametrize(
    ("racks", "has_proposal"), [("abababab", True), ("aaaabbbb", False), ("bbbbaaaa", False), ("--------", False)]
)
def test_an_order_that_goes_from_rack_to_rack_and_back_is_proposed_to_change(racks: str, has_proposal: bool) -> None:
    every = members(racks)
    seen = watching.picture([status(number, every) for number in range(len(every))])
    found = watching.look(seen, Wanted("ring"))
    assert seen.pairs_known == 28
    assert (found.proposal is not None) == has_proposal
    if found.proposal is not None:
        assert found.gain is not None
        assert found.gain > watching.GAIN_MIN
        in_order = [racks[int(address.split(":")[0].split(".")[3]) - 1] for address in found.proposal]
        assert sum(a != b for a, b in zip(in_order, in_order[1:] + in_order[:1], strict=True)) == 2


def test_members_without_reported_round_trips_are_noted() -> None:
    every = members("abab")
    seen = watching.picture([status(0, every)])
    assert seen.pairs_known == 3
    assert any("3 pairs have no time" in note for note in watching.look(seen, Wanted("ring")).notes)


def test_links_carry_what_nodes_say_and_else_what_is_assumed() -> None:
    """Two pods of two racks of two; ranks alternate between pods."""
    every = members("aaaabbbb")
    order = [every[number]["address"] for number in (0, 4, 1, 5, 2, 6, 3, 7)]
    assumed = "assuming that a cluster's uplink has a quarter of the rate of its machines' links"
    costs = []
    for carries in ([None, None], [4, 2], [1, 2]):
        for number, member in enumerate(every):
            member.update(place=["aabb"[number // 2], f"rack {number // 2}"], carries=carries)
        seen = watching.picture([status(number, every) for number in range(8)], order)
        racks = {f"rack {number}": 2 for number in range(4)}
        known = {} if carries[0] is None else {"a": carries[0], "b": carries[0]} | racks
        found = watching.look(seen, Wanted("ring"))
        assert found.as_json()["carries"] == known
        assert any(assumed in note for note in found.notes) == (not known), found.notes
        costs.append(found.cost)
    _, wide, narrow = costs
    assert wide is not None
    assert narrow is not None
    # All four hosts of a pod send out of it at once, over a link that carries all of them, or one.
    assert narrow > 2 * wide


def test_an_order_is_one_of_the_members() -> None:
    every = members("abab")
    for order, said in [
        (["10.0.0.9"], "no member has the address '10.0.0.9': use one of 10.0.0.1:7420"),
        (["10.0.0.1", "10.0.0.1:7420"], "is a duplicate"),
        (["10.0.0.1", "10.0.0.2", "10.0.0.3"], "the order lacks 10.0.0.4:7420"),
    ]:
        with pytest.raises(hoplite.InvalidArgument, match=said):
            watching.picture([status(0, every)], order)
    stranger = {**every[1], "id": "stranger", "members": every, "survey": "none"}
    with pytest.raises(hoplite.InvalidArgument, match="is not a member of the cluster"):
        watching.picture([status(0, every), stranger])


def test_a_running_cluster_is_watched(tmp_path: Path) -> None:
    """Nodes of one host; every second one is configured with another rack."""
    with contextlib.ExitStack() as stack:
        nodes: list[Node] = []
        paths = [tmp_path / f"{number}.sock" for number in range(4)]
        for number, path in enumerate(paths):
            join = nodes[0].address if nodes else []
            node = Node(listen="127.0.0.1:0", join=join, rack="ab"[number % 2], socket=path)
            nodes.append(stack.enter_context(node))
        clients = [stack.enter_context(node.client()) for node in nodes]
        while any(_known(client.status()) < 3 for client in clients):
            time.sleep(0.05)
        order = tmp_path / "order"
        order.write_text("# ranks\n" + "\n".join(node.address for node in nodes))
        sockets = [word for path in paths for word in ("--socket", str(path))]
        code, said = run("--once", "--json", "--order", order, *sockets)
        found = json.loads(said)
        assert (code, found["order"]) == (0, [node.address for node in nodes])
        assert found["places"] == [["a"], ["b"], ["a"], ["b"]]
        assert found["survey"] == "none"
        assert sorted(found["proposal"]) == sorted(found["order"])
        code, said = run("--once", "--order", order, *sockets)
        assert (code, "proposal: ring in" in said) == (0, True), said

        order.write_text("10.9.9.9\n")
        code, said = run("--once", "--order", order, "--socket", paths[0])
        assert code == 1
        assert "no member has the address '10.9.9.9'" in said
        order.write_text("\n")
        code, said = run("--once", "--order", order, "--socket", paths[0])
        assert (code, "has no address" in said) == (1, True)


def _known(status: Status) -> int:
    return sum(1 for member in status["members"] if member["rtt_us"])


def test_without_a_node_the_error_names_the_socket(tmp_path: Path) -> None:
    code, said = run("--once", "--socket", tmp_path / "none.sock")
    assert code == 1
    assert "none.sock" in said
