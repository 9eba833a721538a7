#!/usr/bin/env python3
"""Rejects words that make readers stop, in Markdown, comments and docstrings, and prints what to write instead.

Arguments are files; without any, all tracked files but tests and generated pages. Does not read error texts. vale would
do this, but its packages on PyPI and npm download the program from a third place, which a mirror does not have.
"""

import re
import subprocess
import sys
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
# The parts of a file that people read.
PROSE = {
    ".md": r"(?s:.+)",
    ".py": r'"""(?s:.*?)"""|(?<!\S)# .*(?:\n[ \t]*# .*)*',
    ".rs": r"//.*(?:\n[ \t]*//.*)*",
}
# Backquoted names, attributes in docstrings, and breaks: a phrase may continue in the next line.
CODE_OR_BREAK = r"`[^`\n]*`|\n +\w+(?=: )|\n[ \t]*(?://[/!]?|#)?[ \t]*"
SKIPPED = re.compile(
    r"(^|/)(tests?|benches|corpus)(/|\.rs)|_tests?\.rs$|^docs/(api|benchmarks/report)\.md$|^\.ci/words\.py$"
)


def main() -> int:
    """Prints what is found; 1 if there is something."""
    listed = subprocess.run(
        ["git", "ls-files", *(f"*{suffix}" for suffix in PROSE)], capture_output=True, text=True, check=True
    )
    found = 0
    for file in sys.argv[1:] or (file for file in listed.stdout.split() if not SKIPPED.search(file)):
        text = Path(file).read_text()
        for part in re.finditer(PROSE[Path(file).suffix], text):
            # Keeps the length, so that places are those of the text.
            flat = re.sub(CODE_OR_BREAK, lambda match: " " * len(match[0]), part[0])
            for rule, advice in RULES.items():
                for match in re.finditer(rule.replace(" ", " +"), flat, re.IGNORECASE):
                    line = text.count("\n", 0, part.start() + match.start()) + 1
                    sys.stdout.write(f"{file}:{line}: {match[0].strip()!r}: write {advice}\n")
                    found = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
