"""Writes orders in the formats of launchers, which assign ranks to hosts.

Each format is a function of the hosts in the order of their ranks. If a launcher does not support them, an error with
the reason is raised before anything is written.
"""

from __future__ import annotations

import ipaddress
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite_topology.hosts import Host
    from hoplite_topology.problem import Wanted

TORCH_PORT = 29500
LIGHTGBM_PORT = 12400
PROGRAM = "PROGRAM"
FLOAT_BYTES = 4
# Name of the algorithm in Gloo's benchmark, which has no double tree.
GLOO = {
    "ring": "allreduce_ring_chunked",
    "halving-doubling": "allreduce_halving_doubling",
    "bcube": "allreduce_bcube",
}
NCCL = {"ring": "Ring", "double-tree": "Tree"}


@dataclass(frozen=True)
class Launch:
    """The input of a launcher.

    Attributes:
        text: content of its file, or a command for each host.
        run: command that starts it, where FILE is the file with `text`; "" if `text` consists of commands.
        notes: other settings that affect ranks.
    """

    text: str
    run: str
    notes: list[str]


def write(form: str, hosts: list[Host], wanted: Wanted) -> Launch:
    """Formats an order for a launcher.

    Args:
        form: one of FORMATS.
        hosts: hosts in the order of their ranks.
        wanted: the collective.

    Raises:
        InvalidArgument: the launcher does not support these hosts or this algorithm.
    """
    return FORMATS[form](hosts, wanted)


def library_of(form: str | None) -> str:
    """The library whose halving-doubling the programs of a launcher use."""
    return {"lightgbm": "lightgbm", "gloo": "gloo", "torchrun": "gloo"}.get(form or "", "mpi")


def _processes(hosts: list[Host]) -> list[tuple[str, int]]:
    """The (host, number on it) of each process, in the order of ranks."""
    return [(host.name, slot) for host in hosts for slot in range(host.slots)]


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _refuse_colons(hosts: list[Host], launcher: str) -> None:
    for host in hosts:
        if isinstance(host.address, ipaddress.IPv6Address):
            raise InvalidArgument(
                f"{launcher} treats text after a colon as a count or a port: use a name for {host.name} instead"
            )


def _same_slots(hosts: list[Host], launcher: str) -> int:
    slots = {host.slots for host in hosts}
    if len(slots) > 1:
        raise InvalidArgument(
            f"{launcher} starts the same number of processes on each host: set the same slots=N for all hosts, "
            f"not {sorted(slots)}"
        )
    return slots.pop()


def _one_slot(hosts: list[Host], launcher: str) -> None:
    for host in hosts:
        if host.slots > 1:
            raise InvalidArgument(
                f"{launcher} runs one process per host: remove slots={host.slots} from the line of {host.name}"
            )


def _need_algorithm(wanted: Wanted, launcher: str, names: dict[str, str]) -> str:
    if wanted.algorithm not in names:
        raise InvalidArgument(
            f"{launcher} does not support {wanted.algorithm}: set --algorithm to one of {', '.join(names)}"
        )
    return names[wanted.algorithm]


def _openmpi4(hosts: list[Host], _wanted: Wanted) -> Launch:
    _refuse_colons(hosts, "Open MPI")
    processes = _processes(hosts)
    lines = [f"rank {rank}={name} slot={slot}" for rank, (name, slot) in enumerate(processes)]
    run = f"mpirun --hostfile HOSTS --rankfile FILE --bind-to none -np {len(processes)} {PROGRAM}"
    notes = ["this is a rank file, because mpirun ignores the order of a host file that contains its own host"]
    return Launch(_lines(lines), run, notes)


def _openmpi5(hosts: list[Host], _wanted: Wanted) -> Launch:
    _refuse_colons(hosts, "Open MPI")
    processes = _processes(hosts)
    run = f"mpirun --map-by seq:file=FILE --bind-to none -n {len(processes)} {PROGRAM}"
    return Launch(_lines([name for name, _ in processes]), run, [])


def _mpich(hosts: list[Host], _wanted: Wanted) -> Launch:
    _refuse_colons(hosts, "MPICH")
    count = sum(host.slots for host in hosts)
    per_host = f" -ppn {hosts[0].slots}" if len({host.slots for host in hosts}) == 1 else ""
    run = f"mpiexec -f FILE -n {count}{per_host} {PROGRAM}"
    notes = ["Intel MPI accepts the same file with -machinefile FILE"]
    return Launch(_lines([f"{host.name}:{host.slots}" for host in hosts]), run, notes)


def _slurm(hosts: list[Host], _wanted: Wanted) -> Launch:
    processes = _processes(hosts)
    run = f"SLURM_HOSTFILE=FILE srun -m arbitrary -n {len(processes)} {PROGRAM}"
    notes = ["use the hosts of the job, with their names in Slurm"]
    return Launch(_lines([name for name, _ in processes]), run, notes)


# torch 1.13 does not accept dashes inside option names; later versions accept both forms.
def _torchrun(hosts: list[Host], _wanted: Wanted) -> Launch:
    slots = _same_slots(hosts, "torchrun")
    lines = [
        f"{host.name}: torchrun --nnodes={len(hosts)} --nproc_per_node={slots} --node_rank={rank} "
        f"--master_addr={shlex.quote(hosts[0].name)} --master_port={TORCH_PORT} {PROGRAM}"
        for rank, host in enumerate(hosts)
    ]
    notes = ["with --rdzv_backend=c10d, torchrun assigns ranks itself and ignores --node_rank"]
    return Launch(_lines(lines), "", notes)


def _env(hosts: list[Host], _wanted: Wanted) -> Launch:
    processes = _processes(hosts)
    lines = [
        f"{name}: RANK={rank} WORLD_SIZE={len(processes)} LOCAL_RANK={slot} "
        f"MASTER_ADDR={shlex.quote(hosts[0].name)} MASTER_PORT={TORCH_PORT}"
        for rank, (name, slot) in enumerate(processes)
    ]
    return Launch(_lines(lines), "", [])


def _gloo(hosts: list[Host], wanted: Wanted) -> Launch:
    _one_slot(hosts, "Gloo's benchmark")
    name = _need_algorithm(wanted, "Gloo's benchmark", GLOO)
    base = f"--base {wanted.base} " if wanted.algorithm == "bcube" else ""
    lines = [
        f"{host.name}: benchmark --size {len(hosts)} --rank {rank} --shared-path DIR --prefix RUN --transport tcp "
        f"--tcp-device eth0 --elements {round(wanted.bytes / FLOAT_BYTES)} --iteration-count 20 {base}{name}"
        for rank, host in enumerate(hosts)
    ]
    return Launch(_lines(lines), "", ["DIR must be a folder that all hosts share; empty it before each RUN"])


def _nccl(hosts: list[Host], wanted: Wanted) -> Launch:
    name = _need_algorithm(wanted, "NCCL", NCCL)
    env = _env(hosts, wanted).text.splitlines()
    notes = ["NCCL orders hosts by the first rank on each, and orders the processes of a host itself"]
    return Launch(_lines([f"{line} NCCL_ALGO=allreduce:{name}" for line in env]), "", notes)


def _horovod(hosts: list[Host], _wanted: Wanted) -> Launch:
    _refuse_colons(hosts, "Horovod")
    count = sum(host.slots for host in hosts)
    run = f"horovodrun -np {count} --hostfile FILE {PROGRAM}"
    notes = ["Horovod may ignore the order of the hosts with Open MPI (--mpi); add --gloo to keep it"]
    return Launch(_lines([f"{host.name} slots={host.slots}" for host in hosts]), run, notes)


def _lightgbm(hosts: list[Host], wanted: Wanted) -> Launch:
    _one_slot(hosts, "LightGBM")
    _need_algorithm(wanted, "LightGBM", {"ring": "", "halving-doubling": ""})
    if wanted.algorithm == "halving-doubling" and wanted.library != "lightgbm":
        raise InvalidArgument(
            "LightGBM's halving-doubling exchanges the largest part between the most distant ranks: "
            "set --library lightgbm"
        )
    # If the name and the address of a host are known, its line has the address.
    hosts = [replace(host, name=host.at) if host.at and host.address is None else host for host in hosts]
    for host in hosts:
        if not isinstance(host.address, ipaddress.IPv4Address):
            raise InvalidArgument(
                f"LightGBM parses a line that contains a letter of `rank=` as a rank: use an IPv4 address, such as "
                f"10.0.0.3, for {host.name}"
            )
    run = f"lightgbm config=CONFIG machine_list_file=FILE num_machines={len(hosts)}"
    return Launch(_lines([f"{host.name} {LIGHTGBM_PORT}" for host in hosts]), run, [])


FORMATS: dict[str, Callable[[list[Host], Wanted], Launch]] = {
    "openmpi4": _openmpi4,
    "openmpi5": _openmpi5,
    "mpich": _mpich,
    "slurm": _slurm,
    "torchrun": _torchrun,
    "env": _env,
    "gloo": _gloo,
    "nccl": _nccl,
    "horovod": _horovod,
    "lightgbm": _lightgbm,
}
