"""Refs of data objects that are put before their publication is announced.

A draft lists refs in the store before their objects exist, so that the next publication deletes the objects if this
publisher is killed. A draft has as many refs as all drafts before it, so there are few. Does not know tensors.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hoplite.torch.weights.encoding import encode
from hoplite.torch.weights.manifest import Manifest, Source
from hoplite.torch.weights.pruning import take_over

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.torch.weights.names import Deadline, Version


class Drafts:
    """The refs of one publication.

    Attributes:
        names: names of the drafts.
        unused: refs that are reserved and listed.

    Args:
        client: client that puts the objects.
        version: the version.
        manifest: its manifest, for the ids of publication and publisher.
        deadline: when to give up.
    """

    def __init__(self, client: Client, version: Version, manifest: Manifest, deadline: Deadline) -> None:
        self._client = client
        self._version = version
        self._manifest = manifest
        self._deadline = deadline
        self._count = 1
        self.names: list[str] = []
        self.unused: deque[str] = deque()

    def next(self) -> str:
        """Returns the ref of the next object.

        Raises:
            NameTaken: another publisher is putting this version.
        """
        if not self.unused:
            if not self.names:
                self._clear()
            refs = [str(self._client.reserve()) for _ in range(self._count)]
            self._count += len(refs)
            whole = self._manifest
            listed = Manifest(
                whole.version, whole.id, 0, [], [Source(ref, 0) for ref in refs], [], publisher=whole.publisher
            )
            name = f"{self._version.drafts(whole.shard)}{len(self.names)}.{whole.id}"
            self._client.put(encode(listed), name=name, timeout=self._deadline.left())
            self.names.append(name)
            self.unused.extend(refs)
        return self.unused.popleft()

    def _clear(self) -> None:
        """Deletes what publishers that failed have put for this version, which this one has no room for."""
        version, rank = self._version, self._manifest.shard
        found = [row["ref"] for row in self._client.directory(version.announcement, timeout=self._deadline.left())]
        for name in found:
            if name.startswith(version.drafts(rank)) or (rank == 0 and name == version.announcement):
                take_over(self._client, version, name, self._deadline)

    def leftovers(self) -> list[str]:
        """Returns what to delete once the publication is announced; the next call returns nothing."""
        found = [*self.unused, *self.names]
        self.unused.clear()
        self.names = []
        return found
