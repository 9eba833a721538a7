"""Benchmarks of long runs: whole communication patterns for hundreds of steps, next to the bound of a step."""
