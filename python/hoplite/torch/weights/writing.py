"""The objects of one publication: puts them in the order that makes a version whole or absent.

The announcement comes first, with refs reserved for the data; then the data objects, each as soon as it is copied; then
the manifest under the name of the version.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hoplite import HopliteError, NameTaken, ObjectDeleted, ObjectLost, Timeout
from hoplite.torch.weights.deltas import Base, Delta
from hoplite.torch.weights.encoding import encode, parse, parse_data
from hoplite.torch.weights.manifest import Extent, Manifest, ManifestInvalid, Source
from hoplite.torch.weights.memory import Typed, element_sizes
from hoplite.torch.weights.pruning import take_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite import Client
    from hoplite.torch.weights.names import Deadline, Version
    from hoplite.torch.weights.sources import Sources

# Data up to this size goes behind the manifest: one object less to wait for.
INLINE_BYTES_MAX = 256 << 10

# How often a shard checks whether rank 0 has begun again.
LOOK_EVERY_S = 1.0

# Time to delete what is not needed. If it is up, the next publication does it.
CANCEL_S = 5.0


class Writer:
    """One publication, or one shard of it, while it is put.

    Attributes:
        sent: bytes of the data objects that were put.

    Args:
        client: client to put with.
        version: the version.
        sources: its tensors.
        rank: rank of the shard.
        count: number of shards.
        replicas: number of nodes that keep a copy.
        deadline: when to give up.
    """

    def __init__(
        self,
        client: Client,
        version: Version,
        sources: Sources,
        rank: int,
        count: int,
        replicas: int,
        deadline: Deadline,
    ) -> None:
        self._client = client
        self._version = version
        self._sources = sources
        self._replicas = replicas
        self._deadline = deadline
        self._manifest = Manifest(
            version.number,
            secrets.token_hex(8),
            sources.nbytes,
            sources.entries,
            [],
            [],
            rank,
            count,
            publisher=str(client.reserve()),
        )
        # What to delete if the publication fails.
        self._put: list[str] = []
        self._text = bytearray()
        # Id of the first shard, which this shard belongs to.
        self._of = ""
        self.sent = 0

    def write(
        self,
        bucket: int,
        *,
        digest: bool,
        base: Version | None,
        encode: Callable[[memoryview, memoryview], Any] | None,
    ) -> None:
        """Puts the announcement and the data.

        Args:
            bucket: size of a data object in bytes.
            digest: whether to store the SHA-256 of each.
            base: version whose data is used where it did not change.
            encode: returns a patch from the bytes of the base and the new ones; None uses blocks.
        """
        if self._sources.nbytes <= INLINE_BYTES_MAX:
            self._write_inline(digest=digest)
            return
        rank = self._manifest.shard
        found = None if base is None else Base.find(self._client, base, self._sources, rank, self._deadline)
        if found is None:
            self._write_whole(bucket, digest=digest)
            return
        try:
            if encode is None:
                self._write_delta(Delta(found), bucket, digest=digest)
            else:
                self._write_patches(found, encode, bucket, digest=digest)
        except (ObjectDeleted, ObjectLost, ManifestInvalid):
            # The base has a manifest, but not all of its data.
            self._delete_put()
            self._manifest.sources, self._manifest.extents, self._manifest.patches = [], [], None
            self._put, self.sent = [], 0
            self._write_whole(bucket, digest=digest)
            return
        self._announce()

    def _write_inline(self, *, digest: bool) -> None:
        nbytes = self.sent = self._sources.nbytes
        data = bytearray(nbytes)
        if nbytes:
            self._sources.copy(data, 0)
            self._manifest.sources = [Source("", nbytes, hashlib.sha256(data).hexdigest() if digest else None)]
            self._manifest.extents = [Extent(0, nbytes, 0, 0)]
        self._announce(data)

    def _write_whole(self, bucket: int, *, digest: bool) -> None:
        nbytes = self._sources.nbytes
        sizes = [min(bucket, nbytes - first) for first in range(0, nbytes, bucket)]
        sources = [Source(str(self._client.reserve()), size) for size in sizes]
        self._put += [source.ref for source in sources]
        self._manifest.sources = sources
        self._manifest.extents = [Extent(index * bucket, size, index, 0) for index, size in enumerate(sizes)]
        if not digest:
            self._announce()

        put = [
            self.write_object(each, partial(self._sources.copy, first=index * bucket), digest=digest)
            for index, each in enumerate(sources)
        ]
        if digest:
            self._manifest.sources = put
            self._announce()

    def _write_patches(self, base: Base, encode: Callable[..., Any], bucket: int, *, digest: bool) -> None:
        nbytes = self._sources.nbytes
        patches: list[Source] = []
        sources: list[Source] = []
        for first in range(0, nbytes, bucket):
            new = bytearray(min(bucket, nbytes - first))
            self._sources.copy(new, first)
            old = memoryview(base.read(first, len(new))).toreadonly()
            patch = memoryview(encode(old, memoryview(new).toreadonly())).cast("B")
            for data, put in ((new, sources), (patch, patches)):
                put.append(self._write_new(data, digest=digest))
        self._manifest.sources = sources
        self._manifest.extents = [
            Extent(index * bucket, source.nbytes, index, 0) for index, source in enumerate(sources)
        ]
        self._manifest.patches = (base.manifest.id, patches)

    def _write_new(self, data: Any, *, digest: bool) -> Source:
        ref = str(self._client.reserve())
        self._put.append(ref)
        return self.write_object(Source(ref, len(data)), partial(_copy, data), digest=digest)

    def _write_delta(self, delta: Delta, bucket: int, *, digest: bool) -> None:
        nbytes = self._sources.nbytes
        for first in range(0, nbytes, bucket):
            memory = bytearray(min(bucket, nbytes - first))
            self._sources.copy(memory, first)
            pieces = delta.pieces(Typed(memory), first)
            new = self._write_new(torch.cat(pieces).numpy(), digest=digest) if pieces else None
            delta.add(new)
        self._manifest.sources, self._manifest.extents = delta.sources, delta.extents

    def write_object(self, source: Source, fill: Callable[[Any], object], *, digest: bool) -> Source:
        """Puts a data object; returns it with its digest."""
        left = self._deadline.left
        buffer = self._client.create(source.nbytes, "bytes", name=source.ref, replicas=self._replicas, timeout=left())
        try:
            fill(buffer.array)
            found = hashlib.sha256(buffer.array).hexdigest() if digest else None
            buffer.seal(timeout=left())
        except BaseException:
            buffer.discard()
            raise
        self.sent += source.nbytes
        return source._replace(digest=found)

    def _announce(self, data: bytes | bytearray = b"") -> None:
        """Puts the manifest, that of rank 0 under the name that receivers wait for."""
        self._text = encode(self._manifest) + data
        if self._manifest.shard == 0:
            self._place(self._version.announcement, self._text)
        else:
            self._join()

    def _join(self) -> None:
        """Puts the manifest of a shard, under the id of the publication that rank 0 has announced."""
        version = self._version
        data = self._client.get(version.announcement, timeout=self._deadline.left())
        self._of = parse(data, version.announcement, element_sizes()).id
        self._place(version.shard(self._manifest.shard, self._of), self._text)

    def _place(self, name: str, text: bytearray) -> None:
        """Puts an announcement, in place of one whose publisher failed."""
        try:
            self._put_text(name, text)
        except NameTaken:
            take_over(self._client, self._version, name, self._deadline)
            self._put_text(name, text)
        self._put.append(name)

    def _put_text(self, name: str, text: bytearray, retain: int | None = None) -> None:
        left = self._deadline.left()
        self._client.put(text, name=name, replicas=self._replicas, retain=retain, timeout=left)

    def commit(self, retain: int | None) -> None:
        """Puts the manifest of the complete version, once all shards have their data in the store."""
        if self._manifest.shard > 0:
            self._wait_for_commit()
        else:
            for rank in range(1, self._manifest.shards):
                self._wait_for_shard(self._version.shard(rank, self._manifest.id))
            self._put_text(self._version.name, self._text, retain)
        with contextlib.suppress(HopliteError):
            self._client.delete(self._manifest.publisher, timeout=CANCEL_S)

    def _wait_for_shard(self, name: str) -> None:
        """Waits until the data of another rank is complete.

        Raises:
            ObjectLost: that rank failed.
        """
        left = self._deadline.left
        refs = parse_data(self._client.get(name, timeout=left()), name).refs()
        _, missing = self._client.wait(refs, timeout=left())
        if missing:
            raise Timeout(f"the data of shard {name} was not complete in time: check its rank, or set a longer timeout")
        for ref in refs:
            self._client.locations(ref, timeout=left())

    def _wait_for_commit(self) -> None:
        """Waits for rank 0. If it announces the version anew, after a failed attempt, this shard joins it again."""
        version = self._version
        while not self._client.wait([version.name], timeout=self._slice())[0]:
            if self._deadline.left() == 0:
                raise Timeout(f"{version.name} was not complete in time: check rank 0, or set a longer timeout")
            with contextlib.suppress(Timeout, ObjectDeleted, ObjectLost):
                data = self._client.get(version.announcement, timeout=self._slice())
                if parse(data, version.announcement, element_sizes()).id != self._of:
                    self._join()

    def _slice(self) -> float:
        left = self._deadline.left()
        return LOOK_EVERY_S if left is None else min(left, LOOK_EVERY_S)

    def discard(self) -> None:
        """Deletes what was put. Receivers that wait for it take another version."""
        self._put.append(self._manifest.publisher)
        self._delete_put()

    def _delete_put(self) -> None:
        with contextlib.suppress(HopliteError):
            self._client.delete(self._put, timeout=CANCEL_S)


def _copy(data: Any, memory: Any) -> None:
    memory[:] = data
