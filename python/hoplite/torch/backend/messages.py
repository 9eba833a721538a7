"""Messages from one rank to another: `send`, `recv`, and `recv` from any source.

Message k of a tag from rank s to rank r is the object PREFIX/message/s/r/tag/k. The receiver deletes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from hoplite.errors import ObjectLost
from hoplite.torch.backend.group import Call
from hoplite.torch.backend.loop import finish, in_loop, in_thread, submit
from hoplite.torch.backend.tensors import give_back, host, inherit_streams, typed
from hoplite.torch.backend.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from hoplite.torch.backend.group import Group
    from hoplite.torch.backend.liveness import Liveness

# A larger message is sent in the loop: its sender may have to wait until the receiver has made space for it.
SENT_AT_ONCE_BYTES = 32 << 10

# After this time, a receiver checks whether the source has left.
PATIENCE_S = 1.0


class Messages:
    """The messages of one rank of a group.

    Args:
        group: the group.
        liveness: reports which ranks have left.
    """

    def __init__(self, group: Group, liveness: Liveness) -> None:
        self._group = group
        self._liveness = liveness
        self._lock = threading.Lock()
        # Messages sent and received, by channel: the other rank and the tag.
        self._sent: Counter[tuple[int, int]] = Counter()
        self._received: Counter[tuple[int, int]] = Counter()

    def sent(self) -> dict[str, int]:
        """Returns how many messages this rank has sent in each channel, "rank/tag"."""
        return {f"{rank}/{tag}": number for (rank, tag), number in self._sent.items()}

    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        """Sends a tensor to a rank."""
        self._group.check_process()
        inherit_streams()
        memory = host(tensor)
        with self._lock:
            number = self._sent[to, tag] = self._sent[to, tag] + 1
        call = Call(self._group, f"send to rank {to}", "message", None)
        call.is_awaited = True
        name = self._name(self._group.rank, to, tag, number)

        async def steps(call: Call) -> None:
            with self._counted(self._sent, (to, tag), number):
                await call.run("put", typed(memory), name=name, timeout=call.left_s())

        if memory.nbytes <= SENT_AT_ONCE_BYTES:
            finish(call.carry_out(in_thread(self._group.client), steps))
            return Work([tensor])
        return Work([tensor], submit(call.carry_out(in_loop(self._group.client), steps)))

    def receive(self, tensor: Tensor, source: int, tag: int) -> Work:
        """Receives a tensor from a rank."""
        self._group.check_process()
        inherit_streams()
        with self._lock:
            number = self._received[source, tag] = self._received[source, tag] + 1
        call = Call(self._group, f"recv from rank {source}", "message", None)
        name = self._name(source, self._group.rank, tag, number)

        async def steps(call: Call) -> int:
            with self._counted(self._received, (source, tag), number):
                taking = asyncio.ensure_future(self._take(call, name, tensor))
                await asyncio.wait({taking}, timeout=PATIENCE_S)
                if not taking.done():
                    await self._wait_for(taking, source, tag, number)
                await taking
            return source

        return Work([tensor], submit(call.carry_out(in_loop(self._group.client), steps)), source)

    def receive_any(self, tensor: Tensor, tag: int) -> Work:
        """Receives a tensor from the rank whose message arrives first."""
        self._group.check_process()
        inherit_streams()
        call = Call(self._group, "recv from any rank", "message", None)
        return Work(
            [tensor], submit(call.carry_out(in_loop(self._group.client), lambda call: self._any(call, tensor, tag)))
        )

    @contextlib.contextmanager
    def _counted(self, counter: Counter[tuple[int, int]], channel: tuple[int, int], number: int) -> Iterator[None]:
        """Counts a message that fails as not sent or received, if it is still the newest of its channel."""
        try:
            yield
        except BaseException:
            with self._lock:
                if counter[channel] == number:
                    counter[channel] -= 1
            raise

    async def _wait_for(self, taking: asyncio.Future[None], source: int, tag: int, number: int) -> None:
        """Waits for a message; cancels that if its source leaves and has not sent it."""
        leaving = asyncio.ensure_future(self._liveness.left(source))
        both: set[asyncio.Future[Any]] = {taking, leaving}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and not taking.done() and leaving.exception() is None:
            sent = leaving.result()["messages"].get(f"{self._group.rank}/{tag}", 0)
            if sent < number:
                taking.cancel()
                raise ObjectLost(f"rank {source} left the group after it had sent {sent} messages with tag {tag}")
        leaving.cancel()

    async def _any(self, call: Call, tensor: Tensor, tag: int) -> int:
        """Takes the first message that arrives and that no other receive of this rank has taken meanwhile."""
        group = self._group
        while True:
            numbers = {rank: self._received[rank, tag] + 1 for rank in group.others()}
            names = {self._name(rank, group.rank, tag, number): rank for rank, number in numbers.items()}
            ready, _ = await call.run("wait", list(names), 1, timeout=call.left_s())
            if not ready:
                # Raises the timeout, with the ranks that could have sent.
                await call.get(next(iter(names)))
            name = str(ready[0])
            source = names[name]
            with self._lock:
                is_free = self._received[source, tag] + 1 == numbers[source]
                if is_free:
                    self._received[source, tag] += 1
            if is_free:
                await self._take(call, name, tensor)
                return source

    async def _take(self, call: Call, name: str, tensor: Tensor) -> None:
        memory = host(tensor, filled=False)
        await call.get(name, typed(memory))
        give_back(tensor, memory)
        self._group.cleanup.read([name], memory.nbytes)

    def _name(self, source: int, to: int, tag: int, number: int) -> str:
        return f"{self._group.prefix}/message/{source}/{to}/{tag}/m{number}"
