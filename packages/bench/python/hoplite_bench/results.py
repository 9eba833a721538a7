"""The rows of a run and their file: existing rows, added rows, and rows that those replace.

No row is ever lost: a row is deleted only when its replacement has been written. The module does not depend on how rows
are measured.
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
    """Rows, and the file that stores them.

    Args:
        path: file for the rows, one per line; created if it does not exist. None stores them in memory only.
        resume: whether to keep existing rows and continue.
        warn: called with warnings about existing rows, one line each.

    Raises:
        InvalidArgument: the file is not writable, or has rows and `resume` is not set.
        BadRow: the file is not a file of rows.
    """

    def __init__(
        self, path: Path | None, *, resume: bool = False, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        # Resolved, so that a symbolic link stays one when its file is replaced.
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
            raise InvalidArgument(f"can't write rows to {path}: {error.strerror}; set another --out") from None
        if found and not resume:
            raise InvalidArgument(f"{path} already has rows: add --resume to continue, or set another --out")
        whole, end, last = found.rpartition(b"\n")
        if last:
            # The writer was killed while it wrote this line. The line is valid if only its end-of-line is missing.
            self._appendable = False
            try:
                from_line(last.decode())
            except (BadRow, UnicodeDecodeError):
                warn(f"the last line of {path} is incomplete and is ignored")
            else:
                end += last
        self.rows = parse(whole + end, str(path))

    def on(self, network: Mapping[str, object]) -> list[Row]:
        """The rows of one network."""
        return [row for row in self.rows if plan.is_on(row, network)]

    def strange(self, network: Mapping[str, object], machine: Mapping[str, object]) -> str:
        """Warns about rows of one network from another commit or machine; empty if there are none."""
        rows = self.on(network)
        count = sum({**row.machine, "commit": row.commit} != machine for row in rows)
        if not count:
            return ""
        return f"{count} of {len(rows)} existing rows are from another commit or machine: compare them with care"

    def add(self, rows: Sequence[Row]) -> None:
        """Adds rows; each replaces a row of the same cell on the same network.

        Raises:
            HopliteError: the file is no longer writable.
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
