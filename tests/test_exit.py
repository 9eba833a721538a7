"""The end of processes: the chosen exit code, nothing on stderr and no hang, whatever is still open."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hoplite import Node

# Timeout of a process that has nothing else to do.
LIMIT = 20.0

HEAD = """
import atexit, os, sys, threading, time
import hoplite
from hoplite import session

def attach():
    return hoplite.init() if HOW == "embedded" else hoplite.connect(os.environ["SOCKET"])

def in_daemon(call, *arguments, **options):
    began = threading.Event()
    def run():
        began.set()
        call(*arguments, **options)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    began.wait()
    time.sleep(0.3)
    return thread

"""

SCRIPTS = {
    "open": "hp = attach()",
    "views in globals": """
import numpy as np
hp = attach()
small, large = hp.get(hp.put(b"x")), hp.get(hp.put(np.ones(1_000_000)))
alone = hp.get(hp.put(b"y" * 200_000))
""",
    "views outlive their client": """
hp = attach()
large = hp.get(hp.put(bytes(8_000_000)))
hp.close()
del hp
""",
    "views in a cycle": """
import numpy as np
class Cycle: pass
cycle = Cycle()
cycle.me, cycle.hp = cycle, attach()
cycle.view = cycle.hp.get(cycle.hp.put(np.ones(1_000_000)))
del cycle
""",
    "used by another atexit handler": """
hp = attach()
ref = hp.put(bytes(8_000_000))
atexit.register(lambda: bytes(hp.get(ref)))
""",
    "used by a finaliser": """
hp = attach()
class Last:
    def __del__(self):
        try:
            hp.put(b"late")
        except hoplite.HopliteError:
            pass
last = Last()
""",
    "put by a thread that is joined at exit": """
hp = attach()
def work():
    time.sleep(0.3)
    hp.get(hp.put(bytes(8_000_000)))
threading.Thread(target=work).start()
""",
    "sys.exit in a thread": """
hp = attach()
thread = threading.Thread(target=lambda: (hp.put(b"x"), sys.exit(9)))
thread.start()
thread.join()
""",
    "a daemon thread waits in get": """
hp = attach()
in_daemon(hp.get, "nobody/1")
""",
    "many daemon threads wait in several calls": """
hp = attach()
total = hp.reduce(["nobody/1", "nobody/2"])
for number in range(8):
    in_daemon(hp.get, f"nobody/{number}")
in_daemon(hp.get, total)
in_daemon(total.inputs)
in_daemon(hp.latest, "nobody/")
""",
    "a daemon thread puts and gets all the time": """
hp = attach()
def work():
    while True:
        ref = hp.put(bytes(800_000))
        hp.get(ref)
        hp.delete(ref)
in_daemon(work)
""",
    "closed twice": """
hp = attach()
hp.close()
hp.close()
session.shutdown()
session.shutdown()
""",
    "shut down with a daemon thread": """
hp = attach()
def wait():
    try:
        hp.get("nobody/1")
    except hoplite.ClientClosed:
        pass
in_daemon(wait)
session.shutdown()
""",
    "a thread waits in get of a client that is closed": """
hp = attach()
errors = []
def wait():
    try:
        hp.get("nobody/1")
    except hoplite.ClientClosed as error:
        errors.append(str(error))
thread = threading.Thread(target=wait)
thread.start()
time.sleep(0.3)
hp.close()
thread.join()
assert "this client is closed" in errors[0]
""",
    "shut down while a thread and tasks wait": """
import asyncio
hp = attach() if HOW == "embedded" else session.shared.keep(attach(), "", session.shared.options)
def wait():
    try:
        hoplite.client().get("nobody/1")
    except hoplite.ClientClosed:
        pass
async def main():
    tasks = [asyncio.create_task(hp.get_async(f"nobody/{number}")) for number in range(3)]
    await asyncio.sleep(0.3)
    hoplite.shutdown()
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(answer, hoplite.ClientClosed), answer
thread = threading.Thread(target=wait)
thread.start()
asyncio.run(main())
""",
    "Ctrl-C in the main thread while another waits": """
import signal
def wait():
    try:
        hp.get("nobody/1")
    except hoplite.ClientClosed:
        pass
try:
    with attach() as hp:
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.3)
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
        thread.join()
        raise AssertionError("the wait ended before the client was closed")
except KeyboardInterrupt:
    pass
""",
    "two embedded nodes and their clients": """
hp = attach()
other = hoplite.Node()
third = hoplite.init(node=hoplite.Node(capacity="16MiB"))
views = [each.get(each.put(bytes(800_000))) for each in (hp, other.client(), third)]
""",
    "a forked child": """
hp = attach()
ref = hp.put(bytes(8_000_000), name="from/1")
pid = os.fork()
if pid == 0:
    mine = hoplite.client() if HOW == "embedded" else attach()
    view = mine.get("from/1", timeout=30)
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
""",
    "a forked child that uses nothing": """
hp = attach()
view = hp.get(hp.put(bytes(8_000_000)))
in_daemon(hp.get, "nobody/1")
pid = os.fork()
if pid == 0:
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
assert len(view) == 8_000_000
""",
    "a pool of forked workers": """
import multiprocessing
hp = attach()
hp.put(bytes(8_000_000), name="from/1")
def work(number):
    mine = hoplite.client() if HOW == "embedded" else attach()
    return len(mine.get("from/1", timeout=30))
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(work, range(4)) == [8_000_000] * 4
""",
    "an unreferenced node": """
hoplite.Node().client().put(b"x")
attach().put(b"x")
""",
    "modules torn down first": """
hp = attach()
view = hp.get(hp.put(bytes(8_000_000)))
sys.modules.pop("hoplite.session")
sys.modules.pop("hoplite.errors")
""",
}


# Scripts whose threads, views or children depend on whether their client is attached. All run in a process with a node.
IN_BOTH = {
    "views in globals",
    "views outlive their client",
    "used by a finaliser",
    "a daemon thread waits in get",
    "many daemon threads wait in several calls",
    "a daemon thread puts and gets all the time",
    "a thread waits in get of a client that is closed",
    "shut down while a thread and tasks wait",
    "Ctrl-C in the main thread while another waits",
    "a forked child",
    "a forked child that uses nothing",
}
RUNS = [(name, how) for name in SCRIPTS for how in ("embedded", "attached") if how == "embedded" or name in IN_BOTH]


@pytest.mark.parametrize(
    ("name", "how", "code"), [(name, how, 3 * (number % 2)) for number, (name, how) in enumerate(RUNS)]
)
def test_a_process_ends_with_its_exit_code_and_no_output(name: str, how: str, code: int) -> None:
    whole = f"{HEAD}\n{SCRIPTS[name]}\n{f'sys.exit({code})' if code else ''}".replace("HOW", repr(how))
    if how == "embedded":
        done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=LIMIT, check=False)
    else:
        with Node() as node:
            done = subprocess.run(
                [sys.executable, "-c", whole],
                env={**os.environ, "SOCKET": node.socket},
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_an_error_that_ends_a_script_is_the_only_one_printed(how: str) -> None:
    script = HEAD.replace("HOW", repr(how)) + SCRIPTS["many daemon threads wait in several calls"]
    with Node() as node:
        done = subprocess.run(
            [sys.executable, "-c", script + "raise KeyError('mine')"],
            env={**os.environ, "SOCKET": node.socket, "XDG_RUNTIME_DIR": ""} if how == "attached" else None,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("KeyError: 'mine'\n")
