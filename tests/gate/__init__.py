"""The performance gate: measures ratios that the docs publish, and compares them with a committed record.

`make gate` runs it. `docs/benchmarks/gate.md` explains the figures, and `docs/benchmarks/gate.json` is the record.
"""
