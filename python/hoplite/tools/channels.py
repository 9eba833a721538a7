"""Lines of text to many programs at once, and their answers, each wait with a deadline; knows no line's meaning."""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING

from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_BYTES = 65536


class Lost(HopliteError):
    """A program hung up, or did not answer in time; named.

    Args:
        message: what happened.
        names: of the programs.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class Channel:
    """Lines to and from one program, over a socket or two pipes.

    Args:
        name: who is at the other end, for messages.
        reader: a descriptor to read from; does not block after `select`.
        writer: a descriptor to write to; may be the same.
    """

    def __init__(self, name: str, reader: int, writer: int) -> None:
        self.name = name
        self.reader = reader
        self.writer = writer
        self._unread = b""

    def send(self, line: str) -> None:
        """Sends one line.

        Raises:
            Lost: no process reads it.
        """
        self.send_bytes(line.encode() + b"\n")

    def send_bytes(self, content: bytes) -> None:
        """Sends bytes as they are.

        Raises:
            Lost: no process reads them.
        """
        data = memoryview(content)
        try:
            while data:
                data = data[os.write(self.writer, data) :]
        except OSError as error:
            raise Lost(f"{self.name} has hung up: {error.strerror}", [self.name]) from None

    def line(self) -> str | None:
        """Takes one line out of what was read, if there is a whole one."""
        line, found, rest = self._unread.partition(b"\n")
        if not found:
            return None
        self._unread = rest
        return line.decode(errors="replace")

    def read(self) -> None:
        """Reads what is there; waits if there is nothing.

        Raises:
            Lost: the other end has hung up.
        """
        try:
            data = os.read(self.reader, READ_BYTES)
        except OSError as error:
            raise Lost(f"{self.name} has hung up: {error.strerror}", [self.name]) from None
        if not data:
            raise Lost(f"{self.name} has hung up", [self.name])
        self._unread += data


def gather(
    channels: Sequence[Channel],
    timeout_s: float,
    *,
    look: Callable[[Channel, str], None] | None = None,
    wanted: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Waits for one line of each.

    Args:
        channels: of the programs that are to answer.
        timeout_s: seconds for all of them together.
        look: called with each line as it comes; what it raises ends the wait for the others.
        wanted: whether a line is one that is waited for; others are dropped.

    Returns:
        The lines, in the order of the channels.

    Raises:
        Lost: one hung up, or some did not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    lines: dict[int, str] = {}
    with selectors.DefaultSelector() as selector:

        def take(number: int, channel: Channel) -> bool:
            line = channel.line()
            while line is not None and not wanted(line):
                line = channel.line()
            if line is None:
                return False
            if look is not None:
                look(channel, line)
            lines[number] = line
            return True

        for number, channel in enumerate(channels):
            if not take(number, channel):
                selector.register(channel.reader, selectors.EVENT_READ, (number, channel))
        while len(lines) < len(channels):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                silent = [channel.name for number, channel in enumerate(channels) if number not in lines]
                raise Lost(f"no answer within {timeout_s:.0f} s from {', '.join(silent)}", silent)
            for key, _ in ready:
                number, channel = key.data
                channel.read()
                if take(number, channel):
                    selector.unregister(channel.reader)
    return [lines[number] for number in range(len(channels))]
