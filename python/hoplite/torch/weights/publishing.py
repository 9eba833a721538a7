"""`publish`: checks the arguments, puts the version, and deletes old ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import hoplite
from hoplite import HopliteError, InvalidArgument, NameTaken, Ref, Timeout
from hoplite._timeouts import DEFAULT, limit
from hoplite.sizes import check_size
from hoplite.torch.weights.arranging import arranged, check_layouts
from hoplite.torch.weights.manifest import SHARDS_MAX, aligned
from hoplite.torch.weights.memory import check_dtype
from hoplite.torch.weights.names import Deadline, Version
from hoplite.torch.weights.pauses import paused_collector
from hoplite.torch.weights.pruning import prune
from hoplite.torch.weights.sharding import has_sharded, spread
from hoplite.torch.weights.sources import Sources, is_read_once, read, whole
from hoplite.torch.weights.streams import BUCKETS_MAX, Stream
from hoplite.torch.weights.writing import Writer, nothing

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.torch.weights.sharding import Part, Shards

# At 1 Gbit/s a bucket takes 67 ms. Receivers begin when the first is copied, and end with the copy of the last.
BUCKET_BYTES = 8 << 20


# Ranks that publish one version do not wait for each other longer than this, unless a timeout is given.
SHARDS_TIMEOUT_S = 1800.0


class Publication(NamedTuple):
    """A version that was published.

    Attributes:
        ref: ref of its manifest. `ref.replicas` is the number of nodes that keep a copy of the version.
        version: its number.
        nbytes: bytes of its tensors.
        sent: bytes that a receiver brings; with `base`, one that has the base.
    """

    ref: Ref
    version: int
    nbytes: int
    sent: int


def publish(
    source: Any,
    name: str | Ref,
    retain: int | None = 2,
    *,
    client: Client | None = None,
    replicas: int = 1,
    bucket: int | str | None = None,
    dtype: Any = None,
    shards: Any = None,
    group: Any = None,
    layouts: Any = None,
    base: str | Ref | None = None,
    digest: bool = False,
    timeout: float | None = DEFAULT,
) -> Publication:
    """Publishes the tensors of a module as a version.

    Receivers that wait for the version take its data while it is copied. The version exists once all data is in the
    store. If this process fails before that, the previous version is still whole.

    Args:
        source: module, whose `state_dict` is published; mapping; or pairs of names and tensors. Tensors are dense, of
            any dtype that is not quantized, on any device. A view is published with its own elements only. Tensors
            that share all elements (tied parameters) are stored once. Pairs of an iterator are copied as they come:
            the next tensor may reuse the memory, and receivers start once all data is in the store. A subclass that
            torch can flatten is published as its parts, such as "weight.qdata". Names of a module have no prefixes of
            torch.compile, DDP and FSDP, and its extra state is left out.
        name: name of the version, such as "policy/17". Its number is above that of every complete version.
        retain: number of newest versions to retain, including this one. The others are deleted. None deletes nothing.
        client: client to use; None means `hoplite.client()`.
        replicas: number of nodes that keep a copy of the version, as in `Client.put`. If the cluster has fewer, this is
            logged.
        bucket: size of the data objects, such as "16MiB". None means 8 MiB, or a 1024th of the tensors if that is
            more.
        dtype: floating dtype to which tensors of float16, bfloat16, float32 and float64 are converted while they are
            copied.
        shards: rank of this publisher, number of publishers, and boxes by name. Each publisher calls this with its own
            part, and rank 0 waits for the others. A box is the slices of the part and the shape of the whole tensor.
            Tensors without a box are whole, and those of the lowest rank are taken. With DTensors in the source this is
            known: every rank of `group` calls this with its module, and puts what it is the first to have.
        group: process group whose ranks publish one version, each its own tensors. None means the default one if there
            are DTensors, and else this process alone.
        layouts: what each receiver brings, as `fetch` takes it in `layout`, such as the ranks of tensor parallelism.
            What the same ones want is stored together: each then brings what it wants and no more, also columns, and
            relays it to others that want the same. Any other layout works too.
        base: name of an earlier version, such as "policy/16". Blocks of 64 KiB that did not change since are not put
            again, and receivers that have the base bring only the elements that changed, or these blocks if that is
            less. Others bring the whole version. If names, shapes or dtypes differ from those of the base, everything
            is put. If there is no such version, this is also logged.
        digest: store the SHA-256 of each data object in the manifest. Receivers verify it before they copy a byte, and
            start once all data is in the store.
        timeout: seconds to wait for memory in the store, for the replicas and for other shards. None means no limit,
            and 30 minutes with `shards`.

    Returns:
        The publication, once it is complete.

    Raises:
        InvalidArgument: an argument is not valid, there are no elements, or a complete version has a higher number.
        ManifestInvalid: the parts of several publishers are not those of whole tensors.
        NameTaken: the version exists, or another publisher is putting it.
        ObjectLost: another publisher of this version failed.
        ShapeMismatch: a tensor does not fit its box.
        StoreFull: the store had no capacity in time; or it cannot hold this version and those that it retains until
            this one is complete, and no time would help.
        Timeout: memory, replicas or other shards were not there in time.
        UnsupportedDtype: a value is not a dense tensor with elements in memory.

    Examples:
        >>> import torch
        >>> import hoplite.torch as ht
        >>> pub = ht.publish(torch.nn.Linear(2, 2), "published/1")
        >>> pub.version, pub.nbytes
        (1, 128)
    """
    if isinstance(source, str | Ref) or not isinstance(name, str | Ref):
        raise InvalidArgument(
            f"publish got a {type(source).__name__} as source and a {type(name).__name__} as name: the signature is "
            'publish(source, name, retain=2, ...), as in publish(module, "policy/17")'
        )
    version = Version.of(name)
    bytes_each = None if bucket is None else aligned(check_size("bucket", bucket))
    if layouts is not None and is_read_once(source):
        raise InvalidArgument("layouts works with a module or a mapping: an iterator has one tensor at a time")
    if group is not None and (shards is not None or is_read_once(source)):
        raise InvalidArgument("group works with a module or a mapping, and without shards: pass one of these")
    rank, count, boxes = _shards(shards)
    is_shared = shards is None and (group is not None or has_sharded(source))
    try:
        client = client or hoplite.client()
    except HopliteError as error:
        if is_shared:
            # The others would wait for this rank.
            spread(version.name, "", {}, {}, group, error)
        raise
    found = limit(timeout, client)
    # The time includes that of reading the tensors.
    deadline = Deadline(SHARDS_TIMEOUT_S if found is None and (count > 1 or is_shared) else found)
    earlier = None if base is None else Version.of(base)
    if earlier is not None and (earlier.prefix != version.prefix or earlier.number >= version.number):
        raise InvalidArgument(f"base is {base}: pass an earlier version under {version.prefix}")
    wanted = check_dtype(dtype)
    sources: Sources | Stream
    shared: Shards | None = None
    if is_read_once(source):
        sources = Stream(source, wanted, boxes, grows=bucket is None)
        default = BUCKET_BYTES
    else:
        if is_shared:
            shared = _shared(client, version, source, group)
            rank, count, boxes = shared.rank, shared.publishers, shared.boxes
        with paused_collector():
            pieces = whole(read(source) if shared is None else shared.tensors, boxes)
            sources = Sources(pieces, dtype=wanted)
        default = max(BUCKET_BYTES, aligned(sources.nbytes // BUCKETS_MAX))
        if layouts is not None:
            # Ranks of one version have some of its tensors each.
            found_layouts = check_layouts(layouts, None if count > 1 else {piece.name for piece in pieces})
            with paused_collector():
                sources = Sources(*arranged(pieces, found_layouts, bytes_each or default), dtype=wanted)
                # Receivers without a layout begin with the first layers.
                places = {piece.name: place for place, piece in enumerate(pieces)}
                sources.entries.sort(key=lambda entry: places[entry.name])
        if count == 1 and not sources.nbytes:
            raise InvalidArgument(nothing(version.name, len(sources.entries)))
    if shared is None:
        _check_newest(client, version)
    writer = Writer(client, version, sources, rank, count, replicas, deadline, shared and shared.publisher)
    try:
        writer.write(bytes_each or default, digest=digest, base=earlier)
        writer.commit(retain)
    except BaseException:
        writer.discard()
        raise
    if rank == 0 and retain is not None:
        # The version exists even if the time is up. The next publication prunes the rest.
        with contextlib.suppress(Timeout):
            prune(client, version, retain, deadline)
    ref = Ref(version.name, client)
    ref._replicas = writer.replicas
    return Publication(ref, version.number, sources.nbytes, writer.sent)


def _shared(client: Client, version: Version, source: Any, group: Any) -> Shards:
    """Returns what this rank publishes of a source that a process group shares. No rank waits for one that fails."""
    tensors: dict[str, Any] = {}
    parts: dict[str, Part] = {}
    failure = None
    publisher = ""
    try:
        try:
            # The others notice when the client of rank 0 ends, or gives this up.
            publisher = str(client.reserve())
            _check_newest(client, version)
            with paused_collector():
                tensors = read(source, parts=parts)
        except Exception as error:  # noqa: BLE001 - also what a module raises
            failure = error
        shared = spread(version.name, publisher, tensors, parts, group, failure)
    except BaseException:
        with contextlib.suppress(HopliteError):
            if publisher:
                client.delete(publisher, timeout=0)
        raise
    if shared.rank:
        client.delete(publisher)
    return shared


def _shards(shards: Any) -> tuple[int, int, Any]:
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
