#!/usr/bin/env python3
"""Fails on words and turns of phrase that make readers stop, in docs, messages, help texts, docstrings and comments.

Arguments are files; without any, all tracked files but tests. Prints each place and what to write instead. vale is not
packaged on PyPI or Debian, and proselint takes no rules of one's own. Here a rule is one line.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

# What is wrong, and what to write.
RULES = {
    r"\b(?:tells?|told|hears?|heard)\b": "configures, reports, announces, sends, receives",
    r"\b(?:says|said)\b": "states, reports, sets; parts of the system do not talk",
    r"\b(?:asks|asked|asking)\b": "requests, queries",
    r"\b(?:that|which) (?:is|are|was|were) (?-i:none)\b": "not valid, missing, unknown, there is no",
    r"(?:^|[.;:] )[Oo]f (?:which|what|whom)\b": "start with the subject",
    r"\bstands? still\b": "unresponsive, paused, stalled",
    r"\bby turns\b": "alternating, interleaved",
    r"\bso long as\b": "while, until",
    r"\bas far as\b": "the part that, if",
    r"\bsuch that\b": "so that",
    r"\bthose who\b": "users that, nodes that",
    r"\bthe one that\b": "name the thing",
    r"\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"\bcomes? to nothing\b": "fails, is aborted",
    r"\bis no more\b": "has failed, was deleted",
    r"\bpatience\b": "timeout, deadline, flow control",
    r"\bplanted\b": "mutant",
    r"\bfirst-hand\b": "authoritative",
    r"\bbeside\b": "next to, compared with, in addition to",
    r"\bmay (?:yet|still) come\b": "can still arrive",
    r"\ball the same\b": "anyway, still",
}
RULE = {re.compile(pattern, re.IGNORECASE): advice for pattern, advice in RULES.items()}

# At most 20 lines. A file, and text around what is right there.
ALLOWED: list[tuple[str, str]] = [
    # Keys of messages and files.
    ("packages/bench/python/hoplite_bench/agent.py", '"said"'),
    ("packages/bench/python/hoplite_bench/group.py", '"said"'),
    ("packages/topology/python/hoplite_topology/probing.py", '"asked"'),
    ("packages/topology/python/hoplite_topology/samples.py", "asked: number of echoes"),
]
assert len(ALLOWED) <= 20

RUST = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:[^"\\]|\\.)*"|'(?:[^'\\\n]|\\.)+'""",
    re.DOTALL,
)
# Tokens of Python that people read. The texts of f-strings are tokens of their own since Python 3.12.
READ = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
# Tests, and pages that are generated from what is checked.
SKIPPED = re.compile(
    r"(^|/)(tests?|benches|corpus)(/|\.rs)|_tests?\.rs$|^docs/(api|messages|benchmarks/report)\.md$|^\.ci/words\.py$"
)


def prose(file: str) -> Iterator[tuple[int, str]]:
    """The parts of a file that people read, with the number of the line that each begins on."""
    text = Path(file).read_text()
    if file.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in READ:
                yield token.start[0], token.string
    elif file.endswith(".rs"):
        for match in RUST.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[0]
    else:
        yield 1, text


def places(file: str) -> Iterator[str]:
    """What the rules find in a file."""
    for first, text in prose(file):
        # Names in code are not prose. A phrase may continue in the next line.
        text = re.sub(r"`[^`\n]*`|\{[^{}\n]*\}", lambda match: " " * len(match[0]), text)
        flat = re.sub(r"\n[ \t]*(?://[/!]?|#)?[ \t]*", lambda match: " " * len(match[0]), text)
        for rule, advice in RULE.items():
            for match in rule.finditer(flat):
                around = " ".join(flat[max(0, match.start() - 40) : match.end() + 40].split())
                if any(file == where and words in around for where, words in ALLOWED):
                    continue
                # Replacements keep the length: places in `flat` are places in the text.
                line = first + text.count("\n", 0, match.start())
                yield f"{file}:{line}: {match[0].strip()!r} in {around!r}: write {advice}"


def main(files: list[str]) -> int:
    """Prints what is found; 1 if there is something."""
    if not files:
        listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
        files = [file for file in listed if file.endswith((".md", ".py", ".rs", ".pyi")) and not SKIPPED.search(file)]
    found = [place for file in files for place in places(file)]
    sys.stdout.writelines(f"{place}\n" for place in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
