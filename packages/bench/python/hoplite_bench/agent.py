"""The bench's agent on one host: starts, freezes, measures and ends processes there; independent of the systems.

It reads one JSON object per line from stdin. It replies to each with one line on stdout: a mark, the number of the
request, and a JSON object; a login shell may print other lines there. When stdin or the agent ends, all processes that
it started end too. A process belongs to a group if an environment variable marks it, or if it is a child of such a
process. It must also be on the agent's network: hosts of a lab share one process table, and a launcher on one host
starts processes on others.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from hoplite_bench import processes

# Start of a reply line.
MARK = "hoplite-bench-agent"
GROUP_VARIABLE = "_HOPLITE_BENCH_GROUP"
# See prctl(2): orphans become children of this process, so that they are found.
PR_SET_CHILD_SUBREAPER = 36
# Maximum length of a failed process's output in a reply.
TAIL_BYTES = 2000
END_TIMEOUT_S = 10.0
SHARED_MEMORY = "/dev/shm"
FREEZE_TIMEOUT_S = 10.0
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, *ENDED)
# Time between two checks of processes that are about to stop or to end.
STOPPING_S = 0.001
# Clock of the times of files: see clock_gettime(2).
CLOCK_REALTIME_COARSE = 5
# Clock of all threads of a process, in the kernel's encoding: see clock_getcpuclockid(3).
CPUCLOCK_SCHED = 2


class Agent:
    """The processes that were started here, by group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = processes.network_of("self")
        self.started: dict[str, list[tuple[subprocess.Popen[bytes], Path]]] = {}
        # As of the last look: scanning every process of a machine takes milliseconds.
        self.members: dict[str, list[psutil.Process]] = {}
        self.folders: dict[str, Path] = {}
        # When each group began here, on the clock of files.
        self.since_ns: dict[str, int] = {}
        # Processor time of each process at the start of a measurement.
        self.began_ns: dict[str, dict[psutil.Process, int]] = {}
        self._logs = itertools.count()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Executes one request."""
        group = request.get("group", "")
        match request["do"]:
            case "hello":
                return {"available_bytes": psutil.virtual_memory().available, "name": os.uname().nodename}
            case "machine":
                return self.machine()
            case "prepare":
                return self.prepare(request["system"], Path(request["root"]), request["install"])
            case "folder":
                return self.make_folder(group, Path(request["path"]))
            case "spawn":
                return self.spawn(group, request["argv"], request["env"])
            case "exited":
                return self.exited(group, request.get("patience_s", 0.0))
            case "freeze":
                return self.freeze(group)
            case "thaw":
                # Stopped processes start no others, so the last look found them all.
                self.signal(group, signal.SIGCONT)
                return {}
            case "signal":
                return self.signal_one(group, request["pid"], request["signal"])
            case "begin":
                return self.begin(group)
            case "usage":
                return self.usage(group)
            case "kill":
                return self.kill(group)
            case other:
                raise ValueError(f"unknown request {other!r}")

    def machine(self) -> dict[str, Any]:
        """Describes this host and its build of hoplite."""
        from hoplite_bench import machine

        return {"facts": machine.facts(), "build": machine.build()}

    def prepare(self, name: str, root: Path, install: bool) -> dict[str, Any]:
        """Installs a system on this host, at the same path as on the bench's; returns why it is unavailable."""
        from hoplite_bench.environments import Environments
        from hoplite_bench.systems import Unavailable, registry

        try:
            registry([name])[name].prepare(Environments(root, install=install))
        except Unavailable as error:
            return {"unavailable": str(error)}
        return {}

    def make_folder(self, group: str, path: Path) -> dict[str, Any]:
        """Creates a group's folder, unless another host with the same files has created it."""
        self.since_ns.setdefault(group, time.clock_gettime_ns(CLOCK_REALTIME_COARSE))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folders[group] = path
        return {}

    def spawn(self, group: str, argv: list[str], env: dict[str, str]) -> dict[str, Any]:
        """Starts a process; its output goes to a file."""
        self.since_ns.setdefault(group, time.clock_gettime_ns(CLOCK_REALTIME_COARSE))
        started = self.started.setdefault(group, [])
        log = self.folder / f"{next(self._logs)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                env={**os.environ, **env, GROUP_VARIABLE: group},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append((process, log))
        return {"pid": process.pid}

    def exited(self, group: str, patience_s: float) -> dict[str, Any]:
        """The processes of the group that were started here and have ended, with the end of their output.

        If none has ended, waits `patience_s` for one: its connections close some time before it ends.
        """
        deadline = time.monotonic() + patience_s
        started = self.started.get(group, [])
        while not (ended := [(process, log) for process, log in started if process.poll() is not None]):
            if not started or time.monotonic() >= deadline:
                break
            time.sleep(STOPPING_S)
        return {
            "exited": [{"pid": process.pid, "code": process.returncode, "said": _tail(log)} for process, log in ended]
        }

    def look(self, group: str) -> None:
        """Finds the group's processes on this host's network."""
        # One pass over all processes of this network finds their parents, and which of them have the mark.
        mark = f"{GROUP_VARIABLE}={group}".encode()
        marked: set[int] = {process.pid for process, _ in self.started.get(group, []) if process.poll() is None}
        children: dict[int, list[int]] = {}
        for pid in processes.all_ids():
            fields = processes.fields_of(pid) if processes.network_of(pid) == self.network else None
            if fields is None:
                continue
            children.setdefault(int(fields[1]), []).append(pid)
            with contextlib.suppress(OSError):
                if mark in processes.read(f"/proc/{pid}/environ").split(b"\0"):
                    marked.add(pid)
        self.reap(children.get(os.getpid(), []))
        # Processes that rename themselves, like Ray's, may overwrite their environment: use their parents.
        unseen = list(marked)
        while unseen:
            more = [pid for pid in children.get(unseen.pop(), []) if pid not in marked]
            marked.update(more)
            unseen += more
        self.members[group] = []
        for pid in sorted(marked - {os.getpid()}):
            with contextlib.suppress(psutil.Error):
                self.members[group].append(psutil.Process(pid))

    def reap(self, children: list[int]) -> None:
        """Reaps orphans that became children of this process."""
        own = {process.pid for started in self.started.values() for process, _ in started}
        for pid in children:
            if pid not in own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def freeze(self, group: str) -> dict[str, Any]:
        """Pauses a group on this host; returns when all its processes are stopped."""
        deadline = time.monotonic() + FREEZE_TIMEOUT_S
        while True:
            # Stopped processes start no others: repeat until a look finds no running process.
            self.look(group)
            awake = [process for process in self.members[group] if not _is_in(process, STOPPED)]
            if not awake:
                return {}
            self.signal(group, signal.SIGSTOP)
            while not all(_is_in(process, STOPPED) for process in awake):
                if time.monotonic() > deadline:
                    left = [process.pid for process in awake if not _is_in(process, STOPPED)]
                    raise TimeoutError(f"processes {left} did not stop within {FREEZE_TIMEOUT_S:.0f} s")
                time.sleep(STOPPING_S)

    def signal(self, group: str, number: signal.Signals) -> None:
        """Sends a signal to all processes that the last look found."""
        for process in self.members.get(group, []):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def signal_one(self, group: str, pid: int, number: int) -> dict[str, Any]:
        """Sends a signal to one process of a group; returns when SIGSTOP or SIGKILL has taken effect.

        The number 0 only finds the process, so that a later signal is sent at once.

        Raises:
            ValueError: the group has no such process on this host.
        """
        known = {process.pid: process for process in self.members.get(group, [])}
        if pid not in known:
            self.look(group)
            known = {process.pid: process for process in self.members[group]}
        if pid not in known:
            raise ValueError(f"the group has no process {pid} on this host")
        known[pid].send_signal(number)
        deadline = time.monotonic() + FREEZE_TIMEOUT_S
        while number in (signal.SIGSTOP, signal.SIGKILL) and not _is_in(known[pid], STOPPED):
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} did not stop within {FREEZE_TIMEOUT_S:.0f} s")
            time.sleep(STOPPING_S)
        return {}

    def begin(self, group: str) -> dict[str, Any]:
        """Starts a measurement."""
        members = self.members.get(group, [])
        self.began_ns[group] = {process: _cpu_ns(process.pid, 0) for process in members}
        return {"cpu_seconds": 0.0, "peak_rss_bytes": 0}

    def usage(self, group: str) -> dict[str, Any]:
        """Processor seconds since `begin`, and the memory in use now.

        Both cover the processes that the last look found. A process that has ended since counts as zero.
        """
        began = self.began_ns.get(group, {})
        cpu_ns = sum(_cpu_ns(process.pid, before) - before for process, before in began.items())
        return {"cpu_seconds": cpu_ns / 1e9, "peak_rss_bytes": sum(map(_memory, began))}

    def kill(self, group: str) -> dict[str, Any]:
        """Ends a group on this host; returns when it has ended."""
        deadline = time.monotonic() + END_TIMEOUT_S
        segments: set[str] = set()
        while True:
            self.look(group)
            living = [one for one in self.members[group] if not _is_in(one, ENDED)]
            segments.update(*(processes.mapped_files(one.pid, SHARED_MEMORY, only_written=True) for one in living))
            if not living:
                break
            if time.monotonic() > deadline:
                return {"left": [one.pid for one in living]}
            self.signal(group, signal.SIGKILL)
            psutil.wait_procs(living, timeout=0.2)
        for process, log in self.started.pop(group, []):
            process.wait(END_TIMEOUT_S)
            log.unlink(missing_ok=True)
        del self.members[group]
        self.began_ns.pop(group, None)
        if since_ns := self.since_ns.pop(group, 0):
            _remove_unused(segments, since_ns)
        if folder := self.folders.pop(group, None):
            # If hosts share files, another host may be removing the folder too, while processes there still write into
            # it. The last host removes it completely.
            shutil.rmtree(folder, ignore_errors=True)
        return {}

    def close(self) -> None:
        """Ends all groups."""
        for group in self.started.keys() | self.folders.keys():
            self.kill(group)


def _is_in(process: psutil.Process, states: tuple[str, ...]) -> bool:
    """Whether a process is in one of these states, or has ended, which may happen at any moment."""
    try:
        return process.status() in states
    except psutil.NoSuchProcess:
        return True


def _cpu_ns(pid: int, otherwise: int) -> int:
    # Includes ended threads, which /proc/PID/task/*/schedstat omits; psutil has a resolution of 10 ms.
    try:
        return time.clock_gettime_ns(~pid << 3 | CPUCLOCK_SCHED)
    except OSError:
        return otherwise


def _memory(process: psutil.Process) -> int:
    # PSS divides a page that several processes share between them, so the sum counts it once: Ray maps its store in
    # each worker. Takes 15 ms per GiB.
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


def _remove_unused(segments: set[str], since_ns: int) -> None:
    """Removes files of shared memory that killed processes had no time to remove, unless others use them too.

    Older files are not theirs. Processes of other process namespaces are not visible, but may use older files.
    """
    if segments:
        segments = segments.difference(*(processes.mapped_files(one, SHARED_MEMORY) for one in processes.all_ids()))
    for segment in segments:
        with contextlib.suppress(FileNotFoundError):
            if Path(segment).stat().st_ctime_ns >= since_ns:
                Path(segment).unlink()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


def main() -> None:
    """Executes requests until stdin ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # It applies to this process only: programs that it starts may have their own NumPy, which this path would hide.
    os.environ.pop("PYTHONPATH", None)
    ends = (signal.SIGTERM, signal.SIGHUP)
    for number in ends:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="hoplite-agent-") as folder:
        agent = Agent(Path(folder))
        try:
            # Terminates a line that a login shell may have started.
            sys.stdout.write("\n")
            for line in sys.stdin:
                request = json.loads(line)
                try:
                    answer = agent.answer(request)
                except Exception as error:  # noqa: BLE001 - reported to the bench, which continues without this system
                    answer = {"error": f"{type(error).__name__}: {error}"}
                sys.stdout.write(f"{MARK} {request['number']} {json.dumps(answer)}\n")
                sys.stdout.flush()
        finally:
            for number in ends:
                signal.signal(number, signal.SIG_IGN)
            agent.close()


if __name__ == "__main__":
    main()
