"""What identifies an environment, so that a plan measured in one is applied only where its times are valid.

The parts are those that change which library is fastest: processor and limits, the kinds of namespaces, shared memory,
network interfaces, GPUs, and versions and settings of libraries. Parts that differ although the times stay valid are
left out or reduced to a class: the boot id, numbers of namespaces and devices, names of virtual interfaces, the host
name of a container, free memory. So a reboot, or another container of the same kind on this machine, is the same
environment. Other hosts are represented by their names and addresses, because reading a plan must not connect to them.

The module imports only the standard library, and starts no process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hoplite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Inode numbers of the machine's own namespaces, which the kernel fixes: see include/linux/proc_ns.h.
INITIAL = {"ipc": 0xEFFFFFFF, "uts": 0xEFFFFFFE, "user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}
# Settings with these prefixes change the behavior of a measured library.
SETTINGS = (
    "MPIR_CVAR_",
    "MPICH_",
    "OMPI_MCA_",
    "PMIX_MCA_",
    "PRTE_MCA_",
    "UCX_",
    "UCC_",
    "NCCL_",
    "GLOO_",
    "HOPLITE_",
    "CUDA_VISIBLE_DEVICES",
)
# Exceptions, which change no time: what Open MPI's launcher sets for each job, and the file of a plan.
FACTS = (
    "OMPI_MCA_PREFIXES",
    "PMIX_MCA_PREFIXES",
    "PRTE_MCA_PREFIXES",
    "OMPI_MCA_cpu_type",
    "OMPI_MCA_initial_wdir",
    "OMPI_MCA_num_procs",
    "HOPLITE_PLAN",
)
# Settings that grant rights: they change no time.
SECRETS = ("TOKEN", "KEY", "CAPABILITY")
# What the candidates of PyTorch import if this interpreter has it, and the packages of that.
MODULES = ("torch", "mpi4py")
PACKAGES = (*MODULES, "mpich")
# Environments of the candidates. The folder has those of other systems too.
ENVIRONMENTS = ("mpich", "openmpi", "torch")
GLOO = Path("/usr/include/gloo/context.h")
MIB = 2**20


def environment(libraries: Path) -> dict[str, Any]:
    """Describes the environment of this process.

    Args:
        libraries: folder of the environments of the measured libraries.
    """
    return {
        "machine": _text("/etc/machine-id"),
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "limits": _limits(),
        "namespaces": {name: _is_initial(name, number) for name, number in INITIAL.items()},
        "root": _mounted("/"),
        "shared memory": _shared_memory(),
        "network": _interfaces(Path("/sys/class/net")),
        "congestion control": _text("/proc/sys/net/ipv4/tcp_congestion_control"),
        "gpus": _gpus(),
        "python": platform.python_version(),
        "hoplite": f"{hoplite.__version__} {hoplite.__build__} {_extension()}",
        "libraries": _libraries(libraries),
        "settings": {name: _digest(value) for name, value in sorted(os.environ.items()) if _is_setting(name)},
    }


def key(parts: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """The key of a plan: a hash of the environment and of what was requested."""
    return _digest(json.dumps([parts, request], sort_keys=True))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of the parts that differ between two environments."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _text(path: str | Path) -> str:
    """A small file, or an empty text if it can't be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_setting(name: str) -> bool:
    return name.startswith(SETTINGS) and name not in FACTS and not any(word in name for word in SECRETS)


def _processor() -> str:
    lines = _text("/proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _limits() -> dict[str, float | None]:
    """The processors and the GiB of memory to which control groups limit this process; None without a limit."""
    cpus, memory = [], []
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for folder in _upward(Path("/sys/fs/cgroup") / controllers.removeprefix("name="), path):
            quota, _, period = _text(folder / "cpu.max").partition(" ")
            cpus += _ratio(quota, period)
            cpus += _ratio(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))
            memory += _ratio(_text(folder / "memory.max"), "1073741824")
            memory += _ratio(_text(folder / "memory.limit_in_bytes"), "1073741824")
    # Version 1 states "no limit" as the largest number of pages.
    memory = [one for one in memory if one < 2**30]
    return {"cpus": min(cpus, default=None), "memory": round(min(memory), 1) if memory else None}


def _upward(root: Path, path: str) -> Iterable[Path]:
    """The folder of a control group and those above it."""
    folder = root / path.lstrip("/")
    yield folder
    while folder != root:
        folder = folder.parent
        yield folder


def _ratio(number: str, divisor: str) -> list[float]:
    return [int(number) / int(divisor)] if number.isdigit() and divisor.isdigit() and int(divisor) else []


def _is_initial(name: str, number: int) -> bool | None:
    """Whether this process is in the machine's own namespace of a kind, not in that of a container."""
    try:
        return os.stat(f"/proc/self/ns/{name}").st_ino == number  # noqa: PTH116 - a third of the time
    except OSError:
        return None


def _mounted(folder: str) -> str:
    """The type of the file system of a folder."""
    found = ""
    for line in _text("/proc/self/mounts").splitlines():
        words = line.split()
        if len(words) > 2 and words[1] == folder:
            found = words[2]
    return found


def _shared_memory() -> dict[str, Any]:
    try:
        facts = os.statvfs("/dev/shm")
    except OSError:
        return {}
    return {"type": _mounted("/dev/shm"), "mib": facts.f_blocks * facts.f_frsize // MIB}


def _interfaces(root: Path) -> list[str]:
    """The physical network interfaces; in a network namespace without any, the kinds of the virtual ones."""
    try:
        found = sorted(one for one in root.iterdir() if one.name != "lo")
    except OSError:
        return []
    physical = [one for one in found if (one / "device").exists()]
    if physical:
        return [f"{one.name} {_link(one)}" for one in physical]
    return sorted({_link(one) for one in found})


def _link(interface: Path) -> str:
    return f"mtu {_text(interface / 'mtu')} rate {_text(interface / 'speed') or 'unknown'}"


def _gpus() -> list[str]:
    """The models of NVIDIA's GPUs, and the bus addresses of AMD's."""
    models = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    found = [line.partition(":")[2].strip() for one in models for line in _text(one).splitlines()[:1]]
    return found + [str(one.parent.name) for one in sorted(Path("/sys/module/amdgpu/drivers").glob("*/*/drm"))]


def _libraries(root: Path) -> dict[str, str]:
    """What each environment and this interpreter have, the compiled programs, and the installed headers of Gloo."""
    found = {
        one.parent.name: " ".join(_text(one).split())
        for one in sorted(root.glob("*/requirements.txt"))
        if one.parent.name.startswith(ENVIRONMENTS)
    }
    programs = sorted(one.name for one in root.glob("gloo_rank-*") if one.suffix != ".new")
    return {**found, "gloo": " ".join([*programs, _stamp(GLOO)]), "python": " ".join(_packages())}


def _packages() -> list[str]:
    """The installed packages that candidates of PyTorch import. Finds their files, and imports none."""
    places = [path for name in MODULES if (path := _module(name))]
    folders = sorted({path.parent.parent for path in places})
    metadata = [one for folder in folders for name in PACKAGES for one in sorted(folder.glob(f"{name}-*.dist-info"))]
    return [f"{one.name} {_stamp(one / 'METADATA')}" for one in metadata] + [_stamp(path) for path in places]


def _module(name: str) -> Path | None:
    """The file of a module of this interpreter."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:
        # A module without a specification, made by a program.
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _extension() -> str:
    return " ".join(_stamp(path) for path in sorted(Path(hoplite.__file__).parent.glob("_native*.so")))


def _stamp(path: Path) -> str:
    """Size and time of a file, which change when it is replaced."""
    try:
        facts = path.stat()
    except OSError:
        return "missing"
    return f"{facts.st_size} {facts.st_mtime_ns}"
