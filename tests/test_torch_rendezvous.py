"""Ranks that can't form a group: all of them raise the reason at once; and those that can, after a restart too."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

import hoplite
from torch_ranks import free_port, in_processes

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

import torch.distributed as dist  # noqa: E402 - after the check that torch exists

from hoplite.torch.backend import keeper  # noqa: E402
from hoplite.torch.backend.rendezvous import Exchange  # noqa: E402

# The store's timeout is 30 minutes: a rank that waits for it exceeds the limit of the test.
FORM = """
    import hoplite, hoplite.torch, os, sys, torch, torch.distributed as dist
    from pathlib import Path
    rank, folder = int(os.environ["RANK"]), Path({folder!r})
    {prepare}
    try:
        dist.init_process_group("hoplite")
    except hoplite.HopliteError as error:
        print(error)
        sys.exit(0)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    print("formed", tensor.tolist())
"""


def form(size: int, folder: Path, prepare: str) -> list[str]:
    """Forms a group, after each rank has executed a line; returns the output of each."""
    program = textwrap.dedent(FORM).format(folder=str(folder), prepare=textwrap.dedent(prepare).strip())
    ended = in_processes(size, free_port(), program)
    assert [status for status, _ in ended] == [0] * size, ended
    return [output for _, output in ended]


@pytest.mark.parametrize("odd", range(3))
def test_a_socket_path_that_is_too_long_on_one_rank_is_an_error_on_all(tmp_path: Path, odd: int) -> None:
    texts = form(3, tmp_path, f'if rank == {odd}: os.environ["HOPLITE_SOCKET"] = str(folder / ("x" * 120))')
    assert all("x" * 120 in text for text in texts), texts
    assert all(f"rank {odd} can't form the group" in text for rank, text in enumerate(texts) if rank != odd), texts


@pytest.mark.parametrize("odd", range(3))
def test_another_name_of_the_cluster_on_one_rank_is_an_error_on_all(tmp_path: Path, odd: int) -> None:
    prepare = f"""
        os.environ["HOPLITE_SOCKET"] = str(folder / "node.sock")
        os.environ["HOPLITE_CLUSTER"] = "yours" if rank == {odd} else "mine"
    """
    with hoplite.Node(socket=str(tmp_path / "node.sock"), cluster="mine"):
        texts = form(3, tmp_path, prepare)
    assert all("yours" in text and "mine" in text for text in texts), texts


def test_a_socket_that_a_rank_can_not_reach_is_no_node_of_its_host(tmp_path: Path) -> None:
    """As in containers that share a network, but no folder of sockets."""
    prepare = """
        os.environ["HOPLITE_SOCKET"] = str(folder / f"{rank}.sock")
        from hoplite.torch.backend import rendezvous
        def introduction(real=rendezvous._introduction):
            return real() | {"socket": str(folder / "of_its_container")}
        if rank == 0: hoplite.init(); rendezvous._introduction = introduction
    """
    texts = form(3, tmp_path, prepare)
    assert all("the hosts of rank 1, 2 have no Hoplite node" in text for text in texts), texts


def test_ranks_with_their_own_folders_of_sockets_are_hosts_of_their_own() -> None:
    # The path of a socket has at most 107 bytes, and that of pytest's folder is long.
    with tempfile.TemporaryDirectory() as short:
        folder = Path(short)
        for rank in range(2):
            (folder / str(rank)).mkdir(mode=0o700)
        texts = form(2, folder, 'os.environ["XDG_RUNTIME_DIR"] = str(folder / str(rank))')
    assert all("formed [2.0, 2.0, 2.0]" in text for text in texts), texts


def test_a_local_address_without_a_node_starts_one(tmp_path: Path) -> None:
    texts = form(2, tmp_path, 'os.environ["HOPLITE_ADDRESS"] = "local"')
    assert all("formed [2.0, 2.0, 2.0]" in text for text in texts), texts


def test_a_new_group_after_the_death_of_a_rank_fails_at_once() -> None:
    program = """
        import hoplite, hoplite.torch, os, signal, sys, torch, torch.distributed as dist
        dist.init_process_group("hoplite")
        rank = dist.get_rank()
        dist.barrier()
        store = dist.distributed_c10d._get_default_store()
        store.set(f"ready/{rank}", "")
        store.wait([f"ready/{other}" for other in range(3)])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.new_group([0, 1, 2])
        except hoplite.HopliteError as error:
            print(error)
        else:
            sys.exit("no error")
        """
    ended = in_processes(3, free_port(), textwrap.dedent(program))
    assert [status for status, _ in ended] == [0, -9, 0], ended
    assert all("rank 1 died" in ended[rank][1] for rank in (0, 2)), ended


def test_survivors_that_aborted_wait_for_each_other_in_a_new_group() -> None:
    program = """
        import hoplite.torch, os, signal, time, torch, torch.distributed as dist
        dist.init_process_group("hoplite")
        rank = dist.get_rank()
        store = dist.distributed_c10d._get_default_store()
        # As DistributedDataParallel holds its group.
        held = dist.group.WORLD
        store.set(f"ready/{rank}", "")
        store.wait([f"ready/{other}" for other in range(3)])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.barrier()
        except dist.DistBackendError as error:
            print(error)
        dist.distributed_c10d._abort_process_group()
        # Longer than a rank waits before it checks whether the others can come.
        time.sleep(rank)
        survivors = dist.PrefixStore("survivors", store)
        dist.init_process_group("hoplite", store=survivors, rank=rank // 2, world_size=2)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        print("formed", tensor.tolist())
        """
    ended = in_processes(3, free_port(), textwrap.dedent(program))
    assert [status for status, _ in ended] == [0, -9, 0], ended
    assert all("rank 1 died" in ended[rank][1] and "formed [2.0, 2.0, 2.0]" in ended[rank][1] for rank in (0, 2)), ended


def exchange_after_a_stale_word(timeout_s: float, hopeless: str | None) -> None:
    """Rank 0 finds the words of ranks 1 and 2 in the store; neither rank replies."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=timeout_s))
    for rank in (1, 2):
        store.set(f"hoplite/word/{rank}", "of a process that ended")
    Exchange(store, 0, 3, lambda: hopeless)


def test_rank_0_waits_for_ranks_that_are_gone_no_longer_than_the_timeout_of_the_store() -> None:
    with pytest.raises(hoplite.Timeout, match=r"ranks 1, 2 did not reply to rank 0 within 0.5 s"):
        exchange_after_a_stale_word(0.5, None)


def test_rank_0_does_not_wait_for_ranks_that_are_gone_after_the_death_of_one() -> None:
    with pytest.raises(hoplite.HopliteError, match=r"the group can't form without ranks 1, 2: rank 1 died"):
        exchange_after_a_stale_word(3600, "rank 1 died")


RESTARTED = """
    import hoplite.torch, os, sys, torch, torch.distributed as dist
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank = int(os.environ["RANK"])
    if attempt == 1 and rank == 2:
        sys.exit("before the group forms")
    dist.init_process_group("hoplite")
    group = dist.new_group([0, 2])
    tensor = torch.full((3,), float(rank + attempt))
    dist.all_reduce(tensor)
    if rank != 1:
        dist.barrier(group=group)
    if attempt == 0 and rank == 1:
        sys.exit("after the group formed")
    dist.barrier()
    print(f"attempt {attempt}, rank {rank}: {tensor.tolist()}", flush=True)
    dist.destroy_process_group()
"""


def test_torchrun_restarts_ranks_in_the_store_of_those_that_died(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(RESTARTED))
    command = [
        "--standalone",
        "--nproc-per-node",
        "3",
        "--max-restarts",
        "2",
        "--monitor-interval",
        "0.1",
        str(program),
    ]
    job = {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command],
        env={**job, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("attempt 2, rank") == 3, done.stdout + done.stderr
    assert done.stdout.count("[9.0, 9.0, 9.0]") == 3, done.stdout


class Deleting:
    """A client of a keeper whose object is deleted right after it was there, before the keeper watches it."""

    def __init__(self, client: hoplite.Client, other: hoplite.Client) -> None:
        self.client, self.other = client, other

    def get(self, name: str, timeout: float) -> None:
        """Gets the object, which is then deleted."""
        self.client.get(name, timeout=timeout)
        self.other.delete(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


def test_a_keeper_whose_ranks_end_at_once_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOOK_S", 0.5)
    with hoplite.Node(capacity="16MiB") as node, node.client() as client, node.client() as other:
        other.put(b"ranks", name="job")
        # It would not return, and the test time out.
        keeper.until_deleted(cast("hoplite.Client", Deleting(client, other)), "job")
