"""The order of tensors in the flat space, by who wants them: what the same receivers want is stored together.

Receivers with tensor parallelism want rows of some tensors and columns of others. Columns of a tensor are spread over
all of its bytes, so each is stored as a piece of its own. A receiver then brings whole objects, and relays them to
others that want the same. Does not know clients, and copies nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite import InvalidArgument
from hoplite.torch.weights.boxes import boxed, common, slices
from hoplite.torch.weights.sources import Piece

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from hoplite.torch.weights.boxes import Box


class Arranged(NamedTuple):
    """Pieces of tensors in the order in which they are stored.

    Attributes:
        pieces: the pieces.
        runs: number of pieces in each run that the same receivers want.
    """

    pieces: list[Piece]
    runs: list[int]


def arranged(pieces: Iterable[Piece], layouts: Sequence[Mapping[str, Any]], run_bytes: int) -> Arranged:
    """Cuts tensors where receivers cut them, and orders the pieces by who wants them.

    The order of the tensors stays but for runs, so that receivers can still begin with the first layers.

    Args:
        pieces: the tensors, or parts of them.
        layouts: what each receiver wants, as `fetch` takes it.
        run_bytes: how long a run becomes, in bytes, before it is stored.

    Raises:
        InvalidArgument: the slices of a layout are not valid.
    """
    found: list[Piece] = []
    runs: list[int] = []
    waiting: dict[frozenset[int], list[Piece]] = {}
    nbytes: dict[frozenset[int], int] = {}
    for piece in pieces:
        for part, who in _parts(piece, layouts):
            waiting.setdefault(who, []).append(part)
            nbytes[who] = nbytes.get(who, 0) + part.tensor.numel() * part.tensor.element_size()
            if nbytes[who] >= run_bytes:
                ready = waiting.pop(who)
                del nbytes[who]
                found += ready
                runs.append(len(ready))
    for ready in waiting.values():
        found += ready
        runs.append(len(ready))
    return Arranged(found, runs)


def check_layouts(layouts: Any, names: Container[str] | None) -> Sequence[Mapping[str, Any]]:
    """Returns layouts of receivers.

    Args:
        layouts: the layouts.
        names: names of all tensors; None if they are not known.

    Raises:
        InvalidArgument: they are not a list of mappings, or name a tensor that there is not.
    """
    try:
        found = list(layouts)
        if isinstance(layouts, dict) or not all(hasattr(each, "get") for each in found):
            raise TypeError
    except TypeError:
        raise InvalidArgument(
            f"layouts is a {type(layouts).__name__}: pass a list with the layout of each receiver, as fetch takes it"
        ) from None
    unknown = [name for layout in found for name in layout if names is not None and name not in names]
    if unknown:
        raise InvalidArgument(f"layouts names {unknown[0]!r}, and there is no such tensor: list the names published")
    return found


def _parts(piece: Piece, layouts: Sequence[Mapping[str, Any]]) -> list[tuple[Piece, frozenset[int]]]:
    """Returns the parts of a piece, each with the receivers that want it."""
    own = piece.box
    wanted: dict[tuple[tuple[int, int], ...], set[int]] = {}
    for receiver, layout in enumerate(layouts):
        if piece.name in layout:
            box = common(own, boxed(piece.name, layout[piece.name], piece.full))
            if all(start < stop for start, stop in box):
                wanted.setdefault(tuple(box), set()).add(receiver)
    if not wanted or not _are_tiles([list(box) for box in wanted], own):
        # Parts that overlap, or that nobody wants: the tensor stays as it is.
        return [(piece, frozenset().union(*wanted.values()))]
    found = []
    for key, who in sorted(wanted.items()):
        box = list(key)
        view = piece.tensor[slices(box, own)] if piece.tensor.dim() else piece.tensor
        found.append((Piece(piece.name, view, box, piece.full), frozenset(who)))
    return found


def _are_tiles(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes cover a box, and no two of them have an element in common."""

    def volume(box: Box) -> int:
        return math.prod(stop - start for start, stop in box)

    if sum(map(volume, boxes)) != volume(whole):
        return False
    pairs = ((one, other) for index, one in enumerate(boxes) for other in boxes[:index])
    return not any(volume([(low, max(low, high)) for low, high in common(*pair)]) for pair in pairs)
