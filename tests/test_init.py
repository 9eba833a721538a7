"""Init and connect: how a script finds its node. Each script runs in a separate process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

import hoplite
from hoplite import Node, Ref, sockets, testing
from support import SOON, eventually, numbers

PRINT_NODE = 'import hoplite; hp = hoplite.init(); print(hp.status()["id"], hp.node is not None)'


# Prints why init found no node.
FAILING = """
try:
    hoplite.init()
except hoplite.HopliteError as error:
    print(type(error).__name__, error)
    raise SystemExit
"""


def run(script: str, **environment: str) -> str:
    """Runs a script in another process with this test's runtime folder; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_init_without_a_node_starts_an_embedded_one(tmp_path: Path) -> None:
    """The process removes its socket when it ends."""
    script = PRINT_NODE + '; print(hp.node.socket); print(hp.get(hp.put(b"x")) == b"x")'
    lines = run(script).splitlines()
    assert lines[0].endswith("True")
    assert lines[1:] == [str(tmp_path / "hoplite" / "node-embedded.sock"), "True"]
    assert not Path(lines[1]).exists()


def test_init_finds_the_node_of_the_host() -> None:
    with Node() as node:
        assert run(PRINT_NODE) == f"{node.id} False"
        assert hoplite.connect(node.socket).status()["id"] == node.id


def test_init_with_a_node_uses_that_node() -> None:
    with Node() as node:
        output = run(PRINT_NODE.replace("init()", "init(node=hoplite.Node())"))
        assert output.endswith("True")
        assert node.id not in output


def test_an_address_in_the_environment_takes_precedence() -> None:
    """A socket to attach to, or a cluster to join."""
    with Node(), testing.cluster(2) as nodes:
        assert run(PRINT_NODE, HOPLITE_ADDRESS=f"unix:{nodes[0].socket}") == f"{nodes[0].id} False"
        joined = run(PRINT_NODE + '; print(len(hp.status()["members"]))', HOPLITE_ADDRESS=nodes[1].address)
        assert joined.splitlines()[0].endswith("True")
        assert int(joined.splitlines()[1]) >= 2
        both = ",".join(node.address for node in nodes)
        assert run(PRINT_NODE, HOPLITE_ADDRESS=both).endswith("True")


def test_a_ray_worker_finds_only_the_node_of_its_raylet() -> None:
    """Where several raylets share a host, a worker finds its own by the pid in Ray's environment variable."""
    ours, theirs = (sockets.runtime_dir() / f"ray-{pid}.sock" for pid in (4711, 4712))
    with Node() as of_user, Node(socket=ours) as first, Node(socket=theirs) as second:
        assert run(PRINT_NODE, RAY_RAYLET_PID="4711") == f"{first.id} False"
        assert run(PRINT_NODE, RAY_RAYLET_PID="4712") == f"{second.id} False"
        # A raylet without a node; no raylet; and an explicit address, which takes precedence.
        assert run(PRINT_NODE, RAY_RAYLET_PID="4713") == f"{of_user.id} False"
        assert run(PRINT_NODE) == f"{of_user.id} False"
        assert run(PRINT_NODE, RAY_RAYLET_PID="../4711") == f"{of_user.id} False"
        assert run(PRINT_NODE, RAY_RAYLET_PID="4711", HOPLITE_ADDRESS=f"unix:{theirs}") == f"{second.id} False"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(ours))
    # A failed node is not replaced by an embedded one, which would be isolated.
    output = run("import hoplite" + FAILING, RAY_RAYLET_PID="4711")
    assert output == f"ConnectError no node serves {ours}"


def test_two_inits_of_a_process_share_a_node() -> None:
    script = """
import hoplite
first, second = hoplite.init(), hoplite.init()
assert first.node is second.node is not None
ref = first.put(b"x")
first.close()
assert second.get(ref) == b"x"
second.node.close()
third = hoplite.init()
assert third.node is not second.node
"""
    run(script)


def test_a_node_of_the_caller_becomes_the_shared_one() -> None:
    """`shutdown` closes it. It can't be combined with another setting that selects a node."""
    with Node() as other:
        mine = Node(capacity="32MiB")
        with hoplite.init(node=mine) as hp, hoplite.init() as again:
            assert hp.node is again.node is mine
        for address in (f"unix:{other.socket}", "127.0.0.1:7420", "local"):
            with pytest.raises(hoplite.InvalidArgument, match="both address"):
                hoplite.init(address, node=mine)
        hoplite.shutdown()
        assert mine.closed
        with pytest.raises(hoplite.NodeDown, match="closed"):
            hoplite.init(node=mine)
        with pytest.raises(hoplite.InvalidArgument, match=r"node must be a hoplite\.Node, not a Client"):
            hoplite.init(node=other.client())  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["nonsense", "unix:", "host:", ":7420", "host:port", 7])
def test_init_rejects_an_invalid_address(address: str) -> None:
    with pytest.raises(hoplite.InvalidArgument):
        hoplite.init(address)


def test_connecting_to_a_missing_socket_fails(tmp_path: Path) -> None:
    with pytest.raises(hoplite.ConnectError, match="nobody"):
        hoplite.connect(f"unix:{tmp_path / 'nobody'}", timeout=0)
    with pytest.raises(hoplite.ConnectError, match="nobody"):
        hoplite.init(f"unix:{tmp_path / 'nobody'}", timeout=0)
    with pytest.raises(hoplite.InvalidArgument, match="init"):
        hoplite.connect("10.0.0.1:7420")


ROUNDS = """
import os, sys, hoplite
from hoplite import session
for line in sys.stdin:
    os.environ["XDG_RUNTIME_DIR"] = line.strip()
    hp = hoplite.init()
    print(hp.status()["id"], hp.node is not None, flush=True)
    sys.stdin.readline()
    session.shutdown()
    print("done", flush=True)
"""


def send(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def receive(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_of_several_concurrent_scripts_starts_the_node(tmp_path: Path) -> None:
    """Ten rounds of three scripts; in every other round a dead node's socket file exists."""
    with ExitStack() as stack:
        scripts = []
        for _ in range(3):
            script = subprocess.Popen(
                [sys.executable, "-c", ROUNDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            scripts.append(stack.enter_context(script))
            stack.callback(script.kill)
        for number in range(10):
            folder = tmp_path / str(number)
            folder.mkdir(mode=0o700)
            if number % 2:
                (folder / "hoplite").mkdir(mode=0o700)
                with socket.socket(socket.AF_UNIX) as dead:
                    dead.bind(str(folder / "hoplite" / "node-embedded.sock"))
            for script in scripts:
                send(script, str(folder))
            answers = [receive(script).split() for script in scripts]
            assert len({identity for identity, _ in answers}) == 1
            assert sorted(is_node for _, is_node in answers) == ["False", "False", "True"]
            for script in scripts:
                send(script, "end")
            assert [receive(script) for script in scripts] == ["done"] * 3


def test_init_waits_while_another_process_starts_a_node(tmp_path: Path) -> None:
    """If the wait takes too long, the error names the lock file."""
    with sockets.one_at_a_time(0), pytest.raises(hoplite.ConnectError, match=str(tmp_path / "hoplite" / "init.lock")):
        hoplite.init(timeout=0.1)


def test_a_node_is_found_only_once_it_has_joined(tmp_path: Path) -> None:
    """A script waits while the node of another one still tries to join, and does not use a node that fails."""
    path = tmp_path / "hoplite" / "node-embedded.sock"
    with subprocess.Popen(
        [sys.executable, "-c", PRINT_NODE],
        env={**os.environ, "HOPLITE_JOIN": "127.0.0.1:1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as first:
        eventually(lambda: path.exists() or first.poll() is not None)
        assert first.poll() is None
        assert run(PRINT_NODE).endswith("True")
        assert "JoinError" in first.communicate(timeout=SOON)[1]


def test_a_running_node_of_another_cluster_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with Node(cluster="theirs") as node:
        for address in (None, f"unix:{node.socket}"):
            monkeypatch.setenv("HOPLITE_CLUSTER", "theirs")
            with hoplite.init(address) as client:
                assert client.node is None
            monkeypatch.setenv("HOPLITE_CLUSTER", "mine")
            with pytest.raises(hoplite.InvalidArgument, match=r"'theirs'.*'mine'.*HOPLITE_CLUSTER"):
                hoplite.init(address)


def test_an_embedded_node_of_another_cluster_is_rejected() -> None:
    run("""
import os, hoplite
os.environ["HOPLITE_CLUSTER"] = "mine"
hp = hoplite.init()
assert hoplite.init().node is hp.node
os.environ["HOPLITE_CLUSTER"] = "theirs"
try:
    hoplite.init()
except hoplite.InvalidArgument as error:
    assert "'mine'" in str(error) and "'theirs'" in str(error)
else:
    raise AssertionError
""")


def test_an_embedded_node_has_the_given_settings(tmp_path: Path) -> None:
    file = tmp_path / "hoplite.toml"
    file.write_text('cluster = "of-file"\nadvertise = "127.0.0.1"\ncapacity = "32MiB"')
    script = """
import hoplite, sys
hp = hoplite.init(node=hoplite.Node(listen="0.0.0.0:0", no_auth=True, capacity="64MiB", config=sys.argv[-1]))
facts = hp.status()
assert facts["store"]["capacity"] == 64 << 20
assert facts["cluster"] == "of-file"
assert facts["address"].startswith("127.0.0.1:"), facts["address"]
"""
    run(script.replace("sys.argv[-1]", repr(str(file))))


def test_the_nodes_to_join_can_come_from_the_environment() -> None:
    """The script that starts a node joins them; scripts that find a node do not."""
    with testing.cluster(1) as nodes:
        joined = run(PRINT_NODE + '; print(len(hp.status()["members"]))', HOPLITE_JOIN=nodes[0].address)
        assert joined.splitlines()[0].endswith("True")
        assert joined.splitlines()[1] == "2"
        with Node() as here:
            assert run(PRINT_NODE, HOPLITE_JOIN=nodes[0].address) == f"{here.id} False"


def test_the_socket_can_come_from_the_environment(tmp_path: Path) -> None:
    path = str(tmp_path / "own.sock")
    embedded = str(tmp_path / "own-embedded.sock")
    assert run(PRINT_NODE + "; print(hp.node.socket)", HOPLITE_SOCKET=path).splitlines()[1] == embedded
    own = PRINT_NODE.replace("init()", "init(node=hoplite.Node())") + "; print(hp.node.socket)"
    assert run(own, HOPLITE_SOCKET=path).splitlines()[1] == path
    with Node(socket=path) as node:
        assert run(PRINT_NODE, HOPLITE_SOCKET=path) == f"{node.id} False"


def test_another_cluster_is_not_joined_silently() -> None:
    with testing.cluster(1) as nodes:
        script = """
import hoplite
hp = hoplite.init()
try:
    hoplite.init(ADDRESS)
except hoplite.InvalidArgument as error:
    assert "shutdown" in str(error)
else:
    raise AssertionError
hoplite.session.shutdown()
assert len(hoplite.init(ADDRESS).status()["members"]) == 2
assert len(hoplite.init(ADDRESS).status()["members"]) == 2
"""
        run(script.replace("ADDRESS", repr(nodes[0].address)))


def test_init_joins_over_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    with Node(listen="[::1]:0", socket=None) as first:
        output = run(
            PRINT_NODE + '; print(hp.status()["address"], len(hp.status()["members"]))', HOPLITE_ADDRESS=first.address
        )
        address, members = output.splitlines()[1].split()
        assert address.startswith("[::1]:")
        assert members == "2"


def test_client_returns_the_client_of_init_or_creates_one() -> None:
    run("""
import gc, hoplite
from hoplite import session
assert session.shared.last_client() is None
client = hoplite.client()
assert client.node is not None and hoplite.client() is client
ref = client.put(b"x")
address = id(client)
del client
gc.collect()
assert id(hoplite.client()) == address and hoplite.client().get(ref) == b"x"
second = hoplite.init()
assert hoplite.client() is second
second.close()
third = hoplite.client()
assert third is not second and third.get(ref) == b"x" and third.node is second.node
third.node.close()
fourth = hoplite.client()
assert fourth.node is not third.node
session.shutdown()
session.shutdown()
assert fourth.closed and fourth.node.closed and session.shared.last_client() is None
assert hoplite.client().node is not fourth.node
""")


def test_concurrent_threads_share_the_default_client() -> None:
    run("""
import threading
import hoplite
found = []
threads = [threading.Thread(target=lambda: found.append(hoplite.client())) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(found) == 8 and len(set(found)) == 1
""")


FORK = """
import os, sys, hoplite
from hoplite import session

def child(what):
    pid = os.fork()
    if pid == 0:
        what()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


@pytest.mark.parametrize("how", ["init()", "init(node=hoplite.Node())", "init('unix:' + os.environ['SOCKET'])"])
def test_a_forked_child_has_its_own_client(how: str) -> None:
    """The child uses the parent's node wherever it serves. The parent's node survives the child's sys.exit."""
    script = """
hp = hoplite.HOW
ref, here = hp.put(b"parent", name="from/1"), hp.status()["id"]

def use():
    mine = hoplite.client()
    assert mine is not hp and mine is hoplite.client() and mine.node is None
    assert mine.status()["id"] == here
    assert mine.get("from/1", timeout=30) == b"parent"
    mine.put(b"child", name=f"from/{2 if session.shared.last_client() else 0}")
    child(lambda: hoplite.client().get("from/2", timeout=30))

child(use)
assert hp.get("from/2", timeout=30) == b"child" and hoplite.client() is hp
child(session.shutdown)
child(lambda: hoplite.init().get("from/2", timeout=30))
assert hp.get("from/1", timeout=30) == b"parent" and not hp.closed
"""
    with testing.node_process() as node, Node():
        run(FORK + script.replace("HOW", how), SOCKET=node.socket)


def test_a_forked_child_without_a_node_gets_an_error_with_the_fix() -> None:
    run(
        FORK
        + """
hp = hoplite.init()
hp.node.close()

def use():
    try:
        hoplite.client()
    except hoplite.ForkedClient as error:
        assert "hoplite.init()" in str(error) and "node-embedded.sock" in str(error)
    else:
        raise AssertionError
    with hoplite.init() as own:
        assert own.node is not None
    own.node.close()

child(use)
"""
    )


def test_a_runtime_folder_that_can_not_be_written_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is missing, a file, or on a file system without permission to create folders."""
    assert Path("/tmp") == sockets.SHARED_FOLDER
    monkeypatch.setattr(sockets, "SHARED_FOLDER", tmp_path)
    (tmp_path / "file").touch()
    for base in (tmp_path / "nowhere", tmp_path / "file", Path("/proc/self"), Path()):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base) if base != Path() else "")
        assert sockets.default_socket() == tmp_path / f"hoplite-{os.getuid()}" / "node.sock"
    with hoplite.init(node=hoplite.Node()) as client:
        assert client.node is not None
        client.node.close()


def test_an_existing_folder_that_can_not_be_written_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    monkeypatch.setattr(sockets, "SHARED_FOLDER", tmp_path / "shared")
    (tmp_path / "shared").mkdir()
    (tmp_path / "hoplite").mkdir(mode=0o500)
    assert sockets.runtime_dir() == tmp_path / "shared" / f"hoplite-{os.getuid()}"


def test_a_socket_path_that_is_too_long_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    for call in (hoplite.connect, hoplite.init):
        with pytest.raises(hoplite.InvalidArgument, match="longer than 107 bytes"):
            call(f"unix:{folder}/node.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    for start in (hoplite.init, Node):
        with pytest.raises(hoplite.InvalidArgument, match="XDG_RUNTIME_DIR"):
            start()


def test_a_lack_of_file_descriptors_is_reported() -> None:
    """With no and with a few descriptors left, attaching and starting fail with the limit and the fix."""
    script = """
import os, resource, hoplite
from hoplite import session
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
hoplite.settings.load(address=None)
calls = [lambda: hoplite.connect(PATH), lambda: hoplite.init("unix:" + PATH), hoplite.init, hoplite.Node]
for left in (0, 1, 2, 3):
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(left):
        os.close(taken.pop())
    for number, call in enumerate(calls):
        try:
            made = call()
        except hoplite.HopliteError as error:
            assert "limit of 64 open files" in str(error) and "ulimit -n" in str(error), (left, number, error)
        else:
            assert left > 0 and number < 3, (left, number)
            made.close()
    for descriptor in taken:
        os.close(descriptor)
    session.shutdown()
print(hoplite.connect(PATH).status()["id"])
"""
    with Node() as node:
        assert run(script.replace("PATH", repr(node.socket))) == node.id


def test_an_unpickled_ref_uses_the_client_of_init(nodes: list[Node]) -> None:
    client = nodes[0].client()
    part = client.put(numbers(10))
    total = client.reduce([part])
    with hoplite.init(f"unix:{nodes[0].socket}"):
        assert Ref(str(total)).inputs(timeout=30) == [part]
    with pytest.raises(hoplite.InvalidArgument, match="client"):
        Ref(str(total)).inputs(timeout=30)


def test_a_runtime_folder_that_others_can_read_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "hoplite").mkdir(mode=0o755)
    with pytest.raises(hoplite.HopliteError, match=f"other users can access .*: run chmod 700 {tmp_path}/hoplite$"):
        hoplite.init()


def test_a_runtime_folder_that_is_a_link_is_not_trusted(tmp_path: Path) -> None:
    """The user that created the link can change it, even if it points to a folder of this user now."""
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "hoplite").symlink_to(tmp_path / "own")
    with pytest.raises(hoplite.HopliteError, match="not a directory of this user"):
        hoplite.init()
    assert list((tmp_path / "own").iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (sockets.runtime_dir() / "init.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(hoplite.HopliteError, match="remove it"):
        hoplite.init()
    assert not (tmp_path / "elsewhere").exists()


def test_importing_hoplite_does_not_import_numpy() -> None:
    assert run("import sys, hoplite; print('numpy' in sys.modules)") == "False"


def test_a_debug_build_warns() -> None:
    script = """
import importlib, warnings
import hoplite
hoplite._native.DEBUG_BUILD = True
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    importlib.reload(hoplite)
print(caught[0].message)
"""
    assert "without optimization" in run(script)


def test_a_failed_init_leaves_the_shared_client_as_it_is() -> None:
    """A forked child gets the options of the client that the parent uses, not those of the failed call."""
    run("""
import os, hoplite
hp = hoplite.init(job="run-1", digest=True)
for failing in ("unix:/nowhere/node.sock", "unix:"):
    try:
        hoplite.init(failing, timeout=0, job="run-2")
    except hoplite.HopliteError:
        pass
assert hoplite.client() is hp
pid = os.fork()
if pid == 0:
    os._exit(0 if hoplite.client().job == "run-1" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
""")


def test_the_settings_file_of_a_node_applies_to_its_clients(tmp_path: Path) -> None:
    file = tmp_path / "hoplite.toml"
    file.write_text('allow_pickle = false\ncapacity = "32MiB"')
    with Node(config=file) as node:
        with node.client() as client, pytest.raises(hoplite.UnsupportedDtype):
            client.put({"a": 1})
        with hoplite.init(node=node) as client, pytest.raises(hoplite.UnsupportedDtype):
            client.put({"a": 1})
    hoplite.shutdown()


@pytest.mark.parametrize("address", ["", "unix:", "local", "10.0.0.1:7420", "relative.sock"])
def test_connect_accepts_only_socket_paths(address: str) -> None:
    with pytest.raises(hoplite.InvalidArgument, match="address"):
        hoplite.connect(address, timeout=0)


def test_a_cluster_for_tests_starts_with_a_long_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a socket has at most 107 bytes."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with testing.cluster(1) as nodes, nodes[0].client() as client:
        assert client.status()["id"] == nodes[0].id
