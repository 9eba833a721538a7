"""Capabilities: a client with one can use only its verbs, below its prefix, until it expires."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import hoplite
import programs
from commands import run
from hoplite import Node, NotAllowed, _native, testing
from hoplite.capabilities import grant, narrow, read, text_of
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hoplite import Client

TOKEN = hoplite.new_token()
VERBS = ("put", "get", "delete", "reduce", "list")

# More bytes than are sent inside messages.
LARGE = 100_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes of one cluster with a token."""
    options: dict[str, Any] = {"token": TOKEN, "capacity": "64MiB"}
    with (
        Node(listen="127.0.0.1:0", socket=tmp_path / "a.sock", **options) as first,
        Node(join=[first.address], socket=tmp_path / "b.sock", **options) as second,
    ):
        yield first, second


@pytest.fixture
def full(pair: tuple[Node, Node]) -> Client:
    """A client of the first node without restrictions."""
    return pair[0].client()


def restricted(
    node: Node, prefix: str = "team-a/", *, verbs: list[str] | None = None, seconds: float | None = None
) -> Client:
    """Returns a client with a capability."""
    return hoplite.connect(node.socket, capability=grant(TOKEN, prefix, verbs=verbs, seconds=seconds))


class Call(NamedTuple):
    """A verb of a client and the verb of a capability that it needs; None accepts any.

    Attributes:
        method: method of the client, or of the ref.
        verb: verb of the capability.
        arguments: returns the arguments for the ref of an object.
    """

    method: str
    verb: str | None
    arguments: Callable[[str], tuple[list[Any], dict[str, Any]]]


def folder(ref: str) -> str:
    """Returns the text of a name before its last part."""
    return ref.rpartition("/")[0] + "/"


CALLS = {
    "put": Call("put", "put", lambda ref: ([b"x"], {"name": ref + "-new"})),
    "put large": Call("put", "put", lambda ref: ([bytes(LARGE)], {"name": ref + "-large"})),
    "create": Call("create", "put", lambda ref: ([LARGE], {"name": ref + "-created"})),
    "get": Call("get", "get", lambda ref: ([ref], {})),
    "get out": Call("get", "get", lambda ref: ([ref], {"out": np.empty(LARGE, "float32")})),
    "get several": Call("get", "get", lambda ref: ([["team-a/1", ref]], {})),
    "wait": Call("wait", "get", lambda ref: ([["team-a/2", ref]], {"count": 1})),
    "latest": Call("latest", "get", lambda ref: ([folder(ref)], {})),
    "reduce": Call("reduce", "reduce", lambda ref: ([[ref, "team-a/2"]], {})),
    "reduce into": Call("reduce", "reduce", lambda ref: ([["team-a/1", "team-a/2"]], {"name": ref + "-sum"})),
    "inputs": Call("inputs", "reduce", lambda _: ([], {})),
    "lost": Call("lost", "reduce", lambda _: ([], {})),
    "lease": Call("lease", "delete", lambda ref: ([ref], {})),
    "locations": Call("locations", None, lambda ref: ([ref], {})),
    "delete": Call("delete", "delete", lambda ref: ([ref], {})),
    "delete several": Call("delete", "delete", lambda ref: ([["team-a/9", ref]], {})),
}

# Methods of a ref.
OF_REFS = ("inputs", "lost")


def refusal(call: Call, client: Client, ref: str, *, is_async: bool) -> str | None:
    """Calls a verb and returns the text of its `NotAllowed` error, or None if it is allowed."""
    arguments, options = call.arguments(ref)
    target = hoplite.Ref(ref, client) if call.method in OF_REFS else client

    async def call_async() -> object:
        result: object = await getattr(target, call.method + "_async")(*arguments, **options, timeout=SOON)
        return result

    try:
        result = (
            asyncio.run(call_async()) if is_async else getattr(target, call.method)(*arguments, **options, timeout=SOON)
        )
    except NotAllowed as error:
        return str(error)
    except hoplite.InvalidArgument:
        # The object is not a reduce, but the lookup was allowed.
        if call.method in OF_REFS:
            return None
        raise
    if isinstance(result, hoplite.Buffer):
        result.discard()
    return None


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("name", CALLS)
def test_each_verb_works_only_inside_the_prefix(
    pair: tuple[Node, Node], full: Client, name: str, *, is_async: bool
) -> None:
    call = CALLS[name]
    for ref in ("team-a/1", "team-a/2", "team-b/1"):
        full.put(numbers(LARGE), name=ref)
    everything = restricted(pair[1])
    text = refusal(call, everything, "team-b/1", is_async=is_async)
    assert text is not None
    assert f"{call.verb or 'locations'} of " in text
    assert "is not allowed: this client has a capability for put,get,delete,reduce,list" in text
    assert 'use names that begin with "team-a/"' in text
    for verb in VERBS:
        only = restricted(pair[1], verbs=[verb], seconds=3600)
        text = refusal(call, only, "team-b/1", is_async=is_async)
        assert text is not None
        assert " UTC; " in text
        if call.verb not in (None, verb):
            assert f"get one with {call.verb}" in text
            text = refusal(call, only, "team-a/1", is_async=is_async)
            assert text is not None
            assert f"get one with {call.verb}" in text
            assert f'a capability for {verb} below "team-a/" until 2' in text
    # Rejected calls had no effect: the objects are unchanged.
    assert {each["ref"] for each in full.directory()} == {"team-a/1", "team-a/2", "team-b/1"}
    only = everything if call.verb is None else restricted(pair[1], verbs=[call.verb])
    assert refusal(call, only, "team-a/1", is_async=is_async) is None


def test_objects_without_a_name_get_refs_below_the_prefix(pair: tuple[Node, Node], full: Client) -> None:
    """Two clients of a tenant, at two nodes, exchange refs. Another tenant can't use them."""
    mine, ours, theirs = restricted(pair[0]), restricted(pair[1]), restricted(pair[1], "team-b/")
    array = numbers(LARGE)
    refs = [mine.put(b"small"), mine.put(array), mine.reduce([mine.put(array, name="team-a/1")])]
    with mine.create(LARGE, "float32") as buffer:
        buffer[...] = array
    refs.append(buffer.ref)
    assert all(str(ref).startswith("team-a/@") for ref in refs)
    assert len(set(refs)) == len(refs)
    assert ours.get(refs[0], timeout=SOON) == b"small"
    for ref in refs[1:]:
        same(ours.get(str(ref), timeout=SOON), array)
        same(full.get(ref, timeout=SOON), array)
    total = ours.reduce(refs[1:3])
    same(mine.get(total, timeout=SOON), array * 2)
    assert set(total.inputs(timeout=SOON)) == set(refs[1:3])
    for ref in refs:
        for verb in ("get", "delete", "locations", "lease"):
            with pytest.raises(NotAllowed, match="team-b/"):
                getattr(theirs, verb)(ref)
    # They can't use refs without a name and prefix either, which an unrestricted client has put.
    minted = full.put(array)
    for client in (mine, theirs):
        with pytest.raises(NotAllowed, match=str(minted)):
            client.get(minted, timeout=SOON)


def test_a_reservation_is_a_ref_below_the_prefix(pair: tuple[Node, Node]) -> None:
    mine, ours, theirs = restricted(pair[0]), restricted(pair[1]), restricted(pair[1], "team-b/")
    ref = mine.reserve()
    assert str(ref).startswith("team-a/@")
    got = Later(ours.get, ref, timeout=SOON)
    assert mine.put(b"as I said", name=ref) == ref
    assert got.result() == b"as I said"
    with pytest.raises(NotAllowed):
        theirs.put(b"another", name=ref)
    # Waiting gets fail when the reservation ends: its client closes, deletes it, or discards the buffer.
    ref = mine.reserve()
    got = Later(ours.get, ref, timeout=SOON)
    mine.delete(ref)
    with pytest.raises(hoplite.ObjectDeleted):
        got.result()
    with mine.create(3) as buffer:
        ref = buffer.ref
        got = Later(ours.get, ref, timeout=SOON)
        buffer.discard()
    with pytest.raises(hoplite.ObjectDeleted):
        got.result()
    ref = mine.reserve()
    got = Later(ours.get, ref, timeout=SOON)
    mine.close()
    with pytest.raises(hoplite.ObjectLost):
        got.result()


def test_a_listing_has_only_objects_below_the_prefix(pair: tuple[Node, Node], full: Client) -> None:
    mine = restricted(pair[0], verbs=["list", "put"])
    names = [f"team-{team}/{number}" for team in ("a", "ab", "b") for number in range(3)]
    for name in names:
        full.put(b"x" * LARGE, name=name)
    full.put(b"x")
    own = {f"team-a/{number}" for number in range(3)}
    for clusterwide in (False, True):
        for prefix in ("", "team", "team-a/"):
            assert {each["ref"] for each in (mine.directory if clusterwide else mine.objects)(prefix)} == own
        assert [each["ref"] for each in (mine.directory if clusterwide else mine.objects)("team-a/1")] == ["team-a/1"]
    for listing in (mine.directory, mine.objects):
        with pytest.raises(NotAllowed, match='list of "team-b/"'):
            listing("team-b/")
    with pytest.raises(NotAllowed, match="get one with list"):
        restricted(pair[0], verbs=["get"]).objects()
    assert "team-" not in json.dumps(mine.status())


def test_replicas_retained_versions_and_jobs_stay_within_the_prefix(pair: tuple[Node, Node], full: Client) -> None:
    mine = restricted(pair[0])
    mine.put(b"x", name="team-a/7", replicas=2, timeout=SOON)
    full.put(b"x", name="team-b/7")
    full.put(b"x", name="team-a/6")
    mine.put(b"x", name="team-a/8", retain=1, timeout=SOON)
    eventually(lambda: [each["ref"] for each in mine.directory()] == ["team-a/8"])
    assert full.get("team-b/7", timeout=SOON) == b"x"
    with pytest.raises(NotAllowed, match="delete of"):
        restricted(pair[0], verbs=["put"]).put(b"x", name="team-a/9", retain=1)
    capability = grant(TOKEN, "team-a/")
    with pytest.raises(NotAllowed, match='put of "run-7"'):
        hoplite.connect(pair[0].socket, capability=capability, job="run-7")
    job = hoplite.connect(pair[0].socket, capability=capability, job="team-a/run-7")
    job.put(b"x", name="team-a/10")
    assert [each["job"] for each in full.objects("team-a/10")] == ["team-a/run-7"]
    watched = mine.watch_locations("team-b/7", timeout=SOON)
    with pytest.raises(NotAllowed, match="locations of"):
        next(iter(watched))
    with mine.lease("team-a/8"):
        pass


def test_an_error_names_no_object_of_another_tenant(tmp_path: Path) -> None:
    with Node(listen="127.0.0.1:0", token=TOKEN, socket=tmp_path / "a.sock", capacity="1MiB") as node:
        node.client().put(bytes(800_000), name="team-b/secret")
        mine = restricted(node)
        with pytest.raises(hoplite.StoreFull) as caught:
            mine.put(bytes(500_000), name="team-a/1", timeout=0.1)
        assert "team-b" not in str(caught.value)
        assert "hidden from clients with a capability" in str(caught.value)
        with pytest.raises(hoplite.StoreFull, match="team-b/secret"):
            node.client().put(bytes(500_000), name="team-a/1", timeout=0.1)


def test_an_expired_capability_allows_no_new_calls(pair: tuple[Node, Node], full: Client) -> None:
    past = _native.grant_capability(TOKEN, "team-a/", None, int(time.time()) - 1)
    with pytest.raises(NotAllowed, match=r"until .* UTC has expired: get another"):
        hoplite.connect(pair[0].socket, capability=past)
    full.put(b"x", name="team-a/1")
    mine = hoplite.connect(
        pair[0].socket, capability=_native.grant_capability(TOKEN, "team-a/", None, int(time.time()) + 4)
    )
    buffer = mine.create(LARGE)
    lease = mine.lease("team-a/1")
    waiting = Later(mine.get, "team-a/later", timeout=SOON)

    errors: list[str] = []

    def is_refused() -> bool:
        try:
            mine.get("team-a/1", timeout=SOON)
        except NotAllowed as error:
            errors.append(str(error))
        return bool(errors)

    eventually(is_refused)
    assert 'get of "team-a/1" is not allowed' in errors[0]
    assert "it has expired: get a new one (hoplite token grant)" in errors[0]
    for method, verb in {"reserve": "put", "objects": "list", "status": "status"}.items():
        with pytest.raises(NotAllowed, match=f"^{verb} is not allowed: .*it has expired"):
            getattr(mine, method)()
    # Calls that started before the expiry complete.
    buffer[...] = 7
    assert str(buffer.seal()).startswith("team-a/@")
    lease.release()
    full.put(b"late", name="team-a/later")
    assert waiting.result() == b"late"


def test_a_modified_capability_is_rejected(pair: tuple[Node, Node]) -> None:
    text = narrow(grant(TOKEN, "team-a/", verbs=["get", "put"], seconds=3600), verbs=["get"])
    _native.connect(pair[0].socket, SOON, text).close()
    for place in range(len(text)):
        changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        with pytest.raises(NotAllowed, match="this node rejects the capability"):
            _native.connect(pair[0].socket, SOON, changed)
    lines = text.split("\n")
    for line in range(1, len(lines)):
        with pytest.raises(NotAllowed):
            _native.connect(pair[0].socket, SOON, "\n".join(lines[:line] + lines[line + 1 :]))


def test_a_capability_can_be_narrowed_but_never_widened(pair: tuple[Node, Node], full: Client) -> None:
    wide = grant(TOKEN, "team-a/", verbs=["get", "put"], seconds=3600)
    less = narrow(wide, prefix="team-a/runs/", verbs=["get"], seconds=60)
    before, after = read(wide), read(less)
    assert after.prefix == "team-a/runs/"
    assert (before.verbs, after.verbs) == (["put", "get"], ["get"])
    assert before.until is not None
    assert after.until is not None
    assert after.until < before.until
    full.put(b"x", name="team-a/1")
    full.put(b"x", name="team-a/runs/1")
    client = hoplite.connect(pair[0].socket, capability=less)
    assert client.get("team-a/runs/1", timeout=SOON) == b"x"
    for call in (lambda: client.get("team-a/1"), lambda: client.put(b"x", name="team-a/runs/2")):
        with pytest.raises(NotAllowed, match="team-a/runs/"):
            call()
    wider: list[dict[str, Any]] = [
        {"prefix": "team-b/"},
        {"prefix": "team-a/"},
        {"verbs": ["put"]},
        {"seconds": 3000},
        {},
    ]
    for wrong in wider:
        with pytest.raises(hoplite.InvalidArgument):
            narrow(less, **wrong)
    none: list[dict[str, Any]] = [
        {"prefix": "team-a"},
        {"prefix": "@x/"},
        {"verbs": ["look"]},
        {"verbs": []},
        {"verbs": "get"},
    ]
    for wrong in none:
        with pytest.raises(hoplite.InvalidArgument):
            grant(TOKEN, **{"prefix": "team-a/", **wrong})
    with pytest.raises(hoplite.InvalidArgument, match="set more than 0"):
        grant(TOKEN, "team-a/", seconds=0)
    with pytest.raises(hoplite.InvalidArgument, match="was not created by hoplite"):
        grant("choose-your-own", "team-a/")


def test_a_capability_of_another_cluster_is_rejected(pair: tuple[Node, Node], tmp_path: Path) -> None:
    other = grant(hoplite.new_token(), "team-a/")
    with pytest.raises(NotAllowed, match="derived from the token of another cluster"):
        hoplite.connect(pair[0].socket, capability=other)
    with Node(socket=tmp_path / "alone.sock") as alone, pytest.raises(NotAllowed, match="has no token"):
        hoplite.connect(alone.socket, capability=other)


def test_both_tokens_are_accepted_during_a_rotation(tmp_path: Path) -> None:
    tokens = [hoplite.new_token(), TOKEN]
    file = tmp_path / "hoplite.token"
    file.touch(mode=0o600)
    file.write_text("\n".join(tokens))
    with Node(listen="127.0.0.1:0", token_file=file, socket=tmp_path / "a.sock") as node:
        for token in tokens:
            hoplite.connect(node.socket, capability=grant(token, "team-a/")).close()


def test_a_node_that_requires_capabilities_rejects_clients_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = tmp_path / "a.sock"
    with pytest.raises(hoplite.InvalidArgument, match=r"require_capability \(argument\) needs a token"):
        Node(require_capability=True)
    monkeypatch.setenv("HOPLITE_REQUIRE_CAPABILITY", "1")
    with Node(listen="127.0.0.1:0", token=TOKEN, socket=socket) as node:
        monkeypatch.delenv("HOPLITE_REQUIRE_CAPABILITY")
        attaches: list[Callable[[], Client]] = [
            lambda: hoplite.connect(str(socket)),
            lambda: hoplite.init(f"unix:{socket}"),
        ]
        for attach in attaches:
            with pytest.raises(NotAllowed, match=r"requires a capability: .*hoplite token grant"):
                attach()
        assert restricted(node).get(restricted(node).put(b"x"), timeout=SOON) == b"x"
        # The program of the node has its memory, and so all rights. A capability for all names has them too.
        ref = node.client().put(b"y")
        assert restricted(node, "").get(ref, timeout=SOON) == b"y"
        assert str(restricted(node, "").put(b"z")).startswith("@")


def test_init_finds_the_capability_and_starts_no_node(
    pair: tuple[Node, Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "team-a.capability"
    file.touch(mode=0o600)
    file.write_text(grant(TOKEN, "team-a/") + "\n")
    monkeypatch.setenv("HOPLITE_CAPABILITY", str(file))
    with pytest.raises(hoplite.ConnectError, match="a capability requires a running node"):
        hoplite.init()
    starts: list[Callable[[], Client]] = [
        lambda: hoplite.init(node=pair[1]),
        lambda: hoplite.init(pair[0].address),
    ]
    for start in starts:
        with pytest.raises(hoplite.InvalidArgument, match=r"a capability .*restricts clients"):
            start()
    monkeypatch.setenv("HOPLITE_SOCKET", pair[0].socket)
    try:
        for client in (hoplite.init(), hoplite.connect(pair[0].socket), hoplite.init(capability=file)):
            assert client.node is None
            assert str(client.put(b"x")).startswith("team-a/@")
            with pytest.raises(NotAllowed):
                client.get("team-b/1")
        # An argument takes precedence over the environment variable.
        other = hoplite.init(capability=grant(TOKEN, "team-b/"))
        assert str(other.put(b"x")).startswith("team-b/@")
        assert str(hoplite.client().put(b"x")).startswith("team-b/@")
    finally:
        hoplite.shutdown()


def test_a_file_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "team-a.capability"
    file.write_text(grant(TOKEN, "team-a/"))
    file.chmod(0o644)
    with pytest.raises(hoplite.InvalidArgument, match="contains a capability, and other users can read or write it"):
        text_of(file)
    for text, problem in {
        "": "does not begin with",
        "hoplite capability 1\nprefix=a/": "incomplete",
        "hoplite capability 2\nprefix=a/\n" + "0" * 64: "does not begin with",
        "hoplite capability 1\nprefix=a/\n" + "A" * 64: "64 hex digits",
    }.items():
        file.chmod(0o600)
        file.write_text(text)
        with pytest.raises(hoplite.InvalidArgument, match=problem):
            text_of(file)
    with pytest.raises(hoplite.InvalidArgument, match=r"can't read .*: No such file"):
        text_of(tmp_path / "nowhere")


def test_a_client_that_reconnects_stays_restricted(tmp_path: Path) -> None:
    socket = tmp_path / "node.sock"
    options: dict[str, Any] = {"listen": "127.0.0.1:0", "socket": socket}
    with Node(token=TOKEN, **options):
        client = hoplite.connect(str(socket), capability=grant(TOKEN, "team-a/"), reconnect=True)
        client.put(b"x", name="team-a/1")
    with Node(token=TOKEN, **options) as again:
        client.put(b"x", name="team-a/1", timeout=SOON)
        with pytest.raises(NotAllowed, match="team-a/"):
            client.put(b"x", name="team-b/1")
        assert [each["ref"] for each in again.client().objects()] == ["team-a/1"]
    with Node(token=hoplite.new_token(), **options), pytest.raises(NotAllowed, match="another cluster"):
        client.put(b"x", name="team-a/1", timeout=SOON)


FORKS = """
import os, sys
import hoplite

with open(sys.argv[2]) as file:
    client = hoplite.init("unix:" + sys.argv[1], capability=file.read())
view = client.get("team-a/1", timeout=30)
pid = os.fork()
if pid == 0:
    assert bytes(view[:1]) == b"x"
    for each in (client, hoplite.client()):
        assert str(each.put(b"y")).startswith("team-a/@")
        try:
            each.get("team-b/1", timeout=0)
        except hoplite.NotAllowed:
            continue
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_a_forked_child_stays_restricted(pair: tuple[Node, Node], full: Client, tmp_path: Path) -> None:
    full.put(b"x" * LARGE, name="team-a/1")
    file = tmp_path / "capability"
    file.write_text(grant(TOKEN, "team-a/"))
    programs.run(FORKS, pair[0].socket, str(file))


def test_values_outlive_their_objects(pair: tuple[Node, Node], full: Client) -> None:
    """Each value is a copy in the client's own memory, from gets of one object and of several."""
    mine = restricted(pair[1])
    arrays = [numbers(LARGE, seed=seed) for seed in range(4)]
    refs = [full.put(array, name=f"team-a/{place}") for place, array in enumerate(arrays)]
    values = [mine.get(refs[0], timeout=SOON) for _ in range(3)] + mine.get(refs, timeout=SOON)
    full.delete(refs)
    for place in range(4):
        full.put(np.zeros(LARGE, "float32"), name=f"team-b/{place}")
    for value, array in zip(values, [*arrays[:1] * 3, *arrays], strict=True):
        same(value, array)
    mine.close()
    same(values[0], arrays[0])
    del values
    eventually(lambda: sum(each["readers"] for each in full.objects()) == 0)


def test_a_client_that_may_not_delete_can_cancel_a_put(pair: tuple[Node, Node]) -> None:
    """The object is put or not, and the client keeps working."""
    client = restricted(pair[0], verbs=["put", "get"])

    async def cancel() -> None:
        task = asyncio.create_task(client.put_async(bytes(LARGE), name="team-a/1"))
        await asyncio.sleep(0)
        # On a busy host the put may be over.
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    assert client.get(client.put(b"x"), timeout=SOON) == b"x"


def test_the_command_grants_narrows_and_shows(tmp_path: Path) -> None:
    token, wide, less = tmp_path / "hoplite.token", tmp_path / "wide", tmp_path / "less"
    run("token", "new", "--out", token)
    given = ("--prefix", "team-a/", "--verbs", "get,put,list")
    assert run("token", "grant", "--token-file", token, *given, "--for", "12h", "--out", wide).stdout == ""
    run("token", "narrow", "--in", wide, "--verbs", "get,list", "--out", less)
    assert (wide.stat().st_mode & 0o777, less.stat().st_mode & 0o777) == (0o600, 0o600)
    shown = run("token", "show", less).stdout
    assert shown.startswith("prefix   team-a/\nverbs    get,list\nexpires  2")
    assert less.read_text().splitlines()[-1] not in shown + run("token", "show", less, "--json").stdout
    assert json.loads(run("token", "show", wide, "--json").stdout)["verbs"] == ["put", "get", "list"]
    assert "is not below" in run("token", "narrow", "--in", wide, "--prefix", "b/", code=1).stderr
    assert "needs the cluster token, and none is set" in run("token", "grant", *given, code=1).stderr
    assert f"{wide} exists" in run("token", "grant", "--token-file", token, *given, "--out", wide, code=1).stderr


def test_the_commands_use_the_capability_of_the_environment(tmp_path: Path) -> None:
    token = tmp_path / "hoplite.token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    (tmp_path / "in").write_bytes(b"content")
    for name, verbs in (("wide", None), ("less", ["list"])):
        file = tmp_path / name
        file.touch(mode=0o600)
        file.write_text(grant(TOKEN, "team-a/", verbs=verbs))
    wide: dict[str, Any] = {"HOPLITE_CAPABILITY": str(tmp_path / "wide")}
    less: dict[str, Any] = {"HOPLITE_CAPABILITY": str(tmp_path / "less")}
    with testing.node_process("--token-file", str(token), "--require-capability") as node:
        at = ("--socket", node.socket)
        assert "requires a capability" in run("status", *at, code=1).stderr
        refused = run("put", tmp_path / "in", "--name", "team-a/1", *at, code=1, **less).stderr
        assert "get one with put" in refused
        assert "try: set another capability" in refused
        run("put", tmp_path / "in", "--name", "team-a/1", *at, **wide)
        assert "team-a/1" in run("objects", "--all", *at, **less).stdout


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("caf\u00e9/", "cafe\u0301/1"),
        ("cafe\u0301/", "caf\u00e9/1"),
        ("admin/", "\u0430dmin/1"),
        ("team-a/", "team-a\u200b/1"),
        ("team-a/", "\u200bteam-a/1"),
        ("team-a/", "TEAM-A/1"),
        ("team-a/", "team\u2010a/1"),
        ("team-a/", "team-a\uff0f1"),
        ("team-a/", "\u202eteam-a/1"),
    ],
    ids=ascii,
)
def test_a_name_that_only_looks_like_the_prefix_is_rejected(pair: tuple[Node, Node], prefix: str, name: str) -> None:
    """Names are bytes: they are never normalized, case-folded or trimmed."""
    with restricted(pair[0], prefix) as team:
        team.put(b"x", name=f"{prefix}1")
        with pytest.raises(NotAllowed):
            team.put(b"x", name=name)


def test_concurrent_gets_of_one_object_share_a_copy(tmp_path: Path) -> None:
    """Two copies would exceed the memory that a process may take from this store."""
    with Node(socket=tmp_path / "a.sock", token=TOKEN, capacity="96MiB") as node, restricted(node) as client:
        ref = client.put(np.ones(4 << 20), name="team-a/large")
        gets = [Later(client.get, ref, timeout=SOON) for _ in range(8)]
        assert [float(get.result()[0]) for get in gets] == [1.0] * 8
