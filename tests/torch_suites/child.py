"""One process that runs tests by name: the names of a suite are lines of stdin, results are lines of JSON.

It knows neither the plan nor what is expected. The first line of output lists the tests of the suite.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, TextIO


def run(case: type[unittest.TestCase], method: str) -> dict[str, Any]:
    """Runs one test.

    Returns:
        Outcome, seconds, and why it was skipped or failed.
    """
    result = unittest.TestResult()
    start = time.monotonic()
    case(method).run(result)
    problems = result.errors + result.failures
    outcome, found = ("skipped", result.skipped) if result.skipped else ("failed", problems)
    if not found:
        outcome, found = "passed", [(None, "")]  # type: ignore[list-item]
    return {"outcome": outcome, "seconds": round(time.monotonic() - start, 2), "reason": found[0][1]}


def main() -> None:
    """Serves the suite that the command line names."""
    replies: TextIO = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the tests print belongs in the log
    from torch_suites import cases

    print(json.dumps(getattr(cases, sys.argv[1])()), file=replies, flush=True)
    for line in sys.stdin:
        case, method = line.strip().split(".")
        print(json.dumps(run(getattr(cases, case), method)), file=replies, flush=True)


if __name__ == "__main__":
    main()
