"""Channels to child programs: sends lines of text to many programs and collects one reply of each before a deadline.

It does not interpret the lines.
"""

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
    """A program closed its channel, or did not reply in time.

    Args:
        message: what happened.
        names: names of these programs.
    """

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class Channel:
    """Exchanges lines with one program over a socket or two pipes.

    Args:
        name: name of the program, for error messages.
        reader: descriptor to read from; does not block after `select`.
        writer: descriptor to write to; may be the same as `reader`.
    """

    def __init__(self, name: str, reader: int, writer: int) -> None:
        self.name = name
        self.reader = reader
        self.writer = writer
        self._unread = b""

    def send(self, line: str) -> None:
        """Sends one line.

        Raises:
            Lost: the program has closed the channel.
        """
        self.send_bytes(line.encode() + b"\n")

    def send_bytes(self, content: bytes) -> None:
        """Sends bytes unchanged.

        Raises:
            Lost: the program has closed the channel.
        """
        data = memoryview(content)
        try:
            while data:
                data = data[os.write(self.writer, data) :]
        except OSError as error:
            raise Lost(f"{self.name} has hung up: {error.strerror}", [self.name]) from None

    def line(self) -> str | None:
        """Removes and returns the next complete line that was read; None if there is no complete line."""
        line, found, rest = self._unread.partition(b"\n")
        if not found:
            return None
        self._unread = rest
        return line.decode(errors="replace")

    def read(self) -> None:
        """Reads the available bytes; blocks until there are some.

        Raises:
            Lost: the program has closed the channel.
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
    """Waits for one line of each program.

    Args:
        channels: channels of the programs.
        timeout_s: time limit in seconds for all programs together.
        look: called with each line when it arrives. An exception from it ends the wait for the other programs.
        wanted: whether to accept a line. Other lines are dropped.

    Returns:
        The lines, in the order of the channels.

    Raises:
        Lost: a program closed its channel, or some did not reply in time.
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
