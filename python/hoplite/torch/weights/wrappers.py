"""Modules that wrap others, and the prefixes that they add to the names of tensors. Does not know clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

# Added by torch.compile, and by FSDP and activation checkpointing to parts of a module.
_ADDED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

# Added by data parallelism. A user's module may have an attribute of that name, too.
_MODULE = "module"


def unwrapped(module: Any) -> Any:
    """Returns the module inside of torch.compile and data parallelism."""
    parallel: list[Any] = [torch.nn.DataParallel]
    if torch.distributed.is_available():
        parallel.append(torch.nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(module, tuple(parallel)):
            module = module.module  # type: ignore[attr-defined]
        elif _is_compiled(module):
            module = module._orig_mod
        else:
            return module


def _is_compiled(module: Any) -> bool:
    # By name: the import of torch._dynamo takes longer than that of torch.
    return any(
        each.__name__ == "OptimizedModule" and each.__module__.startswith("torch.") for each in type(module).__mro__
    )


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Returns names of tensors without the prefixes that torch.compile, FSDP and checkpointing add, by the names."""
    found = {name: plain_name(name) for name in names}
    # A user's module has attributes of these names, next to others.
    return found if len(set(found.values())) == len(found) else {name: name for name in found}


def plain_name(name: str) -> str:
    """Returns a name without these prefixes."""
    if not any(each in name for each in _ADDED):
        return name
    return ".".join(each for each in name.split(".") if each not in _ADDED)


def hint(given: Iterable[str], known: Iterable[str]) -> str:
    """Returns how to change names so that they fit, if only prefixes of wrappers differ; otherwise empty text."""
    ours, theirs = set(given), set(known)
    if not ours - theirs:
        return ""
    bare_ours, bare_theirs = ({_bare(name) for name in names} for names in (ours, theirs))
    added = next((each for each in (*_ADDED, _MODULE) if _has(each, ours ^ theirs)), None)
    if added is None or not (bare_ours <= bare_theirs or bare_theirs <= bare_ours):
        return ""
    return f'; the names differ by "{added}.", which a wrapper adds: pass the module inside of it on both sides'


def _bare(name: str) -> str:
    return ".".join(each for each in name.split(".") if each not in (*_ADDED, _MODULE))


def _has(added: str, names: Iterable[str]) -> bool:
    return any(added in name.split(".") for name in names)
