"""Which machine gets which rank of a collective: from the times between them to the file that a launcher reads.

The search is Rust's (`crates/topology`), bound as `_native`; here is what people write and read. `matrix` and
`hosts` read files, `problem` says what is asked, `planning` asks it, `launchers` writes it down for MPI, torch,
NCCL, LightGBM and others, `verify` runs a launcher and looks, `heat` draws, `linear` proves rings by the programs
of `relaxation`, `smt` is the paper's second stage, `study` simulates many orders.

Times come from a file, or from a probe of hosts: `probing` has the whole of it, `landmarks` which pairs of many hosts
are asked, `reach` the agents on hosts, `layout` the file that it writes and `surveyed` what a plan takes of that.
`cli` has the commands.
"""
