"""The bench's hand on one host: starts, freezes, measures and ends processes there; knows no system.

Reads a JSON object a line on stdin and answers each with one on stdout. When stdin ends, so does all that it started.
A process belongs to a group by a variable of its environment, or as a child of one that does, and only if it is on this
agent's network: hosts of a lab share one table of processes, and a launcher on one host starts processes on others.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

GROUP_VARIABLE = "_HOPLITE_BENCH_GROUP"
# Of prctl(2): orphans become this process's children, so that they are found.
PR_SET_CHILD_SUBREAPER = 36
# Of what a process said, so much is told when it fails.
TAIL_BYTES = 2000
END_TIMEOUT_S = 10.0


class Agent:
    """What was started here, by group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Path("/proc/self/ns/net").stat().st_ino
        self.started: dict[str, list[tuple[subprocess.Popen[bytes], Path]]] = {}
        # As of the last look: looking at every process of a machine takes milliseconds.
        self.members: dict[str, list[psutil.Process]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what one line asks for."""
        group = request.get("group", "")
        match request["do"]:
            case "hello":
                return {"available_bytes": psutil.virtual_memory().available, "name": os.uname().nodename}
            case "prepare":
                return self.prepare(request["system"])
            case "spawn":
                return self.spawn(group, request["argv"], request["env"])
            case "exited":
                return self.exited(group)
            case "freeze":
                # What it has started since it was thawed stops too.
                self.look(group)
                self.signal(group, signal.SIGSTOP)
                return {}
            case "thaw":
                # What is stopped starts nothing, so these are all.
                self.signal(group, signal.SIGCONT)
                return {}
            case "begin":
                return self.begin(group)
            case "usage":
                return self.usage(group)
            case "kill":
                return self.kill(group)
            case other:
                raise ValueError(f"{other!r} is nothing an agent does")

    def prepare(self, name: str) -> dict[str, Any]:
        """Installs a system on this host; says why it can't."""
        from hoplite.bench.environments import Environments
        from hoplite.bench.systems import Unavailable, registry

        try:
            registry([name])[name].prepare(Environments())
        except Unavailable as error:
            return {"unavailable": str(error)}
        return {}

    def spawn(self, group: str, argv: list[str], env: dict[str, str]) -> dict[str, Any]:
        """Starts a process; what it says goes to a file."""
        started = self.started.setdefault(group, [])
        log = self.folder / f"{len(self.started)}-{len(started)}.log"
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

    def exited(self, group: str) -> dict[str, Any]:
        """Which of the group's processes that were started here have ended, and what each said last."""
        ended = [(process, log) for process, log in self.started.get(group, []) if process.poll() is not None]
        return {"exited": [{"code": process.returncode, "said": _tail(log)} for process, log in ended]}

    def look(self, group: str) -> None:
        """Finds the group's processes on this host's network."""
        # One pass over all processes of this network: their parents, and which of them carry the mark. By hand, since
        # psutil takes five times as long (0.2 ms a process), and sixteen agents look at hundreds in each turn.
        mark = f"{GROUP_VARIABLE}={group}".encode()
        marked: set[int] = {process.pid for process, _ in self.started.get(group, []) if process.poll() is None}
        children: dict[int, list[int]] = {}
        for pid in psutil.pids():
            with contextlib.suppress(OSError, IndexError):
                if Path(f"/proc/{pid}/ns/net").stat().st_ino != self.network:
                    continue
                children.setdefault(_parent(pid), []).append(pid)
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    marked.add(pid)
        self.reap(children.get(os.getpid(), []))
        # A process may hide its environment when it names itself, as Ray's do: its parent tells.
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
        """Takes the exit codes of orphans that became this process's children."""
        own = {process.pid for started in self.started.values() for process, _ in started}
        for pid in children:
            if pid not in own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def signal(self, group: str, number: signal.Signals) -> None:
        """Sends a signal to all that the last look found."""
        for process in self.members.get(group, []):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def begin(self, group: str) -> dict[str, Any]:
        """Begins to measure: the most memory so far is forgotten."""
        for process in self.members.get(group, []):
            with contextlib.suppress(OSError):
                # 5 resets what VmHWM says: proc_pid_clear_refs(5).
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        return self.usage(group)

    def usage(self, group: str) -> dict[str, Any]:
        """Processor seconds so far, and the most memory since `begin`."""
        seconds = 0.0
        peak = 0
        for process in self.members.get(group, []):
            with contextlib.suppress(OSError, psutil.Error):
                times = process.cpu_times()
                seconds += times.user + times.system
                peak += _peak_rss(process.pid)
        return {"cpu_seconds": seconds, "peak_rss_bytes": peak}

    def kill(self, group: str) -> dict[str, Any]:
        """Ends a group on this host; comes back when it is gone."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while True:
            self.look(group)
            living = [one for one in self.members[group] if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
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
        return {}


def _parent(pid: int) -> int:
    # "pid (name) state parent ...", where the name may hold anything.
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def _peak_rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


def main() -> None:
    """Answers until stdin ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="hoplite-agent-") as folder:
        agent = Agent(Path(folder))
        try:
            for line in sys.stdin:
                try:
                    answer = agent.answer(json.loads(line))
                except Exception as error:  # noqa: BLE001 - told to the bench, which goes on without this system
                    answer = {"error": f"{type(error).__name__}: {error}"}
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
        finally:
            for group in list(agent.started):
                agent.kill(group)


if __name__ == "__main__":
    main()
