"""What is written down of each lab, so that it can be found again and taken away: by its maker, by `hoplite lab`, by
the next lab after a crash.

A record is one JSON file, and beside it is a folder with the lab's agent and its hosts file. Both are written before
any namespace is made, so nothing can be left that no record tells of. Knows nothing of links.
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

from hoplite.errors import LabError
from hoplite.lab import namespaces
from hoplite.lab.namespaces import Keeper

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

    def keepers(self) -> list[Keeper]:
        """All keepers, that of the switch last."""
        return [host.keeper for host in self.hosts] + ([self.switch] if self.switch is not None else [])

    def is_abandoned(self) -> bool:
        """Whether its owner, or its machine's uptime, has ended."""
        return self.boot != boot_id() or (self.owner is not None and not self.owner.is_alive())


def folder_of(name: str) -> Path:
    """The folder of a lab's files."""
    return FOLDER / name


def make_folder(name: str) -> Path:
    """Makes the folder of a lab's files.

    Raises:
        LabError: it is there already, or can't be made.
    """
    try:
        FOLDER.mkdir(parents=True, exist_ok=True, mode=0o755)
        # The agent and the hosts file of a root process are there: no one else may write them.
        if FOLDER.stat().st_uid != 0 or stat.S_IMODE(FOLDER.stat().st_mode) & 0o022:
            raise LabError(f"{FOLDER} must belong to root and be writable by root alone")
        folder_of(name).mkdir()
        (folder_of(name) / "cgroup").mkdir()
    except FileExistsError as error:
        raise LabError(f"a lab named {name!r} is there already; end it by: hoplite lab down --name {name}") from error
    except OSError as error:
        raise LabError(f"a lab writes its files under {FOLDER}: {error}") from error
    return folder_of(name)


def write(record: Record) -> None:
    """Writes a record down, all of it or nothing."""
    path = FOLDER / f"{record.name}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(record)))
    new.replace(path)


def read_all() -> list[Record]:
    """The records of all labs of this machine, by name."""
    records = []
    for path in sorted(FOLDER.glob("*.json")):
        # Another process may be taking it away.
        with contextlib.suppress(FileNotFoundError):
            records.append(_record(json.loads(path.read_text())))
    return records


def remove(record: Record) -> None:
    """Takes a lab away: kills every process on it, keepers last, and with them go namespaces and links.

    Raises:
        LabError: a process did not end.
    """
    if record.boot == boot_id():
        networks = {
            network
            for keeper in record.keepers()
            if keeper.is_alive() and (network := namespaces.network_of(keeper.process)) is not None
        }
        # A keeper that had not yet left its maker's namespace goes by itself: its maker never said go.
        networks -= {record.outside, namespaces.own_network()}
        keepers = [keeper.process for keeper in record.keepers()]
        namespaces.kill_all(sorted(networks), spare=keepers)
        namespaces.kill_all(sorted(networks))
    (FOLDER / f"{record.name}.json").unlink(missing_ok=True)
    shutil.rmtree(folder_of(record.name), ignore_errors=True)


def remove_abandoned() -> list[str]:
    """Takes away what labs of dead owners left.

    Returns:
        The names of those labs.
    """
    abandoned = [record for record in read_all() if record.is_abandoned()]
    for record in abandoned:
        remove(record)
    return [record.name for record in abandoned]


def this_process() -> Keeper:
    """This process as an owner."""
    process = os.getpid()
    return Keeper(process, namespaces.start_of(process) or 0)


def boot_id() -> str:
    """The identity of this start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _record(fields: dict[str, object]) -> Record:
    # Another version of this package may write down more.
    known = {field.name for field in dataclasses.fields(Record)}
    values = {name: value for name, value in fields.items() if name in known}
    for name in ("owner", "switch"):
        values[name] = _keeper(values[name])
    hosts = values["hosts"]
    assert isinstance(hosts, list)
    values["hosts"] = tuple(HostRecord(**{**host, "keeper": _keeper(host["keeper"])}) for host in hosts)
    return Record(**values)  # type: ignore[arg-type]


def _keeper(fields: object) -> Keeper | None:
    return Keeper(**fields) if isinstance(fields, dict) else None
