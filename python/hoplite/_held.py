"""A version of published weights in the shared memory of this host, from which tensors are copied one at a time.

All processes of a host read the same memory, and none needs memory for the whole version. Shared by the integrations of
vLLM and verl, whose loaders take any number of tensors in any order. Does not know who publishes or loads.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import torch

import hoplite
from hoplite._aside import in_own_thread
from hoplite.errors import ObjectCorrupt
from hoplite.torch import ManifestInvalid, fetch, fetch_async

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite.torch import Manifest


class Held:
    """A version that is completely on this host, until this is garbage-collected: also if it is deleted meanwhile.

    Attributes:
        name: name of the version.
        manifest: what it consists of.

    Args:
        name: name of the version, such as "policy/17".
        timeout: seconds to wait until it is here; None waits without limit.

    Raises:
        ManifestInvalid: it is not a version of published weights.
        ObjectCorrupt: its bytes do not match a digest.
        ObjectDeleted: it was deleted.
        StoreFull: this host has no capacity for it.
        Timeout: it was not here in time.
    """

    def __init__(self, name: str, timeout: float | None) -> None:
        begun = time.monotonic()
        client = hoplite.client()
        # With an empty layout, only the manifest.
        manifest = fetch(name, client=client, layout={}, timeout=timeout).manifest
        self._hold(name, manifest, client.get(_remote(manifest), timeout=_left(timeout, begun)))

    @classmethod
    async def arrived(cls, name: str, timeout: float | None) -> Held:  # noqa: ASYNC109 - as every verb
        """Returns the version once it is here, for asyncio. The arguments and errors are those of the class."""
        begun = time.monotonic()
        client = hoplite.client()
        manifest = (await fetch_async(name, client=client, layout={}, timeout=timeout)).manifest
        found = await client.get_async(_remote(manifest), timeout=_left(timeout, begun))
        held = cls.__new__(cls)
        # Digests of a large version take seconds.
        await in_own_thread(held._hold, name, manifest, found)
        return held

    def _hold(self, name: str, manifest: Manifest, found: list[Any]) -> None:
        self.name = name
        self.manifest = manifest
        sources = manifest.sources
        remote = [index for index in range(len(sources)) if index not in manifest.inline]
        self._data: dict[int, Any] = {**manifest.inline, **dict(zip(remote, found, strict=True))}
        self._ats = [extent.at for extent in self.manifest.extents]
        for index, source in enumerate(sources):
            data = self._data[index]
            if not isinstance(data, memoryview) or data.nbytes != source.nbytes:
                raise ManifestInvalid(f"an object of {name} is not {source.nbytes} bytes: publish the next version")
            if source.digest is not None and hashlib.sha256(data).hexdigest() != source.digest:
                raise ObjectCorrupt(f"the SHA-256 of an object of {name} differs: publish the next version")

    def tensors(self, device: Any) -> Iterator[tuple[str, Any]]:
        """Yields pairs of a name and a tensor, in the order of the publisher. Each is a private copy on a device."""
        device = torch.device(device)
        shards: dict[str, list[Any]] = {}
        for entry in self.manifest.entries:
            shards.setdefault(entry.name, []).append(entry)
        for name, entries in shards.items():
            if entries[0].begin is None:
                yield name, self._tensor(entries[0], device)
                continue
            whole = torch.empty(entries[0].full, dtype=getattr(torch, entries[0].dtype), device=device)
            for entry in entries:
                ends = zip(entry.begin, entry.shape, strict=True)
                whole[tuple(slice(begin, begin + count) for begin, count in ends)] = self._tensor(entry, device)
            yield name, whole

    def _tensor(self, entry: Any, device: Any) -> Any:
        # From pinned memory, a GPU copies at the speed of the bus.
        data = torch.empty(entry.nbytes, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
        here = memoryview(data.numpy())
        end = entry.offset + entry.nbytes
        # The extents are in order and without gaps.
        index = max(0, bisect_right(self._ats, entry.offset) - 1)
        for at, nbytes, source, start in self.manifest.extents[index:]:
            if at >= end:
                break
            first, last = max(at, entry.offset), min(at + nbytes, end)
            piece = self._data[source][start + first - at : start + last - at]
            here[first - entry.offset : last - entry.offset] = piece
        return data.view(getattr(torch, entry.dtype)).view(entry.shape).to(device)


def _remote(manifest: Manifest) -> list[str]:
    """Refs of the objects that are not behind the manifest."""
    return [source.ref for index, source in enumerate(manifest.sources) if index not in manifest.inline]


def _left(timeout: float | None, begun: float) -> float | None:
    return None if timeout is None else max(0.0, timeout - (time.monotonic() - begun))
