"""Assigns the ranks of a collective to machines: from the times between machines to the file that a launcher reads.

The search is in Rust (`crates/topology`), bound as `_native`. This package reads and writes what people use: `matrix`
and `hosts` read files, `problem` describes the search, `planning` runs it, `launchers` writes files for MPI, torch,
NCCL, LightGBM and others, `verify` runs a launcher and checks the result, `heat` draws, `linear` proves rings with the
linear programs of `relaxation`, `smt` is the second stage of the paper, and `study` simulates many orders.

Times come from a file or from a probe of hosts. `probing` runs a probe, `landmarks` selects pairs if there are many
hosts, `reach` controls the agents on hosts, `layout` is the file that a probe writes, and `surveyed` prepares it for a
plan. `cli` has the commands.
"""
