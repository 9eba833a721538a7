"""A status has the fields and types that `hoplite.node_status` declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import testing
from hoplite.node_status import Status, Suspicion
from hoplite.tools import certificates
from programs import frozen
from support import eventually
from typed import mismatches

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.faults("a node is paused")
def test_every_field_of_a_status_has_its_type(tmp_path: Path) -> None:
    """Every list has a row and every optional field a value: groups, a revocation list, a limit and a lost member."""
    certificates.make_ca(tmp_path)
    shared_options = [
        "--ca",
        f"{tmp_path}/ca.crt",
        "--crl",
        f"{tmp_path}/crl.pem",
        "--detection-timeout",
        "1",
        "--rack",
        "a",
    ]
    own = []
    for name in ("one", "two"):
        certificates.make_certificate(tmp_path, name)
        own.append(["--certificate", f"{tmp_path}/{name}.crt", "--key", f"{tmp_path}/{name}.key"])
    with (
        testing.node_process(*shared_options, *own[0]) as node,
        testing.node_process(*shared_options, *own[1], "--join", node.address) as other,
        node.client() as client,
    ):
        client.put(b"x")
        with pytest.raises(hoplite.InvalidArgument):
            client.wait([f"none/{number}" for number in range(65_537)], timeout=0)

        def has_lost() -> bool:
            assert mismatches(client.status(), Status) == []
            return bool(client.status()["lost"])

        with frozen(other.process):
            eventually(has_lost)
            status = client.status()
        assert mismatches(status, Status) == []
        assert status["place"] == ["a"]
        assert status["revocations"] is not None
        assert [row["limit"] for row in status["limits"]] == ["WAIT_OBJECTS_MAX"]


def test_a_field_that_differs_is_named() -> None:
    assert mismatches({"by": "x", "seconds": True}, Suspicion) == [".seconds is True, not <class 'float'>"]
    (problem,) = mismatches({"by": "x"}, Suspicion)
    assert problem.endswith("whose fields are not ['by', 'seconds']")
