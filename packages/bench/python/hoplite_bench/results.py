"""The rows of a run and the file they go to: what is there already, what is added, and what that replaces.

Nothing is ever lost on the way: a row goes only when the one that takes its place is written. Knows not how rows are
measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite.errors import HopliteError, InvalidArgument
from hoplite_bench import plan
from hoplite_bench.row import BadRow, Row, from_line, parse, to_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


class Results:
    """Rows, and the file they are in.

    Args:
        path: where rows go, one a line; None is nowhere. It is made if it is not there.
        resume: whether to go on with the rows that are there already.
        warn: called with what people should know of these rows, a line each.

    Raises:
        InvalidArgument: the file can't be written, or has rows and is not to be gone on with.
        BadRow: what is there is no file of rows.
    """

    def __init__(
        self, path: Path | None, *, resume: bool = False, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        # A link stays one when the file is replaced.
        self.path = path.resolve() if path is not None else None
        self.rows: list[Row] = []
        self._appendable = True
        if self.path is None:
            return
        try:
            with self.path.open("ab") as file:
                is_empty = not file.tell()
            found = b"" if is_empty else self.path.read_bytes()
        except OSError as error:
            raise InvalidArgument(f"can't write rows to {path}: {error.strerror}; say another --out") from None
        if found and not resume:
            raise InvalidArgument(f"{path} has rows already; go on with them by --resume, or say another --out")
        whole, end, last = found.rpartition(b"\n")
        if last:
            # Its writer was killed meanwhile. No more than the end of the line may be missing.
            self._appendable = False
            try:
                from_line(last.decode())
            except (BadRow, UnicodeDecodeError):
                warn(f"the last line of {path} is not finished and is left out")
            else:
                end += last
        self.rows = parse(whole + end, str(path))

    def on(self, network: Mapping[str, object]) -> list[Row]:
        """The rows of one network."""
        return [row for row in self.rows if plan.is_on(row, network)]

    def strange(self, network: Mapping[str, object], machine: Mapping[str, object]) -> str:
        """Says how many rows of one network were not measured with this commit or on this machine; empty if none."""
        rows = self.on(network)
        count = sum({**row.machine, "commit": row.commit} != machine for row in rows)
        if not count:
            return ""
        return f"{count} of the {len(rows)} rows there are of another commit or machine than now: compare with care"

    def add(self, rows: Sequence[Row]) -> None:
        """Adds rows, each in the place of one of the same cell on the same network.

        Raises:
            HopliteError: the file can't be written any more.
        """
        fresh = {row.key(): row for row in rows}
        kept = [row for row in self.rows if row.key() not in fresh or not plan.is_on(row, fresh[row.key()].lab)]
        appendable = self._appendable and len(kept) == len(self.rows)
        self.rows = [*kept, *rows]
        if self.path is None:
            return
        try:
            if appendable:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(_text(rows))
            else:
                whole = self.path.with_name(self.path.name + ".new")
                whole.write_text(_text(self.rows), encoding="utf-8")
                whole.replace(self.path)
                self._appendable = True
        except OSError as error:
            raise HopliteError(f"can't write rows to {self.path}: {error.strerror}") from None


def _text(rows: Sequence[Row]) -> str:
    return "".join(to_line(row) + "\n" for row in rows)
