"""What is written down of each lab, so that it can be found again and taken away: by its maker, by `hoplite lab`, by
the next lab after a crash.

A record is one JSON file, and beside it is a folder with the lab's agent and its hosts file. The record is the first of
a lab to be made and the last to go, so nothing can be left that no record tells of; one that can't be read, or a folder
without one, is what a power cut left. Knows nothing of links.
"""  # noqa: D205 - one sentence

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite_bench.lab import namespaces
from hoplite_bench.lab.errors import LabError
from hoplite_bench.lab.namespaces import Keeper
from hoplite_bench.processes import network_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# Not /run, from which many systems let nothing be executed, and the agent is a program.
FOLDER = Path("/var/lib/hoplite/labs")


@dataclass(frozen=True)
class HostRecord:
    """What is written down of a host."""

    name: str
    rack: int
    address: str
    keeper: Keeper


@dataclass(frozen=True)
class Record:
    """What is written down of a lab.

    Attributes:
        name: of the lab.
        owner: the process that takes it away at its end, or that makes it; None once it stays until someone does.
        boot: of which start of the machine it is; no process survives that.
        outside: identity of the maker's network namespace, in which nothing is ever killed.
        hosts: the hosts, in order.
        switch: the keeper of the switch; None while the lab is being made.
        rate: bit/s of each host's link, in each direction.
        uplink: bit/s of each rack's uplink; None without racks.
        pods: the number of the pod of each rack; empty without pods.
        pod_uplink: bit/s of each pod's uplink; None without pods.
        latency_s: the extra delay between two hosts that was asked, in seconds.
        latency_by: how it is made: "netem", "chained bridges" or "none".
        bridges: extra bridges in each host's link.
        rtt_us: microseconds of a round trip from the first host to the last, measured when nothing ran there.
    """

    name: str
    owner: Keeper | None
    boot: str
    outside: int
    rate: int
    uplink: int | None
    latency_s: float
    latency_by: str = "none"
    bridges: int = 0
    rtt_us: float | None = None
    hosts: tuple[HostRecord, ...] = ()
    switch: Keeper | None = None
    pods: tuple[int, ...] = ()
    pod_uplink: int | None = None

    def keepers(self) -> list[Keeper]:
        """All keepers, that of the switch last."""
        return [host.keeper for host in self.hosts] + ([self.switch] if self.switch is not None else [])

    def is_abandoned(self) -> bool:
        """Whether its owner, or its machine's uptime, has ended."""
        return self.boot != boot_id() or (self.owner is not None and not self.owner.is_alive())


def folder_of(name: str) -> Path:
    """The folder of a lab's files."""
    return FOLDER / name


def begin(record: Record) -> None:
    """Writes the first record of a lab down, and makes the folder of its files.

    Raises:
        LabError: a lab of this name is there already, or nothing can be written.
    """
    try:
        # One by one: folders above the last would be made with all rights that the mask of the process leaves.
        for folder in (FOLDER.parent, FOLDER):
            if not folder.exists():
                folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        _check_folders()
        with _written(record) as new:
            # Unlike a rename, a second name is refused where there is a file.
            _path(record.name).hardlink_to(new)
        (folder_of(record.name) / "cgroup").mkdir(parents=True)
    except FileExistsError as error:
        name = record.name
        raise LabError(f"a lab named {name!r} is there already; end it by: hoplite lab down --name {name}") from error
    except OSError as error:
        raise LabError(f"a lab writes its files under {FOLDER}: {error}") from error


def write(record: Record) -> None:
    """Writes a record down, all of it or nothing."""
    with _written(record) as new:
        new.replace(_path(record.name))


def read_all() -> list[Record]:
    """The records of all labs of this machine that can be read, by name."""
    return [record for name in _names() if isinstance(record := _read(name), Record)]


def abandoned() -> list[str]:
    """The names of labs whose owner has ended, and of what has no record, or none that can be read."""
    return [name for name in _names() if (record := _read(name)) is not None and _is_abandoned(record)]


def remove(record: Record) -> None:
    """Takes a lab away: kills every process on it, keepers last, and with them go namespaces and links.

    Raises:
        LabError: a process did not end.
    """
    networks = _networks_of(record.name) - {record.outside}
    keepers: list[Keeper] = []
    if record.boot == boot_id():
        keepers = [keeper for keeper in record.keepers() if keeper.is_alive()]
        held = {network_of(keeper.process) for keeper in keepers}
        # A keeper that had not yet left its maker's namespace goes by itself: its maker never said go.
        networks |= {network for network in held if network is not None} - {record.outside, namespaces.own_network()}
    namespaces.kill_all(sorted(networks), spare=[keeper.process for keeper in keepers])
    namespaces.kill_all(sorted(networks))
    _remove_files(record.name)


def remove_abandoned() -> list[str]:
    """Takes away what labs of dead owners left.

    Returns:
        The names of those labs.

    Raises:
        LabError: a process did not end.
    """
    names = abandoned()
    for name in names:
        record = _read(name)
        if isinstance(record, Record):
            remove(record)
        elif record is not None:
            namespaces.kill_all(sorted(_networks_of(name)))
            _remove_files(name)
    for new in FOLDER.glob("*.new-*"):
        if namespaces.start_of(int(new.name.rpartition("-")[2])) is None:
            new.unlink(missing_ok=True)
    return names


def this_process() -> Keeper:
    """This process as an owner."""
    process = os.getpid()
    return Keeper(process, namespaces.start_of(process) or 0)


def boot_id() -> str:
    """The identity of this start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class _Unreadable:
    """What stands for a record that is not there, or that the end of the machine cut short."""


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json"


@contextlib.contextmanager
def _written(record: Record) -> Iterator[Path]:
    """A record in a file beside its own, which is gone at the end."""
    new = _path(record.name).with_suffix(f".new-{os.getpid()}")
    try:
        new.write_text(json.dumps(asdict(record)))
        yield new
    finally:
        new.unlink(missing_ok=True)


def _check_folders() -> None:
    """Looks whether root alone can change what is written down, and the agent and hosts files of a root process.

    Raises:
        LabError: another user could, also by another folder in the place of that of the labs.
    """
    for folder in (FOLDER.parent, FOLDER):
        facts = folder.stat()
        if facts.st_uid not in (0, os.geteuid()) or stat.S_IMODE(facts.st_mode) & 0o022:
            raise LabError(f"{folder} must belong to root and be writable by root alone: chown root and chmod 755 it")


def _names() -> list[str]:
    """The names of all labs of which there is a record or a folder."""
    if not FOLDER.exists():
        return []
    # What is there says which processes root is to end.
    _check_folders()
    # Folders first: a lab that begins or ends meanwhile has none without a record.
    folders = {path.name for path in FOLDER.glob("*") if path.is_dir()}
    return sorted(folders | {path.stem for path in FOLDER.glob("*.json")})


def _read(name: str) -> Record | _Unreadable | None:
    """A record; None if the lab has gone.

    Raises:
        LabError: another version of this package wrote it.
    """
    try:
        fields = json.loads(_path(name).read_text())
    except FileNotFoundError:
        # A lab of this name may have begun since; then it has a record by the time that it has a folder.
        return _Unreadable() if folder_of(name).exists() and not _path(name).exists() else None
    except (ValueError, RecursionError):
        return _Unreadable()
    try:
        return _record(fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise LabError(
            f"{_path(name)} was written by another version of hoplite: end that lab with it, then remove the file"
        ) from error


def _is_abandoned(record: Record | _Unreadable) -> bool:
    return isinstance(record, _Unreadable) or record.is_abandoned()


def _networks_of(name: str) -> set[int]:
    """The networks of the processes that see a lab's hosts file as theirs, whichever of its keepers still live.

    A network's own number would not tell: the kernel gives it to another one once the last process in it has ended.
    """
    found = {network_of(process) for process in namespaces.processes_that_see(folder_of(name) / "hosts")}
    return {network for network in found if network is not None} - {
        namespaces.own_network(),
        network_of(1),
    }


def _remove_files(name: str) -> None:
    shutil.rmtree(folder_of(name), ignore_errors=True)
    _path(name).unlink(missing_ok=True)


def _record(fields: dict[str, object]) -> Record:
    # Another version of this package may write down more.
    known = {field.name for field in dataclasses.fields(Record)}
    values = {name: value for name, value in fields.items() if name in known}
    for name in ("owner", "switch"):
        values[name] = _keeper(values[name])
    pods = values.get("pods", [])
    assert isinstance(pods, list)
    values["pods"] = tuple(pods)
    hosts = values["hosts"]
    assert isinstance(hosts, list)
    values["hosts"] = tuple(HostRecord(**{**host, "keeper": _keeper(host["keeper"])}) for host in hosts)
    return Record(**values)  # type: ignore[arg-type]


def _keeper(fields: object) -> Keeper | None:
    return Keeper(**fields) if isinstance(fields, dict) else None
