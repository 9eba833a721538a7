"""What `fetch` returns: the tensors of a version, or a version in host memory that has yet to be switched to.

Each result knows whether its tensors still hold its version, as a later fetch or switch into their memory marks it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hoplite import HopliteError, InvalidArgument
from hoplite.torch.weights.loaders import load_parts
from hoplite.torch.weights.sharing import do_overlap, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hoplite.torch.weights.boxes import Box
    from hoplite.torch.weights.manifest import Manifest
    from hoplite.torch.weights.placing import Placement
    from hoplite.torch.weights.sharing import Span


# What the tensors are after a fetch or a switch that failed midway.
MIXED = "the tensors are a mix of versions: fetch again before you use them"
MIXED_BY_SWITCH = "the tensors are a mix of versions: call switch again, or fetch, before you use them"


def state(error: BaseException, what: str) -> None:
    """Adds to an error what the tensors are now."""
    if isinstance(error, HopliteError):
        error.args = (f"{error}; {what}",)
    else:
        error.add_note(what)


# What the program still has, to mark what is replaced.
_contents: weakref.WeakSet[Content] = weakref.WeakSet()
_lock = threading.Lock()


class Content:
    """What tensors hold, until something else is copied into their memory.

    Attributes:
        is_current: whether nothing was copied into them since.

    Args:
        name: name of the version that they hold.
        tensors: the tensors.
        earlier: what the same tensors held before; None if unknown.
    """

    def __init__(self, name: str, tensors: Mapping[str, Any], earlier: Content | None = None) -> None:
        self.name = name
        self.is_current = True
        self._spans: list[Span] = spans(tensors) if earlier is None else earlier._spans
        addresses = (span[:2] for span in self._spans)
        self._addresses: frozenset[Any] = frozenset(addresses) if earlier is None else earlier._addresses
        with _lock:
            _contents.add(self)

    def is_in(self, other: Content) -> bool:
        """Whether this is still in the tensors of another content, at the same addresses."""
        return self.is_current and self._spans == other._spans

    def replace(self) -> None:
        """Marks all content of the same memory, before something else is copied into it."""
        with _lock:
            others = list(_contents)
        for other in others:
            # The tensors of one module have the same addresses. A search takes longer, with many tensors.
            if other.is_current and (
                not self._addresses.isdisjoint(other._addresses) or do_overlap(self._spans, other._spans)
            ):
                other.is_current = False


class Weights(Mapping[str, Any]):
    """The tensors of one version, by name.

    With `into`, they are the tensors of the module, and a later fetch changes them. Pass this as `after=` of the next
    fetch into the same module: it then brings only what changed since.

    Attributes:
        version: number of the version.
        name: name of the version, such as "policy/17".
        manifest: names, shapes, dtypes and digests of the publication.

    Args:
        name: name of the version.
        manifest: its manifest.
        tensors: the tensors.
        boxes: what they have of each whole tensor; None for all of it.
        content: what the same tensors held before; None if unknown.
    """

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        tensors: dict[str, Any],
        boxes: Mapping[str, Box | None] | None = None,
        content: Content | None = None,
    ) -> None:
        self.name = name
        self.version = manifest.version
        self.manifest = manifest
        self._tensors = tensors
        self._boxes = boxes
        self._content = Content(name, tensors, content)

    def _is_in(self, placement: Placement, content: Content) -> bool:
        """Whether the tensors of another fetch are these, and have the same slices of the whole tensors.

        Args:
            placement: the other fetch.
            content: of its tensors, where they are now: the program may have given a parameter other memory.
        """
        others = placement.tensors
        return (
            self._content.is_in(content)
            and self._boxes == placement.boxes
            and self._tensors.keys() == others.keys()
            and all(_is_same(tensor, others[name]) for name, tensor in self._tensors.items())
        )

    def load(self, load: Callable[[Any], Any]) -> Any:
        """Runs a loader of whole tensors with these, also if they are parts: it is given what it reads of them.

        Args:
            load: called with pairs of a name and a tensor, such as `load_weights` of a model of vLLM or SGLang. It may
                read what `record` has found, and runs in this thread. Outside of operations on them, the tensors that
                it gets have shapes and no memory.

        Returns:
            What it returns.

        Raises:
            HopliteError: it reads elements that are not here, or the tensors are those of another version now.
            InvalidArgument: it looks at values, or changes the tensors that it gets.
        """
        if not self._content.is_current:
            raise HopliteError(f"the tensors of {self.name} were filled with another version since: load that one")
        return load_parts(load, self.manifest, self._tensors, self._boxes or {})

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<hoplite.torch.Weights {self.name}: {len(self)} tensors>"


def _is_same(one: Any, other: Any) -> bool:
    """Whether two tensors are the same memory."""
    return (one.data_ptr(), one.shape, one.stride(), one.dtype, one.device) == (
        other.data_ptr(),
        other.shape,
        other.stride(),
        other.dtype,
        other.device,
    )


class Staged:
    """A version in host memory, complete, while the module still has the one before.

    Attributes:
        version: number of the version.
        name: name of the version, such as "policy/17".
        manifest: names, shapes, dtypes and digests of the publication.
        nbytes: bytes in host memory.

    Args:
        name: name of the version.
        manifest: its manifest.
        placement: where the tensors are, with all copies prepared.
        base: what the tensors hold, if only the changes since then are in host memory.
    """

    def __init__(self, name: str, manifest: Manifest, placement: Placement, base: Content | None = None) -> None:
        self.name = name
        self.version = manifest.version
        self.manifest = manifest
        self.nbytes = placement.staged_bytes
        self._placement: Placement | None = placement
        self._base = base
        self.weights: Weights | None = None

    def switch(self) -> float:
        """Copies the version into the module, and frees the host memory.

        After it, `weights` is what `fetch(into=module)` would have returned.

        Returns:
            The seconds that it took, with copies to other devices complete.

        Raises:
            InvalidArgument: it was switched to, or discarded, before; or it is what changed since another version, as
                with `after`, and another fetch or switch has changed the tensors since. They stay as they are.
            HopliteError: torch can't copy a tensor. The module has a mix of versions until another `switch` succeeds.
        """
        placement = self._placement
        if placement is None:
            raise InvalidArgument(f"{self.name} was switched to or discarded before: fetch the next version")
        if self._base is not None and not self._base.is_current:
            raise InvalidArgument(
                f"{self.name} was staged as what changed since {self._base.name}, and the tensors have another version "
                "now: call discard, and fetch again"
            )
        begun = time.perf_counter()
        try:
            placement.switch()
        except BaseException as error:
            if self._base is not None:
                # Another switch completes the mix, unless another fetch has replaced it.
                self._base = Content(self._base.name, placement.tensors)
            state(error, MIXED_BY_SWITCH)
            raise
        seconds = time.perf_counter() - begun
        self._placement = None
        self.weights = Weights(self.name, self.manifest, placement.tensors, placement.boxes)
        return seconds

    def discard(self) -> None:
        """Frees the host memory, and leaves the module as it is."""
        self._placement = None

    def __repr__(self) -> str:
        return f"<hoplite.torch.Staged {self.name}: {self.nbytes} bytes>"
