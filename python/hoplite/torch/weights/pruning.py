"""Deletes the announcements and the data of versions that no longer exist, and of publishers that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite import NameTaken, ObjectDeleted, ObjectLost, Timeout
from hoplite.torch.weights.encoding import parse_data
from hoplite.torch.weights.manifest import ManifestInvalid
from hoplite.torch.weights.names import ANNOUNCED, Version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite import Client
    from hoplite.torch.weights.manifest import Manifest
    from hoplite.torch.weights.names import Deadline

# How long an announcement takes before it is looked for again, since it may have been deleted.
LOOK_EVERY_S = 1.0


def prune(client: Client, newest: Version, retain: int, deadline: Deadline) -> None:
    """Deletes what belongs to versions below the newest that do not exist.

    The versions themselves were deleted by `retain` of the put of the newest, or never existed since their publisher
    failed.

    Raises:
        Timeout: the time is up. The next publication deletes the rest.
    """
    rows = client.directory(newest.prefix, timeout=deadline.left())
    ends = [row["ref"][len(newest.prefix) :] for row in rows]
    complete = {int(end) for end in ends if end.isascii() and end.isdigit()}
    # The put did not wait for its deletions, and an owner may still list them.
    doubtful = sorted(number for number in complete if number <= newest.number)[:-retain]
    complete -= {number for number in doubtful if _read(client, f"{newest.prefix}{number}", deadline) is None}
    retained: list[str] = []
    stale: list[str] = []
    for end in ends:
        number = end.removeprefix(ANNOUNCED).partition(".")[0]
        if end.startswith(ANNOUNCED) and number.isascii() and number.isdigit():
            if int(number) in complete:
                retained.append(newest.prefix + end)
            elif int(number) < newest.number:
                stale.append(newest.prefix + end)
    if stale:
        drop(client, stale, deadline, retained)


def take_over(client: Client, version: Version, name: str, deadline: Deadline) -> None:
    """Deletes an announcement and its data, if its publisher failed.

    Raises:
        NameTaken: the publisher is alive.
        Timeout: the time is up.
    """
    if is_being_put(client, name, deadline):
        raise NameTaken(
            f"another publisher is putting {version.name}: publish a version on one rank only, or its parts with "
            "shards="
        )
    rows = client.directory(version.prefix + ANNOUNCED, timeout=deadline.left())
    drop(client, [name], deadline, [row["ref"] for row in rows if row["ref"] != name])


def is_being_put(client: Client, name: str, deadline: Deadline) -> bool:
    """Whether the publisher of an announcement is alive, and has not completed the version."""
    found = _read(client, name, deadline)
    # Pending until the publisher completes the version, gives up, or dies.
    return found is not None and bool(found.publisher) and not client.wait([found.publisher], timeout=0)[0]


def drop(client: Client, names: Sequence[str], deadline: Deadline, retained: Sequence[str] = ()) -> None:
    """Deletes announcements and their data, except data that other announcements use.

    Raises:
        Timeout: the time is up.
    """
    kept = {ref for name in retained for ref in refs_of(client, name, deadline)}
    refs = dict.fromkeys(ref for name in names for ref in refs_of(client, name, deadline) if ref not in kept)
    # The announcements last: they list what is left if this is interrupted.
    client.delete(list(refs), timeout=deadline.left())
    client.delete(list(names), timeout=deadline.left())


def refs_of(client: Client, name: str, deadline: Deadline) -> list[str]:
    """Refs of the data that an announcement lists; none if it is gone or not valid."""
    found = _read(client, name, deadline)
    return [] if found is None else found.refs()


def _read(client: Client, name: str, deadline: Deadline) -> Manifest | None:
    """Reads what a manifest has on data; returns None if it is gone or not valid.

    Raises:
        Timeout: the time is up.
    """
    while True:
        left = deadline.left()
        try:
            data = client.get(name, timeout=LOOK_EVERY_S if left is None else min(left, LOOK_EVERY_S))
            return parse_data(data, name)
        except (ObjectDeleted, ObjectLost, ManifestInvalid):
            return None
        except Timeout:
            # A get of a name that was deleted before waits for the next put.
            if not client.locations(name, timeout=deadline.left()):
                return None
            if deadline.left() == 0:
                raise
