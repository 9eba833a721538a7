"""`hoplite put` and `hoplite get`: files to objects and back, without partial files."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from commands import COMMAND, run_bytes
from hoplite.values import DTYPES, NARROW_DTYPES
from support import SOON, eventually, numbers, same

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite import Client, Node


def run(*arguments: object, code: int = 0, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to completion, and checks that a failed command prints nothing to stdout."""
    done = run_bytes(*arguments, code=code, given=given)
    assert not code or done.stdout == b""
    return done


def put(*arguments: object, given: bytes | None = None) -> str:
    """Puts a file and returns the printed ref."""
    return run("put", *arguments, given=given).stdout.decode().strip()


@pytest.mark.parametrize("size", [0, 1, 32_768, 32_769, 3_000_001])
def test_bytes_round_trip(client: Client, tmp_path: Path, size: int) -> None:
    content = numbers(size, "uint8").tobytes()
    (tmp_path / "in").write_bytes(content)
    ref = put(tmp_path / "in")
    assert client.get(ref, timeout=SOON) == content
    assert put("-", "--name", "piped/1", given=content) == "piped/1"
    assert client.get("piped/1", timeout=SOON) == content
    run("get", ref, "-o", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content
    assert run("get", "piped/1").stdout == content
    assert run("get", "piped/1", "-o", "-").stdout == content


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in {"bfloat16", *NARROW_DTYPES}])
def test_arrays_round_trip(client: Client, tmp_path: Path, dtype: str) -> None:
    """As .npy files, of any shape with one dtype, and as raw bytes on standard output."""
    shapes = [(), (0,), (0, 3), (7,), (200, 300)] if dtype == "float32" else [(200, 300)]
    for number, shape in enumerate(shapes):
        value = numbers(shape, dtype)
        np.save(tmp_path / "in.npy", value)
        ref = put(tmp_path / "in.npy", "--name", f"array/{number}")
        same(client.get(ref, timeout=SOON), value)
        run("get", ref, "-o", tmp_path / "out.npy")
        same(np.load(tmp_path / "out.npy"), value)
    assert run("get", ref).stdout == value.tobytes()


def test_byte_order_and_row_order_are_converted(client: Client, tmp_path: Path) -> None:
    value = np.arange(12, dtype=">i4").reshape(3, 4)
    np.save(tmp_path / "in.npy", np.asfortranarray(value))
    same(client.get(put(tmp_path / "in.npy"), timeout=SOON), value.astype("<i4"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_dtypes_of_ml_dtypes_can_be_written_only_as_bytes(client: Client, tmp_path: Path, dtype: str) -> None:
    value = numbers(100, dtype)
    client.put(value, name="half/1")
    assert run("get", "half/1").stdout == value.tobytes()
    assert dtype.encode() in run("get", "half/1", "-o", tmp_path / "out.npy", code=1).stderr
    run("get", "half/1", "-o", tmp_path / "out.bin")
    assert np.fromfile(tmp_path / "out.bin", getattr(ml_dtypes, dtype)).tolist() == value.tolist()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["out.bin"]


def test_a_file_that_can_not_be_put_is_reported(node: Node, tmp_path: Path) -> None:
    for name in ("none", "none.npy"):
        assert b"No such file" in run("put", tmp_path / name, code=1).stderr
    (tmp_path / "folder.npy").mkdir()
    for folder in (tmp_path, tmp_path / "folder.npy"):
        assert b"Is a directory" in run("put", folder, code=1).stderr
    (tmp_path / "bad.npy").write_bytes(b"no array")
    (tmp_path / "empty.npy").touch()
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], object), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "pickle.npy").read_bytes()[:20])
    for name in ("bad", "empty", "pickle", "cut"):
        assert f"{name}.npy is not a readable array".encode() in run("put", tmp_path / f"{name}.npy", code=1).stderr
    assert node.client().objects() == []
    # An array of text would need a pickle, which commands neither write nor read.
    for value in (np.array(["a"]), np.zeros(2, "f4,i4")):
        np.save(tmp_path / "text.npy", value)
        error = run("put", tmp_path / "text.npy", code=1).stderr.decode()
        assert f"array of {value.dtype}" in error
        # The suggested command can be typed, and works.
        assert "allow_pickle" not in error
        assert f"try: hoplite put - <{tmp_path / 'text.npy'} " in error
        put("-", given=(tmp_path / "text.npy").read_bytes())
    node.client().put({"a": 1}, name="pickled/1")
    assert b"pickle" in run("get", "pickled/1", "-o", tmp_path / "out", code=1).stderr
    assert not (tmp_path / "out").exists()


def test_put_reports_that_the_cluster_has_too_few_nodes(node: Node, tmp_path: Path) -> None:
    del node
    (tmp_path / "in").write_bytes(b"hello")
    done = run("put", tmp_path / "in", "--replicas", 3, "--name", "few/1")
    assert done.stderr == b"few/1 has 1 of 3 replicas: the cluster has no more nodes\n"


def test_every_command_reports_its_result_as_json(node: Node, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"hello")
    output = json.loads(run("put", tmp_path / "in", "--name", "note/1", "--json").stdout)
    assert output == {"ref": "note/1", "bytes": 5, "replicas": 1}
    output = json.loads(run("get", "note/1", "-o", tmp_path / "out", "--json").stdout)
    assert output == {"ref": "note/1", "file": str(tmp_path / "out"), "bytes": 5}
    assert b"-o FILE" in run("get", "note/1", "--json", code=2).stderr
    assert json.loads(run("delete", "note/1", "--json").stdout) == {"deleted": ["note/1"]}
    assert node.client().objects() == []


def test_put_rejects_a_taken_name(client: Client, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x")
    put(tmp_path / "in", "--name", "policy/1")
    assert b"policy/1" in run("put", tmp_path / "in", "--name", "policy/1", code=1).stderr
    assert b"empty" in run("put", tmp_path / "in", "--name", "", code=1).stderr
    assert client.get("policy/1", timeout=SOON) == b"x"


def test_put_retains_the_newest(client: Client, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x")
    for number in range(4):
        put(tmp_path / "in", "--name", f"policy/{number}", "--retain", 2)
    eventually(lambda: [copy["ref"] for copy in client.objects()] == ["policy/2", "policy/3"])
    assert put(tmp_path / "in", "--name", "policy/3", "--exist-ok") == "policy/3"


def test_a_file_larger_than_the_store_is_rejected(node: Node, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as opened:
        opened.truncate(300 << 20)
    assert b"--capacity" in run("put", tmp_path / "large", code=1).stderr
    assert node.client().objects() == []


def test_a_get_of_a_missing_object_names_it(node: Node, tmp_path: Path) -> None:
    for limit in (0, 0.1):
        error = run("get", "nobody/1", "-o", tmp_path / "out", "--timeout", limit, code=1).stderr
        assert b"nobody/1" in error
        assert b"--timeout" in error
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
    assert b"negative" not in run("get", "nobody/1", "--timeout", -1, code=2).stderr
    assert b"try: " in run("get", "@nonsense", code=1).stderr
    del node


def test_get_reports_that_it_waits(client: Client, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "get", "late/1", "-o", str(tmp_path / "out"), "--timeout", str(SOON)], stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"waiting for late/1; press Ctrl-C to stop\n"
        client.put(b"x", name="late/1")
        assert process.wait(SOON) == 0
    assert (tmp_path / "out").read_bytes() == b"x"


def test_the_timeout_of_a_get_includes_the_time_before_its_message(node: Node) -> None:
    error = run("get", "nobody/1", "--timeout", 2.5, code=1).stderr.decode()
    assert error.startswith("waiting for nobody/1")
    waited = re.search(r"timed out after ([\d.]+) s", error)
    assert waited is not None, error
    assert float(waited[1]) >= 2.5
    del node


def test_ctrl_c_ends_a_get(node: Node, tmp_path: Path) -> None:
    with subprocess.Popen([*COMMAND, "get", "late/1", "-o", str(tmp_path / "out")], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"waiting" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON) == 130
        assert process.stderr.read().strip() == b""
    del node


def test_the_output_path_is_checked_before_waiting(node: Node, tmp_path: Path) -> None:
    assert b"is a directory" in run("get", "nobody/1", "-o", tmp_path, code=1).stderr
    assert b"mkdir -p" in run("get", "nobody/1", "-o", tmp_path / "no" / "out", code=1).stderr
    del node


def test_a_file_is_replaced_atomically(client: Client, tmp_path: Path) -> None:
    """Permissions and links stay. A failed write leaves the old content and no temporary file."""
    target, link = tmp_path / "out.npy", tmp_path / "link.npy"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    client.put(numbers(10), name="array/1")
    client.put(b"bytes", name="bytes/1")
    assert b"bytes/1 is bytes" in run("get", "bytes/1", "-o", target, code=1).stderr
    assert target.read_bytes() == b"old"
    run("get", "array/1", "-o", link)
    assert link.is_symlink()
    same(np.load(target), numbers(10))
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hoplite", "link.npy", "out.npy"]
    mask = os.umask(0o027)
    try:
        run("get", "bytes/1", "-o", tmp_path / "new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_full_disk_leaves_no_file(client: Client, tmp_path: Path) -> None:
    """Simulated by a limit on the file size, which makes the same write fail."""
    client.put(numbers(1_000_000, "uint8"), name="large/1")
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        f"sys.argv = ['hoplite', 'get', 'large/1', '-o', {str(tmp_path / 'out')!r}];"
        "from hoplite.tools.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=SOON, check=False)
    assert done.returncode == 1
    assert b"out can't be written: File too large\ntry: " in done.stderr
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_a_device_or_pipe_is_written_in_place(client: Client, tmp_path: Path) -> None:
    client.put(b"bytes", name="bytes/1")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    run("get", "bytes/1", "-o", pipe)
    reader.join(SOON)
    assert received == [b"bytes"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_raw_bytes_are_not_written_to_a_terminal(client: Client) -> None:
    client.put(b"\x1b[2J", name="bytes/1")
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "get", "bytes/1"], stdout=theirs, stderr=subprocess.PIPE, timeout=SOON, check=False
        )
        assert done.returncode == 1
        assert b"try: hoplite get bytes/1 -o FILE" in done.stderr
        done = subprocess.run([*COMMAND, "put", "-"], stdin=theirs, capture_output=True, timeout=SOON, check=False)
        assert done.returncode == 1
        assert b"terminal" in done.stderr
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_output_pipe_causes_no_traceback(
    client: Client, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    client.put(numbers(3_000_000, "uint8"), name="large/1")
    with subprocess.Popen([*COMMAND, "get", "large/1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SOON) == 1


def test_an_array_without_numpy_reports_what_is_missing(client: Client, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", numbers(10))
    client.put(numbers(10), name="array/1")
    for arguments in (["put", str(tmp_path / "in.npy")], ["get", "array/1", "-o", str(tmp_path / "out.npy")]):
        script = (
            f"import sys; sys.modules['numpy'] = None; sys.argv = ['hoplite', *{arguments!r}]; import hoplite.tools.cli"
        )
        done = subprocess.run(
            [sys.executable, "-c", f"{script}; hoplite.tools.cli.main()"],
            capture_output=True,
            timeout=SOON,
            check=False,
        )
        assert done.returncode == 1
        assert b"pip install" in done.stderr
        assert b"numpy" in done.stderr
        assert b"Traceback" not in done.stderr


def test_commands_without_a_node_suggest_to_start_one(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x")
    for arguments in (["put", tmp_path / "in"], ["get", "a/1"], ["delete", "a/1"], ["locations", "a/1"]):
        assert b"try: start a node on this host with: hoplite node" in run(*arguments, code=1).stderr
