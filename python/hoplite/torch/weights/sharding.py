"""Tensors that are sharded over the ranks of a mesh (DTensor): which part of each this rank has, and who publishes it.

A rank computes its box from the mesh and the placements. Does not know clients.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import ItemsView, Mapping
from typing import Any, NamedTuple

import torch

from hoplite import InvalidArgument

KEY_BYTES = 16


class Part(NamedTuple):
    """What this rank has of a tensor.

    Attributes:
        tensor: the elements that are here, as a plain tensor.
        places: their slices of the whole tensor.
        full: shape of the whole tensor.
    """

    tensor: Any
    places: tuple[slice, ...]
    full: tuple[int, ...]


class Shards(NamedTuple):
    """What this rank publishes, as one of several.

    Attributes:
        rank: its rank.
        publishers: their number.
        publisher: the ref that rank 0 has reserved until the version is complete.
        tensors: the tensors by name.
        boxes: slices and shape of the whole, for each that is a part.
    """

    rank: int
    publishers: int
    publisher: str
    tensors: dict[str, Any]
    boxes: dict[str, tuple[tuple[slice, ...], tuple[int, ...]]]


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor. By its attributes: old releases of torch have it elsewhere."""
    return hasattr(type(tensor), "full_tensor") and hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def is_elsewhere(tensor: Any) -> bool:
    """Whether a tensor is a DTensor whose mesh does not have this rank."""
    return is_sharded(tensor) and tensor.device_mesh.get_coordinate() is None


def local(tensor: Any) -> Any:
    """Returns the elements of a tensor that are on this rank: of a DTensor its part, else the tensor."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        found = tensor.to_local().detach()
    # The result of a collective call that may still be in flight.
    return found.trigger_wait() if hasattr(type(found), "trigger_wait") else found


def part(name: str, tensor: Any) -> Part:
    """Returns what this rank has of a DTensor.

    Raises:
        InvalidArgument: the rank is not in its mesh; it holds partial sums; or its placements are unknown, or strided
            and uneven.
    """
    mesh, full = tensor.device_mesh, tuple(tensor.shape)
    at = mesh.get_coordinate()
    if at is None:
        raise InvalidArgument(
            f"{name} is a DTensor whose mesh does not have this rank: leave it out here; if only the ranks of the mesh "
            "publish, pass their group="
        )
    box = [(0, length) for length in full]
    for axis, mesh_axes, is_strided in _splits(name, tensor):
        for mesh_axis in mesh_axes:
            start, stop = box[axis]
            count = mesh.size(mesh_axis)
            if count > 1 and is_strided and (stop - start) % count:
                raise InvalidArgument(
                    f"axis {axis} of {name}, {list(full)}, is sharded unevenly by two axes of the mesh in reverse "
                    f"order ({tensor.placements}): pass its full_tensor(), or make the axis a multiple of the ranks"
                )
            # As torch.chunk.
            chunk = -(-(stop - start) // count)
            first = min(start + at[mesh_axis] * chunk, stop)
            box[axis] = (first, min(first + chunk, stop))
    found = local(tensor)
    if tuple(found.shape) != tuple(stop - start for start, stop in box):
        raise InvalidArgument(
            f"{name} has {list(found.shape)} on this rank, and its placements {tensor.placements} of {list(full)} mean "
            f"{box}: pass its full_tensor()"
        )
    return Part(found, tuple(slice(start, stop) for start, stop in box), full)


def _splits(name: str, tensor: Any) -> list[tuple[int, list[int], bool]]:
    """Returns the axes that are sharded, by which axes of the mesh in order, and whether that order is reversed.

    FSDP of a module that is tensor-parallel shards the parts of the other axis of the mesh, which comes behind its own.
    """
    axes: dict[int, list[int]] = {}
    factors: dict[int, int] = {}
    for index, placement in enumerate(tensor.placements):
        kind = type(placement).__name__
        if placement.is_replicate():
            continue
        if placement.is_partial():
            raise InvalidArgument(
                f"{name} is a DTensor of partial sums ({placement}): redistribute it, or pass its full_tensor()"
            )
        if kind not in ("Shard", "_StridedShard"):
            raise InvalidArgument(f"{name} has the placement {placement}, which is unknown: pass its full_tensor()")
        axis = placement.dim % tensor.dim()
        axes.setdefault(axis, []).append(index)
        if kind == "_StridedShard":
            factors[index] = placement.split_factor
    found = []
    for axis, indexes in axes.items():
        reverse = [index for index in indexes if index in factors]
        is_known = indexes[: len(reverse)] == reverse and all(
            factors[index] == math.prod(tensor.device_mesh.size(other) for other in indexes if other > index)
            for index in reverse
        )
        if not is_known:
            raise InvalidArgument(
                f"{name} has the placements {tensor.placements}, whose order is unknown: pass its full_tensor()"
            )
        found.append((axis, [*indexes[len(reverse) :], *reversed(reverse)], bool(reverse)))
    return found


def has_sharded(source: Any) -> bool:
    """Whether there are DTensors in a module, a mapping, or pairs of names and tensors."""
    if isinstance(source, torch.nn.Module):
        return any(map(is_sharded, (*source.parameters(), *source.buffers())))
    pairs = source.items() if isinstance(source, Mapping) else source
    if not isinstance(pairs, ItemsView | list | tuple):
        return False
    return any(is_sharded(each) for pair in pairs if isinstance(pair, tuple | list) for each in pair[1:])


def spread(
    version: str,
    publisher: str,
    tensors: dict[str, Any],
    parts: Mapping[str, Part],
    group: Any,
    failure: Exception | None,
) -> Shards:
    """Returns what each rank of a process group publishes. All ranks call it at the same time.

    The first rank that has a part publishes it, and so it is with any other tensor, by its name. The meshes do not show
    which rank that is: FSDP of a module that is tensor-parallel has several meshes, with the same norms.

    Args:
        version: name of the version.
        publisher: a ref that this rank has reserved until the version is complete.
        tensors: the tensors of this rank.
        parts: those that are parts, by name.
        group: the process group, or a mesh of one axis; None means the default group.
        failure: why this rank can't publish, if so.

    Raises:
        InvalidArgument: another rank can't publish, or publishes another version; or there is no such group.
        Exception: `failure`.
    """
    # Optional in torch.
    import torch.distributed as dist

    try:
        group = group.get_group() if hasattr(group, "get_group") else group
        rank, count = dist.get_rank(group), dist.get_world_size(group)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"group={group!s:.100} is no process group ({error}): pass one with its ranks") from error
    if rank < 0:
        raise InvalidArgument("this rank is not in the process group: call publish on its ranks only")
    keys = {name: _key(name, tensor, parts.get(name)) for name, tensor in tensors.items()}
    others: list[Any] = [None] * count
    why = None if failure is None else str(failure)
    dist.all_gather_object(others, (version, publisher, why, b"".join(keys.values())), group=group)
    if failure is not None:
        raise failure
    for other, (theirs, _, reason, _) in enumerate(others):
        if reason is not None:
            raise InvalidArgument(f"rank {other} can't publish its part of {theirs}: {reason}")
        if theirs != version:
            raise InvalidArgument(f"rank {other} publishes {theirs}, and rank {rank} {version}: pass the same name")
    before = {had[at : at + KEY_BYTES] for *_, had in others[:rank] for at in range(0, len(had), KEY_BYTES)}
    mine = {name: tensor for name, tensor in tensors.items() if keys[name] not in before}
    # Of a tensor that ranks share unevenly, some have nothing.
    mine = {name: tensor for name, tensor in mine.items() if tensor.numel() or not _numel(name, tensor, parts)}
    boxes = {name: (parts[name].places, parts[name].full) for name in mine if name in parts}
    return Shards(rank, count, others[0][1], mine, boxes)


def _numel(name: str, tensor: Any, parts: Mapping[str, Part]) -> int:
    """Number of elements of a whole tensor."""
    return math.prod(parts[name].full if name in parts else tensor.shape)


def _key(name: str, tensor: Any, part: Part | None) -> bytes:
    """What is the same for the same elements on other ranks only. Names would be megabytes from each rank."""
    full, box = (tensor.shape, None) if part is None else (part.full, [(at.start, at.stop) for at in part.places])
    found = repr((name, str(tensor.dtype), tuple(full), box))
    return hashlib.blake2b(found.encode(), digest_size=KEY_BYTES).digest()
