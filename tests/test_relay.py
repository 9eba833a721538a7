"""Two hosts that can't reach each other while a third reaches both: the third relays their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faults.crew import Crew
from hoplite_bench.lab import Lab
from labs import needs_lab
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hoplite_bench.lab import Host
    from hoplite_bench.lab.hosts import Direction

pytestmark = [needs_lab, pytest.mark.lab]

COUNT = 2**19
# Twice the detection time until the connection counts as broken, and a second or two to find a relay.
CALL_S = 15.0


@pytest.fixture
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with Lab(hosts=getattr(request, "param", 3)) as lab, Crew(lab, capacity="256MiB", detection_s=1.0) as crew:
        yield crew


def owned_by(crew: Crew, owner: int, what: str) -> str:
    """Returns a name whose primary owner is the given host."""
    caller, wanted = crew.actors[2], crew.actors[owner].id
    names = (f"{what}{number}/x" for number in range(1000))
    return next(name for name in names if caller.send("owners", ref=name).result(CALL_S).facts["owners"][0] == wanted)


def ways(crew: Crew, host: int) -> dict[str, str | None]:
    return crew.actors[host].send("ways").result(CALL_S).facts["ways"]  # type: ignore[no-any-return]


@pytest.mark.faults("hosts are cut off")
@pytest.mark.parametrize("direction", ["both", "out"])
def test_every_verb_works_between_hosts_that_can_not_reach_each_other(crew: Crew, direction: Direction) -> None:
    a, b, c = crew.actors
    far, near = owned_by(crew, 1, "far"), owned_by(crew, 0, "near")
    a.host.cut(direction, b.host)
    # The other host owns the name, and only the other host has the bytes.
    for source, receiver, name in ((a, b, far), (b, a, near)):
        put = source.send("put", ref=name, count=COUNT, seed=3).result(CALL_S)
        assert not put.error, put.message
        got = receiver.send("get", ref=name, timeout=CALL_S, seeds=[3]).result(CALL_S)
        assert (got.error, got.facts.get("wrong")) == ("", ""), got.message
    folded = a.send(
        "reduce", refs=[far, near], count=2, name=f"{near}-sum", timeout=CALL_S, seeds={far: 3, near: 3}
    ).result(CALL_S)
    assert (folded.error, folded.facts.get("wrong")) == ("", ""), folded.message
    deleted = b.send("delete", refs=[far, near, f"{near}-sum"], timeout=CALL_S).result(CALL_S)
    assert not deleted.error, deleted.message
    crew.wait_until_empty()
    # No node was declared dead.
    assert [sorted(reply.facts["members"]) for reply in crew.status()] == [sorted([a.id, b.id, c.id])] * 3
    assert ways(crew, 0)[b.id] == c.id
    assert ways(crew, 1)[a.id] == c.id
    assert set(ways(crew, 2).values()) == {None}
    a.host.heal(other=b.host)
    eventually(lambda: set(ways(crew, 0).values()) == {None} and set(ways(crew, 1).values()) == {None})
    assert not a.send("put", ref=far, count=8, seed=4).result(CALL_S).error
    assert b.send("get", ref=far, timeout=CALL_S, seeds=[4]).result(CALL_S).facts == {"wrong": ""}


def freeze(host: Host) -> None:
    host.freeze()


def kill(host: Host) -> None:
    host.kill()


@pytest.mark.faults("hosts are cut off")
@pytest.mark.parametrize("crew", [4], indirect=True)
@pytest.mark.parametrize("breaks", [freeze, kill])
def test_another_relay_replaces_a_frozen_or_killed_one(crew: Crew, breaks: Callable[[Host], None]) -> None:
    a, b, c, d = crew.actors
    far = owned_by(crew, 1, "far")
    a.host.cut(other=b.host)
    assert not a.send("put", ref=far, count=8, seed=3).result(CALL_S).error
    # The put may have succeeded at the backup owner before there was a relay.
    eventually(lambda: ways(crew, 0)[b.id] is not None)
    relay = next(actor for actor in (c, d) if actor.id == ways(crew, 0)[b.id])
    other = d if relay is c else c
    breaks(relay.host)
    got = b.send("get", ref="late", timeout=CALL_S, seeds=[5])
    put = a.send("put", ref="late", count=COUNT, seed=5).result(CALL_S)
    assert not put.error, put.message
    assert (got.result(CALL_S).error, got.result().facts.get("wrong")) == ("", "")
    gone = a.send("delete", refs=[far, "late"], timeout=CALL_S).result(CALL_S)
    assert not gone.error, gone.message
    eventually(lambda: ways(crew, 0)[b.id] == ways(crew, 1)[a.id] == other.id)
    a.host.heal(other=b.host)
    crew.repair()
