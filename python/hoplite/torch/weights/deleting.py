"""`delete`: removes a version with all of its objects, or all versions under a prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hoplite
from hoplite import NameTaken
from hoplite._timeouts import DEFAULT, limit
from hoplite.torch.weights.names import ANNOUNCED, Deadline, Version
from hoplite.torch.weights.pruning import drop, is_being_put

if TYPE_CHECKING:
    from hoplite import Client, Ref


def delete(name: str | Ref, *, client: Client | None = None, timeout: float | None = DEFAULT) -> None:
    """Deletes a version with its data on all nodes, or what a failed publication of it has left.

    `Client.delete` of the name deletes the manifest alone, and the data stays until the next publication. Data that
    other versions use stays, as after a publication with `base=`. Without such a version, nothing is deleted.

    Args:
        name: name of the version, such as "policy/17", or a prefix, such as "policy/", for all versions under it.
        client: client to use; None means `hoplite.client()`.
        timeout: seconds to wait for the nodes.

    Raises:
        InvalidArgument: the name is not valid.
        NameTaken: a version is being published.
        Timeout: a node did not reply in time. Another call deletes the rest.

    Examples:
        >>> import torch
        >>> import hoplite.torch as ht
        >>> pub = ht.publish({"w": torch.zeros(1 << 20)}, "deleted/1")
        >>> ht.delete("deleted/1")
        >>> hoplite.client().directory("deleted/")
        []
    """
    client = client or hoplite.client()
    deadline = Deadline(limit(timeout, client))
    text = str(name)
    exact = None if text.endswith("/") and not text.startswith("@") else Version.of(name)
    prefix = text if exact is None else exact.prefix
    versions: dict[int, list[str]] = {}
    for row in client.directory(prefix, timeout=deadline.left()):
        end = row["ref"][len(prefix) :]
        digits = end.removeprefix(ANNOUNCED).partition(".")[0] if end.startswith(ANNOUNCED) else end
        if digits.isascii() and digits.isdigit():
            versions.setdefault(int(digits), []).append(row["ref"])
    wanted = [number for number in versions if exact is None or number == exact.number]
    for number in wanted:
        is_complete = f"{prefix}{number}" in versions[number]
        if not is_complete and any(is_being_put(client, ref, deadline) for ref in versions[number]):
            raise NameTaken(f"a publisher is putting {prefix}{number}: wait until it is complete, or end its program")
    names = [ref for number in wanted for ref in versions[number]]
    retained = [ref for number in versions if number not in wanted for ref in versions[number]]
    if names:
        drop(client, names, deadline, retained)
