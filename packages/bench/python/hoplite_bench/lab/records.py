"""Records of the labs on this machine, with which labs are found and removed.

A lab is removed by its creator, by `hoplite lab`, or, after a crash, by the next lab. A record is one JSON file. Next
to it is a folder with the lab's agent and its hosts file. The record is created before everything else of a lab and
deleted after it, so nothing exists without a record. An unreadable record, or a folder without a record, was left
behind by a power failure. This module does not depend on links.
"""

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

# Not /run: many systems mount it noexec, and the agent is an executable.
FOLDER = Path("/var/lib/hoplite/labs")


@dataclass(frozen=True)
class HostRecord:
    """The record of a host."""

    name: str
    rack: int
    address: str
    keeper: Keeper


@dataclass(frozen=True)
class Record:
    """The record of a lab.

    Attributes:
        name: name of the lab.
        owner: the process that creates the lab or removes it at its end; None once the lab exists until it is removed.
        boot: id of the boot during which the lab was created; no process survives a reboot.
        outside: identity of the creator's network namespace, in which nothing is ever killed.
        hosts: the hosts, in order.
        switch: the keeper of the switch; None while the lab is being created.
        rate: rate of each host's link, in bit/s per direction.
        uplink: rate of each rack's uplink, in bit/s; None without racks.
        pods: number of each rack's pod; empty without pods.
        pod_uplink: rate of each pod's uplink, in bit/s; None without pods.
        flow_cap: maximum rate at which a host sends on one TCP connection, in bit/s; None without a limit.
        latency_s: requested additional delay between two hosts, in seconds.
        latency_by: how the delay is produced: "netem", "chained bridges" or "none".
        bridges: extra bridges in each host's link.
        rtt_us: round trip from the first host to the last in microseconds, measured on the idle lab.
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
    flow_cap: int | None = None

    def keepers(self) -> list[Keeper]:
        """All keepers, that of the switch last."""
        return [host.keeper for host in self.hosts] + ([self.switch] if self.switch is not None else [])

    def is_abandoned(self) -> bool:
        """Whether its owner has ended, or the machine was rebooted."""
        return self.boot != boot_id() or (self.owner is not None and not self.owner.is_alive())


def folder_of(name: str) -> Path:
    """The folder of a lab's files."""
    return FOLDER / name


def begin(record: Record) -> None:
    """Writes the first record of a lab, and creates the folder of its files.

    Raises:
        LabError: a lab of this name exists already, or the files are not writable.
    """
    try:
        # One by one: mkdir(parents=True) creates parents with the default mode, which depends on the umask.
        for folder in (FOLDER.parent, FOLDER):
            if not folder.exists():
                folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        _check_folders()
        with _written(record) as new:
            # Unlike a rename, a hard link fails if the file exists.
            _path(record.name).hardlink_to(new)
        (folder_of(record.name) / "cgroup").mkdir(parents=True)
    except FileExistsError as error:
        name = record.name
        raise LabError(f"a lab named {name!r} already exists; remove it: hoplite lab down --name {name}") from error
    except OSError as error:
        raise LabError(f"can't write the files of a lab under {FOLDER}: {error}") from error


def write(record: Record) -> None:
    """Writes a record atomically."""
    with _written(record) as new:
        new.replace(_path(record.name))


def read_all() -> list[Record]:
    """The readable records of all labs of this machine, by name."""
    return [record for name in _names() if isinstance(record := _read(name), Record)]


def abandoned() -> list[str]:
    """The names of labs whose owner has ended, whose record is unreadable, or that only left a folder."""
    return [name for name in _names() if (record := _read(name)) is not None and _is_abandoned(record)]


def remove(record: Record) -> None:
    """Removes a lab: kills its processes, keepers last. The kernel then removes the namespaces and links.

    Raises:
        LabError: a process did not end.
    """
    networks = _networks_of(record.name) - {record.outside}
    keepers: list[Keeper] = []
    if record.boot == boot_id():
        keepers = [keeper for keeper in record.keepers() if keeper.is_alive()]
        held = {network_of(keeper.process) for keeper in keepers}
        # A keeper that has not left its creator's namespace yet ends by itself: its creator never sent "go".
        networks |= {network for network in held if network is not None} - {record.outside, namespaces.own_network()}
    namespaces.kill_all(sorted(networks), spare=[keeper.process for keeper in keepers])
    namespaces.kill_all(sorted(networks))
    _remove_files(record.name)


def remove_abandoned() -> list[str]:
    """Removes what labs of dead owners left behind.

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
    """This process, as the owner of a lab."""
    process = os.getpid()
    return Keeper(process, namespaces.start_of(process) or 0)


def boot_id() -> str:
    """The id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class _Unreadable:
    """Stands for a record that is missing, or that a crash of the machine truncated."""


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json"


@contextlib.contextmanager
def _written(record: Record) -> Iterator[Path]:
    """Writes a record to a temporary file next to its own, which is deleted at the end."""
    new = _path(record.name).with_suffix(f".new-{os.getpid()}")
    try:
        new.write_text(json.dumps(asdict(record)))
        yield new
    finally:
        new.unlink(missing_ok=True)


def _check_folders() -> None:
    """Checks that only root can change the records, agents and hosts files that root processes use.

    Raises:
        LabError: another user can change them, or replace the folder of the labs.
    """
    for folder in (FOLDER.parent, FOLDER):
        facts = folder.stat()
        if facts.st_uid not in (0, os.geteuid()) or stat.S_IMODE(facts.st_mode) & 0o022:
            raise LabError(f"{folder} must belong to root and be writable by root alone: chown root and chmod 755 it")


def _names() -> list[str]:
    """The names of all labs that have a record or a folder."""
    if not FOLDER.exists():
        return []
    # These files determine which processes root kills.
    _check_folders()
    # Folders first: a lab that is created or removed meanwhile never has a folder without a record.
    folders = {path.name for path in FOLDER.glob("*") if path.is_dir()}
    return sorted(folders | {path.stem for path in FOLDER.glob("*.json")})


def _read(name: str) -> Record | _Unreadable | None:
    """Reads a record; None if the lab no longer exists.

    Raises:
        LabError: another version of this package wrote it.
    """
    try:
        fields = json.loads(_path(name).read_text())
    except FileNotFoundError:
        # A lab of this name may have been created since. Its record is written before its folder is created.
        return _Unreadable() if folder_of(name).exists() and not _path(name).exists() else None
    except (ValueError, RecursionError):
        return _Unreadable()
    try:
        return _record(fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise LabError(
            f"{_path(name)} was written by another version of hoplite: remove the lab with that version, or delete "
            "this file"
        ) from error


def _is_abandoned(record: Record | _Unreadable) -> bool:
    return isinstance(record, _Unreadable) or record.is_abandoned()


def _networks_of(name: str) -> set[int]:
    """The networks of the processes that see a lab's hosts file as /etc/hosts, whether or not its keepers are alive.

    The inode of a network is not enough: the kernel reuses it once the last process in the network has ended.
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
    # Another version of this package may write more fields.
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
