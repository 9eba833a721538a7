"""The objects of one publication: puts them in the order that makes a version whole or absent.

The announcement comes first, with refs reserved for the data; then the data objects, each as soon as it is copied; then
the manifest under the name of the version.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
from bisect import bisect_right
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from hoplite import HopliteError, InvalidArgument, NameTaken, ObjectDeleted, ObjectLost, StoreFull, Timeout
from hoplite.torch.weights.deltas import PATCH_SHARE_MAX, Base, Delta
from hoplite.torch.weights.drafts import Drafts
from hoplite.torch.weights.encoding import encode, parse
from hoplite.torch.weights.manifest import Extent, Manifest, ManifestInvalid, Source
from hoplite.torch.weights.memory import Typed, element_sizes
from hoplite.torch.weights.pauses import paused_collector
from hoplite.torch.weights.pruning import take_over
from hoplite.torch.weights.room import check_room
from hoplite.torch.weights.shards import merged
from hoplite.torch.weights.streams import Stream, copy_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hoplite import Buffer, Client, Ref
    from hoplite.torch.weights.names import Deadline, Version
    from hoplite.torch.weights.sources import Chunk, Sources

logger = logging.getLogger("hoplite.torch")

# Data up to this size goes behind the manifest: one object less to wait for.
INLINE_BYTES_MAX = 256 << 10

# How often a shard checks whether rank 0 has begun again.
LOOK_EVERY_S = 1.0

# How long an object waits for memory before it is checked whether the publication waits for itself.
CHECK_AFTER_S = 1.0

# Time to delete what is not needed. If it is up, the next publication does it.
CANCEL_S = 5.0


class Writer:
    """One publication, or one shard of it, while it is put.

    Attributes:
        sent: bytes that receivers bring: those that have the base, if there is one.
        replicas: number of nodes that keep a copy of each object.

    Args:
        client: client to put with.
        version: the version.
        sources: its tensors.
        rank: rank of the shard.
        count: number of shards.
        replicas: number of nodes that keep a copy.
        deadline: when to give up.
        publisher: a ref that rank 0 has reserved until the version is complete, if all ranks know it; None if each
            publishes when it likes.
    """

    def __init__(
        self,
        client: Client,
        version: Version,
        sources: Sources | Stream,
        rank: int,
        count: int,
        replicas: int,
        deadline: Deadline,
        publisher: str | None = None,
    ) -> None:
        self._client = client
        self._version = version
        self._sources = sources
        self._replicas = replicas
        self._deadline = deadline
        self._manifest = Manifest(
            version.number,
            secrets.token_hex(8),
            0,
            [],
            [],
            [],
            rank,
            count,
            publisher=str(client.reserve()) if publisher is None or rank else publisher,
        )
        self._publisher = publisher
        # Manifests of the other ranks, at rank 0.
        self._parts: list[Manifest] = []
        # What to delete if the publication fails.
        self._put: list[str] = []
        self._text = bytearray()
        # Id of the first shard, which this shard belongs to.
        self._of = ""
        self._drafts = Drafts(client, version, self._manifest, deadline)
        self._objects: list[Source] = []
        self._extents: list[Extent] = []
        # Number of data objects in the store.
        self._count = 0
        # Bytes of these.
        self._stored = 0
        self.sent = 0
        self.replicas = replicas
        if isinstance(sources, Stream):
            sources.read_back = self._read_back

    def write(
        self,
        bucket: int,
        *,
        digest: bool,
        base: Version | None,
    ) -> None:
        """Puts the announcement and the data.

        Args:
            bucket: size of a data object in bytes.
            digest: whether to store the SHA-256 of each.
            base: version whose data is used where it did not change.

        Raises:
            InvalidArgument: there is nothing to publish.
        """
        chunks = self._sources.chunks(bucket)
        head = next(chunks, None)
        if head is None:
            if self._manifest.shards == 1:
                raise InvalidArgument(nothing(self._version.name, len(self._sources.entries)))
            self._announce()
            return
        chunks = chain([head], chunks)
        if self._sources.is_complete and self._sources.nbytes <= INLINE_BYTES_MAX:
            self._write_inline(chunks, digest=digest)
            return
        rank = self._manifest.shard
        found = None if base is None else Base.find(self._client, base, self._sources, rank, self._deadline)
        if found is None:
            self._write_whole(chunks, digest=digest)
            return
        is_read_once = isinstance(self._sources, Stream)
        try:
            self._write_delta(chunks, found, digest=digest)
        except (ObjectDeleted, ObjectLost, ManifestInvalid) as error:
            # The base has a manifest, but not all of its data.
            if is_read_once:
                raise ObjectLost(
                    f"base {found.manifest.version} of {self._version.name} lost its data ({error}), and the tensors "
                    "are read only once: publish again without base="
                ) from error
            self._delete_put()
            self._objects, self._extents, self._manifest.patches = [], [], None
            self._put, self._count, self._stored, self.sent = [], 0, 0, 0
            self._write_whole(self._sources.chunks(bucket), digest=digest)
            return
        self._announce()

    def _write_inline(self, chunks: Iterator[Chunk], *, digest: bool) -> None:
        nbytes = self.sent = self._sources.nbytes
        data = bytearray(nbytes)
        for chunk in chunks:
            chunk.fill(memoryview(data)[chunk.first : chunk.first + chunk.nbytes])
        self._add(0, Source("", nbytes, hashlib.sha256(data).hexdigest() if digest else None))
        self._announce(data)

    def _write_whole(self, chunks: Iterator[Chunk], *, digest: bool) -> None:
        if not self._sources.is_complete or digest:
            for chunk in chunks:
                self._add(chunk.first, self._write_new(chunk.nbytes, chunk.fill, digest=digest))
            self._announce()
            return
        known = list(chunks)
        nbytes = self._sources.nbytes
        check_room(self._client, self._version, nbytes, len(known), self._deadline)
        for chunk in known:
            self._add(chunk.first, Source(str(self._client.reserve()), chunk.nbytes))
        self._put += [source.ref for source in self._objects]
        self._announce()
        for source, chunk in zip(self._objects, known, strict=True):
            self.write_object(source, chunk.fill, digest=False)

    def _add(self, first: int, source: Source) -> None:
        """Adds the object of the next range of the flat space."""
        self._extents.append(Extent(first, source.nbytes, len(self._objects), 0))
        self._objects.append(source)

    def _write_new(self, nbytes: int, fill: Callable[[Any], object], *, digest: bool) -> Source:
        """Puts a data object before the announcement."""
        ref = self._drafts.next()
        self._put.append(ref)
        return self.write_object(Source(ref, nbytes), fill, digest=digest)

    def _write_delta(self, chunks: Iterator[Chunk], base: Base, *, digest: bool) -> None:
        delta = Delta(base)
        # Bytes that patches may still have.
        room = self._room_for_patches(base.manifest.nbytes)
        is_short = False
        self._objects, self._extents = delta.sources, delta.extents
        stage = bytearray()
        for chunk in chunks:
            if len(stage) < chunk.nbytes:
                stage = bytearray(chunk.nbytes)
            memory = memoryview(stage)[: chunk.nbytes]
            chunk.fill(memory)
            pieces = delta.pieces(Typed(memory), chunk.first)
            new = patch = None
            if pieces:
                nbytes = sum(piece.numel() for piece in pieces)
                new = self._write_new(nbytes, partial(_copy_pieces, pieces), digest=digest)
                text = delta.patch(memory, chunk.first, self._sources.entries)
                if text is not None and len(text) > room:
                    is_short = True
                elif text is not None:
                    room -= len(text)
                    patch = self._write_new(len(text), partial(copy_bytes, text), digest=digest)
                    # A receiver that has the base brings this alone.
                    self.sent -= nbytes
            delta.add(new, patch)
        if is_short:
            logger.warning(
                "%s: the store of this node has no room for all elements that changed, so receivers bring the blocks "
                "of some: increase its capacity",
                self._version.name,
            )
        is_same = (self._sources.entries, self._sources.nbytes) == (base.manifest.entries, base.manifest.nbytes)
        if is_same:
            self._manifest.patches = (base.manifest.id, delta.patches)
        elif delta.patches:
            # Tensors that came one by one, and turned out to be others.
            self.sent = self._stored - sum(patch.nbytes for patch in delta.patches.values())
            with contextlib.suppress(HopliteError):
                self._client.delete([patch.ref for patch in delta.patches.values()], timeout=CANCEL_S)

    def _room_for_patches(self, nbytes: int) -> int:
        """Returns the room for patches: a version that fits without them must not fail because of them."""
        count = 2 * (nbytes // INLINE_BYTES_MAX + 1)
        extra = int(PATCH_SHARE_MAX * nbytes)
        try:
            return check_room(self._client, self._version, nbytes, count, self._deadline, extra=extra)
        except StoreFull:
            return 0

    def _read_back(self, first: int, nbytes: int) -> bytearray:
        """Returns a copy of a range of the flat space that was put."""
        data = bytearray(nbytes)
        extents, last = self._extents, first + nbytes
        index = bisect_right(extents, first, key=lambda extent: extent.at) - 1
        at = first
        while at < last:
            extent = extents[index]
            end = min(last, extent.at + extent.nbytes)
            found = self._client.get(self._objects[extent.source].ref, timeout=self._deadline.left())
            start = extent.start + at - extent.at
            data[at - first : end - first] = memoryview(found)[start : start + end - at]
            at, index = end, index + 1
        return data

    def write_object(self, source: Source, fill: Callable[[Any], object], *, digest: bool) -> Source:
        """Puts a data object; returns it with its digest."""
        buffer = self._create(source)
        try:
            fill(buffer.array)
            found = hashlib.sha256(buffer.array).hexdigest() if digest else None
            ref = buffer.seal(timeout=self._deadline.left())
        except BaseException:
            buffer.discard()
            raise
        self._note_replicas(ref)
        self._count += 1
        self._stored += source.nbytes
        self.sent += source.nbytes
        return source._replace(digest=found)

    def _create(self, source: Source) -> Buffer:
        left = self._deadline.left()
        create = partial(self._client.create, source.nbytes, "bytes", name=source.ref, replicas=self._replicas)
        try:
            return create(timeout=CHECK_AFTER_S if left is None else min(left, CHECK_AFTER_S))
        except (StoreFull, Timeout):
            # Timeout: the node is still allocating the memory.
            if self._deadline.left() == 0:
                raise
            nbytes, count = self._stored + source.nbytes, self._count + 1
            check_room(self._client, self._version, nbytes, count, self._deadline)
            return create(timeout=self._deadline.left())

    def _note_replicas(self, ref: Ref) -> None:
        if ref.replicas is not None:
            self.replicas = min(self.replicas, ref.replicas)

    def _announce(self, data: bytes | bytearray = b"") -> None:
        """Puts the manifest, that of rank 0 under the name that receivers wait for."""
        self._manifest.entries, self._manifest.nbytes = self._sources.entries, self._sources.nbytes
        self._manifest.sources, self._manifest.extents = self._objects, self._extents
        with paused_collector():
            self._text = encode(self._manifest) + data
        if self._manifest.shard == 0:
            self._place(self._version.announcement, self._text)
        else:
            self._join()
        # The announcement lists the same objects.
        with contextlib.suppress(HopliteError):
            self._client.delete(self._drafts.leftovers(), timeout=CANCEL_S)

    def _join(self) -> None:
        """Puts the manifest of a shard, under the id of the publication that rank 0 has announced."""
        version = self._version
        while True:
            try:
                data = self._client.get(version.announcement, timeout=self._slice())
                break
            except Timeout:
                if self._deadline.left() == 0:
                    raise Timeout(self._absent(0)) from None
                self._check_publisher()
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
        self._note_replicas(self._client.put(text, name=name, replicas=self._replicas, retain=retain, timeout=left))

    def commit(self, retain: int | None) -> None:
        """Puts the manifest of the complete version, once all shards have their data in the store."""
        shards, nbytes = self._manifest.shards, self._manifest.nbytes
        if self._manifest.shard > 0:
            self._wait_for_commit()
        else:
            nbytes += sum(self._wait_for_shard(rank) for rank in range(1, shards))
            if not nbytes:
                raise InvalidArgument(nothing(f"the {shards} shards of {self._version.name}", 0))
            if self._parts or any(entry.begin is not None for entry in self._manifest.entries):
                # Receivers could not read shards that do not fit together.
                merged(self._version.name, [self._manifest, *self._parts])
            self._put_text(self._version.name, self._text, retain)
        with contextlib.suppress(HopliteError):
            self._client.delete(self._manifest.publisher, timeout=CANCEL_S)
        if self.replicas < self._replicas:
            logger.warning(
                "%s has copies on %d nodes, below replicas=%d: start more nodes",
                self._version.name,
                self.replicas,
                self._replicas,
            )

    def _absent(self, rank: int) -> str:
        return (
            f"rank {rank} of {self._manifest.shards} has not announced its part of {self._version.name} within "
            f"{self._deadline.timeout:g} s: check whether it runs and calls publish, or set a longer timeout"
        )

    def _wait_for_shard(self, rank: int) -> int:
        """Waits until the data of another rank is complete; returns its bytes.

        Raises:
            ObjectLost: that rank failed.
            Timeout: it was not complete in time.
        """
        left = self._deadline.left
        name = self._version.shard(rank, self._manifest.id)
        try:
            part = parse(self._client.get(name, timeout=left()), name, element_sizes())
        except Timeout:
            raise Timeout(self._absent(rank)) from None
        refs = part.refs()
        _, missing = self._client.wait(refs, timeout=left())
        if missing:
            raise Timeout(f"the data of shard {name} was not complete in time: check its rank, or set a longer timeout")
        for ref in refs:
            self._client.locations(ref, timeout=left())
        self._parts.append(part)
        return part.nbytes

    def _wait_for_commit(self) -> None:
        """Waits for rank 0. If it announces the version anew, after a failed attempt, this shard joins it again."""
        version = self._version
        while not self._client.wait([version.name], timeout=self._slice())[0]:
            if self._deadline.left() == 0:
                raise Timeout(f"{version.name} was not complete in time: check rank 0, or set a longer timeout")
            self._check_publisher()
            with contextlib.suppress(Timeout, ObjectDeleted, ObjectLost):
                data = self._client.get(version.announcement, timeout=self._slice())
                if parse(data, version.announcement, element_sizes()).id != self._of:
                    self._join()

    def _check_publisher(self) -> None:
        """Checks that rank 0 has not given up a version that all ranks publish at the same time.

        Raises:
            ObjectLost: it has.
        """
        if self._publisher is None or not self._client.wait([self._publisher], timeout=0)[0]:
            return
        if not self._client.wait([self._version.name], timeout=0)[0]:
            raise ObjectLost(f"rank 0 gave up {self._version.name}: see its error, and publish again on all ranks")

    def _slice(self) -> float:
        left = self._deadline.left()
        return LOOK_EVERY_S if left is None else min(left, LOOK_EVERY_S)

    def discard(self) -> None:
        """Deletes what was put. Receivers that wait for it take another version."""
        self._put += [self._manifest.publisher, *self._drafts.leftovers()]
        self._delete_put()

    def _delete_put(self) -> None:
        with contextlib.suppress(HopliteError):
            self._client.delete(self._put, timeout=CANCEL_S)


def _copy_pieces(pieces: list[Any], memory: Any) -> None:
    """Copies pieces one after the other into memory of their length."""
    torch.cat(pieces, out=Typed(memory).data)


def nothing(name: str, count: int) -> str:
    """Returns the text of the error that a publication has no elements."""
    found = "there are no tensors" if not count else f"{count} tensors have no elements"
    return (
        f"{found} to publish as {name}: publish on the rank that has the weights, gathered if the trainer shards them"
    )
