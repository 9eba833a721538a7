"""Generates docs/api.md from the docstrings of hoplite and of labs. griffe reads them without importing anything.

`python docs/api.py` writes the page; `python docs/api.py --check` fails if the page is not current. `hoplite.__all__`
and leading underscores define which names are public. All text except a few headings comes from docstrings.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "api.md"

OPENING = """\
# API reference

The public API of the package `hoplite`, and of the labs of hoplite-bench. `make docs` generates this page from the
docstrings: edit those instead.
[Concepts](concepts.md) defines the terms. The [quickstart](quickstart.md) is the place to start.
"""

ASYNCIO = """\
Each verb has an asyncio twin with the suffix `_async`, the same arguments and the same result. It blocks no thread
while it waits. A thread copies the bytes of a large object, so that the event loop continues to run. Canceling the
call cancels the request. The list states all other differences.\
"""

# A signature longer than this has one parameter per line.
SIGNATURE_WIDTH = 100

# The method whose signature is the signature of its class.
CONSTRUCTOR = "__init__"


def page() -> str:
    """Returns the whole page."""
    package = read("hoplite", ROOT / "python")
    of_lab = read("hoplite_bench", ROOT / "packages" / "bench" / "python")["lab"]
    errors: list[griffe.Class] = []
    classes: list[griffe.Class] = []
    functions: list[griffe.Function] = []
    for name in package.exports or []:
        member = target(package[str(name)])
        if isinstance(member, griffe.Class):
            (errors if member.module.name == "errors" else classes).append(member)
        elif isinstance(member, griffe.Function):
            functions.append(member)
    functions.sort(key=lambda function: (function.module.path, function.lineno or 0))
    testing = [
        member
        for member in package["testing"].members.values()
        if not member.is_alias
        and not member.name.startswith("_")
        and isinstance(member, griffe.Class | griffe.Function)
    ]
    status = [member for member in package["node_status"].members.values() if isinstance(member, griffe.Class)]
    activity = [member for member in package["activity"].members.values() if isinstance(member, griffe.Class)]
    listing = [member for member in package["listing"].members.values() if isinstance(member, griffe.Class)]
    lab = [target(of_lab[name]) for name in ("Lab", "Link", "Host", "Rack", "Pod", "Moved", "LabError")]
    on_dask = [
        *(target(package["dask"][name]) for name in ("install", "uninstall", "scatter", "replicate", "reduce", "ref")),
        target(package["dask.installation.Installation"]),
    ]
    checkpoint = package["torch.checkpoint"]
    body = [
        *(block for member in (*functions, *classes) for block in document(member, "hoplite.", 2)),
        "## asyncio",
        ASYNCIO,
        "\n".join(line for one in classes for line in twins(one)),
        *error_table(errors),
        "## `hoplite.node_status`",
        text(package["node_status"]),
        *(block for member in status for block in document(member, "hoplite.node_status.", 3)),
        "## `hoplite.activity`",
        text(package["activity"]),
        *(block for member in activity for block in document(member, "hoplite.activity.", 3)),
        "## `hoplite.listing`",
        text(package["listing"]),
        *(block for member in listing for block in document(member, "hoplite.listing.", 3)),
        "## `hoplite.testing`",
        text(package["testing"]),
        *(block for member in testing for block in document(member, "hoplite.testing.", 3)),
        "## `hoplite.dask`",
        text(package["dask"]),
        *(block for member in on_dask for block in document(member, "hoplite.dask.", 3)),
        "## `hoplite.proxystore`",
        text(package["proxystore"]),
        *document(package["proxystore.HopliteConnector"], "hoplite.proxystore.", 3),
        "## `hoplite.torch.checkpoint`",
        text(checkpoint),
        *(
            block
            for name in ("HopliteWriter", "HopliteReader", "delete")
            for block in document(target(checkpoint[name]), "hoplite.torch.checkpoint.", 3)
        ),
        "## `hoplite.torchft`",
        text(package["torchft"]),
        *document(target(package["torchft.HopliteTransport"]), "hoplite.torchft.", 3),
        "## `hoplite.torchrl`",
        text(package["torchrl"]),
        *document(target(package["torchrl.HopliteWeightSyncScheme"]), "hoplite.torchrl.", 3),
        "## `hoplite.vllm`",
        text(package["vllm"]),
        *document(target(package["vllm"]["HopliteTrainerInitInfo"]), "hoplite.vllm.", 3),
        *document(target(package["vllm"]["load"]), "hoplite.vllm.", 3),
        *document(target(package["vllm"]["register"]), "hoplite.vllm.", 3),
        "## `hoplite.sglang`",
        text(package["sglang"]),
        *(
            block
            for name in ("HopliteWeightTransfer", "load", "load_weights")
            for block in document(target(package["sglang"][name]), "hoplite.sglang.", 3)
        ),
        "## `hoplite.trl`",
        text(package["trl"]),
        *document(package["trl.HopliteWeightTransfer"], "hoplite.trl.", 3),
        "## `hoplite.verl`",
        text(package["verl"]),
        *document(package["verl.HopliteCheckpointEngine"], "hoplite.verl.", 3),
        "## `hoplite_bench.lab`",
        text(of_lab),
        *(block for member in lab for block in document(member, "hoplite_bench.lab.", 3)),
    ]
    return "\n\n".join([OPENING.rstrip(), contents(body), *body]) + "\n"


def read(package: str, folder: Path) -> griffe.Object:
    """Reads a package."""
    loaded = griffe.load(
        package,
        search_paths=[folder],
        allow_inspection=False,
        docstring_parser="google",
        docstring_options={"returns_named_value": False, "returns_multiple_items": False, "warnings": False},
    )
    return target(loaded)


def twins(member: griffe.Class) -> Iterator[str]:
    """Yields a line for each asyncio verb of a class, which states only the differences."""
    for name, verb in everything(member).items():
        if isinstance(verb, griffe.Function) and name.endswith("_async") and not name.startswith("_"):
            assert verb.docstring is not None
            notes = [
                part.value for part in verb.docstring.parsed if part.kind is griffe.DocstringSectionKind.admonition
            ]
            more = "".join(f" {flow(note.description)}" for note in notes if note.kind == "asyncio")
            yield f"- `{member.name}.{name}`: `{name.removesuffix('_async')}`, for asyncio.{more}"


def everything(member: griffe.Class) -> dict[str, griffe.Object | griffe.Alias]:
    """Returns the members of a class: its own, then those that it inherits from classes of private modules."""
    found = dict(member.members)
    for base in member.mro():
        if "._" in base.module.path:
            found |= {name: one for name, one in base.members.items() if name not in found}
    return found


def target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    """Resolves an imported name to its definition."""
    return member.final_target if isinstance(member, griffe.Alias) else member


def contents(blocks: list[str]) -> str:
    """Returns links to the headings: one line for each of the second level, with those of lower levels."""
    lines: list[str] = []
    seen: Counter[str] = Counter()
    for block in blocks:
        if match := re.match(r"(##+) (.*)$", block):
            title = match[2].strip("`")
            anchor = re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")
            # Code hosts number repeated anchors: those of `hoplite.client` and `hoplite.Client` differ in case only.
            repeated = f"-{seen[anchor]}" if seen[anchor] else ""
            seen[anchor] += 1
            link = f"[{title.removeprefix('hoplite.')}](#{anchor}{repeated})"
            if len(match[1]) == 2:
                lines.append(f"- {link}")
            else:
                lines[-1] += (": " if lines[-1].count("](") == 1 else ", ") + link
    return "\n".join(lines)


def document(member: griffe.Object, prefix: str, level: int) -> Iterator[str]:
    """Yields the blocks of a function or class: heading, signature, text, sections, members."""
    yield f"{'#' * level} `{prefix}{member.name}`"
    if isinstance(member, griffe.Function):
        before = "@contextmanager\n" if any("contextmanager" in str(one.value) for one in member.decorators) else ""
        yield code(before + signature(member, member.name))
        yield from sections(member)
    elif isinstance(member, griffe.Class):
        constructor = member.members.get(CONSTRUCTOR)
        has_constructor = isinstance(constructor, griffe.Function) and is_public(constructor)
        if isinstance(constructor, griffe.Function) and has_constructor:
            yield code(signature(constructor, member.name))
        yield from sections(member, arguments=has_constructor)
    if isinstance(member, griffe.Class):
        yield from properties(member)
        for method in public_methods(member):
            yield from document(method, f"{member.name}.", level + 1)


def is_public(constructor: griffe.Function) -> bool:
    """Whether users can call a constructor: not if it takes a type that is private to the package."""
    own = re.compile(r"_native|\bRecord\b|\bKeeper\b")
    return not any(own.search(str(parameter.annotation)) for parameter in constructor.parameters)


def public_methods(member: griffe.Class) -> list[griffe.Function]:
    """Returns public methods in source order, without special methods and properties."""
    return [
        method
        for name, method in everything(member).items()
        if isinstance(method, griffe.Function) and method.docstring is not None
        if not name.startswith("_") and not name.endswith("_async")
    ]


def properties(member: griffe.Class) -> Iterator[str]:
    """Yields properties, and fields with a docstring, as one list."""
    lines = [
        f"- `{attribute.name}` (`{attribute.annotation}`): {flow(attribute.docstring.parsed[0].value)}"
        for attribute in everything(member).values()
        if isinstance(attribute, griffe.Attribute) and not attribute.name.startswith("_") and attribute.docstring
    ]
    if lines:
        yield "Properties:\n\n" + "\n".join(lines)


def signature(function: griffe.Function, name: str) -> str:
    """Returns the signature of a function, on one line or with one parameter per line."""
    parts: list[str] = []
    keyword_only = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not keyword_only:
            keyword_only = True
            parts.append("*")
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        annotation = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = f" = {parameter.default}" if parameter.default is not None and not star else ""
        parts.append(f"{star}{parameter.name}{annotation}{default}")
    returns = f" -> {function.returns}" if function.returns is not None and name == function.name else ""
    before = "async " if "async" in function.labels else ""
    line = f"{before}{name}({', '.join(parts)}){returns}"
    if len(line) <= SIGNATURE_WIDTH:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{before}{name}(\n{inner}){returns}"


def code(text: str) -> str:
    """Returns a code block with syntax highlighting. Tests do not run it, because it is not a program."""
    return f"```py\n{text}\n```"


def text(member: griffe.Object) -> str:
    """Returns a docstring without sections."""
    assert member.docstring is not None, f"{member.path} has no docstring"
    return member.docstring.value


def sections(member: griffe.Object, *, arguments: bool = True) -> Iterator[str]:
    """Yields the sections of a docstring."""
    assert member.docstring is not None, f"{member.path} has no docstring"
    kinds = griffe.DocstringSectionKind
    for section in member.docstring.parsed:
        value: Any = section.value
        match section.kind:
            case kinds.text:
                yield value
            case kinds.parameters:
                if arguments:
                    yield "Arguments:\n\n" + "\n".join(f"- `{item.name}`: {flow(item.description)}" for item in value)
            case kinds.attributes:
                yield "Properties:\n\n" + "\n".join(f"- `{item.name}`: {flow(item.description)}" for item in value)
            case kinds.returns:
                yield f"Returns: {flow(' '.join(item.description for item in value))}"
            case kinds.yields:
                yield f"Yields: {flow(' '.join(item.description for item in value))}"
            case kinds.raises:
                yield "Raises:\n\n" + "\n".join(f"- `{item.annotation}`: {flow(item.description)}" for item in value)
            case kinds.examples:
                yield "\n\n".join(f"```pycon\n{body}\n```" if kind is kinds.examples else body for kind, body in value)
            case kinds.admonition:
                yield f"{value.kind.capitalize()}: {flow(value.description)}"
            case other:
                raise ValueError(
                    f"{member.path} has a section of kind {other.value}, which docs/api.py does not support"
                )


def error_table(errors: list[griffe.Class]) -> Iterator[str]:
    """Yields the table of errors: name, bases, meaning."""
    yield "## Errors"
    rows = []
    for error in errors:
        bases = ", ".join(f"`{base}`" for base in error.bases if str(base) not in ("Exception", "HopliteError"))
        rows.append(f"| `{error.name}` | {bases} | {flow(text(error))} |")
    yield "Each error is a subclass of `hoplite.HopliteError`, and of the built-in exceptions in the second column."
    yield "\n".join(["| error | built-in bases | meaning |", "| --- | --- | --- |", *rows])


def flow(text: str) -> str:
    """Joins the lines of a paragraph, for list items and table cells."""
    return " ".join(text.split())


def main() -> int:
    """Writes the page, or checks that it is current."""
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
        return 0
    if PAGE.read_text() == wanted:
        return 0
    sys.stderr.write(f"{PAGE.relative_to(ROOT)} does not match the docstrings: run make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
