"""`publish`: puts the tensors of a version, so that receivers take them while they are copied.

The order is what makes a version whole or absent: the announcement, with refs reserved for the data; the data objects,
each as soon as it is copied; the manifest under the name of the version; and only then the deletion of old versions.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import hoplite
from hoplite import HopliteError, InvalidArgument, NameTaken, ObjectDeleted, ObjectLost, Ref, Timeout
from hoplite.sizes import check_size
from hoplite.torch.weights.deltas import Base, Delta
from hoplite.torch.weights.manifest import SHARDS_MAX, Extent, Manifest, Source, aligned, encode, parse, parse_refs
from hoplite.torch.weights.memory import Typed, check_dtype, element_sizes
from hoplite.torch.weights.names import Deadline, Version
from hoplite.torch.weights.pauses import paused_collector
from hoplite.torch.weights.pruning import drop, prune
from hoplite.torch.weights.sources import Sources, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite import Client

# Data up to this size goes behind the manifest: one object less to wait for.
INLINE_BYTES_MAX = 256 << 10

# At 1 Gbit/s a bucket takes 67 ms. Receivers begin when the first is copied, and end with the copy of the last.
BUCKET_BYTES = 8 << 20

# A larger publication has larger buckets.
BUCKETS_MAX = 1024

# How often a shard checks whether rank 0 has begun again.
LOOK_EVERY_S = 1.0


class Publication(NamedTuple):
    """A version that was published.

    Attributes:
        ref: ref of its manifest.
        version: its number.
        nbytes: bytes of its tensors.
        sent: bytes that were put for it; with `base`, those that changed.
    """

    ref: Ref
    version: int
    nbytes: int
    sent: int


def publish(
    source: Any,  # noqa: ANN401 - a module, or tensors by name
    name: str | Ref,
    retain: int | None = 2,
    *,
    client: Client | None = None,
    replicas: int = 1,
    bucket: int | str | None = None,
    dtype: Any = None,  # noqa: ANN401 - torch.dtype
    shards: Any = None,  # noqa: ANN401 - (rank, count, boxes)
    base: str | Ref | None = None,
    digest: bool = False,
    timeout: float | None = None,
) -> Publication:
    """Publishes the tensors of a module as a version.

    Receivers that wait for the version take its data while it is copied. The version exists once all data is in the
    store. If this process fails before that, the previous version is still whole.

    Args:
        source: module, whose `state_dict` is published; mapping; or pairs of names and tensors. Tensors are dense, of
            any dtype that is not quantized, on any device. A view is published with its own elements only. Tensors
            that share all elements (tied parameters) are stored once.
        name: name of the version, such as "policy/17". Its number is above that of every complete version.
        retain: number of newest versions to retain, including this one. The others are deleted. None deletes nothing.
        client: client to use; None means `hoplite.client()`.
        replicas: number of nodes that keep a copy of the version, as in `Client.put`.
        bucket: size of the data objects, such as "16MiB". None means 8 MiB, or a 1024th of the tensors if that is
            more.
        dtype: floating dtype to which tensors of float16, bfloat16, float32 and float64 are converted while they are
            copied.
        shards: rank of this publisher, number of publishers, and boxes by name. Each publisher calls this with its own
            part, and rank 0 waits for the others. A box is the slices of the part and the shape of the whole tensor.
            Tensors without a box are whole, and those of the lowest rank are taken.
        base: name of an earlier version, such as "policy/16". Data that did not change since is not put again, and
            receivers that have the base do not receive it again. Others receive the whole version. If names, shapes or
            dtypes differ from those of the base, everything is put.
        digest: store the SHA-256 of each data object in the manifest. Receivers verify it before they copy a byte, and
            start once all data is in the store.
        timeout: seconds to wait for memory in the store, for the replicas and for other shards.

    Returns:
        The publication, once it is complete.

    Raises:
        InvalidArgument: an argument is not valid, or a complete version has a higher number.
        NameTaken: the version exists.
        ObjectLost: another publisher of this version failed.
        ShapeMismatch: a tensor does not fit its box.
        StoreFull: the store has no capacity: it needs room for one version more than it retains.
        Timeout: memory, replicas or other shards were not there in time.
        UnsupportedDtype: a value is not a dense tensor, or is on device meta.

    Examples:
        >>> import torch
        >>> import hoplite.torch as ht
        >>> pub = ht.publish(torch.nn.Linear(2, 2), "published/1")
        >>> pub.version, pub.nbytes
        (1, 128)
    """
    version = Version.of(name)
    deadline = Deadline(timeout)
    bytes_each = None if bucket is None else aligned(check_size("bucket", bucket))
    rank, count, boxes = _shards(shards)
    earlier = None if base is None else Version.of(base)
    if earlier is not None and (earlier.prefix != version.prefix or earlier.number >= version.number):
        raise InvalidArgument(f"base is {base}: pass an earlier version under {version.prefix}")
    tensors = read(source)
    with paused_collector():
        sources = Sources(tensors, check_dtype(dtype), boxes)
    client = client or hoplite.client()
    _check_newest(client, version)
    writer = _Writer(client, version, sources, rank, count, replicas, deadline)
    try:
        writer.write(
            bytes_each or max(BUCKET_BYTES, aligned(sources.nbytes // BUCKETS_MAX)), digest=digest, base=earlier
        )
        writer.commit(retain)
    except BaseException:
        writer.discard()
        raise
    if rank == 0 and retain is not None:
        # The version exists even if the time is up. The next publication prunes the rest.
        with contextlib.suppress(Timeout):
            prune(client, version, deadline)
    return Publication(Ref(version.name, client), version.number, sources.nbytes, writer.sent)


def _shards(shards: Any) -> tuple[int, int, Any]:  # noqa: ANN401 - of the caller
    if shards is None:
        return 0, 1, None
    try:
        rank, count, boxes = shards if len(shards) == 3 else (*shards, None)
        is_valid = 0 <= rank < count <= SHARDS_MAX
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise InvalidArgument(
            f"shards is {str(shards)[:100]}: pass the rank, the number of publishers, and the boxes by name"
        )
    return int(rank), int(count), boxes


def _check_newest(client: Client, version: Version) -> None:
    try:
        newest = client.latest(version.prefix, timeout=0).number
    except Timeout:
        return
    if newest == version.number:
        raise NameTaken(f"{version.name} exists already: publish a higher version")
    if newest > version.number:
        raise InvalidArgument(
            f"{version.name} would go back: {version.prefix}{newest} exists, and receivers take the highest; publish a "
            "higher version"
        )


class _Writer:
    """One publication while it is put."""

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
            version.number, secrets.token_hex(8), sources.nbytes, sources.entries, [], [], rank, count
        )
        # What to delete if the publication fails.
        self._put: list[str] = []
        self._text = bytearray()
        # Id of the first shard, which this shard belongs to.
        self._of = ""
        self.sent = 0

    def write(self, bucket: int, *, digest: bool, base: Version | None) -> None:
        """Puts the announcement and the data."""
        nbytes, rank = self._sources.nbytes, self._manifest.shard
        found = None if base is None else Base.find(self._client, base, self._sources, rank, self._deadline)
        if nbytes <= INLINE_BYTES_MAX:
            self._write_inline(digest=digest)
        elif found is None:
            self._write_whole(bucket, digest=digest)
        else:
            self._write_delta(Delta(found), bucket, digest=digest)

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
            self._write(each, partial(self._sources.copy, first=index * bucket), digest=digest)
            for index, each in enumerate(sources)
        ]
        if digest:
            self._manifest.sources = put
            self._announce()

    def _write_delta(self, delta: Delta, bucket: int, *, digest: bool) -> None:
        nbytes = self._sources.nbytes
        for first in range(0, nbytes, bucket):
            memory = bytearray(min(bucket, nbytes - first))
            self._sources.copy(memory, first)
            pieces = delta.pieces(Typed(memory), first)
            new = None
            if pieces:
                ref = str(self._client.reserve())
                self._put.append(ref)
                changed = torch.cat(pieces)
                new = self._write(Source(ref, changed.numel()), partial(_copy, changed), digest=digest)
            delta.add(new)
        self._manifest.sources, self._manifest.extents = delta.sources, delta.extents
        self._announce()

    def _write(self, source: Source, fill: Callable[[Any], object], *, digest: bool) -> Source:
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
            drop(self._client, [name], self._deadline)
            self._put_text(name, text)
        self._put.append(name)

    def _put_text(self, name: str, text: bytearray, retain: int | None = None) -> None:
        left = self._deadline.left()
        self._client.put(text, name=name, replicas=self._replicas, retain=retain, timeout=left)

    def commit(self, retain: int | None) -> None:
        """Puts the manifest of the complete version, once all shards have their data in the store."""
        if self._manifest.shard > 0:
            self._wait_for_commit()
            return
        for rank in range(1, self._manifest.shards):
            self._wait_for_shard(self._version.shard(rank, self._manifest.id))
        self._put_text(self._version.name, self._text, retain)

    def _wait_for_shard(self, name: str) -> None:
        """Waits until the data of another rank is complete.

        Raises:
            ObjectLost: that rank failed.
        """
        left = self._deadline.left
        refs = parse_refs(self._client.get(name, timeout=left()), name)
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
        with contextlib.suppress(HopliteError):
            self._client.delete(self._put, timeout=5.0)


def _copy(data: Any, memory: Any) -> None:  # noqa: ANN401 - a tensor and a buffer
    Typed(memory).data.copy_(data)
