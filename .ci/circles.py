#!/usr/bin/env python3
"""Fails if files of a crate import each other circularly, and prints each circle.

Arguments are folders of crates; the default is all crates of the workspace. A file imports another if a path in it
leads there: `use crate::engine::facts::Facts`, `use super::{peers::Peers}`, `crate::frame::crc(...)`. A name that a
`mod.rs` re-exports leads to that `mod.rs`. Test modules at the end of a file do not count. cargo-modules would resolve
paths exactly, but takes minutes to install and reports modules, not files.
"""

import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

TESTS = re.compile(r"^#\[cfg\((?:all\()?test[^\n]*\]\n(?:#\[.*\]\n)*mod \w+ \{.*", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"//.*")
USE = re.compile(r"\buse ((?:crate|self|super)\b[^;]*);")
INLINE = re.compile(r"(?<![\w:])((?:crate|super)(?:::\w+)+)")


def branches(tree: str) -> Iterator[list[str]]:
    """Splits a use tree into its paths: `a::{b, c::d}` has `a::b` and `a::c::d`."""
    prefix, brace, rest = tree.partition("{")
    path = [part.split(" as ")[0].strip() for part in prefix.split("::") if part.strip()]
    if not brace:
        yield path
        return
    depth, begin, inside = 0, 0, rest.rpartition("}")[0]
    for at, sign in enumerate(inside + ","):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and not depth:
            if inside[begin:at].strip():
                yield from ([*path, *branch] for branch in branches(inside[begin:at]))
            begin = at + 1


def modules(source: Path) -> dict[tuple[str, ...], Path]:
    """Maps the path of each module that has a file to that file; the root's path is empty."""
    found = {}
    for file in source.rglob("*.rs"):
        parts = file.relative_to(source).with_suffix("").parts
        found[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = file
    return found


def imports(module: tuple[str, ...], text: str, known: dict[tuple[str, ...], Path]) -> set[tuple[str, ...]]:
    """Returns the modules whose files a file imports."""
    text = COMMENT.sub("", TESTS.sub("", text))
    paths = [path for tree in USE.findall(text) for path in branches(tree)]
    paths += [path.split("::") for path in INLINE.findall(USE.sub("", text))]
    targets = set()
    for path in paths:
        base = {"crate": (), "self": module, "super": module[:-1]}[path[0]]
        whole = (*base, *(part for part in path[1:] if part != "self"))
        while whole not in known:
            whole = whole[:-1]
        targets.add(whole)
    return targets - {module}


def circle(source: Path) -> list[str]:
    """Finds files of a crate that import each other circularly.

    Args:
        source: The folder of the crate's sources.

    Returns:
        Their paths under `source`, with the first repeated at the end; empty if there is no circle.
    """
    known = modules(source)
    graph = {module: imports(module, file.read_text(), known) for module, file in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(known[module].relative_to(source)) for module in error.args[1]]
    return []


def main() -> int:
    """Checks the crates named on the command line, or all."""
    crates = [Path(crate) for crate in sys.argv[1:]]
    members = [*Path("crates").iterdir(), *(manifest.parent for manifest in Path("packages").glob("*/Cargo.toml"))]
    crates = crates or sorted(members)
    found = {crate: files for crate in crates if (files := circle(crate / "src"))}
    for crate, files in found.items():
        sys.stderr.write(f"{crate}: circular imports: {' <- '.join(files)}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
