"""The configuration of a container that runc starts, as the OCI runtime specification defines it; pure.

It grants what Docker grants by default. Processes and memory have no limit, because a limit would be measured too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The namespaces that Docker creates for a container. The user namespace is the machine's.
NAMESPACES = ("mount", "pid", "network", "ipc", "uts")
# What Docker grants by default. Without CAP_SYS_PTRACE, a process reaches the memory only of processes in its own
# container.
CAPABILITIES = [
    *("CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD"),
    *("CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"),
    "CAP_SYS_CHROOT",
]
HIDDEN = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def configuration(
    name: str,
    hostname: str,
    command: Sequence[str],
    *,
    root: str,
    binds: Sequence[str],
    environment: Mapping[str, str],
    shm_bytes: int,
) -> dict[str, Any]:
    """Returns the content of a bundle's `config.json`.

    Args:
        name: name of the container and of its control group.
        hostname: its host name.
        command: its first process.
        root: folder of its root file system.
        binds: folders that it shares with this machine, at the same path.
        environment: environment variables.
        shm_bytes: size of its /dev/shm.
    """
    return {
        "ociVersion": "1.0.2",
        "hostname": hostname,
        "root": {"path": root, "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": [f"{variable}={value}" for variable, value in environment.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES),
        },
        "mounts": [
            _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
            _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
            _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
            _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", f"size={shm_bytes}"),
            _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
            _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
            *({"destination": path, "type": "bind", "source": path, "options": ["rbind", "rw"]} for path in binds),
        ],
        "linux": {
            "cgroupsPath": f"/{name}",
            "namespaces": [{"type": kind} for kind in NAMESPACES],
            "maskedPaths": list(HIDDEN),
            "readonlyPaths": list(READ_ONLY),
        },
    }


def _mount(path: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": path, "type": kind, "source": kind, "options": list(options)}
