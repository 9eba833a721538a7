"""Benchmarks of long runs: whole communication patterns for hundreds of steps, compared with the bound of a step."""
