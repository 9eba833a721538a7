"""A network that limits each TCP connection: large objects arrive on several, and nothing fails for it."""

from __future__ import annotations

import pytest

from faults.crew import Crew
from hoplite_bench.lab import Lab
from labs import needs_lab

pytestmark = [needs_lab, pytest.mark.lab]

# 72 MB: more than the smallest object that may arrive on several connections.
COUNT = 9_000_000
OBJECTS = 4
CALL_S = 60.0


def test_a_large_object_arrives_on_several_connections_if_each_is_limited() -> None:
    with Lab(hosts=2, rate="400mbit", flow_cap="100mbit") as lab, Crew(lab) as crew:
        source, receiver = crew.actors
        connections = [1]
        for number in range(OBJECTS):
            put = source.send("put", ref=f"weights/{number}", count=COUNT, seed=number).result(CALL_S)
            assert not put.error, put.message
            got = receiver.send("get", ref=f"weights/{number}", timeout=CALL_S, seeds=[number]).result(CALL_S)
            assert (got.error, got.facts.get("wrong")) == ("", ""), got.message
            status = receiver.send("status").result(CALL_S).facts
            assert not any(status["counters"].values()), status["counters"]
            connections.append(status["connections"])
        assert max(connections) > 1, connections
