"""Errors across languages: the same mistake gives the same error, with the same message where the core reports it."""

from __future__ import annotations

import contextlib
import math
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import errors
from hoplite.capabilities import grant
from native.clients import NativeClient
from native.peer import ERRORS, NativeError
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from native.conftest import Pair
    from native.peer import Peer

    Call = Callable[[Any], object]

pytestmark = pytest.mark.native

CAPACITY = 64 << 20


@dataclass(frozen=True)
class Mistake:
    """A call that raises an error.

    Attributes:
        error: class of the error.
        call: takes a Python or a native client.
        has_one_message: whether both report the same message. Each language checks some arguments itself, to quote
            them in its own notation.
    """

    error: type[hoplite.HopliteError]
    call: Call
    has_one_message: bool = True


def reduced(client: Any, ref: object) -> object:  # noqa: ANN401 - either client
    return client.inputs(ref) if isinstance(client, NativeClient) else hoplite.Ref(str(ref), client).inputs()


def result(refs: list[str], op: str) -> Call:
    return lambda client: client.get(str(client.reduce(refs, op, name="result/1")), timeout=SOON)


def deleted_then(call: Callable[[Any, str], object]) -> Call:
    def run(client: Any) -> object:  # noqa: ANN401 - either client
        ref = str(client.put(b"x"))
        client.delete(ref)
        return call(client, ref)

    return run


# Objects that exist: x/1 and x/2 float32[3], x/3 float32[4], x/4 int32[3], b/1 bytes, v/5 the only version of v/.
MISTAKES: dict[str, Mistake] = {
    "get of nothing": Mistake(errors.Timeout, lambda hp: hp.get("no/1", timeout=0)),
    "get of nothing, later": Mistake(errors.Timeout, lambda hp: hp.get("no/1", timeout=0.01)),
    "get of a deleted id": Mistake(
        errors.ObjectDeleted, deleted_then(lambda hp, ref: hp.get(ref, timeout=SOON)), has_one_message=False
    ),
    "get of a pruned version": Mistake(errors.ObjectDeleted, lambda hp: hp.get("v/4", timeout=SOON)),
    "get of the empty name": Mistake(
        errors.InvalidArgument, lambda hp: hp.get("", timeout=SOON), has_one_message=False
    ),
    "get of an id that is none": Mistake(errors.InvalidArgument, lambda hp: hp.get("@12.3", timeout=SOON)),
    "get with a negative timeout": Mistake(
        errors.InvalidArgument, lambda hp: hp.get("x/1", timeout=-1.0), has_one_message=False
    ),
    "get with a NaN timeout": Mistake(
        errors.InvalidArgument, lambda hp: hp.get("x/1", timeout=math.nan), has_one_message=False
    ),
    "part of an array without axes": Mistake(
        errors.InvalidArgument, lambda hp: hp.get("zero/1", part=slice(0, 1), timeout=SOON)
    ),
    "put of a taken name": Mistake(errors.NameTaken, lambda hp: hp.put(b"x", name="x/1")),
    "put of a name that is too long": Mistake(errors.InvalidArgument, lambda hp: hp.put(b"x", name="n" * 1025)),
    "put of a ref of a node that is gone": Mistake(
        errors.ObjectLost, lambda hp: hp.put(b"x", name="@0123456789abcdef.7")
    ),
    "put of more than the store": Mistake(
        errors.StoreFull, lambda hp: hp.put(np.zeros(CAPACITY, "uint8"), name="big/1", timeout=0.01)
    ),
    "put with retain without a number": Mistake(
        errors.InvalidArgument, lambda hp: hp.put(b"x", name="none", retain=2), has_one_message=False
    ),
    "put with a negative ttl": Mistake(
        errors.InvalidArgument, lambda hp: hp.put(b"x", ttl=-1.0), has_one_message=False
    ),
    "create of an unknown dtype": Mistake(
        errors.UnsupportedDtype, lambda hp: hp.create(3, "float31"), has_one_message=False
    ),
    "create of a taken name": Mistake(errors.NameTaken, lambda hp: hp.create(1 << 18, "float32", name="x/1")),
    "reduce by an unknown op": Mistake(errors.UnknownOp, lambda hp: hp.reduce(["x/1"], "avg")),
    "reduce of nothing": Mistake(errors.InvalidArgument, lambda hp: hp.reduce([], "sum")),
    "reduce of an input twice": Mistake(
        errors.InvalidArgument, lambda hp: hp.reduce(["x/1", "x/1"], "sum"), has_one_message=False
    ),
    "reduce of more than all": Mistake(errors.InvalidArgument, lambda hp: hp.reduce(["x/1", "x/2"], "sum", count=3)),
    "reduce of a taken name": Mistake(errors.NameTaken, lambda hp: hp.reduce(["x/1"], "sum", name="x/2")),
    "reduce of two shapes": Mistake(errors.ShapeMismatch, result(["x/1", "x/3"], "sum")),
    "reduce of two dtypes": Mistake(errors.ShapeMismatch, result(["x/1", "x/4"], "sum")),
    "reduce of bytes": Mistake(errors.UnsupportedDtype, result(["b/1"], "sum")),
    "mean of integers": Mistake(errors.UnsupportedDtype, result(["x/4"], "mean")),
    "inputs of an array": Mistake(errors.InvalidArgument, lambda hp: reduced(hp, "x/1")),
    "latest of no prefix": Mistake(
        errors.InvalidArgument, lambda hp: hp.latest("policy", timeout=0), has_one_message=False
    ),
    "latest of nothing": Mistake(errors.Timeout, lambda hp: hp.latest("no/", timeout=0)),
    "latest after -2": Mistake(
        errors.InvalidArgument, lambda hp: hp.latest("v/", after=-2, timeout=0), has_one_message=False
    ),
    "wait for an object twice": Mistake(
        errors.InvalidArgument, lambda hp: hp.wait(["x/1", "x/1"], timeout=0), has_one_message=False
    ),
    "wait for more than all": Mistake(errors.InvalidArgument, lambda hp: hp.wait(["x/1"], 2, timeout=0)),
    "delete of the empty name": Mistake(errors.InvalidArgument, lambda hp: hp.delete(""), has_one_message=False),
}


@pytest.fixture
def both(peer: Peer) -> Iterator[tuple[hoplite.Client, NativeClient]]:
    """A Python and a native client that attach to one node, and the objects that `MISTAKES` expect."""
    with hoplite.Node(capacity=CAPACITY) as node, hoplite.connect(node.socket) as client:
        for number, (shape, dtype) in enumerate([(3, "float32"), (3, "float32"), (4, "float32"), (3, "int32")], 1):
            client.put(np.ones(shape, dtype), name=f"x/{number}")
        client.put(np.float32(1), name="zero/1")
        client.put(b"bytes", name="b/1")
        client.put(b"old", name="v/4")
        client.put(b"new", name="v/5", retain=1)
        yield client, peer.connect(f"unix:{node.socket}")


def caught(call: Call, client: object) -> hoplite.HopliteError:
    with pytest.raises(hoplite.HopliteError) as raised:
        call(client)
    return raised.value


def plain(error: Exception) -> str:
    """The message, with texts quoted as in Python."""
    return str(error).replace('"', "'")


def test_a_mistake_has_one_error(both: tuple[hoplite.Client, NativeClient]) -> None:
    for what, mistake in MISTAKES.items():
        python = caught(mistake.call, both[0])
        forget_result(both[0])
        native = caught(mistake.call, both[1])
        forget_result(both[0])
        assert (type(python), type(native)) == (mistake.error, mistake.error), f"{what}: {python}\n{native}"
        assert str(native), f"{what}: no message"
        if mistake.has_one_message:
            assert plain(native) == plain(python), what


def forget_result(client: hoplite.Client) -> None:
    """Deletes what a reduce may have named."""
    with contextlib.suppress(hoplite.HopliteError):
        client.delete("result/1")


def test_codes_have_the_names_of_the_exceptions(peer: Peer) -> None:
    for code, error in ERRORS.items():
        name = peer.call("code", number=code)["text"]
        assert name.removeprefix("HOPLITE_").replace("_", "").lower() == error.__name__.lower()
    assert peer.call("version")["text"] == hoplite.__version__


def test_a_closed_client(both: tuple[hoplite.Client, NativeClient]) -> None:
    both[1].close()
    # The handle is released with the client.
    with pytest.raises((hoplite.ClientClosed, NativeError)) as raised:
        both[1].get("x/1", timeout=SOON)
    assert "client" in str(raised.value)
    assert bytes(both[0].get("b/1", timeout=SOON)) == b"bytes"


def test_a_handle_that_is_released_twice(both: tuple[hoplite.Client, NativeClient]) -> None:
    """An error that names the type of the handle; other handles work."""
    peer = both[1].peer
    buffer = both[1].create(1 << 18, "float32", name="buffer/1")
    buffer.seal()
    for release in (buffer.seal, buffer.discard):
        with pytest.raises(NativeError, match="buffer") as raised:
            release()
        assert raised.value.code == 18
    lease = both[1].lease("x/1", timeout=SOON)
    peer.call("release", lease=lease)
    with pytest.raises(NativeError, match="lease"):
        peer.call("release", lease=lease)
    with pytest.raises(NativeError, match="client"):
        both[1].peer.call("get", client=900, ref="x/1")
    with pytest.raises(NativeError, match="node"):
        peer.call("client", node=900)
    assert both[1].get("b/1", timeout=SOON) == b"bytes"


def test_no_node_to_attach_to(peer: Peer, tmp_path: Path) -> None:
    path = f"unix:{tmp_path / 'none.sock'}"
    python = caught(lambda _: hoplite.connect(path, timeout=0.01), None)
    native = caught(lambda _: peer.connect(path, timeout=0.01), None)
    assert (type(python), type(native)) == (errors.ConnectError, errors.ConnectError)
    assert plain(native) == plain(python)


def test_a_node_that_can_not_start(peer: Peer, tmp_path: Path) -> None:
    """No seed, a taken port, a taken socket, an address of others without a token, too little capacity."""
    with socket.create_server(("127.0.0.1", 0)) as taken, hoplite.Node(socket=tmp_path / "taken.sock"):
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        cases: list[tuple[type[hoplite.HopliteError], dict[str, Any]]] = [
            (errors.JoinError, {"join": "127.0.0.1:1", "listen": "127.0.0.1:0"}),
            (errors.AddressInUse, {"listen": port}),
            (errors.AddressInUse, {"socket": str(tmp_path / "taken.sock")}),
            (errors.InvalidArgument, {"listen": "0.0.0.0:0"}),
            (errors.InvalidArgument, {"listen": "nonsense"}),
            (errors.InvalidArgument, {"capacity": 5}),
            (errors.InvalidArgument, {"listen": "127.0.0.1:0", "token": "short"}),
        ]
        for number, (error, options) in enumerate(cases):
            own = {"socket": str(tmp_path / f"{number}.sock"), **options}
            python = caught(lambda _, own=own: hoplite.Node(**own), None)  # type: ignore[misc]
            native = caught(lambda _, own=own: peer.node(**own), None)  # type: ignore[misc]
            assert (type(python), type(native)) == (error, error), f"{options}: {python}\n{native}"
            assert plain(native) == plain(python)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("capacity", "5"),
        ("join", "127.0.0.1:1,b"),
        ("no_auth", "maybe"),
    ],
)
def test_messages_name_the_variable_or_the_file_of_a_setting(
    start_peer: Callable[[], Peer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    variable, file, path = f"HOPLITE_{name.upper()}", tmp_path / "settings.toml", str(tmp_path / "node.sock")
    with monkeypatch.context() as environment:
        environment.setenv(variable, value)
        python = caught(lambda _: hoplite.Node(socket=path), None)
        native = caught(lambda _: start_peer().node(socket=path), None)
    assert type(python) is type(native) is errors.InvalidArgument
    assert plain(native) == plain(python)
    assert str(native).startswith(f"{variable}: {name} ")
    file.write_text(f'{name} = "{value}"\n')
    monkeypatch.setenv("HOPLITE_CONFIG", str(file))
    native = caught(lambda _: start_peer().node(socket=path), None)
    assert type(native) is errors.InvalidArgument
    assert str(native).startswith(f"{file}: {name} ")


def test_messages_name_the_variable_of_an_address(
    start_peer: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPLITE_ADDRESS", "nowhere")
    python = caught(lambda _: hoplite.init(), None)
    native = caught(lambda _: start_peer().init(), None)
    assert plain(native) == plain(python)
    assert str(native).startswith('HOPLITE_ADDRESS: address "nowhere" is not an address')


def test_a_capability_restricts_both(peer: Peer, tmp_path: Path) -> None:
    token = hoplite.new_token()
    file, malformed = tmp_path / "capability", tmp_path / "malformed"
    for path, text in ((file, grant(token, "team-a/", verbs=["put", "get"])), (malformed, "nonsense")):
        path.touch(0o600)
        path.write_text(text)
    with hoplite.Node(listen="127.0.0.1:0", token=token, require_capability=True) as node:
        for options in ({}, {"capability": str(malformed)}):
            python = caught(lambda _, options=options: hoplite.connect(node.socket, **options), None)  # type: ignore[misc]
            native = caught(lambda _, options=options: peer.connect(node.socket, **options), None)  # type: ignore[misc]
            assert type(python) is type(native), f"{options}: {python}\n{native}"
        with hoplite.connect(node.socket, capability=str(file)) as client:
            other = peer.connect(node.socket, capability=str(file))
            other.put(b"x", name="team-a/1")
            assert bytes(client.get("team-a/1", timeout=SOON)) == b"x"
            calls: tuple[Call, ...] = (
                lambda hp: hp.put(b"x", name="team-b/1"),
                lambda hp: hp.get("team-b/1", timeout=SOON),
                lambda hp: hp.delete("team-a/1"),
            )
            for call in calls:
                python, native = caught(call, client), caught(call, other)
                assert (type(python), type(native)) == (errors.NotAllowed, errors.NotAllowed)
                assert str(native) == str(python)


def test_an_object_whose_creator_is_gone_is_lost(pair: Pair) -> None:
    """A client that closes before it creates what it reserved, on either side."""
    other = pair.peer.connect(pair.native_socket)
    reserved = other.reserve()
    other.close()
    lost = caught(lambda _: pair.python.get(reserved, timeout=SOON), None)
    assert type(lost) is errors.ObjectLost
    with hoplite.connect(pair.python_socket) as closing:
        ref = str(closing.reserve())
    native = caught(lambda _: pair.native.get(ref, timeout=SOON), None)
    assert type(native) is errors.ObjectLost
    assert str(native).replace(ref, "R").split(":")[0] == str(lost).replace(reserved, "R").split(":")[0]
