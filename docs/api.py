"""Writes docs/api.md from the docstrings of hoplite and of labs; griffe reads them, without importing anything.

`python docs/api.py` writes the page, `python docs/api.py --check` fails if it is not what would be written. Knows what
is public by `hoplite.__all__` and by leading underscores; says nothing that a docstring does not say.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "api.md"

OPENING = """\
# API reference

Everything that `import hoplite` offers, and the lab of hoplite-bench, from the docstrings: `make docs` writes this
page, edit those instead.
What the words mean is in [concepts](concepts.md), how to begin in the [quickstart](quickstart.md).
"""

ASYNCIO = """\
A verb has a twin with the suffix `_async`, the same arguments and the same answer. It holds no thread while it waits; a
thread copies the bytes of a large object, so that the loop goes on. Cancelled, it takes back what it asked for.\
"""

# What Python shows longer than this is shown one parameter to a line.
SIGNATURE_WIDTH = 100

# A function of a class that Python calls by itself, and whose signature is the class's.
CONSTRUCTOR = "__init__"


def page() -> str:
    """The whole page."""
    package = read("hoplite", ROOT / "python")
    of_lab = read("hoplite_bench", ROOT / "packages" / "bench" / "python")["lab"]
    errors: list[griffe.Class] = []
    classes: list[griffe.Class] = []
    functions: list[griffe.Function] = []
    verbs: list[str] = []
    for name in package.exports or []:
        member = target(package[str(name)])
        if member.module.name == "default":
            verbs.append(member.name)
        elif isinstance(member, griffe.Class):
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
    lab = [target(of_lab[name]) for name in ("Lab", "Link", "Host", "Rack", "Pod", "Moved", "LabError")]
    on_dask = [
        *(target(package["dask"][name]) for name in ("install", "uninstall", "scatter", "replicate", "reduce", "ref")),
        target(package["dask.installation.Installation"]),
    ]
    body = [
        *(block for member in (*functions, *classes) for block in document(member, "hoplite.", 2)),
        "## asyncio",
        ASYNCIO,
        "\n".join(line for one in classes for line in twins(one)),
        *functions_of_default(package["default"], verbs),
        *error_table(errors),
        "## `hoplite.node_status`",
        text(package["node_status"]),
        *(block for member in status for block in document(member, "hoplite.node_status.", 3)),
        "## `hoplite.testing`",
        text(package["testing"]),
        *(block for member in testing for block in document(member, "hoplite.testing.", 3)),
        "## `hoplite.dask`",
        text(package["dask"]),
        *(block for member in on_dask for block in document(member, "hoplite.dask.", 3)),
        "## `hoplite.proxystore`",
        text(package["proxystore"]),
        *document(package["proxystore.HopliteConnector"], "hoplite.proxystore.", 3),
        "## `hoplite_bench.lab`",
        text(of_lab),
        *(block for member in lab for block in document(member, "hoplite_bench.lab.", 3)),
    ]
    return "\n\n".join([OPENING.rstrip(), contents(body), *body]) + "\n"


def read(package: str, folder: Path) -> griffe.Object:
    """What a package has."""
    loaded = griffe.load(
        package,
        search_paths=[folder],
        allow_inspection=False,
        docstring_parser="google",
        docstring_options={"returns_named_value": False, "returns_multiple_items": False, "warnings": False},
    )
    return target(loaded)


def twins(member: griffe.Class) -> Iterator[str]:
    """The verbs of a class for asyncio, of which only the difference needs words."""
    for name, verb in everything(member).items():
        if isinstance(verb, griffe.Function) and name.endswith("_async") and not name.startswith("_"):
            assert verb.docstring is not None
            notes = [
                part.value for part in verb.docstring.parsed if part.kind is griffe.DocstringSectionKind.admonition
            ]
            more = "".join(f" {flow(note.description)}" for note in notes if note.kind == "asyncio")
            yield f"- `{member.name}.{name}`: `{name.removesuffix('_async')}`, for asyncio.{more}"


def everything(member: griffe.Class) -> dict[str, griffe.Object | griffe.Alias]:
    """The members of a class: its own, then those that it inherits from classes of private modules."""
    found = dict(member.members)
    for base in member.mro():
        if "._" in base.module.path:
            found |= {name: one for name, one in base.members.items() if name not in found}
    return found


def functions_of_default(module: griffe.Object, verbs: list[str]) -> Iterator[str]:
    """The verbs that are functions of the package too."""
    yield "## Functions of the module"
    yield text(module)
    yield "\n".join(f"- `hoplite.{verb}`: `Client.{verb}`" for verb in sorted(verbs))


def target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    """What a name stands for, where it was imported from elsewhere."""
    return member.final_target if isinstance(member, griffe.Alias) else member


def contents(blocks: list[str]) -> str:
    """Links to the headings: one line for each of the second level, with those below it."""
    lines: list[str] = []
    for block in blocks:
        if match := re.match(r"(##+) (.*)$", block):
            title = match[2].strip("`")
            link = (
                f"[{title.removeprefix('hoplite.')}](#{re.sub(r'[^a-z0-9_ -]', '', title.lower()).replace(' ', '-')})"
            )
            if len(match[1]) == 2:
                lines.append(f"- {link}")
            else:
                lines[-1] += (": " if lines[-1].count("](") == 1 else ", ") + link
    return "\n".join(lines)


def document(member: griffe.Object, prefix: str, level: int) -> Iterator[str]:
    """The blocks about one function or class: heading, signature, text, sections, members."""
    yield f"{'#' * level} `{prefix}{member.name}`"
    if isinstance(member, griffe.Function):
        before = "@contextmanager\n" if any("contextmanager" in str(one.value) for one in member.decorators) else ""
        yield code(before + signature(member, member.name))
        yield from sections(member)
    elif isinstance(member, griffe.Class):
        constructor = member.members.get(CONSTRUCTOR)
        made_by_users = isinstance(constructor, griffe.Function) and is_public(constructor)
        if isinstance(constructor, griffe.Function) and made_by_users:
            yield code(signature(constructor, member.name))
        yield from sections(member, arguments=made_by_users)
    if isinstance(member, griffe.Class):
        yield from properties(member)
        for method in public_methods(member):
            yield from document(method, f"{member.name}.", level + 1)


def is_public(constructor: griffe.Function) -> bool:
    """Whether users can make one: not where an argument is this package's own. Then the text says who makes it."""
    own = re.compile(r"_native|\bRecord\b|\bKeeper\b")
    return not any(own.search(str(parameter.annotation)) for parameter in constructor.parameters)


def public_methods(member: griffe.Class) -> list[griffe.Function]:
    """Methods in the order of the source, without Python's own and without properties."""
    return [
        method
        for name, method in everything(member).items()
        if isinstance(method, griffe.Function) and method.docstring is not None
        if not name.startswith("_") and not name.endswith("_async")
    ]


def properties(member: griffe.Class) -> Iterator[str]:
    """Properties, and fields with a docstring, as one list."""
    lines = [
        f"- `{attribute.name}` (`{attribute.annotation}`): {flow(attribute.docstring.parsed[0].value)}"
        for attribute in everything(member).values()
        if isinstance(attribute, griffe.Attribute) and not attribute.name.startswith("_") and attribute.docstring
    ]
    if lines:
        yield "Properties:\n\n" + "\n".join(lines)


def signature(function: griffe.Function, name: str) -> str:
    """How a function is called and what it returns, on one line or on one for each parameter."""
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
    """A block that readers see in colours and that no test runs, for it is no program."""
    return f"```py\n{text}\n```"


def text(member: griffe.Object) -> str:
    """The whole docstring of what has no sections."""
    assert member.docstring is not None, f"{member.path} has no docstring"
    return member.docstring.value


def sections(member: griffe.Object, *, arguments: bool = True) -> Iterator[str]:
    """A docstring, section by section."""
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
                raise ValueError(f"{member.path} has a section of kind {other.value}, which this page can't show")


def error_table(errors: list[griffe.Class]) -> Iterator[str]:
    """All errors: name, bases, meaning."""
    yield "## Errors"
    rows = []
    for error in errors:
        bases = ", ".join(f"`{base}`" for base in error.bases if str(base) not in ("Exception", "HopliteError"))
        rows.append(f"| `{error.name}` | {bases} | {flow(text(error))} |")
    yield "Each is a `hoplite.HopliteError`, and what the second column says."
    yield "\n".join(["| error | also | meaning |", "| --- | --- | --- |", *rows])


def flow(text: str) -> str:
    """One paragraph on one line, so that a list item stays one."""
    return " ".join(text.split())


def main() -> int:
    """Writes the page, or checks it."""
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
        return 0
    if PAGE.read_text() == wanted:
        return 0
    sys.stderr.write(f"{PAGE.relative_to(ROOT)} is not what the docstrings say: run make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
