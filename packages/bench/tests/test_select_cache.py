"""Plans on disk: what makes an environment another one, which files are ignored, and what reading one imports."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hoplite.errors import InvalidArgument
from hoplite.extras import install_package
from hoplite_bench.select import cache, deciding, fingerprint
from hoplite_bench.select.request import Request
from test_select_plan import PLAN

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = Request("allreduce", 2**20, 2)
# What only a measurement needs.
HEAVY = ("numpy", "psutil", "rich", "subprocess", "hoplite_bench.hosts", "hoplite_bench.group", "hoplite_bench.systems")


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refuse(text: str) -> None:
    raise AssertionError(f"an unexpected warning: {text}")


# -- The environment ---------------------------------------------------------------------------------------------------


def test_the_same_environment_has_the_same_key(tmp_path: Path) -> None:
    parts = [fingerprint.environment(tmp_path) for _ in range(2)]
    assert parts[0] == parts[1]
    assert fingerprint.key(parts[0], REQUEST.key()) == fingerprint.key(parts[1], REQUEST.key())
    assert json.loads(json.dumps(parts[0])) == parts[0]


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, arch="ps"),
        replace(REQUEST, nbytes=2**21),
        replace(REQUEST, ranks=3),
        replace(REQUEST, layer="torch"),
        replace(REQUEST, container="cross"),
        replace(REQUEST, ops=("broadcast",)),
        replace(REQUEST, require_failures=True),
    ],
)
def test_another_request_has_another_key(other: Request) -> None:
    assert fingerprint.key({}, other.key()) != fingerprint.key({}, REQUEST.key())


def test_a_larger_budget_is_not_another_request() -> None:
    assert replace(REQUEST, budget_s=300).key() == REQUEST.key()


def test_other_hosts_are_another_request_and_comments_are_not(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    keys = []
    for text in ("a\nb\n", "a # first\n\nb\n", "a\nc\n"):
        hosts.write_text(text)
        keys.append(replace(REQUEST, hosts=hosts).key())
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]
    with pytest.raises(InvalidArgument, match="can't read the hosts in"):
        replace(REQUEST, hosts=tmp_path / "missing").key()


@pytest.mark.parametrize(
    ("name", "value", "changes"),
    [
        ("UCX_TLS", "tcp", True),
        ("HOPLITE_CAPACITY", "1GiB", True),
        ("HOPLITE_TOKEN", "secret", False),
        ("HOME", "/elsewhere", False),
        ("OMPI_MCA_coll", "^han", True),
        # What Open MPI's launcher sets for each job.
        ("OMPI_FILE_LOCATION", "/tmp/ompi.12410/1/0", False),
        ("OMPI_MCA_num_procs", "2", False),
        ("HOPLITE_PLAN", "/elsewhere/plan.json", False),
    ],
)
def test_settings_of_libraries_count_and_secrets_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, changes: bool
) -> None:
    before = fingerprint.environment(tmp_path)
    monkeypatch.setenv(name, value)
    after = fingerprint.environment(tmp_path)
    assert fingerprint.differences(before, after) == (["settings"] if changes else [])
    assert f'"{value}"' not in json.dumps(after["settings"])


def test_an_installed_library_changes_the_environment(tmp_path: Path) -> None:
    before = fingerprint.environment(tmp_path)
    (tmp_path / "mpich-python3").mkdir()
    (tmp_path / "mpich-python3" / "requirements.txt").write_text("mpich==5\n")
    assert fingerprint.differences(before, fingerprint.environment(tmp_path)) == ["libraries"]


def test_packages_of_the_interpreter_change_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "packages"
    (folder / "mpi4py").mkdir(parents=True)
    (folder / "mpi4py" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    keys = []
    for metadata in ("", "mpi4py-4.1.dist-info", "mpich-5.0.2.dist-info"):
        (folder / metadata).mkdir(exist_ok=True)
        (folder / metadata / "METADATA").write_text(f"Name: {metadata}\n")
        keys.append(fingerprint.key(fingerprint.environment(tmp_path), {}))
    (folder / metadata / "METADATA").write_text("Name: another build\n")
    keys.append(fingerprint.key(fingerprint.environment(tmp_path), {}))
    assert len(set(keys)) == len(keys)
    assert fingerprint.key(fingerprint.environment(tmp_path), {}) == keys[-1]


def test_virtual_interfaces_count_only_where_there_are_no_physical_ones(tmp_path: Path) -> None:
    for name in ("lo", "veth9", "veth3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mtu").write_text("1500\n")
    # Two of the same kind: names and numbers of these are random.
    assert fingerprint._interfaces(tmp_path) == ["mtu 1500 rate unknown"]
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    (tmp_path / "eth0" / "mtu").write_text("9000\n")
    (tmp_path / "eth0" / "speed").write_text("25000\n")
    assert fingerprint._interfaces(tmp_path) == ["eth0 mtu 9000 rate 25000"]


# -- Files -------------------------------------------------------------------------------------------------------------


def test_a_stored_plan_is_loaded_as_cached() -> None:
    assert cache.load("f00d", refuse) is None
    cache.store(PLAN, {"cores": 2}, refuse)
    assert cache.load("f00d", refuse) == replace(PLAN, cached=True)
    cache.store_unsafe("beef", {"mpich": "hangs", "gloo": ""}, refuse)
    assert cache.load_unsafe("beef", refuse) == {"mpich": "hangs", "gloo": ""}
    assert sorted(path.name for path in (cache.root() / "select").iterdir()) == ["beef.json", "f00d.json"]


def of_another_format(entry: dict[str, Any]) -> None:
    entry["format"] = 2


def of_another_environment(entry: dict[str, Any]) -> None:
    entry["plan"]["fingerprint"] = "another"


def without_a_rule(entry: dict[str, Any]) -> None:
    entry["plan"]["choice"] = {}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (of_another_format, "it does not have format 1"),
        (of_another_environment, "it was written for another environment"),
        (without_a_rule, "no rule for allreduce"),
        (b"", "Expecting value"),
        (b"[]", "it does not have format 1"),
        (b"\xff", "can't decode"),
        (b"[" * 100_000, "recursion"),
        (b" " * (cache.BYTES_MAX + 1), "it has more than"),
    ],
)
def test_a_file_that_is_not_valid_is_ignored_with_the_reason_and_replaced(damage: Any, reason: str) -> None:  # noqa: ANN401
    cache.store(PLAN, {}, refuse)
    path = cache.root() / "select" / "f00d.json"
    if callable(damage):
        entry = json.loads(path.read_text())
        damage(entry)
        path.write_text(json.dumps(entry))
    else:
        path.write_bytes(damage)
    said: list[str] = []
    assert cache.load("f00d", said.append) is None
    assert len(said) == 1
    assert reason in said[0]
    assert str(path) in said[0]
    cache.store(PLAN, {}, refuse)
    assert cache.load("f00d", refuse) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_ignored() -> None:
    cache.store(PLAN, {}, refuse)
    os.chown(cache.root() / "select" / "f00d.json", 12345, 12345)
    said: list[str] = []
    assert cache.load("f00d", said.append) is None
    assert "it belongs to another user" in said[0]


def test_a_plan_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said: list[str] = []
    cache.store(PLAN, {}, said.append)
    assert len(said) == 1
    assert "set XDG_CACHE_HOME to a folder with free space" in said[0]


def _hold(root: str, ready: Any, done: Any) -> None:  # noqa: ANN401 - events of multiprocessing
    os.environ["XDG_CACHE_HOME"] = root
    with cache.measuring(10):
        ready.set()
        done.wait(30)


def test_two_selections_do_not_measure_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path / "cache"), ready, done))
    other.start()
    try:
        assert ready.wait(30)
        with pytest.raises(cache.Busy, match="another selection of this user has been running"), cache.measuring(0.01):
            raise AssertionError("both measure")
        done.set()
        with cache.measuring(30):
            pass
    finally:
        done.set()
        other.join(30)


# -- A decision from the cache -----------------------------------------------------------------------------------------


def test_a_plan_in_the_cache_is_returned_without_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    key, parts = deciding._identify(REQUEST)
    cache.store(replace(PLAN, fingerprint=key), parts, refuse)
    monkeypatch.setattr(deciding, "_measure", lambda *_: pytest.fail("measured"))
    plan = deciding.decide(REQUEST, warn=refuse)
    assert plan.cached
    assert plan.rules == PLAN.rules


def test_reading_a_plan_imports_nothing_that_only_measuring_needs() -> None:
    key, parts = deciding._identify(REQUEST)
    cache.store(replace(PLAN, fingerprint=key), parts, refuse)
    script = f"""
import sys
import hoplite
plan = hoplite.select(arch="allreduce", nbytes="1MiB", ranks=2)
assert plan.cached
print(*(name for name in {HEAVY!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_without_the_package_the_error_names_it() -> None:
    script = """
import sys
sys.modules["hoplite_bench"] = None
import hoplite
try:
    hoplite.select(arch="ps", nbytes=4, ranks=2)
except hoplite.HopliteError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"which is not installed: run {install_package('hoplite-bench')}")
